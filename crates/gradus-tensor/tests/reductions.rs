//! Products, norms, log-sum-exp, maxima and minima with indices, and scans: values, special inputs and gradients.
#![allow(clippy::unwrap_used)]

mod common;

use common::{assert_close, cpu, f64s, i64s, layouts, randn};
use gradus_tensor::autograd::{gradcheck, gradgradcheck};
use gradus_tensor::{DType, ErrorKind, Result, Tensor};

const INF: f64 = f64::INFINITY;
const NAN: f64 = f64::NAN;

fn v(t: &Tensor) -> Vec<f64> {
    t.to_dtype(DType::F64).unwrap().to_vec().unwrap()
}

fn both(f: impl Fn(&Tensor) -> Result<Tensor>, x: &Tensor) {
    let inputs = std::slice::from_ref(x);
    gradcheck(|x| f(&x[0]), inputs).unwrap_or_else(|e| panic!("{:?} {e}", x.layout()));
    gradgradcheck(|x| f(&x[0]), inputs).unwrap_or_else(|e| panic!("{:?} {e}", x.layout()));
}

fn everywhere(shape: &[usize], f: impl Fn(&Tensor) -> Result<Tensor>) {
    for x in layouts(shape, 1) {
        both(&f, &x);
    }
}

fn slope(f: impl Fn(&Tensor) -> Result<Tensor>, x: &Tensor) -> Vec<f64> {
    let x = x.with_grad().unwrap();
    let g = f(&x).unwrap().sum_all().unwrap().backward().unwrap();
    v(g.get(&x).unwrap())
}

#[test]
fn products_multiply_and_nothing_is_one() {
    let x = i64s(&[2, 3, 4, 5, 6, 7], &[2, 3]);
    assert_eq!(x.prod(&[1], false).unwrap().to_vec::<i64>().unwrap(), [24, 210]);
    assert_eq!(x.to_dtype(DType::I8).unwrap().prod_all().unwrap().to_scalar::<i64>().unwrap(), 5040);
    assert_eq!(v(&f64s(&[], &[2, 0]).prod(&[1], false).unwrap()), [1.0, 1.0]);
    assert_eq!(f64s(&[1.0, NAN], &[2]).prod_all().unwrap().item().unwrap().to_bits() & (0x7ff << 52), 0x7ff << 52);
}

#[test]
fn products_have_their_gradients_at_one_and_several_zeros() {
    assert_eq!(slope(|x| x.prod(&[0], false), &f64s(&[2.0, 0.0, 3.0, 5.0], &[4])), [0.0, 30.0, 0.0, 0.0]);
    assert_eq!(slope(|x| x.prod(&[0], false), &f64s(&[2.0, 0.0, 0.0], &[3])), [0.0; 3]);
    for zeros in [&[1.5, 0.0, -2.0, 0.7, 3.0][..], &[0.0, 1.5, 0.0, 0.7, -2.0], &[0.0; 5]] {
        let x = f64s(zeros, &[5]);
        both(|x| x.prod(&[0], false), &x);
        both(|x| x.cumprod(0), &x);
    }
    for n in [1, 2, 3, 6] {
        both(|x| x.prod_all(), &randn(&[n], 3));
        both(|x| x.cumprod(0), &randn(&[n], 3));
    }
    everywhere(&[3, 2, 4], |x| x.prod(&[0, 2], false));
    everywhere(&[3, 2, 4], |x| x.prod(&[1], true));
    both(|x| x.prod(&[], false), &randn(&[2, 2], 1));
    both(|x| x.prod(&[1], false), &randn(&[2, 0], 1));
    let half = f64s(&[2.0, 0.0, 3.0], &[3]).to_dtype(DType::BF16).unwrap();
    assert_eq!(slope(|x| x.prod_all(), &half), [0.0, 6.0, 0.0]);
}

#[test]
fn deviations_agree_with_the_reference_and_have_no_slope_where_they_are_zero() {
    let x = f64s(&[1.0, -2.0, 0.5, 3.0, 0.0, -1.0], &[2, 3]);
    assert_close(&v(&x.std(&[1], 1, false).unwrap()), &[1.607_275_126_832_1, 2.081_665_999_466_13], 1e-12);
    assert_close(&v(&x.std(&[0], 0, true).unwrap()), &[1.0, 1.0, 0.75], 1e-12);
    let (var, mean) = x.var_mean(&[1], 1, false).unwrap();
    assert_close(&v(&mean), &[-1.0 / 6.0, 2.0 / 3.0], 1e-12);
    assert_close(&v(&var), &[2.583_333_333_333, 4.333_333_333_333], 1e-12);
    assert!(v(&x.std(&[], 1, false).unwrap()).iter().all(|s| s.is_nan()));
    assert_eq!(slope(|x| x.std(&[0], 0, false), &f64s(&[2.0, 2.0], &[2])), [0.0, 0.0]);
    everywhere(&[3, 4], |x| x.add(randn(&[3, 4], 9))?.std(&[1], 1, false));
}

#[test]
fn norms_of_every_p() {
    let x = f64s(&[1.0, -2.0, 0.5, 3.0, 0.0, -1.0], &[2, 3]);
    let norm = |p: f64| v(&x.norm(p, &[1], false).unwrap());
    assert_close(&norm(0.0), &[3.0, 2.0], 0.0);
    assert_close(&norm(0.5), &[9.742_640_687_119_286, 7.464_101_615_137_754], 1e-13);
    assert_close(&norm(1.0), &[3.5, 4.0], 0.0);
    assert_close(&norm(2.0), &[5.25f64.sqrt(), 10f64.sqrt()], 1e-15);
    assert_close(&norm(3.0), &[9.125f64.cbrt(), 28f64.cbrt()], 1e-14);
    assert_close(&norm(INF), &[2.0, 3.0], 0.0);
    assert_close(&norm(-INF), &[0.5, 0.0], 0.0);
    assert_eq!(x.norm(NAN, &[1], false).unwrap_err().kind(), &ErrorKind::InvalidArgument);
    assert_eq!(x.norm(2.0, &[1, 1], false).unwrap_err().kind(), &ErrorKind::InvalidAxis);
    assert_eq!(v(&f64s(&[], &[2, 0]).norm(2.0, &[1], false).unwrap()), [0.0, 0.0]);
    assert!(f64s(&[], &[2, 0]).norm(INF, &[1], false).is_err());
    assert!(f64s(&[1.0, NAN], &[2]).norm(2.0, &[0], false).unwrap().item().unwrap().is_nan());
    // 300^2 overflows f16, but the norm does not.
    let half = Tensor::full([2], 300, DType::F16, &cpu()).unwrap();
    assert_eq!(half.norm(2.0, &[0], false).unwrap().item().unwrap(), 424.25);
    assert_eq!(i64s(&[3, 4], &[2]).norm(2.0, &[0], false).unwrap().dtype(), DType::F32);
    for p in [0.5, 1.0, 1.5, 2.0, 3.0] {
        everywhere(&[3, 4], |x| x.norm(p, &[1], false));
        assert_eq!(slope(|x| x.norm(p, &[0], false), &f64s(&[0.0, 0.0], &[2])), [0.0; 2], "{p}");
    }
    for x in &layouts(&[3, 4], 1)[..4] {
        both(|x| x.norm(INF, &[1], true), x);
        both(|x| x.norm(-INF, &[0], true), x);
    }
    assert_close(&slope(|x| x.norm(2.0, &[0], false), &f64s(&[3.0, 0.0, 4.0], &[3])), &[0.6, 0.0, 0.8], 1e-15);
    assert_eq!(slope(|x| x.norm(INF, &[0], false), &f64s(&[-2.0, 2.0], &[2])), [-0.5, 0.5]);
}

#[test]
fn logsumexp_at_the_ends() {
    let x = f64s(&[1.0, -2.0, 0.5, 3.0, 0.0, -1.0], &[2, 3]);
    assert_close(
        &v(&x.logsumexp(&[1], false).unwrap()),
        &[4.502_338_382_395_786f64.ln(), 21.453_416_364_359_11f64.ln()],
        1e-9,
    );
    let lse = |x: &[f64]| f64s(x, &[x.len()]).logsumexp(&[0], false).unwrap().item().unwrap();
    let weights = |x: &[f64]| slope(|x| x.logsumexp(&[0], false), &f64s(x, &[x.len()]));
    assert_eq!(lse(&[-1e300, -1e300]), -1e300);
    assert_eq!((lse(&[-INF, -INF]), weights(&[-INF, -INF])), (-INF, vec![0.0, 0.0]));
    assert_eq!((lse(&[-INF, 2.0]), weights(&[-INF, 2.0])), (2.0, vec![0.0, 1.0]));
    assert_eq!((lse(&[INF, 2.0, INF]), weights(&[INF, 2.0, INF])), (INF, vec![0.5, 0.0, 0.5]));
    assert!(lse(&[INF, NAN]).is_nan() && lse(&[-INF, NAN]).is_nan());
    assert_eq!(lse(&[]), -INF);
    assert_eq!(f64s(&[], &[2, 0]).logsumexp(&[1], true).unwrap().shape(), [2, 1]);
    // Rows do not affect each other.
    let rows = f64s(&[-INF, -INF, INF, 1.0, 0.0, 0.0], &[3, 2]);
    assert_eq!(slope(|x| x.logsumexp(&[1], false), &rows), [0.0, 0.0, 1.0, 0.0, 0.5, 0.5]);
    everywhere(&[3, 2, 4], |x| x.logsumexp(&[0, 2], false));
    everywhere(&[3, 4], |x| x.logsumexp(&[], false));
    everywhere(&[3, 4], |x| x.logsumexp(&[-1], true));
}

#[test]
fn extremes_with_indices_send_the_gradient_to_the_index() {
    let x = f64s(&[1.0, 3.0, 3.0, 0.0, NAN, 5.0], &[2, 3]);
    let (values, indices) = x.max_with_indices(1, false).unwrap();
    assert_close(&v(&values), &[3.0, NAN], 0.0);
    assert_eq!(indices.to_vec::<i64>().unwrap(), [1, 1]);
    let (values, indices) = x.min_with_indices(0, true).unwrap();
    assert_eq!((values.shape(), indices.to_vec::<i64>().unwrap()), (&[1, 3][..], vec![1, 1, 0]));
    let tie = f64s(&[3.0, 1.0, 3.0], &[3]);
    assert_eq!(slope(|x| Ok(x.max_with_indices(0, false)?.0), &tie), [1.0, 0.0, 0.0]);
    let (lo, hi) = tie.aminmax(&[0], false).unwrap();
    assert_eq!((lo.item().unwrap(), hi.item().unwrap()), (1.0, 3.0));
    assert!(f64s(&[], &[0]).max_with_indices(0, false).is_err());
    for x in &layouts(&[3, 4], 1)[..4] {
        both(|x| Ok(x.max_with_indices(1, false)?.0), x);
        both(|x| Ok(x.min_with_indices(0, true)?.0), x);
    }
}

#[test]
fn any_and_all_take_nonzero_as_true() {
    let x = f64s(&[0.0, NAN, 0.0, -0.0], &[2, 2]);
    assert_eq!(x.any(&[1], false).unwrap().to_vec::<bool>().unwrap(), [true, false]);
    assert_eq!(i64s(&[1, -2, 0, 5], &[2, 2]).all(&[1], true).unwrap().to_vec::<bool>().unwrap(), [true, false]);
    let nothing = f64s(&[], &[1, 0]);
    assert!(!nothing.any(&[1], false).unwrap().to_vec::<bool>().unwrap()[0]);
    assert!(nothing.all(&[1], false).unwrap().to_vec::<bool>().unwrap()[0]);
}

#[test]
fn running_sums_and_products() {
    let x = i64s(&[1, 2, 3, 4, 5, 6], &[2, 3]);
    assert_eq!(x.cumsum(1).unwrap().to_vec::<i64>().unwrap(), [1, 3, 6, 4, 9, 15]);
    assert_eq!(x.t().unwrap().cumprod(-1).unwrap().to_vec::<i64>().unwrap(), [1, 4, 2, 10, 3, 18]);
    assert_eq!(x.gt(2).unwrap().cumsum(0).unwrap().to_vec::<i64>().unwrap(), [0, 0, 1, 1, 1, 2]);
    assert_eq!(x.cumsum(2).unwrap_err().kind(), &ErrorKind::InvalidAxis);
    assert!(f64s(&[1.0], &[]).cumsum(1).is_err());
    assert_eq!(f64s(&[], &[2, 0]).cumprod(1).unwrap().shape(), [2, 0]);
    assert_close(&v(&f64s(&[1.0, NAN, 2.0], &[3]).cumsum(0).unwrap()), &[1.0, NAN, NAN], 0.0);
    everywhere(&[3, 4], |x| x.cumsum(0));
    everywhere(&[3, 5], |x| x.cumsum(1));
    everywhere(&[3, 4], |x| x.cumprod(0));
    everywhere(&[3, 5], |x| x.cumprod(1));
    both(|x| x.cumprod(1), &f64s(&[2.0, 0.0, 3.0, 0.0, 0.5, 1.0, 2.0, 0.0], &[2, 4]));
    // 3000 ones in f16: a running sum in f16 would stop at 2048, but it is computed in f32.
    let ones = Tensor::ones([3000], DType::F16, &cpu()).unwrap();
    assert_eq!(v(&ones.cumsum(0).unwrap())[2999], 3000.0);
}

#[test]
fn running_extremes_take_the_latest_of_equal_elements() {
    let (values, indices) = f64s(&[1.0, 3.0, 3.0, NAN, 2.0, NAN], &[6]).cummax(0).unwrap();
    assert_close(&v(&values), &[1.0, 3.0, 3.0, NAN, NAN, NAN], 0.0);
    assert_eq!(indices.to_vec::<i64>().unwrap(), [0, 1, 2, 3, 3, 5]);
    let (values, indices) = i64s(&[1, 3, 0, 0, 2], &[5]).cummin(0).unwrap();
    assert_eq!(values.to_vec::<i64>().unwrap(), [1, 1, 0, 0, 0]);
    assert_eq!(indices.to_vec::<i64>().unwrap(), [0, 0, 2, 3, 3]);
    assert_eq!(f64s(&[], &[0]).cummax(0).unwrap().0.shape(), [0]);
    assert_eq!(i64s(&[1], &[1]).gt(0).unwrap().cummax(0).unwrap_err().kind(), &ErrorKind::UnsupportedDType);
    for x in &layouts(&[3, 4], 1)[..4] {
        both(|x| Ok(x.cummax(1)?.0), x);
        both(|x| Ok(x.cummin(0)?.0), x);
    }
    assert_eq!(slope(|x| Ok(x.cummax(0)?.0), &f64s(&[1.0, 3.0, 2.0], &[3])), [1.0, 2.0, 0.0]);
}

#[test]
fn running_logsumexp_is_stable() {
    let x = f64s(&[1.0, -2.0, 0.5], &[3]);
    assert_close(&v(&x.logcumsumexp(0).unwrap()), &[1.0, 1.048_587_351_573_742, 4.502_338_382_395_786f64.ln()], 1e-9);
    let far = f64s(&[-1000.0, 1000.0, -1000.0, 1000.0], &[4]);
    assert_close(&v(&far.logcumsumexp(0).unwrap()), &[-1000.0, 1000.0, 1000.0, 1000.0 + 2f64.ln()], 1e-12);
    assert_close(&slope(|x| x.logcumsumexp(0), &far), &[1.0, 2.5, 0.0, 0.5], 1e-12);
    let low = f64s(&[-INF, -INF, 2.0, -INF], &[4]);
    assert_close(&v(&low.logcumsumexp(0).unwrap()), &[-INF, -INF, 2.0, 2.0], 0.0);
    assert_eq!(slope(|x| x.logcumsumexp(0), &low), [0.0, 0.0, 2.0, 0.0]);
    assert_close(&v(&f64s(&[0.0, INF, 1.0], &[3]).logcumsumexp(0).unwrap()), &[0.0, INF, INF], 0.0);
    assert_eq!(i64s(&[0, 0], &[2]).logcumsumexp(0).unwrap().dtype(), DType::F32);
    everywhere(&[3, 5], |x| x.logcumsumexp(1));
    everywhere(&[4, 2], |x| x.logcumsumexp(0));
    // In half precision, large values still have the right weights.
    let half = f64s(&[100.0, 100.5], &[2]).to_dtype(DType::BF16).unwrap();
    let weight = 1.0 / (1.0 + 0.5f64.exp());
    assert_close(&slope(|x| x.logcumsumexp(0)?.narrow(0, 1, 1), &half), &[weight, 1.0 - weight], 1e-2);
}

#[test]
fn every_float_dtype_and_any_rank() {
    let values = [1.0, -2.0, 0.5, 3.0, 0.25, -1.0, 2.0, 0.0];
    let wide = f64s(&values, &[1, 2, 1, 2, 1, 2, 1, 1]);
    let calls: [fn(&Tensor) -> Result<Tensor>; 8] = [
        |x| x.prod(&[1, 5], false),
        |x| x.std(&[3, 5], 1, true),
        |x| x.norm(3.0, &[1, 3], false),
        |x| x.logsumexp(&[1, 5], false),
        |x| x.cumprod(5),
        |x| x.cumsum(1),
        |x| x.logcumsumexp(3),
        |x| Ok(x.max_with_indices(3, true)?.0),
    ];
    for (i, f) in calls.iter().enumerate() {
        let (want, slopes) = (v(&f(&wide).unwrap()), slope(f, &wide));
        for (dtype, tolerance) in [(DType::F32, 1e-6), (DType::F16, 2e-3), (DType::BF16, 1.6e-2)] {
            let x = wide.to_dtype(dtype).unwrap();
            let y = f(&x).unwrap();
            assert_eq!(y.dtype(), dtype, "{i}");
            assert_close(&v(&y), &want, tolerance);
            assert_close(&slope(f, &x), &slopes, tolerance);
        }
        both(f, &f64s(&[1.0, -2.0, 0.5, 3.0, 0.25, -1.0, 2.0, 0.75], &[1, 2, 1, 2, 1, 2, 1, 1]));
    }
}

#[test]
fn a_norm_of_order_zero_is_tracked_with_slope_zero() {
    let x = f64s(&[0.0, 2.0, -3.0, f64::NAN, 1.0, 0.0], &[2, 3]).with_grad().unwrap();
    let other = f64s(&[1.0; 6], &[2, 3]);
    type Op<'a> = (&'a str, &'a dyn Fn() -> Result<Tensor>);
    let ops: [Op<'_>; 3] = [
        ("norm", &|| x.norm(0.0, &[1], false)),
        ("cdist", &|| x.cdist(&other, 0.0)),
        ("pairwise_distance", &|| x.pairwise_distance(&other, 0.0, 0.0, false)),
    ];
    for (name, op) in ops {
        let y = op().unwrap();
        assert!(y.requires_grad(), "{name}");
        let g = y.sum_all().unwrap().backward().unwrap();
        assert_eq!(g.get(&x).unwrap().to_vec::<f64>().unwrap(), [0.0; 6], "{name}");
    }
    assert_eq!(x.norm(0.0, &[1], false).unwrap().to_vec::<f64>().unwrap(), [2.0, 2.0]);
}

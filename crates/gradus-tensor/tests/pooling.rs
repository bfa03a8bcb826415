//! Pooling, compared with PyTorch, and its gradients with finite differences.
#![allow(clippy::unwrap_used)]

mod common;

use common::{assert_close, assert_like_pytorch, both, cpu, f32s, f64s, i64s, layouts, randn, sines};
use gradus_tensor::{DType, PoolOptions, Result, Tensor};

fn f(t: &Tensor) -> Vec<f64> {
    t.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap()
}

/// Checks an operation with one input, in every layout of `shape`.
fn unary(shape: &[usize], f: impl Fn(&Tensor) -> Result<Tensor>) {
    for x in layouts(shape, 1) {
        both(|x| f(&x[0]), &[x]);
    }
}

#[test]
fn maxima_and_their_places_are_pytorchs() {
    let o = PoolOptions::new();
    let x = sines(&[1, 1, 5, 6], 1.7, 0.3);
    let (v, i) = x.max_pool2d_with_indices([2, 3], o.stride([2, 2]).padding([1, 1]).ceil_mode(true)).unwrap();
    assert_like_pytorch("mp", &v);
    assert_like_pytorch("mpi", &i);
    let (v, i) = x.max_pool2d_with_indices([2, 2], o.stride([2, 3]).dilation([2, 1]).ceil_mode(true)).unwrap();
    assert_like_pytorch("mpd", &v);
    assert_like_pytorch("mpdi", &i);
    let x = sines(&[1, 1, 3, 3, 4], 1.7, 0.3);
    let o = PoolOptions::new().stride([2, 1, 2]).padding([1, 0, 1]).ceil_mode(true);
    let (v, i) = x.max_pool3d_with_indices([2, 2, 3], o).unwrap();
    assert_like_pytorch("mp3", &v);
    assert_like_pytorch("mp3i", &i);
    // Computed by hand: the last window starts within the axis.
    let x = f64s(&[1.0, 5.0, 2.0, 4.0, 3.0], &[1, 1, 5]);
    assert_eq!(f(&x.max_pool1d([2], PoolOptions::new()).unwrap()), [5.0, 4.0]);
    let (v, i) = x.max_pool1d_with_indices([2], PoolOptions::new().ceil_mode(true)).unwrap();
    assert_eq!((f(&v), i.to_vec::<i64>().unwrap()), (vec![5.0, 4.0, 3.0], vec![1, 3, 4]));
}

#[test]
fn rounded_up_one_window_may_be_larger_than_the_axis() {
    let x = f64s(&[1.0, 5.0, 3.0], &[1, 1, 3]);
    let o = PoolOptions::new().stride([3]).ceil_mode(true);
    assert_eq!(f(&x.max_pool1d([5], o).unwrap()), [5.0]);
    assert_eq!(f(&x.max_pool1d([3], o.dilation([2])).unwrap()), [3.0]); // taps 0, 2 and 4
    for include in [true, false] {
        assert_eq!(f(&x.avg_pool1d([5], o, include).unwrap()), [3.0]);
    }
    both(|x| x[0].avg_pool1d([5], o, true)?.square(), std::slice::from_ref(&x));
    assert_eq!(x.max_pool1d([4], o.padding([2])).unwrap().shape(), [1, 1, 2]);
    // There is no window if it would end a whole stride past the axis, or if the number of windows is rounded down.
    assert!(x.max_pool1d([6], o).is_err());
    assert!(x.max_pool1d([5], o.ceil_mode(false)).is_err());
    assert!(x.max_pool1d([2], o.dilation([usize::MAX]).stride([usize::MAX])).is_err());
    assert!(randn(&[1, 1, 0], 1).max_pool1d([2], o.padding([1])).unwrap_err().to_string().contains("empty"));
}

#[test]
fn means_are_pytorchs_and_divide_by_what_counts() {
    let o = PoolOptions::new().ceil_mode(true);
    let x = sines(&[1, 1, 5, 6], 1.7, 0.3);
    let line = x.reshape([1, 5, 6]).unwrap();
    for (include, name) in [(true, "True"), (false, "False")] {
        let o = PoolOptions::new().stride([2, 2]).padding([1, 1]).ceil_mode(true);
        assert_like_pytorch(&format!("ap{name}"), &x.avg_pool2d([2, 3], o, include).unwrap());
        let o = PoolOptions::new().stride([3]).padding([2]).ceil_mode(true);
        assert_like_pytorch(&format!("ap1{name}"), &line.avg_pool1d([4], o, include).unwrap());
        let o = PoolOptions::new().stride([3]).padding([1]).ceil_mode(true);
        assert_like_pytorch(&format!("ap1b{name}"), &sines(&[1, 2, 5], 1.7, 0.3).avg_pool1d([2], o, include).unwrap());
    }
    let x = sines(&[1, 1, 3, 3, 4], 1.7, 0.3);
    assert_like_pytorch("ap3", &x.avg_pool3d([2, 2, 3], o.stride([2, 1, 2]).padding([1, 0, 1]), true).unwrap());
    // A window that reaches beyond the padding divides by the number of its elements up to the end of the padding.
    let x = f64s(&[1.0, 2.0, 3.0, 4.0, 5.0], &[1, 1, 5]);
    let o = PoolOptions::new().stride([3]).padding([1]).ceil_mode(true);
    assert_eq!(f(&x.avg_pool1d([3], o, true).unwrap()), [1.0, 4.0]);
    let o = PoolOptions::new().stride([4]).padding([1]).ceil_mode(true);
    assert_eq!(f(&x.avg_pool1d([3], o, true).unwrap()), [1.0, 3.0]);
    let o = PoolOptions::new().stride([2]).ceil_mode(true);
    assert_eq!(f(&x.avg_pool1d([2], o, true).unwrap()), [1.5, 3.5, 5.0]);
}

#[test]
fn adaptive_bins_are_pytorchs() {
    let x = sines(&[1, 2, 5, 7], 1.7, 0.3);
    assert_like_pytorch("aap", &x.adaptive_avg_pool2d([3, 4]).unwrap());
    let (v, i) = x.adaptive_max_pool2d_with_indices([3, 4]).unwrap();
    assert_like_pytorch("amp", &v);
    assert_like_pytorch("ampi", &i);
    assert_like_pytorch("aap1", &sines(&[1, 1, 3], 1.7, 0.3).adaptive_avg_pool1d([5]).unwrap());
    // Bins that divide the axis, one bin, and as many bins as elements.
    let x = randn(&[2, 3, 4, 6], 1);
    let o = PoolOptions::new();
    let close = |a: Tensor, b: Tensor| assert_close(&f(&a), &f(&b), 1e-14);
    close(x.adaptive_avg_pool2d([2, 3]).unwrap(), x.avg_pool2d([2, 2], o, false).unwrap());
    close(x.adaptive_max_pool2d([2, 3]).unwrap(), x.max_pool2d([2, 2], o).unwrap());
    close(x.adaptive_avg_pool2d([1, 1]).unwrap(), x.mean(&[2, 3], true).unwrap());
    close(x.adaptive_max_pool2d([1, 1]).unwrap(), x.max(&[2, 3], true).unwrap());
    close(x.adaptive_avg_pool2d([4, 6]).unwrap(), x);
    let x = randn(&[1, 2, 3, 2, 5], 1);
    assert_eq!(x.adaptive_max_pool3d([2, 1, 3]).unwrap().shape(), [1, 2, 2, 1, 3]);
    assert_eq!(x.adaptive_avg_pool3d([2, 1, 3]).unwrap().shape(), [1, 2, 2, 1, 3]);
}

// Mistake 2 of `gradus/tests/mistakes.rs`: overlapping windows are refused, and an all-NaN window has an index outside
// it.
// Mistake 3 of `gradus/tests/mistakes.rs`: pooling swallows NaN.
#[test]
fn windows_overlap_and_nan_wins_with_its_own_place() {
    let nan = f64::NAN;
    let x = f64s(&[1.0, nan, 0.0, 7.0, nan, nan, nan, 2.0], &[1, 1, 8]);
    let (v, i) = x.max_pool1d_with_indices([3], PoolOptions::new().stride([1])).unwrap();
    assert_eq!(i.to_vec::<i64>().unwrap(), [1, 1, 4, 4, 4, 5]);
    assert!(f(&v).iter().all(|v| v.is_nan()));
    let (v, i) = x.adaptive_max_pool1d_with_indices([3]).unwrap();
    assert_eq!(i.to_vec::<i64>().unwrap(), [1, 4, 5]);
    assert!(f(&v).iter().all(|v| v.is_nan()));
    // A NaN affects only the windows that contain it, and so does an infinity.
    let x = f64s(&[1.0, nan, 0.0, 7.0, 2.0], &[1, 1, 5]);
    let y = f(&x.adaptive_avg_pool1d([3]).unwrap());
    assert!(y[0].is_nan() && y[1].is_nan() && y[2] == 4.5, "{y:?}");
    let y = f(&x.avg_pool1d([2], PoolOptions::new().stride([1]), true).unwrap());
    assert!(y[0].is_nan() && y[1].is_nan() && y[2] == 3.5 && y[3] == 4.5, "{y:?}");
    let x = f64s(&[1.0, 2.0, f64::INFINITY, 4.0, 6.0], &[1, 1, 5]);
    assert_eq!(f(&x.adaptive_avg_pool1d([2]).unwrap()), [f64::INFINITY; 2]);
    assert_eq!(f(&x.adaptive_avg_pool1d([4]).unwrap()), [1.5, f64::INFINITY, f64::INFINITY, 5.0]);
}

#[test]
fn padding_never_wins_and_ties_go_to_the_first() {
    let low = Tensor::full([1, 1, 3], f64::NEG_INFINITY, DType::F32, &cpu()).unwrap();
    let o = PoolOptions::new().stride([1]).padding([1]);
    assert_eq!(low.max_pool1d_with_indices([3], o).unwrap().1.to_vec::<i64>().unwrap(), [0, 0, 1]);
    let x = f64s(&[2.0, 2.0, -0.0, 0.0], &[1, 1, 4]).with_grad().unwrap();
    let y = x.max_pool1d([2], PoolOptions::new()).unwrap();
    let g = y.sum_all().unwrap().backward().unwrap();
    assert_eq!(f(g.get(&x).unwrap()), [1.0, 0.0, 1.0, 0.0]);
    assert!(f(&y)[1].is_sign_negative());
    let y = x.adaptive_max_pool1d([2]).unwrap();
    let g = y.sum_all().unwrap().backward().unwrap();
    assert_eq!(f(g.get(&x).unwrap()), [1.0, 0.0, 1.0, 0.0]);
    let least = i64s(&[i64::MIN, -5, 3], &[1, 1, 3]).max_pool1d([2], PoolOptions::new().padding([1]).ceil_mode(true));
    assert_eq!(least.unwrap().to_vec::<i64>().unwrap(), [i64::MIN, 3]);
    assert_eq!(i64s(&[4, 9, 3], &[1, 1, 3]).adaptive_max_pool1d([2]).unwrap().to_vec::<i64>().unwrap(), [9, 9]);
}

#[test]
fn maxima_have_gradients_of_any_order() {
    let o = PoolOptions::new();
    for x in &layouts(&[2, 2, 4, 5], 1) {
        let x = std::slice::from_ref(x);
        both(|x| x[0].square()?.max_pool2d([2, 3], o.stride([1, 2]).padding([1, 1]).ceil_mode(true)), x);
        both(|x| x[0].square()?.adaptive_max_pool2d([3, 2]), x);
    }
    unary(&[2, 2, 7], |x| x.max_pool1d([3], PoolOptions::new().dilation([2]).stride([1]))?.square());
    unary(&[1, 2, 3, 2, 3], |x| x.max_pool3d([2, 2, 2], PoolOptions::new().stride([1, 1, 1]))?.square());
    unary(&[1, 2, 3, 2, 3], |x| x.adaptive_max_pool3d([2, 1, 2])?.square());
}

#[test]
fn means_have_gradients_of_any_order() {
    for include in [true, false] {
        let o = PoolOptions::new().stride([2, 2]).padding([1, 1]).ceil_mode(true);
        unary(&[2, 2, 4, 5], |x| x.avg_pool2d([2, 3], o, include)?.square());
        unary(&[2, 2, 6], |x| x.avg_pool1d([3], PoolOptions::new().dilation([2]).stride([1]), include)?.square());
        unary(&[1, 2, 3, 2, 3], |x| x.avg_pool3d([2, 2, 2], PoolOptions::new().stride([1; 3]), include)?.square());
    }
    unary(&[2, 2, 5], |x| x.adaptive_avg_pool1d([3])?.square());
    unary(&[2, 2, 5, 4], |x| x.adaptive_avg_pool2d([3, 2])?.square());
    unary(&[1, 1, 3, 2, 3], |x| x.adaptive_avg_pool3d([2, 3, 2])?.square());
}

#[test]
fn half_precision_averages_in_f32() {
    let x = Tensor::full([1, 1, 4096], 60000.0, DType::F16, &cpu()).unwrap();
    assert_eq!(f(&x.avg_pool1d([4096], PoolOptions::new(), true).unwrap()), [60000.0]);
    assert_eq!(f(&x.adaptive_avg_pool1d([1]).unwrap()), [60000.0]);
    let y = x.adaptive_avg_pool1d([3]).unwrap();
    assert_eq!((y.dtype(), f(&y)), (DType::F16, vec![60000.0; 3]));
    let x = f32s(&[1.0, 2.0, 4.0], &[1, 1, 3]).to_dtype(DType::BF16).unwrap();
    assert_eq!(f(&x.max_pool1d([2], PoolOptions::new().stride([1])).unwrap()), [2.0, 4.0]);
    assert_eq!(f(&x.adaptive_max_pool1d([2]).unwrap()), [2.0, 4.0]);
}

#[test]
fn empty_batches_are_legal() {
    for shape in [[0, 2, 3, 3], [2, 0, 3, 3]] {
        let x = randn(&shape, 1);
        let want = [shape[0], shape[1], 2, 2];
        let o = PoolOptions::new().stride([1, 1]);
        assert_eq!(x.max_pool2d([2, 2], o).unwrap().shape(), want);
        assert_eq!(x.avg_pool2d([2, 2], o, true).unwrap().shape(), want);
        assert_eq!(x.adaptive_avg_pool2d([2, 2]).unwrap().shape(), want);
        let (v, i) = x.adaptive_max_pool2d_with_indices([2, 2]).unwrap();
        assert_eq!((v.shape(), i.shape(), i.dtype()), (&want[..], &want[..], DType::I64));
        both(|x| x[0].adaptive_avg_pool2d([2, 2]), &[x]);
    }
}

#[test]
fn impossible_pools_are_refused_with_their_input() {
    let x = randn(&[1, 2, 5], 1);
    let o = PoolOptions::new();
    let refused = |r: Result<Tensor>, part: &str| {
        let e = r.unwrap_err().to_string();
        assert!(e.contains(part), "{part}: {e}");
    };
    refused(x.max_pool1d([0], o), "kernel is 0");
    refused(x.max_pool1d([2], o.stride([0])), "stride is 0");
    refused(x.max_pool1d([2], o.dilation([0])), "dilation is 0");
    refused(x.max_pool1d([2], o.padding([2])), "more than half");
    refused(x.max_pool1d([6], o), "[1, 2, 5]");
    refused(x.max_pool1d([6], o.stride([1]).ceil_mode(true)), "[1, 2, 5]");
    refused(x.max_pool1d([1 << 25], o), "more than");
    refused(x.max_pool2d([2, 2], PoolOptions::new()), "2 spatial axes");
    refused(x.avg_pool1d([3], o.padding([2]), true), "more than half");
    refused(i64s(&[1, 2], &[1, 1, 2]).avg_pool1d([2], o, true), "i64");
    refused(x.ne(0.0).unwrap().max_pool1d([2], o), "bool");
    // The window would read positions -1 and 2 of an axis of two elements.
    refused(randn(&[1, 1, 2], 1).max_pool1d([2], o.padding([1]).dilation([3]).stride([1])), "padding only");
    refused(x.adaptive_avg_pool1d([0]), "at least 1");
    refused(x.adaptive_max_pool1d([0]), "at least 1");
    refused(x.adaptive_avg_pool2d([1, 1]), "2 spatial axes");
    refused(randn(&[1, 2, 0], 1).adaptive_avg_pool1d([1]), "empty");
    refused(randn(&[1, 2, 0], 1).adaptive_max_pool1d([1]), "empty");
    refused(i64s(&[1, 2], &[1, 1, 2]).adaptive_avg_pool1d([1]), "i64");
    refused(x.ne(0.0).unwrap().adaptive_max_pool1d([2]), "bool");
    refused(x.adaptive_avg_pool1d([usize::MAX]), "elements");
    refused(x.adaptive_max_pool1d([1 << 50]), "memory");
}

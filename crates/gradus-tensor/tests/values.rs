//! Results of operations, especially edge cases: broadcasting, promotion, NaN, empty tensors, indices, printing.
#![allow(clippy::unwrap_used)]

mod common;

use common::{another_cpu, assert_close, cpu, f32s, f64s, i64s, randn};
use gradus_tensor::ops::table::TABLE;
use gradus_tensor::{ConvOptions, DType, ErrorKind, Generator, Operand, PoolOptions, Reduction, Scalar, Tensor};

fn vec64(t: &Tensor) -> Vec<f64> {
    t.to_dtype(DType::F64).unwrap().to_vec().unwrap()
}

#[test]
fn elementwise_operations_agree_with_the_interpreter_of_the_ir_in_every_dtype() {
    // Values that every dtype can represent, so that all tests use the same numbers.
    let values = [1.0, 2.0, 3.0, 7.0, 0.0, 5.0];
    let mut checked = 0;
    for entry in TABLE {
        for dtype in DType::ALL {
            let x = f64s(&values, &[2, 3]).to_dtype(dtype).unwrap();
            let y = f64s(&[2.0, 3.0, 1.0], &[3]).to_dtype(dtype).unwrap();
            let mask = x.ne(0).unwrap();
            let mut operands: Vec<Operand<'_>> = vec![];
            operands.extend(entry.condition.then_some(Operand::Tensor(&mask)));
            operands.push(Operand::Tensor(&x));
            operands.extend((operands.len() < entry.tensors).then_some(Operand::Tensor(&y)));
            // The scalars 1 and 2 fit every dtype. Scalars that are not integers would fit only float dtypes.
            operands.extend(entry.scalars.iter().enumerate().map(|(i, _)| Operand::Scalar(Scalar::Int(i as i64 + 1))));
            let got = match entry.op.apply(&operands) {
                Ok(got) => got,
                Err(e) => {
                    assert_eq!(e.kind(), &ErrorKind::UnsupportedDType, "{} {dtype}: {e}", entry.op.name());
                    continue;
                }
            };
            assert_eq!(got.shape(), [2, 3]);
            // Find the dtype that the operands were converted to: its kernel has the dtype of the result.
            let common = [dtype, dtype.to_float(), DType::I64]
                .into_iter()
                .find(|&d| entry.op.kernel(d).is_ok_and(|k| k.outputs()[0].1 == got.dtype()))
                .unwrap();
            let kernel = entry.op.kernel(common).unwrap();
            let want: Vec<f64> = (0..6)
                .map(|i| {
                    let args: Vec<Scalar> = operands
                        .iter()
                        .map(|o| match o {
                            Operand::Scalar(s) => *s,
                            Operand::Tensor(t) => Scalar::Float(vec64(t)[if t.rank() == 2 { i } else { i % 3 }]),
                        })
                        .map(|s| if common.is_float() { s } else { Scalar::Int(s.to_i64()) })
                        .collect();
                    let y = kernel.eval(&args).unwrap()[0];
                    // The interpreter stores large u64 values in two's complement, as negative i64.
                    if got.dtype() == DType::U64 { y.to_i64() as u64 as f64 } else { y.to_f64() }
                })
                .collect();
            let tolerance = match got.dtype() {
                DType::F64 => 1e-14,
                DType::F32 => 4e-7,
                DType::F16 => 1e-3,
                DType::BF16 => 8e-3,
                _ => 0.0,
            };
            assert_close(&vec64(&got), &want, tolerance);
            checked += 1;
        }
    }
    assert!(checked > 350, "{checked}");
}

#[test]
fn broadcasting_stretches_ones_and_refuses_the_rest() {
    let y = f32s(&[1.0, 2.0], &[2, 1]).add(f32s(&[10.0, 20.0, 30.0], &[3])).unwrap();
    assert_eq!(y.to_vec::<f32>().unwrap(), [11.0, 21.0, 31.0, 12.0, 22.0, 32.0]);
    assert_eq!(f32s(&[], &[0]).add(f32s(&[1.0], &[1])).unwrap().shape(), [0]);
    let e = f32s(&[1.0, 2.0], &[2]).add(f32s(&[1.0; 3], &[3])).unwrap_err();
    assert_eq!(e.kind(), &ErrorKind::Broadcast);
    assert!(e.to_string().contains("input 0") && e.to_string().contains("help"), "{e}");
}

#[test]
fn dtypes_promote_and_scalars_are_weak() {
    let i = i64s(&[1, 2], &[2]);
    let h = f32s(&[1.0, 2.0], &[2]).to_dtype(DType::F16).unwrap();
    assert_eq!(i.add(&h).unwrap().dtype(), DType::F16);
    assert_eq!(h.mul(2.5).unwrap().dtype(), DType::F16);
    assert_eq!(i.mul(2).unwrap().dtype(), DType::I64);
    assert_eq!(i.mul(2.5).unwrap().to_vec::<f32>().unwrap(), [2.5, 5.0]);
    assert_eq!(i.div(2).unwrap().to_vec::<f32>().unwrap(), [0.5, 1.0]);
    assert_eq!((&i - 1).unwrap().to_vec::<i64>().unwrap(), [0, 1]);
    assert_eq!((1.0 - &h).unwrap().dtype(), DType::F16);
    let u = i.to_dtype(DType::U8).unwrap();
    assert!(u.add(300).is_err() && u.neg().is_err());
    assert_eq!(i.add(i.to_dtype(DType::U64).unwrap()).unwrap_err().kind(), &ErrorKind::DTypeMismatch);
}

#[test]
fn nan_propagates_and_comparisons_are_exact() {
    let x = f32s(&[f32::NAN, -1.0, 2.0], &[3]);
    assert!(x.relu().unwrap().to_vec::<f32>().unwrap()[0].is_nan());
    assert!(x.max_all().unwrap().to_scalar::<f32>().unwrap().is_nan());
    assert!(x.clamp(0.0, 1.0).unwrap().to_vec::<f32>().unwrap()[0].is_nan());
    assert!(x.maximum(0.0).unwrap().to_vec::<f32>().unwrap()[0].is_nan());
    assert_eq!(x.argmax(0, false).unwrap().to_scalar::<i64>().unwrap(), 0);
    assert_eq!(x.gt(0.0).unwrap().to_vec::<bool>().unwrap(), [false, false, true]);
    assert_eq!(x.ne(&x).unwrap().to_vec::<bool>().unwrap(), [true, false, false]);
    let big = i64s(&[(1 << 53) + 1], &[1]);
    assert_eq!(big.eq((1i64 << 53) + 1).unwrap().to_vec::<bool>().unwrap(), [true]);
    assert_eq!(big.eq(1i64 << 53).unwrap().to_vec::<bool>().unwrap(), [false]);
    // An integer is compared with a float exactly, without being rounded. A scalar outside the dtype's range can still
    // be compared.
    assert_eq!(i64s(&[16_777_217], &[1]).eq(16_777_216.0).unwrap().to_vec::<bool>().unwrap(), [false]);
    assert_eq!(i64s(&[i64::MAX, 2], &[2]).lt(2.5).unwrap().to_vec::<bool>().unwrap(), [false, true]);
    assert_eq!(f32s(&[16_777_216.0], &[1]).eq(16_777_217).unwrap().to_vec::<bool>().unwrap(), [false]);
    let u = i64s(&[255], &[1]).to_dtype(DType::U8).unwrap();
    assert_eq!(u.lt(300).unwrap().to_vec::<bool>().unwrap(), [true]);
    assert_eq!(u.ge(f64::NAN).unwrap().to_vec::<bool>().unwrap(), [false]);
    let i = i64s(&[16_777_217], &[1]).to_dtype(DType::I32).unwrap();
    assert_eq!(i.eq(f32s(&[16_777_216.0], &[1])).unwrap().to_vec::<bool>().unwrap(), [false]);
    assert_eq!(big.eq(f32s(&[1.0], &[1])).unwrap_err().kind(), &ErrorKind::DTypeMismatch);
    let zeros = f32s(&[0.0, 0.0], &[1, 2]);
    let nan = f32s(&[f32::NAN, f32::INFINITY], &[2, 1]);
    assert!(zeros.matmul(&nan).unwrap().to_scalar::<f32>().unwrap().is_nan());
}

#[test]
fn limits_of_activations() {
    let x = f32s(&[f32::INFINITY, f32::NEG_INFINITY, 1e4, -1e4, 0.0], &[5]);
    for (y, want) in [
        (x.silu(), [f64::INFINITY, 0.0, 1e4, 0.0, 0.0]),
        (x.gelu(), [f64::INFINITY, 0.0, 1e4, 0.0, 0.0]),
        (x.gelu_tanh(), [f64::INFINITY, 0.0, 1e4, 0.0, 0.0]),
        (x.sigmoid(), [1.0, 0.0, 1.0, 0.0, 0.5]),
        (x.tanh(), [1.0, -1.0, 1.0, -1.0, 0.0]),
        (x.softplus(), [f64::INFINITY, 0.0, 1e4, 0.0, 2f64.ln()]),
    ] {
        assert_close(&vec64(&y.unwrap()), &want, 1e-6);
    }
}

#[test]
fn reductions_of_nothing_and_of_small_integers() {
    let empty = f32s(&[], &[0, 3]);
    assert_eq!(empty.sum(&[0], false).unwrap().to_vec::<f32>().unwrap(), [0.0; 3]);
    assert!(empty.mean(&[0], false).unwrap().to_vec::<f32>().unwrap().iter().all(|v| v.is_nan()));
    assert_eq!(empty.max(&[0], false).unwrap_err().kind(), &ErrorKind::InvalidArgument);
    assert!(empty.argmax(0, false).is_err());
    assert_eq!(empty.max(&[1], false).unwrap().shape(), [0]);
    let u = i64s(&[200, 100], &[2]).to_dtype(DType::U8).unwrap();
    assert_eq!(u.sum_all().unwrap().to_scalar::<i64>().unwrap(), 300);
    assert_eq!(u.gt(150).unwrap().sum_all().unwrap().to_scalar::<i64>().unwrap(), 1);
    let x = f32s(&[1.0, 2.0, 3.0, 4.0], &[2, 2]);
    assert_eq!(x.sum(&[], false).unwrap().to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0, 4.0]);
    assert_eq!(x.sum(&[-1], true).unwrap().shape(), [2, 1]);
    assert_eq!(x.var(&[0], 1, false).unwrap().to_vec::<f32>().unwrap(), [2.0, 2.0]);
    assert!(x.sum(&[0, -2], false).is_err() && x.sum(&[2], false).is_err());
    // Half precision is summed in f32. The largest f16 is 65504.
    let h = Tensor::full([4], 60000.0, DType::F16, &cpu()).unwrap();
    assert_eq!(h.mean_all().unwrap().item().unwrap(), 60000.0);
}

#[test]
fn matmul_shapes_and_errors() {
    let (a, b) = (randn(&[2, 3], 1), randn(&[3, 4], 2));
    assert_eq!(a.matmul(&b).unwrap().shape(), [2, 4]);
    assert_eq!(randn(&[5, 1, 2, 3], 1).matmul(&randn(&[7, 3, 4], 2)).unwrap().shape(), [5, 7, 2, 4]);
    assert_eq!(randn(&[3], 1).matmul(&b).unwrap().shape(), [4]);
    assert_eq!(a.matmul(&randn(&[3], 1)).unwrap().shape(), [2]);
    assert_eq!(randn(&[3], 1).matmul(&randn(&[3], 2)).unwrap().rank(), 0);
    assert_eq!(randn(&[2, 0], 1).matmul(&randn(&[0, 4], 2)).unwrap().to_vec::<f64>().unwrap(), [0.0; 8]);
    let e = a.matmul(&randn(&[5, 3], 1)).unwrap_err();
    assert!(e.to_string().contains("lhs") && e.to_string().contains(".t()?"), "{e}");
    let i = i64s(&[1, 2, 3, 4], &[2, 2]);
    assert_eq!(i.matmul(&i).unwrap().to_vec::<i64>().unwrap(), [7, 10, 15, 22]);
}

#[test]
fn products_of_small_integers_are_summed_in_i32() {
    let x = Tensor::from_vec(vec![255u8; 600], [1, 2, 300], &cpu()).unwrap();
    let w = Tensor::from_vec(vec![-128i8; 900], [3, 300, 1], &cpu()).unwrap();
    let y = x.matmul_i32(&w).unwrap();
    assert_eq!((y.shape(), y.dtype()), (&[3, 2, 1][..], DType::I32));
    assert_eq!(y.to_vec::<i32>().unwrap(), [255 * -128 * 300; 6]);
    assert_eq!(x.matmul_i32(&w.select(0, 0).unwrap().squeeze(1).unwrap()).unwrap().shape(), [1, 2]);
    let wide = x.to_dtype(DType::I32).unwrap();
    assert!(matches!(wide.matmul_i32(&w).unwrap_err().kind(), ErrorKind::UnsupportedDType));
    assert!(x.matmul_i32(&x).unwrap_err().to_string().contains("inner dimensions differ: 300 != 2"));
}

#[test]
fn convolution_and_pooling_against_sums_by_hand() {
    let x = f32s(&(1..=9).map(|v| v as f32).collect::<Vec<_>>(), &[1, 1, 3, 3]);
    let w = f32s(&[1.0, 0.0, 0.0, -1.0], &[1, 1, 2, 2]);
    let y = x.conv2d(&w, Some(&f32s(&[10.0], &[1])), ConvOptions::new()).unwrap();
    assert_eq!(y.to_vec::<f32>().unwrap(), [6.0; 4]);
    let (v, i) = x.max_pool2d_with_indices([2, 2], PoolOptions::new().stride([1, 1]).padding([1, 1])).unwrap();
    assert_eq!(v.shape(), [1, 1, 4, 4]);
    assert_eq!(&v.to_vec::<f32>().unwrap()[..5], [1.0, 2.0, 3.0, 3.0, 4.0]);
    assert_eq!(i.to_vec::<i64>().unwrap()[15], 8);
    let low = Tensor::full([1, 1, 2, 2], f64::NEG_INFINITY, DType::F32, &cpu()).unwrap();
    assert_eq!(
        low.max_pool2d_with_indices([2, 2], PoolOptions::new().padding([1, 1])).unwrap().1.to_vec::<i64>().unwrap(),
        [0, 1, 2, 3]
    );
    let a = x.avg_pool2d([2, 2], PoolOptions::new().padding([1, 1]), false).unwrap();
    assert_eq!(a.to_vec::<f32>().unwrap(), [1.0, 2.5, 5.5, 7.0]);
    assert!(x.max_pool2d([2, 2], PoolOptions::new().padding([2, 2])).is_err());
    assert!(x.conv2d(&w, None, ConvOptions::new().stride([0, 1])).is_err());
    assert!(x.conv2d(&f32s(&[1.0; 16], &[1, 1, 4, 4]), None, ConvOptions::new()).is_err());
}

#[test]
fn losses_by_hand() {
    let x = f64s(&[1.0, 2.0, 3.0, 1.0, 1.0, 1.0], &[2, 3]);
    let lse = (1f64.exp() + 2f64.exp() + 3f64.exp()).ln();
    let loss = x.cross_entropy_with(&i64s(&[2, -1], &[2]), None, Some(-1), 0.0, Reduction::Mean).unwrap();
    assert_close(&[loss.item().unwrap()], &[lse - 3.0], 1e-12);
    let smooth = x.cross_entropy_with(&i64s(&[2, 0], &[2]), None, None, 0.3, Reduction::None).unwrap();
    assert_close(&vec64(&smooth), &[lse - 0.7 * 3.0 - 0.3 * 2.0, 3f64.ln()], 1e-12);
    let e = x.cross_entropy(&i64s(&[0, 3], &[2])).unwrap_err();
    assert_eq!(e.kind(), &ErrorKind::IndexOutOfBounds { pos: 1, index: 3, size: 3 });
    assert!(x.cross_entropy(&f64s(&[0.0, 1.0], &[2])).is_err());
    let empty = f64s(&[], &[0, 3]).cross_entropy(&i64s(&[], &[0])).unwrap();
    assert!(empty.item().unwrap().is_nan());
    assert!(x.mse_loss(&f64s(&[1.0], &[1]), Reduction::Mean).is_err());
}

#[test]
fn indices_are_checked() {
    let x = f32s(&[1.0, 2.0, 3.0, 4.0], &[2, 2]);
    assert_eq!(x.index_select(1, &i64s(&[1, 1], &[2])).unwrap().to_vec::<f32>().unwrap(), [2.0, 2.0, 4.0, 4.0]);
    let e = x.index_select(0, &i64s(&[0, -1], &[2])).unwrap_err();
    assert_eq!(e.kind(), &ErrorKind::IndexOutOfBounds { pos: 1, index: -1, size: 2 });
    let e = x.embedding(&i64s(&[5], &[1]), None).unwrap_err();
    assert_eq!(e.kind(), &ErrorKind::IndexOutOfBounds { pos: 0, index: 5, size: 2 });
    assert!(x.embedding(&f32s(&[1.0], &[1]), None).is_err());
    assert!(f32s(&[], &[0, 2]).embedding(&i64s(&[0], &[1]), None).is_err());
    assert_eq!(x.select(0, -1).unwrap().to_vec::<f32>().unwrap(), [3.0, 4.0]);
    assert!(x.select(0, 2).is_err() && x.narrow(1, 1, 2).is_err() && x.slice(0, 0, 2, 0).is_err());
}

#[test]
fn cat_and_stack() {
    let (a, b) = (f32s(&[1.0, 2.0], &[1, 2]), i64s(&[3, 4], &[1, 2]));
    let c = Tensor::cat(&[&a, &b, &f32s(&[], &[0, 2])], 0).unwrap();
    assert_eq!((c.shape(), c.to_vec::<f32>().unwrap()), (&[2, 2][..], vec![1.0, 2.0, 3.0, 4.0]));
    assert_eq!(Tensor::stack(&[&a, &a], -1).unwrap().to_vec::<f32>().unwrap(), [1.0, 1.0, 2.0, 2.0]);
    assert!(Tensor::cat(&[], 0).is_err());
    assert!(Tensor::cat(&[&a, &f32s(&[1.0], &[1, 1])], 0).is_err());
    let many: Vec<Tensor> = (0..300).map(|i| f32s(&[i as f32], &[1])).collect();
    let y = Tensor::cat(&many.iter().collect::<Vec<_>>(), 0).unwrap();
    assert_eq!(y.to_vec::<f32>().unwrap()[299], 299.0);
}

#[test]
fn creation() {
    let d = cpu();
    assert_eq!(Tensor::arange(5, -2, -3, DType::I32, &d).unwrap().to_vec::<i32>().unwrap(), [5, 2, -1]);
    assert!(Tensor::arange(0, 300, 1, DType::U8, &d).is_err() && Tensor::arange(0, 1, 0, DType::U8, &d).is_err());
    assert!(Tensor::arange(i64::MIN, i64::MAX, 1, DType::I64, &d).is_err());
    // The step points away from the end.
    assert!(Tensor::arange(3, -2, 1, DType::I64, &d).is_err() && Tensor::arange(-2, 3, -1, DType::I64, &d).is_err());
    assert_eq!(Tensor::arange(3, 3, 1, DType::I64, &d).unwrap().shape(), [0]);
    let far = Tensor::arange(i64::MIN, i64::MAX, i64::MAX, DType::I64, &d).unwrap();
    assert_eq!(far.to_vec::<i64>().unwrap(), [i64::MIN, -1, i64::MAX - 1]);
    assert!(Tensor::arange(0, 1 << 48, 1, DType::I64, &d).is_err() && Tensor::eye(1 << 24, DType::F64, &d).is_err());
    assert_eq!(vec64(&Tensor::linspace(0.0, 1.0, 5, DType::F32, &d).unwrap()), [0.0, 0.25, 0.5, 0.75, 1.0]);
    assert_eq!(vec64(&Tensor::eye(2, DType::F32, &d).unwrap()), [1.0, 0.0, 0.0, 1.0]);
    assert!(Tensor::full([2], 300, DType::U8, &d).is_err());
    assert!(Tensor::full([2], f64::NAN, DType::I32, &d).is_err());
    assert!(Tensor::zeros([usize::MAX, 2], DType::F32, &d).is_err());
    assert!(Tensor::from_vec(vec![1.0f32; 3], [2, 2], &d).is_err());
}

#[test]
fn random_numbers_depend_on_seed_and_position_only() {
    let d = cpu();
    let mut g = Generator::new(5);
    let whole = Tensor::randn([1000], DType::F32, &d, &mut g).unwrap();
    let mut g = Generator::new(5);
    let first = Tensor::randn([10, 40], DType::F32, &d, &mut g).unwrap();
    let second = Tensor::randn([600], DType::F32, &d, &mut g).unwrap();
    let joined = Tensor::cat(&[&first.flatten(0, 1).unwrap(), &second], 0).unwrap();
    assert_eq!(whole.to_vec::<f32>().unwrap(), joined.to_vec::<f32>().unwrap());
    let dice = Tensor::randint(1, 7, [1000], DType::I64, &d, &mut g).unwrap();
    assert_eq!(dice.min_all().unwrap().item().unwrap(), 1.0);
    assert_eq!(dice.max_all().unwrap().item().unwrap(), 6.0);
    // Different draws produce different masks.
    let ones = Tensor::ones([64], DType::F32, &d).unwrap();
    let masks: Vec<Vec<f32>> = (0..4).map(|_| ones.dropout(0.5, &mut g).unwrap().to_vec().unwrap()).collect();
    assert!(masks.windows(2).all(|w| w[0] != w[1]));
    assert_eq!(ones.dropout(1.0, &mut g).unwrap().to_vec::<f32>().unwrap(), [0.0; 64]);
    assert!(ones.dropout(1.5, &mut g).is_err());
    assert!(Tensor::randint(3, 3, [1], DType::I64, &d, &mut g).is_err());
}

#[test]
fn batch_statistics_are_biased_inside_and_unbiased_outside() {
    let x = f64s(&[1.0, 2.0, 3.0, 6.0], &[4, 1]);
    let (y, s) = x.batch_norm(None, None, 1e-12).unwrap();
    assert_close(&vec64(&s.mean), &[3.0], 1e-12);
    assert_close(&vec64(&s.var), &[14.0 / 3.0], 1e-9);
    assert_close(&[y.square().unwrap().mean_all().unwrap().item().unwrap()], &[1.0], 1e-9);
    // A variance far below eps is not lost.
    let small = f32s(&[1.0e-6, -1.0e-6, 2.0e-6, -2.0e-6], &[4, 1]).batch_norm(None, None, 1e-3).unwrap().1;
    assert!((small.var.item().unwrap() / (10.0e-12 / 3.0) - 1.0).abs() < 1e-5);
    for empty in [f64s(&[1.0], &[1, 1]), f64s(&[], &[0, 3])] {
        assert!(empty.batch_norm(None, None, 1e-5).is_err());
    }
    assert!(x.layer_norm(&[4], None, None, 1e-5).is_err());
    assert!(x.layer_norm(&[1], None, None, 0.0).is_err());
}

#[test]
fn printing_shows_values_shape_dtype_device_and_node_and_abridges() {
    let x = f32s(&[1.0, -2.5, 0.0, 1e-9], &[2, 2]);
    assert_eq!(format!("{x}"), "[[      1.0,      -2.5],\n [        0, 1.0000e-9]]");
    let y = f32s(&[1.0], &[1]).with_grad().unwrap().exp().unwrap();
    assert_eq!(format!("{y:?}"), "Tensor([2.7183], shape [1], f32, cpu, grad_fn exp)");
    let long = format!("{}", Tensor::arange(0, 5000, 1, DType::I64, &cpu()).unwrap());
    assert_eq!(long, "[   0,    1,    2, ..., 4997, 4998, 4999]");
    let grid = Tensor::arange(0, 10_000, 1, DType::I64, &cpu()).unwrap().reshape([100, 100]).unwrap();
    assert!(format!("{grid}").lines().count() == 7, "{grid}");
    assert_eq!(format!("{}", i64s(&[], &[0, 2])), "[]");
    assert_eq!(format!("{}", Tensor::scalar(3i64, &cpu()).unwrap()), "3");
}

#[test]
fn operations_on_stretched_tensors_and_wrong_numbers_of_operands() {
    let (a, b) = (f32s(&[2.0], &[1]).expand([100]).unwrap(), f32s(&[3.0], &[1]).expand([100]).unwrap());
    assert_eq!(a.add(&b).unwrap().to_vec::<f32>().unwrap(), [5.0; 100]);
    let x = f32s(&[1.0; 100], &[100]).with_grad().unwrap();
    let g = x.sum_all().unwrap().add(x.mean_all().unwrap()).unwrap().backward().unwrap();
    assert_close(&vec64(g.get(&x).unwrap()), &[1.01; 100], 1e-6);
    let add = TABLE.iter().find(|e| e.op.name() == "add").unwrap().op;
    for operands in [&[][..], &[1.0.into()], &[1.0.into(), 2.0.into()], &[Operand::Tensor(&a); 3]] {
        assert_eq!(add.apply(operands).unwrap_err().kind(), &ErrorKind::InvalidArgument);
    }
}

#[test]
fn scalars_beside_half_precision_are_not_rounded_first() {
    // (1 + 2^-7) (1 + 2^-8) rounds up in bf16. If 1 + 2^-8 were rounded first, it would become 1.
    let x = Tensor::full([1], 1.0078125, DType::BF16, &cpu()).unwrap();
    let y = x.mul(1.00390625).unwrap();
    assert_eq!((y.item().unwrap(), y.dtype()), (1.015625, DType::BF16));
}

#[test]
fn reading_checks_the_dtype() {
    let e = f32s(&[1.0], &[1]).to_vec::<f64>().unwrap_err();
    assert_eq!(e.kind(), &ErrorKind::DTypeMismatch);
    assert!(f32s(&[1.0, 2.0], &[2]).item().is_err());
}

#[test]
fn printing_a_long_tensor_of_nothing_is_short() {
    let text = format!("{}", Tensor::zeros([1 << 30, 0], DType::F32, &cpu()).unwrap());
    assert!(text.len() < 200, "{}", text.len());
}

#[test]
fn bytes_that_are_no_booleans_are_refused() {
    let made = |bytes: &[u8]| Tensor::from_bytes(bytes, [2], DType::Bool, &cpu());
    assert_eq!(made(&[0, 2]).unwrap_err().kind(), &ErrorKind::InvalidArgument);
    assert_eq!(made(&[0, 1]).unwrap().to_vec::<bool>().unwrap(), [false, true]);
}

#[test]
fn a_gradient_is_replaced_by_one_like_it_only() {
    let x = randn(&[2], 1).with_grad().unwrap();
    let mut gradients = x.mul(&x).unwrap().sum_all().unwrap().backward().unwrap();
    let mut kind = |g: Tensor| gradients.set(&x, g).unwrap_err().kind().clone();
    assert_eq!(kind(Tensor::ones([2], x.dtype(), &another_cpu()).unwrap()), ErrorKind::DeviceMismatch);
    assert_eq!(kind(Tensor::ones([2], DType::BF16, x.device()).unwrap()), ErrorKind::DTypeMismatch);
    assert_eq!(kind(Tensor::ones([3], x.dtype(), x.device()).unwrap()), ErrorKind::ShapeMismatch);
}

#[test]
fn comparisons_of_64_bit_integers_with_floats_are_exact_to_the_ends() {
    let (limit, d) = (2f64.powi(63), cpu());
    let bools = |t: gradus_tensor::Result<Tensor>| t.unwrap().to_vec::<bool>().unwrap();
    let x = i64s(&[i64::MIN, i64::MIN + 1, i64::MAX], &[3]);
    assert_eq!(bools(x.lt(limit)), [true; 3]);
    assert_eq!(bools(x.eq(limit)), [false; 3]);
    assert_eq!(bools(x.eq(-limit)), [true, false, false]);
    assert_eq!(bools(x.gt(-1e300)), [true; 3]);
    assert_eq!(bools(x.ne(f64::NAN)), [true; 3]);
    let u = Tensor::from_vec([10_000_000_000_000_000_000u64, 10_000_000_000_000_000_001, u64::MAX], [3], &d).unwrap();
    assert_eq!(bools(u.eq(1e19)), [true, false, false]);
    assert_eq!(bools(u.gt(1e19)), [false, true, true]);
    assert_eq!(bools(u.ge(2.0 * limit)), [false; 3]);
    assert_eq!(bools(u.gt(-1.0)), [true; 3]);
}

#[test]
fn filling_keeps_the_dtype_at_its_ends() {
    let mask = Tensor::from_vec([true], [1], &cpu()).unwrap();
    let x = i64s(&[1], &[1]).masked_fill(&mask, i64::MIN as f64).unwrap();
    assert_eq!(x.to_vec::<i64>().unwrap(), [i64::MIN]);
    let u = Tensor::from_vec([1u64], [1], &cpu()).unwrap().masked_fill(&mask, 1e19).unwrap();
    assert_eq!(u.to_vec::<u64>().unwrap(), [10_000_000_000_000_000_000]);
}

#[test]
fn statistics_of_integers_are_not_rounded_element_by_element() {
    let x = i64s(&[(1 << 24) + 1, -(1 << 24)], &[2]);
    assert_eq!(vec64(&x.mean_all().unwrap()), [0.5]);
    let ends = i64s(&[i64::MAX, i64::MAX], &[2]);
    assert_eq!(vec64(&ends.mean_all().unwrap()), [2f64.powi(63)]);
    let large = i64s(&[100_000_001, 100_000_002, 100_000_003], &[3]);
    assert_eq!(vec64(&large.var(&[0], 1, false).unwrap()), [1.0]);
    assert_eq!(vec64(&large.std(&[0], 1, false).unwrap()), [1.0]);
}

#[test]
fn ends_of_draws_and_of_lines_are_representable() {
    let (d, mut g) = (cpu(), Generator::new(1));
    assert!(Tensor::randint(0, 70_000, [4], DType::F16, &d, &mut g).is_err());
    assert!(Tensor::randint(0, 258, [4], DType::BF16, &d, &mut g).is_err());
    assert!(Tensor::randint(0, 257, [4], DType::BF16, &d, &mut g).is_ok());
    let line = Tensor::linspace(-f64::MAX, f64::MAX, 3, DType::F64, &d).unwrap();
    assert_eq!(vec64(&line), [-f64::MAX, 0.0, f64::MAX]);
    assert!(Tensor::linspace(0.0, f64::INFINITY, 3, DType::F64, &d).is_err());
    assert!(Tensor::linspace(f64::NAN, 1.0, 3, DType::F64, &d).is_err());
}

#[test]
fn half_precision_is_rounded_once_from_f64() {
    let v = 1.0 + 2f64.powi(-11) + 2f64.powi(-40);
    let want = [1.0 + 2f64.powi(-10)];
    assert_eq!(vec64(&f64s(&[v], &[1]).to_dtype(DType::F16).unwrap()), want);
    assert_eq!(vec64(&Tensor::full([1], v, DType::F16, &cpu()).unwrap()), want);
}

#[test]
fn slopes_of_leaky_relu_are_finite_and_crossed_ends_clamp_to_the_upper() {
    let x = f64s(&[-2.0, 0.5, 3.0, f64::NAN], &[4]);
    assert!(x.leaky_relu(f64::NAN).is_err() && x.leaky_relu(f64::INFINITY).is_err());
    let y = vec64(&x.clamp(1.0, -1.0).unwrap());
    assert!(y[..3] == [-1.0; 3] && y[3].is_nan(), "{y:?}");
}

#[test]
fn half_precision_is_rounded_once_from_integers() {
    // The nearest number with `bits` significant bits, ties to even.
    let nearest = |v: i128, bits: u32| {
        let magnitude = v.unsigned_abs();
        let drop = (128 - magnitude.leading_zeros()).saturating_sub(bits);
        let (kept, rest, half) = (magnitude >> drop, magnitude & ((1 << drop) - 1), (1 << drop) >> 1);
        let up = drop > 0 && (rest > half || rest == half && kept % 2 == 1);
        ((kept + u128::from(up)) << drop) as f64 * if v < 0 { -1.0 } else { 1.0 }
    };
    // Integers at and next to the ties of bf16 (8 bits) and f16 (11 bits), at every magnitude.
    let tie = |k: u32| [8, 11].map(|places| (1i64 << k) + (1i64 << k >> places));
    let ties = (1..62).flat_map(tie).flat_map(|v| [-1, 0, 1].map(|d| v + d)).flat_map(|v| [v, -v]);
    let values: Vec<i64> = ties.chain([0, i64::MAX, i64::MIN]).collect();
    let x = Tensor::from_vec(&values, [values.len()], &cpu()).unwrap();
    let rounded = |t: &Tensor, to: DType| vec64(&t.to_dtype(to).unwrap());
    for from in [DType::I64, DType::U64, DType::I32, DType::U32] {
        let x = x.to_dtype(from).unwrap();
        let exact = values.iter().map(|&v| match from {
            DType::I64 => i128::from(v),
            DType::U64 => i128::from(v as u64),
            DType::I32 => i128::from(v as i32),
            _ => i128::from(v as u32),
        });
        for ((v, wide), half) in exact.zip(rounded(&x, DType::BF16)).zip(rounded(&x, DType::F16)) {
            let finite = Some(nearest(v, 11)).filter(|v| v.abs() <= 65504.0).unwrap_or(v as f64 * f64::INFINITY);
            assert_eq!((wide, half), (nearest(v, 8), finite), "{v} of {from}");
        }
    }
}

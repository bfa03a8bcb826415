//! `UpdateFn`: formulas whose results are written over tensors.
#![allow(clippy::unwrap_used)]

mod common;

use common::{f64s, i64s, leaf, values};
use gradus_tensor::{DType, ErrorKind, Tensor, UpdateFn, explain_grad};

/// Returns two values: the sum, and the first operand.
static SUM: UpdateFn = UpdateFn::new("sum_and_first", |x| vec![x[0] + x[1], x[0]]);
static ADD: UpdateFn = UpdateFn::new("add", |x| vec![x[0] + x[1]]);
static COPY: UpdateFn = UpdateFn::new("copy", |x| vec![x[0]]);
static SCALE: UpdateFn = UpdateFn::new("scale", |x| vec![x[0] * x[1]]);

#[test]
fn operands_have_the_values_before_whatever_handle_they_come_by() {
    let (x, y) = (f64s(&[1.0, 2.0, 3.0], &[3]), f64s(&[10.0, 20.0, 30.0], &[3]));
    SUM.apply(&[&x, &y], &[&x, &y], &[]).unwrap();
    assert_eq!((values(&x), values(&y)), (vec![11.0, 22.0, 33.0], vec![1.0, 2.0, 3.0]));
    // Operands may be another handle, or reversed and broadcast views of the same memory.
    let x = f64s(&[1.0, 2.0, 3.0], &[3]);
    ADD.apply(&[&x], &[&x.clone(), &x.flip(0).unwrap()], &[]).unwrap();
    assert_eq!(values(&x), [4.0, 4.0, 4.0]);
    ADD.apply(&[&x], &[&x, &x.narrow(0, 0, 1).unwrap()], &[]).unwrap();
    assert_eq!(values(&x), [8.0, 8.0, 8.0]);
    assert_eq!(x.storage().version(), 2);
    // Only a part of the tensor is written.
    let wide = f64s(&[1.0; 4], &[4]);
    ADD.apply(&[&wide.slice(0, 0, 4, 2).unwrap()], &[&wide.slice(0, 1, 4, 2).unwrap(), &f64s(&[5.0], &[])], &[])
        .unwrap();
    assert_eq!(values(&wide), [6.0, 1.0, 6.0, 1.0]);
}

#[test]
fn half_precision_is_computed_wide_and_rounded_once() {
    let x = f64s(&[1.0, 3.0], &[2]).to_dtype(DType::BF16).unwrap();
    let wide = f64s(&[1.0 / 512.0, 1.0 / 512.0], &[2]).to_dtype(DType::F32).unwrap();
    // In bf16 a step of 1/512 would be lost twice; in f32 both count.
    static TWICE: UpdateFn = UpdateFn::new("twice", |x| vec![x[0] + x[1] + x[1]]);
    TWICE.apply(&[&x], &[&x, &wide], &[]).unwrap();
    let expected = f64s(&[1.0 + 1.0 / 256.0, 3.0 + 1.0 / 256.0], &[2]).to_dtype(DType::BF16).unwrap();
    assert_eq!(values(&x.to_dtype(DType::F64).unwrap()), values(&expected.to_dtype(DType::F64).unwrap()));
    let n = i64s(&[2, 3], &[2]);
    SCALE.apply(&[&n], &[&n], &[3.0]).unwrap();
    assert_eq!(n.to_vec::<i64>().unwrap(), [6, 9]);
}

#[test]
fn what_does_not_fit_is_refused_and_nothing_is_written() {
    let x = f64s(&[1.0, 2.0], &[2]);
    let n = i64s(&[1, 2], &[2]);
    let device = common::another_cpu();
    let far = Tensor::ones([2], DType::F64, &device).unwrap();
    let stretched = f64s(&[1.0], &[1]).expand([2]).unwrap();
    let tracked = leaf(&[1.0, 2.0]);
    use ErrorKind::*;
    let refused: [(gradus_tensor::Result<()>, ErrorKind); 10] = [
        (ADD.apply(&[], &[&x, &x], &[]), InvalidArgument),
        (ADD.apply(&[&x, &x.copy().unwrap()], &[&x, &x], &[]), InvalidArgument),
        (SUM.apply(&[&x, &x], &[&x, &x], &[]), InvalidArgument),
        (ADD.apply(&[&x], &[&x, &f64s(&[1.0; 3], &[3])], &[]), Broadcast),
        (SUM.apply(&[&x, &f64s(&[1.0; 3], &[3])], &[&x, &x], &[]), ShapeMismatch),
        (ADD.apply(&[&x], &[&x, &far], &[]), DeviceMismatch),
        (ADD.apply(&[&stretched], &[&x, &x], &[]), InvalidArgument),
        (ADD.apply(&[&x], &[&x, &tracked], &[]), Autograd),
        (ADD.apply(&[&n], &[&n, &x], &[]), DTypeMismatch),
        (SCALE.apply(&[&n], &[&n], &[0.5]), InvalidArgument),
    ];
    for (i, (result, kind)) in refused.into_iter().enumerate() {
        let e = result.unwrap_err();
        assert_eq!(e.kind(), &kind, "{i}: {e}");
    }
    assert_eq!((x.storage().version(), n.storage().version()), (0, 0));
    let empty = Tensor::zeros([0, 3], DType::F64, x.device()).unwrap();
    ADD.apply(&[&empty], &[&empty, &f64s(&[1.0], &[])], &[]).unwrap();
    assert_eq!(empty.storage().version(), 0);
}

#[test]
fn a_formula_that_does_not_read_what_it_writes_replaces_it() {
    let x = leaf(&[1.0, 3.0]);
    let other = f64s(&[5.0, 6.0], &[2]);
    let of = |replace: &dyn Fn(&Tensor) -> gradus_tensor::Result<()>| {
        explain_grad(&x, || {
            let y = x.mul(2.0)?.detach();
            replace(&y)?;
            y.sum_all()
        })
        .unwrap()
        .to_string()
    };
    let copied = of(&|y| y.copy_(&other));
    assert_eq!(of(&|y| COPY.apply(&[y], &[&other], &[])), copied);
    assert_ne!(of(&|y| ADD.apply(&[y], &[y, &other], &[])), copied);
}

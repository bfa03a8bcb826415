//! Operators on every kind of operand: they return the same values as the methods, record the caller's line, and pass
//! errors on.
#![allow(clippy::unwrap_used)]

mod common;

use common::{f32s, f64s, i64s, leaf, nodes, values};
use gradus_tensor::{DType, Error, Result, Scalar, Tensor, fused};

fn ok(t: &Tensor) -> Result<Tensor> {
    Ok(t.clone())
}

fn ok_ref(t: &Tensor) -> Result<&Tensor> {
    Ok(t)
}

fn failed(what: &str) -> Result<Tensor> {
    Err(Error::argument("test", what))
}

fn message(result: Result<Tensor>) -> String {
    result.unwrap_err().message().to_owned()
}

/// Checks that operators agree with a method: the same values, and a single node, recorded at a line of this file.
fn agree(want: Result<Tensor>, found: impl IntoIterator<Item = Result<Tensor>>) {
    let want = values(&want.unwrap());
    for (i, y) in found.into_iter().enumerate() {
        let y = y.unwrap();
        assert_eq!(values(&y), want, "form {i}");
        let node = y.grad_fn().unwrap();
        assert_eq!(node.location().file(), file!(), "form {i}: {}", node.location());
        assert_eq!(nodes([&y]).iter().filter(|n| !n.is_leaf()).count(), 1, "form {i}");
    }
}

macro_rules! every_form {
    ($op:tt $method:ident) => {{
        let (a, b) = (leaf(&[1.5, -7.0]), leaf(&[2.0, 3.0]));
        let (own_a, own_b) = (|| a.clone(), || b.clone());
        agree(a.$method(&b), [&a $op &b, &a $op own_b(), own_a() $op &b, own_a() $op own_b(), &a $op &&b]);
        agree(a.$method(&b), [&a $op ok(&b), &a $op ok_ref(&b), &a $op &ok(&b), own_a() $op ok(&b)]);
        agree(a.$method(&b), [ok(&a) $op &b, ok_ref(&a) $op &b, ok(&a) $op own_b(), ok_ref(&a) $op own_b()]);
        agree(a.$method(2), [&a $op 2, &a $op 2.0, &a $op 2u8, &a $op 2u32, &a $op 2i64, &a $op 2f32, own_a() $op 2]);
        agree(a.$method(2), [&a $op &2, &a $op Scalar::Int(2)]);
        agree(f64s(&[2.0], &[1]).$method(&b), [2 $op &b, 2.0 $op &b, 2i64 $op own_b(), 2f64 $op own_b()]);
        assert_eq!(message(failed("left") $op &b), "left");
        assert_eq!(message(failed("left") $op own_b()), "left");
        assert_eq!(message(&a $op failed("right")), "right");
        assert_eq!(message(own_a() $op &failed("right")), "right");
        assert!((&a $op leaf(&[1.0, 2.0, 3.0])).is_err());
    }};
}

#[test]
fn every_form_is_the_method() {
    every_form!(+ add);
    every_form!(-sub);
    every_form!(*mul);
    every_form!(/ div);
    every_form!(% fmod);
    let a = leaf(&[1.5, -7.0]);
    agree(a.neg(), [-&a, -a.clone()]);
}

#[test]
fn the_compiler_needs_no_types_for_literals() -> Result<()> {
    let x = f64s(&[1.0, 2.0], &[2]);
    let (whole, half) = (3, 0.5);
    assert_eq!((2 * &x)?.square()?.to_vec::<f64>()?, [4.0, 16.0]);
    assert_eq!((2.0 * &x)?.square()?.to_vec::<f64>()?, [4.0, 16.0]);
    assert_eq!((whole * &x)?.mul(half)?.to_vec::<f64>()?, [1.5, 3.0]);
    assert_eq!((&x * whole - &x)?.square()?.to_vec::<f64>()?, [4.0, 16.0]);
    assert_eq!((&x - 1 + &x + x.neg()? - (-&x)?)?.square()?.to_vec::<f64>()?, [1.0, 9.0]);
    assert_eq!(((&x + &x)? / 4 - (1.0 - &x)?)?.to_vec::<f64>()?, [0.5, 2.0]);
    Ok(())
}

#[test]
fn a_whole_number_leaves_the_dtype_alone() -> Result<()> {
    let (ints, half) = (i64s(&[7, -7], &[2]), f32s(&[1.0, 2.0], &[2]).to_dtype(DType::F16)?);
    assert_eq!((2 * &ints + &ints)?.to_vec::<i64>()?, [21, -21]);
    assert_eq!((&ints % 3)?.to_vec::<i64>()?, [7 % 3, -7 % 3]);
    assert_eq!(ints.remainder(3)?.to_vec::<i64>()?, [1, 2]);
    assert_eq!((&ints * 0.5)?.dtype(), DType::F32);
    assert_eq!((&half * 0.1 + &half)?.dtype(), DType::F16);
    Ok(())
}

#[test]
fn methods_take_the_same_operands_and_pass_the_first_error_on() -> Result<()> {
    let x = f64s(&[1.0, -2.0], &[2]);
    assert_eq!(values(&x.maximum(x.neg())?), [1.0, 2.0]);
    assert_eq!(values(&x.maximum(0)?), [1.0, 0.0]);
    assert_eq!(values(&x.lerp(x.clone(), 0.5f32)?), [1.0, -2.0]);
    assert_eq!(values(&x.index_assign(0, f64s(&[9.0], &[]))?), [9.0, -2.0]);
    assert_eq!(values(&fused!(|x, y| x * y + 1.0)(&x, x.square())?), [2.0, -7.0]);
    assert_eq!(message(x.add(failed("here"))), "here");
    assert_eq!(message(x.lerp(failed("first"), failed("second"))), "first");
    assert_eq!(x.add_(failed("nothing is written")).unwrap_err().message(), "nothing is written");
    assert_eq!(values(&x), [1.0, -2.0]);
    Ok(())
}

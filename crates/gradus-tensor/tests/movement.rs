//! Operations that move elements: padding, repeating, diagonals, windows and splits. Values of PyTorch, refused
//! arguments, and gradients up to second order.
#![allow(clippy::unwrap_used)]

mod common;

use common::{another_cpu, assert_close, both, cpu, f64s, i64s, layouts, randn};
use gradus_tensor::{DType, ErrorKind, INFER, Indexing, PadMode, Result, Scalar, Tensor};

fn unary(shape: &[usize], f: impl Fn(&Tensor) -> Result<Tensor>) {
    for x in layouts(shape, 1) {
        both(|x| f(&x[0]), &[x]);
    }
}

fn arange(shape: &[usize]) -> Tensor {
    Tensor::arange(0, shape.iter().product::<usize>() as i64, 1, DType::I64, &cpu()).unwrap().reshape(shape).unwrap()
}

fn ints(t: Result<Tensor>) -> Vec<i64> {
    t.unwrap().to_vec::<i64>().unwrap()
}

fn kind(t: Result<Tensor>) -> ErrorKind {
    t.unwrap_err().kind().clone()
}

#[track_caller]
fn is(t: Result<Tensor>, shape: &[usize], values: &[i64]) {
    let t = t.unwrap();
    assert_eq!((t.shape(), t.to_vec::<i64>().unwrap()), (shape, values.to_vec()));
}

fn shapes(parts: Result<Vec<Tensor>>) -> Vec<Vec<usize>> {
    parts.unwrap().iter().map(|t| t.shape().to_vec()).collect()
}

fn shares(a: &Tensor, b: &Tensor) -> bool {
    std::sync::Arc::ptr_eq(a.storage(), b.storage())
}

#[test]
fn reshape_infers_one_size() {
    let x = arange(&[2, 3, 4]);
    assert_eq!(x.reshape([INFER]).unwrap().shape(), [24]);
    assert_eq!(x.reshape([4, INFER, 2]).unwrap().shape(), [4, 3, 2]);
    assert_eq!(x.transpose(0, 2).unwrap().reshape([INFER, 2]).unwrap().shape(), [12, 2]);
    assert_eq!(arange(&[0, 3]).reshape([INFER, 3]).unwrap().shape(), [0, 3]);
    assert_eq!(Tensor::scalar(1i64, &cpu()).unwrap().reshape([1, INFER]).unwrap().shape(), [1, 1]);
    for bad in [&[INFER, INFER, 2][..], &[5, INFER], &[0, INFER]] {
        assert_eq!(kind(x.reshape(bad)), ErrorKind::ShapeMismatch, "{bad:?}");
    }
    assert_eq!(kind(arange(&[0]).reshape([0, INFER])), ErrorKind::ShapeMismatch);
    assert_eq!(x.unflatten(-1, [2, 2]).unwrap().shape(), [2, 3, 2, 2]);
    assert_eq!(x.unflatten(0, [INFER, 1]).unwrap().shape(), [2, 1, 3, 4]);
    assert_eq!(arange(&[0, 2]).unflatten(0, [3, INFER]).unwrap().shape(), [3, 0, 2]);
    for bad in [&[3, 2][..], &[], &[3, INFER], &[INFER, INFER]] {
        assert_eq!(kind(x.unflatten(2, bad)), ErrorKind::ShapeMismatch, "{bad:?}");
    }
    unary(&[2, 3, 4], |x| x.reshape([INFER, 6]));
    unary(&[2, 3, 4], |x| x.unflatten(2, [2, INFER]));
}

#[test]
fn movedim_keeps_the_order_of_the_rest() {
    let x = arange(&[2, 3, 4]);
    let y = x.movedim(&[0, 2], &[1, 0]).unwrap();
    assert_eq!(y.shape(), [4, 2, 3]);
    assert_eq!(y.to_vec::<i64>().unwrap()[..6], [0, 4, 8, 12, 16, 20]);
    assert!(shares(&x, &y));
    assert_eq!(x.movedim(&[-1], &[0]).unwrap().shape(), [4, 2, 3]);
    assert_eq!(x.movedim(&[], &[]).unwrap().shape(), [2, 3, 4]);
    assert_eq!(kind(x.movedim(&[0], &[])), ErrorKind::InvalidArgument);
    assert_eq!(kind(x.movedim(&[0, 0], &[1, 2])), ErrorKind::InvalidAxis);
    assert_eq!(kind(x.movedim(&[0], &[3])), ErrorKind::InvalidAxis);
    unary(&[2, 3, 4], |x| x.movedim(&[0, 2], &[1, 0]));
}

#[test]
fn splits() {
    let x = arange(&[2, 7]);
    assert_eq!(shapes(x.split(3, 1)), [[2, 3], [2, 3], [2, 1]]);
    assert_eq!(shapes(x.split(9, -1)), [[2, 7]]);
    assert_eq!(shapes(x.chunk(4, 1)), [[2, 2], [2, 2], [2, 2], [2, 1]]);
    assert_eq!(shapes(x.chunk(5, 1)), [[2, 2], [2, 2], [2, 2], [2, 1]]);
    assert_eq!(shapes(x.split_with_sizes(&[0, 5, 2], 1)), [[2, 0], [2, 5], [2, 2]]);
    assert_eq!(ints(Ok(x.split(3, 1).unwrap()[2].clone())), [6, 13]);
    assert!(shares(&x, &x.unbind(0).unwrap()[1]));
    assert_eq!(ints(Ok(x.unbind(1).unwrap()[3].clone())), [3, 10]);
    let empty = arange(&[0]);
    assert_eq!((shapes(empty.split(2, 0)), shapes(empty.split(0, 0))), (vec![vec![0]], vec![vec![0]]));
    assert_eq!((shapes(empty.chunk(3, 0)).len(), shapes(empty.unbind(0)).len()), (1, 0));
    let kind = |parts: Result<Vec<Tensor>>| parts.unwrap_err().kind().clone();
    assert_eq!(kind(x.split(0, 1)), ErrorKind::InvalidArgument);
    assert_eq!(kind(x.chunk(0, 1)), ErrorKind::InvalidArgument);
    assert_eq!(kind(x.split_with_sizes(&[3, 3], 1)), ErrorKind::ShapeMismatch);
    assert_eq!(kind(x.split_with_sizes(&[usize::MAX, 8], 1)), ErrorKind::ShapeMismatch);
    assert_eq!(kind(x.unbind(2)), ErrorKind::InvalidAxis);
    unary(&[2, 5], |x| {
        let p = x.split(2, 1)?;
        p[0].mul(&p[1])?.add(&p[2])
    });
    unary(&[2, 3], |x| x.unbind(1)?[1].mul(&x.unbind(1)?[2]));
}

#[test]
fn padding() {
    let x = arange(&[2, 3]);
    let nine = PadMode::Constant(9.into());
    is(x.pad(&[(1, 2)], nine), &[2, 6], &[9, 0, 1, 2, 9, 9, 9, 3, 4, 5, 9, 9]);
    is(x.pad(&[(-1, 1), (1, -2)], nine), &[2, 2], &[9, 3, 9, 9]);
    is(x.pad(&[(0, 0), (-3, 2)], nine), &[2, 2], &[9; 4]);
    is(x.pad(&[(-1, 0), (-2, -1)], nine), &[1, 0], &[]);
    is(arange(&[0, 2]).pad(&[(1, 0), (0, 0)], nine), &[1, 2], &[9, 9]);
    let pads = [(1, 1), (2, 1)];
    let reflected = [5, 4, 3, 4, 5, 4, 2, 1, 0, 1, 2, 1, 5, 4, 3, 4, 5, 4, 2, 1, 0, 1, 2, 1];
    is(x.pad(&pads, PadMode::Reflect), &[4, 6], &reflected);
    let replicated = [0, 0, 0, 1, 2, 2, 0, 0, 0, 1, 2, 2, 3, 3, 3, 4, 5, 5, 3, 3, 3, 4, 5, 5];
    is(x.pad(&pads, PadMode::Replicate), &[4, 6], &replicated);
    let circled = [4, 5, 3, 4, 5, 3, 1, 2, 0, 1, 2, 0, 4, 5, 3, 4, 5, 3, 1, 2, 0, 1, 2, 0];
    is(x.pad(&pads, PadMode::Circular), &[4, 6], &circled);
    is(x.pad(&[(2, -1)], PadMode::Reflect), &[2, 4], &[2, 1, 0, 1, 5, 4, 3, 4]);
    is(x.pad(&[(2, -1)], PadMode::Replicate), &[2, 4], &[0, 0, 0, 1, 3, 3, 3, 4]);
    is(x.pad(&[(2, -1)], PadMode::Circular), &[2, 4], &[0, 1, 0, 1, 3, 4, 3, 4]);
    is(x.pad(&[(-1, 2)], PadMode::Circular), &[2, 4], &[1, 2, 1, 2, 4, 5, 4, 5]);
    is(x.pad(&[(-2, -1)], PadMode::Reflect), &[2, 0], &[]);
    let copy = x.pad(&[(0, 0)], PadMode::Reflect).unwrap();
    assert!(!shares(&x, &copy) && copy.to_vec::<i64>().unwrap() == x.to_vec::<i64>().unwrap());
    let nan = f64s(&[1.0], &[1]).pad(&[(1, 1)], PadMode::Constant(f64::NAN.into())).unwrap();
    assert_close(&nan.to_vec::<f64>().unwrap(), &[f64::NAN, 1.0, f64::NAN], 0.0);
    for dtype in DType::ALL {
        let y =
            Tensor::zeros([1], dtype, &cpu()).unwrap().pad(&[(0, 1)], PadMode::Constant(Scalar::Bool(true))).unwrap();
        assert_eq!((y.dtype(), ints(y.to_dtype(DType::I64))), (dtype, vec![0, 1]));
    }
}

#[test]
fn padding_that_cannot_be_made_is_refused() {
    let x = arange(&[2, 3]);
    let zero = PadMode::Constant(0.into());
    for (pads, mode) in [
        (&[(0, 0), (0, 0), (0, 0)][..], zero),
        (&[(-2, -2)], zero),
        (&[(-4, 9)], zero),
        (&[(0, isize::MAX)], zero),
        (&[(isize::MIN, isize::MAX)], zero),
        (&[(1, 0)], PadMode::Constant(1.5.into())),
        (&[(3, 0)], PadMode::Reflect),
        (&[(0, 4)], PadMode::Circular),
        (&[(3, -1)], PadMode::Circular),
        (&[(isize::MAX, isize::MAX)], PadMode::Replicate),
    ] {
        assert_eq!(kind(x.pad(pads, mode)), ErrorKind::InvalidArgument, "{pads:?} {mode:?}");
    }
    assert_eq!(kind(x.pad(&[(isize::MAX / 2, 0)], zero)), ErrorKind::Overflow);
    assert!(x.pad(&[(isize::MAX / 64, 0)], PadMode::Replicate).is_err());
    for mode in [PadMode::Reflect, PadMode::Replicate, PadMode::Circular] {
        assert_eq!(kind(arange(&[0]).pad(&[(1, 0)], mode)), ErrorKind::InvalidArgument);
        is(arange(&[0, 2]).pad(&[(1, 0)], mode), &[0, 3], &[]);
    }
}

#[test]
fn gradients_of_padding() {
    for mode in [PadMode::Constant(0.7.into()), PadMode::Reflect, PadMode::Replicate, PadMode::Circular] {
        unary(&[2, 3, 4], |x| x.pad(&[(1, 0), (-1, 2)], mode));
        unary(&[3, 2], |x| x.pad(&[(2, 1), (0, 0)], mode));
    }
    unary(&[3, 2], |x| x.pad(&[(0, 0)], PadMode::Reflect));
}

#[test]
fn repeats() {
    let x = arange(&[2, 3]);
    is(x.repeat(&[2, 1, 2]), &[2, 2, 6], &[0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5, 0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5]);
    is(x.t().unwrap().repeat(&[1, 2]), &[3, 4], &[0, 3, 0, 3, 1, 4, 1, 4, 2, 5, 2, 5]);
    is(x.tile(&[2]), &[2, 6], &[0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5]);
    is(x.repeat(&[0, 2]), &[0, 6], &[]);
    is(x.repeat_interleave(2, 0), &[4, 3], &[0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5]);
    is(x.repeat_interleave(2, -1), &[2, 6], &[0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]);
    is(x.repeat_interleave(0, 1), &[2, 0], &[]);
    is(Tensor::scalar(5i64, &cpu()).unwrap().repeat(&[2]), &[2], &[5, 5]);
    is(arange(&[1, 1, 1, 1, 1, 1, 1, 2]).tile(&[2]), &[1, 1, 1, 1, 1, 1, 1, 4], &[0, 1, 0, 1]);
    assert!(!shares(&x, &x.repeat(&[1, 1]).unwrap()));
    assert_eq!(kind(x.repeat(&[2])), ErrorKind::InvalidArgument);
    assert_eq!(kind(x.repeat(&[1, usize::MAX])), ErrorKind::Overflow);
    assert_eq!(kind(x.repeat(&[1 << 40, 1 << 40])), ErrorKind::Overflow);
    assert_eq!(kind(x.repeat(&[1; 9])), ErrorKind::InvalidArgument);
    assert_eq!(kind(x.repeat_interleave(usize::MAX, 0)), ErrorKind::Overflow);
    assert_eq!(kind(x.repeat_interleave(2, 2)), ErrorKind::InvalidAxis);
    unary(&[2, 3], |x| x.repeat(&[2, 1, 3]));
    unary(&[2, 3], |x| x.repeat_interleave(3, 0));
}

#[test]
fn rolls_and_turns() {
    let x = arange(&[2, 3]);
    is(x.roll(&[1, -1], &[0, 1]), &[2, 3], &[4, 5, 3, 1, 2, 0]);
    is(x.roll(&[2], &[]), &[2, 3], &[4, 5, 0, 1, 2, 3]);
    is(x.roll(&[1, 1], &[1, 1]), &[2, 3], &[1, 2, 0, 4, 5, 3]);
    is(x.roll(&[isize::MIN], &[-2]), &[2, 3], &[0, 1, 2, 3, 4, 5]);
    is(arange(&[0]).roll(&[3], &[0]), &[0], &[]);
    assert_eq!(kind(x.roll(&[1, 2], &[0])), ErrorKind::InvalidArgument);
    assert_eq!(kind(x.roll(&[], &[])), ErrorKind::InvalidArgument);
    assert_eq!(kind(x.roll(&[1], &[2])), ErrorKind::InvalidAxis);
    is(x.rot90(1, [0, 1]), &[3, 2], &[2, 5, 1, 4, 0, 3]);
    is(x.rot90(-2, [0, 1]), &[2, 3], &[5, 4, 3, 2, 1, 0]);
    is(x.rot90(3, [0, -1]), &[3, 2], &[3, 0, 4, 1, 5, 2]);
    is(x.rot90(1, [1, 0]), &[3, 2], &[3, 0, 4, 1, 5, 2]);
    is(x.rot90(4, [0, 1]), &[2, 3], &[0, 1, 2, 3, 4, 5]);
    assert_eq!(kind(x.rot90(1, [0, -2])), ErrorKind::InvalidAxis);
    unary(&[2, 3, 4], |x| x.roll(&[1, -2], &[0, 2]));
    unary(&[2, 3], |x| x.roll(&[2], &[]));
    unary(&[2, 3, 4], |x| x.rot90(1, [0, 2]));
}

#[test]
fn diagonals() {
    let x = arange(&[2, 3, 4]);
    is(x.diagonal(1, 0, 2), &[3, 2], &[1, 14, 5, 18, 9, 22]);
    is(x.diagonal(-1, 1, 2), &[2, 2], &[4, 9, 16, 21]);
    is(x.diagonal(1, 2, 1), &[2, 2], &[4, 9, 16, 21]);
    is(x.diagonal(9, 1, 2), &[2, 0], &[]);
    is(x.diagonal(isize::MIN, 1, 2), &[2, 0], &[]);
    is(x.flip(1).unwrap().diagonal(0, 1, -1), &[2, 3], &[8, 5, 2, 20, 17, 14]);
    assert!(shares(&x, &x.diagonal(0, 1, 2).unwrap()));
    is(arange(&[0, 3, 3]).flip(1).unwrap().diagonal(1, 1, 2), &[0, 2], &[]);
    assert_eq!(kind(x.diagonal(0, 1, -2)), ErrorKind::InvalidAxis);
    let pairs = arange(&[2, 2]).add(1).unwrap();
    is(pairs.diag_embed(-1, 0, 2), &[3, 2, 3], &[0, 0, 0, 0, 0, 0, 1, 0, 0, 3, 0, 0, 0, 2, 0, 0, 4, 0]);
    is(pairs.diag_embed(1, 2, 0), &[3, 2, 3], &[0, 0, 0, 0, 0, 0, 1, 0, 0, 3, 0, 0, 0, 2, 0, 0, 4, 0]);
    is(arange(&[0]).diag(2), &[2, 2], &[0; 4]);
    is(pairs.diag(-1), &[1], &[3]);
    assert_eq!(kind(x.diag(0)), ErrorKind::ShapeMismatch);
    assert_eq!(kind(pairs.diag_embed(isize::MIN, 0, 1)), ErrorKind::Overflow);
    assert_eq!(kind(Tensor::scalar(1i64, &cpu()).unwrap().diag_embed(0, 0, 1)), ErrorKind::ShapeMismatch);
    assert_eq!(kind(arange(&[1; 8]).diag_embed(0, 0, 1)), ErrorKind::InvalidAxis);
    is(arange(&[2, 3]).trace(), &[], &[4]);
    is(arange(&[0, 3]).trace(), &[], &[0]);
    assert_eq!(kind(x.trace()), ErrorKind::ShapeMismatch);
    unary(&[2, 3, 4], |x| x.diagonal(1, 2, 0));
    unary(&[2, 3], |x| x.diag_embed(-1, 0, 2));
    unary(&[3, 4], |x| x.trace());
    both(|x| x[0].diag(1), &[randn(&[3], 1)]);
    both(|x| x[0].diag(1), &[randn(&[3, 3], 1)]);
}

#[test]
fn triangles() {
    let x = arange(&[3, 4]);
    is(x.tril(-1), &[3, 4], &[0, 0, 0, 0, 4, 0, 0, 0, 8, 9, 0, 0]);
    is(x.triu(1), &[3, 4], &[0, 1, 2, 3, 0, 0, 6, 7, 0, 0, 0, 11]);
    is(x.triu(isize::MIN), &[3, 4], &(0..12).collect::<Vec<_>>());
    is(x.tril(isize::MIN), &[3, 4], &[0; 12]);
    assert_eq!(arange(&[2, 0, 3]).tril(0).unwrap().shape(), [2, 0, 3]);
    assert_eq!(kind(arange(&[3]).tril(0)), ErrorKind::ShapeMismatch);
    // Removed elements and their gradients are exactly 0, even if the elements were NaN.
    let n = f64s(&[1.0, f64::NAN, 2.0, 3.0], &[2, 2]).with_grad().unwrap();
    let y = n.tril(0).unwrap();
    assert_eq!(y.to_vec::<f64>().unwrap(), [1.0, 0.0, 2.0, 3.0]);
    let g = y.square().unwrap().sum_all().unwrap().backward().unwrap();
    assert_eq!(g.get(&n).unwrap().to_vec::<f64>().unwrap(), [2.0, 0.0, 4.0, 6.0]);
    let flags = Tensor::ones([2, 2], DType::Bool, &cpu()).unwrap().triu(0).unwrap();
    assert_eq!(flags.to_vec::<bool>().unwrap(), [true, true, false, true]);
    unary(&[2, 3, 3], |x| x.tril(1));
    unary(&[2, 3, 3], |x| x.triu(0));
}

#[test]
fn windows_of_an_axis() {
    let x = arange(&[2, 3, 4]);
    let y = x.unfold_axis(1, 2, 1).unwrap();
    assert_eq!(y.shape(), [2, 2, 4, 2]);
    assert_eq!(y.to_vec::<i64>().unwrap()[..16], [0, 4, 1, 5, 2, 6, 3, 7, 4, 8, 5, 9, 6, 10, 7, 11]);
    assert!(shares(&x, &y));
    is(arange(&[7]).unfold_axis(0, 2, 3), &[2, 2], &[0, 1, 3, 4]);
    is(arange(&[7]).flip(0).unwrap().unfold_axis(-1, 3, 4), &[2, 3], &[6, 5, 4, 2, 1, 0]);
    is(arange(&[3]).unfold_axis(0, 3, usize::MAX), &[1, 3], &[0, 1, 2]);
    is(arange(&[3]).unfold_axis(0, 0, 2), &[2, 0], &[]);
    is(arange(&[0]).unfold_axis(0, 0, 1), &[1, 0], &[]);
    assert_eq!(kind(x.unfold_axis(1, 4, 1)), ErrorKind::InvalidArgument);
    assert_eq!(kind(x.unfold_axis(1, 1, 0)), ErrorKind::InvalidArgument);
    is(Tensor::scalar(1i64, &cpu()).unwrap().unfold_axis(0, 1, 1), &[1], &[1]);
    assert_eq!(kind(arange(&[1; 8]).unfold_axis(0, 1, 1)), ErrorKind::InvalidArgument);
    unary(&[5, 3], |x| x.unfold_axis(0, 3, 1));
    unary(&[2, 5, 3], |x| x.unfold_axis(1, 2, 3));
    unary(&[3, 4], |x| x.unfold_axis(1, 0, 1));
}

#[test]
fn grids_and_broadcasts() {
    let (a, b) = (i64s(&[1, 2], &[2]), i64s(&[3, 4, 5], &[3]));
    let grid = Tensor::meshgrid(&[&a, &b], Indexing::Xy).unwrap();
    is(Ok(grid[0].clone()), &[3, 2], &[1, 2, 1, 2, 1, 2]);
    is(Ok(grid[1].clone()), &[3, 2], &[3, 3, 4, 4, 5, 5]);
    let scalar = Tensor::scalar(7i64, &cpu()).unwrap();
    let grid = Tensor::meshgrid(&[&a, &scalar, &b], Indexing::Ij).unwrap();
    is(Ok(grid[1].clone()), &[2, 1, 3], &[7; 6]);
    is(Ok(Tensor::meshgrid(&[&a], Indexing::Xy).unwrap()[0].clone()), &[2], &[1, 2]);
    let kind = |parts: Result<Vec<Tensor>>| parts.unwrap_err().kind().clone();
    assert_eq!(kind(Tensor::meshgrid(&[], Indexing::Ij)), ErrorKind::InvalidArgument);
    assert_eq!(kind(Tensor::meshgrid(&[&a, &arange(&[1, 1])], Indexing::Ij)), ErrorKind::ShapeMismatch);
    let long = Tensor::zeros([1], DType::U64, &cpu()).unwrap();
    assert_eq!(kind(Tensor::meshgrid(&[&a, &long], Indexing::Ij)), ErrorKind::DTypeMismatch);
    let far = Tensor::ones([1], DType::I64, &another_cpu()).unwrap();
    assert_eq!(kind(Tensor::meshgrid(&[&a, &far], Indexing::Ij)), ErrorKind::DeviceMismatch);
    let both_of = Tensor::broadcast_tensors(&[&a.unsqueeze(1).unwrap(), &b, &scalar]).unwrap();
    assert!(both_of.iter().all(|t| t.shape() == [2, 3]));
    is(Ok(both_of[0].clone()), &[2, 3], &[1, 1, 1, 2, 2, 2]);
    assert!(Tensor::broadcast_tensors(&[]).unwrap().is_empty());
    assert_eq!(kind(Tensor::broadcast_tensors(&[&a, &b])), ErrorKind::Broadcast);
    let product = |x: &[Tensor]| {
        let g = Tensor::meshgrid(&[&x[0], &x[1]], Indexing::Xy)?;
        g[0].mul(&g[1])
    };
    both(product, &[randn(&[2], 1), randn(&[3], 2)]);
}

#[test]
fn results_that_are_no_views_have_memory_of_their_own() {
    let x = f64s(&[1.0, 2.0], &[2, 1]);
    for y in [
        x.roll(&[2], &[0]).unwrap(),
        x.roll(&[2], &[]).unwrap(),
        x.repeat(&[1, 3]).unwrap(),
        x.repeat_interleave(1, 0).unwrap(),
        Tensor::einsum("ij->ij", &[&x]).unwrap(),
    ] {
        y.fill_(9.0).unwrap();
        assert_eq!(x.to_vec::<f64>().unwrap(), [1.0, 2.0]);
    }
}

#[test]
fn nothing_repeated_and_an_empty_axis_in_chunks_cost_nothing() {
    let x = f64s(&[1.0, 2.0], &[2]);
    assert_eq!(x.repeat(&[0, 1 << 37]).unwrap().shape(), [0, 1 << 38]);
    assert_eq!(x.narrow(0, 0, 0).unwrap().chunk(usize::MAX, 0).unwrap().len(), 1);
}

#[test]
fn a_view_of_nothing_at_the_end_of_a_storage_is_read() {
    let x = randn(&[2, 3], 1);
    let end = x.narrow(0, 2, 0).unwrap();
    assert!(end.to_vec::<f64>().unwrap().is_empty());
    let empty = f64s(&[], &[0, 4]).narrow(1, 3, 1).unwrap();
    assert!(empty.to_vec::<f64>().unwrap().is_empty());
    assert!(empty.copy().unwrap().to_bytes().unwrap().is_empty());
}

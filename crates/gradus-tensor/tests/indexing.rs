//! Indexing, scattering and masks: the values of PyTorch and NumPy, refused arguments, and gradients up to second
//! order.
#![allow(clippy::unwrap_used)]

mod common;

use common::{assert_close, both, cpu, f64s, i64s, layouts, randn};
use gradus_tensor::{
    DType, Ellipsis, Error, ErrorKind, Index, IntoIndex, NewAxis, Result, ScatterReduction, Strided, Tensor,
};

const REDUCTIONS: [ScatterReduction; 5] = [
    ScatterReduction::Sum,
    ScatterReduction::Prod,
    ScatterReduction::Mean,
    ScatterReduction::Amax,
    ScatterReduction::Amin,
];

fn unary(shape: &[usize], f: impl Fn(&Tensor) -> Result<Tensor>) {
    for x in layouts(shape, 1) {
        both(|x| f(&x[0]), &[x]);
    }
}

fn bools(values: &[u8], shape: &[usize]) -> Tensor {
    Tensor::from_vec(values.iter().map(|&b| b != 0).collect::<Vec<_>>(), shape, &cpu()).unwrap()
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
fn picks<'a>(index: impl IntoIndex<'a>, shape: &[usize], values: &[i64]) {
    let index = index.into_index();
    for x in [arange(&[2, 3, 4]), arange(&[2, 3, 4]).transpose(0, 2).unwrap().copy().unwrap().transpose(0, 2).unwrap()]
    {
        let y = x.index(&index[..]).unwrap();
        assert_eq!((y.shape(), y.to_vec::<i64>().unwrap()), (shape, values.to_vec()), "{index:?}");
    }
}

#[test]
fn positions_ranges_and_new_axes() {
    picks((1, 2, 3), &[], &[23]);
    picks((-1, -3), &[4], &[12, 13, 14, 15]);
    picks(1, &[3, 4], &(12..24).collect::<Vec<_>>());
    picks((0usize, 1..3, ..2), &[2, 2], &[4, 5, 8, 9]);
    picks((0i64, 2.., ..=1usize), &[1, 2], &[8, 9]);
    picks((.., -1, -2..-1isize), &[2, 1], &[10, 22]);
    // These are variables because Clippy considers a literal `1..=-1` a mistake.
    let (one, last) = (1, -1);
    picks((.., 0, one..=last), &[2, 3], &[1, 2, 3, 13, 14, 15]);
    picks((.., 0, one..last), &[2, 2], &[1, 2, 13, 14]);
    picks((Ellipsis, 3), &[2, 3], &[3, 7, 11, 15, 19, 23]);
    picks((0, Ellipsis, NewAxis, 3), &[3, 1], &[3, 7, 11]);
    picks((NewAxis, 1, Ellipsis, 0..0), &[1, 3, 0], &[]);
    let by = |start, end, step| Strided { start, end, step };
    picks(
        (.., by(None, None, -2), by(Some(-1), Some(0), -1)),
        &[2, 2, 3],
        &[11, 10, 9, 3, 2, 1, 23, 22, 21, 15, 14, 13],
    );
    picks((1, 0, by(Some(1), None, 2)), &[2], &[13, 15]);
    picks((1, 0, by(Some(2), Some(-4), -1)), &[2], &[14, 13]);
    picks((1, 0, by(Some(3), Some(-1), -1)), &[0], &[]);
    picks([0, 1], &[4], &[4, 5, 6, 7]);
    picks(vec![Index::from(1), Index::from(2..3)], &[1, 4], &[20, 21, 22, 23]);
    // The result is a view, so nothing is copied.
    let x = arange(&[2, 3]);
    let y = x.index((.., 1)).unwrap();
    assert!(std::sync::Arc::ptr_eq(y.storage(), x.storage()));
    // At the highest rank, a new axis fits if an integer index removes another axis.
    let x = arange(&[1, 1, 1, 1, 1, 1, 2, 2]);
    assert_eq!(x.index((NewAxis, Ellipsis, 1)).unwrap().shape(), [1, 1, 1, 1, 1, 1, 1, 2]);
}

#[test]
fn index_tensors_and_masks_are_placed_as_in_numpy() {
    let i = i64s(&[0, -1, 1], &[3]);
    let j = i64s(&[0, 2], &[2, 1]);
    let mask = bools(&[1, 0, 1, 0, 1, 0], &[2, 3]);
    let last = bools(&[1, 0, 1, 1], &[4]);
    let rows = [0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 16, 17, 18, 19];
    picks((.., &i), &[2, 3, 4], &rows);
    picks((&i, .., &i), &[3, 3], &[0, 4, 8, 15, 19, 23, 13, 17, 21]);
    picks((.., &i, &j), &[2, 2, 3], &[0, 8, 4, 2, 10, 6, 12, 20, 16, 14, 22, 18]);
    picks(&mask, &[3, 4], &[0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19]);
    picks((&mask, 1..3), &[3, 2], &[1, 2, 9, 10, 17, 18]);
    picks((&mask, &i64s(&[3, 0, -1], &[3])), &[3], &[3, 8, 19]);
    picks((Ellipsis, &last), &[2, 3, 3], &[0, 2, 3, 4, 6, 7, 8, 10, 11, 12, 14, 15, 16, 18, 19, 20, 22, 23]);
    picks((0, .., &i), &[3, 3], &[0, 3, 1, 4, 7, 5, 8, 11, 9]);
    picks((&i64s(&[0, 1], &[2]), NewAxis, &i64s(&[2, 0], &[2])), &[2, 1, 4], &(8..16).collect::<Vec<_>>());
    picks((0, &i64s(&[2], &[]), 1), &[], &[9]);
    picks((.., &i64s(&[], &[0])), &[2, 0, 4], &[]);
    picks((&i64s(&[], &[0, 1]), &i), &[0, 3, 4], &[]);
    let short = i.to_dtype(DType::I32).unwrap();
    picks((1, &short, 0), &[3], &[12, 20, 16]);
}

#[test]
fn what_cannot_be_indexed_is_refused_with_position_and_size() {
    let x = arange(&[2, 3, 4]);
    let bounds = |pos, index, size| ErrorKind::IndexOutOfBounds { pos, index, size };
    assert_eq!(kind(x.index((0, 3))), bounds(1, 3, 3));
    assert_eq!(kind(x.index((0, 0, -5))), bounds(2, -5, 4));
    assert_eq!(kind(x.index(usize::MAX)), bounds(0, i64::MAX, 2));
    assert_eq!(kind(x.index((.., &i64s(&[0, 2, 3], &[3])))), bounds(2, 3, 3));
    assert_eq!(kind(x.index((.., &i64s(&[0, -4], &[2])))), bounds(1, -4, 3));
    assert_eq!(kind(x.index(&i64s(&[i64::MIN], &[1]))), bounds(0, i64::MIN, 2));
    let argument = ErrorKind::InvalidArgument;
    assert_eq!(kind(x.index((0, 0, 0, 0))), argument);
    assert_eq!(kind(x.index((Ellipsis, 0, Ellipsis))), argument);
    #[allow(clippy::reversed_empty_ranges)]
    let backwards = 2..1;
    assert_eq!(kind(x.index((0, backwards))), argument);
    assert_eq!(kind(x.index((0, 0..4))), argument);
    assert_eq!(kind(x.index((0, ..usize::MAX))), argument);
    assert_eq!(kind(x.index((0, -4..3))), argument);
    assert_eq!(kind(x.index(Strided { start: None, end: None, step: 0 })), argument);
    assert_eq!(kind(x.index(Strided { start: Some(0), end: Some(1), step: -1 })), argument);
    assert_eq!(kind(x.index(&bools(&[1, 0, 1], &[3]))), ErrorKind::ShapeMismatch);
    assert_eq!(kind(x.index(&bools(&[1], &[]))), ErrorKind::ShapeMismatch);
    assert_eq!(kind(x.index((&i64s(&[0, 0], &[2]), &i64s(&[0, 0, 0], &[3])))), ErrorKind::Broadcast);
    assert_eq!(kind(x.index(&f64s(&[0.0], &[1]))), ErrorKind::UnsupportedDType);
    let e: Error = x.index((0, 3)).unwrap_err();
    assert!(e.to_string().contains("index 3 (item 1) is outside axis 1 of size 3"), "{e}");
}

#[test]
fn put_and_assign() {
    let x = arange(&[2, 3]);
    let (i, j) = (i64s(&[0, -1, 0], &[3]), i64s(&[1, 0, 1], &[3]));
    let v = i64s(&[10, 20, 30], &[3]);
    assert_eq!(ints(x.index_put(&[&i, &j], &v, false)), [0, 30, 2, 20, 4, 5]);
    assert_eq!(ints(x.index_put(&[&i, &j], &v, true)), [0, 41, 2, 23, 4, 5]);
    assert_eq!(ints(x.index_put(&[&i64s(&[1], &[1])], &v, false)), [0, 1, 2, 10, 20, 30]);
    assert_eq!(
        ints(x.index_put(&[&bools(&[1, 0, 0, 0, 0, 1], &[2, 3])], &i64s(&[-7], &[]), false)),
        [-7, 1, 2, 3, 4, -7]
    );
    assert_eq!(ints(x.index_put(&[&i64s(&[], &[0])], &v, false)), [0, 1, 2, 3, 4, 5]);
    assert_eq!(ints(x.index_assign((.., -1), 9)), [0, 1, 9, 3, 4, 9]);
    assert_eq!(ints(x.index_assign((1, Strided { start: None, end: None, step: -1 }), &v)), [0, 1, 2, 30, 20, 10]);
    assert_eq!(ints(x.index_assign((.., &i64s(&[2, 2], &[2])), i64s(&[7, 8], &[2]))), [0, 1, 8, 3, 4, 8]);
    assert_eq!(ints(x.t().unwrap().index_assign(0, 9)), [9, 9, 1, 4, 2, 5]);
    assert_eq!(kind(x.index_put(&[], &v, false)), ErrorKind::InvalidArgument);
    assert_eq!(kind(x.index_put(&[&i, &j], &i64s(&[1, 2], &[2]), false)), ErrorKind::Broadcast);
    let long = Tensor::zeros([1], DType::U64, &cpu()).unwrap();
    assert_eq!(kind(x.index_put(&[&i, &j], &long, false)), ErrorKind::DTypeMismatch);
    assert_eq!(kind(x.index_assign(0, 1.5)), ErrorKind::InvalidArgument);
    let out = ErrorKind::IndexOutOfBounds { pos: 0, index: 2, size: 2 };
    assert_eq!(kind(x.index_put(&[&i64s(&[2], &[1])], &v, false)), out);
}

#[test]
fn gradients_of_indexing() {
    let (i, j) = (i64s(&[0, -1, 1, 0], &[4]), i64s(&[0, 2], &[2, 1]));
    let mask = bools(&[1, 0, 1, 0, 1, 0], &[2, 3]);
    unary(&[2, 3, 4], |x| x.index((1, .., Strided { start: None, end: None, step: -2 })));
    unary(&[2, 3, 4], |x| x.index((NewAxis, .., &i)));
    unary(&[2, 3, 4], |x| x.index((&i, .., &i)));
    unary(&[2, 3, 4], |x| x.index((.., &i, &j)));
    unary(&[2, 3, 4], |x| x.index((&mask, 1..3)));
    let pair = |x: &[Tensor]| x[0].index_put(&[&i, &i], &x[1], true);
    both(pair, &[randn(&[3, 2, 2], 1), randn(&[4, 2], 2)]);
    let repeated = |x: &[Tensor]| x[0].index_put(&[&i], &x[1], false);
    both(repeated, &[randn(&[2, 3], 1), randn(&[4, 1], 2)]);
    for x in layouts(&[3, 4], 1) {
        both(
            |x| x[0].index_assign((.., i64s(&[0, 1, 1], &[3]).to_dtype(DType::U32).as_ref().unwrap()), &x[1]),
            &[x, randn(&[3], 2)],
        );
    }
}

#[test]
fn scatter_lets_the_last_one_win_and_keeps_the_rest() {
    let x = f64s(&[-0.0, 1.0, f64::NAN, 3.0, 4.0, 5.0], &[3, 2]);
    let index = i64s(&[2, 0, 2, 0], &[2, 2]);
    let src = f64s(&[10.0, 20.0, 30.0, -0.0], &[2, 2]);
    let y = x.scatter(0, &index, &src).unwrap().to_vec::<f64>().unwrap();
    assert_close(&y, &[-0.0, -0.0, f64::NAN, 3.0, 30.0, 5.0], 0.0);
    assert!(y[0].is_sign_negative() && y[1].is_sign_negative());
    let y = x.scatter_add(0, &index, &src).unwrap().to_vec::<f64>().unwrap();
    assert_close(&y, &[-0.0, 21.0, f64::NAN, 3.0, 44.0, 5.0], 0.0);
    assert!(y[0].is_sign_negative());
    // The index may be smaller than the tensor, and the source larger than the index.
    let z = Tensor::zeros([3, 3], DType::I64, &cpu()).unwrap();
    let small = i64s(&[1, 0], &[1, 2]);
    assert_eq!(ints(z.scatter(0, &small, arange(&[3, 3]).add(1).unwrap())), [0, 2, 0, 1, 0, 0, 0, 0, 0]);
    assert_eq!(ints(arange(&[3, 3]).gather(0, &small)), [3, 1]);
    assert_eq!(ints(z.scatter(1, &small, 7).unwrap().sum(&[0], false)), [7, 7, 0]);
    for dtype in DType::ALL {
        let x = Tensor::zeros([3], dtype, &cpu()).unwrap();
        let y = x.scatter(0, &i64s(&[1], &[1]), 1).unwrap();
        assert_eq!(ints(y.to_dtype(DType::I64)), [0, 1, 0], "{dtype}");
        assert_eq!(y.dtype(), dtype);
    }
    assert_eq!(ints(z.scatter(0, &i64s(&[], &[0, 3]), i64s(&[], &[0, 3]))), [0; 9]);
    // Half precision is summed in f32 and rounded once. In f16, 2048 + 1 + 1 would stay 2048.
    let half = Tensor::full([1], 2048, DType::F16, &cpu()).unwrap();
    let ones = Tensor::ones([2], DType::F16, &cpu()).unwrap();
    assert_eq!(half.scatter_add(0, &i64s(&[0, 0], &[2]), &ones).unwrap().item().unwrap(), 2050.0);
}

#[test]
fn scatter_refuses_what_does_not_fit() {
    let x = arange(&[2, 3]);
    let bounds = |pos, index, size| ErrorKind::IndexOutOfBounds { pos, index, size };
    assert_eq!(kind(x.scatter(1, &i64s(&[0, 3], &[2, 1]), 1)), bounds(1, 3, 3));
    assert_eq!(kind(x.scatter(1, &i64s(&[-1], &[1, 1]), 1)), bounds(0, -1, 3));
    assert_eq!(kind(x.scatter(1, &i64s(&[0; 3], &[3, 1]), 1)), ErrorKind::ShapeMismatch);
    assert_eq!(kind(x.scatter(1, &i64s(&[0; 2], &[2]), 1)), ErrorKind::ShapeMismatch);
    assert_eq!(kind(x.scatter(1, &i64s(&[0; 2], &[2, 1]), arange(&[1, 1]))), ErrorKind::ShapeMismatch);
    let long = Tensor::zeros([1, 1], DType::U64, &cpu()).unwrap();
    assert_eq!(kind(x.scatter(1, &i64s(&[0], &[1, 1]), &long)), ErrorKind::DTypeMismatch);
    assert_eq!(kind(x.scatter(1, &f64s(&[0.0], &[1, 1]), 1)), ErrorKind::UnsupportedDType);
    assert_eq!(kind(x.scatter(2, &i64s(&[0], &[1, 1]), 1)), ErrorKind::InvalidAxis);
    assert_eq!(
        kind(bools(&[1], &[1]).scatter_add(0, &i64s(&[0], &[1]), &bools(&[1], &[1]))),
        ErrorKind::UnsupportedDType
    );
    let none = i64s(&[], &[0]);
    assert_eq!(kind(none.scatter(0, &i64s(&[4], &[1]), 1)), bounds(0, 4, 0));
    assert_eq!(kind(none.scatter_add(0, &i64s(&[4], &[1]), &i64s(&[1], &[1]))), bounds(0, 4, 0));
    assert_eq!(kind(x.index_add(1, &i64s(&[0, 5], &[2]), &arange(&[2, 2]))), bounds(1, 5, 3));
    assert_eq!(kind(x.index_copy(1, &i64s(&[0], &[1]), &arange(&[2, 2]))), ErrorKind::ShapeMismatch);
    assert_eq!(kind(x.index_fill(1, &i64s(&[0], &[1, 1]), 1)), ErrorKind::ShapeMismatch);
    assert_eq!(kind(x.index_fill(1, &i64s(&[0], &[1]), 1.5)), ErrorKind::InvalidArgument);
}

#[test]
fn slices_by_index() {
    let (x, index) = (arange(&[2, 3]), i64s(&[2, 0, 2], &[3]));
    let src = arange(&[2, 3]).mul(10).unwrap();
    assert_eq!(ints(x.index_add(1, &index, &src)), [10, 1, 22, 43, 4, 85]);
    assert_eq!(ints(x.index_copy(1, &index, &src)), [10, 1, 20, 40, 4, 50]);
    assert_eq!(ints(x.index_fill(-1, &index, -1)), [-1, 1, -1, -1, 4, -1]);
    assert_eq!(ints(x.index_fill(0, &i64s(&[], &[0]), -1)), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn gradients_of_scatters() {
    let index = i64s(&[0, 2, 2, 1, 2, 1, 0, 0], &[2, 4]);
    for x in layouts(&[3, 4], 1) {
        for src in layouts(&[2, 4], 2) {
            both(|x| x[0].scatter(0, &index, &x[1]), &[x.clone(), src.clone()]);
            both(|x| x[0].scatter_add(0, &index, &x[1]), &[x.clone(), src]);
        }
    }
    let small = i64s(&[0, 2, 0], &[1, 3]);
    both(|x| x[0].scatter(1, &small, &x[1]), &[randn(&[2, 3], 1), randn(&[2, 4], 2)]);
    both(|x| x[0].gather(1, &small), &[randn(&[2, 3], 1)]);
    let rows = i64s(&[2, 0, 2], &[3]);
    both(|x| x[0].index_add(1, &rows, &x[1]), &[randn(&[2, 3], 1), randn(&[2, 3], 2)]);
    both(|x| x[0].index_copy(1, &rows, &x[1]), &[randn(&[2, 3], 1), randn(&[2, 3], 2)]);
    unary(&[2, 3], |x| x.index_fill(1, &rows, 0.5));
    // If two elements are written to the same place, the first one does not affect the result.
    let src = f64s(&[1.0, 2.0], &[2]).with_grad().unwrap();
    let y = f64s(&[0.0], &[1]).scatter(0, &i64s(&[0, 0], &[2]), &src).unwrap();
    let g = y.sum_all().unwrap().backward().unwrap();
    assert_eq!(g.get(&src).unwrap().to_vec::<f64>().unwrap(), [0.0, 1.0]);
}

#[test]
fn reductions_into_places() {
    let nan = f64::NAN;
    let index = i64s(&[0, 0, 1, 1, 3, 4, 5, 5], &[8]);
    let weights = f64s(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[6]);
    let check = |reduce, include_self, want: [f64; 6], dx: [f64; 6], dsrc: [f64; 8]| {
        let x = f64s(&[1.0, 2.0, 7.0, 3.0, 1.0, 4.0], &[6]).with_grad().unwrap();
        let src = f64s(&[2.0, 3.0, 0.0, -1.0, 5.0, nan, 4.0, 4.0], &[8]).with_grad().unwrap();
        let y = x.scatter_reduce(0, &index, &src, reduce, include_self).unwrap();
        assert_close(&y.to_vec::<f64>().unwrap(), &want, 1e-15);
        let g = y.mul(&weights).unwrap().sum_all().unwrap().backward().unwrap();
        assert_close(&g.get(&x).unwrap().to_vec::<f64>().unwrap(), &dx, 1e-15);
        assert_close(&g.get(&src).unwrap().to_vec::<f64>().unwrap(), &dsrc, 1e-15);
    };
    use ScatterReduction::*;
    let alone = [0.0, 0.0, 3.0, 0.0, 0.0, 0.0];
    check(
        Sum,
        true,
        [6.0, 1.0, 7.0, 8.0, nan, 12.0],
        [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
        [1.0, 1.0, 2.0, 2.0, 4.0, 5.0, 6.0, 6.0],
    );
    check(Sum, false, [5.0, -1.0, 7.0, 5.0, nan, 8.0], alone, [1.0, 1.0, 2.0, 2.0, 4.0, 5.0, 6.0, 6.0]);
    // The gradient of the factor that is NaN is the product of the other factors, which is finite.
    check(
        Prod,
        true,
        [6.0, 0.0, 7.0, 15.0, nan, 64.0],
        [6.0, 0.0, 3.0, 20.0, nan, 96.0],
        [3.0, 2.0, -4.0, 0.0, 12.0, 5.0, 96.0, 96.0],
    );
    check(Prod, false, [6.0, 0.0, 7.0, 5.0, nan, 16.0], alone, [3.0, 2.0, -2.0, 0.0, 4.0, 5.0, 24.0, 24.0]);
    let third = 1.0 / 3.0;
    check(
        Mean,
        true,
        [2.0, third, 7.0, 4.0, nan, 4.0],
        [third, 2.0 * third, 3.0, 2.0, 2.5, 2.0],
        [third, third, 2.0 * third, 2.0 * third, 2.0, 2.5, 2.0, 2.0],
    );
    check(Mean, false, [2.5, -0.5, 7.0, 5.0, nan, 4.0], alone, [0.5, 0.5, 1.0, 1.0, 4.0, 5.0, 3.0, 3.0]);
    check(
        Amax,
        true,
        [3.0, 2.0, 7.0, 5.0, nan, 4.0],
        [0.0, 2.0, 3.0, 0.0, 0.0, 2.0],
        [0.0, 1.0, 0.0, 0.0, 4.0, 5.0, 2.0, 2.0],
    );
    check(Amax, false, [3.0, 0.0, 7.0, 5.0, nan, 4.0], alone, [0.0, 1.0, 2.0, 0.0, 4.0, 5.0, 3.0, 3.0]);
    check(
        Amin,
        true,
        [1.0, -1.0, 7.0, 3.0, nan, 4.0],
        [1.0, 0.0, 3.0, 4.0, 0.0, 2.0],
        [0.0, 0.0, 0.0, 2.0, 0.0, 5.0, 2.0, 2.0],
    );
    check(Amin, false, [2.0, -1.0, 7.0, 5.0, nan, 4.0], alone, [1.0, 0.0, 0.0, 2.0, 4.0, 5.0, 3.0, 3.0]);
}

#[test]
fn reductions_of_integers_and_half_precision() {
    let x = i64s(&[7, -7, 3], &[3]);
    let (index, src) = (i64s(&[0, 1, 1], &[3]), i64s(&[2, -2, -2], &[3]));
    let of = |r, own| ints(x.scatter_reduce(0, &index, &src, r, own));
    assert_eq!(of(ScatterReduction::Mean, true), [4, -4, 3]);
    assert_eq!(of(ScatterReduction::Prod, true), [14, -28, 3]);
    assert_eq!(of(ScatterReduction::Amax, true), [7, -2, 3]);
    assert_eq!(of(ScatterReduction::Amin, true), [2, -7, 3]);
    assert_eq!(of(ScatterReduction::Amin, false), [2, -2, 3]);
    for dtype in DType::ALL.into_iter().filter(|&d| d != DType::Bool) {
        let x = Tensor::full([2], 3, dtype, &cpu()).unwrap();
        let src = Tensor::full([300], 1, dtype, &cpu()).unwrap();
        let index = Tensor::zeros([300], DType::I32, &cpu()).unwrap();
        for (reduce, want) in [
            (ScatterReduction::Prod, [3.0, 3.0]),
            (ScatterReduction::Amax, [3.0, 3.0]),
            (ScatterReduction::Amin, [1.0, 3.0]),
            (ScatterReduction::Mean, [if dtype.is_float() { 303.0 / 301.0 } else { 1.0 }, 3.0]),
        ] {
            let y = x.scatter_reduce(0, &index, &src, reduce, true).unwrap();
            assert_eq!(y.dtype(), dtype);
            assert_close(&y.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap(), &want, 4e-3);
        }
    }
    let flags = bools(&[1, 0, 1], &[3]);
    assert_eq!(kind(flags.scatter_reduce(0, &index, &flags, ScatterReduction::Sum, true)), ErrorKind::UnsupportedDType);
    let out = i64s(&[3], &[1]);
    for reduce in REDUCTIONS {
        let e = x.scatter_reduce(0, &out, &i64s(&[1], &[1]), reduce, true).unwrap_err();
        assert!(matches!(e.kind(), ErrorKind::IndexOutOfBounds { index: 3, size: 3, .. }), "{reduce:?} {e}");
        let none = x.scatter_reduce(0, &i64s(&[], &[0]), &i64s(&[], &[0]), reduce, false);
        assert_eq!(ints(none), [7, -7, 3], "{reduce:?}");
    }
}

#[test]
fn gradients_of_reductions_into_places() {
    let index = i64s(&[0, 2, 2, 1, 0, 1, 0, 2, 2, 2, 2, 1], &[3, 4]);
    for reduce in REDUCTIONS {
        for own in [true, false] {
            for (x, src) in layouts(&[4, 4], 1).into_iter().zip(layouts(&[3, 4], 2)).take(4) {
                both(|x| x[0].scatter_reduce(0, &index, &x[1], reduce, own), &[x, src]);
            }
            let small = i64s(&[3, 1, 3], &[1, 3]);
            both(|x| x[0].scatter_reduce(1, &small, &x[1], reduce, own), &[randn(&[2, 4], 1), randn(&[2, 3], 2)]);
        }
    }
    // The gradients are also correct if factors are zero.
    let src = f64s(&[0.0, 2.0, 3.0, 0.0, 0.0], &[5]);
    let index = i64s(&[0, 0, 1, 1, 1], &[5]);
    both(|x| x[0].scatter_reduce(0, &index, &x[1], ScatterReduction::Prod, true), &[randn(&[2], 1), src]);
    // An element's gradient is not affected by its neighbours.
    let src = f64s(&[2.0, f64::INFINITY], &[2]).with_grad().unwrap();
    let y =
        f64s(&[1.0, 1.0], &[2]).scatter_reduce(0, &i64s(&[0, 1], &[2]), &src, ScatterReduction::Prod, true).unwrap();
    let g = y.narrow(0, 0, 1).unwrap().sum_all().unwrap().backward().unwrap();
    assert_eq!(g.get(&src).unwrap().to_vec::<f64>().unwrap(), [1.0, 0.0]);
}

#[test]
fn masks() {
    let x = f64s(&[1.0, f64::NAN, -0.0, 4.0], &[2, 2]);
    let mask = bools(&[1, 0], &[2]);
    let y = x.masked_fill(&mask, f64::NEG_INFINITY).unwrap();
    let inf = f64::NEG_INFINITY;
    assert_close(&y.to_vec::<f64>().unwrap(), &[inf, f64::NAN, inf, 4.0], 0.0);
    assert_eq!(f64s(&[1.0], &[1]).masked_fill(&mask, 0).unwrap().to_vec::<f64>().unwrap(), [0.0, 1.0]);
    assert_eq!(ints(arange(&[2]).masked_fill(&mask, 7.0)), [7, 1]);
    for dtype in DType::ALL {
        let y = Tensor::zeros([2], dtype, &cpu()).unwrap().masked_fill(&mask, true).unwrap();
        assert_eq!((y.dtype(), ints(y.to_dtype(DType::I64))), (dtype, vec![1, 0]));
    }
    assert_eq!(kind(arange(&[2]).masked_fill(&mask, 1.5)), ErrorKind::InvalidArgument);
    assert_eq!(kind(x.masked_fill(&arange(&[2]), 1.5)), ErrorKind::UnsupportedDType);
    assert_eq!(kind(x.masked_fill(&bools(&[1; 3], &[3]), 1.5)), ErrorKind::Broadcast);

    assert_eq!(ints(arange(&[2, 3]).t().unwrap().masked_select(&mask)), [0, 1, 2]);
    assert_eq!(ints(arange(&[2]).masked_select(&bools(&[1, 0, 0, 1], &[2, 2]))), [0, 1]);
    assert_eq!(arange(&[0, 2]).masked_select(&mask).unwrap().shape(), [0]);
    assert_eq!(kind(x.masked_select(&bools(&[1; 3], &[3]))), ErrorKind::Broadcast);

    let places = x.nonzero().unwrap();
    assert_eq!((places.shape(), places.to_vec::<i64>().unwrap()), (&[3, 2][..], vec![0, 0, 0, 1, 1, 1]));
    assert_eq!(ints(x.t().unwrap().nonzero()), [0, 0, 1, 0, 1, 1]);
    let scalar = |v| Tensor::scalar(v, &cpu()).unwrap().nonzero().unwrap().shape().to_vec();
    assert_eq!((scalar(3i64), scalar(0)), (vec![1, 0], vec![0, 0]));
    assert_eq!(arange(&[3, 0]).nonzero().unwrap().shape(), [0, 2]);
    assert_eq!(ints(x.count_nonzero(&[0], false)), [1, 2]);
    assert_eq!(ints(x.count_nonzero(&[0, 1], true)), [3]);
    assert_eq!(kind(x.count_nonzero(&[2], true)), ErrorKind::InvalidAxis);

    unary(&[2, 2], |x| x.masked_fill(&mask, 2.0));
    unary(&[2, 3], |x| x.masked_select(&bools(&[1, 0, 1, 0, 1, 1], &[2, 3])));
    both(|x| x[0].masked_select(&bools(&[1, 0, 1, 1], &[2, 2])), &[randn(&[2], 1)]);
    let g = x.with_grad().unwrap();
    let d = g.masked_fill(&x.isnan().unwrap(), 0.0).unwrap().square().unwrap().sum_all().unwrap().backward().unwrap();
    assert_eq!(d.get(&g).unwrap().to_vec::<f64>().unwrap(), [2.0, 0.0, 0.0, 8.0]);
}

#[test]
fn one_hot_rows() {
    let index = i64s(&[2, 0, 1, 2], &[2, 2]);
    let y = index.one_hot(3).unwrap();
    assert_eq!((y.shape(), y.dtype()), (&[2, 2, 3][..], DType::I64));
    assert_eq!(y.to_vec::<i64>().unwrap(), [0, 0, 1, 1, 0, 0, 0, 1, 0, 0, 0, 1]);
    assert_eq!(ints(Tensor::scalar(1u32, &cpu()).unwrap().one_hot(2)), [0, 1]);
    assert_eq!(i64s(&[], &[0]).one_hot(0).unwrap().shape(), [0, 0]);
    assert_eq!(kind(index.one_hot(2)), ErrorKind::IndexOutOfBounds { pos: 0, index: 2, size: 2 });
    assert_eq!(kind(i64s(&[0, -1], &[2]).one_hot(2)), ErrorKind::IndexOutOfBounds { pos: 1, index: -1, size: 2 });
    assert_eq!(kind(index.one_hot(0)), ErrorKind::IndexOutOfBounds { pos: 0, index: 2, size: 0 });
    assert_eq!(kind(f64s(&[0.0], &[1]).one_hot(2)), ErrorKind::UnsupportedDType);
}

#[test]
fn gradients_have_the_dtype_of_their_tensor() {
    let (index, mask) = (i64s(&[0, 1, 1], &[3]), bools(&[1, 0, 1], &[3]));
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let x = f64s(&[1.0, 2.0, 4.0], &[3]).to_dtype(dtype).unwrap().with_grad().unwrap();
        let mut results = vec![
            x.index(&index).unwrap(),
            x.masked_select(&mask).unwrap(),
            x.scatter(0, &index, &x).unwrap(),
            x.index_assign(&mask, x.narrow(0, 0, 2).unwrap()).unwrap(),
            x.unfold_axis(0, 2, 1).unwrap(),
            x.diag(0).unwrap(),
            x.pad(&[(1, 1)], gradus_tensor::PadMode::Reflect).unwrap(),
        ];
        results.extend(REDUCTIONS.map(|r| x.scatter_reduce(0, &index, &x, r, true).unwrap()));
        for y in results {
            assert_eq!(y.dtype(), dtype);
            let g = y.sum_all().unwrap().backward().unwrap();
            assert_eq!(g.get(&x).unwrap().dtype(), dtype, "{y:?}");
        }
    }
}

#[test]
fn indices_are_checked_also_where_other_axes_are_empty() {
    let at = i64s(&[0, 7], &[2]);
    let e = Tensor::zeros([3, 0], DType::F32, &cpu()).unwrap().index_select(0, &at).unwrap_err();
    assert_eq!(e.kind(), &ErrorKind::IndexOutOfBounds { pos: 1, index: 7, size: 3 });
    let src = Tensor::zeros([0, 2], DType::F32, &cpu()).unwrap();
    let e = Tensor::zeros([0, 2], DType::F32, &cpu()).unwrap().index_add(1, &at, &src).unwrap_err();
    assert_eq!(e.kind(), &ErrorKind::IndexOutOfBounds { pos: 1, index: 7, size: 2 });
}

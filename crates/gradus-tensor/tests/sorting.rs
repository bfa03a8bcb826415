//! Sorting, selecting, searching and counting.
#![allow(clippy::unwrap_used)]

mod common;

use common::{assert_close, cpu, f64s, i64s, layouts, randn};
use gradus_tensor::autograd::{gradcheck, gradgradcheck};
use gradus_tensor::{DType, ErrorKind, Result, Tensor};

const INF: f64 = f64::INFINITY;
const NAN: f64 = f64::NAN;

fn ints(t: &Tensor) -> Vec<i64> {
    t.to_vec().unwrap()
}

fn floats(t: &Tensor) -> Vec<f64> {
    t.to_dtype(DType::F64).unwrap().to_vec().unwrap()
}

/// Checks the gradients of `f` in every layout without ties.
fn smooth(shape: &[usize], f: impl Fn(&Tensor) -> Result<Tensor>) {
    for x in &layouts(shape, 1)[..4] {
        gradcheck(|x| f(&x[0]), std::slice::from_ref(x)).unwrap_or_else(|e| panic!("{:?} {e}", x.layout()));
        gradgradcheck(|x| f(&x[0]), std::slice::from_ref(x)).unwrap_or_else(|e| panic!("{:?} {e}", x.layout()));
    }
}

#[test]
fn sorting_is_stable_and_nan_is_the_largest() {
    let x = f64s(&[3.0, NAN, 1.0, 3.0, -INF], &[5]);
    let (values, indices) = x.sort(0, false).unwrap();
    assert_close(&floats(&values), &[-INF, 1.0, 3.0, 3.0, NAN], 0.0);
    assert_eq!(ints(&indices), [4, 2, 0, 3, 1]);
    let (values, indices) = x.sort(-1, true).unwrap();
    assert_close(&floats(&values), &[NAN, 3.0, 3.0, 1.0, -INF], 0.0);
    assert_eq!(ints(&indices), [1, 0, 3, 2, 4]);
    assert_eq!(ints(&x.argsort(0, false).unwrap()), [4, 2, 0, 3, 1]);
    let flags = i64s(&[1, 0, 1], &[3]).ne(0).unwrap();
    assert_eq!(flags.sort(0, false).unwrap().0.to_vec::<bool>().unwrap(), [false, true, true]);
    let zeros = f64s(&[0.0, -0.0], &[2]).sort(0, false).unwrap().0.to_vec::<f64>().unwrap();
    assert!(zeros[0].is_sign_positive() && zeros[1].is_sign_negative());
    let column = i64s(&[3, 1, 2, 9, 7, 8], &[3, 2]).t().unwrap();
    assert_eq!(ints(&column.sort(1, true).unwrap().0), [7, 3, 2, 9, 8, 1]);
    assert_eq!(f64s(&[], &[0, 2]).sort(0, false).unwrap().0.shape(), [0, 2]);
    assert_eq!(x.sort(1, false).unwrap_err().kind(), &ErrorKind::InvalidAxis);
}

#[test]
fn gradients_go_to_the_elements_that_were_picked() {
    smooth(&[3, 4], |x| Ok(x.sort(1, false)?.0));
    smooth(&[3, 4], |x| Ok(x.sort(0, true)?.0));
    smooth(&[3, 4], |x| Ok(x.topk(2, 1, true, true)?.0));
    smooth(&[3, 4], |x| Ok(x.topk(2, 0, false, false)?.0));
    smooth(&[3, 4], |x| Ok(x.kthvalue(2, 1, true)?.0));
    smooth(&[3, 4], |x| Ok(x.unique(true, false, false)?.values));
}

#[test]
fn the_k_largest_in_order_or_in_place() {
    let x = f64s(&[1.0, NAN, 5.0, 3.0, 5.0], &[5]);
    let (values, indices) = x.topk(3, 0, true, true).unwrap();
    assert_close(&floats(&values), &[NAN, 5.0, 5.0], 0.0);
    assert_eq!(ints(&indices), [1, 2, 4]);
    let (values, indices) = f64s(&[1.0, 4.0, 5.0], &[3]).topk(2, 0, true, false).unwrap();
    assert_eq!((floats(&values), ints(&indices)), (vec![4.0, 5.0], vec![1, 2]));
    assert_eq!(ints(&x.topk(2, 0, false, true).unwrap().1), [0, 3]);
    assert_eq!(x.topk(0, 0, true, true).unwrap().0.shape(), [0]);
    assert_eq!(x.topk(6, 0, true, true).unwrap_err().kind(), &ErrorKind::InvalidArgument);
    let (value, index) = x.kthvalue(2, 0, false).unwrap();
    assert_eq!((value.item().unwrap(), index.to_scalar::<i64>().unwrap()), (3.0, 3));
    for k in [0, 6] {
        assert_eq!(x.kthvalue(k, 0, false).unwrap_err().kind(), &ErrorKind::InvalidArgument);
    }
}

#[test]
fn distinct_values_with_inverse_and_counts() {
    let x = i64s(&[3, 1, 3, 2, 1, 3], &[2, 3]);
    let u = x.unique(true, true, true).unwrap();
    assert_eq!((ints(&u.values), ints(&u.counts.unwrap())), (vec![1, 2, 3], vec![2, 1, 3]));
    let inverse = u.inverse.unwrap();
    assert_eq!((inverse.shape(), ints(&inverse)), (&[2, 3][..], vec![2, 0, 2, 1, 0, 2]));
    assert_eq!(ints(&u.values.gather(0, &inverse.reshape([6]).unwrap()).unwrap()), [3, 1, 3, 2, 1, 3]);
    let u = x.unique(false, true, false).unwrap();
    assert_eq!((ints(&u.values), ints(&u.inverse.unwrap())), (vec![3, 1, 2], vec![0, 1, 0, 2, 1, 0]));
    assert!(u.counts.is_none());
    let u = f64s(&[NAN, 0.0, -0.0, NAN], &[4]).unique(true, false, true).unwrap();
    assert_eq!(ints(&u.counts.unwrap()), [2, 1, 1]);
    let u = f64s(&[], &[0]).unique(true, true, true).unwrap();
    assert_eq!((u.values.numel(), u.inverse.unwrap().numel(), u.counts.unwrap().numel()), (0, 0, 0));
    assert_eq!(i64s(&[5], &[]).unique(true, true, false).unwrap().inverse.unwrap().shape(), [0; 0]);
}

#[test]
fn searching_counts_what_is_below() {
    let s = f64s(&[1.0, 2.0, 2.0, 3.0, NAN], &[5]);
    let x = f64s(&[0.0, 1.0, 2.0, 2.5, 3.5, NAN, INF, -INF], &[2, 4]);
    assert_eq!(ints(&s.searchsorted(&x, false).unwrap()), [0, 0, 1, 3, 4, 4, 4, 0]);
    let right = s.searchsorted(&x, true).unwrap();
    assert_eq!((right.shape(), ints(&right)), (&[2, 4][..], vec![0, 1, 3, 3, 4, 5, 4, 0]));
    let b = f64s(&[1.0, 2.0, 3.0], &[3]);
    let y = f64s(&[0.0, 1.0, 1.5, 3.0, NAN], &[5]);
    assert_eq!(ints(&y.bucketize(&b, false).unwrap()), [0, 0, 1, 2, 3]);
    assert_eq!(ints(&y.bucketize(&b, true).unwrap()), [0, 1, 1, 3, 3]);
    let rows = i64s(&[1, 3, 5, 2, 4, 6], &[2, 3]);
    assert_eq!(ints(&rows.searchsorted(&i64s(&[3, 9, 3, 1], &[2, 2]), false).unwrap()), [1, 3, 1, 0]);
    assert_eq!(ints(&f64s(&[], &[0]).searchsorted(&y, false).unwrap()), [0; 5]);
    assert_eq!(s.searchsorted(&f64s(&[2.0], &[]), true).unwrap().to_scalar::<i64>().unwrap(), 3);
    for n in 1..20 {
        let s: Vec<i64> = (0..n).map(|i| i / 2).collect();
        let x: Vec<i64> = (-1..n).collect();
        let want: Vec<i64> = x.iter().map(|x| s.iter().filter(|s| *s < x).count() as i64).collect();
        assert_eq!(ints(&i64s(&s, &[s.len()]).searchsorted(&i64s(&x, &[x.len()]), false).unwrap()), want);
    }
    assert_eq!(rows.searchsorted(&i64s(&[1, 2, 3], &[3, 1]), false).unwrap_err().kind(), &ErrorKind::ShapeMismatch);
    assert_eq!(y.bucketize(&rows, false).unwrap_err().kind(), &ErrorKind::ShapeMismatch);
}

#[test]
fn counting_with_and_without_weights() {
    let x = i64s(&[1, 3, 1, 0], &[4]);
    assert_eq!(ints(&x.bincount(None, 0).unwrap()), [1, 2, 0, 1]);
    assert_eq!(ints(&x.to_dtype(DType::U8).unwrap().bincount(None, 6).unwrap()), [1, 2, 0, 1, 0, 0]);
    let w = f64s(&[0.5, 1.0, 2.0, -1.0], &[4]);
    assert_eq!(floats(&x.bincount(Some(&w), 0).unwrap()), [-1.0, 2.5, 0.0, 1.0]);
    gradcheck(|w| x.bincount(Some(&w[0]), 5), &[randn(&[4], 1)]).unwrap();
    assert_eq!(ints(&i64s(&[], &[0]).bincount(None, 2).unwrap()), [0, 0]);
    assert_eq!(i64s(&[-1], &[1]).bincount(None, 0).unwrap_err().kind(), &ErrorKind::InvalidArgument);
    assert_eq!(w.bincount(None, 0).unwrap_err().kind(), &ErrorKind::UnsupportedDType);
    assert_eq!(x.bincount(Some(&f64s(&[1.0], &[1])), 0).unwrap_err().kind(), &ErrorKind::ShapeMismatch);
    let huge = Tensor::full([1], i64::MAX, DType::I64, &cpu()).unwrap();
    assert!(huge.bincount(None, 0).is_err());
}

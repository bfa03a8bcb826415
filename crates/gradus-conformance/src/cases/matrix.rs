//! `gemm`: shapes, batches, alpha and beta, exactness on integers, NaN and infinity. `gemm_i32`: shapes, batches, the
//! ends of the dtypes. `linear_i8`: shapes, groups.

use gradus_backend::{Backend, DType, Scalar, View, ViewMut};

use super::{FLOATS, fresh, sizes};
use crate::suite::{Array, Bound, Case, Output, Rng, Suite};

/// The sizes m, k and n of each case.
const SIZES: [[usize; 3]; 12] = [
    [1, 1, 1],
    [2, 3, 4],
    [5, 1, 7],
    [1, 8, 1],
    [1, 5, 6],
    [6, 5, 1],
    [3, 0, 2],
    [0, 3, 2],
    [2, 3, 0],
    [7, 13, 5],
    [17, 16, 33],
    [16, 9, 16],
];

pub(super) fn run(s: &mut Suite<'_>) {
    for dtypes in SMALL.into_iter().flat_map(|da| SMALL.map(|db| [da, db])) {
        for size in SIZES {
            small_product(s, dtypes, &[2, 2], size);
        }
        small_product(s, dtypes, &[], [9, 70, 11]);
        small_product(s, dtypes, &[], [1, 130, 40]);
    }
    for size in [[1, 8, 1], [3, 0, 2], [0, 3, 2], [2, 3, 0], [7, 13, 5], [17, 16, 33], [16, 9, 16], [1, 130, 40]] {
        for (groups, add) in [(1, false), (3, true)] {
            rounded_product(s, groups, size, add);
        }
    }
    for d in DType::ALL.into_iter().filter(|&d| d != DType::Bool) {
        for size in SIZES {
            for batch in [&[][..], &[3], &[2, 2]] {
                product(s, d, batch, size, (1, 0), false);
            }
            product(s, d, &[2], size, (2, 3), false);
        }
        product(s, d, &[0], [2, 3, 4], (1, 0), false);
        product(s, d, &[2, 0], [2, 3, 4], (1, 1), false);
    }
    for d in FLOATS {
        for size in SIZES {
            product(s, d, &[2], size, (1, 0), true);
            product(s, d, &[], size, (-1, 1), true);
            product(s, d, &[3], size, (1, -2), true);
        }
        non_finite(s, d);
    }
    // Larger than the blocks of a tiled product, in every layout.
    for d in [DType::F32, DType::F64] {
        product(s, d, &[], [70, 65, 130], (1, 0), false);
        product(s, d, &[], [33, 300, 40], (1, 1), true);
        product(s, d, &[], [1, 257, 70], (1, 0), true);
        product(s, d, &[], [70, 257, 1], (1, 0), true);
        product(s, d, &[], [150, 97, 160], (1, 0), true);
        product(s, d, &[30], [20, 20, 20], (1, 0), true);
    }
    for d in [DType::F16, DType::BF16] {
        product(s, d, &[], [34, 65, 49], (1, 0), true);
        small_factors(s, d);
    }
}

/// The dtypes of the operands of `gemm_i32`.
pub(super) const SMALL: [DType; 3] = [DType::I8, DType::U8, DType::I16];

/// A product of integers of 8 and 16 bits, with the largest and smallest numbers among the factors.
pub(super) fn small_product(s: &mut Suite<'_>, [da, db]: [DType; 2], batch: &[usize], [m, k, n]: [usize; 3]) {
    let values = |d: DType| match d {
        DType::I8 => [-128, 127, -1, 3, 0, -77, 45],
        DType::U8 => [255, 0, 1, 128, 127, 200, 3],
        _ => [-32_768, 32_767, -1, 257, 0, -12_345, 300],
    };
    let call = |b: &dyn Backend, ins: &[View<'_>], outs: &mut [ViewMut<'_>]| b.gemm_i32(ins[0], ins[1], &mut outs[0]);
    let [a, b, c] = [[m, k], [k, n], [m, n]].map(|last| [batch, &last].concat());
    let name = format!("gemm_i32/{da}/{db}/{}@{}", sizes(&a), sizes(&b));
    let inputs = vec![Array::ints(da, &a, &values(da)), Array::ints(db, &b, &values(db)[..5])];
    s.case(&Case::new(name, inputs, vec![fresh(DType::I32, &c)], &call));
}

/// A product with floats that rounding to 8 bits does not change, since the range of each group of seven or more is 255.
pub(super) fn rounded_product(s: &mut Suite<'_>, groups: usize, [m, k, n]: [usize; 3], add: bool) {
    let call = move |b: &dyn Backend, ins: &[View<'_>], outs: &mut [ViewMut<'_>]| {
        b.linear_i8(add, ins[0], ins[1], ins[2], ins[3], ins[4], &mut outs[0])
    };
    let floats = |dims: &[usize], values: &[f64]| Array::floats(DType::F32, dims, values);
    let inputs = vec![
        floats(&[groups, m, k], &[-100.0, 3.0, 155.0, 0.0, -7.0, 80.0, 12.0]),
        Array::ints(DType::I8, &[groups, k, n], &[-128, 127, -1, 3, 45]),
        Array::ints(DType::I32, &[groups, n], &[5, -3, 100]),
        floats(&[groups, n], &[0.5, 2.0, 0.25, -1.0]),
        floats(&[groups, n], &[1.0, -3.0]),
    ];
    let out = [groups, m, n];
    let output = if add { Output::Updated(floats(&out, &[4.0, -9.0, 0.5])) } else { fresh(DType::F32, &out) };
    let name = format!("linear_i8/{}@{}/add_{add}", sizes(&[groups, m, k]), sizes(&[groups, k, n]));
    s.case(&Case::new(name, inputs, vec![output], &call));
}

/// With `random`, the operands are random floats, the tolerance is the error bound of a naive product, and `factors`
/// are halved. Otherwise the operands are small integers and the result must be exact.
pub(super) fn product(
    s: &mut Suite<'_>,
    d: DType,
    batch: &[usize],
    [m, k, n]: [usize; 3],
    factors: (i64, i64),
    random: bool,
) {
    let [a, b, c] = [[m, k], [k, n], [m, n]].map(|last| [batch, &last].concat());
    let kind = if random { "random" } else { "integers" };
    let (alpha, beta) = factors;
    let name = format!("gemm/{d}/{kind}/{}@{}/alpha{alpha}/beta{beta}", sizes(&a), sizes(&b));
    let mut rng = s.rng(&name);
    let make = |dims: &[usize], rng: &mut Rng| {
        if random { Array::random(d, dims, rng) } else { Array::small(d, dims, rng) }
    };
    let scalar = |v: i64| if random { Scalar::Float(v as f64 * 0.5) } else { Scalar::Int(v) };
    let inputs = vec![make(&a, &mut rng), make(&b, &mut rng)];
    let output = if beta == 0 { fresh(d, &c) } else { Output::Updated(make(&c, &mut rng)) };
    let with = |alpha: Scalar, beta: Scalar| {
        move |b: &dyn Backend, ins: &[View<'_>], outs: &mut [ViewMut<'_>]| {
            b.gemm(alpha, ins[0], ins[1], beta, &mut outs[0])
        }
    };
    let call = with(scalar(alpha), scalar(beta));
    let magnitude = with(scalar(alpha.abs()), scalar(beta.abs()));
    let case = Case::new(name, inputs, vec![output], &call);
    s.case(&if random { case.bound(Bound::Linear(k + 2)).magnitude(&magnitude) } else { case });
}

/// A zero factor must not suppress NaN or infinity in the other operand, and with beta = 0 the old output is not read.
fn non_finite(s: &mut Suite<'_>, d: DType) {
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    let call = |b: &dyn Backend, ins: &[View<'_>], outs: &mut [ViewMut<'_>]| {
        b.gemm(Scalar::Float(1.0), ins[0], ins[1], Scalar::Float(0.0), &mut outs[0])
    };
    let a = Array::floats(d, &[3, 4], &[0.0, 1.0, nan, 2.0, 0.0, 0.0, 0.0, 0.0, 1.0, inf, -1.0, 0.0]);
    let b = Array::floats(d, &[4, 3], &[inf, 0.0, 1.0, 1.0, 2.0, 0.0, 0.0, 0.0, 1.0, nan, 1.0, 1.0]);
    let output = Output::Updated(Array::floats(d, &[3, 3], &[nan]));
    s.case(&Case::new(format!("gemm/{d}/non_finite"), vec![a, b], vec![output], &call));
    let (a, b) = (Array::floats(d, &[2, 0], &[0.0]), Array::floats(d, &[0, 3], &[0.0]));
    let output = Output::Updated(Array::floats(d, &[2, 3], &[nan]));
    s.case(&Case::new(format!("gemm/{d}/k0_over_nan"), vec![a, b], vec![output], &call));
}

/// alpha and beta are applied in the compute dtype, even if the operands' dtype would round them coarsely or to 0.
fn small_factors(s: &mut Suite<'_>, d: DType) {
    for (name, k, alpha, beta) in [("alpha", 2, 1e-8, 0.0), ("beta", 2, 1e-8, 2e-8), ("beta_alone", 0, 1.0, 1e-8)] {
        let call = move |b: &dyn Backend, ins: &[View<'_>], outs: &mut [ViewMut<'_>]| {
            b.gemm(Scalar::Float(alpha), ins[0], ins[1], Scalar::Float(beta), &mut outs[0])
        };
        let [a, b, c] = [[3, k], [k, 2], [3, 2]].map(|dims| Array::floats(d, &dims, &[32768.0, 16384.0, 24576.0]));
        let case = Case::new(format!("gemm/{d}/small_{name}"), vec![a, b], vec![Output::Updated(c)], &call);
        s.case(&case.bound(Bound::Linear(k + 2)).magnitude(&call));
    }
}

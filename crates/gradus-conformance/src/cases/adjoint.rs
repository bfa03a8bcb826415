//! Adjoint pairs of operations: `<A x, y> = <x, A* y>` holds exactly on small integers.

use gradus_backend::{Backend, DType, Result, Scalar, ScatterOp, View, ViewMut, Window};

use crate::suite::{Array, Placed, Placement, Rng, Suite, execute, said};

/// One operation of a pair. It receives its operands, then its output.
type Side<'c> = dyn Fn(&dyn Backend, &[View<'_>], &mut [ViewMut<'_>]) -> Result<()> + 'c;

/// The result of a call whose output starts as zeros.
fn apply(b: &dyn Backend, inputs: &[&Array], out: &[usize], call: &Side<'_>) -> Result<Vec<f64>, String> {
    let inputs: Vec<_> = inputs.iter().map(|a| Placed::new(a, Placement::Contiguous, 0)).collect();
    let output = Placed::new(&Array::ints(inputs[0].dtype, out, &[0]), Placement::Contiguous, 0);
    let bytes = execute(b, &inputs, std::slice::from_ref(&output), call).map_err(said)?;
    Ok(output.values(&bytes[0]).into_iter().map(Scalar::to_f64).collect())
}

/// Checks one pair. `forward` and `back` receive the vector first, then `others`.
fn pair(
    s: &mut Suite<'_>,
    name: &str,
    [from, to]: [&[usize]; 2],
    others: &[Array],
    forward: &Side<'_>,
    back: &Side<'_>,
) {
    for d in [DType::F64, DType::F32] {
        if !s.supports(std::iter::once(d)) {
            continue;
        }
        s.check(&format!("adjoint/{name}/{d}"), |b| {
            let mut rng = Rng::new(name);
            let (x, y) = (Array::small(d, from, &mut rng), Array::small(d, to, &mut rng));
            let others: Vec<Array> = others
                .iter()
                .map(|o| Array { dtype: if o.dtype.is_float() { d } else { o.dtype }, ..o.clone() })
                .collect();
            let with = |v: &Array, out: &[usize], call: &Side<'_>| {
                let inputs: Vec<&Array> = std::iter::once(v).chain(&others).collect();
                apply(b, &inputs, out, call)
            };
            let dot = |u: &[f64], v: &Array| u.iter().zip(&v.data).map(|(a, b)| a * b.to_f64()).sum::<f64>();
            let (left, right) = (dot(&with(&x, to, forward)?, &y), dot(&with(&y, from, back)?, &x));
            if left == right { Ok(()) } else { Err(format!("<A x, y> is {left}, <x, A* y> is {right}")) }
        });
    }
}

pub(super) fn run(s: &mut Suite<'_>) {
    let w = Window {
        rank: 2,
        kernel: [3, 2, 1],
        stride: [2, 1, 1],
        dilation: [1, 2, 1],
        pad_before: [1, 0, 0],
        pad_after: [2, 1, 0],
    };
    let Ok(positions) = w.output("suite", &[6, 5]) else { return };
    let (h, k) = (positions[0], positions[1]);
    pair(
        s,
        "unfold_fold",
        [&[2, 3, 6, 5], &[2, 3, 3, 2, h, k]],
        &[],
        &|b, x, y| b.unfold(&w, x[0], Scalar::Int(0), &mut y[0]),
        &|b, x, y| b.fold(&w, x[0], &mut y[0]),
    );
    let mut rng = Rng::new("adjoint");
    let filters = Array::small(DType::F64, &[6, 2, 3, 2], &mut rng);
    pair(
        s,
        "conv_backward_input",
        [&[2, 4, 6, 5], &[2, 6, h, k]],
        &[filters],
        &|b, x, y| b.conv(&w, 2, x[0], x[1], None, &mut y[0]),
        &|b, x, y| b.conv_backward_input(&w, 2, x[0], x[1], &mut y[0]),
    );
    let images = Array::small(DType::F64, &[2, 4, 6, 5], &mut rng);
    pair(
        s,
        "conv_backward_weight",
        [&[6, 2, 3, 2], &[2, 6, h, k]],
        &[images],
        &|b, x, y| b.conv(&w, 2, x[1], x[0], None, &mut y[0]),
        &|b, x, y| b.conv_backward_weight(&w, 2, x[1], x[0], &mut y[0]),
    );
    let index = Array::indices(DType::I64, &[3, 9, 4], 5, &mut rng);
    pair(
        s,
        "gather_scatter_add",
        [&[3, 5, 4], &[3, 9, 4]],
        &[index],
        &|b, x, y| b.gather(x[0], 1, x[1], &mut y[0]),
        &|b, x, y| b.scatter(ScatterOp::Add, 1, x[1], x[0], &mut y[0]),
    );
    let rows = Array::indices(DType::I64, &[11], 4, &mut rng);
    pair(
        s,
        "embedding_backward",
        [&[4, 3], &[11, 3]],
        &[rows],
        &|b, x, y| b.embedding(x[0], x[1], &mut y[0]),
        &|b, x, y| b.embedding_backward(x[1], x[0], None, &mut y[0]),
    );
    // Windows of four elements, so that the means are exact.
    let halves = Window { kernel: [2, 2, 1], dilation: [1; 3], pad_before: [0; 3], pad_after: [0; 3], ..w };
    pair(
        s,
        "avg_pool_backward",
        [&[2, 3, 6, 5], &[2, 3, 3, 4]],
        &[],
        &|b, x, y| b.avg_pool(&halves, true, x[0], &mut y[0]),
        &|b, x, y| b.avg_pool_backward(&halves, true, x[0], &mut y[0]),
    );
}

//! Cross-entropy.

use gradus_backend::{Backend, CrossEntropyParams, DType, View, ViewMut};

use super::{FLOATS, fresh};
use crate::suite::{Array, Bound, Case, Suite};

pub(super) fn run(s: &mut Suite<'_>) {
    for d in FLOATS {
        for (i, index) in [DType::I64, DType::I32, DType::U32].into_iter().enumerate() {
            if i > 0 && d != DType::F32 {
                continue;
            }
            for [n, c] in [[4, 5], [1, 1], [0, 3], [3, 1], [6, 33], [2, 200]] {
                for smoothing in [0.0, 0.1, 1.0] {
                    cross_entropy(s, d, index, n, c, smoothing, None);
                    cross_entropy(s, d, index, n, c, smoothing, Some(if index == DType::U32 { 7000 } else { -100 }));
                }
            }
        }
    }
    // Long rows: some of them are aligned, most are not.
    cross_entropy(s, DType::F32, DType::I64, 65, 1020, 0.1, Some(-100));
    cross_entropy(s, DType::BF16, DType::I32, 2, 4200, 0.1, None);
    cross_entropy(s, DType::BF16, DType::I64, 3, 2055, 0.1, None);
    cross_entropy(s, DType::F32, DType::I64, 2, 1027, 0.0, Some(-100));
    // Logits that overflow in a naive `exp`, and a class whose logit is minus infinity.
    let inf = f64::INFINITY;
    let params = CrossEntropyParams { ignore_index: None, label_smoothing: 0.0 };
    let logits = Array::floats(DType::F32, &[3, 3], &[1e30, 0.0, -1e30, -inf, 2.0, 1.0, 3000.0, 2999.0, 0.0]);
    let target = Array::ints(DType::I64, &[3], &[0, 1, 1]);
    let call = move |b: &dyn Backend, ins: &[View<'_>], outs: &mut [ViewMut<'_>]| {
        let [loss, lse] = outs else { unreachable!("cross-entropy has two outputs") };
        b.cross_entropy(&params, ins[0], ins[1], loss, lse)
    };
    let outputs = vec![fresh(DType::F32, &[3]), fresh(DType::F32, &[3])];
    s.case(&Case::new("cross_entropy/f32/extreme", vec![logits, target], outputs, &call).bound(Bound::Naive));
}

pub(super) fn cross_entropy(
    s: &mut Suite<'_>,
    d: DType,
    index: DType,
    n: usize,
    c: usize,
    label_smoothing: f64,
    ignore_index: Option<i64>,
) {
    let params = CrossEntropyParams { ignore_index, label_smoothing };
    let name = format!("{d}/{index}/{n}x{c}/smoothing{label_smoothing}/ignore{ignore_index:?}");
    let mut rng = s.rng(&name);
    let values: Vec<f64> = (0..n * c).map(|_| rng.unit() * 4.0).collect();
    let logits = Array::floats(d, &[n, c], &values);
    let mut target = Array::indices(index, &[n], c, &mut rng);
    if let Some(ignored) = ignore_index {
        target.data.iter_mut().skip(1).step_by(2).for_each(|t| *t = ignored.into());
    }
    let compute = d.compute();
    let forward = move |b: &dyn Backend, ins: &[View<'_>], outs: &mut [ViewMut<'_>]| {
        let [loss, lse] = outs else { unreachable!("cross-entropy has two outputs") };
        b.cross_entropy(&params, ins[0], ins[1], loss, lse)
    };
    let outputs = vec![fresh(compute, &[n]), fresh(compute, &[n])];
    let inputs = vec![logits.clone(), target.clone()];
    s.case(&Case::new(format!("cross_entropy/{name}"), inputs, outputs, &forward).bound(Bound::Naive));

    let sums = values.chunks(c.max(1)).map(|row| row.iter().map(|v| v.exp()).sum::<f64>().ln());
    let lse = Array::floats(compute, &[n], &sums.collect::<Vec<_>>());
    let inputs = vec![logits, target, lse, Array::random(compute, &[n], &mut rng)];
    let backward = move |b: &dyn Backend, ins: &[View<'_>], outs: &mut [ViewMut<'_>]| {
        b.cross_entropy_backward(&params, ins[0], ins[1], ins[2], ins[3], &mut outs[0])
    };
    let case = Case::new(format!("cross_entropy_backward/{name}"), inputs, vec![fresh(d, &[n, c])], &backward);
    s.case(&case.bound(Bound::Naive));
}

//! Cross-entropy with class indices as targets, and its gradient. Neither keeps log-probabilities.

use gradus_backend::late::Fault;
use gradus_backend::{Axes, CrossEntropyParams, DType, Layout, Result, Scalar, View, ViewMut, composite};

use super::{Rows, plain};
use crate::CudaBackend;

const FILE: &str = include_str!("cross_entropy.cu");
/// The axis of the classes.
const CLASS: usize = 1;

/// Whether a kernel can handle the operands. `vectors` have one element for each row, in the type of sums.
fn fits(
    params: &CrossEntropyParams,
    tensors: &[(DType, &Layout)],
    target: View<'_>,
    vectors: [(DType, &Layout); 2],
) -> bool {
    let (dtype, logits) = tensors[0];
    logits.rank() == 2
        && plain(Axes::one(CLASS), tensors)
        && (0.0..=1.0).contains(&params.label_smoothing)
        && matches!(target.dtype, DType::I64 | DType::I32 | DType::U32)
        && target.layout.dims() == &logits.dims()[..1]
        && vectors.iter().all(|(d, l)| *d == dtype.compute() && l.dims() == &logits.dims()[..1])
}

/// A vector `[n]` broadcast to the shape of the logits.
fn column(v: &Layout, logits: &Layout) -> Result<Layout> {
    v.unsqueeze(CLASS)?.expand(*logits.shape())
}

/// The shares of the target and of every class, and the target to ignore, if the dtype can hold it.
fn parameters(params: &CrossEntropyParams, classes: usize, target: DType) -> ([f64; 3], Option<i64>) {
    let e = params.label_smoothing;
    let holds = |v: &i64| Scalar::Int(*v).check(target).is_ok();
    ([1.0 - e, e / classes as f64, 0.0], params.ignore_index.filter(holds))
}

/// See [`Backend::cross_entropy`](gradus_backend::Backend::cross_entropy).
pub(crate) fn cross_entropy(
    b: &CudaBackend,
    params: &CrossEntropyParams,
    logits: View<'_>,
    target: View<'_>,
    loss: &mut ViewMut<'_>,
    lse: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "cross_entropy";
    let vectors = [(loss.dtype, loss.layout), (lse.dtype, lse.layout)];
    if !fits(params, &[(logits.dtype, logits.layout)], target, vectors) {
        return composite::cross_entropy::forward(b, params, logits, target, loss, lse);
    }
    let (numbers, ignore) = parameters(params, logits.layout.dims()[CLASS], target.dtype);
    let held = b.queue().hold(OP, || Fault::index(OP))?;
    let operands = [
        (b.input(OP, "logits", logits)?, *logits.layout),
        (b.input(OP, "target", target)?, column(target.layout, logits.layout)?),
        (b.output(OP, "loss", loss)?, column(loss.layout, logits.layout)?),
        (b.output(OP, "lse", lse)?, column(lse.layout, logits.layout)?),
    ];
    let smooth = usize::from(params.label_smoothing != 0.0);
    Rows {
        op: OP,
        entry: "cross_entropy",
        file: FILE,
        axes: Axes::one(CLASS),
        operands: &operands,
        packed: &[0],
        constants: &[("FORWARD", 1), ("IGNORE", usize::from(ignore.is_some())), ("SMOOTH", smooth)],
        numbers,
        index: (target.dtype, ignore.unwrap_or_default()),
        held: Some(&held),
        ..Rows::default()
    }
    .run(b)
}

/// See [`Backend::cross_entropy_backward`](gradus_backend::Backend::cross_entropy_backward).
pub(crate) fn cross_entropy_backward(
    b: &CudaBackend,
    params: &CrossEntropyParams,
    logits: View<'_>,
    target: View<'_>,
    lse: View<'_>,
    g: View<'_>,
    dlogits: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "cross_entropy_backward";
    let tensors = [(logits.dtype, logits.layout), (dlogits.dtype, dlogits.layout)];
    if !fits(params, &tensors, target, [(lse.dtype, lse.layout), (g.dtype, g.layout)]) {
        return composite::cross_entropy::backward(b, params, logits, target, lse, g, dlogits);
    }
    let (numbers, ignore) = parameters(params, logits.layout.dims()[CLASS], target.dtype);
    let held = b.queue().hold(OP, || Fault::index(OP))?;
    let operands = [
        (b.input(OP, "logits", logits)?, *logits.layout),
        (b.input(OP, "target", target)?, column(target.layout, logits.layout)?),
        (b.input(OP, "lse", lse)?, column(lse.layout, logits.layout)?),
        (b.input(OP, "g", g)?, column(g.layout, logits.layout)?),
        (b.output(OP, "dlogits", dlogits)?, *dlogits.layout),
    ];
    Rows {
        op: OP,
        entry: "cross_entropy_backward",
        file: FILE,
        axes: Axes::one(CLASS),
        operands: &operands,
        packed: &[0, 4],
        constants: &[("BACKWARD", 1), ("IGNORE", usize::from(ignore.is_some()))],
        numbers,
        index: (target.dtype, ignore.unwrap_or_default()),
        held: Some(&held),
        ..Rows::default()
    }
    .run(b)
}

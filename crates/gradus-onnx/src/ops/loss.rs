//! Losses.

use gradus_tensor::{Error, Reduction, Result, Tensor};

use crate::graph::{Call, Row, one, row};

pub(super) const ROWS: &[Row] = &[
    row("NegativeLogLikelihoodLoss", &[12, 13, 22], |c| Ok(one(loss(c, &c.tensor(0)?)?))),
    row("SoftmaxCrossEntropyLoss", &[12, 13], |c| {
        let log = c.tensor(0)?.log_softmax(1)?;
        Ok(vec![loss(c, &log)?.into(), log.into()])
    }),
];

/// The loss for log-probabilities `[n, classes, ..]`.
fn loss(c: &Call<'_>, log: &Tensor) -> Result<Tensor> {
    let reduction = match c.text("reduction", "mean")? {
        "none" => Reduction::None,
        "sum" => Reduction::Sum,
        "mean" => Reduction::Mean,
        other => return Err(Error::argument("onnx", format!("reduction = `{other}`"))),
    };
    let ignored = c.has("ignore_index").then(|| c.int("ignore_index", 0)).transpose()?;
    let (target, weight) = (c.tensor(1)?, c.optional(2)?);
    log.nll_loss(&target, weight.as_ref(), ignored, reduction)?.to_dtype(log.dtype())
}

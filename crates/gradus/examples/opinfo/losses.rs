//! Losses and distances.

use gradus::ops::Target;
use gradus::prelude::*;

use crate::sample::{KW, Rows, Sample, inexpressible, rows};

pub(crate) const ROWS: Rows = rows! {
    "nn.functional.mse_loss", |s| s.x()?.mse_loss(s.t(1, "target")?, s.reduction()?)?;
    "nn.functional.l1_loss", |s| s.x()?.l1_loss(s.t(1, "target")?, s.reduction()?)?;
    "nn.functional.smooth_l1_loss", |s| {
        s.x()?.smooth_l1_loss(s.t(1, "target")?, s.num(KW, "beta", 1.0)?, s.reduction()?)?
    };
    "nn.functional.huber_loss", |s| s.x()?.huber_loss(s.t(1, "target")?, s.num(KW, "delta", 1.0)?, s.reduction()?)?;
    "nn.functional.soft_margin_loss", |s| s.x()?.soft_margin_loss(s.t(1, "target")?, s.reduction()?)?;
    "nn.functional.hinge_embedding_loss", |s| {
        s.x()?.hinge_embedding_loss(s.t(1, "target")?, s.num(KW, "margin", 1.0)?, s.reduction()?)?
    };
    "nn.functional.margin_ranking_loss", |s| {
        s.x()?.margin_ranking_loss(s.t(1, "")?, s.t(2, "target")?, s.num(KW, "margin", 0.0)?, s.reduction()?)?
    };
    "nn.functional.cosine_embedding_loss", |s| {
        s.x()?.cosine_embedding_loss(s.t(1, "")?, s.t(2, "target")?, s.num(KW, "margin", 0.0)?, s.reduction()?)?
    };
    "nn.functional.triplet_margin_loss", |s| {
        let (margin, p, eps) = (s.num(KW, "margin", 1.0)?, s.num(KW, "p", 2.0)?, s.num(KW, "eps", 1e-6)?);
        if eps != 1e-6 {
            return inexpressible("another eps");
        }
        s.x()?.triplet_margin_loss(s.t(1, "")?, s.t(2, "")?, margin, p, s.flag(KW, "swap", false)?, s.reduction()?)?
    };
    "nn.functional.kl_div", |s| {
        let log = s.flag(KW, "log_target", false)?;
        match s.text(KW, "reduction", "mean")? {
            "batchmean" => s.x()?.kl_div_batch_mean(s.t(1, "target")?, log)?,
            _ => s.x()?.kl_div(s.t(1, "target")?, log, s.reduction()?)?,
        }
    };
    "nn.functional.poisson_nll_loss", |s| {
        let (log, full, eps) = (s.flag(KW, "log_input", true)?, s.flag(KW, "full", false)?, s.num(KW, "eps", 1e-8)?);
        s.x()?.poisson_nll_loss(s.t(1, "target")?, log, full, eps, s.reduction()?)?
    };
    "nn.functional.gaussian_nll_loss", |s| {
        let (full, eps) = (s.flag(KW, "full", false)?, s.num(KW, "eps", 1e-6)?);
        s.x()?.gaussian_nll_loss(s.t(1, "target")?, s.t(2, "var")?, full, eps, s.reduction()?)?
    };
    "nn.functional.binary_cross_entropy", |s| {
        s.x()?.binary_cross_entropy(s.t(1, "target")?, s.opt(KW, "weight")?, s.reduction()?)?
    };
    "nn.functional.binary_cross_entropy_with_logits", |s| {
        s.x()?.bce_with_logits(s.t(1, "target")?, s.opt(KW, "weight")?, s.opt(KW, "pos_weight")?, s.reduction()?)?
    };
    "nn.functional.cross_entropy", |s| cross_entropy(s, s.x()?, s.t(1, "target")?)?;
    "nn.functional.linear_cross_entropy", |s| {
        let logits = s.x()?.linear(s.t(1, "linear_weight")?, s.opt(KW, "linear_bias")?)?;
        let target = s.t(2, "target")?;
        // The classes are on the last axis of the logits, and of a target of probabilities. For class indices they are
        // moved to axis 1.
        if target.dtype().is_float() || logits.rank() < 3 {
            cross_entropy(s, &logits, target)?
        } else {
            cross_entropy(s, &logits.movedim(&[-1], &[1])?, target)?
        }
    };
    "nn.functional.nll_loss", |s| {
        let (x, target, alone) = batch(s.x()?, s.t(1, "target")?)?;
        let y = x.nll_loss(&target, s.opt(KW, "weight")?, ignored(s)?, s.reduction()?)?;
        if alone && y.rank() > 0 { y.squeeze(0)? } else { y }
    };
    "nn.functional.ctc_loss", |s| {
        let lengths = |at, name| -> Result<Vec<usize>> {
            if let Ok(t) = s.t(at, name) {
                return Ok(t.to_dtype(DType::I64)?.to_vec::<i64>()?.into_iter().map(|v| v as usize).collect());
            }
            Ok(s.ints(at, name)?.unwrap_or_default().into_iter().map(|v| v as usize).collect())
        };
        let (inputs, targets) = (lengths(2, "input_lengths")?, lengths(3, "target_lengths")?);
        let (blank, infinite) = (s.size(4, "blank", 0)?, s.flag(KW, "zero_infinity", false)?);
        let x = s.x()?;
        let alone = x.rank() == 2;
        let x = if alone { x.unsqueeze(1)? } else { x.clone() };
        let y = x.ctc_loss(s.t(1, "targets")?, &inputs, &targets, blank, infinite, s.reduction()?)?;
        if alone && y.rank() > 0 { y.squeeze(0)? } else { y }
    };
    "nn.functional.cosine_similarity", |s| {
        s.x()?.cosine_similarity(s.t(1, "x2")?, s.int(KW, "dim", 1)?, s.num(KW, "eps", 1e-8)?)?
    };
    "nn.functional.pairwise_distance", |s| {
        let (p, eps) = (s.num(KW, "p", 2.0)?, s.num(KW, "eps", 1e-6)?);
        s.x()?.pairwise_distance(s.t(1, "x2")?, p, eps, s.flag(KW, "keepdim", false)?)?
    };
};

fn ignored(s: &Sample<'_>) -> Result<Option<i64>> {
    Ok(Some(s.int(KW, "ignore_index", -100)? as i64))
}

/// Adds a batch axis to logits and a target that have none. The flag says whether it did.
fn batch(x: &Tensor, target: &Tensor) -> Result<(Tensor, Tensor, bool)> {
    let alone = x.rank() == 1;
    if alone { Ok((x.unsqueeze(0)?, target.unsqueeze(0)?, true)) } else { Ok((x.clone(), target.clone(), false)) }
}

fn cross_entropy(s: &Sample<'_>, logits: &Tensor, target: &Tensor) -> Result<Tensor> {
    let (x, target, alone) = batch(logits, target)?;
    let (weight, smoothing) = (s.opt(KW, "weight")?, s.num(KW, "label_smoothing", 0.0)?);
    let y = if target.dtype().is_float() {
        let ignored = if s.value(KW, "ignore_index").is_some() { ignored(s)? } else { None };
        x.cross_entropy_with(Target::Probabilities(&target), weight, ignored, smoothing, s.reduction()?)?
    } else {
        x.cross_entropy_with(&target, weight, ignored(s)?, smoothing, s.reduction()?)?
    };
    if alone && y.rank() > 0 { y.squeeze(0) } else { Ok(y) }
}

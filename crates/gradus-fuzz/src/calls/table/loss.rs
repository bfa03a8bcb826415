//! Losses.

use gradus::prelude::*;
use gradus::{Reduction, ops::Target};

use super::{Row, SHORT, rows};
use crate::calls::Draw;

fn reduction(d: &mut Draw) -> Reduction {
    d.of(&[Reduction::None, Reduction::Mean, Reduction::Sum])
}

/// Logits `[n, c, ..]` and the class of each row.
fn classes(d: &mut Draw) -> Result<(Tensor, Tensor)> {
    let (dims, rank) = ([d.below(5), 1 + d.below(5), 2], 2 + d.below(2));
    let x = if d.once_in(6) { d.float()? } else { d.floats(&dims[..rank])? };
    let mut dims = x.shape().to_vec();
    let c = if dims.len() > 1 { dims.remove(1) } else { 1 };
    let target = d.indices(&dims, c)?;
    Ok((x, target))
}

const TABLE: &[Row] = rows! { SHORT float;
    bce_with_logits |x, d| x.bce_with_logits(&d.like(&x)?, d.maybe(|d| d.like(&x))?.as_ref(), d.maybe(|d| d.like(&x))?.as_ref(), reduction(d));
    binary_cross_entropy |x, d| x.binary_cross_entropy(&d.like(&x)?, d.maybe(|d| d.like(&x))?.as_ref(), reduction(d));
    soft_margin_loss |x, d| x.soft_margin_loss(&d.like(&x)?, reduction(d));
    mse_loss |x, d| x.mse_loss(&d.like(&x)?, reduction(d));
    l1_loss |x, d| x.l1_loss(&d.like(&x)?, reduction(d));
    smooth_l1_loss |x, d| x.smooth_l1_loss(&d.like(&x)?, d.number(), reduction(d));
    huber_loss |x, d| x.huber_loss(&d.like(&x)?, d.number(), reduction(d));
    kl_div |x, d| x.kl_div(&d.like(&x)?, d.flag(), reduction(d));
    kl_div_batch_mean |x, d| x.kl_div_batch_mean(&d.like(&x)?, d.flag());
    poisson_nll_loss |x, d| x.poisson_nll_loss(&d.like(&x)?, d.flag(), d.flag(), d.fraction(), reduction(d));
    gaussian_nll_loss |x, d| x.gaussian_nll_loss(&d.like(&x)?, &d.like(&x)?, d.flag(), d.fraction(), reduction(d));
    margin_ranking_loss |x, d| x.margin_ranking_loss(&d.like(&x)?, &d.like(&x)?, d.number(), reduction(d));
    hinge_embedding_loss |x, d| x.hinge_embedding_loss(&d.like(&x)?, d.number(), reduction(d));
    cosine_embedding_loss |x, d| x.cosine_embedding_loss(&d.like(&x)?, &d.like(&x)?, d.number(), reduction(d));
    triplet_margin_loss |x, d| x.triplet_margin_loss(&d.like(&x)?, &d.like(&x)?, d.number(), d.number(), d.flag(), reduction(d));
};

const CLASSES: &[Row] = rows! { SHORT;
    cross_entropy |d| { let (x, target) = classes(d)?; x.cross_entropy(&target) };
    cross_entropy_with |d| {
        let (x, target) = classes(d)?;
        let soft = d.like(&x)?;
        let target = if d.flag() { Target::Classes(&target) } else { Target::Probabilities(&soft) };
        let weight = d.maybe(|d| d.sized(&[x.shape().get(1).copied().unwrap_or(1)], x.dtype()))?;
        x.cross_entropy_with(target, weight.as_ref(), Some(d.int()).filter(|_| d.flag()), d.fraction(), reduction(d))
    };
    nll_loss |d| {
        let (x, target) = classes(d)?;
        let weight = d.maybe(|d| d.sized(&[x.shape().get(1).copied().unwrap_or(1)], x.dtype()))?;
        x.nll_loss(&target, weight.as_ref(), Some(d.int()).filter(|_| d.flag()), reduction(d))
    };
    ctc_loss |d| {
        let [steps, n, c] = [1 + d.below(6), 1 + d.below(3), 1 + d.below(4)];
        let x = d.floats(&[steps, n, c])?;
        let few = |d: &mut Draw, most: usize| (0..n).map(|_| if d.once_in(10) { d.size() } else { d.below(most + 1) }).collect::<Vec<_>>();
        let (inputs, targets) = (few(d, steps), few(d, 3));
        let total = targets.iter().fold(0usize, |a, &b| a.saturating_add(b)).min(40);
        let dims = if d.flag() { vec![n, 3] } else { vec![total] };
        x.ctc_loss(&d.indices(&dims, c)?, &inputs, &targets, if d.once_in(8) { d.size() } else { 0 }, d.flag(), reduction(d))
    };
    Reduction::apply |d| reduction(d).apply(&d.any()?);
    nn::multi_loss |d| {
        use gradus::nn::loss;
        let (x, how, margin) = (d.float()?, reduction(d), d.number());
        let c = x.shape().last().copied().unwrap_or(1);
        let weight = d.maybe(|d| d.sized(&[c], x.dtype()))?;
        let rows = &x.shape()[..x.rank().saturating_sub(1)];
        match d.below(5) {
            0 => loss::multi_margin(&x, &d.indices(rows, c)?, d.size().min(9) as u32, margin, weight.as_ref(), how),
            1 => loss::multilabel_margin(&x, &d.indices(x.shape(), c)?, how),
            2 => loss::multilabel_soft_margin(&x, &d.like(&x)?, weight.as_ref(), how),
            3 => {
                let (y, z) = (d.like(&x)?, d.like(&x)?);
                let distance = |a: &Tensor, b: &Tensor| a.pairwise_distance(b, 2.0, 1e-6, false);
                loss::triplet_margin_with_distance([&x, &y, &z], distance, margin, d.flag(), how)
            }
            _ => {
                let criterion = CrossEntropyLoss { ignore_index: d.int(), label_smoothing: d.fraction(), reduction: how, ..Default::default() };
                criterion.forward(&x, Target::Probabilities(&d.like(&x)?))
            }
        }
    };
};

pub(super) const ROWS: &[&[Row]] = &[TABLE, CLASSES];

//! Losses of embeddings and scores, with a margin.

use gradus_tensor::{Error, Reduction, Result, Tensor, fused};

use super::losses;
use crate::{Module, Visitor, VisitorMut};

losses! {
    /// The distance `input` where the target is 1, and `max(0, margin - input)` where it is -1, see
    /// [`Tensor::hinge_embedding_loss`].
    HingeEmbeddingLoss {
        /// The distance from which dissimilar pairs cost nothing. Default 1.
        margin: f64 = 1.0,
    }: |it, input, target| input.hinge_embedding_loss(target, it.margin, it.reduction);
    /// `max(0, margin - target * (input1 - input2))`, see [`Tensor::margin_ranking_loss`].
    MarginRankingLoss {
        /// The lead from which a right order costs nothing. Default 0.
        margin: f64 = 0.0,
    }: |it, input1, input2, target| input1.margin_ranking_loss(input2, target, it.margin, it.reduction);
    /// `1 - cos` where the target is 1, and `max(0, cos - margin)` where it is -1, see
    /// [`Tensor::cosine_embedding_loss`].
    CosineEmbeddingLoss {
        /// The cosine up to which dissimilar pairs cost nothing. Default 0.
        margin: f64 = 0.0,
    }: |it, input1, input2, target| input1.cosine_embedding_loss(input2, target, it.margin, it.reduction);
    /// `max(0, d(anchor, positive) - d(anchor, negative) + margin)`, see [`Tensor::triplet_margin_loss`]. PyTorch's
    /// `eps` is always 1e-6.
    TripletMarginLoss {
        /// The lead of the positive from which a triplet costs nothing. Default 1.
        margin: f64 = 1.0,
        /// The exponent of the norm. Default 2.
        p: f64 = 2.0,
        /// Whether `d(positive, negative)` is used where it is smaller. Default false.
        swap: bool = false,
    }: |it, anchor, positive, negative| {
        anchor.triplet_margin_loss(positive, negative, it.margin, it.p, it.swap, it.reduction)
    };
}

/// [`TripletMarginLoss`] with a distance of your own, a function or closure. The default is
/// [`Tensor::pairwise_distance`] with `p` 2.
#[derive(Debug, Clone, Copy)]
pub struct TripletMarginWithDistanceLoss<D = fn(&Tensor, &Tensor) -> Result<Tensor>> {
    /// The distance. It is not negative, and small for similar operands.
    pub distance: D,
    /// The lead of the positive from which a triplet costs nothing. Default 1.
    pub margin: f64,
    /// Whether `d(positive, negative)` is used where it is smaller. Default false.
    pub swap: bool,
    /// How the losses are combined. Default mean.
    pub reduction: Reduction,
}

impl Default for TripletMarginWithDistanceLoss {
    fn default() -> Self {
        Self::new(|x, y| x.pairwise_distance(y, 2.0, 1e-6, false))
    }
}

impl<D: Fn(&Tensor, &Tensor) -> Result<Tensor>> TripletMarginWithDistanceLoss<D> {
    /// The loss with this distance and the default settings.
    pub fn new(distance: D) -> Self {
        TripletMarginWithDistanceLoss { distance, margin: 1.0, swap: false, reduction: Reduction::Mean }
    }

    /// Computes the loss.
    #[track_caller]
    pub fn forward(&self, anchor: &Tensor, positive: &Tensor, negative: &Tensor) -> Result<Tensor> {
        let triplet = [anchor, positive, negative];
        triplet_margin_with_distance(triplet, &self.distance, self.margin, self.swap, self.reduction)
    }
}

impl<D: Send + Sync> Module for TripletMarginWithDistanceLoss<D> {
    fn visit<'m>(&'m self, visitor: &mut Visitor<'m>) {
        visitor.kind("TripletMarginWithDistanceLoss");
        visitor.child("margin", &self.margin);
        visitor.child("swap", &self.swap);
        visitor.child("reduction", &self.reduction);
    }
    fn visit_mut<'m>(&'m mut self, _: &mut VisitorMut<'m>) {}
}

/// `max(0, d(anchor, positive) - d(anchor, negative) + margin)` for a distance of your own, combined as `reduction`
/// says. With `swap`, `d(positive, negative)` replaces `d(anchor, negative)` wherever it is smaller. Errors if the
/// margin is not above 0, or if the three shapes differ.
#[track_caller]
pub fn triplet_margin_with_distance(
    [anchor, positive, negative]: [&Tensor; 3],
    distance: impl Fn(&Tensor, &Tensor) -> Result<Tensor>,
    margin: f64,
    swap: bool,
    reduction: Reduction,
) -> Result<Tensor> {
    const OP: &str = "triplet_margin_with_distance_loss";
    if !(margin > 0.0 && margin.is_finite()) {
        return Err(Error::argument(OP, format!("margin is {margin}; it must be finite and above 0")));
    }
    if anchor.shape() != positive.shape() || anchor.shape() != negative.shape() {
        let mut e = Error::shape(OP, "shapes differ").help("a loss broadcasts nothing; reshape or expand one");
        for (name, t) in [("anchor", anchor), ("positive", positive), ("negative", negative)] {
            e = e.operand(name, t.shape(), t.dtype(), t.device());
        }
        return Err(e);
    }
    let near = distance(anchor, positive)?;
    let mut far = distance(anchor, negative)?;
    if swap {
        far = far.minimum(&distance(positive, negative)?)?;
    }
    // The slope at the margin is that of a violated margin.
    let losses = fused!(|near, far, margin| {
        let x = near - far + margin;
        x.lt(0.0).select(0.0, x)
    })(&near, &far, margin)?;
    reduction.apply(&losses)
}

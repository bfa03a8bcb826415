//! The attention of heads, without the projections, which each family of networks names in its own way.

use gradus_nn::{Mode, Module, RandomState};
use gradus_tensor::{AttentionOptions, Causal, Error, Generator, Result, Tensor};

/// Attention with dropout of its weights. The number of heads follows from the number of features, so that a rank with part
/// of the features has part of the heads. There may be fewer heads of keys and values than of queries.
#[derive(Debug, Clone, Module)]
pub(crate) struct Heads {
    /// The features of a head.
    size: usize,
    /// The factor of the scores; `1 / sqrt(size)` if there is none.
    scale: Option<f64>,
    dropout: f64,
    random: RandomState,
    mode: Mode,
}

impl Heads {
    /// Heads of `size` features, whose weights are dropped with probability `dropout` in training.
    #[track_caller]
    pub(crate) fn new(size: usize, dropout: f64, generator: &mut Generator) -> Result<Self> {
        if !(0.0..=1.0).contains(&dropout) {
            let m = format!("the dropout of attention is {dropout}; it is a probability, 0 to 1");
            return Err(Error::argument("attention", m));
        }
        let random = RandomState::new(Generator::new(generator.next_u64()));
        Ok(Heads { size, scale: None, dropout, random, mode: Mode::Train })
    }

    /// The factor of the scores.
    #[must_use]
    pub(crate) fn scale(mut self, scale: f64) -> Self {
        self.scale = Some(scale);
        self
    }

    /// Queries, keys or values `[n, length, features]` as `[n, heads, length, size]`.
    #[track_caller]
    pub(crate) fn split(&self, x: &Tensor) -> Result<Tensor> {
        let refuse = |m: String| Error::shape("attention", m).operand("input", x.shape(), x.dtype(), x.device());
        let &[n, l, features] = x.shape() else {
            return Err(refuse("the input is [n, length, features]".into()));
        };
        if !features.is_multiple_of(self.size) {
            let e = refuse(format!("{features} features are no whole number of heads of {} features", self.size));
            return Err(e.help("take a number of ranks that divides the numbers of query heads and of key heads"));
        }
        x.reshape([n, l, features / self.size.max(1), self.size])?.transpose(1, 2)
    }

    /// The attention of queries to keys and values, which are split among the heads. The result `[n, lq, features]` has
    /// the heads side by side. `mask` broadcasts with the scores `[n, heads, lq, lk]`: bools are true to keep, floats are
    /// added.
    #[track_caller]
    pub(crate) fn attend(&self, [q, k, v]: [&Tensor; 3], mask: Option<&Tensor>, causal: Causal) -> Result<Tensor> {
        let mut options = AttentionOptions::new().causal(causal);
        if let Some(mask) = mask {
            options = options.mask(mask);
        }
        if let Some(scale) = self.scale {
            options = options.scale(scale);
        }
        let y = if self.mode.is_training() && self.dropout > 0.0 {
            let mut draw = self.random.begin();
            let y = q.scaled_dot_product_attention(k, v, options.dropout(self.dropout, &mut draw.generator));
            draw.end(y)?
        } else {
            q.scaled_dot_product_attention(k, v, options)?
        };
        y.transpose(1, 2)?.flatten(2, 3)
    }
}

//! `dropout(x, p)`: each element becomes 0 with probability `p`, and is otherwise divided by `1 - p`.

use gradus_backend::{DType, Distribution, Error, Result};

use super::elementwise::{Class, Elementwise};
use super::operand::Operand;
use crate::{Generator, Tensor};

/// The operands are mask, x and scale. The select comes last, so that a dropped element and its gradient are exactly 0.
static DROPOUT: Elementwise =
    Elementwise::new("dropout", Class::Float, 3, |x| vec![x[0].select(x[1] * x[2], 0.0)]).conditions(1);

impl Tensor {
    /// Zeroes each element with probability `p` (0 to 1) and divides the rest by `1 - p`. The mask depends only on the
    /// generator, not on the dtype. With `p = 1` all elements and their gradients are 0.
    #[track_caller]
    pub fn dropout(&self, p: f64, generator: &mut Generator) -> Result<Tensor> {
        if !(0.0..=1.0).contains(&p) {
            return Err(
                self.describe(Error::argument("dropout", format!("p is {p}; it is a probability, 0 to 1")), "self")
            );
        }
        if p == 0.0 {
            return Ok(self.clone());
        }
        let keep = Distribution::Bernoulli { p: 1.0 - p };
        // The generator advances only once the result is computed.
        let mut moved = generator.clone();
        let mask = Tensor::random(keep, self.shape(), DType::Bool, self.device(), &mut moved)?;
        let scale = if p < 1.0 { 1.0 / (1.0 - p) } else { 0.0 };
        let y = DROPOUT.apply(&[Operand::Tensor(&mask), Operand::Tensor(self), scale.into()])?;
        *generator = moved;
        Ok(y)
    }
}

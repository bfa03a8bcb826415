//! The [`Dropout`] layer.

use gradus_tensor::{Error, Generator, Result, Tensor};

use crate::{Forward, Mode, Module, RandomState};

/// Dropout (Srivastava et al., 2014). In training, it zeroes each element with probability `p` and divides the rest by
/// `1 - p`. In evaluation, it returns its input.
///
/// The layer has its own generator, so its masks depend only on its seed and on how often it has run, not on other
/// layers. Inside [`checkpoint`](gradus_tensor::autograd::checkpoint), the recomputation drops the same elements as the
/// first run.
#[derive(Clone, Module)]
pub struct Dropout {
    p: f64,
    random: RandomState,
    mode: Mode,
}

impl Dropout {
    /// Creates a layer with drop probability `p`, 0 to 1. Its seed is drawn from `generator`.
    #[track_caller]
    pub fn new(p: f64, generator: &mut Generator) -> Result<Self> {
        if !(0.0..=1.0).contains(&p) {
            return Err(Error::argument("dropout", format!("p is {p}; it is a probability, 0 to 1")));
        }
        Ok(Dropout { p, random: RandomState::new(Generator::new(generator.next_u64())), mode: Mode::Train })
    }
}

impl Forward for Dropout {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        if !self.mode.is_training() {
            return Ok(input.clone());
        }
        // No lock is held while the device works, because a function that watches the device may read the random state.
        let (mut generator, _source) = (self.random.get(), self.random.as_source());
        let y = input.dropout(self.p, &mut generator)?;
        self.random.set(generator);
        Ok(y)
    }
}

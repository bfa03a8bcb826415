//! [`Dropout`].

use gradus_tensor::{Error, Generator, Result, Tensor};

use crate::{Forward, Mode, Module, RandomState};

/// Zeroes each element with probability `p` while training and divides the rest by `1 - p`; does nothing in evaluation
/// (Srivastava et al., 2014).
///
/// The layer has a generator of its own, so that its masks depend on its seed and on how often it ran, not on other layers.
/// Inside [`checkpoint`](gradus_tensor::autograd::checkpoint) the recomputation drops the same elements as the first run.
#[derive(Clone, Module)]
pub struct Dropout {
    p: f64,
    random: RandomState,
    mode: Mode,
}

impl Dropout {
    /// A layer with probability `p`, 0 to 1, and a seed drawn from `generator`.
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
        // No lock is held while the device works, because a function that watches it may read the state.
        let mut generator = self.random.get();
        let y = input.dropout(self.p, &mut generator)?;
        self.random.set(generator);
        Ok(y)
    }
}

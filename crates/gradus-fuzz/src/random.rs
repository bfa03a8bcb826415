//! The random choices of one try, all from one number.

use gradus::Generator;

/// Choices.
#[derive(Debug)]
pub struct Random(Generator);

impl Random {
    /// Those of this generator.
    pub(crate) fn new(generator: Generator) -> Random {
        Random(generator)
    }

    /// Any bits.
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `n`, or 0.
    pub fn below(&mut self, n: usize) -> usize {
        self.0.below(n)
    }

    /// `true` once in `n` times.
    pub fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// One of these.
    pub fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

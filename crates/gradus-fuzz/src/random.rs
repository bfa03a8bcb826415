//! The random choices of one try, all drawn from one generator.

use gradus::Generator;

/// A source of random choices.
#[derive(Debug)]
pub struct Random(Generator);

impl Random {
    /// Draws choices from this generator.
    pub(crate) fn new(generator: Generator) -> Random {
        Random(generator)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `n`; 0 if `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        self.0.below(n)
    }

    /// `true` with probability 1 in `n`.
    pub fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// A random element of a slice.
    pub fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

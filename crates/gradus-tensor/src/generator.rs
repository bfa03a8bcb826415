//! [`Generator`]: an explicit source of random numbers.

use gradus_backend::host_vec::collect;
use gradus_backend::philox;
use gradus_backend::{DType, Distribution, Result};

use crate::autograd::{note_draw, notes_access};

/// A position in the Philox stream of a seed. The numbers drawn depend only on seed and position, not on the device,
/// the number of threads or the shape. To continue later, save the [`seed`](Generator::seed) and the
/// [`offset`](Generator::offset).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generator {
    seed: u64,
    offset: u64,
    /// The seed and the offset of the generator of which this is a [part](Generator::part).
    whole: Option<(u64, u64)>,
}

impl Generator {
    /// A generator at the start of the stream of `seed`.
    pub fn new(seed: u64) -> Self {
        Generator { seed, offset: 0, whole: None }
    }

    /// A generator at a given position of the stream of `seed`.
    pub fn at(seed: u64, offset: u64) -> Self {
        Generator { seed, offset, whole: None }
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Seed and offset, and those of the whole if this is a part.
    pub(crate) fn numbers(&self) -> ([u64; 2], Option<[u64; 2]>) {
        ([self.seed, self.offset], self.whole.map(<[u64; 2]>::from))
    }

    /// The generator with these [numbers](Generator::numbers).
    pub(crate) fn of_numbers(([seed, offset], whole): ([u64; 2], Option<[u64; 2]>)) -> Generator {
        Generator { seed, offset, whole: whole.map(<(u64, u64)>::from) }
    }

    /// The number of 32-bit words consumed so far.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Consumes `words` words and returns the seed and the offset of the first word. In the second run of a
    /// checkpointed region, the result is the same as in the first run, and the generator does not advance.
    fn take(&mut self, words: u64) -> (u64, u64) {
        if notes_access()
            && let Some(place) = note_draw(self.seed, self.offset, words)
        {
            return place;
        }
        let start = self.offset;
        self.offset = start.wrapping_add(words);
        (self.seed, start)
    }

    /// Consumes the words for a draw of `n` elements. Returns the seed and the offset of the first word.
    pub(crate) fn advance(&mut self, dist: Distribution, dtype: DType, n: usize) -> (u64, u64) {
        self.take((n as u64).wrapping_mul(philox::words_per_element(dist, dtype)))
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        let (seed, offset) = self.take(2);
        let (hi, lo) = (philox::word(seed, offset), philox::word(seed, offset.wrapping_add(1)));
        u64::from(hi) << 32 | u64::from(lo)
    }

    /// A uniform integer in `0..n`; 0 if `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next_u64()) * n as u128) >> 64) as usize
    }

    /// Derives an independent generator for the purpose that `key` stands for (a layer, an epoch, a sample). Its stream
    /// does not depend on how far this generator has advanced.
    pub fn fork(&self, key: u64) -> Generator {
        // Draws never reach counters of 2^62 or more, so a fork's seed is independent of the numbers drawn.
        let words = philox::block(self.seed ^ 0x9E37_79B9_7F4A_7C15, key | 1 << 62);
        Generator::new(u64::from(words[0]) << 32 | u64::from(words[1]))
    }

    /// The generator for part `key` of what is done at this position, such as a part of a batch. Its stream depends on the
    /// position, not on the numbers that other parts draw. A part of a part is another part of the whole.
    ///
    /// ```
    /// # use gradus_tensor::Generator;
    /// let whole = Generator::at(7, 3);
    /// let mut part = whole.part(0);
    /// part.next_u64();
    /// assert_eq!(part.part(1), whole.part(1));
    /// assert_eq!(part.after_parts(), Generator::at(7, 4));
    /// ```
    #[must_use]
    pub fn part(&self, key: u64) -> Generator {
        let (seed, offset) = self.whole.unwrap_or((self.seed, self.offset));
        let fork = Generator::new(seed).fork(offset).fork(key);
        Generator { whole: Some((seed, offset)), ..fork }
    }

    /// The generator behind all [parts](Generator::part): the next position of the whole.
    #[must_use]
    pub fn after_parts(&self) -> Generator {
        let (seed, offset) = self.whole.unwrap_or((self.seed, self.offset));
        Generator::at(seed, offset.wrapping_add(1))
    }

    /// The numbers `0..n` in random order. Fails with [`ErrorKind::OutOfMemory`](crate::ErrorKind::OutOfMemory) if the
    /// host has no memory for that many numbers; the generator then does not advance.
    #[track_caller]
    pub fn permutation(&mut self, n: usize) -> Result<Vec<usize>> {
        let mut order = collect("permutation", 0..n)?;
        self.shuffle(&mut order);
        Ok(order)
    }

    /// Shuffles the elements (Fisher-Yates).
    pub(crate) fn shuffle<T>(&mut self, elements: &mut [T]) {
        for i in (1..elements.len()).rev() {
            elements.swap(i, self.below(i + 1));
        }
    }
}

//! The random numbers of a checkpointed region: the first run records where it drew them, and the second run draws from
//! the same positions.

use std::cell::RefCell;
use std::sync::Arc;

/// Consecutive draws of `words` words each from the stream of a seed.
#[derive(Debug, Clone, Copy)]
pub(in crate::autograd) struct Draws {
    seed: u64,
    offset: u64,
    words: u64,
    count: u64,
}

/// The draws that a second run repeats.
struct Replay {
    draws: Arc<[Draws]>,
    /// The current entry, and the number of its draws that have been repeated.
    next: (usize, u64),
    /// Whether the second run has drawn anything else.
    differs: bool,
}

impl Replay {
    /// The position of the first run's next draw. `None` if that draw did not take `words` words, or if an earlier draw
    /// already differed.
    fn draw(&mut self, words: u64) -> Option<(u64, u64)> {
        let (at, done) = self.next;
        let Some(d) = self.draws.get(at).filter(|d| d.words == words && !self.differs) else {
            self.differs = true;
            return None;
        };
        self.next = if done + 1 < d.count { (at, done + 1) } else { (at + 1, 0) };
        Some((d.seed, d.offset.wrapping_add(words.wrapping_mul(done))))
    }
}

#[derive(Default)]
struct Tape {
    /// The number of regions that are in their first run.
    open: usize,
    noted: Vec<Draws>,
    /// Entries below this index belong to several regions and are not extended.
    closed: usize,
    replay: Option<Replay>,
}

impl Tape {
    fn note(&mut self, seed: u64, offset: u64, words: u64) {
        let open = self.noted.get_mut(self.closed..).and_then(<[Draws]>::last_mut);
        match open.filter(|d| {
            d.seed == seed && d.words == words && d.offset.wrapping_add(words.wrapping_mul(d.count)) == offset
        }) {
            Some(d) => d.count += 1,
            None => self.noted.push(Draws { seed, offset, words, count: 1 }),
        }
    }
}

thread_local! {
    static TAPE: RefCell<Tape> = RefCell::default();
}

/// Records the draws of this thread for as long as it exists. Recordings may be nested.
pub(in crate::autograd) struct NoteDraws {
    start: usize,
}

impl NoteDraws {
    pub(in crate::autograd) fn new() -> Self {
        let start = TAPE.with_borrow_mut(|tape| {
            tape.open += 1;
            tape.closed = tape.noted.len();
            tape.closed
        });
        NoteDraws { start }
    }

    pub(in crate::autograd) fn finish(self) -> Arc<[Draws]> {
        TAPE.with_borrow(|tape| tape.noted.iter().skip(self.start).copied().collect())
    }
}

impl Drop for NoteDraws {
    fn drop(&mut self) {
        TAPE.with_borrow_mut(|tape| {
            tape.open -= 1;
            if tape.open == 0 {
                (tape.noted, tape.closed) = (Vec::new(), 0);
            }
        });
    }
}

/// As long as this exists, the generators of this thread repeat the recorded draws and do not advance. Enclosing
/// regions are unaffected.
pub(in crate::autograd) struct ReplayDraws {
    around: Option<Tape>,
}

impl ReplayDraws {
    pub(in crate::autograd) fn new(draws: Arc<[Draws]>) -> Self {
        let tape = Tape { replay: Some(Replay { draws, next: (0, 0), differs: false }), ..Tape::default() };
        ReplayDraws { around: Some(TAPE.replace(tape)) }
    }

    /// Whether exactly the recorded draws were repeated.
    pub(in crate::autograd) fn finish(self) -> bool {
        TAPE.with_borrow(|tape| tape.replay.as_ref().is_some_and(|r| !r.differs && r.next.0 == r.draws.len()))
    }
}

impl Drop for ReplayDraws {
    fn drop(&mut self) {
        if let Some(around) = self.around.take() {
            TAPE.set(around);
        }
    }
}

/// Whether this thread is in the second run of a region.
pub(in crate::autograd) fn is_replay() -> bool {
    TAPE.with_borrow(|tape| tape.replay.is_some())
}

/// Called while accesses are noted, before a generator at `offset` of the stream of `seed` draws `words` words. If the
/// generator must not advance, returns the seed and offset to draw from instead.
#[cold]
pub(crate) fn note_draw(seed: u64, offset: u64, words: u64) -> Option<(u64, u64)> {
    TAPE.with_borrow_mut(|tape| {
        let other = tape.replay.as_mut().and_then(|r| r.draw(words));
        if tape.open > 0 {
            let (seed, offset) = other.unwrap_or((seed, offset));
            tape.note(seed, offset, words);
        }
        other
    })
}

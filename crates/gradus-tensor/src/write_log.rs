//! [`WriteLog`]: the last write of every byte of a storage.
//!
//! **Invariant**: the log knows the version of each byte's last write, so the question "was it written after version
//! `v`?" has an exact answer as long as the last writes cover at most [`MANY`] places. If they cover more, entries are
//! joined in pairs: the bytes between two written ranges then count as written, and the earlier write counts as made at
//! the time of the later one. In doubt, the answer is "it was written". A check may therefore refuse a valid value, but
//! never accepts a stale one.

use std::ops::Range;
use std::panic::Location;

use gradus_backend::{MismatchLines, VersionMismatch};

use crate::footprint::Footprint;

/// The maximum number of entries of each kind: enough for a cache that is filled position by position. A write or a
/// check that visits all of them takes a few microseconds.
pub(crate) const MANY: usize = 8192;

/// One logged write.
#[derive(Debug, Clone)]
pub struct Write {
    /// The version of the storage after the write.
    pub version: u64,
    /// The range of bytes that the write may have changed, except those that later writes replaced.
    pub bytes: Range<usize>,
    /// The name of the operation that wrote.
    pub op: &'static str,
    /// The line of the user's code that called the operation.
    pub location: &'static Location<'static>,
    /// The epoch of the write (see `next_epoch`).
    pub(crate) epoch: u64,
    /// The latest epoch among the writes that this one replaced in the log; 0 if it replaced none.
    hidden: u64,
}

impl Write {
    pub(crate) fn new(
        version: u64,
        bytes: Range<usize>,
        op: &'static str,
        location: &'static Location<'static>,
        epoch: u64,
    ) -> Self {
        Write { version, bytes, op, location, epoch, hidden: 0 }
    }

    /// The details of the error for a stale value: `needed_by` needs the value at version `expected`, but this write
    /// came later.
    pub(crate) fn mismatch(
        &self,
        needed_by: &str,
        value: String,
        expected: u64,
        needed: &'static Location<'static>,
    ) -> VersionMismatch {
        VersionMismatch {
            needed_by: needed_by.to_owned(),
            value,
            written_by: self.op.to_owned(),
            expected,
            found: self.version,
            lines: MismatchLines { needed, written: self.location },
        }
    }

    /// Records that `other` is removed from the log because this write replaces it.
    fn hides(&mut self, other: &Write) {
        self.hidden = self.hidden.max(other.hidden).max(other.epoch);
    }
}

#[derive(Debug, Default)]
pub(crate) struct WriteLog {
    /// Writes to contiguous ranges, sorted by address and disjoint: a later write replaces the parts of earlier ones
    /// that it covers.
    dense: Vec<Write>,
    /// Writes whose elements are not adjacent, in no particular order. They may interleave with other writes.
    strided: Vec<(Write, Footprint)>,
}

impl WriteLog {
    /// Logs a write to `place` that is later than all logged ones. Repeated writes to the same place take up one entry.
    pub(crate) fn add(&mut self, mut write: Write, place: Footprint) {
        if write.bytes.is_empty() {
            return;
        }
        let (dense, bytes) = (place.is_dense(), write.bytes.clone());
        let mut i = 0;
        while let Some((old, at)) = self.strided.get(i) {
            let inside = bytes.start <= old.bytes.start && old.bytes.end <= bytes.end;
            if inside && (dense || *at == place) {
                write.hides(old);
                self.strided.swap_remove(i);
            } else {
                i += 1;
            }
        }
        if !dense {
            if self.strided.len() >= MANY {
                self.strided.sort_unstable_by_key(|(w, _)| w.version);
                join(&mut self.strided, |(old, at), (write, _)| {
                    *old = joined(old, write);
                    *at = Footprint::dense(old.bytes.clone());
                });
            }
            self.strided.push((write, place));
            return;
        }
        let Range { start, end } = self.meeting(&write.bytes);
        self.dense[start..end].iter().for_each(|old| write.hides(old));
        if let [old] = &mut self.dense[start..end]
            && write.bytes.start <= old.bytes.start
            && old.bytes.end <= write.bytes.end
        {
            *old = write;
            return;
        }
        let rest = |old: Option<&Write>, bytes: Range<usize>| {
            old.filter(|_| !bytes.is_empty()).map(|old| Write { bytes, ..old.clone() })
        };
        let (first, last) = (self.dense[start..end].first(), self.dense[start..end].last());
        let before = rest(first, first.map_or(0, |old| old.bytes.start)..write.bytes.start);
        let behind = rest(last, write.bytes.end..last.map_or(0, |old| old.bytes.end));
        self.dense.splice(start..end, before.into_iter().chain([write]).chain(behind));
        if self.dense.len() > MANY {
            join(&mut self.dense, |old, write| *old = joined(old, write));
        }
    }

    /// The indices of the dense entries that overlap `bytes`.
    fn meeting(&self, bytes: &Range<usize>) -> Range<usize> {
        let start = self.dense.partition_point(|w| w.bytes.end <= bytes.start);
        let met = self.dense[start..].iter().take_while(|w| w.bytes.start < bytes.end).count();
        start..start + met
    }

    /// The latest entry that satisfies `wanted` and may have changed a byte of `place`.
    fn latest(&self, place: &Footprint, wanted: impl Fn(&Write) -> bool) -> Option<&Write> {
        if place.bytes().is_empty() {
            return None;
        }
        let dense = self.dense[self.meeting(place.bytes())].iter();
        let dense = dense.filter(|w| wanted(w) && place.touches(&w.bytes)).max_by_key(|w| w.version);
        let mut latest = dense;
        for (write, at) in &self.strided {
            if latest.is_none_or(|w| w.version < write.version) && wanted(write) && at.meets(place) {
                latest = Some(write);
            }
        }
        latest
    }

    /// The latest write after `version` to a byte of `place`.
    pub(crate) fn after(&self, version: u64, place: &Footprint) -> Option<&Write> {
        self.latest(place, |w| w.version > version)
    }

    /// The latest write to a byte of `place` in `epoch` or later, up to version `last`.
    ///
    /// Such a write may have been replaced in the log by one that came after `last`. An entry only knows the latest
    /// epoch that it replaced: if that is `epoch` or later, the entry itself counts as such a write.
    pub(crate) fn since(&self, epoch: u64, last: u64, place: &Footprint) -> Option<&Write> {
        // Version 0 means that nothing has been written.
        if last == 0 {
            return None;
        }
        self.latest(place, |w| w.hidden >= epoch || (w.epoch >= epoch && w.version <= last))
    }
}

/// Joins two entries: the result spans both ranges and has the version of the later write.
fn joined(a: &Write, b: &Write) -> Write {
    let (older, newer) = if a.version < b.version { (a, b) } else { (b, a) };
    let mut one = Write { bytes: a.bytes.start.min(b.bytes.start)..a.bytes.end.max(b.bytes.end), ..newer.clone() };
    one.hides(older);
    one
}

/// Joins neighbouring entries in pairs. This halves their number, so the amortised cost for each write is constant.
fn join<T>(entries: &mut Vec<T>, one: impl Fn(&mut T, &T)) {
    let half = entries.len().div_ceil(2);
    for i in 0..half {
        let (head, tail) = entries.split_at_mut(2 * i + 1);
        if let (Some(a), Some(b)) = (head.last_mut(), tail.first()) {
            one(a, b);
        }
        entries.swap(i, 2 * i);
    }
    entries.truncate(half);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use gradus_backend::{Layout, Shape};

    use super::*;
    use crate::footprint::tests::numbers;

    const BYTES: usize = 240;

    /// A log, and a plain list of all writes to compare it with.
    #[derive(Default)]
    struct Pair {
        log: WriteLog,
        all: Vec<(Write, Vec<usize>)>,
    }

    impl Pair {
        fn add(&mut self, l: &Layout, epoch: u64) {
            let place = Footprint::new(l, 1);
            let write = Write::new(self.all.len() as u64 + 1, place.bytes().clone(), "op", Location::caller(), epoch);
            self.all.push((write.clone(), l.positions().collect()));
            self.log.add(write, place);
        }

        fn find(&self, l: &Layout, wanted: impl Fn(&Write) -> bool) -> Option<u64> {
            let at: Vec<usize> = l.positions().collect();
            let hits = self.all.iter().rev().filter(|(w, _)| wanted(w));
            hits.map(|(w, p)| (w.version, p)).find(|(_, p)| p.iter().any(|p| at.contains(p))).map(|f| f.0)
        }
    }

    /// A random range, or a random part of a matrix.
    fn part(next: &mut impl FnMut(usize) -> usize) -> Layout {
        let all = Layout::contiguous(Shape::new(&[BYTES]).unwrap());
        let within = |n: usize, next: &mut dyn FnMut(usize) -> usize| {
            let from = next(n);
            (from, from + 1 + next(n - from))
        };
        if next(3) > 0 {
            let (from, to) = within(BYTES, next);
            let to = if next(2) == 0 { to } else { to.min(from + 4) };
            return all.slice(0, from, to, 1).unwrap();
        }
        let width = [6, 8, 10][next(3)];
        let matrix = all.reshape(Shape::new(&[BYTES / width, width]).unwrap()).unwrap();
        let ((a, b), (c, d)) = (within(BYTES / width, next), within(width, next));
        matrix.slice(0, a, b, 1).unwrap().slice(1, c, d, 1 + next(3)).unwrap()
    }

    #[test]
    fn the_log_knows_the_last_write_of_every_byte() {
        let mut next = numbers(7);
        let (mut hits, mut doubts, mut asked) = (0, 0, 0);
        for _ in 0..60 {
            let (mut pair, mut epoch) = (Pair::default(), 0);
            for _ in 0..200 {
                epoch += next(2) as u64;
                pair.add(&part(&mut next), epoch);
                let (at, now) = (part(&mut next), pair.all.len());
                let (version, from) = (next(now + 1) as u64, 1 + next(epoch as usize + 1) as u64);
                let seen = Footprint::new(&at, 1);
                let found = pair.log.after(version, &seen).map(|w| w.version);
                assert_eq!(found, pair.find(&at, |w| w.version > version));
                let open = pair.log.since(from, u64::MAX, &seen).map(|w| w.version);
                assert_eq!(open.is_some(), pair.find(&at, |w| w.epoch >= from).is_some());
                // A write is found even if a later one replaced it; this may be a false alarm.
                let past = pair.log.since(from, version, &seen).is_some();
                let want = pair.find(&at, |w| w.epoch >= from && w.version <= version).is_some();
                assert!(past || !want);
                (hits, doubts, asked) = (hits + usize::from(want), doubts + usize::from(past && !want), asked + 1);
            }
            let dense = &pair.log.dense;
            assert!(dense.windows(2).all(|w| w[0].bytes.end <= w[1].bytes.start && !w[0].bytes.is_empty()));
        }
        assert!(hits * 10 > asked && hits * 10 < 9 * asked && doubts * 2 < asked, "{hits} {doubts} {asked}");
    }

    #[test]
    fn one_place_written_over_and_over_is_one_entry() {
        let mut pair = Pair::default();
        let whole = Layout::contiguous(Shape::new(&[8, 8]).unwrap());
        let column = whole.slice(1, 2, 3, 1).unwrap();
        for epoch in 0..50 {
            pair.add(&column, epoch);
        }
        assert_eq!((pair.log.dense.len(), pair.log.strided.len()), (0, 1));
        for epoch in 50..100 {
            pair.add(&whole, epoch);
            assert_eq!((pair.log.dense.len(), pair.log.strided.len()), (1, 0));
        }
        assert_eq!(pair.log.dense.capacity(), 4, "memory is taken once");
        // A write in the middle leaves two remainders.
        pair.add(&whole.slice(0, 3, 5, 1).unwrap(), 100);
        let ranges: Vec<_> = pair.log.dense.iter().map(|w| (w.bytes.clone(), w.version)).collect();
        assert_eq!(ranges, [(0..24, 100), (24..40, 101), (40..64, 100)]);
    }

    #[test]
    fn too_many_places_are_joined_and_nothing_is_forgotten() {
        let rows = Layout::contiguous(Shape::new(&[4 * MANY, 2]).unwrap());
        let at = |i: usize| rows.slice(0, i, i + 1, 1).unwrap();
        let mut pair = Pair::default();
        // Writes to the even rows, from last to first.
        for i in (0..2 * MANY).rev() {
            pair.add(&at(2 * i), 1);
            assert!(pair.log.dense.len() <= MANY);
        }
        let now = 2 * MANY as u64;
        let last = |i: usize, version| pair.log.after(version, &Footprint::new(&at(i), 1)).map(|w| w.version);
        for i in 0..2 * MANY {
            let version = now - i as u64;
            let found = last(2 * i, 0).unwrap();
            assert!(found >= version && last(2 * i, version - 1) == Some(found), "{i}: {found} {version}");
            assert_eq!(last(2 * i, now), None);
        }
        // The first rows still have an entry each. Elsewhere, the rows between joined entries count as written.
        assert_eq!((last(0, now - 1), last(1, 0)), (Some(now), None));
        assert!((0..2 * MANY).any(|i| last(2 * i + 1, 0).is_some()));
        let mut pair = Pair::default();
        let matrix = Layout::contiguous(Shape::new(&[2, 2 * MANY]).unwrap());
        for i in 0..2 * MANY {
            pair.add(&matrix.slice(1, i, i + 1, 1).unwrap(), 1);
        }
        assert!(pair.log.strided.len() <= MANY);
        let column = |i| Footprint::new(&matrix.slice(1, i, i + 1, 1).unwrap(), 1);
        assert!((0..2 * MANY).step_by(61).all(|i| pair.log.after(i as u64, &column(i)).is_some()));
        assert!(pair.log.after(2 * MANY as u64 - 1, &column(2 * MANY - 1)).is_some());
        assert!(pair.log.after(2 * MANY as u64 - 2, &column(2 * MANY - 3)).is_none());
    }
}

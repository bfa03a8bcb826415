//! The collectives, on bytes.
//!
//! Small tensors travel with the description of the call: one exchange, then every rank reduces for itself. Large ones
//! are cut into as many parts as there are ranks. Each rank reduces its part, a segment at a time, and sends the result
//! to all. Both orders of reduction are that of [`tree`], so they give the same bits.

use std::ops::Range;

use gradus_tensor::backend::Element;
use gradus_tensor::{DType, Result};

use crate::call::{Call, Collective};
use crate::engine::Until;
use crate::group::{Group, INLINE, State, Talk};
use crate::reduce::{Reduce, tree};

/// The bytes that each rank sends to each other at once, so that what arrives is reduced while it is in the cache.
const SEGMENT: usize = 512 << 10;

/// How many segments a rank sends to each other before it has received as many. A rank that is behind then finds the
/// bytes of the others there, and need not wait for each of them in turn.
const AHEAD: usize = 16;

/// The elements of part `i` of `n`, as bytes.
pub(crate) fn part(bytes: usize, dtype: DType, i: usize, n: usize) -> Range<usize> {
    let elements = bytes / dtype.size();
    let at = |i: usize| elements * i / n * dtype.size();
    at(i)..at(i + 1)
}

impl Group {
    /// Makes a call. `input` is what this rank gives, unless that lies in `output`; `output` receives the result.
    ///
    /// # Safety
    /// If it fails with an error of the kind `Peer`, the memory of `input` and `output` is never freed: the engine, or
    /// another rank, may still be at work on it.
    pub(crate) unsafe fn transfer(&self, call: &Call, input: &[u8], output: &mut [u8]) -> Result<()> {
        let mut state = self.lock();
        let state = &mut *state;
        let talk = self.begin(call, state)?;
        let made = match call.collective {
            Collective::AllReduce(reduce) => talk.all_reduce(state, reduce, output),
            Collective::ReduceScatter(reduce) => talk.reduce_scatter(state, reduce, input, output),
            Collective::AllGather => talk.all_gather(state, input, output),
            Collective::Broadcast(root) => talk.broadcast(state, root, output),
            Collective::AllToAll => talk.all_to_all(state, input, output),
            Collective::Send(to) => talk.send(state, input, to),
            Collective::Receive(from) => talk.receive(state, output, from),
            Collective::Barrier | Collective::Split => talk.compare(state, &[]).map(drop),
        };
        Group::made(state, made)
    }

    /// Gathers three numbers of each rank.
    pub(crate) fn gather(&self, call: &Call, mine: [i64; 3]) -> Result<Vec<[i64; 3]>> {
        let mut state = self.lock();
        let talk = self.begin(call, &mut state)?;
        let others = talk
            .compare(&mut state, i64::as_bytes(&mine))
            .map(|others| others.iter().filter_map(|bytes| i64::from_bytes(bytes).try_into().ok()).collect());
        let mut all: Vec<[i64; 3]> = Group::made(&mut state, others)?;
        all.insert(self.rank, mine);
        Ok(all)
    }
}

impl Talk<'_> {
    /// The ranks other than this one.
    fn others(&self) -> impl Iterator<Item = usize> + use<'_> {
        let me = self.group.rank;
        (0..self.group.size()).filter(move |&rank| rank != me)
    }

    fn all_reduce(&self, state: &mut State, reduce: Reduce, data: &mut [u8]) -> Result<()> {
        let dtype = self.call.dtype;
        if data.len() <= INLINE {
            let pieces = self.compare(state, data)?;
            return self.reduce_own(reduce, pieces, data);
        }
        self.compare(state, &[])?;
        let (n, me) = (self.group.size(), self.group.rank);
        let mine = part(data.len(), dtype, me, n);
        self.reduce_parts(state, reduce, data, me)?;
        self.spread(state, data, mine, |rank, len| part(len, dtype, rank, n))
    }

    /// Reduces the pieces of the others, in the order of ranks, and this rank's `data` into `data`.
    fn reduce_own<'a>(&self, reduce: Reduce, mut pieces: Vec<&'a mut [u8]>, data: &'a mut [u8]) -> Result<()> {
        let me = self.group.rank;
        pieces.insert(me, data);
        tree(reduce, self.call.dtype, &mut pieces)?;
        if me > 0 {
            let (first, rest) = pieces.split_at_mut(1);
            rest[me - 1].copy_from_slice(first[0]);
        }
        Ok(())
    }

    /// Reduces part `me` of the data of all ranks into that part of `data`, while the other ranks reduce theirs.
    fn reduce_parts(&self, state: &mut State, reduce: Reduce, data: &mut [u8], me: usize) -> Result<()> {
        let (n, dtype, len) = (self.group.size(), self.call.dtype, data.len());
        let mine = part(len, dtype, me, n);
        let (before, rest) = data.split_at_mut(mine.start);
        let (own, after) = rest.split_at_mut(mine.len());
        let of = |rank: usize| {
            let Range { start, end } = part(len, dtype, rank, n);
            if rank < me { &before[start..end] } else { &after[start - mine.end..end - mine.end] }
        };
        self.reduce_segments(state, reduce, of, own)
    }

    /// Reduces `own` and what the other ranks give for it into `own`. `of(rank)` is what this rank gives to another one.
    fn reduce_segments<'d>(
        &self,
        state: &mut State,
        reduce: Reduce,
        of: impl Fn(usize) -> &'d [u8],
        own: &mut [u8],
    ) -> Result<()> {
        let cut = |bytes: usize, i: usize| (i * SEGMENT).min(bytes)..((i + 1) * SEGMENT).min(bytes);
        let longest = self.others().map(|rank| of(rank).len()).max().unwrap_or(0).max(own.len());
        let segments = longest.div_ceil(SEGMENT);
        let State { scratch, heard, .. } = state;
        scratch.resize(SEGMENT / 8 * (self.group.size() - 1), 0);
        let mut sent = 0;
        for i in 0..segments {
            let ahead = sent..(i + AHEAD).min(segments);
            sent = ahead.end;
            let outgoing: Vec<(usize, &[u8])> = ahead
                .flat_map(|j| self.others().map(move |rank| (rank, j)))
                .map(|(rank, j)| (rank, &of(rank)[cut(of(rank).len(), j)]))
                .collect();
            let mine = cut(own.len(), i);
            let Some(bytes) = u64::as_bytes_mut(scratch) else { continue };
            let mut rooms: Vec<&mut [u8]> = bytes.chunks_mut(SEGMENT).map(|room| &mut room[..mine.len()]).collect();
            let incoming = self.others().zip(rooms.iter_mut().map(|room| &mut room[..])).collect();
            let until = if i + 1 == segments { Until::Done } else { Until::Received };
            self.exchange(true, until, &outgoing, incoming, heard)?;
            // What was sent may still be on its way, so the memory must not be freed.
            self.reduce_own(reduce, rooms, &mut own[mine]).map_err(|e| self.fail(e.message()))?;
        }
        Ok(())
    }

    /// Sends the bytes `mine` of `data` to all, and receives the bytes that `of(rank, len)` says from each rank.
    fn spread(
        &self,
        state: &mut State,
        data: &mut [u8],
        mine: Range<usize>,
        of: impl Fn(usize, usize) -> Range<usize>,
    ) -> Result<()> {
        let len = data.len();
        let (before, rest) = data.split_at_mut(mine.start);
        let (own, after) = rest.split_at_mut(mine.len());
        let mut incoming = Vec::new();
        let (mut before, mut after, mut at, end) = (before, after, 0, mine.end);
        let mut after_at = end;
        for rank in self.others() {
            let range = of(rank, len);
            let (room, from) =
                if range.end <= mine.start { (&mut before, &mut at) } else { (&mut after, &mut after_at) };
            let (piece, rest) = std::mem::take(room).split_at_mut(range.len());
            *room = rest;
            debug_assert_eq!(*from, range.start);
            *from = range.end;
            incoming.push((rank, piece));
        }
        let outgoing: Vec<(usize, &[u8])> = self.others().map(|rank| (rank, &*own)).collect();
        self.exchange(true, Until::Done, &outgoing, incoming, &state.heard)
    }

    fn reduce_scatter(&self, state: &mut State, reduce: Reduce, input: &[u8], output: &mut [u8]) -> Result<()> {
        self.compare(state, &[])?;
        let (me, len) = (self.group.rank, output.len());
        let of = |rank: usize| &input[rank * len..(rank + 1) * len];
        output.copy_from_slice(of(me));
        self.reduce_segments(state, reduce, of, output)
    }

    fn all_gather(&self, state: &mut State, input: &[u8], output: &mut [u8]) -> Result<()> {
        let len = input.len();
        let of = |rank: usize| rank * len..(rank + 1) * len;
        output[of(self.group.rank)].copy_from_slice(input);
        if len > INLINE {
            self.compare(state, &[])?;
            return self.spread(state, output, of(self.group.rank), |rank, _| of(rank));
        }
        let pieces = self.compare(state, input)?;
        self.others().zip(pieces).for_each(|(rank, piece)| output[of(rank)].copy_from_slice(piece));
        Ok(())
    }

    fn broadcast(&self, state: &mut State, root: usize, data: &mut [u8]) -> Result<()> {
        let (n, me, dtype, len) = (self.group.size(), self.group.rank, self.call.dtype, data.len());
        if len <= INLINE {
            let at = self.others().position(|rank| rank == root);
            let pieces = self.compare(state, data)?;
            if let Some(at) = at {
                data.copy_from_slice(pieces[at]);
            }
            return Ok(());
        }
        self.compare(state, &[])?;
        // The root gives each rank its part, and each rank gives its part to all.
        let mine = part(len, dtype, me, n);
        if me == root {
            let outgoing: Vec<(usize, &[u8])> =
                self.others().map(|rank| (rank, &data[part(len, dtype, rank, n)])).collect();
            self.exchange(true, Until::Done, &outgoing, vec![], &state.heard)?;
        } else {
            self.exchange(true, Until::Done, &[], vec![(root, &mut data[mine.clone()])], &state.heard)?;
        }
        self.spread(state, data, mine, |rank, len| part(len, dtype, rank, n))
    }

    fn all_to_all(&self, state: &mut State, input: &[u8], output: &mut [u8]) -> Result<()> {
        self.compare(state, &[])?;
        let (n, me) = (self.group.size(), self.group.rank);
        let len = input.len() / n;
        let of = |rank: usize| rank * len..(rank + 1) * len;
        output[of(me)].copy_from_slice(&input[of(me)]);
        if len == 0 {
            return Ok(());
        }
        let outgoing: Vec<(usize, &[u8])> = self.others().map(|rank| (rank, &input[of(rank)])).collect();
        let rooms = output.chunks_mut(len).enumerate().filter(|(rank, _)| *rank != me);
        self.exchange(true, Until::Done, &outgoing, rooms.collect(), &state.heard)
    }

    fn send(&self, state: &mut State, input: &[u8], to: usize) -> Result<()> {
        if input.len() <= INLINE {
            return self.compare(state, input).map(drop);
        }
        self.compare(state, &[])?;
        self.exchange(true, Until::Done, &[(to, input)], vec![], &state.heard)
    }

    fn receive(&self, state: &mut State, output: &mut [u8], from: usize) -> Result<()> {
        if output.len() <= INLINE {
            let pieces = self.compare(state, output)?;
            pieces.iter().for_each(|piece| output.copy_from_slice(piece));
            return Ok(());
        }
        self.compare(state, &[])?;
        self.exchange(true, Until::Done, &[], vec![(from, output)], &state.heard)
    }
}

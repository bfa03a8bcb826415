//! [`Call`]: what a rank asks of the others. Ranks compare their calls before any data moves.

use std::fmt;
use std::panic::Location;

use gradus_tensor::{DType, Shape};

use crate::reduce::Reduce;

/// What is done with the tensors of all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Collective {
    /// Every rank receives the element-wise sum (or another reduction) of all tensors.
    AllReduce(Reduce),
    /// Rank `r` receives the `r`-th part along axis 0 of what `AllReduce` gives.
    ReduceScatter(Reduce),
    /// Every rank receives all tensors, joined along axis 0 in the order of ranks.
    AllGather,
    /// Every rank receives the tensor of this rank.
    Broadcast(usize),
    /// Rank `r` receives the `r`-th part along axis 0 of every rank's tensor, joined in the order of ranks.
    AllToAll,
    /// This rank receives the tensor of the caller.
    Send(usize),
    /// The caller receives the tensor of this rank.
    Receive(usize),
    /// Nothing moves; no rank returns before all have come.
    Barrier,
    /// Ranks that give the same colour form a new communicator.
    Split,
}

impl Collective {
    /// The name of the method.
    pub fn name(&self) -> &'static str {
        match self {
            Collective::AllReduce(_) => "all_reduce",
            Collective::ReduceScatter(_) => "reduce_scatter",
            Collective::AllGather => "all_gather",
            Collective::Broadcast(_) => "broadcast",
            Collective::AllToAll => "all_to_all",
            Collective::Send(_) => "send",
            Collective::Receive(_) => "receive",
            Collective::Barrier => "barrier",
            Collective::Split => "split",
        }
    }

    /// A code for the kind, one for the reduction, and the rank that it names. Calls of ranks that fit together have
    /// the same three numbers.
    fn codes(&self) -> [u8; 2] {
        match *self {
            Collective::AllReduce(reduce) => [0, reduce as u8],
            Collective::ReduceScatter(reduce) => [1, reduce as u8],
            Collective::AllGather => [2, 0],
            Collective::Broadcast(_) => [3, 0],
            Collective::AllToAll => [4, 0],
            Collective::Send(_) => [5, 0],
            Collective::Receive(_) => [6, 0],
            Collective::Barrier => [7, 0],
            Collective::Split => [8, 0],
        }
    }

    fn peer(&self) -> usize {
        match *self {
            Collective::Broadcast(rank) | Collective::Send(rank) | Collective::Receive(rank) => rank,
            _ => 0,
        }
    }

    fn from_codes([kind, reduce]: [u8; 2], peer: usize) -> Option<Collective> {
        let reduce = Reduce::ALL.get(reduce as usize).copied()?;
        Some(match kind {
            0 => Collective::AllReduce(reduce),
            1 => Collective::ReduceScatter(reduce),
            2 => Collective::AllGather,
            3 => Collective::Broadcast(peer),
            4 => Collective::AllToAll,
            5 => Collective::Send(peer),
            6 => Collective::Receive(peer),
            7 => Collective::Barrier,
            8 => Collective::Split,
            _ => return None,
        })
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Collective::AllReduce(reduce) | Collective::ReduceScatter(reduce) => {
                write!(f, "{}({})", self.name(), reduce.name())
            }
            Collective::Broadcast(rank) => write!(f, "broadcast from {rank}"),
            Collective::Send(rank) => write!(f, "send to {rank}"),
            Collective::Receive(rank) => write!(f, "receive from {rank}"),
            _ => f.write_str(self.name()),
        }
    }
}

/// One call of one rank: what it asks for, of which tensor, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// What is done.
    pub collective: Collective,
    /// The dtype of the rank's tensor.
    pub dtype: DType,
    /// The shape of the rank's tensor.
    pub shape: Shape,
    /// The line of the caller.
    pub line: &'static Location<'static>,
}

/// A [`Call`] as it came from a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    /// The number of the call, counted from 1 by the communicator; `send` and `receive` have that of the call before.
    pub(crate) number: u64,
    pub(crate) collective: Collective,
    pub(crate) dtype: DType,
    pub(crate) shape: Shape,
    pub(crate) line: String,
}

/// A call, encoded, is at most this long.
pub(crate) const HEAD: usize = 256;
const FILE: usize = HEAD - 26 - 8 * 8;

impl Call {
    /// Appends the call to `bytes`, padded to a multiple of 8.
    pub(crate) fn encode(&self, number: u64, bytes: &mut Vec<u8>) {
        let start = bytes.len();
        let file = self.line.file();
        let tail = &file.as_bytes()[file.len().saturating_sub(FILE)..];
        bytes.extend(number.to_le_bytes());
        bytes.extend((self.collective.peer() as u32).to_le_bytes());
        bytes.extend(self.line.line().to_le_bytes());
        bytes.extend(self.line.column().to_le_bytes());
        bytes.extend(self.collective.codes());
        bytes.extend([self.dtype as u8, self.shape.len() as u8]);
        bytes.extend((tail.len() as u16).to_le_bytes());
        self.shape.iter().for_each(|&n| bytes.extend((n as u64).to_le_bytes()));
        bytes.extend(tail);
        bytes.resize(start + (bytes.len() - start).next_multiple_of(8), 0);
    }

    /// Whether the other rank's call belongs to this one, number `number`. A pair of `send` and `receive` does if each
    /// names the rank of the other.
    pub(crate) fn fits(&self, number: u64, rank: usize, other: &Seen, other_rank: usize) -> bool {
        let same = self.dtype == other.dtype && self.shape == other.shape;
        same && match (self.collective, other.collective) {
            (Collective::Send(to), Collective::Receive(from)) | (Collective::Receive(from), Collective::Send(to)) => {
                let sends = matches!(self.collective, Collective::Send(_));
                let (sender, receiver) = if sends { (rank, other_rank) } else { (other_rank, rank) };
                (sender, receiver) == (from, to)
            }
            (mine, theirs) => mine == theirs && number == other.number,
        }
    }

    /// The call as another rank sees it.
    pub(crate) fn seen(&self, number: u64) -> Seen {
        let line = format!("{}:{}:{}", self.line.file(), self.line.line(), self.line.column());
        Seen { number, collective: self.collective, dtype: self.dtype, shape: self.shape, line }
    }
}

impl Seen {
    /// Decodes what [`Call::encode`] wrote. Also returns its length. `None` if the bytes are of another version.
    pub(crate) fn decode(bytes: &[u8]) -> Option<(Seen, usize)> {
        let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let long = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let (number, peer, line, column) = (long(0)?, word(8)?, word(12)?, word(16)?);
        let [kind, reduce, dtype, rank] = *bytes.get(20..24)?.first_chunk()?;
        let length = usize::from(u16::from_le_bytes(*bytes.get(24..26)?.first_chunk()?));
        let dims: Option<Vec<usize>> = (0..usize::from(rank)).map(|i| long(26 + 8 * i).map(|n| n as usize)).collect();
        let at = 26 + 8 * usize::from(rank);
        let file = String::from_utf8_lossy(bytes.get(at..at + length)?);
        let seen = Seen {
            number,
            collective: Collective::from_codes([kind, reduce], peer as usize)?,
            dtype: *DType::ALL.get(usize::from(dtype))?,
            shape: Shape::new(&dims?).ok()?,
            line: format!("{file}:{line}:{column}"),
        };
        Some((seen, (at + length).next_multiple_of(8)))
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.collective {
            Collective::Send(_) | Collective::Receive(_) => {
                write!(f, "{} after call {}", self.collective, self.number)?
            }
            _ => write!(f, "call {}, {}", self.number, self.collective)?,
        }
        if !matches!(self.collective, Collective::Barrier | Collective::Split) {
            write!(f, ", {} {}", self.shape, self.dtype)?;
        }
        write!(f, ", at {}", self.line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_arrives_as_it_was_sent() {
        for collective in [Collective::AllReduce(Reduce::Max), Collective::Broadcast(3), Collective::Split] {
            let shape = Shape::new(&[2, 0, 7]).unwrap();
            let call = Call { collective, dtype: DType::BF16, shape, line: Location::caller() };
            let mut bytes = vec![];
            call.encode(9, &mut bytes);
            assert!(bytes.len() <= HEAD && bytes.len() % 8 == 0);
            assert_eq!(Seen::decode(&bytes), Some((call.seen(9), bytes.len())));
            assert!(call.fits(9, 0, &call.seen(9), 1) && !call.fits(9, 0, &call.seen(10), 1));
            assert_eq!(Seen::decode(&bytes[..20]), None);
        }
    }
}

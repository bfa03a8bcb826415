//! Compact code: what a kernel is turned into when its module is parsed.
//!
//! A register of at most 32 bits is a row of 32 words, one for each lane of a warp; a 64-bit register is two rows. A
//! predicate is one word with a bit for each lane.

use crate::num::Mode;
use crate::parse::Type;
use crate::variable::Space;

/// A 32-bit register of all lanes.
pub(crate) type V = [u32; 32];
/// A 64-bit register of all lanes.
pub(crate) type W = [u64; 32];

/// What an operand reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Src {
    /// A register of at most 32 bits.
    Row(u32),
    /// A 64-bit register.
    Wide(u32),
    /// A constant by its index.
    Const(u32),
}

/// Where a result goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dst {
    /// Nowhere: `_`.
    None,
    /// A 16-bit register; the upper half of its words is zero.
    Half(u32),
    Row(u32),
    Wide(u32),
}

/// A predicate, and whether it is negated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pred {
    pub(crate) at: u32,
    pub(crate) negated: bool,
}

/// The predicate that is always true. Its number is 0.
pub(crate) const ALWAYS: Pred = Pred { at: 0, negated: false };

/// How a comparison is combined with a predicate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Combine {
    And,
    Or,
    Xor,
}

/// A comparison of all lanes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Compare {
    V(fn(&V, &V) -> u32),
    W(fn(&W, &W) -> u32),
}

/// A special register.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Special {
    Tid(u8),
    Ntid(u8),
    Ctaid(u8),
    Nctaid(u8),
    Lane,
    Warp,
    Warps,
    Zero,
    Ones,
    LaneMask(fn(u32) -> u32),
    Clock,
    SharedBytes { dynamic: bool },
}

/// The place of an access before the offset is added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Window {
    Generic,
    Global,
    Shared,
    Local,
    Param,
}

impl From<Space> for Window {
    fn from(space: Space) -> Self {
        match space {
            Space::Global | Space::Const => Self::Global,
            Space::Shared => Self::Shared,
            Space::Local => Self::Local,
            Space::Param => Self::Param,
        }
    }
}

/// Where generic addresses of a space begin.
pub(crate) fn base(window: Window) -> u64 {
    match window {
        Window::Generic | Window::Global => 0,
        Window::Shared => 0x7000_0000_0000,
        Window::Local => 0x7100_0000_0000,
        Window::Param => 0x7200_0000_0000,
    }
}

/// The size of every window.
pub(crate) const WINDOW: u64 = 1 << 32;

/// An address: an operand and an offset.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Address {
    pub(crate) window: Window,
    pub(crate) base: Src,
    pub(crate) offset: i64,
}

/// A load.
#[derive(Debug, Clone)]
pub(crate) struct Load {
    pub(crate) address: Address,
    /// The bytes of an element: 1, 2, 4 or 8.
    pub(crate) size: u32,
    pub(crate) signed: bool,
    /// Volatile, relaxed or acquire: ordered among its like.
    pub(crate) strong: bool,
    pub(crate) to: Vec<Dst>,
}

/// A store.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    pub(crate) address: Address,
    pub(crate) size: u32,
    pub(crate) strong: bool,
    pub(crate) from: Vec<Src>,
}

/// What an atomic operation computes from the old value and its operands.
pub(crate) type Update = fn(old: u64, b: u64, c: u64) -> u64;

/// An atomic operation.
#[derive(Debug, Clone)]
pub(crate) struct Atomic {
    pub(crate) address: Address,
    pub(crate) size: u32,
    pub(crate) update: Update,
    pub(crate) to: Dst,
    pub(crate) b: Src,
    pub(crate) c: Src,
}

/// A block-wide barrier.
#[derive(Debug, Clone)]
pub(crate) struct Barrier {
    pub(crate) id: Src,
    /// How many threads take part; none: all of the block.
    pub(crate) count: Option<Src>,
    /// Whether the thread waits.
    pub(crate) waits: bool,
    pub(crate) reduce: Option<(BarrierReduce, Pred)>,
}

/// What a barrier computes from a predicate of all threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BarrierReduce {
    Count(Dst),
    And(u32),
    Or(u32),
}

/// How a shuffle finds its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shuffle {
    Up,
    Down,
    Butterfly,
    Index,
}

/// What a vote computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Vote {
    All(u32),
    Any(u32),
    Uniform(u32),
    Ballot(Dst),
}

/// The formats of a matrix instruction's factors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Factor {
    F16,
    BF16,
    TF32,
}

/// `mma.sync` of 16 x `k` by `k` x 8.
#[derive(Debug, Clone)]
pub(crate) struct Matrix {
    pub(crate) factor: Factor,
    pub(crate) k: usize,
    /// Whether sums are f16, packed in pairs.
    pub(crate) half_in: bool,
    pub(crate) half_out: bool,
    pub(crate) d: Vec<Dst>,
    pub(crate) a: Vec<Src>,
    pub(crate) b: Vec<Src>,
    pub(crate) c: Vec<Src>,
}

/// `cp.async` of `size` bytes; bytes from `source_size` on are zero.
#[derive(Debug, Clone)]
pub(crate) struct CopyAsync {
    pub(crate) to: Address,
    pub(crate) from: Address,
    pub(crate) size: u32,
    pub(crate) source_size: Option<Src>,
}

/// A conversion that has no code of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Convert {
    pub(crate) from: Type,
    pub(crate) to: Type,
    /// How the result is rounded.
    pub(crate) mode: Mode,
    /// How a number is rounded to a whole one.
    pub(crate) whole: Option<Mode>,
    pub(crate) ftz: bool,
    pub(crate) sat: bool,
    pub(crate) relu: bool,
}

/// What an instruction does.
#[derive(Debug, Clone)]
pub(crate) enum Op {
    Alu {
        run: fn(&V, &V, &V) -> V,
        d: u32,
        from: [Src; 3],
    },
    AluWide {
        run: fn(&W, &W, &W, &W) -> W,
        d: Dst,
        from: [Src; 4],
    },
    Move {
        d: u32,
        a: Src,
    },
    MoveWide {
        d: Dst,
        a: Src,
    },
    Special {
        d: Dst,
        which: Special,
    },
    Select {
        d: Dst,
        a: Src,
        b: Src,
        p: Pred,
    },
    Compare {
        run: Compare,
        from: [Src; 2],
        combine: Combine,
        with: Pred,
        p: u32,
        q: u32,
    },
    /// A comparison that gives a number: `yes` where it holds and 0 elsewhere.
    CompareTo {
        run: Compare,
        from: [Src; 2],
        combine: Combine,
        with: Pred,
        d: Dst,
        yes: u32,
    },
    /// Two comparisons of halves.
    CompareHalves {
        low: fn(&V, &V) -> u32,
        high: fn(&V, &V) -> u32,
        from: [Src; 2],
        combine: Combine,
        with: Pred,
        p: u32,
        q: u32,
    },
    Logic {
        run: fn(u32, u32) -> u32,
        d: u32,
        a: Pred,
        b: Pred,
    },
    /// `add.cc` and its like: `run` gives the result and the carry from the operands and a carry.
    Carry {
        run: fn(u64, u64, u64, u64) -> (u64, u64),
        d: Dst,
        from: [Src; 3],
        reads: bool,
        writes: bool,
    },
    Convert {
        spec: Convert,
        d: Dst,
        a: Src,
        b: Option<Src>,
    },
    Pack {
        d: Dst,
        from: Vec<Src>,
        bits: u32,
    },
    Unpack {
        d: Vec<Dst>,
        from: Src,
        bits: u32,
    },
    IsSpace {
        p: u32,
        a: Src,
        window: Window,
    },
    Load(Box<Load>),
    Store(Box<Store>),
    Atomic(Box<Atomic>),
    CopyAsync(Box<CopyAsync>),
    CopyCommit,
    /// Waits until at most this many groups are pending.
    CopyWait(u32),
    LoadMatrix {
        address: Address,
        to: Vec<Dst>,
        transposed: bool,
    },
    Matrix(Box<Matrix>),
    Branch {
        to: u32,
    },
    BranchIndex {
        index: Src,
        to: Vec<u32>,
    },
    Exit,
    Trap,
    Fence,
    Barrier(Box<Barrier>),
    WarpBarrier {
        mask: Src,
    },
    Shuffle {
        kind: Shuffle,
        d: Dst,
        p: u32,
        a: Src,
        b: Src,
        clamp: Src,
        mask: Src,
    },
    Vote {
        kind: Vote,
        p: Pred,
        mask: Src,
    },
    ActiveMask {
        d: Dst,
    },
    Match {
        all: bool,
        d: Dst,
        p: u32,
        a: Src,
        mask: Src,
    },
    Reduce {
        run: fn(u32, u32) -> u32,
        d: Dst,
        a: Src,
        mask: Src,
    },
    /// `vprintf`: the format, the arguments, and where the result goes, all in parameters.
    Print {
        format: u64,
        arguments: u64,
        result: Option<u64>,
    },
    AssertFail {
        message: u64,
        file: u64,
        line: u64,
    },
}

/// An instruction with its guard.
#[derive(Debug, Clone)]
pub(crate) struct Inst {
    pub(crate) guard: Pred,
    pub(crate) op: Op,
}

/// Where an instruction comes from.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Place {
    /// The line of the PTX.
    pub(crate) line: u32,
    /// The file's number and the line of the source.
    pub(crate) source: (u32, u32),
}

/// A constant that is known when a kernel is launched.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Late {
    pub(crate) constant: u32,
    pub(crate) variable: usize,
    pub(crate) plus: i64,
}

/// A kernel's code.
#[derive(Debug, Clone, Default)]
pub(crate) struct Code {
    pub(crate) insts: Vec<Inst>,
    pub(crate) places: Vec<Place>,
    /// For each instruction, whether its accesses are ordered among their like.
    pub(crate) strong: Vec<bool>,
    pub(crate) rows: u32,
    pub(crate) preds: u32,
    pub(crate) constants: Vec<u64>,
    pub(crate) late: Vec<Late>,
    /// The places of variables in a thread's memory: offset and size.
    pub(crate) local: Vec<(u64, u64)>,
    /// The places of variables in a block's memory: offset and size.
    pub(crate) shared: Vec<(u64, u64)>,
    /// Where dynamic shared memory begins.
    pub(crate) dynamic: u64,
}

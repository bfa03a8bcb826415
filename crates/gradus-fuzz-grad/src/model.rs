//! The reference's state while a program runs: the storages, the tensors (each a list of positions in a storage), the
//! recorded operations and the hooks.

use std::rc::Rc;

use gradus_tensor::Generator;

use crate::program::{Slot, Statement};
use crate::scalar::{Bend, Id, Tape};

/// The numbers that tensors are stored in, and the times at which they were written.
#[derive(Clone)]
pub(crate) struct Storage {
    pub(crate) numbers: Vec<f64>,
    /// When each number was last written.
    pub(crate) written: Vec<u32>,
    /// When each number was last covered by a logged write. A write by an index or a mask is logged for more numbers
    /// than it changes.
    pub(crate) logged: Vec<u32>,
}

/// How a tensor depends on leaves.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Origin {
    Leaf,
    ViewOfLeaf,
    Computed,
}

/// A tensor.
#[derive(Clone)]
pub(crate) struct Handle {
    pub(crate) shape: Vec<usize>,
    pub(crate) storage: usize,
    pub(crate) at: Rc<[usize]>,
    /// Its values on the tape; `None` if the tensor is a constant.
    pub(crate) ids: Option<Vec<Id>>,
    /// The time at which it was created.
    pub(crate) stamp: u32,
    /// Whether the library reports that it requires a gradient.
    pub(crate) tracked: bool,
    pub(crate) origin: Origin,
    pub(crate) node: Option<usize>,
}

/// An operand or a result of an operation, which its gradient may need.
#[derive(Clone)]
pub(crate) struct Read {
    pub(crate) storage: usize,
    pub(crate) at: Rc<[usize]>,
    pub(crate) stamp: u32,
    pub(crate) need: Need,
    pub(crate) guard: Guard,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Freed {
    No,
    Maybe,
    Yes,
}

/// A recorded operation.
#[derive(Clone)]
pub(crate) struct Recorded {
    pub(crate) inputs: Vec<usize>,
    pub(crate) reads: Vec<Read>,
    pub(crate) outputs: Vec<Id>,
    pub(crate) kind: Kind,
    pub(crate) freed: Freed,
    /// Whether its gradient is computed from its output.
    pub(crate) by_output: bool,
    /// Whether it is a custom operation, whose gradient may read anything.
    pub(crate) custom: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    Leaf,
    /// A gradient that arrives here is certainly passed on to all inputs that need one.
    Operation,
    /// A checkpointed region. A gradient that arrives here may reach only some of its inputs.
    Region,
    /// One node that stands for all nodes recorded by a pass.
    Pass,
}

/// The expected outcome of a statement.
pub(crate) enum Outcome {
    /// Operands are missing or do not fit: the statement is skipped.
    Skip,
    /// An error whose message contains this.
    Refuse(&'static str),
    /// The tensors are defined. If `may_refuse`, the library may return an error instead, because the statement uses an
    /// overwritten tensor or writes over a value that a graph may need.
    Done { may_refuse: bool },
    /// The region ran with this body. If `refuse`, it wrote into memory that outlives it, which must be an error.
    Region { body: Vec<Statement>, refuse: bool, may_refuse: bool },
}

/// A checkpointed region in progress.
#[derive(Clone)]
pub(crate) struct Region {
    /// Storages from this number on were created inside the region.
    pub(crate) storages: usize,
    pub(crate) nodes: usize,
    pub(crate) reads: Vec<Read>,
    pub(crate) inputs: Vec<usize>,
    pub(crate) outlived: bool,
}

/// The state in the middle of a program.
#[derive(Clone)]
pub(crate) struct Reference {
    pub(crate) tape: Tape,
    pub(crate) storages: Vec<Storage>,
    pub(crate) handles: Vec<Option<Handle>>,
    pub(crate) nodes: Vec<Recorded>,
    pub(crate) hooks: Vec<Hooked>,
    pub(crate) clock: u32,
    pub(crate) mode: Mode,
    pub(crate) regions: Vec<Region>,
    /// The generator that the current region draws its random numbers from.
    pub(crate) generator: Option<Generator>,
    pub(crate) may_refuse: bool,
}

/// The switches of a thread.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mode {
    pub(crate) recording: bool,
    /// Whether saved tensors go through hooks, which copy them.
    pub(crate) packs: bool,
    /// Whether any overwritten input is an error, even if the gradient does not need it.
    pub(crate) strict: bool,
    pub(crate) writes: Writes,
}

/// The effect of a write over a saved value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Writes {
    /// The write succeeds, but a pass that needs the value returns an error.
    Checked,
    /// The graph first copies the value.
    Copied,
    /// The write is refused.
    Refused,
}

/// Whether the gradient of a node reads a value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Need {
    No,
    /// It reads a copy, which no write affects.
    Copy,
    Yes,
    /// It checks the value even if it does not read it.
    Strict,
}

impl Need {
    /// Whether overwriting the value matters.
    pub(crate) fn matters(self) -> bool {
        matches!(self, Need::Yes | Need::Strict)
    }
}

/// Whether a write over a value is refused while a node that saved it exists.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub(crate) enum Guard {
    Never,
    Maybe,
    Surely,
}

impl Mode {
    pub(crate) const PLAIN: Mode = Mode { recording: true, packs: false, strict: false, writes: Writes::Checked };
}

/// A registered hook.
#[derive(Clone)]
pub(crate) struct Hooked {
    pub(crate) slot: Slot,
    pub(crate) ids: Vec<Id>,
    /// `None` for a hook that only observes.
    pub(crate) bend: Option<Bend>,
    /// Whether it changes the gradient that callers receive; otherwise it changes the one that is passed on.
    pub(crate) visible: bool,
}

/// How certain it is that a pass fails because of an overwritten value.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub(crate) enum Ground {
    /// No write touched a value that a gradient of this pass needs.
    None,
    /// A logged write covers a needed element, but the index or mask left it unchanged.
    Beside,
    /// A write changed a needed element.
    Element,
}

impl Reference {
    pub(crate) fn new() -> Self {
        Reference {
            tape: Tape::default(),
            storages: vec![],
            handles: vec![],
            nodes: vec![],
            hooks: vec![],
            clock: 0,
            mode: Mode::PLAIN,
            regions: vec![],
            generator: None,
            may_refuse: false,
        }
    }

    pub(crate) fn handle(&self, slot: Slot) -> Option<&Handle> {
        self.handles.get(slot as usize)?.as_ref()
    }

    /// The current numbers of a tensor.
    pub(crate) fn numbers(&self, h: &Handle) -> Vec<f64> {
        h.at.iter().map(|&p| self.storages[h.storage].numbers[p]).collect()
    }

    /// Whether this slot is free for a new tensor.
    pub(crate) fn is_free(&self, slot: Slot) -> bool {
        self.handles.get(slot as usize).is_none_or(Option::is_none) && !self.hooks.iter().any(|h| h.slot == slot)
    }

    pub(crate) fn define(&mut self, slot: Slot, handle: Handle) {
        let slot = slot as usize;
        if self.handles.len() <= slot {
            self.handles.resize_with(slot + 1, || None);
        }
        self.handles[slot] = Some(handle);
    }

    pub(crate) fn forget(&mut self, slot: Slot) {
        if let Some(h) = self.handles.get_mut(slot as usize) {
            *h = None;
        }
    }

    /// Whether the memory of a computed tensor was written after the tensor was created. Leaves, views of leaves and
    /// constants always have the values that their memory holds, so they are never stale.
    pub(crate) fn is_stale(&self, h: &Handle) -> bool {
        h.origin == Origin::Computed && h.tracked && self.touched(h.storage, &h.at, h.stamp) != Ground::None
    }

    /// Whether a write since `stamp` hit one of these places, and how.
    pub(crate) fn touched(&self, storage: usize, at: &[usize], stamp: u32) -> Ground {
        let storage = &self.storages[storage];
        match () {
            () if at.iter().any(|&p| storage.written[p] > stamp) => Ground::Element,
            () if at.iter().any(|&p| storage.logged[p] > stamp) => Ground::Beside,
            () => Ground::None,
        }
    }

    /// The effect of later writes on a value that was read.
    pub(crate) fn ground(&self, r: &Read) -> Ground {
        self.touched(r.storage, &r.at, r.stamp)
    }
}

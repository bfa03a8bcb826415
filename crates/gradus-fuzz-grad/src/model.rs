//! What the reference knows of a program half-way: tensors as places in memories of numbers, recorded operations, hooks.

use std::rc::Rc;

use gradus_tensor::Generator;

use crate::program::{Slot, Statement};
use crate::scalar::{Bend, Id, Tape};

/// Numbers of the memory, and the writes to them.
#[derive(Clone)]
pub(crate) struct Storage {
    pub(crate) numbers: Vec<f64>,
    /// When each was written last.
    pub(crate) written: Vec<u32>,
    /// When each was last among those that a write is logged for, which are more for an index or a mask.
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
    /// Its values on the tape; none of a tensor that is a constant.
    pub(crate) ids: Option<Vec<Id>>,
    /// When it was made.
    pub(crate) stamp: u32,
    /// Whether the library says that it requires a gradient.
    pub(crate) tracked: bool,
    pub(crate) origin: Origin,
    pub(crate) node: Option<usize>,
}

/// Something that an operation read or made, and that its gradient may need.
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
    /// Whether its gradient is a formula in its output.
    pub(crate) by_output: bool,
    /// Whether it is one of the user, which may read anything.
    pub(crate) custom: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    Leaf,
    /// A gradient that comes here certainly goes on to all inputs that are wanted.
    Operation,
    /// A gradient may go on.
    Region,
    /// Stands for all the nodes that a recorded pass made.
    Pass,
}

/// What must come of a statement.
pub(crate) enum Outcome {
    /// Operands are missing or do not fit: it is left out.
    Skip,
    /// An error with this in its message.
    Refuse(&'static str),
    /// Its tensors are there; `may_refuse` if it used one that was overwritten.
    Done { may_refuse: bool },
    /// The region ran with this body; `refuse` if it wrote into what outlives it.
    Region { body: Vec<Statement>, refuse: bool, may_refuse: bool },
}

/// A checkpointed region under way.
#[derive(Clone)]
pub(crate) struct Region {
    /// Storages from this number on were made inside.
    pub(crate) storages: usize,
    pub(crate) nodes: usize,
    pub(crate) reads: Vec<Read>,
    pub(crate) inputs: Vec<usize>,
    pub(crate) outlived: bool,
}

/// A program half-way.
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
    /// Where the random numbers of the region under way come from.
    pub(crate) generator: Option<Generator>,
    pub(crate) may_refuse: bool,
}

/// What is switched on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mode {
    pub(crate) recording: bool,
    /// Kept values go through hooks, which copy them.
    pub(crate) packs: bool,
    /// Any overwritten input is an error, needed or not.
    pub(crate) strict: bool,
    pub(crate) writes: Writes,
}

/// What a write over a kept value does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Writes {
    /// It goes through, and the gradient that needs the value is an error.
    Checked,
    /// The graph gets a copy first.
    Copied,
    /// It is refused.
    Refused,
}

/// Whether the gradient of a node reads a value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Need {
    No,
    /// It reads a copy, whatever becomes of the value.
    Copy,
    Yes,
    /// It checks the value, whether it reads it or not.
    Strict,
}

impl Need {
    /// Whether it matters if the value is overwritten.
    pub(crate) fn matters(self) -> bool {
        matches!(self, Need::Yes | Need::Strict)
    }
}

/// Whether a write over a value is refused for as long as a node lives.
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
    /// `None` for one that looks on.
    pub(crate) bend: Option<Bend>,
    /// Whether it works on what those who ask for the gradient see; else on what goes on.
    pub(crate) visible: bool,
}

/// How well an error about an overwritten value is founded.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub(crate) enum Ground {
    /// No write touched a value that a gradient of this pass needs.
    None,
    /// A write is logged for an element that an index or a mask left as it was.
    Beside,
    /// A write touched an element.
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

    /// The numbers of a tensor as they are now.
    pub(crate) fn numbers(&self, h: &Handle) -> Vec<f64> {
        h.at.iter().map(|&p| self.storages[h.storage].numbers[p]).collect()
    }

    /// Whether the slot can be defined.
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

    /// Whether the memory of a computed tensor was written since. Leaves, views of them and constants are whatever the
    /// memory holds: nothing can make them stale.
    pub(crate) fn is_stale(&self, h: &Handle) -> bool {
        h.origin == Origin::Computed && h.tracked && self.touched(h.storage, &h.at, h.stamp) != Ground::None
    }

    /// Whether a write since `stamp` hit one of these places.
    pub(crate) fn touched(&self, storage: usize, at: &[usize], stamp: u32) -> Ground {
        let storage = &self.storages[storage];
        match () {
            () if at.iter().any(|&p| storage.written[p] > stamp) => Ground::Element,
            () if at.iter().any(|&p| storage.logged[p] > stamp) => Ground::Beside,
            () => Ground::None,
        }
    }

    /// What a write since did to something that was read.
    pub(crate) fn ground(&self, r: &Read) -> Ground {
        self.touched(r.storage, &r.at, r.stamp)
    }
}

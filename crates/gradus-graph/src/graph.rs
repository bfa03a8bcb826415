//! [`Graph`]: the operations of a traced step, and the memory that they read and write.

use std::fmt;
use std::panic::Location;
use std::sync::{Arc, Weak};

use gradus_tensor::ops::{Op, Source};
use gradus_tensor::{DType, Device, Layout, State, Storage, Tensor};

/// The operations of a step, in the order in which they ran.
///
/// A value is a part of a memory at a version: the version of a memory rises with each write. So views share a memory,
/// and a value that was overwritten is another value.
#[derive(Clone, Debug)]
pub struct Graph {
    /// The device of all memories.
    pub device: Device,
    /// The memories, in the order of their first use.
    pub memories: Vec<Memory>,
    /// The operations.
    pub nodes: Vec<Node>,
    /// What the step returns.
    pub results: Vec<Place>,
    /// The states that the step gives other tensors, and these tensors.
    pub replaced: Vec<(State<Tensor>, Place)>,
}

/// A storage that the step reads or writes.
#[derive(Clone, Debug)]
pub struct Memory {
    /// Where its contents come from.
    pub origin: Origin,
    /// Its size.
    pub bytes: usize,
}

/// Where the contents of a memory come from.
#[derive(Clone)]
#[non_exhaustive]
pub enum Origin {
    /// The storage of this argument of the step.
    Input(usize),
    /// A storage that lives across calls, such as that of a parameter. The step may write it. It is not kept alive: once
    /// nobody else has it, the step works with something else.
    Held(Weak<Storage>),
    /// The tensor that a state holds when the step begins.
    State(State<Tensor>),
    /// A tensor that the step makes from numbers of the host. They were the same in both traces.
    Constant(Tensor),
    /// The step computes it.
    Computed,
}

/// A part of a memory at a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The number of the memory.
    pub memory: usize,
    /// The number of writes to the memory before.
    pub version: u32,
    /// The positions of the elements.
    pub layout: Layout,
    /// The dtype of the elements.
    pub dtype: DType,
}

/// An operation of a step.
#[derive(Clone)]
pub struct Node {
    /// The operation.
    pub op: Op,
    /// What it reads, besides the outputs that it updates.
    pub inputs: Vec<Place>,
    /// What it writes, at the version after the write.
    pub outputs: Vec<Place>,
    /// Whether the outputs existed before.
    pub in_place: bool,
    /// The host state that gives the operation its parameters anew for each call.
    pub source: Option<Arc<dyn Source>>,
    /// An earlier node whose parameters this one repeats: a random draw in a recomputed region.
    pub repeats: Option<usize>,
    /// The line of the call that ran it.
    pub location: &'static Location<'static>,
}

impl Graph {
    /// Whether a memory is one of the step's own: computed by it, and neither returned nor kept by a state.
    pub fn is_temporary(&self, memory: usize) -> bool {
        matches!(self.memories[memory].origin, Origin::Computed) && !self.leaves(memory)
    }

    /// Whether the step returns a part of a memory or gives it to a state.
    pub fn leaves(&self, memory: usize) -> bool {
        let mut kept = self.results.iter().chain(self.replaced.iter().map(|(_, place)| place));
        kept.any(|place| place.memory == memory)
    }
}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Input(i) => write!(f, "input {i}"),
            Origin::Held(_) => f.write_str("held"),
            Origin::State(_) => f.write_str("state"),
            Origin::Constant(_) => f.write_str("constant"),
            Origin::Computed => f.write_str("computed"),
        }
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node")
            .field("op", &self.op)
            .field("inputs", &self.inputs)
            .field("outputs", &self.outputs)
            .field("in_place", &self.in_place)
            .field("repeats", &self.repeats)
            .finish_non_exhaustive()
    }
}

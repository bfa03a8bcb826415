//! [`Graph`]: the operations of a traced step, and the memory that they read and write.

use std::fmt;
use std::panic::Location;
use std::sync::{Arc, Weak};

use gradus_tensor::ops::{Op, Source};
use gradus_tensor::{DType, Device, Layout, Storage, Tensor, WeakState};

use crate::panels::Panels;

/// The operations of a step, in the order in which they ran.
///
/// A value is a part of a memory at one version, and each write raises the version of the memory. So a tensor and its
/// views share a memory, and overwriting a value creates a new value.
#[derive(Clone, Debug)]
pub struct Graph {
    /// The device of all memories.
    pub device: Device,
    /// The memories, in the order of their first use.
    pub memories: Vec<Memory>,
    /// The operations.
    pub nodes: Vec<Node>,
    /// The values that the step returns.
    pub results: Vec<Place>,
    /// The states to which the step assigns new tensors, each with its new tensor.
    pub replaced: Vec<(WeakState<Tensor>, Place)>,
}

/// A storage that the step reads or writes.
#[derive(Clone, Debug)]
pub struct Memory {
    /// Where its contents come from.
    pub origin: Origin,
    /// Its size.
    pub bytes: usize,
    /// Whether nothing wrote it between its first use in one of the traced calls and that in the other.
    pub is_steady: bool,
}

/// Where the contents of a memory come from.
#[derive(Clone)]
#[non_exhaustive]
pub enum Origin {
    /// The storage of this argument of the step.
    Input(usize),
    /// A storage that outlives a call, such as that of a parameter. The step may write it. The graph does not keep it
    /// alive: once all other owners have dropped it, the graph is out of date.
    Held(Weak<Storage>),
    /// The tensor that a state holds when the step begins. The graph does not keep the state alive either.
    State(WeakState<Tensor>),
    /// A tensor that the step creates from host numbers, which were the same in both traces.
    Constant(Tensor),
    /// A weight that outlives a call, copied into the form that the device reads in place.
    Panels(Arc<Panels>),
    /// The step computes it.
    Computed,
}

/// A part of a memory at a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The number of the memory.
    pub memory: usize,
    /// The number of earlier writes to the memory.
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
    /// The values that it reads, apart from the outputs that it updates.
    pub inputs: Vec<Place>,
    /// The values that it writes, at the version after the write.
    pub outputs: Vec<Place>,
    /// Whether the operation runs in place, on outputs that existed before.
    pub in_place: bool,
    /// The host state that supplies parameters of the operation for each call.
    pub source: Option<Arc<dyn Source>>,
    /// The earlier node whose parameters this node reuses, if it is a random draw in a recomputed region.
    pub repeats: Option<usize>,
    /// The line of the call that ran it.
    pub location: &'static Location<'static>,
}

impl Graph {
    /// Whether a memory is temporary: the step computes it, and it is neither returned nor kept by a state.
    pub fn is_temporary(&self, memory: usize) -> bool {
        matches!(self.memories[memory].origin, Origin::Computed) && !self.leaves(memory)
    }

    /// Whether the step returns a part of the memory or assigns it to a state.
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
            Origin::Panels(_) => f.write_str("panels"),
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

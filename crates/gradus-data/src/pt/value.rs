//! [`Value`] and [`Object`]: the values that a pickle creates.

use super::global::{Global, Storage};

/// A value. Everything that has parts is an object.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Value {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Object(usize),
}

/// A value with parts, or one that is large.
#[derive(Debug, Clone)]
pub(super) enum Object {
    Text(String),
    Bytes(usize),
    /// A whole number beyond 64 bits.
    Big,
    Tuple(Vec<Value>),
    List(Vec<Value>),
    Dict(Vec<(Value, Value)>),
    Global(Global),
    Storage(Storage),
    Tensor {
        storage: usize,
        offset: usize,
        shape: Vec<usize>,
        strides: Vec<usize>,
    },
}

/// The result of running a pickle.
#[derive(Debug)]
pub(super) struct Pickled {
    pub(super) objects: Vec<Object>,
    pub(super) result: Value,
    /// The number of bytes that were read.
    pub(super) length: usize,
}

/// The largest number of objects that a pickle may create, and the largest sizes of its stack, its list of marks and
/// its memo. Ten thousand tensors take about a hundred thousand objects.
pub(super) const MOST_VALUES: usize = 1 << 22;

pub(super) const NO_ROOM: &str = "its values do not fit into memory";

pub(super) fn too_many() -> String {
    format!("it makes more than {MOST_VALUES} values at once")
}

/// Adds to a list of at most [`MOST_VALUES`].
pub(super) fn add<T>(list: &mut Vec<T>, new: T) -> Result<(), String> {
    if list.len() >= MOST_VALUES {
        return Err(too_many());
    }
    list.try_reserve(1).map_err(|_| NO_ROOM)?;
    list.push(new);
    Ok(())
}

//! [`Item`]: what a walk over a module passes to its sink.

use std::fmt;

use crate::parameter::{Buffer, Mode, Parameter, RandomState};

/// An item that a walk passes to its sink.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub enum Item<'a> {
    /// The type name of a module, whose fields follow.
    Kind(&'a str),
    /// A parameter.
    Parameter(&'a Parameter),
    /// A buffer.
    Buffer(&'a Buffer),
    /// A random state.
    Random(&'a RandomState),
    /// The mode of a module: training or evaluation.
    Mode(Mode),
    /// A plain value, such as a number or a string.
    Setting(&'a dyn fmt::Debug),
}

/// A function that receives the name and value of each item of a walk.
pub(crate) type Sink<'s> = dyn FnMut(&str, Item<'_>) + 's;

/// A walk over a module: a function that passes every item to a sink.
pub(crate) type Walk<'a> = &'a dyn Fn(&mut Sink<'_>);

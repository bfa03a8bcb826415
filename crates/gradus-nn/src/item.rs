//! [`Item`]: what a walk over a module meets.

use std::fmt;

use crate::parameter::{Buffer, Mode, Parameter, RandomState};

/// What a walk meets.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub enum Item<'a> {
    /// A module of this type, whose fields follow.
    Kind(&'a str),
    /// A parameter.
    Parameter(&'a Parameter),
    /// A buffer.
    Buffer(&'a Buffer),
    /// A random state.
    Random(&'a RandomState),
    /// Training or evaluation.
    Mode(Mode),
    /// A plain value.
    Setting(&'a dyn fmt::Debug),
}

/// Takes the name and value of each item of a walk.
pub(crate) type Sink<'s> = dyn FnMut(&str, Item<'_>) + 's;

/// A walk over a module: hands its items to a sink.
pub(crate) type Walk<'a> = &'a dyn Fn(&mut Sink<'_>);

//! Scopes of names.

use std::collections::HashMap;

use crate::parse::Type;

/// The predicate that takes results that are not wanted.
pub(super) const UNWANTED: u32 = 2;

/// What lies between two variables of shared or local memory, so that an access past an end is found.
pub(super) const GAP: u64 = 16;

/// Stands for the start of dynamic shared memory until all static variables are known.
pub(super) const DYNAMIC: u64 = 0x7e57_0000_0000_0000;

/// Local memory begins here, so that no variable has the address 0.
pub(super) const LOCAL_START: u64 = 64;

/// A register.
#[derive(Debug, Clone, Copy)]
pub(super) enum Register {
    Pred(u32),
    Half(u32),
    Row(u32),
    Wide(u32),
}

/// A variable's place.
#[derive(Debug, Clone, Copy)]
pub(super) enum Variable {
    Local(u64),
    Shared(u64),
    /// A parameter or result of a device function, in local memory.
    Param(u64),
    KernelParam(u64),
}

/// The names between two braces.
#[derive(Debug, Default)]
pub(super) struct Scope<'a> {
    pub(super) registers: HashMap<String, Register>,
    /// Prefixes with a count, from which registers are made when they are first named.
    pub(super) prefixes: Vec<(&'a str, u32, Type)>,
    pub(super) variables: HashMap<&'a str, Variable>,
    pub(super) labels: HashMap<&'a str, usize>,
    pub(super) targets: HashMap<&'a str, &'a Vec<String>>,
}

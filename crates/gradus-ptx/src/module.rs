//! A parsed module: its kernels and its variables.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::parse::{self, Function, ParseError};
use crate::{Memory, MemoryError};

/// The state spaces that a program names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Space {
    /// The memory of the device.
    Global,
    /// Memory of the device that kernels only read.
    Const,
    /// Memory of a block.
    Shared,
    /// Memory of a thread.
    Local,
    /// Parameters and results.
    Param,
}

/// A parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Param {
    /// The name.
    pub name: String,
    /// Where it lies in [`Launch::params`](crate::Launch::params).
    pub offset: u64,
    /// The size in bytes.
    pub size: u64,
    /// The alignment in bytes.
    pub align: u64,
}

/// A variable of a module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    /// The name.
    pub name: String,
    /// Where it lies.
    pub space: Space,
    /// The size in bytes; 0 for dynamic shared memory.
    pub size: u64,
    /// The alignment in bytes.
    pub align: u64,
    /// The first bytes; the others are zero.
    pub init: Vec<u8>,
    /// Where addresses of other variables stand in it: the offset, the name, what is added.
    pub(crate) addresses: Vec<(u64, String, i64)>,
}

/// A kernel.
#[derive(Debug, Clone)]
pub struct Kernel {
    /// The name.
    pub name: String,
    /// The parameters.
    pub params: Vec<Param>,
    /// `.maxntid`: a block may have as many threads as the product.
    pub max_threads: Option<[u32; 3]>,
    /// `.reqntid`: a block must have these sizes.
    pub required_threads: Option<[u32; 3]>,
}

impl Kernel {
    /// The bytes of all parameters.
    pub fn param_bytes(&self) -> u64 {
        self.params.last().map_or(0, |last| last.offset + last.size)
    }
}

/// A parsed module. Its variables get their places in a memory when they are first needed there.
#[derive(Debug)]
pub struct Module {
    kernels: Vec<Kernel>,
    variables: Vec<Variable>,
    /// The addresses of the variables by the memory's number.
    places: Mutex<HashMap<u64, Arc<[u64]>>>,
}

impl Module {
    /// Parses a module, as NVRTC writes it.
    ///
    /// # Errors
    /// At the first thing that is not understood; an unknown instruction is never skipped.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let unit = parse::parse(text)?;
        let kernels = unit.functions.iter().filter(|one| one.is_kernel && one.body.is_some()).map(kernel).collect();
        Ok(Self { kernels, variables: unit.variables, places: Mutex::default() })
    }

    /// The kernels.
    pub fn kernels(&self) -> &[Kernel] {
        &self.kernels
    }

    /// The kernel of this name.
    pub fn kernel(&self, name: &str) -> Option<&Kernel> {
        self.kernels.iter().find(|kernel| kernel.name == name)
    }

    /// The variables.
    pub fn variables(&self) -> &[Variable] {
        &self.variables
    }

    /// The address and the size of a variable in global or constant memory, or none if there is no such variable.
    ///
    /// # Errors
    /// If the memory has no room for the module's variables.
    pub fn variable(&self, name: &str, memory: &Memory) -> Result<Option<(u64, u64)>, MemoryError> {
        let places = self.place(memory)?;
        let found = self.variables.iter().position(|one| one.name == name && one.in_memory());
        Ok(found.map(|at| (places[at], self.variables[at].size)))
    }

    /// Frees the variables' places in a memory. They get new places, with their first values, when they are needed again.
    ///
    /// # Errors
    /// If the memory no longer has them.
    pub fn unload(&self, memory: &Memory) -> Result<(), MemoryError> {
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner).remove(&memory.id());
        places.iter().flat_map(|places| places.iter()).filter(|place| **place != 0).try_for_each(|at| memory.free(*at))
    }

    /// The addresses of the variables; 0 for those that are not in global or constant memory.
    pub(crate) fn place(&self, memory: &Memory) -> Result<Arc<[u64]>, MemoryError> {
        let mut all = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(places) = all.get(&memory.id()) {
            return Ok(places.clone());
        }
        let place = |one: &Variable| if one.in_memory() { memory.alloc(one.size) } else { Ok(0) };
        let places: Vec<u64> = self.variables.iter().map(place).collect::<Result<_, _>>()?;
        for (variable, place) in self.variables.iter().zip(&places).filter(|(one, _)| one.in_memory()) {
            memory.fill(*place, &[0], variable.size)?;
            memory.write(*place, &variable.init)?;
            for (offset, name, plus) in &variable.addresses {
                let other = self.variables.iter().position(|one| one.name == *name && one.in_memory());
                let other = other.ok_or_else(|| {
                    MemoryError(format!("the initial value of `{}` names the unknown variable `{name}`", variable.name))
                })?;
                memory.write(place + offset, &places[other].wrapping_add_signed(*plus).to_le_bytes())?;
            }
        }
        let places: Arc<[u64]> = places.into();
        all.insert(memory.id(), places.clone());
        Ok(places)
    }
}

impl Variable {
    /// Whether it lies in the memory of the device.
    pub(crate) fn in_memory(&self) -> bool {
        matches!(self.space, Space::Global | Space::Const) && self.size > 0
    }
}

fn kernel(function: &Function) -> Kernel {
    Kernel {
        name: function.name.clone(),
        params: function.params.clone(),
        max_threads: function.max_threads,
        required_threads: function.required_threads,
    }
}

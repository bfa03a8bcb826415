//! A parsed module: its kernels and its variables.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::code::{Code, Place};
use crate::exec::Located;
use crate::lower::lower;
use crate::parse::{self, Function, ParseError, Unit};
use crate::variable::{Param, Variable};
use crate::{Fault, Memory, MemoryError, SourceLine};

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
    pub(crate) code: Code,
}

impl Kernel {
    /// The bytes of all parameters.
    pub fn param_bytes(&self) -> u64 {
        self.params.last().map_or(0, |last| last.offset + last.size)
    }

    /// The bytes of shared memory that the kernel declares.
    pub fn shared_bytes(&self) -> u64 {
        self.code.shared.iter().map(|(_, size)| size).sum()
    }
}

/// A parsed module. Its variables get their places in a memory when they are first needed there.
#[derive(Debug)]
pub struct Module {
    kernels: Vec<Kernel>,
    variables: Vec<Variable>,
    /// The names of the source files by their numbers.
    files: HashMap<u32, String>,
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
        let kernels = unit.functions.iter().filter(|one| one.is_kernel && one.body.is_some());
        let kernels = kernels.map(|one| kernel(&unit, one)).collect::<Result<_, _>>()?;
        Ok(Self { kernels, variables: unit.variables, files: unit.files, places: Mutex::default() })
    }

    /// The line of the source of an instruction.
    fn source(&self, place: Place) -> Option<SourceLine> {
        let (file, line) = place.source;
        self.files.get(&file).map(|file| SourceLine { file: file.clone(), line })
    }

    /// A mistake with the lines where it is.
    pub(crate) fn located(&self, kernel: &Kernel, located: Located) -> Fault {
        let Located { mistake, block, thread } = located;
        let place = |pc: u32| kernel.code.places.get(pc as usize).copied().unwrap_or_default();
        let here = place(mistake.pc);
        let mut text = mistake.text;
        if let Some(other) = mistake.other.map(place) {
            text.push_str(&format!("\n  the other is line {} of the PTX", other.line));
            if let Some(source) = self.source(other) {
                text.push_str(&format!(", {source}"));
            }
        }
        let (line, source) = (here.line, self.source(here));
        Fault { kind: mistake.kind, kernel: kernel.name.clone(), block, thread, line, source, text }
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

fn kernel(unit: &Unit, function: &Function) -> Result<Kernel, ParseError> {
    Ok(Kernel {
        name: function.name.clone(),
        params: function.params.clone(),
        max_threads: function.max_threads,
        required_threads: function.required_threads,
        code: lower(unit, function)?,
    })
}

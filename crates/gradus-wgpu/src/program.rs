//! A user's compute module after compilation, and its declarations.

use gradus_backend::{Binding, Error, Result};

use wgpu::naga;

use crate::queue::Layouts;

pub(crate) const OP: &str = "dispatch_compute";

/// A compiled module.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) raw: wgpu::ComputePipeline,
    pub(crate) layouts: Layouts,
    /// The bindings of group 0, from binding 0 on.
    pub(crate) slots: Vec<Slot>,
    /// The size of the immediates in bytes.
    pub(crate) constants: usize,
}

/// A module's declaration of one binding.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) name: String,
    pub(crate) write: bool,
    /// The smallest size in bytes of what is bound.
    pub(crate) least: u32,
    /// The scalar types that the binding contains, except u32, which may hold elements of any dtype.
    pub(crate) elements: Vec<naga::Scalar>,
}

impl Program {
    /// Fails unless there are as many bindings and bytes of constants as the module declares.
    pub(crate) fn check_counts(&self, bindings: usize, constants: usize) -> Result<()> {
        if bindings != self.slots.len() {
            let names: Vec<_> = self.slots.iter().map(|slot| slot.name.as_str()).collect();
            let m = format!("{bindings} bindings for a module that has {}: {}", names.len(), names.join(", "));
            return Err(Error::argument(OP, m));
        }
        if constants != self.constants {
            let m = format!("{constants} bytes of constants for a module that has {}", self.constants);
            return Err(Error::argument(OP, m));
        }
        Ok(())
    }

    /// Fails if a binding is bound for reading but the module may write it, or the other way round.
    pub(crate) fn check_access(&self, bindings: &[Binding<'_>]) -> Result<()> {
        for (i, (binding, slot)) in bindings.iter().zip(&self.slots).enumerate() {
            let (as_what, may) = match (binding, slot.write) {
                (Binding::Read(_), true) => ("reading", "write"),
                (Binding::Write(_), false) => ("writing", "only read"),
                _ => continue,
            };
            let m = format!("binding {i} is bound for {as_what}; the module may {may} its {:?}", slot.name);
            return Err(Error::argument(OP, m));
        }
        Ok(())
    }
}

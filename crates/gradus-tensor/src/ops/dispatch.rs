//! `dispatch_compute`: runs a compute module written by the user. The method is in the crate's `compute.rs`.

use std::sync::Arc;

use gradus_backend::compute::OwnedModule;
use gradus_backend::{Backend, Binding, Result, View, ViewMut};
use smallvec::SmallVec;

use super::{Effect, Flow, InputSpec, Operation, Outputs, Spec};

/// A run of a compute module written by the user.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Dispatch {
    /// The compute module.
    pub module: OwnedModule,
    /// Whether each binding is written.
    pub written: SmallVec<[bool; 8]>,
    /// Push constants.
    pub constants: Arc<[u8]>,
    /// The number of work-groups along each axis.
    pub groups: [u32; 3],
}

impl Operation for Dispatch {
    fn name(&self) -> &str {
        "dispatch_compute"
    }

    fn infer(&self, inputs: &[InputSpec<'_>]) -> Result<Outputs> {
        let written = self.written.iter().filter(|w| **w).count();
        Ok(inputs.iter().take(written).map(|x| Spec { shape: *x.shape, dtype: x.dtype }).collect())
    }

    fn forward(&self, backend: &dyn Backend, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        let (mut inputs, mut outputs) = (inputs.iter(), outputs.iter_mut());
        let mut operands = Vec::with_capacity(self.written.len());
        for written in &self.written {
            operands.extend(match written {
                true => outputs.next().map(|o| Binding::Write(o.with(o.layout))),
                false => inputs.next().map(|x| Binding::Read(*x)),
            });
        }
        backend.dispatch_compute(self.module.as_module(), &mut operands, &self.constants, self.groups)
    }

    fn flow(&self) -> Flow {
        Flow::Mixes
    }

    fn can_fail(&self) -> bool {
        true
    }

    fn effect(&self) -> Effect {
        Effect::Calls
    }

    fn differentiable(&self, _: usize) -> bool {
        false
    }
}

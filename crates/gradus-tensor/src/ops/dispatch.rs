//! `dispatch_compute`: runs a compute module written by the user; and `dispatch_host`: makes a [`HostCall`]. The methods are
//! in the crate's `compute.rs`.

use std::any::Any;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use gradus_backend::compute::OwnedModule;
use gradus_backend::{Backend, Binding, Error, Result, View, ViewMut};
use smallvec::SmallVec;

use super::{Effect, Flow, InputSpec, Op, Operation, Outputs, Spec};

/// A call of the host among the operations of a step, such as a collective of many ranks. A replay of a captured step makes
/// it again, each time and in its place: no pass removes it, repeats it, or moves it past another one.
pub trait HostCall: fmt::Debug + Any + Send + Sync {
    /// The name that errors, graphs and logs show.
    fn name(&self) -> &str;

    /// Whether the other one does the same with the same operands.
    fn is_same(&self, other: &dyn HostCall) -> bool;

    /// Whether others know that the call was made. A debug build does not verify the replays of a step that makes such a
    /// call, because each would be made twice.
    fn is_seen(&self) -> bool {
        true
    }

    /// Fails if the call cannot be made at all, for example because an earlier one has failed. It is asked before any memory
    /// is locked, by a replay before its first operation, and may prepare the call.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Called if a replay fails after it has begun this call, so that others do not wait for the calls that would have come
    /// next. It is only called where [others know of this call](HostCall::is_seen), and not for errors of the kind
    /// [`Peer`](crate::ErrorKind::Peer), because the other side already knows of them.
    fn abandoned(&self, _why: &Error) {}

    /// Makes the call on these operands, which are contiguous. Their memory is valid until the call returns. After an error
    /// of the kind [`Peer`](crate::ErrorKind::Peer) it is never freed, because the other side may still be at work on it; an
    /// error of [`check`](HostCall::check) frees it.
    ///
    /// The tensors are locked meanwhile: to use one of them here, or to wait for a thread that does, is a deadlock.
    fn call(&self, backend: &dyn Backend, operands: &mut [Binding<'_>]) -> Result<()>;
}

impl PartialEq for dyn HostCall {
    fn eq(&self, other: &Self) -> bool {
        self.is_same(other)
    }
}
impl Eq for dyn HostCall {}

impl Hash for dyn HostCall {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name().hash(state);
    }
}

/// What a [`Dispatch`] runs.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Module {
    /// A compute module written by the user.
    Compute(OwnedModule),
    /// A call of the host.
    Host(Arc<dyn HostCall>),
}

/// A run of a compute module or of a call of the host.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Dispatch {
    /// What runs.
    pub module: Module,
    /// Whether each binding is written.
    pub written: SmallVec<[bool; 8]>,
    /// Push constants.
    pub constants: Arc<[u8]>,
    /// The number of work-groups along each axis.
    pub groups: [u32; 3],
}

impl Dispatch {
    /// A call of the host that writes these of its operands.
    pub(crate) fn of_host(call: Arc<dyn HostCall>, written: impl Iterator<Item = bool>) -> Self {
        Dispatch { module: Module::Host(call), written: written.collect(), constants: Arc::new([]), groups: [1; 3] }
    }
}

impl Op {
    /// The call of the host that this operation is, if it is one.
    pub fn host_call(&self) -> Option<&dyn HostCall> {
        match self {
            Op::Dispatch(dispatch) => match &dispatch.module {
                Module::Host(call) => Some(&**call),
                Module::Compute(_) => None,
            },
            _ => None,
        }
    }
}

impl Operation for Dispatch {
    fn name(&self) -> &str {
        match &self.module {
            Module::Compute(_) => "dispatch_compute",
            Module::Host(call) => call.name(),
        }
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
        match &self.module {
            Module::Compute(module) => {
                backend.dispatch_compute(module.as_module(), &mut operands, &self.constants, self.groups)
            }
            Module::Host(call) => call.call(backend, &mut operands),
        }
    }

    fn flow(&self) -> Flow {
        Flow::Mixes
    }

    fn can_fail(&self) -> bool {
        true
    }

    fn effect(&self) -> Effect {
        match &self.module {
            Module::Compute(_) => Effect::Calls,
            Module::Host(_) => Effect::CallsHost,
        }
    }

    fn differentiable(&self, _: usize) -> bool {
        false
    }
}

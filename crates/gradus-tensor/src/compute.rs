//! [`Device::dispatch_compute`]: runs a user's own compute modules on tensors. [`Device::dispatch_host`]: makes a call of the
//! host on their memory.

use std::panic::Location;
use std::sync::Arc;

use gradus_backend::{
    ComputeLimits, ComputeModule, Error, ErrorKind, Here, ModuleHash, NativeCall, NativeFunction, Result,
};

use crate::autograd::{Nested, PartsOf};
use crate::ops::{Dispatch, HostCall, InPlace, Module, To, bind};
use crate::{Device, Tensor};

const OP: &str = "dispatch_compute";

/// A tensor bound to a compute module.
#[derive(Debug, Clone, Copy)]
pub enum Bound<'a> {
    /// The module only reads it. A tensor that is not contiguous is copied first.
    Read(&'a Tensor),
    /// The module writes it in place, and may also read it. The tensor must be contiguous and share no memory with
    /// another binding.
    Write(&'a Tensor),
}

impl<'a> Bound<'a> {
    fn tensor(&self) -> &'a Tensor {
        match self {
            Bound::Read(t) | Bound::Write(t) => t,
        }
    }
}

/// The tensors that are written.
fn written<'a>(bindings: &[Bound<'a>]) -> impl Iterator<Item = &'a Tensor> {
    bindings.iter().filter_map(|b| if let Bound::Write(t) = *b { Some(t) } else { None })
}

/// The tensors that are only read, contiguous.
#[track_caller]
fn reads(bindings: &[Bound<'_>]) -> Result<Vec<Tensor>> {
    let mut reads = Vec::new();
    for bound in bindings {
        let Bound::Read(t) = bound else { continue };
        // The locks check this too, but they would miss a strided tensor, because it is copied first.
        if written(bindings).any(|w| Arc::ptr_eq(w.storage(), t.storage())) {
            let e = Error::argument(OP, "a tensor that is written shares memory with another operand");
            return Err(t.describe(e, "operand").help("pass a copy: x.copy()?"));
        }
        // This only makes a copy. The source was checked when it was bound.
        reads.push(t.detach().contiguous()?);
    }
    Ok(reads)
}

impl Device {
    /// Runs a compute module written by the user on tensors of this device: WGSL, SPIR-V or CUDA C where the backend
    /// supports it, or a host function that was [registered](Device::register_native). `bindings` are its operands in
    /// order, `constants` its push constants, and `groups` the number of work-groups along each axis. A module is
    /// compiled once and cached by its content.
    ///
    /// As with every write in place, the versions of the written tensors rise, nothing is recorded, and the call is
    /// refused if gradients are on and an operand requires one. To give a module a gradient, call it in a
    /// [`CustomOp`](crate::autograd::CustomOp).
    ///
    /// # Errors
    /// - [`ErrorKind::Unsupported`] if the device does not run modules of this form.
    /// - [`ErrorKind::InvalidArgument`] if the module is malformed, is not [allowed](Device::allow_modules) or names an
    ///   unknown function; if work-groups, constants or bindings exceed the [limits](Device::compute_limits); or if a
    ///   written tensor is not contiguous or shares memory with another operand.
    /// - [`ErrorKind::DeviceMismatch`] if a tensor lives on another device.
    ///
    /// ```
    /// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
    /// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    /// use gradus_tensor::backend::{ComputeModule, Element};
    ///
    /// // y = k * x
    /// device.register_native("scale", |call| {
    ///     let [k] = call.constants::<f32, 1>()?;
    ///     let [x, y] = call.operands()?;
    ///     y.write::<f32>()?.iter_mut().zip(x.read::<f32>()?).for_each(|(y, x)| *y = k * x);
    ///     Ok(())
    /// })?;
    /// let x = Tensor::from_vec(vec![1.0f32, 2.0, 3.0], [3], &device)?;
    /// let y = Tensor::zeros([3], DType::F32, &device)?;
    /// let bindings = [Bound::Read(&x), Bound::Write(&y)];
    /// device.dispatch_compute(ComputeModule::Native("scale"), &bindings, f32::as_bytes(&[2.0]), [1, 1, 1])?;
    /// assert_eq!(y.to_vec::<f32>()?, [2.0, 4.0, 6.0]);
    /// assert_eq!(y.storage().version(), 1);
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn dispatch_compute(
        &self,
        module: ComputeModule<'_>,
        bindings: &[Bound<'_>],
        constants: &[u8],
        groups: [u32; 3],
    ) -> Result<()> {
        self.bound(bindings)?;
        // This is checked before any tensor is marked as written.
        self.backend().check_compute(module, bindings.len(), constants, groups).here()?;
        let reads = reads(bindings)?;
        let op = Dispatch {
            module: Module::Compute(module.into()),
            written: bindings.iter().map(|b| matches!(b, Bound::Write(_))).collect(),
            constants: constants.into(),
            groups,
        };
        self.dispatch(op, bindings, &reads)
    }

    /// Makes a call of the host on the memory of tensors of this device. It is like
    /// [`dispatch_compute`](Device::dispatch_compute), without its limits, and captured steps repeat it. Errors and traces
    /// report `line`. `bindings` may be empty.
    ///
    /// # Errors
    /// Those of the call, and those of `dispatch_compute` for tensors. After an error of the kind
    /// [`Peer`](ErrorKind::Peer) of [`HostCall::call`], the memory of the tensors is never freed.
    ///
    /// ```
    /// # use gradus_cpu::CpuBackend; use gradus_tensor::*;
    /// # let device = Device::from_backend(std::sync::Arc::new(CpuBackend::new()?));
    /// use std::{any::Any, panic::Location, sync::Arc};
    ///
    /// use gradus_tensor::backend::{Backend, Binding};
    /// use gradus_tensor::ops::HostCall;
    ///
    /// /// Sets the elements of tensors of u8 to 7.
    /// #[derive(Debug)]
    /// struct Sevens;
    ///
    /// impl HostCall for Sevens {
    ///     fn name(&self) -> &str {
    ///         "sevens"
    ///     }
    ///     fn is_same(&self, other: &dyn HostCall) -> bool {
    ///         (other as &dyn Any).is::<Sevens>()
    ///     }
    ///     fn call(&self, backend: &dyn Backend, operands: &mut [Binding<'_>]) -> Result<()> {
    ///         operands.iter_mut().try_for_each(|operand| match operand {
    ///             Binding::Read(_) => Ok(()),
    ///             Binding::Write(y) => backend.upload(y.buffer, y.layout.offset(), &vec![7; y.layout.numel()]),
    ///         })
    ///     }
    /// }
    ///
    /// let x = Tensor::zeros([3], DType::U8, &device)?;
    /// device.dispatch_host(Arc::new(Sevens), &[Bound::Write(&x)], Location::caller())?;
    /// assert_eq!(x.to_vec::<u8>()?, [7, 7, 7]);
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn dispatch_host(
        &self,
        call: Arc<dyn HostCall>,
        bindings: &[Bound<'_>],
        line: &'static Location<'static>,
    ) -> Result<()> {
        let _whole = PartsOf::new("dispatch_host", line);
        call.check().map_err(|e| e.at(line))?;
        self.bound(bindings)?;
        let reads = reads(bindings)?;
        let op = Dispatch::of_host(call, bindings.iter().map(|b| matches!(b, Bound::Write(_))));
        let made = self.dispatch(op, bindings, &reads);
        if made.as_ref().is_err_and(|e| *e.kind() == ErrorKind::Peer) {
            std::mem::forget((reads, written(bindings).cloned().collect::<Vec<_>>()));
        }
        made.map_err(|e| e.at(line))
    }

    /// Checks that these tensors can be bound.
    #[track_caller]
    fn bound(&self, bindings: &[Bound<'_>]) -> Result<()> {
        let operands: Vec<&Tensor> = bindings.iter().map(Bound::tensor).collect();
        if let Some((i, t)) = operands.iter().enumerate().find(|(_, t)| t.device() != self) {
            let e = Error::new(ErrorKind::DeviceMismatch, OP, format!("binding {i} does not live on {self}"));
            let e = self.tell_apart(t.device(), t.describe(e, "binding"));
            return Err(e.help("move it here first: x.to_device(&device)?"));
        }
        for t in written(bindings) {
            t.check_writable(InPlace::Dispatch, &operands)?;
            if !t.is_contiguous() {
                let e = Error::argument(OP, "a tensor that a module writes is contiguous; this one is strided");
                return Err(t.describe(e, "binding").help("write into a new tensor, and copy_ it there"));
            }
        }
        Ok(())
    }

    #[track_caller]
    fn dispatch(&self, op: Dispatch, bindings: &[Bound<'_>], reads: &[Tensor]) -> Result<()> {
        let (reads, written): (Vec<&Tensor>, Vec<&Tensor>) = (reads.iter().collect(), written(bindings).collect());
        let _nested = Nested::enter(OP)?;
        bind(op, &reads, To::Written(InPlace::Dispatch, self, &written))
    }

    /// Registers `function` under `name` for [`ComputeModule::Native`] on this device. It stays registered for as long
    /// as the backend lives.
    ///
    /// The function is called once for each dispatch, while the bound tensors are locked, so it must work only on the
    /// memory that it is given. Reading or writing a tensor that shares memory with a binding is an error on this
    /// thread, and would deadlock if the function waited for another thread that does it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the name is taken; [`ErrorKind::Unsupported`] on a device whose memory the
    /// host cannot access.
    #[track_caller]
    pub fn register_native(
        &self,
        name: &str,
        function: impl Fn(&mut NativeCall<'_>) -> Result<()> + Send + Sync + 'static,
    ) -> Result<()> {
        self.backend().register_native(name, NativeFunction::new(function)).here()
    }

    /// Restricts this device to modules with these [hashes](ComputeModule::hash) from here on. With `None`, every
    /// module may run.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the device runs no compute modules at all.
    #[track_caller]
    pub fn allow_modules(&self, hashes: Option<&[ModuleHash]>) -> Result<()> {
        self.backend().allow_modules(hashes).here()
    }

    /// The limits of one dispatch; `None` if the device runs no compute modules.
    pub fn compute_limits(&self) -> Option<ComputeLimits> {
        self.backend().compute_limits()
    }
}

//! `to_device(x)`: the values on another device. The gradient is copied back.

use gradus_backend::host_vec::download;
use gradus_backend::{Backend, Result, View, ViewMut};

use super::{Context, Effect, Flow, Grads, InputSpec, Operation, Outputs, To, bind, grads, one};
use crate::{Device, Tensor};

/// Copies a contiguous tensor from one device to another.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ToDevice {
    /// The device of the input.
    pub from: Device,
    /// The device of the output.
    pub to: Device,
}

impl Operation for ToDevice {
    fn name(&self) -> &str {
        "to_device"
    }

    fn input_names(&self) -> &'static [&'static str] {
        &["self"]
    }

    fn infer(&self, inputs: &[InputSpec<'_>]) -> Result<Outputs> {
        let (x, to) = (inputs[0], &self.to);
        if !to.backend().supports(x.dtype) {
            let e = to.backend().unsupported(self.name(), x.dtype);
            return Err(e.help("convert it first: x.to_dtype(DType::F32)?.to_device(&device)?"));
        }
        Ok(one(*x.shape, x.dtype))
    }

    /// Copies through the host, since backends cannot access each other's memory.
    fn forward(&self, backend: &dyn Backend, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        let size = inputs[0].dtype.size();
        let (start, count) = (inputs[0].layout.offset() * size, inputs[0].layout.numel() * size);
        let bytes = download::<u8, _>(self.from.backend(), self.name(), inputs[0].buffer, start, count)?;
        backend.upload(outputs[0].buffer, 0, &bytes)
    }

    fn flow(&self) -> Flow {
        Flow::Moves
    }

    fn effect(&self) -> Effect {
        Effect::Crosses
    }

    fn vjp(&self, _: &Context<'_>, g: &[Option<Tensor>]) -> Result<Grads> {
        Ok(grads([g[0].as_ref().map(|g| g.to_device(&self.from)).transpose()?]))
    }
}

impl Tensor {
    /// The values on `device`; the tensor itself if it already lives there. This is the only way to move values between
    /// devices: an operation on tensors of different devices fails. The gradient is copied back to the device of this
    /// tensor, to any order. Waits until this tensor is computed.
    ///
    /// # Errors
    /// Fails with [`ErrorKind::UnsupportedDType`](crate::ErrorKind::UnsupportedDType) if `device` does not support the
    /// dtype, and with the errors of the two devices.
    ///
    /// ```
    /// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
    /// # let open = || CpuBackend::new().map(|b| Device::from_backend(Arc::new(b)));
    /// let (here, there) = (open()?, open()?);
    /// let x = Tensor::from_vec(vec![1.0f64, 2.0], [2], &here)?.with_grad()?;
    /// let y = x.to_device(&there)?.square()?.sum_all()?;
    /// assert_eq!(y.device(), &there);
    /// let dx = y.backward()?.get(&x).unwrap().clone();
    /// assert_eq!((dx.device(), dx.to_vec::<f64>()?), (&here, vec![2.0, 4.0]));
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn to_device(&self, device: &Device) -> Result<Tensor> {
        if self.device() == device {
            return Ok(self.clone());
        }
        let op = ToDevice { from: self.device().clone(), to: device.clone() };
        bind(op, &[&self.contiguous()?], To::New(device))
    }
}

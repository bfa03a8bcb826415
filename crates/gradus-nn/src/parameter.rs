//! What modules hold: [`Parameter`], [`Buffer`], [`RandomState`] and [`Mode`].

use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use gradus_tensor::{
    AsOperand, DType, Error, ErrorKind, Generator, Operand, Result, Shape, Tensor, no_grad_guard, operators,
};

/// A trainable tensor of a module: a leaf whose gradient is computed, unless it is frozen.
///
/// A clone is the same parameter: to tie two weights, clone one. Freezing a parameter freezes its clones, and an
/// optimiser steps it once. It is used as the [`Tensor`] that it dereferences to, also beside operators: `&weight * x`.
///
/// ```
/// # use gradus_nn::Parameter; use gradus_tensor::*;
/// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
/// let weight = Parameter::new(Tensor::ones([3, 2], DType::F32, &device)?)?;
/// let tied = weight.clone();
/// let x = Tensor::ones([1, 2], DType::F32, &device)?;
/// let gradients = x.linear(&tied, None)?.sum_all()?.backward()?;
/// assert_eq!(gradients.get(&weight).unwrap().shape(), [3, 2]);
/// weight.freeze();
/// assert!(!tied.requires_grad());
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone)]
pub struct Parameter(Arc<Inner>);

struct Inner {
    /// The leaf that computations use.
    leaf: Tensor,
    /// The same storage outside of the graph: what a frozen parameter is used as.
    values: Tensor,
    frozen: AtomicBool,
}

impl Parameter {
    /// A parameter with these values, of a float dtype. Shares the storage of `tensor` if that is contiguous.
    #[track_caller]
    pub fn new(tensor: Tensor) -> Result<Self> {
        if !tensor.dtype().is_float() {
            let e = Error::dtype("parameter", tensor.dtype(), "floats; keep integers in a Buffer");
            return Err(e.operand("tensor", tensor.shape(), tensor.dtype(), tensor.device()));
        }
        let values = tensor.detach().contiguous()?;
        Ok(Parameter(Arc::new(Inner { leaf: values.with_grad()?, values, frozen: AtomicBool::new(false) })))
    }

    /// The tensor to compute with. Gradients are found under it: `gradients.get(parameter.tensor())`.
    pub fn tensor(&self) -> &Tensor {
        if self.is_frozen() { &self.0.values } else { &self.0.leaf }
    }

    /// The values outside of the graph, frozen or not. Shares the storage.
    pub fn values(&self) -> &Tensor {
        &self.0.values
    }

    /// Replaces the values in place by those of `source`: the same shape, any float dtype, the same device.
    #[track_caller]
    pub fn set(&self, source: &Tensor) -> Result<()> {
        assign("parameter", &self.0.values, source)
    }

    /// From now on no gradient is computed and no optimiser steps it. Clones are the same parameter.
    pub fn freeze(&self) {
        self.0.frozen.store(true, Ordering::Relaxed);
    }

    /// From now on gradients are computed again.
    pub fn unfreeze(&self) {
        self.0.frozen.store(false, Ordering::Relaxed);
    }

    /// Whether it is frozen.
    pub fn is_frozen(&self) -> bool {
        self.0.frozen.load(Ordering::Relaxed)
    }

    /// Whether `other` is the same parameter: a clone.
    pub fn is_same(&self, other: &Parameter) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Equal for clones, different for other parameters that are alive.
    pub(crate) fn id(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
    }
}

impl Deref for Parameter {
    type Target = Tensor;
    fn deref(&self) -> &Tensor {
        self.tensor()
    }
}

impl AsOperand for Parameter {
    fn as_operand(&self) -> Result<Operand<'_>> {
        self.tensor().as_operand()
    }
}

impl AsOperand for Buffer {
    fn as_operand(&self) -> Result<Operand<'_>> {
        self.tensor().as_operand()
    }
}

operators!(&Parameter, &Buffer);

impl fmt::Debug for Parameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let frozen = if self.is_frozen() { ", frozen" } else { "" };
        write!(f, "Parameter({} {}{frozen})", Shape::display(self.values().shape()), self.values().dtype())
    }
}

/// A tensor that belongs to a module's state but is not trained, such as a running mean. Written in place; a clone is the
/// same buffer.
#[derive(Clone)]
pub struct Buffer(Arc<Tensor>);

impl Buffer {
    /// A buffer with these values, of any dtype. Shares the storage of `tensor` if that is contiguous.
    #[track_caller]
    pub fn new(tensor: Tensor) -> Result<Self> {
        Ok(Buffer(Arc::new(tensor.detach().contiguous()?)))
    }

    /// The tensor.
    pub fn tensor(&self) -> &Tensor {
        &self.0
    }

    /// Replaces the values in place by those of `source`: the same shape and device, and the same dtype or both float.
    #[track_caller]
    pub fn set(&self, source: &Tensor) -> Result<()> {
        assign("buffer", &self.0, source)
    }

    /// Equal for clones, different for other buffers that are alive.
    pub(crate) fn id(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
    }
}

impl Deref for Buffer {
    type Target = Tensor;
    fn deref(&self) -> &Tensor {
        &self.0
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} {})", Shape::display(self.shape()), self.dtype())
    }
}

/// Whether values of dtype `from` may be stored as `to`: the same, or both float.
pub(crate) fn converts(from: DType, to: DType) -> bool {
    from == to || (from.is_float() && to.is_float())
}

#[track_caller]
fn assign(op: &str, target: &Tensor, source: &Tensor) -> Result<()> {
    let refuse = |kind, message: &str| {
        Err(Error::new(kind, op, message).operand("self", target.shape(), target.dtype(), target.device()).operand(
            "source",
            source.shape(),
            source.dtype(),
            source.device(),
        ))
    };
    if target.shape() != source.shape() {
        return refuse(ErrorKind::ShapeMismatch, "the new values have another shape");
    }
    if !converts(source.dtype(), target.dtype()) {
        return refuse(ErrorKind::DTypeMismatch, "the new values have a dtype that is not converted silently");
    }
    let _guard = no_grad_guard();
    target.copy_(source)
}

/// The random numbers of a module that draws while it computes, such as dropout: an explicit generator whose position can
/// be read and set, to continue a run with the same numbers. A clone is the same state.
#[derive(Clone)]
pub struct RandomState(Arc<Mutex<Generator>>);

impl RandomState {
    /// Draws from this position on.
    pub fn new(generator: Generator) -> Self {
        RandomState(Arc::new(Mutex::new(generator)))
    }

    /// The current position.
    pub fn get(&self) -> Generator {
        self.draw(|g| g.clone())
    }

    /// Continues from this position.
    pub fn set(&self, generator: Generator) {
        self.draw(|g| *g = generator);
    }

    /// The generator, for nobody else meanwhile.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Generator> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Draws with `f`, alone: no other thread gets the same numbers.
    pub fn draw<R>(&self, f: impl FnOnce(&mut Generator) -> R) -> R {
        f(&mut self.lock())
    }
}

impl fmt::Debug for RandomState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let g = self.get();
        write!(f, "RandomState(seed {}, offset {})", g.seed(), g.offset())
    }
}

/// What a module is used for: as a field of a module it is set by [`Module::train`](crate::Module::train) and
/// [`Module::eval`](crate::Module::eval).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Training: dropout drops, batch normalisation uses and updates statistics.
    #[default]
    Train,
    /// Evaluation.
    Eval,
}

impl Mode {
    /// Whether this is [`Mode::Train`].
    pub fn is_training(self) -> bool {
        self == Mode::Train
    }
}

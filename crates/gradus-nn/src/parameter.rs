//! The state that modules hold: [`Parameter`], [`Buffer`], [`RandomState`] and [`Mode`].

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gradus_tensor::{
    AsOperand, DType, Error, ErrorKind, Generator, Here, Operand, Result, Shape, State, StateGuard, Tensor, autograd,
    no_grad_guard, operators, ops,
};

use crate::Division;

/// A trainable tensor of a module: a leaf that receives a gradient unless it is frozen.
///
/// A clone is the same parameter: to tie two weights, clone one of them. Freezing a parameter freezes its clones, and
/// an optimiser updates it once per step, however many clones there are. It dereferences to a [`Tensor`] and works with
/// operators as well: `&weight * x`.
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
    /// The leaf, which computations use unless the parameter is frozen.
    leaf: Tensor,
    /// A tensor outside the graph with the same storage, which computations use while the parameter is frozen.
    values: Tensor,
    frozen: Arc<AtomicBool>,
    division: Option<Arc<dyn Division>>,
}

impl Parameter {
    /// Creates a parameter with the values of `tensor`, which must have a float dtype. The parameter shares the
    /// tensor's storage if the tensor is contiguous.
    #[track_caller]
    pub fn new(tensor: Tensor) -> Result<Self> {
        Self::made(tensor, None)
    }

    /// Creates a parameter of which this process has the part `tensor`.
    #[track_caller]
    pub fn divided(tensor: Tensor, division: Arc<dyn Division>) -> Result<Self> {
        Self::made(tensor, Some(division))
    }

    #[track_caller]
    fn made(tensor: Tensor, division: Option<Arc<dyn Division>>) -> Result<Self> {
        if !tensor.dtype().is_float() {
            let e = Error::dtype("parameter", tensor.dtype(), "floats; keep integers in a Buffer");
            return Err(e.operand("tensor", tensor.shape(), tensor.dtype(), tensor.device()));
        }
        let values = tensor.detach().contiguous()?.frozen();
        Ok(Parameter(Arc::new(Inner { leaf: values.with_grad()?, values, frozen: Arc::default(), division })))
    }

    /// The tensor to compute with. It is also the key for looking up the gradient: `gradients.get(parameter.tensor())`.
    pub fn tensor(&self) -> &Tensor {
        ops::note_switch(&self.0.frozen);
        if self.is_frozen() { &self.0.values } else { &self.0.leaf }
    }

    /// The values outside the graph, whether the parameter is frozen or not. The returned tensor shares the storage.
    pub fn values(&self) -> &Tensor {
        &self.0.values
    }

    /// Overwrites the values in place with those of `source`, which must have the same shape and device and any float
    /// dtype.
    #[track_caller]
    pub fn set(&self, source: &Tensor) -> Result<()> {
        check_assign("parameter", &self.0.values, source)?;
        let _guard = no_grad_guard();
        self.0.values.copy_(source)
    }

    /// Freezes the parameter and its clones: no gradient is computed for it, and no optimiser updates it.
    pub fn freeze(&self) {
        self.0.frozen.store(true, Ordering::Relaxed);
    }

    /// Unfreezes the parameter and its clones: gradients are computed for it again, and optimisers update it.
    pub fn unfreeze(&self) {
        self.0.frozen.store(false, Ordering::Relaxed);
    }

    /// Whether the parameter is frozen.
    pub fn is_frozen(&self) -> bool {
        self.0.frozen.load(Ordering::Relaxed)
    }

    /// How the parameter is divided among processes, if this is one part of it.
    pub fn division(&self) -> Option<&Arc<dyn Division>> {
        self.0.division.as_ref()
    }

    /// Fails if the parameter [is divided](Parameter::division), for an operation `op` that needs all of it.
    #[track_caller]
    pub fn check_whole(&self, op: &str) -> Result<()> {
        if self.division().is_none() {
            return Ok(());
        }
        let m = "this needs all of a parameter, and has one part of it: the parameter is divided among processes";
        let (e, values) = (Error::new(ErrorKind::Unsupported, op, m), self.values());
        Err(e.operand("part", values.shape(), values.dtype(), values.device()))
    }

    /// A parameter with the values of `tensor` that is frozen and divided as this one is.
    #[track_caller]
    pub fn with_values(&self, tensor: Tensor) -> Result<Self> {
        let new = Parameter::made(tensor, self.0.division.clone())?;
        new.0.frozen.store(self.is_frozen(), Ordering::Relaxed);
        Ok(new)
    }

    /// Whether `other` is the same parameter, that is, a clone of this one.
    pub fn is_same(&self, other: &Parameter) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// An identity: equal for clones, and different for any other living parameter.
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

operators!(&Parameter);

impl fmt::Debug for Parameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let frozen = if self.is_frozen() { ", frozen" } else { "" };
        write!(f, "Parameter({} {}{frozen})", Shape::display(self.values().shape()), self.values().dtype())
    }
}

/// A tensor that is part of a module's state but is not trained, such as a running mean. A clone is the same buffer.
///
/// Change it with [`set`](Buffer::set). If a forward pass fails, the old values are restored (see
/// [`all_or_nothing`](gradus_tensor::all_or_nothing)). This layer updates a statistic:
/// ```
/// # use gradus_nn::{Buffer, Forward, Module}; use gradus_tensor::*;
/// #[derive(Module)]
/// struct Largest {
///     seen: Buffer,
/// }
///
/// impl Forward for Largest {
///     fn compute(&self, x: &Tensor) -> Result<Tensor> {
///         let largest = x.detach().max_all()?.maximum(&self.seen.tensor())?;
///         self.seen.set(&largest)?;
///         x.div(&largest)
///     }
/// }
/// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
/// let layer = Largest { seen: Buffer::new(Tensor::scalar(1.0f32, &device)?)? };
/// layer.forward(&Tensor::from_vec([2.0f32, 4.0], [2], &device)?)?;
/// assert_eq!(layer.seen.tensor().item()?, 4.0);
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone)]
pub struct Buffer(State<Tensor>);

impl Buffer {
    /// Creates a buffer with the values of `tensor`, of any dtype. The buffer shares the tensor's storage if the tensor
    /// is contiguous.
    #[track_caller]
    pub fn new(tensor: Tensor) -> Result<Self> {
        let values = tensor.detach().contiguous()?;
        // A handle of its own shows a trace which tensor an operation reads: the buffer's, or `tensor`.
        let own = ops::over_storage(values.storage().clone(), *values.layout(), values.dtype())?;
        Ok(Buffer(State::new(own)))
    }

    /// The current values. A later [`set`](Buffer::set) puts another tensor into the buffer and does not change this
    /// one.
    pub fn tensor(&self) -> Tensor {
        let tensor = self.0.get();
        ops::note_state(&self.0, &tensor, None);
        tensor
    }

    /// Replaces the values by a copy of `source`, which must have the same shape and device. The dtypes must be equal,
    /// or both must be float. Inside a checkpoint it runs only [`once`](gradus_tensor::autograd::once): the
    /// recomputation skips it.
    #[track_caller]
    pub fn set(&self, source: &Tensor) -> Result<()> {
        let old = self.tensor();
        check_assign("buffer", &old, source)?;
        let new = source.detach().to_dtype(old.dtype())?.contiguous()?;
        let shared = Arc::ptr_eq(new.storage(), source.storage());
        let new = if shared { new.copy()? } else { new };
        autograd::once(|| {
            self.put(new);
            Ok(())
        })
    }

    /// Stores `new` as the values. It must have the same shape, dtype and device.
    pub(crate) fn put(&self, new: Tensor) {
        ops::note_state(&self.0, &self.0.get(), Some(&new));
        self.0.set(new);
    }

    /// The values and the version token to pass to [`replace`](Buffer::replace).
    pub(crate) fn versioned(&self) -> (Tensor, u64) {
        let (tensor, version) = self.0.versioned();
        ops::note_state(&self.0, &tensor, None);
        (tensor, version)
    }

    /// Stores new values of the same shape, dtype and device, unless the buffer has changed since the call of
    /// [`versioned`](Buffer::versioned) that returned `seen`. Returns whether they were stored.
    pub(crate) fn replace(&self, new: Tensor, seen: u64) -> bool {
        let before = self.0.get();
        let replaced = self.0.replace(new.clone(), seen);
        if replaced {
            ops::note_state(&self.0, &before, Some(&new));
        }
        replaced
    }

    /// An identity: equal for clones, and different for any other living buffer.
    pub(crate) fn id(&self) -> usize {
        self.0.id()
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tensor = self.tensor();
        write!(f, "Buffer({} {})", Shape::display(tensor.shape()), tensor.dtype())
    }
}

/// Whether values of dtype `from` may be stored as `to`: the dtypes are equal, or both are float.
pub(crate) fn converts(from: DType, to: DType) -> bool {
    from == to || (from.is_float() && to.is_float())
}

/// Refuses a `source` whose values cannot replace those of `target`.
#[track_caller]
fn check_assign(op: &str, target: &Tensor, source: &Tensor) -> Result<()> {
    let refuse = |kind, message: &str| {
        Err(Error::new(kind, op, message).operand("self", target.shape(), target.dtype(), target.device()).operand(
            "source",
            source.shape(),
            source.dtype(),
            source.device(),
        ))
    };
    if target.shape() != source.shape() {
        return refuse(ErrorKind::ShapeMismatch, "the new values have another shape").here();
    }
    if !converts(source.dtype(), target.dtype()) {
        return refuse(ErrorKind::DTypeMismatch, "the new values have a dtype that is not converted silently").here();
    }
    if target.device() != source.device() {
        return refuse(ErrorKind::DeviceMismatch, "the new values are on another device").here();
    }
    Ok(())
}

/// The random numbers of a module that draws while it computes, such as dropout. It holds an explicit generator whose
/// position can be read and set, so that a resumed run continues with the same numbers. A clone is the same state. If a
/// forward pass fails, the position is restored (see [`all_or_nothing`](gradus_tensor::all_or_nothing)).
#[derive(Clone)]
pub struct RandomState(State<Generator>);

impl RandomState {
    /// Creates a state that draws from the current position of `generator`.
    pub fn new(generator: Generator) -> Self {
        RandomState(State::new(generator))
    }

    /// A copy of the generator at its current position.
    pub fn get(&self) -> Generator {
        ops::note_random(&self.0);
        self.0.get()
    }

    /// Continues from the position of `generator`.
    pub fn set(&self, generator: Generator) {
        ops::note_random(&self.0);
        self.0.set(generator);
    }

    /// Continues with the stream for part `key` of what is done at this position, such as a part of a batch; see
    /// [`Generator::part`]. Unlike [`set`](RandomState::set), this can be captured.
    pub fn begin_part(&self, key: u64) {
        ops::Jump::Part(key).make(&self.0);
    }

    /// Continues behind all parts; see [`Generator::after_parts`].
    pub fn end_parts(&self) {
        ops::Jump::AfterParts.make(&self.0);
    }

    /// Locks the generator.
    pub(crate) fn lock(&self) -> StateGuard<'_, Generator> {
        ops::note_random(&self.0);
        self.0.lock()
    }

    /// Calls `f` with the generator locked, so that no other thread draws the same numbers.
    pub fn draw<R>(&self, f: impl FnOnce(&mut Generator) -> R) -> R {
        let _source = self.as_source();
        f(&mut self.lock())
    }

    /// Begins to draw from a copy of the generator. [`RandomDraw::end`] continues from where it is then. No lock is held
    /// in between, so that a function that watches the device may read the random state.
    pub fn begin(&self) -> RandomDraw<'_> {
        RandomDraw { generator: self.get(), state: self, _source: self.as_source() }
    }

    /// Until the guard is dropped, the numbers that traced operations draw are those of this state: a replay of the
    /// operations continues it.
    fn as_source(&self) -> ops::SourceGuard {
        ops::source_guard(|| Arc::new(self.0.downgrade()))
    }
}

impl fmt::Debug for RandomState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let g = self.get();
        write!(f, "RandomState(seed {}, offset {})", g.seed(), g.offset())
    }
}

/// The generator of a [`RandomState`] while a module draws from it. [`RandomState::begin`] makes it.
///
/// ```
/// # use gradus_nn::RandomState; use gradus_tensor::*;
/// fn noisy(x: &Tensor, random: &RandomState) -> Result<Tensor> {
///     let mut draw = random.begin();
///     let y = x.dropout(0.1, &mut draw.generator);
///     draw.end(y)
/// }
/// ```
#[must_use = "the random state stays where it is until `end` is called"]
pub struct RandomDraw<'a> {
    /// The generator.
    pub generator: Generator,
    state: &'a RandomState,
    _source: ops::SourceGuard,
}

impl RandomDraw<'_> {
    /// Continues the random state from the position of the generator, unless the result is an error. Returns the result.
    #[track_caller]
    pub fn end<R>(self, result: Result<R>) -> Result<R> {
        if result.is_ok() {
            self.state.set(self.generator);
        }
        result.here()
    }
}

/// Whether a module is training or evaluating. As a field of a module, it is set by
/// [`Module::train`](crate::Module::train) and [`Module::eval`](crate::Module::eval).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Training: dropout drops elements, and batch normalisation uses the batch's statistics and updates the running
    /// ones.
    #[default]
    Train,
    /// Evaluation: dropout does nothing, and batch normalisation uses the running statistics.
    Eval,
}

impl Mode {
    /// Whether this is [`Mode::Train`].
    pub fn is_training(self) -> bool {
        self == Mode::Train
    }
}

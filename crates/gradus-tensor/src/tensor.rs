//! [`Tensor`]: a storage, a layout, a dtype and an edge into the recorded graph.

use std::sync::Arc;

use gradus_backend::host_vec::download;
use gradus_backend::{Buffer, DType, Element, Error, ErrorKind, HostVec, Layout, Result, Scalar, Shape};

use crate::autograd::{Edge, Node, Untracked, note_access, notes_access, refuses_host_reads, refuses_reads};
use crate::footprint::Footprint;
use crate::locks::with_read;
use crate::ops::{is_constant, refuse};
use crate::write_log::Write;
use crate::{Device, Storage};

/// An n-dimensional array that may belong to a recorded graph.
///
/// Cheap to clone: a clone is the same tensor, with the same identity for gradients. Tensors are immutable, except for
/// the operations whose names end in `_`. These write into the storage and raise its version. A recorded gradient that
/// needs a value overwritten in this way fails with an error that names both operations.
///
/// # Operators
/// `+`, `-`, `*`, `/` and unary `-` are [`add`](Tensor::add), [`sub`](Tensor::sub), [`mul`](Tensor::mul),
/// [`div`](Tensor::div) and [`neg`](Tensor::neg). `%` is [`fmod`](Tensor::fmod): as with Rust's numbers, the result has
/// the sign of the left side. (The `%` of Python and PyTorch is [`remainder`](Tensor::remainder).)
///
/// | on the left | on the right |
/// |---|---|
/// | a tensor | a tensor, a number, a `Result` with a tensor |
/// | a number: `f64` or `i64`, or a literal | a tensor |
/// | a `Result` with a tensor | a tensor |
///
/// Tensors may be owned or borrowed. On the right, every number that implements [`AsOperand`](crate::AsOperand) works.
/// On the left, only `f64` and `i64` do; convert other types first: `f64::from(a) * &x`.
///
/// Operators return a `Result<Tensor>`, because shapes, dtypes and devices may not match. An operand that is an error
/// is passed on, so most expressions need a single `?` around the whole expression:
///
/// ```
/// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
/// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
/// # let x = Tensor::from_vec(vec![1.0f32, 2.0], [2], &device)?;
/// # let (w, b) = (x.clone(), x.clone());
/// let y = (&x * &w + &b)?;
/// let y = (1.0 - &x)?;
/// let y = (x.exp()? + b.tanh()?)?;
/// let y = (x.exp() + &b - b.tanh()?)?;
/// # Ok::<(), Error>(())
/// ```
///
/// Rust does not let a crate define operators between two `Result`s, or between a `Result` and a number. These cases
/// need one more `?`:
///
/// ```
/// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
/// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
/// # let x = Tensor::from_vec(vec![1.0f32, 2.0], [2], &device)?;
/// # let (w, b) = (x.clone(), x.clone());
/// let y = ((&x + &b)? / 2.0)?; // not (&x + &b) / 2.0
/// let y = ((&x * &w)? + &b * 0.5)?; // not &x * &w + &b * 0.5
/// # Ok::<(), Error>(())
/// ```
///
/// A chain of calls reads better with methods, each with its own `?`: `x.mul(&w)?.add(0.25)?.silu()?`.
///
/// There is no `+=`, since it could not return an error. Write `x = (x + y)?`, or [`x.add_(&y)?`](Tensor::add_) to
/// write in place. Comparisons are methods that return a tensor of booleans: [`x.lt(0)?`](Tensor::lt).
///
/// # Unused results
/// Except for the in-place methods, whose names end in `_`, an operation returns a new tensor and leaves its operands
/// unchanged. The compiler warns if the result is not used:
///
/// ```compile_fail
/// #![deny(unused_must_use)]
/// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
/// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
/// # let x = Tensor::from_vec(vec![1.0f32, 2.0], [2], &device)?;
/// x.relu()?; // Intended: let x = x.relu()?;
/// # Ok::<(), Error>(())
/// ```
#[must_use = "an operation gives a new tensor and leaves its operands as they are: `let y = x.relu()?;`"]
#[derive(Clone)]
pub struct Tensor(Arc<Inner>);

pub(crate) struct Inner {
    storage: Arc<Storage>,
    layout: Layout,
    dtype: DType,
    edge: Option<Edge>,
    /// With an edge: the version of the storage that the edge refers to. Leaves and their views have `FOLLOWS`, because
    /// they stand for whatever the storage currently holds. Without an edge: why there is none, as the code of an
    /// [`Untracked`], which counts down from `FOLLOWS`.
    version: u64,
}

/// See `Inner::version`.
const FOLLOWS: u64 = u64::MAX;

/// The value of `Inner::version` for a result of `inputs` that stays outside the graph. It encodes the reason.
#[inline]
fn past(inputs: &[&Tensor]) -> u64 {
    // This is kept as an inlined loop, because other forms slow small operations down by several nanoseconds.
    let mut last = FOLLOWS;
    for t in inputs {
        last = last.min(if t.requires_grad() { Untracked::now().code() } else { t.0.version });
    }
    last
}

impl Inner {
    /// Takes the edge out, so that a graph can be dropped without recursion.
    pub(crate) fn into_edge(self) -> Option<Edge> {
        self.edge
    }
}

impl Tensor {
    /// A result computed from `inputs`. It is outside the graph until an edge is set.
    #[inline]
    pub(crate) fn computed(storage: Arc<Storage>, layout: Layout, dtype: DType, inputs: &[&Tensor]) -> Self {
        let version = past(inputs);
        Tensor(Arc::new(Inner { storage, layout, dtype, edge: None, version }))
    }

    /// The same values outside the graph, with `why` as the reason.
    pub(crate) fn untracked(&self, why: Untracked) -> Self {
        let (storage, layout, dtype) = (self.0.storage.clone(), self.0.layout, self.0.dtype);
        Tensor(Arc::new(Inner { storage, layout, dtype, edge: None, version: why.code() }))
    }

    /// The same values outside the graph, marked as those of a frozen parameter, so that errors can say so.
    #[doc(hidden)]
    pub fn frozen(&self) -> Self {
        self.untracked(Untracked::Frozen)
    }

    /// The reason why an untracked tensor is outside the graph.
    pub(crate) fn why_untracked(&self) -> Untracked {
        Untracked::of(self.0.version)
    }

    /// A tensor outside the graph.
    pub(crate) fn from_parts(storage: Arc<Storage>, layout: Layout, dtype: DType) -> Self {
        Tensor(Arc::new(Inner { storage, layout, dtype, edge: None, version: FOLLOWS }))
    }

    /// The same storage with another layout and another edge. The edge refers to the same version of the storage as
    /// this tensor's edge.
    pub(crate) fn view_at(&self, layout: Layout, edge: Option<Edge>) -> Self {
        let (storage, dtype) = (self.0.storage.clone(), self.0.dtype);
        let leaves = edge.is_none() && self.0.edge.is_some();
        let version = if leaves { Untracked::now().code() } else { self.0.version };
        Tensor(Arc::new(Inner { storage, layout, dtype, edge, version }))
    }

    /// The elements in row-major order, in memory that holds nothing else, and that nobody else holds. Copies them if
    /// necessary.
    #[track_caller]
    pub(crate) fn into_own(self) -> Result<Tensor> {
        // Weak handles find nothing once the memory is taken over.
        let is_own = self.is_unshared() && self.0.edge.is_none() && self.is_contiguous();
        let whole = is_own && self.storage().bytes() == self.numel() * self.dtype().size();
        if whole { Ok(self) } else { self.detach().copy() }
    }

    /// The memory of what [`into_own`](Tensor::into_own) gave.
    #[track_caller]
    pub(crate) fn into_memory(self) -> Result<Buffer> {
        let storage = self.into_inner().and_then(|inner| Arc::into_inner(inner.storage));
        storage.map(Storage::into_buffer).ok_or_else(|| Error::argument("fill", "somebody else holds the values"))
    }

    /// The inner value, if this is the last handle.
    pub(crate) fn into_inner(self) -> Option<Inner> {
        Arc::into_inner(self.0)
    }

    /// The same values and storage with another edge, to a node that recorded the storage in its current state.
    pub(crate) fn with_edge(&self, edge: Edge) -> Self {
        let mut t = self.clone();
        t.set_edge(edge);
        t
    }

    /// Sets the tensor's edge. Modifies the tensor itself if this is the only handle.
    pub(crate) fn set_edge(&mut self, edge: Edge) {
        let version = if edge.node.is_leaf() { FOLLOWS } else { self.0.storage.version() };
        match Arc::get_mut(&mut self.0) {
            Some(inner) => (inner.edge, inner.version) = (Some(edge), version),
            None => {
                let (storage, layout, dtype) = (self.0.storage.clone(), self.0.layout, self.0.dtype);
                self.0 = Arc::new(Inner { storage, layout, dtype, edge: Some(edge), version });
            }
        }
    }

    /// Fails if the tensor is tracked and its elements have been overwritten since it was recorded: its edge belongs
    /// to the old values.
    #[inline]
    #[track_caller]
    pub(crate) fn check_current(&self, op: &str) -> Result<()> {
        let inner = &*self.0;
        if inner.edge.is_none() || inner.version == FOLLOWS || inner.version == inner.storage.version() {
            return Ok(());
        }
        self.check_writes(op)
    }

    #[cold]
    #[track_caller]
    fn check_writes(&self, op: &str) -> Result<()> {
        let Some(write) = self.overwritten(self.0.version) else { return Ok(()) };
        let m = format!("{op} would be recorded as taking a computed tensor, which {} overwrote", write.op);
        let e = self.describe(Error::new(ErrorKind::Autograd, op, m), "input");
        let e = match self.grad_fn() {
            Some(node) => e
                .note(format!("{} computed it at {}", node.name(), node.location()))
                .with_version_mismatch(write.mismatch(op, "input".into(), self.0.version, node.location())),
            None => e,
        };
        Err(e
            .note(format!("{} wrote at {}", write.op, write.location))
            .help("use the written values without their past: x.detach(); or write into a copy"))
    }

    /// Whether this is the only handle to the tensor, and the only tensor over its storage.
    pub(crate) fn is_unshared(&self) -> bool {
        Arc::strong_count(&self.0) == 1 && Arc::strong_count(&self.0.storage) == 1
    }

    /// Whether the memory may be reused once this value is not read again: the tensor must be untracked and contiguous,
    /// and nobody else may hold it. A weak handle to the storage counts as well. Weak handles are checked first, since
    /// they are created from strong ones.
    pub(crate) fn is_spare(&self) -> bool {
        Arc::weak_count(&self.0.storage) == 0 && self.is_unshared() && self.0.edge.is_none() && self.is_contiguous()
    }

    /// The first property in which this tensor differs from `want` and `device`: device, then dtype, then shape.
    pub(crate) fn mismatch(&self, want: &Spec, device: &Device) -> Option<ErrorKind> {
        match () {
            () if self.device() != device => Some(ErrorKind::DeviceMismatch),
            () if self.dtype() != want.dtype => Some(ErrorKind::DTypeMismatch),
            () if *self.layout().shape() != want.shape => Some(ErrorKind::ShapeMismatch),
            () => None,
        }
    }

    /// The description of this tensor as an input of an operation.
    pub(crate) fn as_input(&self) -> InputSpec<'_> {
        InputSpec { shape: self.layout().shape(), dtype: self.dtype(), device: self.device() }
    }

    /// The shape and dtype of this tensor.
    pub(crate) fn spec(&self) -> Spec {
        Spec { shape: *self.0.layout.shape(), dtype: self.0.dtype }
    }

    /// The sizes of the axes.
    pub fn shape(&self) -> &[usize] {
        self.0.layout.dims()
    }

    /// The size of one axis. A negative axis counts from the end.
    #[track_caller]
    pub fn size(&self, axis: isize) -> Result<usize> {
        Ok(self.shape()[gradus_backend::shape::resolve_axis("size", axis, self.rank())?])
    }

    /// The number of axes.
    pub fn rank(&self) -> usize {
        self.0.layout.rank()
    }

    /// The number of elements.
    pub fn numel(&self) -> usize {
        self.0.layout.numel()
    }

    /// The dtype of the elements.
    pub fn dtype(&self) -> DType {
        self.0.dtype
    }

    /// The device that holds the tensor.
    pub fn device(&self) -> &Device {
        self.0.storage.device()
    }

    /// How the elements are arranged in the storage.
    pub fn layout(&self) -> &Layout {
        &self.0.layout
    }

    /// The storage, which all views of the tensor share.
    pub fn storage(&self) -> &Arc<Storage> {
        &self.0.storage
    }

    /// Whether the elements are adjacent in memory, in row-major order.
    pub fn is_contiguous(&self) -> bool {
        self.0.layout.is_contiguous()
    }

    pub(crate) fn edge(&self) -> Option<&Edge> {
        self.0.edge.as_ref()
    }

    /// Whether gradients flow through this tensor: it is a leaf that requires a gradient, or was computed from one.
    pub fn requires_grad(&self) -> bool {
        self.0.edge.is_some()
    }

    /// Whether this tensor is not the result of a recorded operation.
    pub fn is_leaf(&self) -> bool {
        self.grad_fn().is_none()
    }

    /// The recorded operation that computed this tensor; `None` for leaves.
    pub fn grad_fn(&self) -> Option<&Arc<Node>> {
        self.0.edge.as_ref().map(|e| &e.node).filter(|n| !n.is_leaf())
    }

    /// A leaf with the same values that requires a gradient. Shares the storage. Fails if the dtype is not a float.
    #[track_caller]
    pub fn with_grad(&self) -> Result<Tensor> {
        if !self.dtype().is_float() {
            return Err(Error::dtype("with_grad", self.dtype(), "floats; gradients of integers do not exist"));
        }
        Ok(self.with_edge(Node::leaf(self)))
    }

    /// The same values outside the graph. Shares the storage.
    pub fn detach(&self) -> Tensor {
        if self.0.edge.is_none() { self.clone() } else { self.untracked(Untracked::Detached) }
    }

    /// The latest write to one of the elements since the storage had `version`.
    pub(crate) fn overwritten(&self, version: u64) -> Option<Write> {
        if self.storage().version() == version {
            return None;
        }
        self.storage().overwritten_at(version, &self.footprint())
    }

    /// The bytes of the storage that the elements of this tensor occupy.
    #[inline]
    pub(crate) fn footprint(&self) -> Footprint {
        Footprint::new(self.layout(), self.dtype().size())
    }

    /// The byte range of the storage from the first element to the last.
    pub(crate) fn byte_span(&self) -> std::ops::Range<usize> {
        let (span, size) = (self.0.layout.span(), self.dtype().size());
        span.start * size..span.end * size
    }

    /// Adds the shape, dtype and device of this tensor to an error, under `name`.
    #[track_caller]
    pub(crate) fn describe(&self, error: Error, name: &str) -> Error {
        error.operand(name, self.shape(), self.dtype(), self.device())
    }

    /// Returns all elements in row-major order. `T` must match the tensor's dtype; convert with
    /// [`to_dtype`](Tensor::to_dtype).
    ///
    /// ```
    /// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
    /// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    /// let x = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 4.0], [2, 2], &device)?;
    /// assert_eq!(x.t()?.to_vec::<f32>()?, [1.0, 3.0, 2.0, 4.0]);
    /// assert!(x.to_vec::<i64>().is_err());
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        if T::DTYPE != self.dtype() {
            let m = format!("elements are {}, not {}", self.dtype(), T::DTYPE);
            let e = Error::new(ErrorKind::DTypeMismatch, "to_vec", m);
            return Err(self.describe(e, "self").help(format!(
                "read it as {}, or convert with to_dtype(DType::{:?})?",
                self.dtype(),
                T::DTYPE
            )));
        }
        self.check_read()?;
        Ok(self.host("to_vec")?.into_vec())
    }

    /// Returns all elements in row-major order as bytes in native byte order.
    #[track_caller]
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        self.check_read()?;
        let size = self.dtype().size();
        Ok(self
            .read(|buffer, start, n| {
                download::<u8, _>(self.device().backend(), "to_bytes", buffer, start * size, n * size)
            })?
            .into_vec())
    }

    /// Fails if the elements of a tracked tensor are read inside a gradient that is itself differentiated.
    #[track_caller]
    fn check_read(&self) -> Result<()> {
        if refuses_reads() && self.requires_grad() {
            let m = "the numbers of a tracked tensor are read in a gradient that is differentiated itself: what is computed from them would be missing";
            let e = self.describe(Error::new(ErrorKind::Autograd, "to_vec", m), "self");
            return Err(e
                .note("in the backward of a custom operation, with create_graph")
                .help("compute it by tensor operations; read x.detach() for a constant; or let once_differentiable() return true"));
        }
        Ok(())
    }

    /// All elements in row-major order, read by `op`. Unlike [`to_vec`](Tensor::to_vec) it never refuses to read a
    /// tracked tensor. `T` must match the dtype.
    #[track_caller]
    pub(crate) fn host<T: Element>(&self, op: &str) -> Result<HostVec<T>> {
        self.read(|buffer, start, n| download(self.device().backend(), op, buffer, start, n))
    }

    /// Calls `f` with a buffer in which the elements are contiguous, the index of the first one, and their number.
    #[track_caller]
    fn read<R>(&self, f: impl FnOnce(&Buffer, usize, usize) -> Result<R>) -> Result<R> {
        if refuses_host_reads() && !is_constant(self) {
            refuse(|| {
                let m = "the elements of a tensor are read on the host inside a captured step";
                let e = self.describe(Error::new(ErrorKind::InvalidArgument, "capture", m), "self");
                e.note("a replay would go on with the numbers of this call")
                    .help("return the tensor from the step and read it there, or compute with tensor operations")
            })?;
        }
        let dense = if self.is_contiguous() {
            self.clone()
        } else {
            if notes_access() {
                note_access(self, false);
            }
            self.detach().contiguous()?
        };
        with_read(&[&dense], |views| f(views[0].buffer, dense.0.layout.offset(), self.numel()))
    }

    /// Returns the only element of a tensor that has exactly one. `T` must match the dtype.
    #[track_caller]
    pub fn to_scalar<T: Element>(&self) -> Result<T> {
        if self.numel() != 1 {
            let e = Error::shape("to_scalar", format!("{} elements where one is needed", self.numel()));
            return Err(self.describe(e, "self").help("reduce it first, for example with sum_all or mean_all"));
        }
        Ok(self.to_vec::<T>()?[0])
    }

    /// Returns the only element as an `f64`, for any dtype. Fails unless the tensor has exactly one element.
    #[track_caller]
    pub fn item(&self) -> Result<f64> {
        if self.numel() != 1 {
            let e = Error::shape("item", format!("{} elements where one is needed", self.numel()));
            return Err(self.describe(e, "self").help("reduce it first, for example with sum_all or mean_all"));
        }
        self.check_read()?;
        Ok(self.scalars()?[0].to_f64())
    }

    /// All elements as scalars, for printing and for reading single values.
    #[track_caller]
    pub(crate) fn scalars(&self) -> Result<HostVec<Scalar>> {
        macro_rules! read {
            ($($d:ident $t:ty),*) => {
                match self.dtype() {
                    $(DType::$d => {
                        let values = self.host::<$t>(OP)?;
                        HostVec::collect(self.device().backend(), OP, values.iter().map(|v| v.to_scalar()))
                    })*
                }
            };
        }
        use gradus_backend::{bf16, f16};
        const OP: &str = "read";
        read!(F64 f64, F32 f32, F16 f16, BF16 bf16, I64 i64, I32 i32, I16 i16, I8 i8, U64 u64, U32 u32, U16 u16,
            U8 u8, Bool bool)
    }
}

/// The properties of an input that an operation knows before it runs. The elements and their layout are not among them.
#[derive(Debug, Clone, Copy)]
pub struct InputSpec<'a> {
    /// The sizes of the axes.
    pub shape: &'a Shape,
    /// The dtype of the elements.
    pub dtype: DType,
    /// The device that holds the input.
    pub device: &'a Device,
}

/// The shape and dtype of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Spec {
    /// The sizes of the axes.
    pub shape: Shape,
    /// The dtype of the elements.
    pub dtype: DType,
}

//! [`capture`], [`capture_typed`] and [`Step`]: a function that is traced and then replayed.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::marker::PhantomData;
use std::sync::Arc;

use gradus_tensor::{Error, Result, Tensor};

use crate::captured::Captured;
use crate::graph::Graph;
use crate::passes::MemoryLimit;
use crate::tensors::Tensors;

/// A function of tensors whose operations are traced and then replayed; see [`capture`] and [`capture_typed`].
pub struct Step<F, A: ?Sized = [Tensor]> {
    f: F,
    /// The host values are the form of the results.
    captured: Captured<Form>,
    argument: PhantomData<fn(&A)>,
}

/// The form of a result, as [`Tensors::flatten`] gives it. Each replay returns it again, so that a copy must be cheap.
#[derive(Clone, PartialEq)]
struct Form(Arc<[usize]>);

impl fmt::Debug for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a value whose lists and options have the lengths {:?}", self.0)
    }
}

/// Wraps `f` so that its later calls are replayed.
///
/// The first two calls of [`Step::call`] run `f` and trace the operations. If the two traces agree, later calls replay
/// them. If not, the next calls are traced too, because the first call of a training step allocates the optimiser's
/// state and so differs from the second. A difference that remains after four traces is an error, which names the
/// operation and shows both forms. Arguments of another shape, dtype, stride or device are traced separately, and only
/// once if the operations are those of a form with other sizes. At most eight forms are kept. With `GRADUS_LOG=graph`, a
/// line is printed that says why a call is traced.
///
/// A replay repeats the operations of `f` and nothing else that `f` does. It is therefore an error to read a tensor on
/// the host (`item`, `to_vec`, `Display`), to return a result that requires a gradient, to use host numbers that differ
/// from call to call, or to keep a tensor from one call for the next. A replay does update the parameters and buffers
/// of layers, the step counts and learning rates of optimisers, and the random states of layers, exactly as the
/// function would.
pub fn capture<R, F>(f: F) -> Step<F>
where
    F: FnMut(&[Tensor]) -> Result<R>,
    R: Tensors,
{
    Step { f, captured: Captured::strict(), argument: PhantomData }
}

/// [`capture`] for a function of one value that consists of tensors: a tensor, a tuple, a list, or a struct that derives
/// [`Tensors`]. Arguments of another form, such as a list of another length, are traced separately.
pub fn capture_typed<A, R, F>(f: F) -> Step<F, A>
where
    F: FnMut(&A) -> Result<R>,
    A: Tensors,
    R: Tensors,
{
    Step { f, captured: Captured::strict(), argument: PhantomData }
}

impl<F> Step<F> {
    /// Runs the step on these arguments.
    ///
    /// # Errors
    /// Returns the errors of the function, and those that [`capture`] lists. If a replay fails, its error has the line of
    /// the operation. If the device did not fail, and nothing that outlives the call has been written by then, the function
    /// runs instead and returns its own error, with the layer. If a call cannot be replayed, the function may have run in
    /// part or to its end, and what it changed stays changed.
    #[track_caller]
    pub fn call<R>(&mut self, inputs: &[&Tensor]) -> Result<R>
    where
        F: FnMut(&[Tensor]) -> Result<R>,
        R: Tensors,
    {
        let f = &mut self.f;
        joined(self.captured.call(0, inputs, |inputs| Ok(parted(&f(inputs)?)))?)
    }
}

impl<F, A: Tensors> Step<F, A> {
    /// Runs the step on this argument.
    ///
    /// # Errors
    /// Those of a step on a list of tensors: the errors of the function, and those that [`capture`] lists.
    #[track_caller]
    pub fn call<R>(&mut self, argument: &A) -> Result<R>
    where
        F: FnMut(&A) -> Result<R>,
        R: Tensors,
    {
        let (mut inputs, mut form) = (vec![], vec![]);
        argument.flatten(&mut inputs, &mut form);
        let mut hasher = DefaultHasher::new();
        form.hash(&mut hasher);
        let f = &mut self.f;
        joined(self.captured.call(hasher.finish(), &inputs, |_| Ok(parted(&f(argument)?)))?)
    }
}

/// The tensors of a result and its form.
fn parted(result: &impl Tensors) -> (Vec<Tensor>, Form) {
    let (mut tensors, mut form) = (vec![], vec![]);
    result.flatten(&mut tensors, &mut form);
    (tensors.into_iter().cloned().collect(), Form(form.into()))
}

#[track_caller]
fn joined<R: Tensors>((tensors, Form(form)): (Vec<Tensor>, Form)) -> Result<R> {
    R::unflatten(&mut tensors.into_iter(), &mut form.iter().copied())
        .ok_or_else(|| Error::argument("capture", "`Tensors::unflatten` does not make what `flatten` took apart"))
}

impl<F, A: ?Sized> Step<F, A> {
    /// Verifies the next `calls` replays: the function runs as well, and if a single bit of the results, of the tensors
    /// written in place, of the buffers of layers or of the states of sources differs, the call fails with an error that
    /// lists the operations. On devices other than CPUs, whose compilers may fuse instructions, a difference of 1e-4
    /// times the largest magnitude is allowed. In debug builds the first replay of each plan is always verified.
    pub fn verify(&mut self, calls: u64) {
        self.captured.verify(calls);
    }

    /// Traces the next call of each form of the arguments again; see [`Captured::recheck`].
    pub fn recheck(&mut self) {
        self.captured.recheck();
    }

    /// Sets how much memory the temporary values of a replay may take. Forgets all traces and plans.
    ///
    /// ```
    /// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
    /// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    /// use gradus_graph::{MemoryLimit, capture};
    ///
    /// let mut step = capture(|x| {
    ///     let (a, b) = (x[0].sum(&[1], true)?.add(&x[0])?.exp()?, x[0].matmul(&x[0])?.exp()?);
    ///     Ok(vec![b.matmul(&b)?.exp()?.matmul(&b)?.matmul(&a)?])
    /// });
    /// step.limit_memory(MemoryLimit::Bytes(0)); // as little as possible
    /// let x = Tensor::full([8, 8], 0.1, DType::F32, &device)?;
    /// for _ in 0..3 {
    ///     step.call(&[&x])?;
    /// }
    /// assert!(step.temporary_bytes() <= Some(3 * 8 * 8 * 4 + 32));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn limit_memory(&mut self, limit: MemoryLimit) {
        self.captured.limit_memory(limit);
    }

    /// The bytes of memory that a replay needs for temporary values; see [`Captured::temporary_bytes`].
    pub fn temporary_bytes(&self) -> Option<usize> {
        self.captured.temporary_bytes()
    }

    /// The number of calls that were replayed.
    pub fn replays(&self) -> u64 {
        self.captured.replays()
    }

    /// The graph of the most recent call that could be replayed.
    pub fn graph(&self) -> Option<&Graph> {
        self.captured.graph()
    }
}

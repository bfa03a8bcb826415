//! Elementwise updates: kernels that write their results over tensors which they may also read, in one pass.

use std::cell::RefCell;
use std::fmt;
use std::sync::{Arc, Mutex};

use gradus_backend::{
    Backend, DType, Error, ErrorKind, Expr, Here, Kernel, KernelBuilder, MapOperands, Result, Scalar, Shape, View,
    ViewMut,
};
use smallvec::SmallVec;

use super::map::{arguments, describe, stretched};
use super::{Arg, Effect, Flow, InPlace, InputSpec, Op, Operation, Outputs, Spec, To, bind, same_device};
use crate::Tensor;
use crate::autograd::Nested;

/// An elementwise kernel whose outputs are written over tensors that it may read. `infer` receives the written tensors,
/// which have the same shape, and then other tensors, which broadcast to that shape.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Update {
    /// The kernel to apply.
    pub kernel: Arc<Kernel>,
    /// The source of each argument of the kernel.
    pub args: SmallVec<[Arg; 3]>,
}

impl fmt::Debug for Update {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        describe(&self.kernel, &self.args, f)
    }
}

impl Update {
    /// Whether a backend may make both updates by one call: they differ only in their tensors, and none can fail.
    pub(super) fn joins(&self, other: &Update) -> bool {
        self.args == other.args && self.kernel == other.kernel && !self.kernel.can_fail()
    }

    /// Makes updates that [join](Update::joins) this one, with the inputs and outputs of each.
    #[track_caller]
    pub(super) fn forward_each(&self, backend: &dyn Backend, operands: &mut [Operands<'_>]) -> Result<()> {
        let layouts = operands.iter().map(|(views, outs)| stretched(views, outs[0].layout.shape()));
        let layouts = layouts.collect::<Result<Vec<_>>>()?;
        let args: Vec<_> = operands.iter().zip(&layouts).map(|(o, l)| arguments(&self.args, &o.0, l)).collect();
        let calls = args.iter().zip(operands.iter_mut().map(|(_, outs)| outs));
        let mut calls: Vec<_> = calls.map(|(args, outs)| MapOperands { args, outs }).collect();
        backend.map_each(&self.kernel, &mut calls)
    }
}

/// The inputs and the outputs of an update.
pub(super) type Operands<'a> = (SmallVec<[View<'a>; 4]>, SmallVec<[ViewMut<'a>; 2]>);

impl Operation for Update {
    fn name(&self) -> &str {
        self.kernel.name()
    }

    fn infer(&self, inputs: &[InputSpec<'_>]) -> Result<Outputs> {
        let outputs = self.kernel.outputs();
        let shape = *inputs[0].shape;
        for (i, x) in inputs.iter().enumerate() {
            if i < outputs.len() && (*x.shape != shape || x.dtype != outputs[i].1) {
                let m = format!("the tensors that are written have one shape, and here number {i} is {}", outputs[i].1);
                return Err(Error::shape(self.name(), m));
            }
            if Shape::broadcast(self.name(), &shape, x.shape).ok() != Some(shape) {
                let m = "an operand does not broadcast to the tensors that are written";
                return Err(Error::new(ErrorKind::Broadcast, self.name(), m));
            }
        }
        Ok(outputs.iter().map(|&(_, dtype)| Spec { shape, dtype }).collect())
    }

    fn forward(&self, backend: &dyn Backend, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        let layouts = stretched(inputs, outputs[0].layout.shape())?;
        backend.map(&self.kernel, &arguments(&self.args, inputs, &layouts), outputs)
    }

    fn flow(&self) -> Flow {
        Flow::InPlace
    }

    fn can_fail(&self) -> bool {
        self.kernel.can_fail()
    }

    fn same_form(&self, other: &Self) -> bool {
        let tensors =
            |op: &Self| op.args.iter().filter(|arg| !matches!(arg, Arg::Scalar(_))).copied().collect::<Vec<_>>();
        tensors(self) == tensors(other) && self.kernel.args() == other.kernel.args()
    }

    fn effect(&self) -> Effect {
        Effect::Updates
    }

    fn differentiable(&self, _: usize) -> bool {
        false
    }
}

/// An update of one or more tensors in one pass over memory, such as an optimiser step, a running average or a rounded
/// copy.
///
/// The formula receives the tensors and then the numbers, as scalars in the compute dtype of the first tensor that is
/// written, regardless of the dtypes in which they are stored. It returns a value for each tensor that is written,
/// which is rounded once when it is stored.
///
/// ```
/// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
/// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
/// // average = decay * average + (1 - decay) * x
/// static AVERAGE: UpdateFn = UpdateFn::new("average", |x| vec![x[2] * x[0] + (1.0 - x[2]) * x[1]]);
///
/// let average = Tensor::from_vec([1.0f32, 2.0], [2], &device)?;
/// let x = Tensor::from_vec([3.0f32, 4.0], [2], &device)?;
/// AVERAGE.apply(&[&average], &[&average, &x], &[0.75])?;
/// assert_eq!(average.to_vec::<f32>()?, [1.5, 2.5]);
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug)]
pub struct UpdateFn {
    name: &'static str,
    body: for<'k> fn(&[Expr<'k>]) -> Vec<Expr<'k>>,
    /// One kernel for each list of dtypes that has been requested.
    kernels: Mutex<Vec<Arc<Kernel>>>,
}

type Dtypes = SmallVec<[DType; 16]>;

impl UpdateFn {
    /// An update with this formula.
    pub const fn new(name: &'static str, body: for<'k> fn(&[Expr<'k>]) -> Vec<Expr<'k>>) -> Self {
        UpdateFn { name, body, kernels: Mutex::new(Vec::new()) }
    }

    /// Evaluates the formula for `tensors` and `numbers`, and writes the results into `written`. The written tensors
    /// must have the same shape, and `tensors` must broadcast to it. A tensor that is also written is read with its old
    /// value. To avoid a copy of that value, pass the same reference in both lists. Floats wider than the compute dtype
    /// of the first written tensor are rounded to it.
    ///
    /// # Errors
    /// Fails if tensors do not broadcast or are on different devices; if the first written tensor holds integers while
    /// another tensor holds floats or a number has a fraction; if written tensors share memory; if gradients are
    /// enabled and a tensor requires one; or if the formula does not return one value for each written tensor.
    #[track_caller]
    pub fn apply(&self, written: &[&Tensor], tensors: &[&Tensor], numbers: &[f64]) -> Result<()> {
        let Some(first) = written.first() else { return Err(Error::argument(self.name, "nothing is written")) };
        if COLLECTED.with_borrow(Option::is_some) {
            return self.collect(written, tensors, numbers);
        }
        let how = InPlace::Update(self.name);
        for t in written {
            t.check_writable(how, tensors)?;
        }
        let all: SmallVec<[&Tensor; 8]> = written.iter().chain(tensors).copied().collect();
        same_device(self.name, &all)?;
        let shape = first.layout().shape();
        if let Some(t) = tensors.iter().find(|t| t.dtype().is_float() && !first.dtype().is_float()) {
            return Err(t.describe(first.another_dtype(self.name), "operand"));
        }
        for (i, t) in all.iter().enumerate().filter(|(_, t)| t.layout().shape() != shape) {
            let e = match Shape::broadcast(self.name, shape, t.shape()) {
                _ if i < written.len() => Error::shape(self.name, "the tensors that are written have one shape"),
                Ok(stretched) if stretched == *shape => continue,
                _ => {
                    let m = "an operand does not broadcast to the tensors that are written";
                    Error::new(ErrorKind::Broadcast, self.name, m)
                }
            };
            return Err(t.describe(first.describe(e, "written"), "operand"));
        }
        let wide = first.dtype().compute();
        for &n in numbers {
            Scalar::Float(n).check(wide).map_err(|e| Error::argument(self.name, e.message())).here()?;
        }
        let dtypes: Dtypes = tensors.iter().map(|t| t.dtype()).chain(numbers.iter().map(|_| wide)).collect();
        let kernel = self.kernel(&dtypes, &written.iter().map(|t| t.dtype()).collect::<Dtypes>())?;
        let (mut inputs, mut args): (SmallVec<[Tensor; 4]>, SmallVec<[Arg; 3]>) = Default::default();
        for &t in tensors {
            args.push(match written.iter().position(|w| std::ptr::eq(*w, t)) {
                Some(i) => Arg::Output(i),
                None => {
                    inputs.push(t.detach());
                    Arg::Tensor(inputs.len() - 1)
                }
            });
        }
        args.extend(numbers.iter().map(|&n| Arg::Scalar(Scalar::Float(n))));
        let inputs: SmallVec<[&Tensor; 4]> = inputs.iter().collect();
        bind(Update { kernel, args }, &inputs, To::Written(how, first.device(), written))
    }

    /// Adds the operation of [`apply`](UpdateFn::apply) to the list of [`collect_updates`].
    #[cold]
    #[track_caller]
    fn collect(&self, written: &[&Tensor], tensors: &[&Tensor], numbers: &[f64]) -> Result<()> {
        let wide = written[0].dtype().compute();
        let dtypes: Dtypes = tensors.iter().map(|t| t.dtype()).chain(numbers.iter().map(|_| wide)).collect();
        let kernel = self.kernel(&dtypes, &written.iter().map(|t| t.dtype()).collect::<Dtypes>())?;
        let mut inputs = 0..;
        let arg = |t: &&Tensor| match written.iter().position(|w| std::ptr::eq(*w, *t)) {
            Some(i) => Arg::Output(i),
            None => Arg::Tensor(inputs.next().unwrap_or_default()),
        };
        let mut args: SmallVec<[Arg; 3]> = tensors.iter().map(arg).collect();
        args.extend(numbers.iter().map(|&n| Arg::Scalar(Scalar::Float(n))));
        COLLECTED.with_borrow_mut(|list| {
            list.iter_mut().for_each(|l| l.push(Update { kernel: kernel.clone(), args: args.clone() }.into()))
        });
        Ok(())
    }

    /// The kernel for tensors and numbers of the dtypes `args` that writes tensors of the dtypes `outputs`. It is built
    /// on first use.
    #[track_caller]
    pub fn kernel(&self, args: &[DType], outputs: &[DType]) -> Result<Arc<Kernel>> {
        let Some(wide) = outputs.first().map(|d| d.compute()) else {
            return Err(Error::argument(self.name, "nothing is written"));
        };
        let kernels = || self.kernels.lock().unwrap_or_else(|e| e.into_inner());
        let fits = |k: &Kernel| k.args() == args && k.outputs().iter().map(|o| &o.1).eq(outputs);
        if let Some(kernel) = kernels().iter().find(|k| fits(k)) {
            return Ok(kernel.clone());
        }
        // The kernel is built without holding the lock, since the formula is user code.
        let _nested = Nested::enter(self.name)?;
        let builder = KernelBuilder::new(args);
        let operands: Vec<_> = builder.args().into_iter().map(|x| x.cast(wide)).collect();
        let values = (self.body)(&operands);
        if values.len() != outputs.len() {
            let m = format!("the formula gives {} values, and {} tensors are written", values.len(), outputs.len());
            return Err(Error::argument(self.name, m));
        }
        let values: Vec<_> = values.into_iter().zip(outputs).map(|(e, &d)| (e.cast(d), d)).collect();
        let kernel = Arc::new(builder.finish(self.name, &values)?);
        kernels().push(kernel.clone());
        Ok(kernel)
    }
}

thread_local! {
    /// The updates that [`collect_updates`] has found so far, while it runs.
    static COLLECTED: RefCell<Option<Vec<Op>>> = const { RefCell::new(None) };
}

/// Puts the outer list back when it is dropped.
struct Outer(Option<Vec<Op>>);

impl Drop for Outer {
    fn drop(&mut self) {
        drop(COLLECTED.replace(self.0.take()));
    }
}

/// Runs `f`, in which [`UpdateFn::apply`] neither checks nor writes its operands: its operations are returned instead.
/// Whoever replays an update finds its numbers in this way.
pub fn collect_updates<R>(f: impl FnOnce() -> R) -> (R, Vec<Op>) {
    let _outer = Outer(COLLECTED.replace(Some(vec![])));
    let result = f();
    (result, COLLECTED.take().unwrap_or_default())
}

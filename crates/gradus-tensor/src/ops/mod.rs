//! The operations, one file each, and `apply`, the one door that all of them go through.
//!
//! The trip of a call: the method (`x.softmax(-1)`) makes the operation's struct, `apply` infers shape and dtype,
//! allocates, runs it on the backend and records it, and the backend's method is the kernel.

mod adaptive_pool;
mod arg_reduce;
mod attention;
mod cast;
mod cat;
mod conv;
mod conv_transpose;
mod copy;
mod cross_entropy;
mod diagonal;
mod distance;
mod dropout;
mod einsum;
mod elementwise;
mod embedding;
mod gather;
mod gemm;
mod grid;
mod grid_sample;
mod index;
mod inplace;
mod inplace_index;
mod interpolate;
mod linear;
mod loss;
mod map;
mod masked;
mod matmul;
mod movement;
mod norm;
mod normalize;
mod one_hot;
mod operand;
mod operand_rules;
mod operators;
mod pad;
mod pointwise;
mod pool;
mod reduce;
mod repeat;
mod roll;
mod scan;
mod scatter;
mod scatter_reduce;
mod search;
mod slice;
mod sliding;
mod softmax;
mod sort;
mod split;
pub mod table;
mod to_device;
mod unfold;
mod unit_length;
mod vector;
mod window;

#[cfg(test)]
mod tests;

use std::fmt;
use std::hash::{Hash, Hasher};
use std::panic::Location;
use std::sync::Arc;

use gradus_backend::{Backend, DType, Error, ErrorKind, Here, Layout, Result, Shape, View, ViewMut};
use smallvec::SmallVec;

pub use crate::autograd::Context;
use crate::autograd::{
    Edge, Node, Saved, guards_saved, is_grad_enabled, is_observed, note_view, notes_access, ran_operation,
};
use crate::locks::{of_device, with_read};
pub use crate::tensor::{InputSpec, Spec};
use crate::{Device, Storage, Tensor};

pub use crate::autograd::Keep;
pub use attention::{AttentionOptions, Causal};
pub use elementwise::{Class, Elementwise, Numbers};
pub use gemm::Gemm;
pub use grid::Indexing;
pub use grid_sample::{GridPadding, GridSample, Sampling};
pub use index::{Ellipsis, Index, IntoIndex, NewAxis, Strided};
pub use interpolate::{Interpolate, Interpolation, Resized};
pub use loss::{Reduction, Target};
pub(crate) use map::{Arg, map_over};
pub use movement::INFER;
pub use operand::{AsOperand, Operand};
pub use pad::PadMode;
pub use scatter_reduce::ScatterReduction;
pub use search::Unique;
pub use window::{ConvOptions, PoolOptions};

/// Specs of the outputs.
pub type Outputs = SmallVec<[Spec; 1]>;
/// Gradients of the inputs; `None` where none is wanted, or where it is zero.
pub type Grads = SmallVec<[Option<Tensor>; 3]>;

/// How the elements of a result hang on those of the inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// Each on those in its place, which may be several where an axis has size 1 in one and not in the other.
    InPlace,
    /// Each is an element of an input, or a number that was given.
    Moves,
    /// Each on many.
    Mixes,
}

/// What one operation is: every file here implements it for its struct. Equal operations compute the same of the same inputs.
pub trait Operation: fmt::Debug + Clone + Eq + Hash + Send + Sync + 'static {
    /// The name that errors, graphs and logs show.
    fn name(&self) -> &str;

    /// What errors call the inputs; one without a name has its number.
    fn inputs(&self) -> &'static [&'static str] {
        &[]
    }

    /// Shape and dtype of the outputs, or why the inputs do not fit: an error to which the inputs are added.
    #[track_caller]
    fn infer(&self, inputs: &[InputSpec<'_>]) -> Result<Outputs>;

    /// Computes the outputs, which are fresh, contiguous and not empty.
    fn forward(&self, backend: &dyn Backend, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()>;

    /// How the elements of the outputs hang on those of the inputs.
    fn flow(&self) -> Flow;

    /// What [`vjp`](Operation::vjp) will read, given which inputs want a gradient.
    fn keeps(&self, needs: &[bool]) -> Keep;

    /// Whether output `i`, of a float dtype, carries a gradient; statistics kept for the gradient do not.
    fn differentiable(&self, _output: usize) -> bool {
        true
    }

    /// The gradients of the inputs from those of the outputs (`None` for zero), as tracked tensor expressions.
    ///
    /// When [`Context::create_graph`] holds, the result must depend differentiably on inputs, outputs and gradients.
    fn vjp(&self, ctx: &Context<'_>, grads: &[Option<Tensor>]) -> Result<Grads>;
}

/// An operation that is recorded as a function: what autograd and users add to the operations of this module. Those that look
/// the same and have one identity are equal.
pub trait Rule: fmt::Debug + Send + Sync {
    /// The name that errors, graphs and logs show.
    fn name(&self) -> &str;

    /// What tells it from others that look the same.
    fn identity(&self) -> u64 {
        0
    }

    /// As [`Operation::differentiable`].
    fn differentiable(&self, _output: usize) -> bool {
        true
    }

    /// As [`Operation::vjp`].
    fn vjp(&self, ctx: &Context<'_>, grads: &[Option<Tensor>]) -> Result<Grads>;
}

impl PartialEq for dyn Rule {
    fn eq(&self, other: &Self) -> bool {
        let looks = |rule: &dyn Rule| (rule.name().to_owned(), rule.identity(), format!("{rule:?}"));
        looks(self) == looks(other)
    }
}
impl Eq for dyn Rule {}

impl Hash for dyn Rule {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.name(), self.identity(), format!("{self:?}")).hash(state);
    }
}

/// An operation by the name that errors and graphs show, with its parameters.
fn named(name: &str, type_name: &str, op: &dyn fmt::Debug, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let text = format!("{op:?}");
    f.write_str(name)?;
    f.write_str(text.strip_prefix(type_name).unwrap_or_default())
}

macro_rules! ops {
    ($($module:ident::$name:ident,)*) => {
        /// A recorded operation with its parameters.
        #[derive(Clone, PartialEq, Eq, Hash)]
        #[allow(missing_docs)] // each is documented in its file
        pub enum Op {
            // In place: it is the commonest, and small.
            Map(map::Map),
            $($name(Box<$module::$name>),)*
            /// One that is a function, not a kernel.
            Rule(Arc<dyn Rule>),
        }

        impl Op {
            /// The operation's name.
            pub fn name(&self) -> &str {
                match self {
                    Op::Map(op) => op.name(),
                    $(Op::$name(op) => op.name(),)*
                    Op::Rule(op) => op.name(),
                }
            }

            /// How the elements of its outputs hang on those of its inputs.
            pub fn flow(&self) -> Flow {
                match self {
                    Op::Map(op) => op.flow(),
                    $(Op::$name(op) => op.flow(),)*
                    Op::Rule(_) => Flow::Mixes,
                }
            }

            pub(crate) fn differentiable(&self, output: usize) -> bool {
                match self {
                    Op::Map(op) => op.differentiable(output),
                    $(Op::$name(op) => op.differentiable(output),)*
                    Op::Rule(op) => op.differentiable(output),
                }
            }

            pub(crate) fn vjp(&self, ctx: &Context<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
                match self {
                    Op::Map(op) => op.vjp(ctx, grads),
                    $(Op::$name(op) => op.vjp(ctx, grads),)*
                    Op::Rule(op) => op.vjp(ctx, grads),
                }
            }
        }

        impl fmt::Debug for Op {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    Op::Map(op) => op.fmt(f),
                    $(Op::$name(op) => named(op.name(), stringify!($name), op, f),)*
                    Op::Rule(op) => op.fmt(f),
                }
            }
        }

        impl From<map::Map> for Op {
            fn from(op: map::Map) -> Op {
                Op::Map(op)
            }
        }
        pub use map::Map;

        $(
            impl From<$module::$name> for Op {
                fn from(op: $module::$name) -> Op {
                    Op::$name(Box::new(op))
                }
            }
            pub use $module::$name;
        )*
    };
}

ops! {
    attention::Attention,
    cat::Cat,
    conv::Conv,
    conv::ConvBackwardInput,
    conv::ConvBackwardWeight,
    copy::Contiguous,
    cross_entropy::CrossEntropy,
    diagonal::Diagonal,
    diagonal::DiagonalBackward,
    embedding::Embedding,
    gather::Gather,
    linear::Linear,
    matmul::Matmul,
    movement::Expand,
    movement::Flip,
    movement::Permute,
    movement::Reshape,
    normalize::Normalize,
    pad::PadConstant,
    pool::AvgPool,
    pool::AvgPoolBackward,
    pool::MaxPool,
    reduce::Reduce,
    scan::Scan,
    scatter::Scatter,
    scatter::ScatterAdd,
    scatter_reduce::ScatterExtreme,
    slice::Slice,
    slice::SliceBackward,
    sliding::UnfoldAxis,
    split::Split,
    softmax::Softmax,
    to_device::ToDevice,
    unfold::Fold,
    unfold::Unfold,
}

/// Runs an operation: infer, allocate, run, record. The one door, together with [`apply_one`].
#[track_caller]
pub(crate) fn apply<O: Operation + Into<Op>>(op: O, inputs: &[&Tensor]) -> Result<SmallVec<[Tensor; 1]>> {
    let device = same_device(op.name(), inputs)?;
    let specs = infer(&op, inputs)?;
    // Before the inputs are read: a write in between then counts as later, which errs towards an error.
    let versions = if records(inputs) { Some(versions(op.name(), inputs)?) } else { None };
    let mut results = run(device, &specs, inputs, |b, x, y| op.forward(b, x, y))?;
    if is_observed() {
        ran_operation(&op, inputs, &results).here()?;
    }
    if let Some(versions) = versions {
        record(op, inputs, &versions, &mut results, specs)?;
    }
    Ok(results)
}

/// [`apply`] for an operation with one output.
#[track_caller]
pub(crate) fn apply_one<O: Operation + Into<Op>>(op: O, inputs: &[&Tensor]) -> Result<Tensor> {
    let device = same_device(op.name(), inputs)?;
    apply_on(device, op, inputs)
}

/// [`apply_one`] with a result on `device`.
#[inline]
#[track_caller]
fn apply_on<O: Operation + Into<Op>>(device: &Device, op: O, inputs: &[&Tensor]) -> Result<Tensor> {
    // Read where it was made, and moved only to be recorded (see `run_one`).
    // The usual numbers of inputs without a vector: small operations take 5 ns less.
    let inferred = match inputs {
        [a] => op.infer(&[a.as_input()]),
        [a, b] => op.infer(&[a.as_input(), b.as_input()]),
        more => op.infer(&specs_of(more)),
    };
    let specs = match &inferred {
        Ok(specs) => specs,
        Err(e) => return Err(shown(e.clone(), op.inputs(), inputs).here()),
    };
    let versions = if records(inputs) { Some(versions(op.name(), inputs)?) } else { None };
    let mut result = run_one(device, &specs[0], inputs, |b, x, y| op.forward(b, x, y))?;
    if is_observed() {
        ran_operation(&op, inputs, std::slice::from_ref(&result)).here()?;
    }
    if let Some(versions) = versions {
        record(op, inputs, &versions, std::slice::from_mut(&mut result), inferred?)?;
    }
    Ok(result)
}

/// What operations see of these inputs before they run.
#[inline(always)]
fn specs_of<'a>(inputs: &[&'a Tensor]) -> SmallVec<[InputSpec<'a>; 4]> {
    let mut specs = SmallVec::new();
    for t in inputs {
        specs.push(t.as_input());
    }
    specs
}

/// What `op` gives of these inputs; an error shows them.
#[track_caller]
pub(crate) fn infer(op: &impl Operation, inputs: &[&Tensor]) -> Result<Outputs> {
    op.infer(&specs_of(inputs)).map_err(|e| shown(e, op.inputs(), inputs)).here()
}

/// The error with the inputs, by their names or numbers.
#[cold]
fn shown(e: Error, names: &[&str], inputs: &[&Tensor]) -> Error {
    inputs.iter().enumerate().fold(e, |e, (i, t)| match names.get(i) {
        Some(name) => t.describe(e, name),
        None => t.describe(e, &format!("input {i}")),
    })
}

/// Whether an operation on these inputs is recorded.
fn records(inputs: &[&Tensor]) -> bool {
    is_grad_enabled() && inputs.iter().any(|t| t.requires_grad())
}

/// The versions of the inputs' storages, none of which was written since its tensor was computed.
#[track_caller]
fn versions(op: &str, inputs: &[&Tensor]) -> Result<SmallVec<[u64; 4]>> {
    let mut versions = SmallVec::new();
    for t in inputs {
        versions.push(t.storage().version());
        t.check_current(op)?;
    }
    Ok(versions)
}

/// Makes `results` outputs of a new node of the graph; those that carry no gradient stay as they are.
#[track_caller]
fn record<O: Operation + Into<Op>>(
    op: O,
    inputs: &[&Tensor],
    versions: &[u64],
    results: &mut [Tensor],
    specs: Outputs,
) -> Result<()> {
    let mut carries: SmallVec<[bool; 8]> = SmallVec::new();
    for (i, spec) in specs.iter().enumerate() {
        carries.push(spec.dtype.is_float() && op.differentiable(i));
    }
    if !carries.contains(&true) {
        return Ok(());
    }
    let mut needs: SmallVec<[bool; 8]> = SmallVec::new();
    for t in inputs {
        needs.push(t.requires_grad());
    }
    let mut saved = Saved::new(op.keeps(&needs), inputs, versions, results);
    if guards_saved() {
        saved = saved.guard(op.name(), inputs, versions)?;
    }
    let node = Node::record(op.into(), inputs, specs, results[0].device(), saved);
    for (output, t) in results.iter_mut().enumerate().filter(|(i, _)| carries[*i]) {
        t.set_edge(Edge { node: node.clone(), output });
    }
    Ok(())
}

/// Records a view: the input's storage under another layout. No kernel runs.
#[track_caller]
pub(crate) fn apply_view<O: Operation + Into<Op>>(op: O, input: &Tensor, layout: Layout) -> Result<Tensor> {
    debug_assert!(infers(&op, input, &[layout]), "{op:?} infers another shape than {layout:?}");
    if !records(&[input]) {
        if notes_access() {
            note_view(input);
        }
        return Ok(input.view_at(layout, None));
    }
    input.check_current(op.name())?;
    let specs = one(*layout.shape(), input.dtype());
    let node = record_view(op, input, specs)?;
    Ok(input.view_at(layout, Some(Edge { node, output: 0 })))
}

/// [`apply_view`] for several views of one tensor.
#[track_caller]
pub(crate) fn apply_views<O: Operation + Into<Op>>(op: O, input: &Tensor, layouts: &[Layout]) -> Result<Vec<Tensor>> {
    debug_assert!(infers(&op, input, layouts), "{op:?} infers other shapes than {layouts:?}");
    if !records(&[input]) {
        if notes_access() {
            note_view(input);
        }
        return Ok(layouts.iter().map(|&layout| input.view_at(layout, None)).collect());
    }
    input.check_current(op.name())?;
    let specs = layouts.iter().map(|l| Spec { shape: *l.shape(), dtype: input.dtype() }).collect();
    let node = record_view(op, input, specs)?;
    let view = |(output, &layout)| input.view_at(layout, Some(Edge { node: node.clone(), output }));
    Ok(layouts.iter().enumerate().map(view).collect())
}

/// Whether `infer` says of an operation what its views are.
fn infers(op: &impl Operation, input: &Tensor, layouts: &[Layout]) -> bool {
    let view = |l: &Layout| Spec { shape: *l.shape(), dtype: input.dtype() };
    infer(op, &[input]).is_ok_and(|specs| specs.iter().copied().eq(layouts.iter().map(view)))
}

/// The node of an operation that keeps nothing of its input.
#[track_caller]
fn record_view<O: Operation + Into<Op>>(op: O, input: &Tensor, specs: Outputs) -> Result<Arc<Node>> {
    let mut saved = Saved::default();
    if guards_saved() {
        saved = saved.guard(op.name(), &[input], &[input.storage().version()])?;
    }
    Ok(Node::record(op.into(), &[input], specs, input.device(), saved))
}

/// Allocates a contiguous tensor and runs `forward` on it, unless it is empty.
///
/// Written so that what is small is made where it stays: a value that is moved right after it was written stalls.
#[inline]
#[track_caller]
pub(crate) fn run_one(
    device: &Device,
    spec: &Spec,
    inputs: &[&Tensor],
    forward: impl FnOnce(&dyn Backend, &[View<'_>], &mut [ViewMut<'_>]) -> Result<()>,
) -> Result<Tensor> {
    let (backend, numel, dtype) = (device.backend(), spec.shape.numel(), spec.dtype);
    let layout = Layout::contiguous(spec.shape);
    let mut allocated = backend.alloc(numel * dtype.size());
    if numel > 0
        && let Ok(buffer) = &mut allocated
    {
        let outs = &mut [ViewMut { buffer, dtype, layout: &layout }];
        with_read(inputs, |views| forward(backend, views, outs))?;
    }
    let buffer = match allocated {
        Ok(buffer) => buffer,
        Err(mut e) => {
            e.relocate(Location::caller());
            return Err(e);
        }
    };
    Ok(Tensor::computed(Arc::new(Storage::new(device.clone(), buffer)), layout, dtype, inputs))
}

/// [`run_one`] for several outputs.
#[track_caller]
fn run(
    device: &Device,
    specs: &[Spec],
    inputs: &[&Tensor],
    forward: impl FnOnce(&dyn Backend, &[View<'_>], &mut [ViewMut<'_>]) -> Result<()>,
) -> Result<SmallVec<[Tensor; 1]>> {
    let backend = device.backend();
    let alloc = |s: &Spec| Ok((backend.alloc(s.shape.numel() * s.dtype.size())?, Layout::contiguous(s.shape)));
    let mut outputs = of_device(specs.iter().map(alloc).collect::<Result<Vec<_>>>())?;
    if specs.iter().any(|s| s.shape.numel() > 0) {
        let out = |((buffer, layout), s): (_, &Spec)| ViewMut { buffer, dtype: s.dtype, layout };
        let mut outs: Vec<ViewMut<'_>> = outputs.iter_mut().map(|(b, l)| (b, &*l)).zip(specs).map(out).collect();
        with_read(inputs, |views| forward(backend, views, &mut outs))?;
    }
    let tensor = |((buffer, layout), s): (_, &Spec)| {
        Tensor::computed(Arc::new(Storage::new(device.clone(), buffer)), layout, s.dtype, inputs)
    };
    Ok(outputs.into_iter().zip(specs).map(tensor).collect())
}

/// The device that all inputs share.
#[track_caller]
pub(crate) fn same_device<'a>(op: &str, inputs: &[&'a Tensor]) -> Result<&'a Device> {
    let device = inputs[0].device();
    for t in &inputs[1..] {
        if t.device() != device {
            let e = Error::new(ErrorKind::DeviceMismatch, op, "operands live on different devices");
            let e = device.tell_apart(t.device(), shown(e, &[], inputs));
            return Err(e.help("move one of them explicitly; nothing is copied between devices behind your back"));
        }
    }
    Ok(device)
}

/// The spec of an operation's only output.
pub(crate) fn one(shape: Shape, dtype: DType) -> Outputs {
    SmallVec::from_buf([Spec { shape, dtype }])
}

/// Gradients from an array.
pub(crate) fn grads<const N: usize>(g: [Option<Tensor>; N]) -> Grads {
    g.into_iter().collect()
}

impl Tensor {
    /// Sums over the axes that broadcasting stretched, so that the result has `shape`: the adjoint of expand.
    #[track_caller]
    pub(crate) fn sum_to(&self, shape: &[usize]) -> Result<Tensor> {
        if self.shape() == shape {
            return Ok(self.clone());
        }
        let lead = self.rank() - shape.len();
        let stretched = |i: usize| i < lead || (shape[i - lead] == 1 && self.shape()[i] != 1);
        let axes: SmallVec<[isize; 8]> = (0..self.rank()).filter(|&i| stretched(i)).map(|i| i as isize).collect();
        self.sum(&axes, true)?.reshape(shape)
    }
}

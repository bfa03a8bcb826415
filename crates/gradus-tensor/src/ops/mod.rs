//! The operations, one file each, and `bind`, the one function that runs them.
//!
//! A call passes through three layers. The method (`x.softmax(-1)`) builds the operation's struct. `bind` infers shapes
//! and dtypes, allocates the results, runs the kernel and records the operation. The kernel is a method of the backend.

mod adaptive_pool;
mod arange;
mod arg_reduce;
mod attention;
mod autocast;
mod bind;
mod cast;
mod cat;
mod causal;
mod conv;
mod conv_transpose;
mod copy;
mod cross_entropy;
mod diagonal;
mod dispatch;
mod distance;
mod dropout;
mod einsum;
mod elementwise;
mod embedding;
mod fill;
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
mod lstm_i8;
mod map;
mod mapped;
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
mod panels;
mod pointwise;
mod pool;
mod random;
mod recurrent;
mod reduce;
mod repeat;
mod replay;
mod roll;
mod scan;
mod scatter;
mod scatter_reduce;
mod search;
mod slice;
mod sliding;
mod softmax;
mod sort;
mod source;
mod split;
pub mod table;
mod to_device;
mod trace;
mod unfold;
mod unit_length;
mod update;
mod vector;
mod window;

#[cfg(test)]
mod tests;

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use gradus_backend::{Backend, DType, Error, ErrorKind, Result, Shape, View, ViewMut};
use smallvec::SmallVec;

use crate::Tensor;
pub use crate::autograd::Context;
pub use crate::tensor::{InputSpec, Spec};
pub(crate) use bind::{To, apply, apply_one, bind, same_device};
use bind::{apply_view, apply_views, infer};

pub use crate::autograd::Keep;
pub use attention::AttentionOptions;
pub use causal::{Causal, causal_mask};
pub use dispatch::{HostCall, Module};
pub use elementwise::{Class, Elementwise, Numbers};
pub use grid::Indexing;
pub use grid_sample::{GridPadding, GridSample, Sampling};
pub use index::{Ellipsis, Index, IntoIndex, NewAxis, Strided};
pub(crate) use inplace::InPlace;
pub use interpolate::{Interpolate, Interpolation, Resized};
pub use loss::{Reduction, Target};
pub use map::Arg;
pub(crate) use map::map_over;
pub use movement::INFER;
pub use normalize::Norm;
pub use operand::{AsOperand, Operand};
pub use pad::PadMode;
pub use recurrent::{RecurrentCell, RecurrentOptions};
pub use replay::{
    Block, Home, Operand as ReplayOperand, Progress, ReplayCall, ReplayState, can_replay, over_storage, prepares,
    replay,
};
pub use scatter_reduce::ScatterReduction;
pub use search::Unique;
pub use source::{Jump, Saved, Source, SourceGuard, draws_lead, source_guard};
pub use trace::{
    Closed, Made, StateUse, Traced, Uses, is_captured, note_random, note_state, note_switch, refuse, storage_of_values,
    trace, trace_closed,
};
pub(crate) use trace::{is_constant, note_filled, note_given_back, note_made};
pub use update::{UpdateFn, collect_updates};
pub use window::{ConvOptions, PoolOptions};

/// The specs of an operation's outputs.
pub type Outputs = SmallVec<[Spec; 1]>;
/// Gradients of the inputs. `None` stands for a gradient that is zero, or that is not needed.
pub type Grads = SmallVec<[Option<Tensor>; 3]>;

/// How the elements of a result depend on the elements of the inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// Each element depends only on the input elements at the same place after broadcasting. There are several of these
    /// if the result has size 1 along an axis and an input does not.
    InPlace,
    /// Each element is a copy of one input element, or a constant.
    Moves,
    /// Each element may depend on many input elements.
    Mixes,
}

/// The effects of an operation besides computing its outputs from its inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    Pure,
    /// It draws random numbers from a generator's stream, starting at the position given in its parameters.
    Draws,
    /// It may read the tensors that it writes. `infer` receives those tensors first and then the inputs; the `inputs`
    /// of `forward` do not include them.
    Updates,
    /// Its outputs live on a different device from its inputs.
    Crosses,
    /// As [`Updates`](Effect::Updates), by a function of the user, which may have other effects.
    Calls,
    /// As [`Updates`](Effect::Updates), by a [`HostCall`], whose effects others see: that it is made, how often, and in which
    /// order with others.
    CallsHost,
}

impl Effect {
    /// Whether the operation may read the tensors that it writes.
    pub fn updates(self) -> bool {
        matches!(self, Effect::Updates | Effect::Calls | Effect::CallsHost)
    }
}

/// An operation; each file of this folder implements it for its own structs. Equal operations compute the same results
/// from the same inputs.
pub trait Operation: fmt::Debug + Clone + Eq + Hash + Send + Sync + 'static {
    /// The name that errors, graphs and logs show.
    fn name(&self) -> &str;

    /// The names of the inputs in errors. An input without a name is shown by its number.
    fn input_names(&self) -> &'static [&'static str] {
        &[]
    }

    /// Infers the shapes and dtypes of the outputs, or returns an error that says why the inputs do not fit. `bind`
    /// adds the inputs to that error.
    #[track_caller]
    fn infer(&self, inputs: &[InputSpec<'_>]) -> Result<Outputs>;

    /// Computes the outputs, which are never empty. Their memory is uninitialised unless the operation updates them.
    fn forward(&self, backend: &dyn Backend, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()>;

    /// How each element of the outputs depends on those of the inputs.
    fn flow(&self) -> Flow;

    /// The effects of the operation besides computing its outputs from its inputs.
    fn effect(&self) -> Effect {
        Effect::Pure
    }

    /// Whether it fails on some elements of its inputs: an index is out of range, or an integer is divided by zero.
    fn can_fail(&self) -> bool {
        false
    }

    /// Whether the other operation differs at most in numbers that a [`Source`] supplies: a position in a stream of
    /// random numbers, or the scalars of an update.
    fn same_form(&self, other: &Self) -> bool {
        self == other
    }

    /// The inputs and outputs that [`vjp`](Operation::vjp) will read, given which inputs need a gradient.
    fn keeps(&self, _needs: &[bool]) -> Keep {
        Keep::NONE
    }

    /// Whether an output of a float dtype carries a gradient. Statistics that are saved only for the backward pass do
    /// not. If the first output carries no gradient, the operation is never recorded.
    fn differentiable(&self, _output: usize) -> bool {
        true
    }

    /// Computes the gradients of the inputs from those of the outputs (`None` for zero), as tracked tensor expressions.
    ///
    /// When [`Context::create_graph`] holds, the result must depend differentiably on the inputs, the outputs and their
    /// gradients.
    fn vjp(&self, _ctx: &Context<'_>, _grads: &[Option<Tensor>]) -> Result<Grads> {
        Err(Error::new(ErrorKind::Autograd, "backward", format!("{} has no gradient rule", self.name())))
    }
}

/// An operation whose gradient rule is a function, defined by autograd or by users. Two rules are equal only if they
/// are the same object. They are hashed by name, identity and debug form.
pub trait Rule: fmt::Debug + Send + Sync {
    /// The name that errors, graphs and logs show.
    fn name(&self) -> &str;

    /// A number that distinguishes this rule from others with the same debug form.
    fn identity(&self) -> u64 {
        0
    }

    /// See [`Operation::differentiable`].
    fn differentiable(&self, _output: usize) -> bool {
        true
    }

    /// See [`Operation::vjp`].
    fn vjp(&self, ctx: &Context<'_>, grads: &[Option<Tensor>]) -> Result<Grads>;
}

impl PartialEq for dyn Rule {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::addr_eq(self, other)
    }
}
impl Eq for dyn Rule {}

impl Hash for dyn Rule {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.name(), self.identity(), format!("{self:?}")).hash(state);
    }
}

/// Prints an operation with its parameters, under the name that errors and graphs show.
fn named(name: &str, type_name: &str, op: &dyn fmt::Debug, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let text = format!("{op:?}");
    f.write_str(name)?;
    f.write_str(text.strip_prefix(type_name).unwrap_or_default())
}

macro_rules! ops {
    ($($module:ident::$name:ident,)*) => {
        /// An operation with its parameters.
        #[derive(Clone, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        #[allow(missing_docs)] // each is documented in its file
        pub enum Op {
            // `Map` is not boxed, since it is small and the most common operation.
            Map(map::Map),
            $($name(Box<$module::$name>),)*
            /// An operation defined by a function rather than a kernel.
            Rule(Arc<dyn Rule>),
        }

        impl Op {
            /// The names of all variants except `Rule`.
            pub const KINDS: &'static [&'static str] = &["Map", $(stringify!($name)),*];

            /// The name of the variant.
            pub fn kind(&self) -> &'static str {
                match self {
                    Op::Map(_) => "Map",
                    $(Op::$name(_) => stringify!($name),)*
                    Op::Rule(_) => "Rule",
                }
            }

            /// The operation's name.
            pub fn name(&self) -> &str {
                match self {
                    Op::Map(op) => op.name(),
                    $(Op::$name(op) => op.name(),)*
                    Op::Rule(op) => op.name(),
                }
            }

            /// The shapes and dtypes of the outputs. `None` for a [`Rule`], whose outputs are known only once it has
            /// run.
            #[track_caller]
            pub fn infer(&self, inputs: &[InputSpec<'_>]) -> Option<Result<Outputs>> {
                Some(match self {
                    Op::Map(op) => op.infer(inputs),
                    $(Op::$name(op) => op.infer(inputs),)*
                    Op::Rule(_) => return None,
                })
            }

            /// How each element of the outputs depends on those of the inputs.
            pub fn flow(&self) -> Flow {
                match self {
                    Op::Map(op) => op.flow(),
                    $(Op::$name(op) => op.flow(),)*
                    Op::Rule(_) => Flow::Mixes,
                }
            }

            /// The effects of the operation besides computing its outputs from its inputs.
            pub fn effect(&self) -> Effect {
                match self {
                    Op::Map(op) => op.effect(),
                    $(Op::$name(op) => op.effect(),)*
                    Op::Rule(_) => Effect::Pure,
                }
            }

            /// Whether it fails on some elements of its inputs. A [`Rule`] may.
            pub fn can_fail(&self) -> bool {
                match self {
                    Op::Map(op) => op.can_fail(),
                    $(Op::$name(op) => op.can_fail(),)*
                    Op::Rule(_) => true,
                }
            }

            /// Whether the other operation differs at most in numbers that a [`Source`] supplies.
            pub fn same_form(&self, other: &Op) -> bool {
                match (self, other) {
                    (Op::Map(a), Op::Map(b)) => a.same_form(b),
                    $((Op::$name(a), Op::$name(b)) => a.same_form(b),)*
                    (a, b) => a == b,
                }
            }

            /// Runs its kernel; see [`Operation::forward`]. A [`Rule`] has none.
            pub(crate) fn forward(
                &self,
                backend: &dyn Backend,
                inputs: &[View<'_>],
                outputs: &mut [ViewMut<'_>],
            ) -> Result<()> {
                match self {
                    Op::Map(op) => op.forward(backend, inputs, outputs),
                    $(Op::$name(op) => op.forward(backend, inputs, outputs),)*
                    Op::Rule(op) => Err(Error::argument(op.name(), "a function has no kernel")),
                }
            }

            pub(crate) fn keeps(&self, needs: &[bool]) -> Keep {
                match self {
                    Op::Map(op) => op.keeps(needs),
                    $(Op::$name(op) => op.keeps(needs),)*
                    Op::Rule(_) => Keep::NONE,
                }
            }

            /// Whether the results of an operation that writes in place depend on the old values.
            pub(crate) fn reads_outputs(&self) -> bool {
                match self {
                    Op::Update(update) => update.args.iter().any(|arg| matches!(arg, Arg::Output(_))),
                    op => op.effect().updates(),
                }
            }

            /// Whether an output of a float dtype carries a gradient.
            pub fn differentiable(&self, output: usize) -> bool {
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
    arange::Arange,
    arg_reduce::ArgReduce,
    attention::Attention,
    attention::AttentionBackward,
    cat::Cat,
    conv::Conv,
    conv::ConvBackwardInput,
    conv::ConvBackwardWeight,
    copy::Contiguous,
    cross_entropy::CrossEntropy,
    cross_entropy::CrossEntropyBackward,
    diagonal::Diagonal,
    diagonal::DiagonalBackward,
    dispatch::Dispatch,
    embedding::Embedding,
    embedding::EmbeddingBackward,
    fill::Fill,
    gather::Gather,
    gemm::Gemm,
    linear::Linear,
    lstm_i8::LstmI8,
    mapped::Mapped,
    matmul::Matmul,
    matmul::MatmulI32,
    movement::Expand,
    movement::Flip,
    movement::Permute,
    movement::Reshape,
    normalize::Normalize,
    normalize::NormalizeAffineBackward,
    normalize::NormalizeBackward,
    pad::PadConstant,
    panels::LinearPanels,
    pool::AvgPool,
    pool::AvgPoolBackward,
    pool::MaxPool,
    random::Random,
    recurrent::Recurrent,
    recurrent::RecurrentBackward,
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
    softmax::SoftmaxBackward,
    sort::Sort,
    to_device::ToDevice,
    unfold::Fold,
    unfold::Unfold,
    update::Update,
}

/// The outputs of an operation with a single result.
pub(crate) fn one(shape: Shape, dtype: DType) -> Outputs {
    SmallVec::from_buf([Spec { shape, dtype }])
}

/// Collects an array of gradients.
pub(crate) fn grads<const N: usize>(g: [Option<Tensor>; N]) -> Grads {
    g.into_iter().collect()
}

impl Tensor {
    /// Sums over the axes that were broadcast, so that the result has `shape`. This is the adjoint of `expand`.
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

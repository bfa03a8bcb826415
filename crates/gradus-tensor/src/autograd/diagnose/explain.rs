//! [`explain_grad`]: why a tensor does not get a gradient.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use gradus_backend::{DType, Error, ErrorKind, Result};

use crate::Tensor;
use crate::autograd::diagnose::observe::{Observer, Observing, Ran};
use crate::autograd::diagnose::places::{Place, Places};
use crate::autograd::graph::node::{Edge, Node};
use crate::autograd::graph::saved::Context;
use crate::autograd::{BackwardOptions, Nested, grad};

/// Whether the result of a step has a gradient with respect to a tensor and, if not, why; see [`explain_grad`]. Its
/// `Display` form is a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Dependence {
    /// A gradient arrives.
    Gradient,
    /// The gradient is zero everywhere: every path leads through an operation with derivative zero, such as `floor` or
    /// `sign`.
    Zero {
        /// The operation of this kind that is nearest to the result.
        op: String,
        /// The line that recorded the operation.
        location: &'static Location<'static>,
    },
    /// The derivative is undefined or was switched off, so the path from the tensor to the result is cut. Also reported
    /// if there are other paths but the derivative along all of them is zero.
    Undefined {
        /// The operation that cuts the path, with its parameters.
        op: String,
        /// The line that called the operation.
        location: &'static Location<'static>,
        /// How the operation cuts the path.
        reason: String,
    },
    /// As far as the step shows, the result was computed without the tensor. The path cannot be followed if elements
    /// are read out of the tensor (`to_vec`, `item`) and turned into a new tensor, or if it leads through a tensor that
    /// was computed before the step. Let the step compute everything that depends on the tensor.
    Unused,
}

impl fmt::Display for Dependence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dependence::Gradient => f.write_str("a gradient arrives"),
            Dependence::Zero { op, location } => {
                write!(f, "the gradient is zero: the way goes through {op}, recorded at {location}, whose slope is zero")
            }
            Dependence::Undefined { op, location, reason } => {
                write!(f, "there is no gradient: the way ends at {op}, at {location}: {reason}")
            }
            Dependence::Unused => f.write_str(
                "there is no gradient: the result was computed without the tensor (numbers that were read out of it, with \
                 to_vec or item, and what was computed from it before the step and is detached in it, cannot be followed)",
            ),
        }
    }
}

/// Runs `step` and reports whether its result has a gradient with respect to `input`. If it does not, reports where the
/// path between them ends and why: for example at integers, a comparison, `detach` or
/// [`no_grad`](crate::autograd::no_grad).
///
/// If a tensor does not influence a result as far as the graph knows, [`grad`] and
/// [`Gradients::get`](crate::autograd::Gradients::get) return `None`. If it does, but the derivative is zero, they
/// return zeros. An operation that cuts the graph is not part of the graph, so `explain_grad` runs the step and
/// observes every operation. Operations outside of `explain_grad` are neither observed nor slowed down. Operations on
/// other threads are not seen.
///
/// # Errors
/// The errors of `step` and of the gradient; an `input` that does not require a gradient; nesting beyond
/// [`MAX_NESTING`](crate::autograd::MAX_NESTING).
///
/// ```
/// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
/// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
/// use gradus_tensor::autograd::{Dependence, explain_grad};
///
/// let x = Tensor::from_vec(vec![1.0f32, 3.0], [2], &device)?.with_grad()?;
/// let found = explain_grad(&x, || x.mul(2.0)?.argmax(0, false)?.to_dtype(DType::F32))?;
/// let Dependence::Undefined { op, reason, .. } = found else { panic!("{found}") };
/// assert_eq!(op, "argmax { op: Max, axis: 0 }");
/// assert_eq!(reason, "it gives i64, and integers have no derivative");
/// assert!(matches!(explain_grad(&x, || x.floor()?.sum_all())?, Dependence::Zero { .. }));
/// # Ok::<(), Error>(())
/// ```
#[track_caller]
pub fn explain_grad(input: &Tensor, step: impl FnOnce() -> Result<Tensor>) -> Result<Dependence> {
    let Some(edge) = input.edge() else {
        let e = Error::new(ErrorKind::Autograd, "explain_grad", "the input does not require a gradient");
        return Err(input.describe(e, "input").help("make it a leaf with with_grad()? before the computation"));
    };
    let _nested = Nested::enter("explain_grad")?;
    let observing = Observing::start(Observer::Paths(Paths::new(edge, input)));
    let output = step();
    let Some(Observer::Paths(mut paths)) = observing.finish() else {
        return Err(Error::new(ErrorKind::Autograd, "explain_grad", "the observer of this thread was replaced"));
    };
    let output = output?;
    if !output.edge().is_some_and(|e| paths.reach(e)) {
        return Ok(paths.cut(&output, false).unwrap_or(Dependence::Unused));
    }
    // A path exists. Does anything other than zero arrive through it?
    let observing = Observing::start(Observer::Paths(paths));
    let seed = Tensor::ones(output.shape(), output.dtype(), output.device())?;
    let found = grad(&[&output], &[input], Some(&[&seed]), BackwardOptions::new().retain_graph());
    let observer = observing.finish();
    let Some(Observer::Paths(mut paths)) = observer else {
        return Err(Error::new(ErrorKind::Autograd, "explain_grad", "the observer of this thread was replaced"));
    };
    Ok(match (found?.into_iter().flatten().next(), paths.zero.take()) {
        (Some(_), Some(zero)) if !paths.arrived => paths.zero_or_cut(&output, zero),
        (Some(_), _) => Dependence::Gradient,
        (None, _) => Dependence::Unused,
    })
}

/// One operation of the step, and how it relates to the input.
struct Step {
    op: String,
    location: &'static Location<'static>,
    /// The operands that are not on a recorded path from the input (`dead`), and those that are (`alive`).
    dead: Vec<Place>,
    alive: Vec<Place>,
    outputs: Vec<Place>,
    /// Whether the operation overwrote its outputs completely.
    replaces: bool,
    /// Why the path through an operand ends here; `None` if it does not.
    cut: Option<String>,
}

/// The operations of a step and the paths from an input through them.
pub(in crate::autograd) struct Paths {
    input: u64,
    /// The number of the input among the outputs of its node.
    output: usize,
    /// For each node, by number, whether a path leads from the input to it.
    reached: HashMap<u64, bool>,
    /// The memory of tensors on a recorded path, each with the number of steps that had run when it was added.
    alive: Places<usize>,
    steps: Vec<Step>,
    /// The first operation in the backward pass whose gradient was zero.
    zero: Option<(String, &'static Location<'static>)>,
    /// Whether a gradient arrived at the input.
    arrived: bool,
    /// The line that called `explain_grad`.
    location: &'static Location<'static>,
}

impl Paths {
    #[track_caller]
    fn new(edge: &Edge, input: &Tensor) -> Self {
        let mut alive = Places::default();
        // A leaf stands for whatever its storage currently holds, so a write does not end its path.
        alive.insert(Place::of(input), if edge.node.is_leaf() { usize::MAX } else { 0 });
        Paths {
            input: edge.node.seq,
            output: edge.output,
            reached: HashMap::new(),
            alive,
            steps: vec![],
            zero: None,
            arrived: false,
            location: Location::caller(),
        }
    }

    /// Whether a path leads from the input to this output of a node.
    fn reach(&mut self, edge: &Edge) -> bool {
        let mut unknown: BTreeMap<u64, &Arc<Node>> = BTreeMap::new();
        let mut stack = vec![&edge.node];
        while let Some(n) = stack.pop() {
            if n.seq > self.input && !self.reached.contains_key(&n.seq) && unknown.insert(n.seq, n).is_none() {
                stack.extend(n.inputs().flatten());
            }
        }
        // Nodes are visited in ascending order, because the inputs of a node have lower numbers.
        for (seq, n) in unknown {
            let reached = n.inputs.iter().flatten().any(|e| self.is_reached(e));
            self.reached.insert(seq, reached);
        }
        self.is_reached(edge)
    }

    /// Whether `edge` is known to be reached. For the input's own node, only the output that is the input counts; for
    /// later nodes, every output does.
    fn is_reached(&self, edge: &Edge) -> bool {
        match edge.node.seq {
            seq if seq == self.input => edge.output == self.output,
            seq => self.reached.get(&seq).copied().unwrap_or(false),
        }
    }

    /// Whether a tensor is on a recorded path.
    fn is_alive(&mut self, t: &Tensor) -> bool {
        t.edge().is_some_and(|e| self.reach(e))
    }

    /// Whether `place` still held a tensor on a recorded path just before step number `step`, so that no step since
    /// then has replaced it.
    fn lives(&self, place: &Place, step: usize) -> bool {
        let replaced = |since: usize| {
            let steps = self.steps.get(since..step).unwrap_or_default();
            steps.iter().any(|s| s.replaces && s.outputs.iter().any(|o| o.covers(place)))
        };
        self.alive.meeting(place).any(|since| !replaced(*since))
    }

    fn keep(&mut self, t: &Tensor) {
        self.alive.insert(Place::of(t), self.steps.len());
    }

    pub(in crate::autograd) fn on_operation(&mut self, ran: &Ran<'_>, region: bool) {
        let (mut alive, mut dead) = (vec![], vec![]);
        for t in ran.inputs {
            if self.is_alive(t) {
                alive.push(Place::of(t));
                self.keep(t);
            } else {
                dead.push(Place::of(t));
            }
        }
        let (mut cut, on_the_way) = (None, !alive.is_empty());
        // Operations inside a custom operation are not recorded, but the custom operation itself is.
        if on_the_way && (ran.mode.recording || region) {
            for (i, t) in ran.outputs.iter().enumerate() {
                match (ran.carries)(i) {
                    true => self.keep(t),
                    false => cut = Some(no_gradient(t)),
                }
            }
        } else if on_the_way {
            let scope = if ran.mode.inference { "inference()" } else { "no_grad()" };
            cut = Some(format!("it ran inside {scope}"));
        }
        let outputs = ran.outputs.iter().map(Place::of).collect();
        let (op, location) = (format!("{:?}", ran.op), ran.location);
        self.steps.push(Step { op, location, dead, alive, outputs, replaces: false, cut });
    }

    pub(in crate::autograd) fn wrote(
        &mut self,
        op: &'static str,
        replaces: bool,
        location: &'static Location<'static>,
        written: &[&Tensor],
        read: &[&Tensor],
    ) {
        // The result does not depend on old values that are overwritten completely.
        let old = if replaces { &[] } else { written };
        let dead = read.iter().chain(old).map(|t| Place::of(t)).collect();
        let outputs = written.iter().map(|t| Place::of(t)).collect();
        self.steps.push(Step { op: op.to_owned(), location, dead, alive: vec![], outputs, replaces, cut: None });
    }

    /// Called if the derivative along all recorded paths to a result is zero. Reports where another path is cut or, if
    /// no path is, the operation whose derivative is zero.
    fn zero_or_cut(&self, output: &Tensor, (op, location): (String, &'static Location<'static>)) -> Dependence {
        match self.cut(output, true) {
            Some(Dependence::Undefined { op, location, reason }) => {
                let reason = format!("{reason}; the slope of every other way is zero");
                Dependence::Undefined { op, location, reason }
            }
            _ => Dependence::Zero { op, location },
        }
    }

    /// Finds the first place at which a path from the input to a result is cut. `reached` says whether recorded paths
    /// lead to the result as well.
    fn cut(&self, output: &Tensor, reached: bool) -> Option<Dependence> {
        let (mut wanted, mut found) = (Places::default(), None);
        let undefined =
            |s: &Step, reason: String| Some(Dependence::Undefined { op: s.op.clone(), location: s.location, reason });
        if !reached && self.lives(&Place::of(output), self.steps.len()) {
            let (op, reason) =
                ("detach".to_owned(), "the result is a detached handle of a tensor that has one".to_owned());
            found = Some(Dependence::Undefined { op, location: self.location, reason });
        }
        wanted.insert(Place::of(output), ());
        for (i, step) in self.steps.iter().enumerate().rev() {
            if !step.outputs.iter().any(|o| wanted.meeting(o).next().is_some()) {
                continue;
            }
            if let Some(reason) = &step.cut {
                found = undefined(step, reason.clone());
            } else if step.dead.iter().any(|d| self.lives(d, i)) {
                found = undefined(step, "it was given a detached tensor".to_owned());
            }
            if step.replaces {
                step.outputs.iter().for_each(|o| wanted.remove_covered(o));
            }
            step.dead.iter().for_each(|d| wanted.insert(d.clone(), ()));
            if reached {
                step.alive.iter().for_each(|a| wanted.insert(a.clone(), ()));
            }
        }
        found
    }

    /// Called when the gradients of a node's outputs are complete.
    pub(in crate::autograd) fn complete(&mut self, node: &Node, grads: &[Option<Tensor>]) {
        self.arrived |= node.seq == self.input && grads.get(self.output).is_some_and(Option::is_some);
    }

    /// Called when a node has computed the gradients of its inputs.
    pub(in crate::autograd) fn gradients(&mut self, ctx: &Context<'_>, found: &[Option<Tensor>]) {
        if self.zero.is_none() && found.iter().enumerate().any(|(i, g)| g.is_none() && ctx.needs(i)) {
            let op = ctx.node.op().map_or_else(String::new, |op| format!("{op:?}"));
            self.zero = Some((op, ctx.node.location));
        }
    }
}

fn no_gradient(t: &Tensor) -> String {
    match t.dtype() {
        d if d.is_float() => "this result of it is a statistic without a derivative".to_owned(),
        DType::Bool => "it gives truth values, which have no derivative".to_owned(),
        d => format!("it gives {d}, and integers have no derivative"),
    }
}

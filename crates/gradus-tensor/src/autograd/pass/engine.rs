//! The backward pass: nodes run in the reverse order of recording, and gradients are summed as they arrive.
//!
//! Determinism: a node runs once all nodes recorded after it have run, and the gradients of one tensor are added in the
//! reverse order of recording. The order does not depend on threads or addresses.

use std::cell::Cell;
use std::collections::{BTreeMap, HashSet};
use std::panic::Location;
use std::rc::Rc;
use std::sync::Arc;

use gradus_backend::{Error, ErrorKind, Here, Result};
use smallvec::SmallVec;

use crate::Tensor;
use crate::autograd::diagnose::observe::Pass as Observed;
use crate::autograd::graph::node::{AtLineOf, Edge, Node};
use crate::autograd::graph::saved::Context;
use crate::autograd::mode::{backward_mode, refuse_inference};
use crate::autograd::pass::around::Around;
use crate::autograd::pass::hooks::Hooks;
use crate::autograd::pass::queue::{ByEdge, Pending, Queue, Seqs};
use crate::autograd::pass::taken::{Taker, collect};
use crate::autograd::pass::waiting::{Found, all_unchanged, unshared, version_of};
use crate::autograd::{Nested, enable_grad_guard, is_traced};
use crate::ops::{Grads, Op};

/// The options of a backward pass.
#[must_use = "options do nothing until they are passed to a backward pass, and setting one gives new options"]
#[derive(Debug, Clone, Copy, Default)]
pub struct BackwardOptions {
    retain_graph: bool,
    create_graph: bool,
}

impl BackwardOptions {
    /// The default: the pass frees the graph and does not record the gradients.
    pub fn new() -> Self {
        Self::default()
    }

    /// Keeps the graph for another pass.
    pub fn retain_graph(mut self) -> Self {
        self.retain_graph = true;
        self
    }

    /// Records the gradients themselves, so that they can be differentiated again. Also keeps the graph.
    pub fn create_graph(mut self) -> Self {
        self.retain_graph = true;
        self.create_graph = true;
        self
    }
}

/// The gradients of the leaves that a loss depends on.
#[must_use = "gradients are returned, not stored in the leaves: pass them to an optimiser's `step`, or read them with `get`"]
#[derive(Default, Clone)]
pub struct Gradients(pub(super) ByEdge<Tensor>);

pub(in crate::autograd) fn key(edge: &Edge) -> (u64, usize) {
    (edge.node.seq, edge.output)
}

impl Gradients {
    /// The gradient of a leaf (or of any clone of it). `None` if the loss does not depend on the leaf as far as the
    /// graph knows; [`explain_grad`](crate::autograd::explain_grad) shows why. If the loss depends on it with a
    /// derivative of zero, the gradient is a tensor of zeros.
    pub fn get(&self, tensor: &Tensor) -> Option<&Tensor> {
        self.0.get(&key(tensor.edge()?))
    }

    /// Replaces the gradient of a tensor. The tensor must already have one.
    #[track_caller]
    pub fn set(&mut self, tensor: &Tensor, gradient: Tensor) -> Result<()> {
        let slot = tensor.edge().and_then(|e| self.0.get_mut(&key(e)));
        let Some(slot) = slot else {
            return Err(Error::new(ErrorKind::Autograd, "gradients", "the tensor has no gradient to replace"));
        };
        if let Some(kind) = gradient.mismatch(&slot.spec(), slot.device()) {
            let e = Error::new(kind, "gradients", "a gradient has the shape, dtype and device of its tensor");
            return Err(gradient.describe(slot.describe(e, "tensor"), "gradient"));
        }
        *slot = gradient;
        Ok(())
    }

    /// Adds the gradient of a leaf that was computed in another way than by [`backward`](Tensor::backward), or replaces
    /// the one that is there.
    ///
    /// # Errors
    /// Fails if the tensor does not require a gradient, or has another shape, dtype or device.
    #[track_caller]
    pub fn insert(&mut self, tensor: &Tensor, gradient: Tensor) -> Result<()> {
        let Some(edge) = tensor.edge() else {
            let e = Error::new(ErrorKind::Autograd, "gradients", "a tensor that requires no gradient is given one");
            return Err(tensor.describe(e, "tensor"));
        };
        if let Some(kind) = gradient.mismatch(&tensor.spec(), tensor.device()) {
            let e = Error::new(kind, "gradients", "a gradient has the shape, dtype and device of its tensor");
            return Err(gradient.describe(tensor.describe(e, "tensor"), "gradient"));
        }
        self.0.insert(key(edge), gradient);
        Ok(())
    }

    /// The number of gradients.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no gradients.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl std::fmt::Debug for Gradients {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Gradients of {} tensors", self.0.len())
    }
}

impl Tensor {
    /// Computes the gradients of this scalar with respect to all leaves that it depends on. Frees the graph.
    ///
    /// ```
    /// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
    /// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    /// let x = Tensor::from_vec(vec![1.0f32, 2.0], [2], &device)?.with_grad()?;
    /// let gradients = (&x * &x)?.sum_all()?.backward()?;
    /// assert_eq!(gradients.get(&x).unwrap().to_vec::<f32>()?, [2.0, 4.0]);
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn backward(&self) -> Result<Gradients> {
        self.backward_with(BackwardOptions::new())
    }

    /// [`backward`](Tensor::backward) with options.
    ///
    /// # Errors
    /// - The tensor is not tracked, or has several elements.
    /// - A saved value has been overwritten, or the graph has been freed.
    /// - A hook takes gradients of its own graph without end ([`MAX_NESTING`](crate::autograd::MAX_NESTING)).
    /// - A rule, a hook or the device reports an error.
    ///
    /// If the pass fails, it returns no gradients. A graph that is retained or that has hooks is left intact. Any other
    /// graph has lost the part that the pass used, and the next pass reports this.
    #[track_caller]
    pub fn backward_with(&self, options: BackwardOptions) -> Result<Gradients> {
        refuse_inference("backward")?;
        let root = root(self)?;
        let seed = seed(self)?;
        let taker = Taker::of_thread();
        run(vec![(root, seed)], false, options, 0, |_| true, |node, _| node.is_leaf(), taker).map(Gradients)
    }
}

/// Computes the gradients of `outputs`, weighted by `seeds`, with respect to `inputs`, which may be any tensors of the
/// graph. If `seeds` is `None`, every output must be a scalar and has weight 1. The gradient of an input that does not
/// influence the outputs, as far as the graph knows, is `None`; [`explain_grad`](crate::autograd::explain_grad) shows
/// why. If an input does influence them, but with a derivative of zero, its gradient is a tensor of zeros.
#[track_caller]
pub fn grad(
    outputs: &[&Tensor],
    inputs: &[&Tensor],
    seeds: Option<&[&Tensor]>,
    options: BackwardOptions,
) -> Result<Vec<Option<Tensor>>> {
    refuse_inference("grad")?;
    if seeds.is_some_and(|s| s.len() != outputs.len()) {
        return Err(Error::argument("grad", format!("{} outputs need as many seeds", outputs.len())));
    }
    let mut roots = Vec::with_capacity(outputs.len());
    for (i, &out) in outputs.iter().enumerate() {
        let seed = match seeds {
            None => seed(out)?,
            Some(seeds) => {
                check_seed("grad", out, seeds[i])?;
                seeds[i].clone()
            }
        };
        roots.push((root(out)?, seed));
    }
    let mut targets = Vec::with_capacity(inputs.len());
    for (i, input) in inputs.iter().enumerate() {
        let edge = input
            .edge()
            .ok_or_else(|| {
                let e = Error::new(ErrorKind::Autograd, "grad", format!("input {i} does not require a gradient"));
                input.describe(e, "input").help("make it a leaf with with_grad()? before the computation")
            })
            .here()?;
        edge.node.refuse_left_behind("grad").map_err(|e| input.describe(e, "input"))?;
        targets.push(edge);
    }
    grad_of_edges(roots, &targets, options, 0)
}

/// Fails unless a seed has the shape, dtype and device of its output.
#[track_caller]
pub(in crate::autograd) fn check_seed(op: &str, output: &Tensor, seed: &Tensor) -> Result<()> {
    let Some(kind) = seed.mismatch(&output.spec(), output.device()) else { return Ok(()) };
    let e = Error::new(kind, op, "a seed has the shape, dtype and device of its output");
    Err(seed.describe(output.describe(e, "output"), "seed"))
}

/// Computes the gradients for `targets`. Nodes numbered up to `boundary` receive gradients but pass none on, because
/// they were recorded before the computation that is differentiated.
#[track_caller]
pub(in crate::autograd) fn grad_of_edges(
    roots: Vec<(Edge, Tensor)>,
    targets: &[&Edge],
    options: BackwardOptions,
    boundary: u64,
) -> Result<Vec<Option<Tensor>>> {
    let targets: Vec<(u64, usize)> = targets.iter().map(|e| key(e)).collect();
    let needed = reaching(&roots, &targets, boundary);
    let wanted: ByEdge<()> = targets.iter().map(|&k| (k, ())).collect();
    let passes = |node: &Node| needed.contains(&node.seq);
    let mut found =
        run(roots, true, options, boundary, passes, |node, output| wanted.contains_key(&(node.seq, output)), None)?;
    if wanted.len() == targets.len() {
        return Ok(targets.iter().map(|k| found.remove(k)).collect());
    }
    // If a tensor is listed several times, its gradients must not share memory either.
    let _mode = enable_grad_guard();
    let mut given = HashSet::new();
    let give = |k| found.get(k).map(|g| if given.insert(k) { Ok(g.clone()) } else { g.copy() }).transpose();
    targets.iter().map(give).collect()
}

/// The edges that lead from `roots` to nodes numbered up to `boundary`, each once, in the order of recording. Does not
/// look beyond these nodes.
pub(in crate::autograd) fn edges_across<'a>(roots: impl IntoIterator<Item = &'a Edge>, boundary: u64) -> Vec<Edge> {
    let mut seen = HashSet::new();
    let mut across: BTreeMap<(u64, usize), Edge> = BTreeMap::new();
    let mut stack: Vec<&Edge> = roots.into_iter().collect();
    while let Some(edge) = stack.pop() {
        if edge.node.seq <= boundary {
            across.insert(key(edge), edge.clone());
        } else if seen.insert(edge.node.seq) {
            stack.extend(edge.node.inputs.iter().flatten());
        }
    }
    across.into_values().collect()
}

#[track_caller]
pub(in crate::autograd) fn root(t: &Tensor) -> Result<Edge> {
    t.check_current("backward")?;
    t.edge()
        .cloned()
        .ok_or_else(|| {
            let (m, help) = match t.dtype() {
                d if !d.is_float() => {
                    let m = format!("the elements are {d}, and integers and truth values have no derivative");
                    (m, "take the gradient of what is computed in floats")
                }
                _ => {
                    let (m, help) = t.why_untracked().explain();
                    (m.to_owned(), help)
                }
            };
            t.describe(Error::new(ErrorKind::Autograd, "backward", m), "self")
                .note("explain_grad(&parameter, || ..) runs the computation again and tells where the way to it ends")
                .help(help)
        })
        .here()
}

#[track_caller]
fn seed(t: &Tensor) -> Result<Tensor> {
    if t.numel() != 1 {
        let e =
            Error::new(ErrorKind::Autograd, "backward", "the gradient of a tensor with several elements needs a seed");
        return Err(t.describe(e, "self").help("reduce it to a scalar, or pass seeds to grad"));
    }
    Tensor::ones(t.shape(), t.dtype(), t.device())
}

/// The nodes from which one of `targets` can be reached through nodes recorded after `boundary`, including the targets'
/// own nodes. Visits only nodes recorded no earlier than the first target, since older nodes cannot lead to a target.
fn reaching(roots: &[(Edge, Tensor)], targets: &[(u64, usize)], boundary: u64) -> Seqs {
    let mut needed: Seqs = targets.iter().map(|t| t.0).collect();
    let first = needed.iter().copied().min().unwrap_or(u64::MAX);
    let mut seen = Seqs::default();
    let mut steps: Vec<(u64, u64)> = vec![];
    let mut stack: Vec<&Arc<Node>> = roots.iter().map(|(e, _)| &e.node).collect();
    while let Some(node) = stack.pop() {
        if node.seq >= first && node.seq > boundary && seen.insert(node.seq) {
            for input in node.inputs.iter().flatten() {
                steps.push((node.seq, input.node.seq));
                stack.push(&input.node);
            }
        }
    }
    // Inputs have lower numbers than their nodes, so one pass in ascending order settles every node.
    steps.sort_unstable();
    for (node, input) in steps {
        if needed.contains(&input) {
            needed.insert(node);
        }
    }
    needed
}

/// Runs the graph backwards from `roots`. `wanted` says which nodes take part. `asked` says for which outputs the
/// complete gradient is returned, if any gradient arrived; if only derivatives of zero arrived, zeros are returned.
/// Nodes numbered up to `boundary` pass nothing on. `exposed` says whether anyone else holds a seed. The gradients that
/// `taker` takes are not returned.
#[track_caller]
fn run(
    roots: Vec<(Edge, Tensor)>,
    exposed: bool,
    options: BackwardOptions,
    boundary: u64,
    wanted: impl Fn(&Node) -> bool,
    asked: impl Fn(&Node, usize) -> bool,
    taker: Option<Rc<Taker>>,
) -> Result<ByEdge<Tensor>> {
    let _nested = Nested::enter("backward")?;
    let observer = Observed::begin(&roots)?;
    let ends: SmallVec<[Arc<Node>; 1]> = roots.iter().map(|r| r.0.node.clone()).collect();
    // The pass has freed only nodes with this number or a higher one.
    let freed = Cell::new(u64::MAX);
    let failed = |why: &dyn std::fmt::Display| {
        if !options.retain_graph {
            Node::note_failure(&ends, why, |node| node.seq >= freed.get() && wanted(node));
        }
    };
    let panicked = OnDrop(|| failed(&"a panic"));
    let line = Location::caller();
    let mut pass = Pass { options, boundary, exposed, observer, taker, line, queue: Queue::default(), found: vec![] };
    let result = pass.run(roots, &freed, &wanted, &asked);
    std::mem::forget(panicked);
    result.inspect_err(|e| failed(&format_args!("{}: {}", e.op(), e.message()))).here()
}

/// Runs a function when it is dropped.
struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// A running backward pass.
struct Pass {
    options: BackwardOptions,
    boundary: u64,
    /// Whether anyone else may hold a gradient and could write into it: the owner of a seed, a hook or a user's rule.
    exposed: bool,
    observer: Option<Observed>,
    taker: Option<Rc<Taker>>,
    /// The line of the call that started the pass.
    line: &'static Location<'static>,
    queue: Queue,
    found: Vec<Found>,
}

impl Pass {
    #[track_caller]
    fn run(
        &mut self,
        roots: Vec<(Edge, Tensor)>,
        freed: &Cell<u64>,
        wanted: &impl Fn(&Node) -> bool,
        asked: &impl Fn(&Node, usize) -> bool,
    ) -> Result<ByEdge<Tensor>> {
        let BackwardOptions { retain_graph, create_graph } = self.options;
        let _mode = backward_mode(create_graph);
        // A hook may fail for reasons of its own, and the graph must then still be intact.
        let runs = |node: &Node| node.seq > self.boundary && wanted(node);
        let hooked = Hooks::on_the_way(roots.iter().map(|r| &r.0), runs);
        if let Some(taker) = &self.taker {
            self.queue.hurry(taker.first_uses(roots.iter().map(|r| &r.0), runs));
        }
        let mut done: Vec<Arc<Node>> = vec![];
        let seeds: SmallVec<[Tensor; 1]> = roots.iter().map(|r| r.1.clone()).collect();
        let mut foreign = false;
        for (edge, g) in roots {
            if wanted(&edge.node) {
                let version = g.storage().version();
                self.queue.send(&edge, g, version, self.exposed)?;
            }
        }
        while let Some(Pending { node, mut grads, mut versions }) = self.queue.pop() {
            let inside = node.seq > self.boundary;
            let mut needs: SmallVec<[bool; 8]> = SmallVec::new();
            for edge in &node.inputs {
                needs.push(edge.as_ref().is_some_and(|e| wanted(&e.node)));
            }
            let op = node.op.as_ref().filter(|_| inside && needs.contains(&true));
            let hooks = node.hooks.get().filter(|_| hooked && inside).map(|hooks| &**hooks);
            let user = hooks.is_some() || matches!(op, Some(Op::Rule(_)));
            self.exposed |= user;
            foreign |= user;
            let observer = self.observer.as_ref();
            let around = Around { node: &node, hooks, observer, create_graph };

            around.complete(&mut grads, &mut versions)?;
            collect(&mut self.found, &node, &grads, &versions, asked, self.taker.as_deref())?;
            let Some(op) = op else { continue };
            around.before(&mut grads, &mut versions)?;
            if grads.iter().all(Option::is_none) {
                for (edge, _) in node.inputs.iter().zip(&needs).filter(|(_, needed)| **needed) {
                    edge.iter().for_each(|e| self.queue.send_zero(e));
                }
                if !retain_graph {
                    done.push(node);
                }
                continue;
            }
            let saved = node.take_saved(retain_graph || hooked, self.line)?;
            freed.set(node.seq);
            let spares_grads = !create_graph && hooks.is_none() && observer.is_none() && saved.is_plain();
            let ctx = Context { node: &node, saved, needs, create_graph, spares_grads, read: Default::default() };
            let mut behind = differentiate(op, &ctx, &grads, around)?;
            if self.exposed {
                all_unchanged(&node, &grads, &versions)?;
            }
            if let Some(observer) = observer {
                observer.on_gradients(&ctx, &grads, &behind)?;
            }
            let replaced = around.after(&ctx, &mut behind, (&grads, &versions))?;
            if !self.exposed {
                // Nobody else holds these gradients, so their memory can be reused for sums.
                grads.clear();
            }
            let _line = (create_graph || is_traced()).then(|| AtLineOf::new(&node));
            for (i, g) in behind.into_iter().enumerate() {
                let (true, Some(edge)) = (ctx.needs(i), &node.inputs[i]) else { continue };
                let Some(g) = g else {
                    self.queue.send_zero(edge);
                    continue;
                };
                check(&node, i, edge, &g)?;
                let version = replaced.as_ref().map_or_else(|| version_of(Some(&g), &grads, &versions), |at| at[i]);
                self.queue.send(edge, g, version, self.exposed)?;
            }
            if hooked && !retain_graph {
                drop(ctx);
                done.push(node);
            }
        }
        let given = unshared(std::mem::take(&mut self.found), &seeds, create_graph, foreign)?;
        done.iter().for_each(|node| node.free(self.line));
        Ok(given)
    }
}

/// Computes the gradients of a node's inputs by the node's rule.
#[track_caller]
fn differentiate(op: &Op, ctx: &Context<'_>, grads: &[Option<Tensor>], around: Around<'_>) -> Result<Grads> {
    let user = matches!(op, Op::Rule(_));
    let mut behind = loop {
        let behind = {
            let _user = around.rule();
            let _line = ((ctx.create_graph || is_traced()) && !user).then(|| AtLineOf::new(ctx.node));
            op.vjp(ctx, grads)
        };
        // Another thread may have written in the meantime. If the graph got a copy of the old value, the rule runs
        // again and reads the copy.
        match behind.and_then(|behind| ctx.check_read().map(|()| behind)) {
            Err(_) if ctx.forget_replaced() => {}
            result => break result?,
        }
    };
    if user && !ctx.create_graph {
        behind.iter_mut().flatten().filter(|g| g.requires_grad()).for_each(|g| *g = g.detach());
    }
    Ok(behind)
}

/// Fails unless a gradient has the shape, dtype and device of its input: a faulty rule must not lead to a wrong
/// result.
#[track_caller]
fn check(node: &Node, i: usize, to: &Edge, g: &Tensor) -> Result<()> {
    let (want, device) = (to.spec(), &to.node.device);
    if g.mismatch(want, device).is_none() {
        return Ok(());
    }
    let m = format!("the gradient of {} for input {i} has the wrong shape, dtype or device", node.name());
    let e = Error::new(ErrorKind::Autograd, "backward", m);
    Err(g.describe(e.operand("input", &want.shape, want.dtype, device), "gradient"))
}

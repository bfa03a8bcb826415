//! The backward pass: nodes in the reverse order of recording, gradients summed as they arrive.
//!
//! Determinism: a node runs when every node recorded after it has run, and the gradients of one tensor are added in the
//! reverse order of recording. The order does not depend on threads or addresses.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use gradus_backend::{Error, ErrorKind, Result};
use smallvec::SmallVec;

use super::hooks::Hooks;
use super::mode::refuse_inference;
use super::node::{Edge, Node};
use super::observe::Pass;
use super::saved::Context;
use super::waiting::{Found, all_unchanged, give, unchanged};
use super::{enable_grad, no_grad};
use crate::Tensor;
use crate::tensor::Spec;

/// What a backward pass keeps.
#[derive(Debug, Clone, Copy, Default)]
pub struct BackwardOptions {
    retain_graph: bool,
    create_graph: bool,
}

impl BackwardOptions {
    /// The graph is freed as it is used, and gradients are plain numbers.
    pub fn new() -> Self {
        Self::default()
    }

    /// The graph stays for another pass.
    #[must_use]
    pub fn retain_graph(mut self) -> Self {
        self.retain_graph = true;
        self
    }

    /// The gradients are recorded themselves and can be differentiated again; the graph stays.
    #[must_use]
    pub fn create_graph(mut self) -> Self {
        self.retain_graph = true;
        self.create_graph = true;
        self
    }
}

/// The gradients of the leaves that a loss depends on.
#[derive(Default, Clone)]
pub struct Gradients(HashMap<(u64, usize), Tensor>);

fn key(edge: &Edge) -> (u64, usize) {
    (edge.node.seq, edge.output)
}

impl Gradients {
    /// The gradient of a leaf (or any clone of it); `None` if the loss does not depend on it, as far as the graph knows
    /// ([`explain_grad`](super::explain_grad) tells why). A loss that depends on it with a slope of zero gives zeros.
    pub fn get(&self, tensor: &Tensor) -> Option<&Tensor> {
        self.0.get(&key(tensor.edge()?))
    }

    /// Replaces the gradient of a tensor, which must have one.
    pub fn set(&mut self, tensor: &Tensor, gradient: Tensor) -> Result<()> {
        let slot = tensor.edge().and_then(|e| self.0.get_mut(&key(e)));
        let Some(slot) = slot else {
            return Err(Error::new(ErrorKind::Autograd, "gradients", "the tensor has no gradient to replace"));
        };
        let kind = match () {
            () if slot.device() != gradient.device() => Some(ErrorKind::DeviceMismatch),
            () if slot.dtype() != gradient.dtype() => Some(ErrorKind::DTypeMismatch),
            () if slot.shape() != gradient.shape() => Some(ErrorKind::ShapeMismatch),
            () => None,
        };
        if let Some(kind) = kind {
            let e = Error::new(kind, "gradients", "a gradient has the shape, dtype and device of its tensor");
            return Err(gradient.describe(slot.describe(e, "tensor"), "gradient"));
        }
        *slot = gradient;
        Ok(())
    }

    /// Number of gradients.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
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
    /// The gradients of this scalar for all leaves that it depends on. Frees the graph.
    ///
    /// ```
    /// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
    /// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    /// let x = Tensor::from_vec(vec![1.0f32, 2.0], [2], &device)?.require_grad()?;
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
    /// A tensor that is not tracked or has several elements, values that were overwritten, a graph that was freed, and what a
    /// rule, a hook or the device reports. An error gives no gradients at all. It leaves a graph that is kept, or that has
    /// hooks, as it was; of another it has freed what it used, and the next pass says so.
    #[track_caller]
    pub fn backward_with(&self, options: BackwardOptions) -> Result<Gradients> {
        refuse_inference("backward")?;
        let root = root(self)?;
        let seed = seed(self)?;
        run(vec![(root, seed)], options, 0, |_| true, |node, _| node.is_leaf()).map(Gradients)
    }
}

/// The gradients of `outputs`, weighted by `seeds` (`None` for 1 in a scalar), for `inputs`, which may be any tensors of
/// the graph. `None` where an input does not influence the outputs as far as the graph knows
/// ([`explain_grad`](super::explain_grad) tells why); zeros where it does, and the derivative is zero.
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
        let edge = input.edge().ok_or_else(|| {
            let e = Error::new(ErrorKind::Autograd, "grad", format!("input {i} does not require a gradient"));
            input.describe(e, "input").help("make it a leaf with require_grad()? before the computation")
        })?;
        targets.push(edge);
    }
    grad_of_edges(roots, &targets, options, 0)
}

/// A seed has the shape, dtype and device of its output.
pub(super) fn check_seed(op: &str, output: &Tensor, seed: &Tensor) -> Result<()> {
    let kind = match () {
        () if seed.device() != output.device() => ErrorKind::DeviceMismatch,
        () if seed.dtype() != output.dtype() => ErrorKind::DTypeMismatch,
        () if seed.shape() != output.shape() => ErrorKind::ShapeMismatch,
        () => return Ok(()),
    };
    let e = Error::new(kind, op, "a seed has the shape, dtype and device of its output");
    Err(seed.describe(output.describe(e, "output"), "seed"))
}

/// The gradients for `targets`. Nodes numbered up to `boundary` receive gradients and pass none on: what was recorded
/// before is not part of the computation that is differentiated.
pub(super) fn grad_of_edges(
    roots: Vec<(Edge, Tensor)>,
    targets: &[&Edge],
    options: BackwardOptions,
    boundary: u64,
) -> Result<Vec<Option<Tensor>>> {
    let targets: Vec<(u64, usize)> = targets.iter().map(|e| key(e)).collect();
    let needed = reaching(&roots, &targets, boundary);
    let wanted: HashSet<(u64, usize)> = targets.iter().copied().collect();
    let passes = |node: &Node| needed.contains(&node.seq);
    let found = run(roots, options, boundary, passes, |node, output| wanted.contains(&(node.seq, output)))?;
    let mut given = HashSet::new();
    let _mode = enable_grad();
    let give = |k| found.get(k).map(|g| if given.insert(k) { Ok(g.clone()) } else { g.copy() }).transpose();
    targets.iter().map(give).collect()
}

/// The gradient of an output whose derivative is zero.
fn zero(node: &Node, output: usize) -> Result<Tensor> {
    let Spec { shape, dtype } = node.outputs[output];
    Tensor::zeros(shape, dtype, &node.device)
}

/// The edges that lead from `roots` to nodes numbered up to `boundary`, each once, in the order of recording. Nothing
/// behind them is looked at.
pub(super) fn edges_across<'a>(roots: impl IntoIterator<Item = &'a Edge>, boundary: u64) -> Vec<Edge> {
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

pub(super) fn root(t: &Tensor) -> Result<Edge> {
    t.check_current("backward")?;
    t.edge().cloned().ok_or_else(|| {
        let m = match t.dtype() {
            d if !d.is_float() => format!("the elements are {d}, and integers and truth values have no derivative"),
            _ => "the tensor was not computed from one that requires a gradient".to_owned(),
        };
        t.describe(Error::new(ErrorKind::Autograd, "backward", m), "self")
            .note("explain_grad(&parameter, || ..) runs the computation again and tells where the way to it ends")
            .help("make the parameters leaves with require_grad()?, and compute outside of no_grad and inference")
    })
}

fn seed(t: &Tensor) -> Result<Tensor> {
    if t.numel() != 1 {
        let e =
            Error::new(ErrorKind::Autograd, "backward", "the gradient of a tensor with several elements needs a seed");
        return Err(t.describe(e, "self").help("reduce it to a scalar, or pass seeds to grad"));
    }
    Tensor::ones(t.shape(), t.dtype(), t.device())
}

/// The nodes from which one of `targets` is reached, the target's own node included, without a step beyond `boundary`.
fn reaching(roots: &[(Edge, Tensor)], targets: &[(u64, usize)], boundary: u64) -> HashSet<u64> {
    // Inputs have lower numbers: collect all nodes, then decide each from the lowest up.
    let mut nodes: BTreeMap<u64, &Node> = BTreeMap::new();
    let mut stack: Vec<&Arc<Node>> = roots.iter().map(|(e, _)| &e.node).collect();
    while let Some(node) = stack.pop() {
        if nodes.insert(node.seq, node).is_none() && node.seq > boundary {
            stack.extend(node.inputs.iter().flatten().map(|e| &e.node));
        }
    }
    let targets: HashSet<u64> = targets.iter().map(|t| t.0).collect();
    let mut needed = HashSet::new();
    for (seq, node) in nodes {
        let is_target = targets.contains(&seq);
        let passes = seq > boundary;
        if is_target || passes && node.inputs.iter().flatten().any(|e| needed.contains(&e.node.seq)) {
            needed.insert(seq);
        }
    }
    needed
}

/// A node that waits for gradients.
struct Pending {
    node: Arc<Node>,
    grads: SmallVec<[Option<Tensor>; 1]>,
    /// Those of the gradients' storages when they arrived; [`ZERO`] where nothing but derivatives of zero did.
    versions: SmallVec<[u64; 1]>,
}

/// In place of a version: the gradient is zero, and has no tensor.
const ZERO: u64 = u64::MAX;

impl Pending {
    fn new(edge: &Edge) -> Self {
        let (node, outputs) = (edge.node.clone(), edge.node.outputs.len());
        let (grads, versions) = (SmallVec::from_elem(None, outputs), SmallVec::from_elem(0, outputs));
        Pending { node, grads, versions }
    }

    fn add(&mut self, output: usize, g: Tensor) -> Result<()> {
        let (slot, version) = (&mut self.grads[output], &mut self.versions[output]);
        let g = match slot.take() {
            Some(sum) => {
                unchanged(&self.node, output, &sum, *version)?;
                sum.add(&g)?
            }
            None => g,
        };
        *version = g.storage().version();
        *slot = Some(g);
        Ok(())
    }
}

/// The nodes that wait for gradients, the last recorded first.
#[derive(Default)]
struct Queue {
    order: BinaryHeap<u64>,
    pending: HashMap<u64, Pending, BuildHasherDefault<SeqHasher>>,
}

impl Queue {
    /// Adds a gradient to what has arrived at an edge.
    fn send(&mut self, edge: &Edge, g: Tensor) -> Result<()> {
        match self.pending.entry(edge.node.seq) {
            Entry::Occupied(mut waiting) => waiting.get_mut().add(edge.output, g),
            Entry::Vacant(place) => {
                self.order.push(edge.node.seq);
                place.insert(Pending::new(edge)).add(edge.output, g)
            }
        }
    }

    /// Notes that a derivative of zero arrived at an edge.
    #[cold]
    fn send_zero(&mut self, edge: &Edge) {
        let waiting = self.pending.entry(edge.node.seq).or_insert_with(|| {
            self.order.push(edge.node.seq);
            Pending::new(edge)
        });
        if waiting.grads[edge.output].is_none() {
            waiting.versions[edge.output] = ZERO;
        }
    }

    fn pop(&mut self) -> Option<Pending> {
        self.pending.remove(&self.order.pop()?)
    }
}

/// Hashes the number of a node: consecutive ones are spread by a multiplication.
#[derive(Default)]
struct SeqHasher(u64);

impl Hasher for SeqHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&b| self.write_u64(u64::from(b)));
    }
    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0.rotate_left(5) ^ n).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

fn versions_of(grads: &[Option<Tensor>]) -> SmallVec<[u64; 1]> {
    grads.iter().map(|g| g.as_ref().map_or(0, |g| g.storage().version())).collect()
}

/// Runs the graph backwards from `roots`. `wanted` says which nodes take part, and `asked` for which outputs the complete
/// gradient is given, if one arrived: zeros where all that arrived are derivatives of zero, which go on as such. Nodes
/// numbered up to `boundary` pass nothing on.
fn run(
    roots: Vec<(Edge, Tensor)>,
    options: BackwardOptions,
    boundary: u64,
    wanted: impl Fn(&Node) -> bool,
    asked: impl Fn(&Node, usize) -> bool,
) -> Result<HashMap<(u64, usize), Tensor>> {
    let ends: SmallVec<[Arc<Node>; 1]> = roots.iter().map(|r| r.0.node.clone()).collect();
    let mut freed = u64::MAX;
    let result = pass(roots, options, boundary, &wanted, asked, &mut freed);
    if let Err(e) = &result
        && !options.retain_graph
    {
        Node::note_failure(&ends, e, |node| node.seq >= freed && wanted(node));
    }
    result
}

/// The pass. What it frees on the way has numbers of at least `freed`.
fn pass(
    roots: Vec<(Edge, Tensor)>,
    options: BackwardOptions,
    boundary: u64,
    wanted: &impl Fn(&Node) -> bool,
    asked: impl Fn(&Node, usize) -> bool,
    freed: &mut u64,
) -> Result<HashMap<(u64, usize), Tensor>> {
    let observer = Pass::begin(&roots)?;
    let _mode = if options.create_graph { enable_grad() } else { no_grad() };
    // A hook may fail for reasons of its own: the graph is then as it was.
    let hooked = Hooks::on_the_way(roots.iter().map(|r| &r.0));
    let mut done: Vec<Arc<Node>> = vec![];
    let mut found: Vec<Found> = vec![];
    let seeds: Vec<_> = roots.iter().map(|(_, seed)| Arc::as_ptr(seed.storage())).collect();
    let mut queue = Queue::default();
    for (edge, g) in roots {
        if wanted(&edge.node) {
            queue.send(&edge, g)?;
        }
    }
    while let Some(Pending { node, mut grads, mut versions }) = queue.pop() {
        all_unchanged(&node, &grads, &versions)?;
        let inside = node.seq > boundary;
        let hooks = node.hooks.get().filter(|_| hooked && inside);
        let op = node.op.as_ref().filter(|_| inside);
        let needs: SmallVec<[bool; 8]> =
            node.inputs.iter().map(|e| e.as_ref().is_some_and(|e| wanted(&e.node))).collect();
        let op = op.filter(|_| needs.contains(&true));
        if let Some(hooks) = hooks {
            // A hook sees zeros where a derivative of zero arrived, and may give something else.
            for (output, g) in grads.iter_mut().enumerate().filter(|(i, _)| versions[*i] == ZERO) {
                *g = Some(zero(&node, output)?);
            }
            let _user = observer.as_ref().map(|o| o.user_code(&node));
            hooks.on_tensors(&node, &mut grads)?;
            versions = versions_of(&grads);
        }
        if let Some(observer) = &observer {
            observer.complete(&node, &grads)?;
        }
        for (output, g) in grads.iter().enumerate() {
            let gradient = match g {
                Some(g) if asked(&node, output) => g.clone(),
                None if versions[output] == ZERO && asked(&node, output) => zero(&node, output)?,
                _ => continue,
            };
            let version = if g.is_some() { versions[output] } else { 0 };
            found.push(Found { node: node.clone(), output, gradient, version });
        }
        let Some(op) = op else { continue };
        if let Some(hooks) = hooks {
            let _user = observer.as_ref().map(|o| o.user_code(&node));
            hooks.before(&node, &mut grads)?;
            versions = versions_of(&grads);
        }
        if grads.iter().all(Option::is_none) {
            for (edge, _) in node.inputs.iter().zip(&needs).filter(|(_, needed)| **needed) {
                edge.iter().for_each(|e| queue.send_zero(e));
            }
            if !options.retain_graph {
                done.push(node);
            }
            continue;
        }
        let saved = node.take_saved(options.retain_graph || hooked)?;
        *freed = node.seq;
        let ctx = Context { node: &node, saved, needs, create_graph: options.create_graph, read: Default::default() };
        let mut behind = {
            let _user = observer.as_ref().map(|o| o.rule(&node));
            op.vjp(&ctx, &grads)?
        };
        // Another thread may have written while it was computed.
        ctx.check_read()?;
        all_unchanged(&node, &grads, &versions)?;
        if let Some(observer) = &observer {
            observer.found(&ctx, &grads, &behind)?;
        }
        if let Some(hooks) = hooks {
            behind.iter_mut().enumerate().filter(|(i, _)| !ctx.needs(*i)).for_each(|(_, g)| *g = None);
            let _user = observer.as_ref().map(|o| o.user_code(&node));
            hooks.after(&node, &mut behind, &grads, |i| ctx.needs(i))?;
        }
        drop(grads);
        for (i, g) in behind.into_iter().enumerate() {
            let (true, Some(edge)) = (ctx.needs(i), &node.inputs[i]) else { continue };
            match g {
                Some(g) => {
                    check(&node, i, edge.spec(), &g)?;
                    queue.send(edge, g)?;
                }
                None => queue.send_zero(edge),
            }
        }
        if hooked && !options.retain_graph {
            drop(ctx);
            done.push(node);
        }
    }
    let given = give(found, &seeds, options.create_graph)?;
    done.iter().for_each(|node| node.free());
    Ok(given)
}

/// A gradient has the shape, dtype and device of its input: a bug in a rule must not become a wrong number.
fn check(node: &Node, i: usize, want: &Spec, g: &Tensor) -> Result<()> {
    if want.shape == *g.layout().shape() && want.dtype == g.dtype() && *g.device() == node.device {
        return Ok(());
    }
    let m = format!("the gradient of {} for input {i} has the wrong shape, dtype or device", node.name());
    let e = Error::new(ErrorKind::Autograd, "backward", m);
    Err(g.describe(e.operand("input", &want.shape, want.dtype, &node.device), "gradient"))
}

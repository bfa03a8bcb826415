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
use super::node::{Edge, Node};
use super::saved::Context;
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
    /// The gradient of a leaf (or any clone of it); `None` if the loss does not depend on it.
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
    #[track_caller]
    pub fn backward_with(&self, options: BackwardOptions) -> Result<Gradients> {
        let root = root(self)?;
        let seed = seed(self)?;
        let mut found = Gradients::default();
        run(
            vec![(root, seed)],
            options,
            0,
            |_| true,
            |node, output, g| {
                if node.is_leaf() {
                    found.0.insert((node.seq, output), own(g)?);
                }
                Ok(())
            },
        )?;
        Ok(found)
    }
}

/// The gradients of `outputs`, weighted by `seeds` (`None` for 1 in a scalar), for `inputs`, which may be any tensors of
/// the graph. `None` where an input does not influence the outputs.
#[track_caller]
pub fn grad(
    outputs: &[&Tensor],
    inputs: &[&Tensor],
    seeds: Option<&[&Tensor]>,
    options: BackwardOptions,
) -> Result<Vec<Option<Tensor>>> {
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
    let mut found: HashMap<(u64, usize), Tensor> = HashMap::new();
    run(
        roots,
        options,
        boundary,
        |node| needed.contains(&node.seq),
        |node, output, g| {
            if wanted.contains(&(node.seq, output)) {
                found.insert((node.seq, output), own(g)?);
            }
            Ok(())
        },
    )?;
    Ok(targets.iter().map(|k| found.get(k).cloned()).collect())
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
        let e = Error::new(
            ErrorKind::Autograd,
            "backward",
            "the tensor was not computed from one that requires a gradient",
        );
        t.describe(e, "self").help("make the parameters leaves with require_grad()?, and compute outside of no_grad")
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

/// A gradient for the caller, who may write into it: no other tensor shares its memory.
fn own(g: &Tensor) -> Result<Tensor> {
    if g.is_unshared() { Ok(g.clone()) } else { g.copy() }
}

/// A node that waits for gradients.
struct Pending {
    node: Arc<Node>,
    grads: SmallVec<[Option<Tensor>; 1]>,
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
            Entry::Occupied(mut waiting) => {
                let slot = &mut waiting.get_mut().grads[edge.output];
                *slot = Some(match slot.take() {
                    Some(sum) => sum.add(&g)?,
                    None => g,
                });
            }
            Entry::Vacant(place) => {
                let mut grads = SmallVec::from_elem(None, edge.node.outputs.len());
                grads[edge.output] = Some(g);
                place.insert(Pending { node: edge.node.clone(), grads });
                self.order.push(edge.node.seq);
            }
        }
        Ok(())
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

/// Runs the graph backwards from `roots`. `wanted` says which nodes take part; `visit` sees the complete gradient of each
/// output that one arrived for. Nodes numbered up to `boundary` pass nothing on.
fn run(
    roots: Vec<(Edge, Tensor)>,
    options: BackwardOptions,
    boundary: u64,
    wanted: impl Fn(&Node) -> bool,
    mut visit: impl FnMut(&Node, usize, &Tensor) -> Result<()>,
) -> Result<()> {
    let _mode = if options.create_graph { enable_grad() } else { no_grad() };
    // A hook may fail for reasons of its own: the graph is then as it was.
    let hooked = Hooks::on_the_way(roots.iter().map(|r| &r.0));
    let mut done: Vec<Arc<Node>> = vec![];
    let mut queue = Queue::default();
    for (edge, g) in roots {
        if wanted(&edge.node) {
            queue.send(&edge, g)?;
        }
    }
    while let Some(Pending { node, mut grads }) = queue.pop() {
        let inside = node.seq > boundary;
        let hooks = node.hooks.get().filter(|_| hooked && inside);
        let op = node.op.as_ref().filter(|_| inside);
        let needs: SmallVec<[bool; 8]> =
            node.inputs.iter().map(|e| e.as_ref().is_some_and(|e| wanted(&e.node))).collect();
        let op = op.filter(|_| needs.contains(&true));
        if let Some(hooks) = hooks {
            hooks.before(&node, &mut grads, op.is_some())?;
        }
        for (output, g) in grads.iter().enumerate() {
            if let Some(g) = g {
                visit(&node, output, g)?;
            }
        }
        let Some(op) = op else { continue };
        let saved = node.take_saved(options.retain_graph || hooked)?;
        let ctx = Context { node: &node, saved, needs, create_graph: options.create_graph, read: Default::default() };
        let mut found = op.vjp(&ctx, &grads)?;
        ctx.check_read()?;
        if let Some(hooks) = hooks {
            found.iter_mut().enumerate().filter(|(i, _)| !ctx.needs(*i)).for_each(|(_, g)| *g = None);
            hooks.after(&node, &mut found, &grads, |i| ctx.needs(i))?;
        }
        drop(grads);
        for (i, g) in found.into_iter().enumerate() {
            let (Some(g), true, Some(edge)) = (g, ctx.needs(i), &node.inputs[i]) else { continue };
            check(&node, i, edge.spec(), &g)?;
            queue.send(edge, g)?;
        }
        if hooked && !options.retain_graph {
            drop(ctx);
            done.push(node);
        }
    }
    done.iter().for_each(|node| node.free());
    Ok(())
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

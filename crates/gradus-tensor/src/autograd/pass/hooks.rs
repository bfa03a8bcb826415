//! Hooks: user functions that see gradients during a backward pass and may replace them.
//!
//! A hook lives as long as its [`Hook`] handle; the graph holds it weakly. A hook may therefore capture tensors, even
//! the one that it is registered on, without keeping the graph alive.

use std::any::Any;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use gradus_backend::{Error, ErrorKind, Here, Result};

use crate::autograd::graph::node::{Edge, Node};
use crate::autograd::guard::packed::Packed;
use crate::autograd::pass::queue::Seqs;
use crate::autograd::region::access::region_began;
use crate::tensor::Spec;
use crate::{Device, Tensor};

/// Gradients of the outputs or inputs of a node; `None` for zero.
type Grads = [Option<Tensor>];
type OnTensor = dyn Fn(&Tensor) -> Result<Option<Tensor>> + Send + Sync;
type Before = dyn Fn(&Grads) -> Result<Option<Vec<Option<Tensor>>>> + Send + Sync;
type After = dyn Fn(&Grads, &Grads) -> Result<Option<Vec<Option<Tensor>>>> + Send + Sync;

/// Data that only few nodes have: hooks in the order of registration, the reason why the pass that freed the node
/// failed, and whether a checkpointed region left the node behind.
#[derive(Default)]
pub(in crate::autograd) struct Hooks(Mutex<Lists>);

#[derive(Default)]
struct Lists {
    /// The hooks of tensors, each with the number of the output that it belongs to.
    tensor: Vec<(usize, Weak<OnTensor>)>,
    before: Vec<Weak<Before>>,
    after: Vec<Weak<After>>,
    failure: Option<Arc<str>>,
    /// Whether the node was recorded inside a checkpointed region that is now closed.
    inside: bool,
}

/// The number of hooks in the process. While it is 0, passes need not look for hooks.
static LIVE: AtomicUsize = AtomicUsize::new(0);

/// Keeps a hook registered. Dropping the handle removes the hook.
#[must_use = "the hook is removed when its handle is dropped: keep it for as long as the hook shall run"]
pub struct Hook {
    _function: Arc<dyn Any + Send + Sync>,
}

impl Hook {
    fn new(function: Arc<dyn Any + Send + Sync>) -> Self {
        LIVE.fetch_add(1, Ordering::Relaxed);
        Hook { _function: function }
    }

    /// Removes the hook.
    pub fn remove(self) {}
}

impl Drop for Hook {
    fn drop(&mut self) {
        LIVE.fetch_sub(1, Ordering::Relaxed);
    }
}

impl std::fmt::Debug for Hook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hook")
    }
}

impl Hooks {
    fn lists(&self) -> std::sync::MutexGuard<'_, Lists> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Records why the pass that freed this node failed, unless a reason has already been recorded.
    pub(in crate::autograd) fn note_failure(&self, why: &Arc<str>) {
        self.lists().failure.get_or_insert_with(|| why.clone());
    }

    /// The reason why the pass that freed this node failed.
    pub(in crate::autograd) fn failure(&self) -> Option<Arc<str>> {
        self.lists().failure.clone()
    }

    fn any(&self) -> bool {
        self.living() != [0; 3]
    }

    /// The number of hooks of each kind.
    pub(in crate::autograd) fn living(&self) -> [usize; 3] {
        let lists = self.lists();
        [
            lists.tensor.iter().filter(|h| h.1.strong_count() > 0).count(),
            lists.before.iter().filter(|h| h.strong_count() > 0).count(),
            lists.after.iter().filter(|h| h.strong_count() > 0).count(),
        ]
    }

    /// Runs the hooks of tensors on the complete gradients of the outputs, which are valid at `versions` of their
    /// storages. A gradient that a hook replaces gets the version of its new storage. Without `create_graph`, any graph
    /// that a hook recorded is dropped.
    ///
    /// No lock is held while a hook runs, so a hook may register other hooks or take gradients itself.
    #[track_caller]
    pub(in crate::autograd) fn on_tensors(
        &self,
        node: &Node,
        grads: &mut Grads,
        versions: &mut [u64],
        create_graph: bool,
    ) -> Result<()> {
        let hooks: Vec<(usize, Arc<OnTensor>)> =
            self.lists().tensor.iter().filter_map(|(i, h)| Some((*i, h.upgrade()?))).collect();
        for (output, hook) in hooks {
            let (Some(Some(g)), Some(spec)) = (grads.get(output), node.outputs.get(output)) else { continue };
            let new = hook(g)?;
            untouched(node, grads.iter().zip(&*versions))?;
            if let Some(new) = new {
                check(node, &new, spec, &node.device)?;
                put(&mut grads[output], &mut versions[output], Some(new), create_graph);
            }
        }
        Ok(())
    }

    /// Runs the hooks that come before the computation of the node's own gradient.
    #[track_caller]
    pub(in crate::autograd) fn before(
        &self,
        node: &Node,
        grads: &mut Grads,
        versions: &mut [u64],
        create_graph: bool,
    ) -> Result<()> {
        let hooks: Vec<Arc<Before>> = self.lists().before.iter().filter_map(Weak::upgrade).collect();
        for hook in hooks {
            let new = hook(grads)?;
            untouched(node, grads.iter().zip(&*versions))?;
            if let Some(new) = new {
                let carries = |i: usize| {
                    node.outputs[i].dtype.is_float() && node.op.as_ref().is_none_or(|op| op.differentiable(i))
                };
                fits(node, &new, grads.len(), |i| Some((node.outputs.get(i)?, &node.device)), carries)?;
                let slots = grads.iter_mut().zip(versions.iter_mut()).zip(new);
                slots.for_each(|((g, version), new)| put(g, version, new, create_graph));
            }
        }
        Ok(())
    }

    /// Runs the hooks on the gradients that the node has computed for its inputs. A hook may return gradients only for
    /// inputs that satisfy `needs`.
    #[track_caller]
    pub(in crate::autograd) fn after(
        &self,
        node: &Node,
        (inputs, versions): (&mut Grads, &mut [u64]),
        (outputs, given): (&Grads, &[u64]),
        needs: impl Fn(usize) -> bool,
        create_graph: bool,
    ) -> Result<()> {
        let hooks: Vec<Arc<After>> = self.lists().after.iter().filter_map(Weak::upgrade).collect();
        for hook in hooks {
            let new = hook(inputs, outputs)?;
            untouched(node, inputs.iter().zip(&*versions).chain(outputs.iter().zip(given)))?;
            if let Some(new) = new {
                let place = |i: usize| node.inputs[i].as_ref().map(|e| (e.spec(), &e.node.device));
                fits(node, &new, inputs.len(), place, &needs)?;
                let slots = inputs.iter_mut().zip(versions.iter_mut()).zip(new);
                slots.for_each(|((g, version), new)| put(g, version, new, create_graph));
            }
        }
        Ok(())
    }

    /// Whether a pass from `roots` over the nodes that satisfy `run` may come across a hook or a packed value.
    pub(in crate::autograd) fn on_the_way<'a>(
        roots: impl Iterator<Item = &'a Edge>,
        run: impl Fn(&Node) -> bool,
    ) -> bool {
        if LIVE.load(Ordering::Relaxed) == 0 && !Packed::any() {
            return false;
        }
        let mut seen = Seqs::default();
        let mut stack: Vec<&Arc<Node>> = roots.map(|e| &e.node).collect();
        while let Some(node) = stack.pop() {
            if run(node) && seen.insert(node.seq) {
                if node.hooks.get().is_some_and(|h| h.any()) || Packed::any() && node.is_packed() {
                    return true;
                }
                stack.extend(node.inputs.iter().flatten().map(|e| &e.node));
            }
        }
        false
    }
}

/// Adds a hook to a list. Occasionally removes the hooks that are no longer live.
fn add<T>(list: &mut Vec<T>, hook: T, live: impl Fn(&T) -> bool) {
    if list.len() == list.capacity() {
        list.retain(live);
        // The next search happens only after as many additions as hooks are live now, so an addition has constant
        // amortised cost.
        list.reserve(list.len() + 1);
    }
    list.push(hook);
}

/// Replaces a gradient with the one that a hook returned.
fn put(g: &mut Option<Tensor>, version: &mut u64, new: Option<Tensor>, create_graph: bool) {
    *version = new.as_ref().map_or(0, |new| new.storage().version());
    *g = new.map(|new| if !create_graph && new.requires_grad() { new.detach() } else { new });
}

/// Fails if a hook wrote into a gradient, since several gradients may share their bytes.
#[track_caller]
fn untouched<'a>(node: &Node, grads: impl Iterator<Item = (&'a Option<Tensor>, &'a u64)>) -> Result<()> {
    for (g, &version) in grads {
        let Some(g) = g else { continue };
        if g.storage().version() == version {
            continue;
        }
        let Some(write) = g.overwritten(version) else { continue };
        let m = format!("{} overwrote a gradient that a hook of {} was shown", write.op, node.name());
        let e = g.describe(Error::new(ErrorKind::Autograd, "hook", m), "gradient").note(recorded(node));
        let e = e.note(format!("{} wrote at {}", write.op, write.location));
        return Err(e.help("it may be shared: give back a new tensor, Ok(Some(g.mul(2.0)?)) instead of g.mul_(2.0)?"));
    }
    Ok(())
}

/// Fails unless a hook returned as many gradients as it received, each wanted and of the right shape, dtype and
/// device.
#[track_caller]
fn fits<'n>(
    node: &'n Node,
    new: &[Option<Tensor>],
    count: usize,
    place: impl Fn(usize) -> Option<(&'n Spec, &'n Device)>,
    may: impl Fn(usize) -> bool,
) -> Result<()> {
    if new.len() != count {
        let m = format!("a hook of {} gave {} gradients for {count}", node.name(), new.len());
        return Err(Error::new(ErrorKind::Autograd, "hook", m).note(recorded(node)));
    }
    for (i, g) in new.iter().enumerate() {
        let Some(g) = g else { continue };
        if !may(i) {
            let m = format!("a hook of {} gave gradient {i}, which is not wanted", node.name());
            return Err(Error::new(ErrorKind::Autograd, "hook", m).note(recorded(node)).help("give None there"));
        }
        if let Some((spec, device)) = place(i) {
            check(node, g, spec, device)?;
        }
    }
    Ok(())
}

#[track_caller]
fn check(node: &Node, g: &Tensor, spec: &Spec, device: &Device) -> Result<()> {
    let Some(kind) = g.mismatch(spec, device) else { return Ok(()) };
    let m = format!("a hook of {} replaced a gradient by another shape, dtype or device", node.name());
    let e = Error::new(kind, "hook", m).note(recorded(node));
    Err(g.describe(e.operand("tensor", &spec.shape, spec.dtype, device), "replacement"))
}

fn recorded(node: &Node) -> String {
    format!("{} recorded at {}", node.name(), node.location)
}

impl Tensor {
    /// Registers `hook` to run on the complete gradient of this tensor in every later backward pass that reaches it.
    /// The tensor may be a leaf or an intermediate result. The hook may return another gradient of the same shape,
    /// dtype and device, which replaces the original both for the rest of the pass and in the result; `None` leaves the
    /// original in place. The hooks of a tensor run in the order of registration.
    ///
    /// A clone counts as the same tensor. With `create_graph`, what a hook computes is recorded. If a hook returns an
    /// error, the pass ends without gradients and the graph stays as it was. (For this reason, a graph with hooks is
    /// freed only after its pass has succeeded.) Registration fails if the tensor requires no gradient.
    ///
    /// ```
    /// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
    /// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    /// let x = Tensor::from_vec(vec![1.0f32, -2.0], [2], &device)?.with_grad()?;
    /// let _hook = x.register_hook(|g| Ok(Some(g.clamp(-1.0, 1.0)?)))?;
    /// let gradients = x.square()?.sum_all()?.backward()?;
    /// assert_eq!(gradients.get(&x).unwrap().to_vec::<f32>()?, [1.0, -1.0]);
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn register_hook(
        &self,
        hook: impl Fn(&Tensor) -> Result<Option<Tensor>> + Send + Sync + 'static,
    ) -> Result<Hook> {
        let edge = self
            .edge()
            .ok_or_else(|| {
                let e = Error::new(ErrorKind::Autograd, "register_hook", "the tensor has no gradient to see");
                self.describe(e, "self").help("make it a leaf with with_grad()?, or compute it from one")
            })
            .here()?;
        edge.node.refuse_region("register_hook")?;
        let function = Arc::new(hook);
        let weak = Arc::downgrade(&(function.clone() as Arc<OnTensor>));
        let mut lists = edge.node.hooks.get_or_init(Default::default).lists();
        add(&mut lists.tensor, (edge.output, weak), |h| h.1.strong_count() > 0);
        Ok(Hook::new(function))
    }
}

impl Node {
    /// Registers `hook` to run before this operation's gradient is computed, on the complete gradients of its outputs
    /// (`None` for zero). The hook may return replacements, one for each output, for the rest of the pass. A caller
    /// that asked for the gradient of an output still gets the original. Fails for a leaf. Otherwise it works like
    /// [`Tensor::register_hook`].
    #[track_caller]
    pub fn register_prehook(
        &self,
        hook: impl Fn(&[Option<Tensor>]) -> Result<Option<Vec<Option<Tensor>>>> + Send + Sync + 'static,
    ) -> Result<Hook> {
        self.refuse_leaf("register_prehook")?;
        let function = Arc::new(hook);
        let weak = Arc::downgrade(&(function.clone() as Arc<Before>));
        let mut lists = self.hooks.get_or_init(Default::default).lists();
        add(&mut lists.before, weak, |h| h.strong_count() > 0);
        Ok(Hook::new(function))
    }

    /// Registers `hook` to run after this operation's gradient has been computed, on the gradients of its inputs
    /// (`None` for zero, or if the gradient is not wanted) and of its outputs. The hook may return replacements for the
    /// gradients of the inputs, one for each. Fails for a leaf. Otherwise it works like [`Tensor::register_hook`].
    #[track_caller]
    pub fn register_hook(
        &self,
        hook: impl Fn(&[Option<Tensor>], &[Option<Tensor>]) -> Result<Option<Vec<Option<Tensor>>>> + Send + Sync + 'static,
    ) -> Result<Hook> {
        self.refuse_leaf("register_hook")?;
        let function = Arc::new(hook);
        let weak = Arc::downgrade(&(function.clone() as Arc<After>));
        let mut lists = self.hooks.get_or_init(Default::default).lists();
        add(&mut lists.after, weak, |h| h.strong_count() > 0);
        Ok(Hook::new(function))
    }

    /// Marks the node as recorded inside a checkpointed region that is now closed.
    #[cold]
    pub(in crate::autograd) fn leave_region(&self) {
        self.hooks.get_or_init(Default::default).lists().inside = true;
    }

    /// Fails if a closed region left this node behind. Its gradient would be incomplete, since no output of the region
    /// leads to it.
    #[track_caller]
    pub(in crate::autograd) fn refuse_left_behind(&self, op: &str) -> Result<()> {
        if !self.hooks.get().is_some_and(|h| h.lists().inside) {
            return Ok(());
        }
        let m = format!("a result of {} from inside a checkpointed region has no gradient outside of it", self.name());
        let e = Error::new(ErrorKind::Autograd, op, m).note(recorded(self));
        Err(e.help("return the tensor from the checkpointed function, and use what checkpoint gives"))
    }

    /// Fails if a closed region left this node behind, since the hook would see only part of the gradient. Also fails
    /// inside a region if the node is older than the region, since both runs of the region would register the hook.
    #[track_caller]
    fn refuse_region(&self, op: &str) -> Result<()> {
        self.refuse_left_behind(op)?;
        if region_began().is_none_or(|began| self.seq > began) {
            return Ok(());
        }
        let m = "a checkpointed region is run twice, and would register the hook of a tensor from outside twice";
        let e = Error::new(ErrorKind::Autograd, op, m).note(recorded(self));
        Err(e.help("register it outside of the region, or on a tensor that the region computes"))
    }

    #[track_caller]
    fn refuse_leaf(&self, op: &str) -> Result<()> {
        if !self.is_leaf() {
            return self.refuse_region(op);
        }
        let e = Error::new(ErrorKind::Autograd, op, "a leaf runs no operation");
        Err(e.note(recorded(self)).help("register the hook on the tensor"))
    }
}

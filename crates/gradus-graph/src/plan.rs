//! [`Plan`]: a graph with memory for its temporary values, ready to run.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use gradus_tensor::ops::{
    Block, Home, HostCall, Op, Progress, ReplayCall, ReplayOperand, ReplayState, Saved, Source, over_storage, prepares,
    replay,
};
use gradus_tensor::{Attempt, Device, Error, ErrorKind, Layout, Result, Storage, Tensor, WeakState};
use smallvec::SmallVec;

use crate::assign::assigned;
use crate::blocks::Blocks;
use crate::compare::bytes_of;
use crate::graph::{Graph, Memory, Node, Origin, Place};
use crate::record::{base, is, moved};

/// A list that is on the stack if it is short.
type Few<T> = SmallVec<[T; 8]>;

/// After memory was short, the number of replays that a plan does without a place for its results.
const AWAY: u32 = 64;

/// A graph that is ready to run.
pub(crate) struct Plan {
    pub(crate) graph: Graph,
    /// Whether the plan has not run yet.
    pub(crate) is_new: bool,
    /// The number of replays since the last trace.
    pub(crate) runs: u64,
    calls: Vec<ReplayCall>,
    /// What the calls keep between replays.
    state: ReplayState,
    /// The calls whose parameters are renewed before each replay, in order.
    renewed: Vec<(usize, Renew)>,
    /// For each memory, its number in a replay: tensors first, then blocks.
    numbers: Vec<usize>,
    /// The memories that are tensors during a replay, in order.
    tensors: Vec<usize>,
    /// The memories that the step returns or assigns to states. Each replay allocates them anew.
    leaving: Vec<usize>,
    /// On devices that [prepare](prepares) replays, blocks where these are computed. They are copied from there.
    home: Arc<Home>,
    /// After the device had too little memory for `home`, or took it back: for how many replays results are computed in the
    /// memory that they have afterwards.
    away: u32,
    /// The sizes of the blocks for temporary values, the largest first.
    sizes: Vec<usize>,
    /// The sources of the operations, each once.
    sources: Vec<Arc<dyn Source>>,
    /// Their states before a replay.
    saved: Vec<Saved>,
    /// Whether the caller restores what the next replay writes.
    pub(crate) is_trial: bool,
    /// Whether the latest replay failed after it had begun to write what outlives the call.
    pub(crate) has_written: bool,
    /// Whether the latest replay failed after others knew of it.
    pub(crate) has_been_seen: bool,
    /// Operations without a kernel, whose sources advance.
    idle: Vec<(Op, Arc<dyn Source>)>,
    /// The offsets of the arguments that the calls are adapted to.
    offsets: Vec<usize>,
    /// For each argument, the storage and the offset that it had in both traces, if these were the same. In that case,
    /// the traces do not show whether the step reads the argument or holds the tensor itself.
    pinned: Vec<Option<(Weak<Storage>, usize)>>,
    /// For each memory of a state, the layout of the tensor that it held in the trace.
    layouts: Vec<Option<Layout>>,
    /// Switches that decide what runs, with their values in the trace.
    switches: Vec<(Arc<AtomicBool>, bool)>,
}

/// Whether others know that a node ran.
fn is_seen(node: &Node) -> bool {
    node.op.host_call().is_some_and(HostCall::is_seen)
}

enum Renew {
    From(Arc<dyn Source>),
    Repeat(usize),
}

impl Plan {
    /// Plans the memory of `graph`.
    pub(crate) fn new(
        graph: Graph,
        pinned: Vec<Option<(Weak<Storage>, usize)>>,
        switches: Vec<(Arc<AtomicBool>, bool)>,
        idle: Vec<(Op, Arc<dyn Source>)>,
    ) -> Plan {
        let external = |m: &usize| !matches!(graph.memories[*m].origin, Origin::Computed);
        let tensors: Vec<usize> = (0..graph.memories.len()).filter(external).collect();
        let leaving: Vec<usize> = (0..graph.memories.len()).filter(|m| !external(m) && graph.leaves(*m)).collect();
        let (block_of, sizes) = assigned(&graph);
        let mut numbers = vec![usize::MAX; graph.memories.len()];
        for (i, &m) in tensors.iter().enumerate() {
            numbers[m] = i;
        }
        for (i, &m) in leaving.iter().enumerate() {
            numbers[m] = tensors.len() + i;
        }
        for (m, block) in block_of.iter().enumerate() {
            if let Some(block) = block {
                numbers[m] = tensors.len() + leaving.len() + block;
            }
        }
        let operand = |p: &Place| ReplayOperand { memory: numbers[p.memory], layout: p.layout, dtype: p.dtype };
        let mut seen = vec![false; graph.memories.len()];
        let call = |node: &Node| {
            let mut begins = |p: &&Place| !external(&p.memory) && !std::mem::replace(&mut seen[p.memory], true);
            ReplayCall {
                op: node.op.clone(),
                inputs: node.inputs.iter().map(operand).collect(),
                begins: node.outputs.iter().filter(&mut begins).map(|p| numbers[p.memory]).collect(),
                outputs: node.outputs.iter().map(operand).collect(),
                location: node.location,
            }
        };
        let calls = graph.nodes.iter().map(call).collect();
        let renew = |(i, node): (usize, &Node)| {
            let from = match (node.repeats, &node.source) {
                (Some(earlier), _) => Renew::Repeat(earlier),
                (None, Some(source)) => Renew::From(source.clone()),
                (None, None) => return None,
            };
            Some((i, from))
        };
        let renewed = graph.nodes.iter().enumerate().filter_map(renew).collect();
        let mut sources: Vec<Arc<dyn Source>> = vec![];
        for source in graph.nodes.iter().filter_map(|n| n.source.as_ref()).chain(idle.iter().map(|(_, source)| source))
        {
            if !sources.iter().any(|known| known.id() == source.id()) {
                sources.push(source.clone());
            }
        }
        let offsets = vec![0; pinned.len()];
        let layout = |m: &Memory| match &m.origin {
            Origin::State(state) => state.upgrade().map(|state| *state.get().layout()),
            _ => None,
        };
        let layouts = graph.memories.iter().map(layout).collect();
        let home = Home::new(&graph.device);
        Plan {
            graph,
            is_new: true,
            runs: 0,
            layouts,
            switches,
            calls,
            state: ReplayState::default(),
            renewed,
            numbers,
            tensors,
            leaving,
            home,
            away: 0,
            sizes,
            saved: vec![Saved::default(); sources.len()],
            is_trial: false,
            has_written: false,
            has_been_seen: false,
            sources,
            idle,
            offsets,
            pinned,
        }
    }

    /// Whether each argument that was the same in both traces is the same in this call too.
    pub(crate) fn serves(&self, inputs: &[&Tensor]) -> bool {
        self.pinned.iter().zip(inputs).all(|(pin, t)| match pin {
            Some((storage, offset)) => {
                std::ptr::eq(storage.as_ptr(), Arc::as_ptr(t.storage())) && t.layout().offset() == *offset
            }
            None => true,
        })
    }

    /// Whether the plan is out of date: a tensor, state or optimiser that the step uses was dropped, a state changed its
    /// layout, or a switch changed, such as whether a parameter is frozen.
    pub(crate) fn is_stale(&self) -> bool {
        let gone = |m: usize| match &self.graph.memories[m].origin {
            Origin::Held(storage) => storage.strong_count() == 0,
            Origin::State(state) => state.upgrade().map(|state| *state.get().layout()) != self.layouts[m],
            _ => false,
        };
        (0..self.graph.memories.len()).any(gone)
            || self.graph.replaced.iter().any(|(state, _)| state.upgrade().is_none())
            || self.sources.iter().any(|source| !source.is_alive())
            || self.switches.iter().any(|(switch, was)| switch.load(Ordering::Relaxed) != *was)
    }

    /// Whether an input shares its storage with a tensor that the step holds itself.
    pub(crate) fn overlaps(&self, inputs: &[&Tensor]) -> bool {
        let input = |t: &Tensor| inputs.iter().any(|i| Arc::ptr_eq(i.storage(), t.storage()));
        self.graph.memories.iter().any(|m| match &m.origin {
            Origin::Held(storage) => inputs.iter().any(|i| is(storage, i.storage())),
            Origin::Constant(t) => input(t),
            Origin::State(state) => state.upgrade().is_some_and(|state| input(&state.get())),
            _ => false,
        })
    }

    /// The bytes of the blocks for temporary values.
    pub(crate) fn temporary_bytes(&self) -> usize {
        self.sizes.iter().sum()
    }

    /// Notes the states of the sources, for [`restore`](Plan::restore).
    pub(crate) fn save(&mut self) {
        for (saved, source) in self.saved.iter_mut().zip(&self.sources) {
            *saved = source.save();
        }
    }

    /// Restores the states of the sources.
    pub(crate) fn restore(&self) {
        self.saved.iter().zip(&self.sources).for_each(|(&saved, source)| source.restore(saved));
    }

    /// Whether a node writes to memory that outlives the call, or others know that it ran.
    fn writes(&self, node: &Node) -> bool {
        is_seen(node) || node.outputs.iter().any(|p| !matches!(self.graph.memories[p.memory].origin, Origin::Computed))
    }

    /// Whether others know that the plan ran, such as ranks with which it exchanges tensors.
    pub(crate) fn is_seen(&self) -> bool {
        self.graph.nodes.iter().any(is_seen)
    }

    /// Tells the sources that a replay failed.
    fn fail(&self, progress: Progress) {
        for (&saved, source) in self.saved.iter().zip(&self.sources) {
            let serves = |node: &&Node| node.source.as_ref().is_some_and(|s| s.id() == source.id());
            let among = |n: usize| self.graph.nodes.iter().take(n).filter(serves).count();
            source.fail(saved, among(progress.begun), among(progress.done), among(usize::MAX));
        }
    }

    /// The states of the sources.
    pub(crate) fn states(&self) -> Vec<Saved> {
        self.sources.iter().map(|source| source.save()).collect()
    }

    /// Runs the calls on `inputs` and returns the results.
    #[track_caller]
    pub(crate) fn run(&mut self, blocks: &mut Blocks, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        (self.has_written, self.has_been_seen) = (false, false);
        self.follow(inputs)?;
        self.save();
        let versions: Few<_> = self.graph.replaced.iter().map(|(state, _)| version_of(state)).collect();
        let mut progress = Progress::default();
        let done = self.compute(blocks, inputs, &mut progress);
        if done.is_err() {
            // A call that fails leaves the states of layers unchanged, and those of optimisers that have not stepped.
            self.fail(if self.is_trial { Progress::default() } else { progress });
            self.has_written = self.graph.nodes.iter().take(progress.begun).any(|node| self.writes(node));
        }
        if let Err(e) = &done {
            let begun = self.graph.nodes.iter().take(progress.begun).filter(|node| is_seen(node));
            let seen: Few<&dyn HostCall> = begun.filter_map(|node| node.op.host_call()).collect();
            self.has_been_seen = !seen.is_empty();
            if *e.kind() != ErrorKind::Peer {
                seen.iter().for_each(|call| call.abandoned(e));
            }
        }
        if done.as_ref().is_err_and(|e| *e.kind() == ErrorKind::Peer) {
            // The replay has left its memory to the call that failed.
            *blocks = Blocks::default();
            self.home.lock().clear();
        }
        let (tensors, fresh) = done?;
        let storages = fresh.into_iter().map(|b| b.into_storage(&self.graph.device));
        let storages = storages.collect::<Result<SmallVec<[_; 4]>>>()?;
        let result = |p: &Place| {
            let number = self.numbers[p.memory];
            let storage = match number.checked_sub(tensors.len()) {
                Some(i) => storages[i].clone(),
                None => tensors[number].storage().clone(),
            };
            over_storage(storage, self.layout(p, inputs)?, p.dtype)
        };
        let results = self.graph.results.iter().map(result).collect::<Result<Vec<_>>>()?;
        // What another thread has assigned to a state since then must not be lost. If the replay wrote elsewhere too, it
        // cannot be taken back.
        let writes = self.graph.nodes.iter().any(|node| self.writes(node));
        let attempt = Attempt::begin();
        for ((state, place), seen) in self.graph.replaced.iter().zip(versions) {
            let (Some(state), Some(seen), new) = (state.upgrade(), seen, result(place)?) else { continue };
            if self.is_trial || writes {
                state.set(new);
            } else if !state.replace(new, seen) {
                drop(attempt);
                self.fail(progress);
                return Err(Error::argument("replay", "another thread changed a buffer of the step in the meantime"));
            }
        }
        attempt.end(Ok(results))
    }

    /// Runs the calls. Returns the tensors that they used, and the memory of the results.
    #[track_caller]
    fn compute(
        &mut self,
        blocks: &mut Blocks,
        inputs: &[&Tensor],
        progress: &mut Progress,
    ) -> Result<(Few<Tensor>, Few<Block>)> {
        for (op, source) in &mut self.idle {
            source.renew(op)?;
        }
        for (i, from) in &self.renewed {
            let before = (!self.state.varies(*i)).then(|| self.calls[*i].op.clone());
            match from {
                Renew::From(source) => source.renew(&mut self.calls[*i].op)?,
                Renew::Repeat(earlier) => self.calls[*i].op = self.calls[*earlier].op.clone(),
            }
            self.state.renewed(*i, before.is_some_and(|before| before != self.calls[*i].op));
        }
        let tensors = self.tensors.iter().map(|&m| self.tensor(m, inputs)).collect::<Result<Few<_>>>()?;
        let block = |&m: &usize| Block::new(&self.graph.device, self.graph.memories[m].bytes);
        let mut fresh = self.leaving.iter().map(block).collect::<Result<Few<_>>>()?;
        let kept = blocks.of(&self.graph.device, &self.sizes)?.map(|block| -> &mut Block { block });
        let device = &self.graph.device;
        let mut home = prepares(device).then(|| self.home.lock());
        let is_home = home.as_mut().map(|home| is_at_home(home, &mut self.away, &fresh, device)).transpose()?;
        if let (Some(home), Some(true)) = (&mut home, is_home) {
            replay(device, &self.calls, &tensors, home.iter_mut().chain(kept), progress, &mut self.state)?;
            fresh.iter_mut().zip(&**home).try_for_each(|(block, home)| block.copy_from(device, home))?;
        } else {
            replay(device, &self.calls, &tensors, fresh.iter_mut().chain(kept), progress, &mut self.state)?;
        }
        drop(home);
        Ok((tensors, fresh))
    }

    /// The tensor of a memory that the plan does not own.
    #[track_caller]
    fn tensor(&self, memory: usize, inputs: &[&Tensor]) -> Result<Tensor> {
        let gone = || Error::argument("replay", "a tensor of the step is gone");
        match &self.graph.memories[memory].origin {
            Origin::Input(i) => Ok(inputs[*i].clone()),
            Origin::Constant(t) => Ok(t.clone()),
            Origin::Panels(panels) => panels.now(),
            Origin::State(state) => state.upgrade().map(|state| state.get()).ok_or_else(gone),
            Origin::Held(storage) => match storage.upgrade() {
                Some(storage) => bytes_of(&storage),
                None => Err(gone()),
            },
            Origin::Computed => Err(Error::argument("replay", "a temporary value is no tensor")),
        }
    }

    /// The layout of a place of the graph. A place in an argument is relative to the offset of that argument.
    #[track_caller]
    fn layout(&self, place: &Place, inputs: &[&Tensor]) -> Result<Layout> {
        let Origin::Input(i) = self.graph.memories[place.memory].origin else { return Ok(place.layout) };
        moved(&place.layout, 0, base(inputs, i), inputs[i])
            .ok_or_else(|| Error::argument("replay", "an argument's storage is too short"))
    }

    /// Adapts the calls to the offsets of `inputs`.
    #[track_caller]
    fn follow(&mut self, inputs: &[&Tensor]) -> Result<()> {
        if inputs.iter().zip(&self.offsets).all(|(t, &offset)| t.layout().offset() == offset) {
            return Ok(());
        }
        let layouts = |places: &[Place]| places.iter().map(|p| self.layout(p, inputs)).collect::<Result<Vec<_>>>();
        let node = |node: &Node| Ok((layouts(&node.inputs)?, layouts(&node.outputs)?));
        let nodes = self.graph.nodes.iter().map(node).collect::<Result<Vec<_>>>()?;
        for (call, (ins, outs)) in self.calls.iter_mut().zip(nodes) {
            call.inputs.iter_mut().zip(ins).for_each(|(operand, layout)| operand.layout = layout);
            call.outputs.iter_mut().zip(outs).for_each(|(operand, layout)| operand.layout = layout);
        }
        self.offsets = inputs.iter().map(|t| t.layout().offset()).collect();
        self.state.changed();
        Ok(())
    }
}

/// Whether results are computed in `home`, whose blocks are those of the results; makes it if there is memory.
#[track_caller]
fn is_at_home(home: &mut Vec<Block>, away: &mut u32, results: &[Block], device: &Device) -> Result<bool> {
    if home.len() == results.len() {
        return Ok(true);
    }
    if *away > 0 {
        *away -= 1;
        return Ok(false);
    }
    *away = AWAY;
    match results.iter().map(|block| block.like(device)).collect() {
        Ok(blocks) => *home = blocks,
        Err(e) if matches!(e.kind(), ErrorKind::OutOfMemory { .. }) => return Ok(false),
        Err(e) => return Err(e),
    }
    Ok(true)
}

/// How often a state was changed so far.
fn version_of(state: &WeakState<Tensor>) -> Option<u64> {
    state.upgrade().map(|state| state.versioned().1)
}

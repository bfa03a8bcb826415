//! [`replay`]: runs a list of operations on given tensors and blocks of memory, without inferring shapes, allocating
//! memory or recording a graph.

use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use gradus_backend::{
    Buffer, DType, Error, ErrorKind, Here, Layout, Prepared, Reclaim, Result, View, ViewMut, postpone,
    with_line_of_call,
};
use smallvec::SmallVec;

use super::update::Operands;
use super::{Effect, Op};
use crate::autograd::{before_overwrite, checks_access, is_watched, packs_saved};
use crate::footprint::Footprint;
use crate::storage::WriteGuard;
use crate::{Device, Storage, Tensor};

/// The name under which writes of a replay are logged.
const OP: &str = "replay";

/// An operand of a call: a part of a numbered memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operand {
    /// The number of the memory. Tensors are numbered first, then blocks.
    pub memory: usize,
    /// The positions of the elements.
    pub layout: Layout,
    /// The dtype of the elements.
    pub dtype: DType,
}

/// An operation and its operands.
#[derive(Debug, Clone)]
pub struct ReplayCall {
    /// The operation.
    pub op: Op,
    /// The operands that it reads, besides the outputs that it [updates](super::Effect::Updates).
    pub inputs: SmallVec<[Operand; 3]>,
    /// The operands that it writes.
    pub outputs: SmallVec<[Operand; 1]>,
    /// The numbers of the blocks among its outputs whose old contents no call needs: this call is the first to write them.
    pub begins: SmallVec<[usize; 1]>,
    /// The line that its errors report.
    pub location: &'static Location<'static>,
}

/// Uninitialised memory of a device, for the values that a replay computes. It is gone after a replay has failed with an
/// error of the kind `Peer`; see [`HostCall::call`](super::HostCall::call).
#[derive(Debug)]
pub struct Block(Option<Buffer>);

impl Block {
    /// Allocates memory for `bytes` bytes.
    #[track_caller]
    pub fn new(device: &Device, bytes: usize) -> Result<Block> {
        device.backend().alloc(bytes).map(|buffer| Block(Some(buffer))).here()
    }

    fn bytes(&self) -> usize {
        self.0.as_ref().map_or(0, Buffer::bytes)
    }

    /// Memory for a copy of the same size.
    #[track_caller]
    pub fn like(&self, device: &Device) -> Result<Block> {
        Block::new(device, self.bytes())
    }

    /// Copies the contents of a block of the same size.
    #[track_caller]
    pub fn copy_from(&mut self, device: &Device, from: &Block) -> Result<()> {
        let (Some(from), Some(to)) = (&from.0, &mut self.0) else { return Err(gone()) };
        device.backend().copy_buffer(from, 0, to, 0, from.bytes()).here()
    }

    /// A storage that owns this memory.
    #[track_caller]
    pub fn into_storage(self, device: &Device) -> Result<Arc<Storage>> {
        self.0.map(|buffer| Arc::new(Storage::new(device.clone(), buffer))).ok_or_else(gone)
    }
}

#[cold]
#[track_caller]
fn gone() -> Error {
    Error::argument(OP, "the memory of a value was left to a call that failed")
}

/// Blocks for the results of a replay, which are copied from there. The device may take them back between replays, when it
/// has no more memory.
#[derive(Debug, Default)]
pub struct Home(Mutex<Vec<Block>>);

impl Home {
    /// A list without blocks, of which the device knows.
    pub fn new(device: &Device) -> Arc<Home> {
        let home = Arc::<Home>::default();
        let weak: Weak<Home> = Arc::downgrade(&home);
        device.backend().offer(weak);
        home
    }

    /// The blocks; none if they were taken back. They are not while the guard lives.
    pub fn lock(&self) -> MutexGuard<'_, Vec<Block>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reclaim for Home {
    fn bytes(&self) -> usize {
        self.0.try_lock().map_or(0, |blocks| blocks.iter().map(Block::bytes).sum())
    }

    fn clear(&self) -> bool {
        let blocks = self.0.try_lock().map_or(vec![], |mut blocks| std::mem::take(&mut *blocks));
        !blocks.is_empty()
    }
}

/// A tensor over the memory of a replay, outside the graph. Fails if the layout reaches beyond the storage.
#[track_caller]
pub fn over_storage(storage: Arc<Storage>, layout: Layout, dtype: DType) -> Result<Tensor> {
    if layout.numel() > 0 && layout.span().end.saturating_mul(dtype.size()) > storage.bytes() {
        let m = format!("a layout of {} elements of {dtype} reaches beyond the storage", layout.numel());
        return Err(Error::argument(OP, m));
    }
    Ok(Tensor::from_parts(storage, layout, dtype))
}

/// How far a replay has come: the numbers of its first calls that have ended, and that have begun. Those that have begun and
/// not ended ran in part, if at all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// The number of calls that have ended.
    pub done: usize,
    /// The number of calls that have begun.
    pub begun: usize,
}

/// What a list of calls keeps between its replays.
#[derive(Debug, Default)]
pub struct ReplayState {
    /// What is kept for the memories of the latest replays, the latest last.
    placed: Vec<Placed>,
    /// For each call whose parameters have changed: in how many replays in a row.
    changes: BTreeMap<usize, u32>,
}

/// A list of calls on certain memories.
#[derive(Debug)]
struct Placed {
    /// The addresses of the memories.
    addresses: Vec<usize>,
    /// The list in parts, in order.
    parts: Vec<Part>,
}

/// Successive calls.
#[derive(Debug)]
struct Part {
    calls: Range<usize>,
    /// What the backend keeps of them; `None` for calls that are new in each replay.
    prepared: Option<Prepared>,
    /// Whether they succeeded when they last ran, and nothing has changed since then.
    has_run: bool,
}

/// Calls whose parameters changed in so many replays in a row are taken to be new in each.
const VARYING: u32 = 2;

/// For how many sets of memories something is kept. Arguments and results of a step often take turns.
const PLACED: usize = 4;

impl ReplayState {
    /// Notes that the layouts of the calls have changed since the latest replay.
    pub fn changed(&mut self) {
        self.placed.iter_mut().flat_map(|placed| &mut placed.parts).for_each(|part| part.has_run = false);
    }

    /// Whether the parameters of a call are taken to be new in each replay.
    pub fn varies(&self, call: usize) -> bool {
        self.changes.get(&call).is_some_and(|&count| count >= VARYING)
    }

    /// Notes whether the parameters of a call have changed since the latest replay. Those that change again and again are
    /// kept apart from the others, which a backend may then prepare.
    pub fn renewed(&mut self, call: usize, is_changed: bool) {
        if self.varies(call) {
            return;
        }
        if !is_changed {
            self.changes.remove(&call);
            return;
        }
        let count = self.changes.entry(call).or_default();
        *count += 1;
        if *count == VARYING {
            self.placed.clear();
        }
        let parts = self.placed.iter_mut().flat_map(|placed| &mut placed.parts);
        parts.filter(|part| part.calls.contains(&call)).for_each(|part| part.has_run = false);
    }

    /// Divides a list of calls into those that vary or that the host makes, and those between them.
    fn divided(&self, calls: &[ReplayCall]) -> Vec<Part> {
        let mut parts: Vec<Part> = vec![];
        for (call, ReplayCall { op, .. }) in calls.iter().enumerate() {
            let varies = self.varies(call) || op.effect() == Effect::CallsHost;
            match parts.last_mut() {
                Some(part) if part.prepared.is_none() == varies => part.calls.end = call + 1,
                _ => {
                    let prepared = (!varies).then(Prepared::default);
                    parts.push(Part { calls: call..call + 1, prepared, has_run: false });
                }
            }
        }
        parts
    }

    /// The parts of a list of calls on these memories.
    fn parts(&mut self, memory: &[Memory<'_>], calls: &[ReplayCall]) -> &mut [Part] {
        let address = |memory: &Memory<'_>| match memory {
            Memory::Read(buffer) => buffer.as_ptr().addr().get(),
            Memory::Write(buffer) => buffer.as_ref().map_or(0, |buffer| buffer.as_ptr().addr().get()),
        };
        let is = |placed: &Placed| placed.addresses.iter().copied().eq(memory.iter().map(address));
        match self.placed.iter().rposition(is) {
            Some(at) => self.placed[at..].rotate_left(1),
            None => {
                if self.placed.len() == PLACED {
                    self.placed.remove(0);
                }
                let addresses = memory.iter().map(address).collect();
                self.placed.push(Placed { addresses, parts: self.divided(calls) });
            }
        }
        self.placed.last_mut().map_or(&mut [], |placed| &mut placed.parts)
    }
}

/// Whether replays on a device are faster if their memory is the same each time.
pub fn prepares(device: &Device) -> bool {
    device.backend().prepares()
}

/// Whether operations can be replayed on this thread. They cannot while operations are traced, observed or recomputed,
/// or while hooks pack saved values.
pub fn can_replay() -> bool {
    !(is_watched() || checks_access() || packs_saved())
}

/// Locked memory.
enum Held<'a> {
    Read(std::sync::RwLockReadGuard<'a, Buffer>),
    Write(WriteGuard<'a>),
}

/// Runs `calls` in order. Memory number `i` is the storage of `tensors[i]` or, after these, a block. Writes to the
/// storages of tensors raise their versions and are logged, as those of eager operations are. `progress` starts at its
/// default, and says after an error which calls ran. Updates by the same formula and numbers that follow each other are
/// made together. `state` belongs to the list of calls; the backend may keep there what it needs to run them faster the
/// next time.
///
/// # Errors
/// Fails before anything runs if two tensors share a storage, if a write would change a value that a graph protects, or
/// if this thread is tracing, observing or recomputing operations, or if a call of the host cannot be
/// [made](super::HostCall::check). The error of an operation reports the line of its call. After an error of the kind
/// [`Peer`](ErrorKind::Peer) of a call that was made, none of the memory is ever freed.
#[track_caller]
pub fn replay<'b>(
    device: &Device,
    calls: &[ReplayCall],
    tensors: &[Tensor],
    blocks: impl Iterator<Item = &'b mut Block>,
    progress: &mut Progress,
    state: &mut ReplayState,
) -> Result<()> {
    for call in calls {
        if let Some(host) = call.op.host_call() {
            host.check().map_err(|e| e.at(call.location))?;
        }
    }
    let mut blocks: SmallVec<[&mut Block; 16]> = blocks.collect();
    let done = replay_on(device, calls, tensors, &mut blocks, progress, state);
    if done.as_ref().is_err_and(|e| *e.kind() == ErrorKind::Peer) {
        std::mem::forget((tensors.to_vec(), blocks.into_iter().map(|block| block.0.take()).collect::<Vec<_>>()));
    }
    done
}

#[track_caller]
fn replay_on(
    device: &Device,
    calls: &[ReplayCall],
    tensors: &[Tensor],
    blocks: &mut [&mut Block],
    progress: &mut Progress,
    state: &mut ReplayState,
) -> Result<()> {
    if !can_replay() {
        let m = "operations are traced, observed, recomputed or packed here, and those of a replay cannot be";
        return Err(Error::argument(OP, m).help("call the function itself here"));
    }
    let written = writes(calls, tensors)?;
    let _told = postpone();
    // Storages are locked in the order of their addresses, as for the operands of any operation.
    let mut order: SmallVec<[usize; 16]> = (0..tensors.len()).collect();
    let address = |i: usize| Arc::as_ptr(tensors[i].storage());
    order.sort_unstable_by_key(|&i| address(i));
    if order.windows(2).any(|pair| address(pair[0]) == address(pair[1])) {
        return Err(Error::argument(OP, "two of the tensors share a storage"));
    }
    let mut held: SmallVec<[Option<Held<'_>>; 16]> = (0..tensors.len()).map(|_| None).collect();
    for i in order {
        let storage = tensors[i].storage();
        held[i] = Some(match &written[i][..] {
            [] => Held::Read(storage.read().here()?),
            places => Held::Write(storage.write_all(places, OP).here()?),
        });
    }
    let mut memory: SmallVec<[Memory<'_>; 32]> = SmallVec::new();
    for one in held.iter_mut().flatten() {
        memory.push(match one {
            Held::Read(buffer) => Memory::Read(buffer),
            Held::Write(buffer) => Memory::Write(Some(buffer)),
        });
    }
    memory.extend(blocks.iter_mut().map(|block| Memory::Write(block.0.as_mut())));
    for part in state.parts(&memory, calls) {
        let end = part.calls.end;
        let mut made = part.prepared.is_none();
        let mut all = || {
            made = true;
            let mut left = &calls[part.calls.clone()];
            while !left.is_empty() {
                let (now, later) = left.split_at(together(left, memory.len()));
                progress.begun += now.len();
                run(device, now, &mut memory)?;
                progress.done = progress.begun;
                left = later;
            }
            Ok(())
        };
        match &mut part.prepared {
            Some(prepared) => {
                let is_same = std::mem::take(&mut part.has_run);
                device.backend().run_prepared(prepared, is_same, &mut all)?;
            }
            None => all()?,
        }
        if !made {
            *progress = Progress { done: end, begun: end };
        }
        part.has_run = true;
    }
    Ok(())
}

/// For each tensor, the bytes that `calls` write, with the line of each write.
type Places = Vec<SmallVec<[(Footprint, &'static Location<'static>); 1]>>;

#[track_caller]
fn writes(calls: &[ReplayCall], tensors: &[Tensor]) -> Result<Places> {
    let mut written: Places = tensors.iter().map(|_| SmallVec::new()).collect();
    for call in calls {
        for out in call.outputs.iter().filter(|out| out.memory < tensors.len()) {
            let t = &tensors[out.memory];
            if t.storage().is_guarded() {
                before_overwrite(&Tensor::from_parts(t.storage().clone(), out.layout, out.dtype), OP).here()?;
            }
            written[out.memory].push((Footprint::new(&out.layout, out.dtype.size()), call.location));
        }
    }
    Ok(written)
}

/// The memories while calls run. A call takes out the memories that it writes, and puts them back.
enum Memory<'a> {
    Read(&'a Buffer),
    Write(Option<&'a mut Buffer>),
}

/// How many of the first calls may be made together: updates of other tensors by the same formula and numbers, such as
/// those of an optimiser, of which none uses what another one writes.
fn together(calls: &[ReplayCall], memories: usize) -> usize {
    let [first, others @ ..] = calls else { return 0 };
    let Op::Update(update) = &first.op else { return 1 };
    let joins = |call: &&ReplayCall| matches!(&call.op, Op::Update(other) if other.joins(update));
    let most = 1 + others.iter().take_while(joins).count();
    if most == 1 {
        return 1;
    }
    // At most as many as the caller has memories.
    let (mut read, mut written) = (vec![false; memories], vec![false; memories]);
    let is = |marks: &[bool], operand: &Operand| marks.get(operand.memory).is_none_or(|&mark| mark);
    let fits = |call: &&ReplayCall| {
        let clashes = call.inputs.iter().any(|input| is(&written, input))
            || call.outputs.iter().any(|out| is(&written, out) || is(&read, out));
        if !clashes {
            call.inputs.iter().for_each(|input| read[input.memory] = true);
            call.outputs.iter().for_each(|out| written[out.memory] = true);
        }
        !clashes
    };
    calls[..most].iter().take_while(fits).count().max(1)
}

/// Makes a call, or several that may be made [`together`].
#[track_caller]
fn run(device: &Device, calls: &[ReplayCall], memory: &mut [Memory<'_>]) -> Result<()> {
    let mut taken: SmallVec<[&mut Buffer; 2]> = SmallVec::new();
    for call in calls {
        for (i, out) in call.outputs.iter().enumerate() {
            let Some(Memory::Write(buffer)) = memory.get_mut(out.memory) else {
                return Err(broken(call, &format!("output {i} lies in memory that is only read")));
            };
            let Some(buffer) = buffer.take() else {
                return Err(broken(call, "two outputs lie in the same memory"));
            };
            if call.begins.contains(&out.memory) {
                device.backend().renew(buffer)?;
            }
            taken.push(buffer);
        }
    }
    let mut buffers = taken.iter_mut();
    let mut operands: SmallVec<[Operands<'_>; 1]> = SmallVec::new();
    for call in calls {
        let outs = call.outputs.iter().zip(buffers.by_ref());
        let outs = outs.map(|(out, buffer)| ViewMut { buffer, dtype: out.dtype, layout: &out.layout }).collect();
        let mut views: SmallVec<[View<'_>; 4]> = SmallVec::new();
        for input in &call.inputs {
            let buffer = match memory.get(input.memory) {
                Some(Memory::Read(buffer)) => buffer,
                Some(Memory::Write(Some(buffer))) => &**buffer,
                _ => return Err(broken(call, "it reads memory that it writes")),
            };
            views.push(View { buffer, dtype: input.dtype, layout: &input.layout });
        }
        operands.push((views, outs));
    }
    let Some(first) = calls.first() else { return Ok(()) };
    let done = with_line_of_call(first.location, || match (&first.op, &mut operands[..]) {
        (op, [(views, outs)]) => op.forward(device.backend(), views, outs),
        (Op::Update(update), all) => update.forward_each(device.backend(), all),
        _ => Err(broken(first, "it cannot be made with others")),
    });
    drop(operands);
    let outputs = calls.iter().flat_map(|call| &call.outputs);
    for (buffer, out) in taken.into_iter().zip(outputs) {
        if let Some(Memory::Write(place)) = memory.get_mut(out.memory) {
            *place = Some(buffer);
        }
    }
    done.map_err(|mut e| {
        e.relocate(first.location);
        e
    })
}

/// The error for an ill-formed list of calls.
#[cold]
#[track_caller]
fn broken(call: &ReplayCall, m: &str) -> Error {
    Error::new(ErrorKind::InvalidArgument, OP, format!("{}: {m}", call.op.name()))
}

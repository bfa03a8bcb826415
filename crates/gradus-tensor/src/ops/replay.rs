//! [`replay`]: runs a list of operations on given tensors and blocks of memory, without inferring shapes, allocating
//! memory or recording a graph.

use std::panic::Location;
use std::sync::Arc;

use gradus_backend::{
    Buffer, DType, Error, ErrorKind, Here, Layout, Prepared, Result, View, ViewMut, postpone, with_line_of_call,
};
use smallvec::SmallVec;

use super::Op;
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
    /// The line that its errors report.
    pub location: &'static Location<'static>,
}

/// Uninitialised memory of a device, for the values that a replay computes.
#[derive(Debug)]
pub struct Block(Buffer);

impl Block {
    /// Allocates memory for `bytes` bytes.
    #[track_caller]
    pub fn new(device: &Device, bytes: usize) -> Result<Block> {
        device.backend().alloc(bytes).map(Block).here()
    }

    /// A storage that owns this memory.
    pub fn into_storage(self, device: &Device) -> Arc<Storage> {
        Arc::new(Storage::new(device.clone(), self.0))
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

/// What a list of calls keeps between its replays.
#[derive(Debug, Default)]
pub struct ReplayState {
    /// What the backend keeps.
    prepared: Prepared,
    /// The addresses of the memories in the latest replay.
    addresses: Vec<usize>,
    /// Whether the latest replay succeeded.
    has_run: bool,
}

impl ReplayState {
    /// Forgets what was kept, because the parameters or layouts of the calls have changed since the latest replay.
    pub fn changed(&mut self) {
        self.has_run = false;
    }

    /// Notes where the memories are, and returns whether that and everything else is as in the latest replay.
    fn is_same(&mut self, memory: &[Memory<'_>]) -> bool {
        let address = |memory: &Memory<'_>| match memory {
            Memory::Read(buffer) => buffer.as_ptr().addr().get(),
            Memory::Write(buffer) => buffer.as_ref().map_or(0, |buffer| buffer.as_ptr().addr().get()),
        };
        let is_same = self.has_run && self.addresses.iter().copied().eq(memory.iter().map(address));
        if !is_same {
            self.addresses.clear();
            self.addresses.extend(memory.iter().map(address));
        }
        self.has_run = false;
        is_same
    }
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
/// storages of tensors raise their versions and are logged, as those of eager operations are. `begun` is raised before
/// each call, so that after an error it is the number of calls that ran in full or in part. `state` belongs to the list
/// of calls; the backend may keep there what it needs to run them faster the next time.
///
/// # Errors
/// Fails before anything runs if two tensors share a storage, if a write would change a value that a graph protects, or
/// if this thread is tracing, observing or recomputing operations. The error of an operation reports the line of its
/// call.
#[track_caller]
pub fn replay<'b>(
    device: &Device,
    calls: &[ReplayCall],
    tensors: &[Tensor],
    blocks: impl Iterator<Item = &'b mut Block>,
    begun: &mut usize,
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
            [] => Held::Read(storage.read()),
            places => Held::Write(storage.write_all(places, OP)),
        });
    }
    let mut memory: SmallVec<[Memory<'_>; 32]> = SmallVec::new();
    for one in held.iter_mut().flatten() {
        memory.push(match one {
            Held::Read(buffer) => Memory::Read(buffer),
            Held::Write(buffer) => Memory::Write(Some(buffer)),
        });
    }
    memory.extend(blocks.map(|block| Memory::Write(Some(&mut block.0))));
    let is_same = state.is_same(&memory);
    let mut made = false;
    let done = device.backend().run_prepared(&mut state.prepared, is_same, &mut || {
        made = true;
        calls.iter().try_for_each(|call| {
            *begun += 1;
            run(device, call, &mut memory)
        })
    });
    if !made {
        *begun = calls.len();
    }
    state.has_run = done.is_ok();
    done
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

#[track_caller]
fn run(device: &Device, call: &ReplayCall, memory: &mut [Memory<'_>]) -> Result<()> {
    let mut taken: SmallVec<[&mut Buffer; 2]> = SmallVec::new();
    for (i, out) in call.outputs.iter().enumerate() {
        let Some(Memory::Write(buffer)) = memory.get_mut(out.memory) else {
            return Err(broken(call, &format!("output {i} lies in memory that is only read")));
        };
        let Some(buffer) = buffer.take() else {
            return Err(broken(call, "two outputs lie in the same memory"));
        };
        taken.push(buffer);
    }
    let mut outs: SmallVec<[ViewMut<'_>; 2]> = SmallVec::new();
    for (buffer, out) in taken.iter_mut().zip(&call.outputs) {
        outs.push(ViewMut { buffer, dtype: out.dtype, layout: &out.layout });
    }
    let mut views: SmallVec<[View<'_>; 4]> = SmallVec::new();
    for input in &call.inputs {
        let buffer = match memory.get(input.memory) {
            Some(Memory::Read(buffer)) => buffer,
            Some(Memory::Write(Some(buffer))) => &**buffer,
            _ => return Err(broken(call, "it reads memory that it writes")),
        };
        views.push(View { buffer, dtype: input.dtype, layout: &input.layout });
    }
    let done = with_line_of_call(call.location, || call.op.forward(device.backend(), &views, &mut outs));
    drop((outs, views));
    for (buffer, out) in taken.into_iter().zip(&call.outputs) {
        if let Some(Memory::Write(place)) = memory.get_mut(out.memory) {
            *place = Some(buffer);
        }
    }
    done.map_err(|mut e| {
        e.relocate(call.location);
        e
    })
}

/// The error for an ill-formed list of calls.
#[cold]
#[track_caller]
fn broken(call: &ReplayCall, m: &str) -> Error {
    Error::new(ErrorKind::InvalidArgument, OP, format!("{}: {m}", call.op.name()))
}

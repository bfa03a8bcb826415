//! Queues work for the device: launches and copies are collected in one encoder, which is submitted when it is full or
//! when something is read.
//!
//! Pipelines are cached by the 128-bit hash of what their text is generated from, and bind groups by a hash of their
//! buffers. The numbers that change from call to call (sizes, strides, offsets, scalars) are stored in one uniform
//! buffer, of which every launch binds its own part.

mod host;

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use gradus_backend::{Error, ErrorKind, Result};

use crate::adapter::Opened;
use crate::faults::Faults;
use crate::kept::Kept;
use crate::pool::{Block, Pool};
use gradus_backend::key::{KeyMap, key};
use gradus_backend::late::{Access, LONG, Log};
use gradus_backend::late::{FAULT_BYTES, Fault, Found, Slots};

pub(crate) use host::{MOST_READ, said};

/// The largest number of commands in one submission, unless a list of calls is one.
const BATCH: usize = 256;
/// The same while a list of calls is made, whatever thread they are from.
const LIST: usize = 4096;
/// The largest number of bytes of parameters in one submission. A launch has 256 or more.
const ARENA: usize = 1 << 20;
/// The largest number of bind groups in the cache.
const GROUPS: usize = 8192;

/// Counts of launches, created objects and bytes moved. They show whether steady work creates anything new or moves
/// more than it must.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Submissions to the device.
    pub submissions: u64,
    /// Kernels launched.
    pub launches: u64,
    /// Pipelines compiled.
    pub pipelines: u64,
    /// Bind groups created.
    pub bind_groups: u64,
    /// Buffers created, including those for reading back.
    pub buffers: u64,
    /// Copies from the host to the device.
    pub uploads: u64,
    /// The sizes in bytes of the operands of all launches, plus twice the bytes of copies between buffers. This is what
    /// must be moved at least, not what was moved: each operand of a launch counts its distinct elements once, however
    /// often the kernel reads them. An output that the kernel also reads counts once. Elements repeated by strides of 0
    /// count once.
    pub bytes: u64,
}

/// A part of a buffer, as a kernel sees it.
#[derive(Clone, Copy)]
pub(crate) struct Bind<'a> {
    pub(crate) block: &'a Block,
    pub(crate) access: Access,
    /// The start of the part in bytes.
    pub(crate) offset: u64,
    pub(crate) size: u64,
    /// The size in bytes of the operand's distinct elements.
    pub(crate) distinct: u64,
}

impl Bind<'_> {
    pub(crate) fn write(&self) -> bool {
        self.access != Access::Read
    }

    /// Whether both are the same part of the same buffer.
    pub(crate) fn same(&self, other: &Bind<'_>) -> bool {
        (self.block.id, self.offset, self.size) == (other.block.id, other.offset, other.size)
    }
}

/// The call of an operation that a launch is a part of.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    /// The operation's name, for errors and debuggers.
    pub(crate) op: &'a str,
    /// The slot that spoils the outputs of the launch if it is filled.
    slot: Option<u32>,
    /// Whether the kernel may fill the slot. If so, the fault buffer is the last binding.
    fills: bool,
}

/// A call that cannot fail on the device.
impl<'a> From<&'a str> for Call<'a> {
    fn from(op: &'a str) -> Self {
        Call { op, slot: None, fills: false }
    }
}

/// One run of a kernel.
pub(crate) struct Launch<'a> {
    pub(crate) call: Call<'a>,
    /// The hash of everything that `source` depends on.
    pub(crate) key: u128,
    /// The text of the kernel.
    pub(crate) source: &'a dyn Fn() -> String,
    /// The bindings from 1 on. Binding 0 holds the parameters.
    pub(crate) binds: &'a [Bind<'a>],
    pub(crate) params: &'a [u32],
    /// The number of work-groups. A number that is too large for one axis is spread over two.
    pub(crate) groups: u64,
}

/// A slot of the fault buffer, which is held while the call that it belongs to runs.
pub(crate) struct Held<'q> {
    queue: &'q Queue,
    pub(crate) slot: u32,
}

impl Held<'_> {
    /// The call of a launch that may fill the slot.
    pub(crate) fn filled_by<'a>(&self, op: &'a str) -> Call<'a> {
        Call { op, slot: Some(self.slot), fills: true }
    }

    /// The call of a launch whose operands are checked by another launch, which may fill the slot.
    pub(crate) fn awaited_by<'a>(&self, op: &'a str) -> Call<'a> {
        Call { op, slot: Some(self.slot), fills: false }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.queue.state().slots.release(self.slot);
    }
}

struct Pipeline {
    raw: wgpu::ComputePipeline,
    layouts: Arc<Layouts>,
}

/// Everything that a bind group layout depends on: bit `i` says whether binding `i + 1` is written, and the bits from
/// 48 on hold the number of such bindings.
fn signature(binds: impl ExactSizeIterator<Item = bool>) -> u64 {
    let count = binds.len() as u64;
    binds.enumerate().fold(count << 48, |bits, (i, write)| bits | (u64::from(write) << i))
}

/// A bind group, and the ids of the blocks in it.
struct Group {
    raw: wgpu::BindGroup,
    blocks: Vec<u64>,
}

/// The layouts of a pipeline.
#[derive(Debug)]
pub(crate) struct Layouts {
    pub(crate) group: wgpu::BindGroupLayout,
    pub(crate) pipeline: wgpu::PipelineLayout,
}

/// Everything about one open device except its buffers.
pub(crate) struct Queue {
    pub(crate) device: wgpu::Device,
    pub(crate) limits: wgpu::Limits,
    pub(crate) faults: Arc<Faults>,
    queue: wgpu::Queue,
    arena: wgpu::Buffer,
    fault_buffer: wgpu::Buffer,
    pool: Arc<Pool>,
    state: Mutex<State>,
    /// Signalled when a check of the fault buffer has ended.
    checked: Condvar,
}

#[derive(Default)]
struct State {
    pipelines: KeyMap<Arc<Pipeline>>,
    layouts: HashMap<u64, Arc<Layouts>>,
    groups: KeyMap<Group>,
    encoder: Option<wgpu::CommandEncoder>,
    pass: Option<wgpu::ComputePass<'static>>,
    commands: usize,
    /// How many lists of calls are being made that are one submission each.
    lists: usize,
    params: Vec<u8>,
    /// The number of the submission being collected, counted from 1.
    epoch: u64,
    readback: Option<wgpu::Buffer>,
    kept: Kept,
    /// The number of bytes uploaded since the submission in `uploaded`.
    staged: usize,
    uploaded: Option<wgpu::SubmissionIndex>,
    slots: Slots,
    log: Log,
    counters: Counters,
    /// The texts of all kernels that were compiled.
    #[cfg(test)]
    texts: Vec<String>,
}

impl Queue {
    pub(crate) fn new(opened: &Opened, faults: Arc<Faults>, pool: Arc<Pool>) -> Queue {
        let device = opened.device.clone();
        let kept = faults.clone();
        device.on_uncaptured_error(Arc::new(move |e| kept.report(e)));
        let kept = faults.clone();
        device.set_device_lost_callback(move |reason, message| kept.report_lost(format!("{reason:?}: {message}")));
        let make = |size, usage| {
            device.create_buffer(&wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false })
        };
        use wgpu::BufferUsages as U;
        let arena = make(ARENA as u64, U::UNIFORM | U::COPY_DST);
        let fault_buffer = make(FAULT_BYTES, U::STORAGE | U::COPY_SRC | U::COPY_DST);
        let state = Mutex::new(State { epoch: 1, ..State::default() });
        let (limits, queue) = (opened.limits.clone(), opened.queue.clone());
        Queue { device, limits, faults, queue, arena, fault_buffer, pool, state, checked: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn counters(&self) -> Counters {
        self.state().counters
    }

    #[cfg(test)]
    pub(crate) fn texts(&self) -> Vec<String> {
        self.state().texts.clone()
    }

    /// Takes a slot for a fault. If all are in use, waits for a check that may free some.
    pub(crate) fn hold(&self, op: &str, fault: impl Fn() -> Fault) -> Result<Held<'_>> {
        for first in [true, false] {
            if let Some(slot) = self.state().slots.take(fault()) {
                return Ok(Held { queue: self, slot });
            }
            if first {
                self.check(op)?;
            }
        }
        let m = "more operations that can fail run at the same time than the device keeps slots for";
        Err(Error::new(ErrorKind::Unsupported, op, m))
    }

    /// Locks the state. If the log is full, a check empties it first.
    fn ready(&self, op: &str) -> Result<MutexGuard<'_, State>> {
        self.faults.check_lost(op)?;
        let state = self.state();
        if state.log.len() < LONG {
            return Ok(state);
        }
        drop(state);
        self.check(op)?;
        Ok(self.state())
    }

    /// Queues a kernel.
    pub(crate) fn launch(&self, launch: &Launch<'_>) -> Result<()> {
        self.add(&mut *self.ready(launch.call.op)?, launch)
    }

    /// Queues two kernels, with nothing from another thread between them, not even a read.
    pub(crate) fn launch_both(&self, first: &Launch<'_>, second: &Launch<'_>) -> Result<()> {
        let mut state = self.ready(first.call.op)?;
        self.add(&mut state, first)?;
        self.add(&mut state, second)
    }

    fn add(&self, state: &mut State, launch: &Launch<'_>) -> Result<()> {
        if launch.groups == 0 {
            return Ok(());
        }
        let per_axis = u64::from(self.limits.max_compute_workgroups_per_dimension);
        let x = launch.groups.min(per_axis);
        let y = launch.groups.div_ceil(x);
        if y > per_axis {
            let m = format!("{} work-groups are more than {} can launch", launch.groups, "this device");
            return Err(Error::new(ErrorKind::Overflow, launch.call.op, m));
        }
        let pipeline = self.pipeline(state, launch)?;

        let align = self.limits.min_uniform_buffer_offset_alignment.max(16) as usize;
        // Kernels rely on at least one word of 0 after the parameters.
        let bytes = (launch.params.len() * 4 + 4).next_multiple_of(256);
        if state.params.len().next_multiple_of(align) + bytes > ARENA {
            self.flush(state);
        }
        let at = state.params.len().next_multiple_of(align);
        // At most `ARENA` bytes.
        state.params.resize(at, 0);
        launch.params.iter().for_each(|p| state.params.extend_from_slice(&p.to_ne_bytes()));
        state.params.resize(at + bytes, 0); // at most `ARENA`

        let epoch = state.epoch;
        launch.binds.iter().for_each(|b| b.block.touch(epoch));
        state.counters.bytes += launch.binds.iter().map(|b| b.distinct).sum::<u64>();
        launch.call.slot.iter().for_each(|&slot| state.slots.arm(slot));
        state.log.note(launch.call.slot, launch.binds.iter().map(|b| (&b.block.contents, b.access)));
        let key = group_key(bytes as u64 * 2 + u64::from(launch.call.fills), launch.binds);
        let group = self.group(state, key, &pipeline.layouts.group, launch.binds, || {
            let mut entries = vec![bind_entry(0, &self.arena, 0, bytes as u64)];
            entries.extend((1..).zip(launch.binds).map(|(i, b)| bind_entry(i, &b.block.raw, b.offset, b.size)));
            if launch.call.fills {
                entries.push(bind_entry(entries.len() as u32, &self.fault_buffer, 0, FAULT_BYTES));
            }
            entries
        });
        self.encode(state, |pass| {
            pass.set_pipeline(&pipeline.raw);
            pass.set_bind_group(0, &group, &[at as u32]);
            pass.dispatch_workgroups(x as u32, y as u32, 1);
        });
        Ok(())
    }

    /// Queues a user's program. The bindings, constants and groups must match its declarations.
    pub(crate) fn dispatch(
        &self,
        op: &str,
        (pipeline, layouts): (&wgpu::ComputePipeline, &Layouts),
        binds: &[Bind<'_>],
        constants: &[u8],
        groups: [u32; 3],
    ) -> Result<()> {
        let mut guard = self.ready(op)?;
        let state = &mut *guard;
        let epoch = state.epoch;
        binds.iter().for_each(|b| b.block.touch(epoch));
        state.counters.bytes += binds.iter().map(|b| b.distinct).sum::<u64>();
        state.log.note(None, binds.iter().map(|b| (&b.block.contents, b.access)));
        // The key includes which bindings are written. Modules that agree in this have equal bind group layouts, so
        // they can share a bind group.
        let group = self.group(state, group_key(u64::MAX, binds), &layouts.group, binds, || {
            (0..).zip(binds).map(|(i, b)| bind_entry(i, &b.block.raw, b.offset, b.size)).collect()
        });
        self.encode(state, |pass| {
            pass.set_pipeline(pipeline);
            pass.set_bind_group(0, &group, &[]);
            if !constants.is_empty() {
                pass.set_immediates(0, constants);
            }
            pass.dispatch_workgroups(groups[0], groups[1], groups[2]);
        });
        Ok(())
    }

    fn encode(&self, state: &mut State, commands: impl FnOnce(&mut wgpu::ComputePass<'static>)) {
        let encoder = state.encoder.get_or_insert_with(|| self.device.create_command_encoder(&Default::default()));
        commands(state.pass.get_or_insert_with(|| encoder.begin_compute_pass(&Default::default()).forget_lifetime()));
        state.counters.launches += 1;
        self.count_command(state);
    }

    fn count_command(&self, state: &mut State) {
        state.commands += 1;
        if state.commands >= if state.lists == 0 { BATCH } else { LIST } {
            self.flush(state);
        }
    }

    /// Makes a list of calls. All of them go in one submission, unless they are more than [`LIST`] or one of them waits. What
    /// was queued before goes with them, and so may what follows.
    pub(crate) fn list(&self, calls: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        struct Open<'q>(&'q Queue);
        impl Drop for Open<'_> {
            fn drop(&mut self) {
                let mut state = self.0.state();
                state.lists -= 1;
                if state.commands >= BATCH && state.lists == 0 {
                    self.0.flush(&mut state);
                }
            }
        }
        self.state().lists += 1;
        let _open = Open(self);
        calls()
    }

    fn pipeline(&self, state: &mut State, launch: &Launch<'_>) -> Result<Arc<Pipeline>> {
        if let Some(p) = state.pipelines.get(&launch.key) {
            return Ok(p.clone());
        }
        let writes = launch.binds.iter().map(Bind::write).chain(launch.call.fills.then_some(true));
        let writes: Vec<bool> = writes.collect();
        let signature = signature(writes.iter().copied());
        let layouts = self.layouts(state, signature, &writes);
        let source = (launch.source)();
        let text = wgpu::ShaderSource::Wgsl(source.as_str().into());
        let raw = self.scoped(|| self.compile(launch.call.op, text, &layouts.pipeline, false)).map_err(|e| {
            let m = format!("its kernel does not compile: {e}");
            Error::new(ErrorKind::Backend, launch.call.op, m).note(source.clone())
        })?;
        state.counters.pipelines += 1;
        #[cfg(test)]
        state.texts.push(source);
        let pipeline = Arc::new(Pipeline { raw, layouts });
        state.pipelines.insert(launch.key, pipeline.clone());
        Ok(pipeline)
    }

    /// Calls `make` and returns its result, or the error that wgpu reported meanwhile.
    pub(crate) fn scoped<T>(&self, make: impl FnOnce() -> T) -> std::result::Result<T, wgpu::Error> {
        let scope = self.device.push_error_scope(wgpu::ErrorFilter::Validation);
        let inner = self.device.push_error_scope(wgpu::ErrorFilter::Internal);
        let made = make();
        let (internal, invalid) = (pollster::block_on(inner.pop()), pollster::block_on(scope.pop()));
        invalid.or(internal).map_or(Ok(made), Err)
    }

    /// Compiles a kernel; must be called within `scoped`. Unless `zeroed` is set, the initial contents of the kernel's
    /// shared memory are arbitrary.
    pub(crate) fn compile(
        &self,
        label: &str,
        source: wgpu::ShaderSource<'_>,
        layout: &wgpu::PipelineLayout,
        zeroed: bool,
    ) -> wgpu::ComputePipeline {
        let label = Some(label);
        let module = self.device.create_shader_module(wgpu::ShaderModuleDescriptor { label, source });
        self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label,
            layout: Some(layout),
            module: &module,
            entry_point: Some("main"),
            compilation_options: wgpu::PipelineCompilationOptions {
                zero_initialize_workgroup_memory: zeroed,
                ..Default::default()
            },
            cache: None,
        })
    }

    /// Creates the layout of bind group 0, and the layout of a pipeline without other groups.
    pub(crate) fn layout(&self, entries: &[wgpu::BindGroupLayoutEntry], immediate_size: u32) -> Layouts {
        let group = self.device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: None, entries });
        let bind_group_layouts = &[Some(&group)];
        let descriptor = wgpu::PipelineLayoutDescriptor { label: None, bind_group_layouts, immediate_size };
        let pipeline = self.device.create_pipeline_layout(&descriptor);
        Layouts { group, pipeline }
    }

    pub(crate) fn count_pipeline(&self) {
        self.state().counters.pipelines += 1;
    }

    fn layouts(&self, state: &mut State, signature: u64, writes: &[bool]) -> Arc<Layouts> {
        let make = || {
            let ty = wgpu::BufferBindingType::Uniform;
            let ty = wgpu::BindingType::Buffer { ty, has_dynamic_offset: true, min_binding_size: None };
            let mut entries = vec![wgpu::BindGroupLayoutEntry { ty, ..storage((0, &false)) }];
            entries.extend((1..).zip(writes).map(storage));
            Arc::new(self.layout(&entries, 0))
        };
        state.layouts.entry(signature).or_insert_with(make).clone()
    }

    /// The bind group with this key, created if necessary.
    fn group<'a>(
        &self,
        state: &mut State,
        key: u128,
        layout: &wgpu::BindGroupLayout,
        binds: &[Bind<'_>],
        entries: impl FnOnce() -> Vec<wgpu::BindGroupEntry<'a>>,
    ) -> wgpu::BindGroup {
        if let Some(group) = state.groups.get(&key) {
            return group.raw.clone();
        }
        if state.groups.len() >= GROUPS {
            state.groups.clear();
        }
        let descriptor = wgpu::BindGroupDescriptor { label: None, layout, entries: &entries() };
        let made = self.device.create_bind_group(&descriptor);
        state.counters.bind_groups += 1;
        let blocks = binds.iter().map(|b| b.block.id).collect();
        state.groups.insert(key, Group { raw: made.clone(), blocks });
        made
    }

    /// Submits the collected commands, if there are any. Returns wgpu's error if it rejects them.
    fn flush(&self, state: &mut State) -> Option<Arc<Found>> {
        if state.encoder.is_some() { self.submit(state).1 } else { None }
    }

    /// Submits the collected commands and the pending writes to buffers, even if there are no commands. Also returns
    /// wgpu's error if it rejects them. The log keeps that error, too.
    fn submit(&self, state: &mut State) -> (wgpu::SubmissionIndex, Option<Arc<Found>>) {
        state.pass = None;
        if !state.params.is_empty() {
            self.queue.write_buffer(&self.arena, 0, &state.params);
            state.params.clear();
        }
        let submission = self.queue.submit(state.encoder.take().map(wgpu::CommandEncoder::finish));
        // wgpu rejects a submission as a whole, and reports the error before `submit` returns.
        let rejected = self.faults.take().map(Found::new);
        state.log.submitted(&state.slots, rejected.clone());
        // Cached bind groups keep their buffers alive, so those with released buffers are dropped. The submission keeps
        // its own references to what it uses.
        let gone = self.pool.take_gone();
        if !gone.is_empty() {
            state.groups.retain(|_, group| !group.blocks.iter().any(|id| gone.contains(id)));
        }
        state.commands = 0;
        state.epoch += 1;
        state.counters.submissions += 1;
        (submission, rejected)
    }

    /// Queues a copy between two buffers. The offsets and the length must be multiples of 4. `whole` says that the copy
    /// fills all of `to`.
    pub(crate) fn copy(
        &self,
        (from, from_at): (&Block, u64),
        (to, to_at): (&Block, u64),
        bytes: u64,
        whole: bool,
    ) -> Result<()> {
        let mut guard = self.ready("copy_buffer")?;
        let state = &mut *guard;
        let access = if whole { Access::Replace } else { Access::Write };
        state.log.note(None, [(&from.contents, Access::Read), (&to.contents, access)].into_iter());
        let epoch = state.epoch;
        from.touch(epoch);
        to.touch(epoch);
        self.encode_copy(state, (&from.raw, from_at), (&to.raw, to_at), bytes);
        Ok(())
    }

    fn encode_copy(
        &self,
        state: &mut State,
        (from, from_at): (&wgpu::Buffer, u64),
        (to, to_at): (&wgpu::Buffer, u64),
        bytes: u64,
    ) {
        state.pass = None;
        let encoder = state.encoder.get_or_insert_with(|| self.device.create_command_encoder(&Default::default()));
        encoder.copy_buffer_to_buffer(from, from_at, to, to_at, bytes);
        state.counters.bytes += 2 * bytes;
        self.count_command(state);
    }

    /// Drops the cached bind groups, which keep their buffers alive, the tables kept on the device, and the buffer for
    /// reading back.
    pub(crate) fn trim(&self) {
        let mut state = self.state();
        state.groups.clear();
        state.kept.clear();
        state.readback = None;
    }

    /// Submits all work, drops the same objects as `trim`, and waits until the device has freed what is no longer used.
    pub(crate) fn reclaim(&self) {
        let mut state = self.state();
        self.submit(&mut state);
        state.groups.clear();
        state.kept.clear();
        state.readback = None;
        drop(state);
        // If the device is lost meanwhile, the next call reports it.
        let _ = self.wait("alloc", None);
    }

    /// The size in bytes of the buffer for reading back and of the tables kept on the device.
    pub(crate) fn kept_bytes(&self) -> usize {
        let state = self.state();
        state.readback.as_ref().map_or(0, |b| b.size() as usize) + state.kept.bytes()
    }

    /// Destroys the device. Every later call fails.
    pub(crate) fn destroy(&self) {
        let mut state = self.state();
        self.flush(&mut state);
        self.device.destroy();
        self.faults.report_lost("it was closed".to_owned());
    }
}

/// The key of a bind group: a hash of the bound buffers and of `rest`, which stands for everything else that it depends
/// on.
fn group_key(rest: u64, binds: &[Bind<'_>]) -> u128 {
    key((rest, binds))
}

/// Hashes the buffer, the part of it that is bound, and whether it is written.
impl Hash for Bind<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        [self.block.id << 1 | u64::from(self.write()), self.offset, self.size].hash(state);
    }
}

fn bind_entry(binding: u32, buffer: &wgpu::Buffer, offset: u64, size: u64) -> wgpu::BindGroupEntry<'_> {
    let size = wgpu::BufferSize::new(size);
    let resource = wgpu::BindingResource::Buffer(wgpu::BufferBinding { buffer, offset, size });
    wgpu::BindGroupEntry { binding, resource }
}

/// The layout entry of a storage buffer at binding `binding`.
pub(crate) fn storage((binding, &write): (u32, &bool)) -> wgpu::BindGroupLayoutEntry {
    let ty = wgpu::BufferBindingType::Storage { read_only: !write };
    wgpu::BindGroupLayoutEntry {
        binding,
        visibility: wgpu::ShaderStages::COMPUTE,
        ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: None },
        count: None,
    }
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Queue({:?})", self.counters())
    }
}

#[cfg(test)]
mod tests {
    use gradus_backend::{Backend, DType, Layout, Scalar, Shape, ViewMut};

    #[test]
    fn the_bind_groups_of_a_buffer_go_with_it() {
        let opened = crate::adapter::open_nothing(crate::adapter::Profile::Full).expect("wgpu's own device");
        let backend = crate::WgpuBackend::of(0, &opened);
        let queue = backend.queue();
        let kept = || queue.state().groups.len();
        let fill = |bytes: usize| {
            let mut buffer = backend.allocate(bytes).expect("memory");
            let layout = Layout::contiguous(Shape::new(&[bytes / 4]).expect("a shape"));
            let mut out = ViewMut { buffer: &mut buffer, dtype: DType::F32, layout: &layout };
            backend.fill(&mut out, Scalar::Int(1)).expect("a fill");
            backend.synchronize().expect("a device that works");
            buffer
        };
        let (one, other) = (fill(4096), fill(65536));
        assert_eq!(kept(), 2);
        drop(one);
        // The buffer is kept for reuse, so its bind group is reused too.
        drop(fill(4096));
        assert_eq!(kept(), 2);
        backend.pool().trim();
        drop(fill(65536));
        // The buffer of 4096 bytes is destroyed. `other` still exists, so another buffer of 65,536 bytes was allocated.
        assert_eq!(kept(), 2);
        drop(other);
    }
}

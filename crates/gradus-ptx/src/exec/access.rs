//! Loads and stores of a warp.

use std::sync::atomic::Ordering::Relaxed;

use super::race::Access;
use super::warp::Warp;
use super::{Context, Mistake, lanes};
use crate::FaultKind;
use crate::code::{Address, Load, Src, Store, W, WINDOW, Window, base};
use crate::memory::{Allocation, byte_bits, find};

/// The place of an access: the space, and the address or the offset in it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Target {
    Global(u64),
    Shared(u64),
    Local(u64),
    Param(u64),
}

/// The place that an address means.
pub(super) fn target(window: Window, address: u64) -> Target {
    let inside = |window: Window| address.wrapping_sub(base(window));
    match window {
        Window::Global => Target::Global(address),
        // 32-bit addresses of shared memory may have been cut.
        Window::Shared => Target::Shared(address),
        Window::Local => Target::Local(address),
        Window::Param => Target::Param(address),
        Window::Generic if inside(Window::Shared) < WINDOW => Target::Shared(inside(Window::Shared)),
        Window::Generic if inside(Window::Local) < WINDOW => Target::Local(inside(Window::Local)),
        Window::Generic if inside(Window::Param) < WINDOW => Target::Param(inside(Window::Param)),
        Window::Generic => Target::Global(address),
    }
}

impl<'a> Context<'a> {
    /// The allocation that holds these bytes. Each instruction remembers the one that it used last.
    #[inline]
    pub(super) fn allocation(&mut self, pc: u32, lane: u32, at: u64, len: u64) -> Result<&'a Allocation, Box<Mistake>> {
        let job = self.job;
        let known = self.sites[pc as usize] as usize;
        match job.live.get(known) {
            Some(one) if one.holds(at, len) => Ok(one),
            _ => self.find_allocation(pc, lane, at, len),
        }
    }

    #[cold]
    fn find_allocation(&mut self, pc: u32, lane: u32, at: u64, len: u64) -> Result<&'a Allocation, Box<Mistake>> {
        let job = self.job;
        let Some(found) = find(&self.job.live, at).filter(|found| self.job.live[*found].holds(at, len)) else {
            let text = format!("an access of {len} bytes at {at:#x}: {}", self.job.memory.describe(at));
            return self.mistake(FaultKind::OutOfBounds, pc, lane, text);
        };
        self.sites[pc as usize] = found as u32;
        Ok(&job.live[found])
    }

    /// Bytes of one word of global memory.
    #[inline]
    pub(super) fn global_read(&mut self, access: Access, at: u64, len: usize) -> Result<u32, Box<Mistake>> {
        let one = self.allocation(access.pc, access.lane, at, len as u64)?;
        let offset = at - one.base;
        let (index, from) = ((offset / 4) as usize, (offset % 4) as usize);
        let bits = byte_bits(from, len);
        if !one.is_written(index, bits) {
            let text = format!("a read of {len} bytes that were never written, at {}", self.job.memory.describe(at));
            return self.mistake(FaultKind::Uninitialised, access.pc, access.lane, text);
        }
        if self.races.on() {
            let [write, read] = &one.shadow()[index];
            let records = [write.load(Relaxed), read.load(Relaxed)];
            read.store(self.note_read(Access { bits, ..access }, records, "global")?, Relaxed);
        }
        let word = one.word(index).load(Relaxed);
        Ok(if len == 4 { word } else { word >> (8 * from) & ((1 << (8 * len)) - 1) })
    }

    /// Writes bytes of one word of global memory.
    #[inline]
    pub(super) fn global_write(&mut self, access: Access, at: u64, len: usize, value: u32) -> Result<(), Box<Mistake>> {
        let one = self.allocation(access.pc, access.lane, at, len as u64)?;
        let offset = at - one.base;
        let (index, from) = ((offset / 4) as usize, (offset % 4) as usize);
        if self.races.on() {
            let [write, read] = &one.shadow()[index];
            let records = [write.load(Relaxed), read.load(Relaxed)];
            let bits = byte_bits(from, len);
            write.store(self.note_write(Access { bits, ..access }, records, "global")?, Relaxed);
        }
        one.store_part(index, from, len, value);
        Ok(())
    }

    /// Bytes of one word of the kernel's parameters.
    fn param_read(&self, access: Access, at: u64, len: usize) -> Result<u32, Box<Mistake>> {
        let bytes = usize::try_from(at).ok().and_then(|at| self.job.launch.params.get(at..at + len));
        let Some(bytes) = bytes else {
            let text = format!("a read of {len} bytes at offset {at} of the kernel's parameters, which end before");
            return self.mistake(FaultKind::OutOfBounds, access.pc, access.lane, text);
        };
        let mut word = [0; 4];
        word[..len].copy_from_slice(bytes);
        Ok(u32::from_le_bytes(word))
    }

    /// An error unless the address is a multiple of the size.
    #[inline]
    pub(super) fn aligned(&self, pc: u32, lane: u32, at: u64, size: u64) -> Result<(), Box<Mistake>> {
        if at & (size - 1) == 0 {
            return Ok(());
        }
        let text = format!("an access of {size} bytes at {at:#x}, which is not a multiple of {size}");
        self.mistake(FaultKind::Misaligned, pc, lane, text)
    }
}

impl Warp {
    /// The addresses of all lanes.
    pub(super) fn addresses(&self, context: &Context<'_>, address: &Address) -> W {
        let mut out = [0; 32];
        self.w(context, address.base, &mut out);
        for one in &mut out {
            *one = one.wrapping_add_signed(address.offset);
        }
        // Narrow registers hold 32-bit addresses.
        if matches!(address.base, Src::Row(_)) {
            for one in &mut out {
                *one &= 0xffff_ffff;
            }
        }
        out
    }

    /// Bytes that lie in one word.
    #[inline]
    pub(super) fn read_part(
        &mut self,
        context: &mut Context<'_>,
        access: Access,
        target: Target,
        len: usize,
    ) -> Result<u32, Box<Mistake>> {
        match target {
            Target::Global(at) => context.global_read(access, at, len),
            Target::Shared(at) => context.shared_read(access, at, len),
            Target::Local(at) => self.local_read(context, access, at, len),
            Target::Param(at) => context.param_read(access, at, len),
        }
    }

    /// Writes bytes that lie in one word.
    #[inline]
    pub(super) fn write_part(
        &mut self,
        context: &mut Context<'_>,
        access: Access,
        target: Target,
        len: usize,
        value: u32,
    ) -> Result<(), Box<Mistake>> {
        match target {
            Target::Global(at) => context.global_write(access, at, len, value),
            Target::Shared(at) => context.shared_write(access, at, len, value),
            Target::Local(at) => self.local_write(context, access, at, len, value),
            Target::Param(_) => {
                context.mistake(FaultKind::OutOfBounds, access.pc, access.lane, "a write to the kernel's parameters")
            }
        }
    }

    /// One element of up to 8 bytes.
    #[inline]
    pub(super) fn read_element(
        &mut self,
        context: &mut Context<'_>,
        access: Access,
        window: Window,
        at: u64,
        size: u32,
    ) -> Result<u64, Box<Mistake>> {
        if size < 8 {
            return Ok(self.read_part(context, access, target(window, at), size as usize)?.into());
        }
        let low = self.read_part(context, access, target(window, at), 4)?;
        let high = self.read_part(context, access, target(window, at + 4), 4)?;
        Ok(u64::from(high) << 32 | u64::from(low))
    }

    pub(super) fn load(
        &mut self,
        context: &mut Context<'_>,
        pc: u32,
        active: u32,
        load: &Load,
    ) -> Result<(), Box<Mistake>> {
        let addresses = self.addresses(context, &load.address);
        let total = u64::from(load.size) * load.to.len() as u64;
        for lane in lanes(active) {
            context.aligned(pc, lane as u32, addresses[lane], total)?;
        }
        let guard = (load.strong && load.size == 8).then(|| context.job.memory.lock());
        for (element, to) in load.to.iter().enumerate() {
            let mut out = [0u64; 32];
            let plus = u64::from(load.size) * element as u64;
            for lane in lanes(active) {
                let access = Access { warp: self.index, lane: lane as u32, pc, bits: 0 };
                let at = addresses[lane].wrapping_add(plus);
                let value = self.read_element(context, access, load.address.window, at, load.size)?;
                out[lane] = match (load.signed, load.size) {
                    (true, 1) => value as i8 as u64,
                    (true, 2) => value as i16 as u64,
                    (true, 4) => value as i32 as u64,
                    _ => value,
                };
            }
            self.put_w(*to, active, &out);
        }
        drop(guard);
        Ok(())
    }

    pub(super) fn store(
        &mut self,
        context: &mut Context<'_>,
        pc: u32,
        active: u32,
        store: &Store,
    ) -> Result<(), Box<Mistake>> {
        let addresses = self.addresses(context, &store.address);
        let window = store.address.window;
        let total = u64::from(store.size) * store.from.len() as u64;
        for lane in lanes(active) {
            context.aligned(pc, lane as u32, addresses[lane], total)?;
        }
        let guard = (store.strong && store.size == 8).then(|| context.job.memory.lock());
        let mut values = [0; 32];
        for (element, from) in store.from.iter().enumerate() {
            self.w(context, *from, &mut values);
            let plus = u64::from(store.size) * element as u64;
            for lane in lanes(active) {
                let access = Access { warp: self.index, lane: lane as u32, pc, bits: 0 };
                let at = addresses[lane].wrapping_add(plus);
                let low = store.size.min(4) as usize;
                self.write_part(context, access, target(window, at), low, values[lane] as u32)?;
                if store.size == 8 {
                    self.write_part(context, access, target(window, at + 4), 4, (values[lane] >> 32) as u32)?;
                }
            }
        }
        drop(guard);
        Ok(())
    }

    fn local_index(
        &self,
        context: &Context<'_>,
        access: Access,
        at: u64,
        len: usize,
    ) -> Result<(usize, usize), Box<Mistake>> {
        let (index, from) = ((at / 4) as usize, (at % 4) as usize);
        let bits = byte_bits(from, len);
        if context.job.local.get(index).is_none_or(|state| state & bits != bits) {
            let text =
                format!("an access of {len} bytes at offset {at} of the thread's own memory, outside all variables");
            return context.mistake(FaultKind::OutOfBounds, access.pc, access.lane, text);
        }
        Ok((index * 32 + access.lane as usize, from))
    }

    fn local_read(&mut self, context: &Context<'_>, access: Access, at: u64, len: usize) -> Result<u32, Box<Mistake>> {
        let (index, from) = self.local_index(context, access, at, len)?;
        let bits = byte_bits(from, len);
        if self.local_written.get(index).is_none_or(|written| written & bits != bits) {
            let text =
                format!("a read of {len} bytes of the thread's own memory that were never written, at offset {at}");
            return context.mistake(FaultKind::Uninitialised, access.pc, access.lane, text);
        }
        let word = self.local[index];
        Ok(if len == 4 { word } else { word >> (8 * from) & ((1 << (8 * len)) - 1) })
    }

    fn local_write(
        &mut self,
        context: &Context<'_>,
        access: Access,
        at: u64,
        len: usize,
        value: u32,
    ) -> Result<(), Box<Mistake>> {
        let (index, from) = self.local_index(context, access, at, len)?;
        if self.local.is_empty() {
            self.local = vec![0; context.job.local.len() * 32];
            self.local_written = vec![0; self.local.len()];
        }
        self.local_written[index] |= byte_bits(from, len);
        let word = &mut self.local[index];
        if len == 4 {
            *word = value;
        } else {
            let mask = ((1u32 << (8 * len)) - 1) << (8 * from);
            *word = *word & !mask | value << (8 * from) & mask;
        }
        Ok(())
    }

    /// A parameter of a call: 4 or 8 bytes of the thread's own memory.
    pub(super) fn call_param(
        &mut self,
        context: &mut Context<'_>,
        pc: u32,
        lane: usize,
        at: u64,
        size: u32,
    ) -> Result<u64, Box<Mistake>> {
        let access = Access { warp: self.index, lane: lane as u32, pc, bits: 0 };
        self.read_element(context, access, Window::Local, at, size)
    }

    /// Writes a result of a call.
    pub(super) fn call_result(
        &mut self,
        context: &mut Context<'_>,
        pc: u32,
        lane: usize,
        at: u64,
        value: u32,
    ) -> Result<(), Box<Mistake>> {
        let access = Access { warp: self.index, lane: lane as u32, pc, bits: 0 };
        self.local_write(context, access, at, 4, value)
    }
}

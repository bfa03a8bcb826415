//! Memory of devices and of the host, copies and fills.

use std::alloc::Layout;

use crate::driver::abi::{Code, Handle, Host, INVALID_DEVICE, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY, Out};
use crate::driver::call::exported;
use crate::driver::machine::Driver;
use crate::driver::work::Work;

fn allocate_pinned(driver: &mut Driver, to: Out<usize>, bytes: usize) -> Result<(), Code> {
    driver.current()?;
    if bytes == 0 {
        return to.put(0);
    }
    let layout = Layout::from_size_align(bytes, 4096).map_err(|_| OUT_OF_MEMORY)?;
    // SAFETY: the layout is not of zero bytes.
    let start = unsafe { std::alloc::alloc_zeroed(layout) } as usize;
    if start == 0 {
        return Err(OUT_OF_MEMORY);
    }
    driver.pinned.0.insert(start, layout);
    to.put(start)
}

fn allocate(driver: &mut Driver, to: Out<u64>, bytes: usize) -> Result<(), Code> {
    let device = driver.current()?;
    let address = driver.devices[device].memory.allocate(bytes)?;
    to.put(address)
}

/// Allocation in the order of a stream. A graph with allocations is not something that this driver can make.
fn allocate_in_order(driver: &mut Driver, to: Out<u64>, bytes: usize, stream: Handle) -> Result<(), Code> {
    let stream = driver.stream(stream)?;
    if driver.is_capturing(stream) {
        return Err(NOT_SUPPORTED);
    }
    let device = driver.streams[&stream].device;
    // What was freed in the order of a stream can be allocated again in that order, so it must have been freed.
    if driver.devices[device].memory.used + bytes > driver.settings.memory {
        driver.finish_stream(stream)?;
    }
    let address = driver.devices[device].memory.allocate(bytes)?;
    to.put(address)
}

/// A copy or fill for which the caller waits: after all work of the default stream.
fn now(driver: &mut Driver, work: Work) -> Result<(), Code> {
    let stream = driver.stream(0)?;
    driver.refuse_while_capturing(driver.streams[&stream].device)?;
    driver.give(stream, work)?;
    driver.finish_stream(stream)?;
    let device = driver.streams[&stream].device;
    driver.devices[device].surface()
}

/// The same in the order of a stream.
fn later(driver: &mut Driver, stream: Handle, work: Work) -> Result<(), Code> {
    let stream = driver.stream(stream)?;
    driver.give(stream, work)
}

/// A copy from the host. `stays` says that the caller leaves the memory as it is until the copy is done; other memory is
/// read now.
fn copy_in(driver: &Driver, to: u64, from: Host, bytes: usize, stays: bool) -> Result<Work, Code> {
    if from.0.is_null() && bytes > 0 {
        return Err(INVALID_VALUE);
    }
    if stays || !driver.settings.late {
        return Ok(Work::CopyIn { to, from, bytes });
    }
    // SAFETY: whoever asks for a copy has so many initialised bytes there, until the call returns at least.
    Ok(Work::CopyBytes { to, from: unsafe { from.bytes(bytes) }.into() })
}

/// The pool of each device.
fn pool(device: usize) -> Handle {
    0x200 + device
}

fn device_of_pool(driver: &Driver, pool: Handle) -> Result<usize, Code> {
    pool.checked_sub(0x200).filter(|device| *device < driver.devices.len()).ok_or(INVALID_VALUE)
}

fn pool_of(driver: &Driver, device: i32) -> Result<Handle, Code> {
    let device = usize::try_from(device).map_err(|_| INVALID_DEVICE)?;
    if device < driver.devices.len() { Ok(pool(device)) } else { Err(INVALID_DEVICE) }
}

exported! {
    fn cuMemAlloc_v2(driver, to: Out<u64>, bytes: usize) {
        allocate(driver, to, bytes)
    }

    fn cuMemFree_v2(driver, address: u64) {
        let device = driver.current()?;
        if address == 0 {
            return Ok(());
        }
        driver.finish_device(device)?;
        driver.devices[device].memory.free(address)
    }

    fn cuMemAllocAsync(driver, to: Out<u64>, bytes: usize, stream: Handle) {
        allocate_in_order(driver, to, bytes, stream)
    }

    fn cuMemAllocFromPoolAsync(driver, to: Out<u64>, bytes: usize, pool: Handle, stream: Handle) {
        device_of_pool(driver, pool)?;
        allocate_in_order(driver, to, bytes, stream)
    }

    fn cuMemFreeAsync(driver, address: u64, stream: Handle) {
        let stream = driver.stream(stream)?;
        if driver.is_capturing(stream) {
            return Err(NOT_SUPPORTED);
        }
        driver.give(stream, Work::Free { address })
    }

    fn cuMemGetInfo_v2(driver, free: Out<usize>, total: Out<usize>) {
        let device = driver.current()?;
        free.put(driver.settings.memory - driver.devices[device].memory.used)?;
        total.put(driver.settings.memory)
    }

    fn cuDeviceGetDefaultMemPool(driver, to: Out<Handle>, device: i32) {
        to.put(pool_of(driver, device)?)
    }

    fn cuDeviceGetMemPool(driver, to: Out<Handle>, device: i32) {
        to.put(pool_of(driver, device)?)
    }

    fn cuMemPoolTrimTo(driver, pool: Handle, _keep: usize) {
        // Nothing is kept, so there is nothing to trim.
        device_of_pool(driver, pool).map(drop)
    }

    fn cuMemPoolSetAttribute(driver, pool: Handle, attribute: u32, value: Out<u64>) {
        let device = device_of_pool(driver, pool)?;
        match attribute {
            // Which freed memory may be used again: all of it is.
            1..=3 => Ok(()),
            4 => {
                driver.devices[device].memory.release_threshold = value.get()?;
                Ok(())
            }
            6 | 8 => {
                driver.devices[device].memory.most = driver.devices[device].memory.used;
                Ok(())
            }
            _ => Err(INVALID_VALUE),
        }
    }

    fn cuMemPoolGetAttribute(driver, pool: Handle, attribute: u32, value: Out<u64>) {
        let memory = &driver.devices[device_of_pool(driver, pool)?].memory;
        match attribute {
            4 => value.put(memory.release_threshold),
            5 | 7 => value.put(memory.used as u64),
            6 | 8 => value.put(memory.most as u64),
            _ => Err(INVALID_VALUE),
        }
    }

    fn cuMemHostAlloc(driver, to: Out<usize>, bytes: usize, _flags: u32) {
        allocate_pinned(driver, to, bytes)
    }

    fn cuMemAllocHost_v2(driver, to: Out<usize>, bytes: usize) {
        allocate_pinned(driver, to, bytes)
    }

    fn cuMemFreeHost(driver, address: usize) {
        let device = driver.current()?;
        if address == 0 {
            return Ok(());
        }
        let layout = *driver.pinned.0.get(&address).ok_or(INVALID_VALUE)?;
        driver.finish_device(device)?;
        driver.pinned.0.remove(&address);
        // SAFETY: it was allocated with this layout, and the work that used it is done.
        unsafe { std::alloc::dealloc(address as *mut u8, layout) };
        Ok(())
    }

    fn cuMemcpyHtoD_v2(driver, to: u64, from: Host, bytes: usize) {
        let work = copy_in(driver, to, from, bytes, true)?;
        now(driver, work)
    }

    fn cuMemcpyDtoH_v2(driver, to: Host, from: u64, bytes: usize) {
        now(driver, Work::CopyOut { to, from, bytes })
    }

    fn cuMemcpyDtoD_v2(driver, to: u64, from: u64, bytes: usize) {
        now(driver, Work::Copy { to, from, bytes })
    }

    fn cuMemcpyHtoDAsync_v2(driver, to: u64, from: Host, bytes: usize, stream: Handle) {
        let resolved = driver.stream(stream)?;
        let stays = driver.pinned.holds(from, bytes) || driver.is_capturing(resolved);
        let work = copy_in(driver, to, from, bytes, stays)?;
        later(driver, stream, work)
    }

    /// Into memory that is not pinned, the copy is complete when the call returns, as on a real device.
    fn cuMemcpyDtoHAsync_v2(driver, to: Host, from: u64, bytes: usize, stream: Handle) {
        let resolved = driver.stream(stream)?;
        let waits = !driver.pinned.holds(to, bytes) && !driver.is_capturing(resolved);
        later(driver, stream, Work::CopyOut { to, from, bytes })?;
        if waits { driver.finish_stream(resolved) } else { Ok(()) }
    }

    fn cuMemcpyDtoDAsync_v2(driver, to: u64, from: u64, bytes: usize, stream: Handle) {
        later(driver, stream, Work::Copy { to, from, bytes })
    }

    fn cuMemsetD8_v2(driver, to: u64, value: u8, count: usize) {
        now(driver, Work::Fill { to, pattern: u32::from(value), width: 1, count })
    }

    fn cuMemsetD16_v2(driver, to: u64, value: u16, count: usize) {
        now(driver, Work::Fill { to, pattern: u32::from(value), width: 2, count })
    }

    fn cuMemsetD32_v2(driver, to: u64, value: u32, count: usize) {
        now(driver, Work::Fill { to, pattern: value, width: 4, count })
    }

    fn cuMemsetD8Async(driver, to: u64, value: u8, count: usize, stream: Handle) {
        later(driver, stream, Work::Fill { to, pattern: u32::from(value), width: 1, count })
    }

    fn cuMemsetD16Async(driver, to: u64, value: u16, count: usize, stream: Handle) {
        later(driver, stream, Work::Fill { to, pattern: u32::from(value), width: 2, count })
    }

    fn cuMemsetD32Async(driver, to: u64, value: u32, count: usize, stream: Handle) {
        later(driver, stream, Work::Fill { to, pattern: value, width: 4, count })
    }
}

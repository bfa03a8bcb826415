//! Devices, their attributes, and contexts.

use std::ffi::{CStr, c_char};

use crate::driver::abi::{Code, Handle, INVALID_CONTEXT, INVALID_DEVICE, INVALID_VALUE, NO_DEVICE, NOT_SUPPORTED, Out};
use crate::driver::call::exported;
use crate::driver::kernel::{SHARED_BYTES, SHARED_BYTES_OF_MULTIPROCESSOR, SHARED_BYTES_ON_REQUEST};
use crate::driver::machine::{CONTEXTS, FIRST_HANDLE, current};
use crate::driver::settings::Settings;
use crate::driver::state::{Device, Stream};

/// The handle of the primary context of a device.
fn context(device: usize) -> Handle {
    0x100 + device
}

/// The device of a context; none for the null context.
fn device_of(context: Handle, devices: usize) -> Result<Option<usize>, Code> {
    match context {
        0 => Ok(None),
        _ => context.checked_sub(0x100).filter(|device| *device < devices).map(Some).ok_or(INVALID_CONTEXT),
    }
}

/// A device by its ordinal.
fn found(devices: &mut [Device], device: i32) -> Result<(usize, &mut Device), Code> {
    let at = usize::try_from(device).map_err(|_| INVALID_DEVICE)?;
    devices.get_mut(at).map(|found| (at, found)).ok_or(INVALID_DEVICE)
}

/// What a device of compute capability 8.0 answers, by the number of the attribute.
fn attribute(attribute: i32, settings: &Settings) -> Option<i32> {
    Some(match attribute {
        1 => 1024,                             // threads of a block
        2 | 3 => 1024,                         // x and y of a block
        4 => 64,                               // z of a block
        5 => i32::MAX,                         // x of a grid
        6 | 7 => 65_535,                       // y and z of a grid
        8 => SHARED_BYTES,                     // shared memory of a block, unless it asks for more
        9 => 65_536,                           // constant memory
        10 => 32,                              // a warp
        11 => i32::MAX,                        // pitch
        12 | 82 => 65_536,                     // registers of a block, of a multiprocessor
        13 => 1_410_000,                       // clock, kHz
        14 => 512,                             // alignment of textures
        16 => 8,                               // multiprocessors: few, so that loops over a grid are run
        17 | 18 | 20 | 32 | 33 | 35 | 50 => 0, // time limit, integrated, compute mode, ECC, PCI bus, TCC, PCI domain
        34 => 1,                               // PCI device
        19 | 31 | 41 | 78 | 95 | 115 => 1, // mapped memory, concurrent kernels, one address space, priorities, cooperative launch, pools
        36 => 1_215_000,                   // clock of the memory, kHz
        37 => 5120,                        // width of the bus, bits
        38 => 40 << 20,                    // L2 cache
        39 => 2048,                        // threads of a multiprocessor
        40 => 1,                           // engines for copies
        75 => settings.capability.0,
        76 => settings.capability.1,
        81 => SHARED_BYTES_OF_MULTIPROCESSOR,
        83 | 88 | 89 | 91 | 96 | 100 => 0, // managed memory and what depends on it, pageable access, launches over devices
        97 => SHARED_BYTES_ON_REQUEST,
        106 => 32,   // blocks of a multiprocessor
        111 => 1024, // shared memory that the system keeps for itself
        _ => return None,
    })
}

exported! {
    fn cuInit(driver, flags: u32) {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        if driver.devices.is_empty() {
            return Err(NO_DEVICE);
        }
        driver.initialised = true;
        Ok(())
    }

    fn cuDriverGetVersion(driver, version: Out<i32>) {
        version.put(driver.settings.driver_version)
    }

    fn cuDeviceGetCount(driver, count: Out<i32>) {
        count.put(driver.devices.len() as i32)
    }

    fn cuDeviceGet(driver, device: Out<i32>, ordinal: i32) {
        found(&mut driver.devices, ordinal)?;
        device.put(ordinal)
    }

    fn cuDeviceGetName(driver, name: Out<u8>, room: i32, device: i32) {
        found(&mut driver.devices, device)?;
        name.put_text(usize::try_from(room).map_err(|_| INVALID_VALUE)?, b"Gradus PTX interpreter")
    }

    fn cuDeviceGetUuid_v2(driver, uuid: Out<[u8; 16]>, device: i32) {
        let (at, _) = found(&mut driver.devices, device)?;
        let mut bytes = *b"gradus-ptx-dev-0";
        bytes[15] += at as u8;
        uuid.put(bytes)
    }

    fn cuDeviceTotalMem_v2(driver, bytes: Out<usize>, device: i32) {
        found(&mut driver.devices, device)?;
        bytes.put(driver.settings.memory)
    }

    fn cuDeviceGetAttribute(driver, value: Out<i32>, which: i32, device: i32) {
        found(&mut driver.devices, device)?;
        value.put(attribute(which, &driver.settings).ok_or(INVALID_VALUE)?)
    }

    fn cuDevicePrimaryCtxRetain(driver, to: Out<Handle>, device: i32) {
        let (at, device) = found(&mut driver.devices, device)?;
        device.lost.map_or(Ok(()), Err)?;
        to.put(context(at))?;
        device.retained += 1;
        Ok(())
    }

    fn cuDevicePrimaryCtxRelease_v2(driver, device: i32) {
        let (_, device) = found(&mut driver.devices, device)?;
        device.retained = device.retained.checked_sub(1).ok_or(INVALID_CONTEXT)?;
        Ok(())
    }

    fn cuDevicePrimaryCtxGetState(driver, device: i32, flags: Out<u32>, active: Out<i32>) {
        let (_, device) = found(&mut driver.devices, device)?;
        flags.put(0)?;
        active.put(i32::from(device.retained > 0))
    }

    /// Forgets everything of the context, also that it is lost: its memory, streams, events, modules and graphs.
    fn cuDevicePrimaryCtxReset_v2(driver, device: i32) {
        let (at, found) = found(&mut driver.devices, device)?;
        *found = Device { retained: found.retained, ..Device::new(&driver.settings) };
        driver.streams.retain(|handle, stream| *handle < FIRST_HANDLE || stream.device != at);
        driver.streams.values_mut().filter(|stream| stream.device == at).for_each(Stream::clear);
        driver.events.retain(|_, event| event.device != at);
        driver.modules.retain(|_, module| module.device != at);
        driver.functions.retain(|_, function| function.device != at);
        driver.graphs.retain(|_, graph| graph.device != at);
        Ok(())
    }

    fn cuCtxSetCurrent(driver, context: Handle) {
        let device = device_of(context, driver.devices.len())?;
        CONTEXTS.with_borrow_mut(|all| {
            all.pop();
            all.push(device);
        });
        Ok(())
    }

    fn cuCtxPushCurrent_v2(driver, context: Handle) {
        let device = device_of(context, driver.devices.len())?.ok_or(INVALID_CONTEXT)?;
        CONTEXTS.with_borrow_mut(|all| all.push(Some(device)));
        Ok(())
    }

    fn cuCtxPopCurrent_v2(_driver, to: Out<Handle>) {
        let popped = CONTEXTS.with_borrow_mut(Vec::pop).flatten().ok_or(INVALID_CONTEXT)?;
        if to.is_wanted() { to.put(context(popped)) } else { Ok(()) }
    }

    fn cuCtxGetCurrent(_driver, to: Out<Handle>) {
        to.put(current().map_or(0, context))
    }

    fn cuCtxGetDevice(driver, device: Out<i32>) {
        device.put(driver.current()? as i32)
    }

    fn cuCtxSynchronize(driver) {
        let device = driver.current()?;
        driver.refuse_while_capturing(device)?;
        driver.finish_device(device)?;
        driver.devices[device].surface()
    }

    fn cuCtxSetFlags(driver, _flags: u32) {
        // Flags say how a thread waits; here it never does.
        driver.current().map(drop)
    }

    fn cuCtxGetStreamPriorityRange(driver, least: Out<i32>, greatest: Out<i32>) {
        driver.current()?;
        least.put(0)?;
        greatest.put(-5)
    }

    /// Stack, heap and printf buffers of kernels: there is no such limit here.
    fn cuCtxGetLimit(driver, _value: Out<usize>, _limit: u32) {
        driver.current()?;
        Err(NOT_SUPPORTED)
    }
}

/// Texts live as long as the program, as the driver's do.
fn text_of(text: Option<&'static CStr>, to: Out<*const c_char>) -> Result<(), Code> {
    to.put(text.map_or(std::ptr::null(), CStr::as_ptr))?;
    text.map(drop).ok_or(INVALID_VALUE)
}

exported! {
    fn cuGetErrorName(_driver, code: Code, to: Out<*const c_char>) {
        text_of(code.name(), to)
    }

    fn cuGetErrorString(_driver, code: Code, to: Out<*const c_char>) {
        text_of(code.meaning(), to)
    }
}

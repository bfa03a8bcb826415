//! Modules, kernels, and launches.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use crate::driver::abi::{
    Code, Handle, INVALID_HANDLE, INVALID_IMAGE, INVALID_PTX, INVALID_VALUE, LAUNCH_OUT_OF_RESOURCES,
    NO_BINARY_FOR_GPU, NOT_FOUND, NOT_SUPPORTED, OUT_OF_MEMORY, Out, Text,
};
use crate::driver::call::exported;
use crate::driver::kernel::{Ready, SHARED_BYTES, SHARED_BYTES_OF_MULTIPROCESSOR, SHARED_BYTES_ON_REQUEST};
use crate::driver::machine::Driver;
use crate::driver::state::{Function, Loaded};
use crate::driver::work::Work;
use crate::{Launch, Module};

/// Where a caller wants what the compiler says, from the options of `cuModuleLoadDataEx`.
#[derive(Default)]
struct Log {
    to: Option<Out<u8>>,
    room: usize,
}

/// Loads a text of PTX. Binary code is for a real device: it is refused.
fn load(driver: &mut Driver, to: Out<Handle>, image: Image, log: &Log) -> Result<(), Code> {
    let device = driver.current()?;
    let image = image.bytes()?;
    // ELF, and the container that nvcc makes.
    if image.starts_with(b"\x7fELF") || image.starts_with(&[0x50, 0xed, 0x55, 0xba]) {
        return Err(NO_BINARY_FOR_GPU);
    }
    let text = std::str::from_utf8(image).map_err(|_| INVALID_IMAGE)?;
    let module = Module::parse(text).map_err(|error| error.to_string());
    let module =
        module.and_then(|module| match module.kernels().iter().find(|k| k.shared_bytes() > SHARED_BYTES as u64) {
            None => Ok(module),
            Some(k) => {
                let (name, bytes) = (&k.name, k.shared_bytes());
                Err(format!("{name} declares {bytes} bytes of shared memory, more than {SHARED_BYTES}"))
            }
        });
    let module = module.map_err(|message| {
        driver.counts.report(&format!("cuModuleLoadData: {message}"));
        if let Some(to) = log.to {
            let _ = to.put_text(log.room, message.as_bytes());
        }
        INVALID_PTX
    })?;
    if target(text).is_some_and(|target| target > driver.settings.capability.0 * 10 + driver.settings.capability.1) {
        return Err(NO_BINARY_FOR_GPU);
    }
    dump(driver, text);
    let handle = driver.handle();
    to.put(handle)?;
    driver.modules.insert(handle, Loaded { device, module: Arc::new(module) });
    Ok(())
}

/// The architecture of `.target sm_80`, as 80.
fn target(text: &str) -> Option<i32> {
    let rest = text.split("\n.target sm_").nth(1)?;
    rest[..rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len())].parse().ok()
}

/// Keeps the text of a module in the folder of `GRADUS_PTX_DUMP`, once.
fn dump(driver: &Driver, text: &str) {
    let Some(folder) = &driver.settings.dump else { return };
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    let path = folder.join(format!("{:016x}.ptx", hasher.finish()));
    let aside = folder.join(format!("{:016x}.{}", hasher.finish(), std::process::id()));
    if path.exists() {
        return;
    }
    let kept = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&aside, text));
    if let Err(error) = kept.and_then(|()| std::fs::rename(&aside, &path)) {
        eprintln!("gradus-ptx: {}: {error}", path.display());
    }
}

fn function_of(driver: &Driver, function: Handle) -> Result<&Function, Code> {
    let found = driver.functions.get(&function).ok_or(INVALID_HANDLE)?;
    driver.devices[found.device].lost.map_or(Ok(found), Err)
}

/// The text or binary code of a module.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Image(*const std::ffi::c_char);

impl Image {
    /// Up to the first 0, which ends a text. Binary code begins with its mark, which has none.
    fn bytes<'a>(self) -> Result<&'a [u8], Code> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the driver's interface asks for a text with a 0 at its end, or for binary code; that has a 0 after its mark.
        Ok(unsafe { std::ffi::CStr::from_ptr(self.0) }.to_bytes())
    }
}

/// The parameters of a launch: a pointer to each.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Params(*const *const u8);

impl Params {
    /// The bytes of all parameters, each at its offset.
    fn gather(self, kernel: &Ready) -> Result<Vec<u8>, Code> {
        let mut bytes = vec![0; kernel.param_bytes];
        if self.0.is_null() && !kernel.params.is_empty() {
            return Err(INVALID_VALUE);
        }
        for (at, (offset, size)) in kernel.params.iter().enumerate() {
            // SAFETY: the driver's interface asks for as many pointers as the kernel has parameters.
            let from = unsafe { self.0.add(at).read() };
            if from.is_null() {
                return Err(INVALID_VALUE);
            }
            // SAFETY: each points to a value of the parameter's size.
            bytes[*offset..offset + size].copy_from_slice(unsafe { std::slice::from_raw_parts(from, *size) });
        }
        Ok(bytes)
    }
}

fn launch(
    driver: &mut Driver,
    function: Handle,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    stream: Handle,
    params: Params,
) -> Result<(), Code> {
    let stream = driver.stream(stream)?;
    let found = function_of(driver, function)?;
    let threads: u64 = block.iter().map(|size| u64::from(*size)).product();
    let most_grid = [i32::MAX as u32, 65_535, 65_535];
    let sizes = grid.iter().chain(&block).all(|size| *size > 0);
    if !sizes || grid.iter().zip(most_grid).any(|(size, most)| *size > most) || threads > 1024 || block[2] > 64 {
        return Err(INVALID_VALUE);
    }
    let ready = Arc::clone(&found.ready);
    if threads > ready.most_threads as u64 {
        return Err(LAUNCH_OUT_OF_RESOURCES);
    }
    if i64::from(shared) > i64::from(found.dynamic_bytes.max(SHARED_BYTES - ready.shared_bytes)) {
        return Err(INVALID_VALUE);
    }
    let launch = Launch { grid, block, shared_bytes: shared, params: params.gather(&ready)? };
    driver.give(stream, Work::Launch { kernel: ready, launch: Arc::new(launch) })
}

/// How many blocks fit on a multiprocessor, by threads and shared memory; registers are not known here.
fn blocks_at_once(function: &Function, threads: i32, dynamic: usize) -> Result<i32, Code> {
    if threads <= 0 {
        return Err(INVALID_VALUE);
    }
    let shared = function.ready.shared_bytes as usize + dynamic + 1024;
    let by_shared = SHARED_BYTES_OF_MULTIPROCESSOR as usize / shared;
    let by_threads =
        if threads > function.ready.most_threads { 0 } else { 2048 / (threads as u32).next_multiple_of(32) as i32 };
    Ok(by_threads.min(by_shared as i32).min(32))
}

fn attribute(function: &Function, attribute: u32, driver: &Driver) -> Option<i32> {
    let (major, minor) = driver.settings.capability;
    Some(match attribute {
        0 => function.ready.most_threads,
        1 => function.ready.shared_bytes,
        5 | 6 => major * 10 + minor,
        8 => function.dynamic_bytes,
        _ => return None,
    })
}

exported! {
    fn cuModuleLoadData(driver, to: Out<Handle>, image: Image) {
        load(driver, to, image, &Log::default())
    }

    /// Of the options, the buffer for what the compiler says of errors has an effect; others are for machine code.
    fn cuModuleLoadDataEx(driver, to: Out<Handle>, image: Image, count: u32, names: Options<u32>, values: Options<usize>) {
        let mut log = Log::default();
        for at in 0..count as usize {
            match names.at(at)? {
                5 => log.to = Some(Out::at(values.at(at)?)),
                6 => log.room = values.at(at)? & 0xffff_ffff,
                _ => {}
            }
        }
        load(driver, to, image, &log)
    }

    fn cuModuleUnload(driver, module: Handle) {
        driver.current()?;
        let device = driver.modules.get(&module).ok_or(INVALID_HANDLE)?.device;
        driver.finish_device(device)?;
        if let Some(loaded) = driver.modules.remove(&module) {
            loaded.module.unload(&driver.devices[device].memory.memory).map_err(|_| INVALID_VALUE)?;
        }
        driver.functions.retain(|_, function| function.module != module);
        Ok(())
    }

    fn cuModuleGetFunction(driver, to: Out<Handle>, module: Handle, name: Text) {
        let name = name.get()?;
        let loaded = driver.modules.get(&module).ok_or(INVALID_HANDLE)?;
        let ready = Arc::new(Ready::new(&loaded.module, name).ok_or(NOT_FOUND)?);
        let dynamic_bytes = SHARED_BYTES - ready.shared_bytes;
        let function = Function { device: loaded.device, module, ready, dynamic_bytes };
        let handle = driver.handle();
        to.put(handle)?;
        driver.functions.insert(handle, function);
        Ok(())
    }

    fn cuModuleGetGlobal_v2(driver, to: Out<u64>, bytes: Out<usize>, module: Handle, name: Text) {
        let loaded = driver.modules.get(&module).ok_or(INVALID_HANDLE)?;
        let memory = &driver.devices[loaded.device].memory.memory;
        let found = loaded.module.variable(name.get()?, memory).map_err(|_| OUT_OF_MEMORY)?;
        let (address, size) = found.ok_or(NOT_FOUND)?;
        if to.is_wanted() {
            to.put(address)?;
        }
        if bytes.is_wanted() { bytes.put(size as usize) } else { Ok(()) }
    }

    fn cuFuncGetAttribute(driver, to: Out<i32>, which: u32, function: Handle) {
        let found = function_of(driver, function)?;
        to.put(attribute(found, which, driver).ok_or(INVALID_VALUE)?)
    }

    fn cuFuncSetAttribute(driver, function: Handle, which: u32, value: i32) {
        function_of(driver, function)?;
        let found = driver.functions.get_mut(&function).ok_or(INVALID_HANDLE)?;
        match which {
            8 if (0..=SHARED_BYTES_ON_REQUEST - found.ready.shared_bytes).contains(&value) => {
                found.dynamic_bytes = value;
                Ok(())
            }
            // How the memory of a multiprocessor is divided: a hint.
            9 if (-1..=100).contains(&value) => Ok(()),
            _ => Err(INVALID_VALUE),
        }
    }

    fn cuFuncSetCacheConfig(driver, function: Handle, _config: u32) {
        // A hint.
        function_of(driver, function).map(drop)
    }

    fn cuLaunchKernel(
        driver,
        function: Handle,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        shared: u32,
        stream: Handle,
        params: Params,
        extra: usize,
    ) {
        if extra != 0 {
            return Err(NOT_SUPPORTED);
        }
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        launch(driver, function, grid, block, shared, stream, params)
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(driver, to: Out<i32>, function: Handle, threads: i32, dynamic: usize) {
        to.put(blocks_at_once(function_of(driver, function)?, threads, dynamic)?)
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        driver,
        to: Out<i32>,
        function: Handle,
        threads: i32,
        dynamic: usize,
        _flags: u32,
    ) {
        to.put(blocks_at_once(function_of(driver, function)?, threads, dynamic)?)
    }
}

/// Options that a caller passes, one after the other.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Options<T>(*const T);

impl<T: Copy> Options<T> {
    fn at(self, at: usize) -> Result<T, Code> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller says how many there are, and only those are asked for.
        Ok(unsafe { self.0.add(at).read() })
    }
}

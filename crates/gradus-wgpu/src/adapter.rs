//! Adapters: what wgpu finds on this machine, and a device opened on one of them.

use gradus_backend::{Error, ErrorKind, Result};

/// The features that the backend or a user's compute module uses if an adapter offers them; all others stay off.
const WANTED: wgpu::Features = wgpu::Features::SHADER_F64
    .union(wgpu::Features::SHADER_INT64)
    .union(wgpu::Features::SHADER_F16)
    .union(wgpu::Features::SUBGROUP)
    .union(wgpu::Features::IMMEDIATES);

/// An adapter that [`WgpuBackend::open`](crate::WgpuBackend::open) can open.
#[derive(Debug, Clone)]
pub struct AdapterSummary {
    /// Its number, the argument of `open`.
    pub index: usize,
    /// The name of the hardware.
    pub name: String,
    /// The graphics interface: `vulkan`, `metal` or `dx12`.
    pub interface: String,
    /// The kind of hardware, such as a discrete GPU, an integrated GPU or a processor.
    pub kind: String,
    /// Name and version of the driver.
    pub driver: String,
}

/// The adapters of this machine, in wgpu's order. Without a driver the list is empty.
pub fn adapters() -> Vec<AdapterSummary> {
    let summary = |(index, adapter): (usize, wgpu::Adapter)| {
        let info = adapter.get_info();
        AdapterSummary {
            index,
            name: info.name,
            interface: info.backend.to_str().to_owned(),
            kind: format!("{:?}", info.device_type),
            driver: format!("{} {}", info.driver, info.driver_info).trim().to_owned(),
        }
    };
    all_adapters().into_iter().enumerate().map(summary).collect()
}

fn all_adapters() -> Vec<wgpu::Adapter> {
    let backends = wgpu::Backends::VULKAN | wgpu::Backends::METAL | wgpu::Backends::DX12;
    let descriptor = wgpu::InstanceDescriptor { backends, ..wgpu::InstanceDescriptor::new_without_display_handle() };
    let instance = wgpu::Instance::new(descriptor);
    let mut adapters = pollster::block_on(instance.enumerate_adapters(backends));
    adapters.retain(|a| a.get_downlevel_capabilities().flags.contains(wgpu::DownlevelFlags::COMPUTE_SHADERS));
    adapters
}

/// The adapter that `GRADUS_WGPU_ADAPTER` names, by number or by a part of its name; 0 if it is not set.
pub fn chosen() -> Result<usize> {
    let wanted = match std::env::var("GRADUS_WGPU_ADAPTER") {
        Ok(v) if !v.trim().is_empty() => v.trim().to_lowercase(),
        Err(std::env::VarError::NotUnicode(_)) => {
            return Err(Error::argument("wgpu", "GRADUS_WGPU_ADAPTER is not Unicode"));
        }
        _ => return Ok(0),
    };
    let all = adapters();
    matching(&wanted, &all)
}

/// The adapter named by a lower-case text; a number is always an index, never part of a name.
fn matching(wanted: &str, all: &[AdapterSummary]) -> Result<usize> {
    let found = match wanted.parse() {
        Ok(n) => Some(n).filter(|&n: &usize| n < all.len()),
        Err(_) => all.iter().position(|a| a.name.to_lowercase().contains(wanted)),
    };
    found.ok_or_else(|| {
        let m = format!("GRADUS_WGPU_ADAPTER is {wanted:?}, which no adapter is called");
        Error::new(ErrorKind::Unsupported, "wgpu", m).help(known(all))
    })
}

fn known(all: &[AdapterSummary]) -> String {
    if all.is_empty() {
        return "no adapter was found; install a Vulkan driver, for example Mesa's (mesa-vulkan-drivers)".to_owned();
    }
    let names: Vec<_> = all.iter().map(|a| format!("{} ({}, {})", a.index, a.name, a.interface)).collect();
    format!("the adapters are {}", names.join(", "))
}

/// A device, and what is known about its adapter.
pub(crate) struct Opened {
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    pub(crate) info: wgpu::AdapterInfo,
    pub(crate) features: wgpu::Features,
    pub(crate) limits: wgpu::Limits,
}

/// Opens adapter number `index` with every feature that the backend can use except `without`, and with the adapter's
/// limits.
pub(crate) fn open(index: usize, without: wgpu::Features) -> Result<Opened> {
    let Some(adapter) = all_adapters().into_iter().nth(index) else {
        let m = format!("there is no adapter number {index}");
        return Err(Error::new(ErrorKind::Unsupported, "wgpu", m).help(known(&adapters())));
    };
    let features = (adapter.features() & WANTED) - without;
    request(index, &adapter, features)
}

fn request(index: usize, adapter: &wgpu::Adapter, features: wgpu::Features) -> Result<Opened> {
    let limits = adapter.limits();
    let descriptor = wgpu::DeviceDescriptor {
        label: Some("gradus"),
        required_features: features,
        required_limits: limits.clone(),
        ..Default::default()
    };
    let (device, queue) = pollster::block_on(adapter.request_device(&descriptor)).map_err(|e| {
        let m = format!("adapter {index} ({}) gives no device: {e}", adapter.get_info().name);
        Error::new(ErrorKind::Backend, "wgpu", m)
    })?;
    Ok(Opened { device, queue, info: adapter.get_info(), features, limits })
}

/// A device without hardware: it validates requests, including kernels, and executes nothing.
#[cfg(test)]
pub(crate) fn open_nothing() -> Result<Opened> {
    let backend_options = wgpu::BackendOptions {
        noop: wgpu::NoopBackendOptions { enable: true, ..Default::default() },
        ..Default::default()
    };
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor {
        backends: wgpu::Backends::NOOP,
        backend_options,
        ..wgpu::InstanceDescriptor::new_without_display_handle()
    });
    let adapters = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::NOOP));
    let adapter = adapters.first().ok_or_else(|| Error::argument("wgpu", "wgpu was built without its noop backend"))?;
    request(0, adapter, WANTED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_adapter_is_named_by_its_number_or_a_part_of_its_name() {
        let named = |(index, name): (usize, &str)| AdapterSummary {
            index,
            name: name.to_owned(),
            interface: String::new(),
            kind: String::new(),
            driver: String::new(),
        };
        let all: Vec<_> = ["Radeon RX 9070", "GeForce"].into_iter().enumerate().map(named).collect();
        assert_eq!(matching("1", &all).expect("a number"), 1);
        assert_eq!(matching("rx 9", &all).expect("a name"), 0);
        for none in ["9", "2", "arc"] {
            let error = matching(none, &all).expect_err("no such adapter");
            assert!(error.kind() == &ErrorKind::Unsupported && error.to_string().contains("GeForce"), "{error}");
        }
    }
}

//! Finds the adapters of this machine through wgpu, and opens devices on them.

use gradus_backend::{Error, ErrorKind, Result};

/// The features that the backend or a user's compute module uses if an adapter offers them; all others stay off.
const WANTED: wgpu::Features = wgpu::Features::SHADER_F64
    .union(wgpu::Features::SHADER_INT64)
    .union(wgpu::Features::SHADER_F16)
    .union(wgpu::Features::SUBGROUP)
    .union(wgpu::Features::IMMEDIATES);

/// How much of an adapter a device uses. The smaller profiles show, on any machine, how a program behaves on less
/// capable adapters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// Every feature that the backend can use and the adapter offers, with the adapter's own limits.
    Full,
    /// Like `Full`, but without 64-bit types in shaders, which Macs, Intel's GPUs and most phones lack.
    No64,
    /// What every adapter supports: no optional features, and WebGPU's default limits (8 storage buffers in a kernel,
    /// buffers of 256 MiB, bindings of 128 MiB).
    Core,
}

impl Profile {
    /// All profiles, the largest first.
    pub const ALL: [Profile; 3] = [Profile::Full, Profile::No64, Profile::Core];

    /// The optional features that a device with this profile may use.
    fn features(self) -> wgpu::Features {
        match self {
            Profile::Full => WANTED,
            Profile::No64 => WANTED - wgpu::Features::SHADER_F64 - wgpu::Features::SHADER_INT64,
            Profile::Core => wgpu::Features::empty(),
        }
    }

    /// The profile's name: `full`, `no64` or `core`.
    pub fn name(self) -> &'static str {
        match self {
            Profile::Full => "full",
            Profile::No64 => "no64",
            Profile::Core => "core",
        }
    }

    /// The profile that the environment variable `GRADUS_WGPU_PROFILE` names, or [`Full`](Profile::Full) if it is not
    /// set. Any other value is an error.
    pub fn chosen() -> Result<Profile> {
        let Some(wanted) = setting("GRADUS_WGPU_PROFILE")? else { return Ok(Profile::Full) };
        Profile::ALL.into_iter().find(|p| p.name() == wanted).ok_or_else(|| {
            let m = format!("GRADUS_WGPU_PROFILE is {wanted:?}, which is no profile of adapters");
            Error::argument("wgpu", m).help("the profiles are full, no64 and core")
        })
    }
}

/// The value of an environment variable, trimmed and in lower case; `None` if it is not set or blank.
fn setting(name: &str) -> Result<Option<String>> {
    match std::env::var(name) {
        Ok(v) => Ok(Some(v.trim().to_lowercase()).filter(|v| !v.is_empty())),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(_) => Err(Error::argument("wgpu", format!("{name} is not Unicode"))),
    }
}

/// An adapter that [`WgpuBackend::open`](crate::WgpuBackend::open) can open.
#[derive(Debug, Clone)]
pub struct AdapterSummary {
    /// The adapter's number, which `open` takes.
    pub index: usize,
    /// The name of the hardware.
    pub name: String,
    /// The graphics interface: `vulkan`, `metal` or `dx12`.
    pub interface: String,
    /// The kind of hardware, such as a discrete GPU, an integrated GPU or a processor.
    pub kind: String,
    /// The name and version of the driver.
    pub driver: String,
}

/// The adapters of this machine, in wgpu's order. The list is empty if no driver is installed.
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

/// The number of the adapter that the environment variable `GRADUS_WGPU_ADAPTER` selects, by number or by part of its
/// name; 0 if it is not set.
pub fn chosen() -> Result<usize> {
    let Some(wanted) = setting("GRADUS_WGPU_ADAPTER")? else { return Ok(0) };
    let all = adapters();
    matching(&wanted, &all)
}

/// The number of the adapter that `wanted`, a text in lower case, selects. A number is always an index, never part of a
/// name.
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

/// A device and its queue, with the adapter's description and the features and limits that were requested.
pub(crate) struct Opened {
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    pub(crate) info: wgpu::AdapterInfo,
    pub(crate) features: wgpu::Features,
    pub(crate) limits: wgpu::Limits,
}

/// The features that kernels do without on this adapter. Sums through subgroups need full subgroups of one size, which
/// an adapter that chooses among sizes does not promise.
pub(crate) fn unused(info: &wgpu::AdapterInfo) -> wgpu::Features {
    let fixed = info.subgroup_min_size == info.subgroup_max_size && info.subgroup_max_size <= 64;
    if fixed { wgpu::Features::empty() } else { wgpu::Features::SUBGROUP }
}

/// Opens adapter number `index` with the features and limits that the profile allows.
pub(crate) fn open(index: usize, profile: Profile) -> Result<Opened> {
    let Some(adapter) = all_adapters().into_iter().nth(index) else {
        let m = format!("there is no adapter number {index}");
        return Err(Error::new(ErrorKind::Unsupported, "wgpu", m).help(known(&adapters())));
    };
    let limits = if profile == Profile::Core { wgpu::Limits::default() } else { adapter.limits() };
    request(index, &adapter, adapter.features() & profile.features(), limits)
}

fn request(index: usize, adapter: &wgpu::Adapter, features: wgpu::Features, limits: wgpu::Limits) -> Result<Opened> {
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
pub(crate) fn open_nothing(profile: Profile) -> Result<Opened> {
    let backend_options = wgpu::BackendOptions {
        noop: wgpu::NoopBackendOptions {
            enable: true,
            // Of one size, so that kernels use them.
            subgroup_min_size: Some(32),
            subgroup_max_size: Some(32),
            ..Default::default()
        },
        ..Default::default()
    };
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor {
        backends: wgpu::Backends::NOOP,
        backend_options,
        ..wgpu::InstanceDescriptor::new_without_display_handle()
    });
    let adapters = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::NOOP));
    let adapter = adapters.first().ok_or_else(|| Error::argument("wgpu", "wgpu was built without its noop backend"))?;
    let limits = if profile == Profile::Core { wgpu::Limits::default() } else { adapter.limits() };
    request(0, adapter, profile.features(), limits)
}

/// Opens one device for each optional feature of the chosen adapter, with only that feature left out. Yields nothing if
/// there is no adapter.
#[cfg(test)]
pub(crate) fn open_without_each() -> impl Iterator<Item = (wgpu::Features, Opened)> {
    let adapter = all_adapters().into_iter().nth(chosen().expect("an adapter"));
    let offered = adapter.as_ref().map_or(wgpu::Features::empty(), |adapter| adapter.features() & WANTED);
    offered.iter().filter_map(move |missing| {
        let adapter = adapter.as_ref()?;
        Some((missing, request(0, adapter, offered - missing, adapter.limits()).expect("a device")))
    })
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

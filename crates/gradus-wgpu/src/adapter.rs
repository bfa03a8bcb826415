//! Adapters: what wgpu finds on this machine, and a device opened on one of them.

use gradus_backend::{Error, ErrorKind, Result};

/// The features that the backend or a user's compute module uses if an adapter offers them; all others stay off.
const WANTED: wgpu::Features = wgpu::Features::SHADER_F64
    .union(wgpu::Features::SHADER_INT64)
    .union(wgpu::Features::SHADER_F16)
    .union(wgpu::Features::SUBGROUP)
    .union(wgpu::Features::IMMEDIATES);

/// How much of an adapter a device uses. The smaller ones show on any machine how a program behaves on other adapters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// All that the adapter has.
    Full,
    /// Everything but 64-bit types in shaders, as on Macs, Intel's GPUs and most phones.
    No64,
    /// What every adapter has: no optional feature, and WebGPU's default limits (8 storage buffers in a kernel, buffers of
    /// 256 MiB, bindings of 128 MiB).
    Core,
}

impl Profile {
    /// All profiles, the largest first.
    pub const ALL: [Profile; 3] = [Profile::Full, Profile::No64, Profile::Core];

    /// The features that it uses.
    fn features(self) -> wgpu::Features {
        match self {
            Profile::Full => WANTED,
            Profile::No64 => WANTED - wgpu::Features::SHADER_F64 - wgpu::Features::SHADER_INT64,
            Profile::Core => wgpu::Features::empty(),
        }
    }

    /// `full`, `no64` or `core`.
    pub fn name(self) -> &'static str {
        match self {
            Profile::Full => "full",
            Profile::No64 => "no64",
            Profile::Core => "core",
        }
    }

    /// The profile that `GRADUS_WGPU_PROFILE` names; [`Full`](Profile::Full) if it is not set. An error if it is
    /// something else.
    pub fn chosen() -> Result<Profile> {
        let Some(wanted) = setting("GRADUS_WGPU_PROFILE")? else { return Ok(Profile::Full) };
        Profile::ALL.into_iter().find(|p| p.name() == wanted).ok_or_else(|| {
            let m = format!("GRADUS_WGPU_PROFILE is {wanted:?}, which is no profile of adapters");
            Error::argument("wgpu", m).help("the profiles are full, no64 and core")
        })
    }
}

/// What an environment variable says, trimmed and in lower case; nothing if it is not set or empty.
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
    let Some(wanted) = setting("GRADUS_WGPU_ADAPTER")? else { return Ok(0) };
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

/// Opens adapter number `index` with the features that the backend can use and the limits, as far as the profile has them.
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
    let limits = if profile == Profile::Core { wgpu::Limits::default() } else { adapter.limits() };
    request(0, adapter, profile.features(), limits)
}

/// A device for each feature that the chosen adapter has and the device does not use. Nothing without an adapter.
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

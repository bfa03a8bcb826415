//! The WebGPU backend of Gradus. It generates WGSL, which wgpu runs on Vulkan, Metal and DX12.
//!
//! This crate is part of [Gradus](https://docs.rs/gradus). Depend on the crate `gradus` instead: only its API is kept
//! stable between releases.
//!
//! [`WgpuBackend`] implements [`Backend`](gradus_backend::Backend). `adapter` finds and opens devices, `pool` owns
//! buffers, `queue` collects launches into submissions and caches compiled kernels, `faults` holds what
//! wgpu reports, `operand` turns views into bindings, and `wgsl` writes the text of kernels. Each
//! operation, or family of operations, has its own module.
//!
//! Work is asynchronous: an operation returns once it is queued, and only reads wait. An index out of range or an
//! integer division by zero is found later. It spoils what the operation wrote and everything computed from that. Each
//! [`download`](gradus_backend::Backend::download) of a spoiled buffer fails with the operation's name and line, until
//! the whole buffer is overwritten. Other buffers are not affected.
//! [`synchronize`](gradus_backend::Backend::synchronize) returns the errors that no read has returned yet.

mod adapter;
mod arange;
mod attention;
mod attention_backward;
mod attention_tile;
mod avg_pool;
mod backend;
mod compute;
mod conv;
mod faults;
mod gemm;
mod index;
mod kept;
mod lines;
mod map;
mod max_pool;
mod nesting;
mod operand;
mod pool;
mod program;
mod queue;
mod random;
mod reduce;
mod rows;
mod scan;
mod sort;
mod temp;
mod tile;
mod transfer;
mod transpose;
mod wgsl;
mod window;

use std::sync::{Arc, OnceLock};

use gradus_backend::compute::Modules;
use gradus_backend::{DType, Kernel, Result};

pub use adapter::{AdapterSummary, Profile, adapters, chosen};
pub use queue::Counters;

use faults::Faults;
use pool::Pool;
use queue::Queue;

/// A device that is opened on an adapter of this machine.
///
/// f64 is supported if the adapter has `SHADER_F64` and `SHADER_INT64`; all other dtypes are supported by every adapter.
#[derive(Debug)]
pub struct WgpuBackend {
    label: String,
    hardware: String,
    driver: String,
    interface: &'static str,
    features: wgpu::Features,
    /// Whether the adapter is a driver that runs on the processor.
    is_software: bool,
    queue: Queue,
    pool: Arc<Pool>,
    identities: [[OnceLock<Kernel>; DType::ALL.len()]; 2],
    modules: Modules<program::Program>,
}

impl WgpuBackend {
    /// Opens adapter number `index` of those that [`adapters`] lists.
    ///
    /// Fails if there is no such adapter, or if it cannot be opened.
    pub fn open(index: usize) -> Result<Self> {
        Self::open_as(index, Profile::Full)
    }

    /// Opens adapter number `index`, and uses no more of it than the profile allows.
    ///
    /// Fails in the same cases as [`open`](Self::open).
    pub fn open_as(index: usize, profile: Profile) -> Result<Self> {
        Ok(Self::of(index, &adapter::open(index, profile)?))
    }

    fn of(index: usize, opened: &adapter::Opened) -> Self {
        let faults = Arc::new(Faults::default());
        let label = format!("wgpu:{index}");
        let largest = opened.limits.max_buffer_size;
        let pool = Pool::new(opened.device.clone(), label.clone(), largest, faults.clone());
        let queue = Queue::new(opened, faults, pool.clone());
        WgpuBackend {
            label,
            hardware: opened.info.name.clone(),
            driver: format!("{} {}", opened.info.driver, opened.info.driver_info),
            interface: opened.info.backend.to_str(),
            features: opened.features - adapter::unused(&opened.info),
            is_software: opened.info.device_type == wgpu::DeviceType::Cpu,
            queue,
            pool,
            identities: Default::default(),
            modules: Modules::new(),
        }
    }

    /// Counts of submissions and launches, of the pipelines, bind groups and buffers created, and of bytes moved.
    pub fn counters(&self) -> Counters {
        let made = self.pool.stats().system_allocations;
        let counters = self.queue.counters();
        Counters { buffers: counters.buffers + made, ..counters }
    }

    /// Whether the device is lost and has to be opened again.
    pub fn is_lost(&self) -> bool {
        self.queue.faults.is_lost()
    }

    /// Destroys the device. Every later call fails with an error of kind
    /// [`Backend`](gradus_backend::ErrorKind::Backend).
    pub fn close(&self) {
        self.queue.destroy();
    }

    pub(crate) fn queue(&self) -> &Queue {
        &self.queue
    }

    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Allocates a buffer of `bytes` bytes. Its contents are initialised, but unspecified.
    pub(crate) fn allocate(&self, bytes: usize) -> Result<gradus_backend::Buffer> {
        self.pool.alloc(bytes, || self.queue.reclaim())
    }

    pub(crate) fn label(&self) -> &str {
        &self.label
    }

    /// The number of buffers that a kernel can bind, besides its parameters.
    pub(crate) fn most_bindings(&self) -> usize {
        self.queue.limits.max_storage_buffers_per_shader_stage as usize
    }

    /// The feature that a dtype needs and this adapter lacks, if any.
    pub(crate) fn missing(&self, dtype: DType) -> Option<&'static str> {
        let has = |f| self.features.contains(f);
        match dtype {
            DType::F64 if !has(wgpu::Features::SHADER_F64) => Some("SHADER_F64"),
            DType::F64 if !has(wgpu::Features::SHADER_INT64) => Some("SHADER_INT64"),
            _ => None,
        }
    }

    /// Fails with an error that names the missing feature if this adapter does not support the dtype.
    pub(crate) fn check_dtype(&self, op: &str, dtype: DType) -> Result<()> {
        if self.missing(dtype).is_none() { Ok(()) } else { Err(gradus_backend::Backend::unsupported(self, op, dtype)) }
    }

    /// The kernel that returns its argument. `name` is `copy_strided` or `fill`.
    pub(crate) fn identity(&self, name: &'static str, dtype: DType) -> Result<&Kernel> {
        let cell = &self.identities[usize::from(name == "fill")][dtype as usize];
        if let Some(kernel) = cell.get() {
            return Ok(kernel);
        }
        let builder = gradus_backend::KernelBuilder::new(&[dtype]);
        let kernel = builder.finish(name, &[(builder.args()[0], dtype)])?;
        Ok(cell.get_or_init(|| kernel))
    }
}

#[cfg(test)]
mod tests {
    use naga::valid::{Capabilities, ValidationFlags, Validator};
    use naga::{ShaderStage, back};

    use super::*;

    /// Translates a kernel into the shading language of each graphics API. The error says which translation failed, and why.
    fn translated(text: &str) -> std::result::Result<(), String> {
        let module = naga::front::wgsl::parse_str(text).map_err(|e| e.emit_to_string(text))?;
        let mut validator = Validator::new(ValidationFlags::all(), Capabilities::SUBGROUP);
        validator.subgroup_stages(naga::valid::ShaderStages::COMPUTE);
        validator.subgroup_operations(naga::valid::SubgroupOperationSet::all());
        let info = validator.validate(&module).map_err(|e| format!("{e:?}"))?;
        let failed = |language: &str, e: &dyn std::fmt::Display| format!("{language}: {e}");
        let (options, kernel) = Default::default();
        let mut metal = back::msl::Writer::new(String::new());
        metal.write(&module, &info, &options, &kernel).map_err(|e| failed("MSL", &e))?;
        // Shader model 6, which is the first with subgroups.
        let options = back::hlsl::Options { shader_model: back::hlsl::ShaderModel::V6_0, ..Default::default() };
        let (kernel, mut out) = (Default::default(), String::new());
        let mut direct = back::hlsl::Writer::new(&mut out, &options, &kernel);
        direct.write(&module, &info, None).map_err(|e| failed("HLSL", &e))?;
        // GLSL ES 3.10.
        let options = back::glsl::Options::default();
        let kernel = back::glsl::PipelineOptions {
            shader_stage: ShaderStage::Compute,
            entry_point: "main".to_owned(),
            multiview: None,
        };
        let policies = Default::default();
        let mut out = String::new();
        let writer = back::glsl::Writer::new(&mut out, &module, &info, &options, &kernel, policies);
        writer.and_then(|mut w| w.write()).map_err(|e| failed("GLSL", &e))?;
        back::spv::write_vec(&module, &info, &Default::default(), None).map_err(|e| failed("SPIR-V", &e)).map(|_| ())
    }

    #[test]
    fn kernels_that_every_adapter_runs_translate_into_every_language() {
        let of = |profile: Profile, run: &dyn Fn(&WgpuBackend)| {
            let backend = WgpuBackend::of(0, &adapter::open_nothing(profile).expect("wgpu's own device"));
            run(&backend);
            backend.queue().texts()
        };
        let mut texts = of(Profile::Core, &|b| drop(gradus_conformance::brief(b)));
        assert!(texts.iter().all(|t| !t.contains("subgroup")));
        // Many adapters have subgroups, too.
        let more = of(Profile::No64, &|b| drop(gradus_conformance::brief(b)));
        let before = texts.len();
        texts.extend(more.into_iter().filter(|t| t.contains("subgroup")));
        assert!(texts.len() > before + 20, "only {} kernels with subgroups", texts.len() - before);
        let wrong: Vec<_> = texts.iter().filter_map(|t| translated(t).err().map(|e| format!("{e}\n{t}"))).collect();
        assert!(wrong.is_empty(), "{} of {}, first {}", wrong.len(), texts.len(), wrong[0]);
        assert!(texts.len() > 1000, "only {} kernels", texts.len());
    }

    #[test]
    fn kernels_of_every_case_of_the_suite_are_valid_without_a_device() {
        let backend = WgpuBackend::of(0, &adapter::open_nothing(Profile::Full).expect("wgpu's own device"));
        // Each case runs in one layout only. On an adapter, the whole suite also compiles the kernels for other
        // layouts, in the dtypes that the adapter supports.
        let report = gradus_conformance::brief(&backend);
        // Results are not computed, so cases fail; but none may fail because wgpu's validation rejects a kernel.
        let refused =
            |f: &&gradus_conformance::Failure| f.detail.contains("does not compile") || f.detail.contains("Validation");
        let refused: Vec<_> = report.failures.iter().filter(refused).collect();
        assert!(refused.is_empty(), "{} of {}, first {}", refused.len(), report.cases, refused[0]);
        assert!(report.skipped == 0 && backend.counters().pipelines > 1000, "{:?}", backend.counters());
    }

    #[test]
    fn each_feature_of_an_adapter_may_be_missing() {
        for (missing, opened) in adapter::open_without_each() {
            let backend = WgpuBackend::of(0, &opened);
            // Other tests run the whole suite with each profile. Here, it is enough that kernels of every dtype compile
            // and run.
            let report = gradus_conformance::only(&backend, "softmax/");
            let of_64_bits = wgpu::Features::SHADER_F64 | wgpu::Features::SHADER_INT64;
            assert!(report.passed() && (report.skipped > 0) == of_64_bits.contains(missing), "{missing:?}: {report}");
        }
    }
}

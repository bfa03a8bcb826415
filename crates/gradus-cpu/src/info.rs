//! The information that the backend reports about the machine.

use gradus_backend::{BackendInfo, BackendKind};

use crate::CpuBackend;
use crate::gemm::Real;

/// Reports the name, processor, memory, instruction set and threads.
pub(crate) fn info(cpu: &CpuBackend) -> BackendInfo {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    BackendInfo {
        name: "cpu".to_owned(),
        kind: BackendKind::Cpu,
        hardware: processor().unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
        memory: memory(),
        features: vec![
            format!("isa={}", cpu.isa().level().name()),
            format!("cores={cores}"),
            format!("threads={}", cpu.threads().count()),
        ],
        f32_panel: Some(f32::panel(cpu.isa())),
    }
}

/// The processor's name, if the system reports it.
fn processor() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|l| l.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// Bytes of main memory, if the system reports them.
fn memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|l| l.starts_with("MemTotal:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    kib.checked_mul(1024)
}

//! How a process that a launcher of MPI started finds the others, and its device.

use std::sync::Arc;

use gradus::dist::{Communicator, Options, mpi};
use gradus::prelude::*;

use crate::args::Common;
use crate::commands::mpi::{DEADLINE, announced};
use crate::output;

/// The environment variables in which launchers give the number of processes on this machine, and of this one among them.
const HERE: [&str; 2] = ["OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"];
#[cfg(feature = "cuda")]
const RANK_HERE: [&str; 3] = ["OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"];

/// The communicator of all ranks, and the device of this one.
pub(super) fn connect(common: &Common) -> Result<(Arc<dyn Communicator>, Device)> {
    let comm = connected()?;
    output::of_rank(comm.rank());
    let device = crate::commands::open(&device_of_rank(&common.device)?, threads(common.threads))?;
    Ok((between_gpus(comm, &device, common)?, device))
}

/// The number of threads of the CPU: the ranks of a machine share its cores.
pub(in crate::commands) fn threads(asked: Option<usize>) -> Option<usize> {
    if asked.is_some() || std::env::var_os("GRADUS_NUM_THREADS").is_some() {
        return asked;
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Some((cores / announced(&HERE).unwrap_or(1).max(1)).max(1))
}

/// The communicator of all ranks.
fn connected() -> Result<Arc<dyn Communicator>> {
    let mut options = Options::default();
    if let Ok(text) = std::env::var(DEADLINE) {
        let seconds = text.parse().ok().filter(|&seconds: &u32| seconds > 0);
        let wrong = || Error::argument("train", format!("{DEADLINE} is {text:?}; it is a whole number of seconds"));
        options.deadline = std::time::Duration::from_secs(seconds.ok_or_else(wrong)?.into());
    }
    mpi::world(options)
}

/// The device of this rank: of `cuda` without a number, each rank of a machine takes the next.
#[cfg(feature = "cuda")]
fn device_of_rank(name: &str) -> Result<String> {
    if name != "cuda" {
        return Ok(name.to_owned());
    }
    let gpus = gradus::cuda::devices()?.len().max(1);
    Ok(format!("cuda:{}", announced(&RANK_HERE).unwrap_or(0) % gpus))
}

#[cfg(not(feature = "cuda"))]
fn device_of_rank(name: &str) -> Result<String> {
    Ok(name.to_owned())
}

/// The communicator for what is on GPUs: that of NCCL, if all ranks can use it.
#[cfg(feature = "nccl")]
fn between_gpus(comm: Arc<dyn Communicator>, device: &Device, common: &Common) -> Result<Arc<dyn Communicator>> {
    use gradus::dist::nccl;

    // All ranks have the same --device, so that all of them come here, or none.
    if !common.device.starts_with("cuda") {
        return Ok(comm);
    }
    match nccl::over(&comm, device, nccl::Reduction::Tree) {
        Err(e) if *e.kind() == ErrorKind::Unsupported => {
            output::complain(&format!(
                "note: the ranks exchange tensors through the host, since NCCL cannot be used: {e}"
            ));
            Ok(comm)
        }
        over => over,
    }
}

#[cfg(not(feature = "nccl"))]
fn between_gpus(comm: Arc<dyn Communicator>, _: &Device, common: &Common) -> Result<Arc<dyn Communicator>> {
    if common.device.starts_with("cuda") && comm.size() > 1 {
        output::complain(
            "note: the ranks exchange tensors through the host; built with --features nccl, they use NCCL",
        );
    }
    Ok(comm)
}

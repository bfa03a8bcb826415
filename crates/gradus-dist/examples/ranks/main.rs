//! What `cargo xtask dist` runs on several ranks. Each rank writes its outcome to `FOLDER/rank-N`.
//!
//! ```text
//! mpirun -n 4 ranks FOLDER train digits|gpt|resnet STEPS [save|resume] [divide|shard] [captured]
//! mpirun -n 4 ranks FOLDER pipeline STEPS PIPELINES eager|captured [fail]
//! mpirun -n 4 ranks FOLDER mesh
//! mpirun -n 4 ranks FOLDER trouble kill|stop|other|leave RANK CALL [captured] SECONDS
//! mpirun -n 4 ranks FOLDER speed
//! mpirun -n 4 ranks FOLDER step
//! ```
#![allow(clippy::print_stdout)]

mod mesh;
mod pipeline;
mod speed;
mod train;
mod trouble;

use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use gradus_cpu::CpuBackend;
use gradus_dist::{Communicator, Options, mpi};
use gradus_tensor::{Device, Error, Result};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let deadline = match arguments[..] {
        [_, "trouble", .., seconds] => seconds.parse().unwrap_or(60.0),
        _ => 60.0,
    };
    let options = Options { deadline: Duration::from_secs_f64(deadline) };
    let (comm, device) = match mpi::world(options).and_then(|comm| Ok((comm, device()?))) {
        Ok(both) => both,
        Err(e) => {
            println!("{e}");
            return ExitCode::FAILURE;
        }
    };
    let rank = comm.rank();
    let outcome = run(&arguments, &comm, &device);
    drop(comm);
    let (text, code) = match outcome {
        Ok(text) => (text, ExitCode::SUCCESS),
        Err(e) => (format!("error {e}\n"), ExitCode::FAILURE),
    };
    if let Some(folder) = arguments.first()
        && let Err(e) = std::fs::write(Path::new(folder).join(format!("rank-{rank}")), text)
    {
        println!("{folder}: {e}");
        return ExitCode::FAILURE;
    }
    code
}

fn device() -> Result<Device> {
    Ok(Device::from_backend(Arc::new(CpuBackend::new()?)))
}

fn run(arguments: &[&str], comm: &Arc<dyn Communicator>, device: &Device) -> Result<String> {
    match *arguments {
        [folder, "train", model, steps, ref rest @ ..] => {
            let [save, resume] = ["save", "resume"].map(|word| rest.contains(&word).then(|| Path::new(folder)));
            let [divides, shards, captured] = ["divide", "shard", "captured"].map(|word| rest.contains(&word));
            let how = train::How { save, resume, divides, shards, captured };
            train::run(comm, device, model, number(steps)?, &how)
        }
        [_, "pipeline", steps, pipelines, ref rest @ ..] => {
            let [captured, fails] = ["captured", "fail"].map(|word| rest.contains(&word));
            pipeline::run(comm, device, number(steps)?, number(pipelines)?, captured, fails)
        }
        [_, "trouble", how, rank, call, ref rest @ ..] => {
            trouble::run(comm, device, how, (number(rank)?, number(call)?), rest.contains(&"captured"))
        }
        [_, "mesh"] => mesh::run(comm, device),
        [_, "speed"] => speed::run(comm, device),
        [_, "step"] => speed::step(comm, device),
        _ => Err(Error::argument("ranks", format!("no such run: {}", arguments.join(" ")))),
    }
}

fn number(text: &str) -> Result<usize> {
    text.parse().map_err(|_| Error::argument("ranks", format!("{text} is no number")))
}

/// The hash of no bytes.
const EMPTY: u64 = 0xcbf2_9ce4_8422_2325;

/// A hash of the bytes after those of another one (FNV-1a).
fn hash(before: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(before, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// Appends a line to a text.
fn line(text: &mut String, line: impl std::fmt::Display) {
    // Writing to a string does not fail.
    let _ = writeln!(text, "{line}");
}

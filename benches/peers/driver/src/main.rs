//! `cargo xtask peers`: the same jobs on Gradus and on other libraries, in one run on one machine.
//!
//! For each job every peer first gives its result, which must agree with PyTorch's in f64; whoever is wrong is listed and
//! not timed. Then the peers take turns: in each round each one runs for a slice of time in a fresh process. A time is the
//! median of the rounds' medians. The run writes `target/peers.json` and `target/peers.md`.

mod arguments;
mod machine;
mod peers;
mod python;
mod table;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use peer_harness::{Job, agrees, jobs};

use arguments::Arguments;
use peers::{Program, Slice};
use table::{Cell, Row};

/// The root of the product's repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(3).map(Path::to_path_buf).unwrap_or_default()
}

/// What all peers make of one job.
fn measure(job: &Job, programs: &[Program], reference: &Program, arguments: &Arguments) -> Result<Row, String> {
    let truth = reference.run(job.name, 0.0).map_err(|e| format!("{}: the reference: {e}", job.name))?;
    let check = |slice: Slice| match (&slice.absent, &slice.failed) {
        (Some(reason), _) => Err(Cell::Absent(reason.clone())),
        (_, Some(reason)) => Err(Cell::Failed(reason.clone())),
        _ => match agrees(&slice.probes, &truth.probes, job.tolerance) {
            Ok(()) => Ok(slice),
            Err(reason) => Err(Cell::Wrong(reason)),
        },
    };
    let once = |program: &Program, seconds: f64| {
        let failed = |reason| Slice { failed: Some(reason), ..Slice::default() };
        check(program.run(job.name, seconds).unwrap_or_else(failed))
    };
    // A cell stays empty as long as its peer takes part.
    let mut cells: Vec<Option<Cell>> = programs.iter().map(|program| once(program, 0.0).err()).collect();
    let mut slices: Vec<Vec<Slice>> = programs.iter().map(|_| Vec::new()).collect();
    for round in 0..arguments.rounds {
        for turn in 0..programs.len() {
            // Each round begins with another peer.
            let i = (round + turn) % programs.len();
            if cells[i].is_none() {
                match once(&programs[i], arguments.seconds / arguments.rounds as f64) {
                    Ok(slice) => slices[i].push(slice),
                    Err(cell) => cells[i] = Some(cell),
                }
            }
        }
    }
    let cells =
        cells.into_iter().zip(slices).map(|(cell, slices)| cell.unwrap_or_else(|| Cell::time(&slices))).collect();
    Ok(Row { job: job.clone(), cells })
}

fn run() -> Result<(), String> {
    let arguments = Arguments::read(std::env::args().skip(1))?;
    let root = root();
    let wanted: Vec<Job> = jobs()?.into_iter().filter(|job| arguments.wants_job(job.name)).collect();
    if wanted.is_empty() {
        return Err("no job has such a name; benches/peers/jobs.txt lists them".into());
    }
    let python = python::interpreter(&root, arguments.venv.as_deref())?;
    let programs = peers::programs(&root, &python, |name| arguments.wants_peer(name))?;
    let reference = peers::reference(&root, &python);
    let about = machine::describe(&root, &python, &programs, &arguments)?;
    println!("{about}");
    let mut rows = Vec::new();
    for job in &wanted {
        let row = measure(job, &programs, &reference, &arguments)?;
        println!("{}", table::line(&programs, &row));
        rows.push(row);
        // Written after each job: a run that is stopped leaves what it has.
        table::write(&root, &about, &programs, &rows)?;
    }
    let table = table::markdown(&about, &programs, &rows);
    println!("\n{table}");
    if arguments.write { table::write_page(&root, &table) } else { Ok(()) }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}

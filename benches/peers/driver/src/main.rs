//! `cargo xtask peers`: runs the same jobs on Gradus and on other libraries, in one run on one machine. `cargo xtask
//! bench` (`bench.rs`): runs the same jobs on this build of Gradus and on an earlier one.
//!
//! The peers take turns: in each round, each peer runs a job for a slice of time in a fresh process, which also prints
//! the job's result. The result must agree with PyTorch's in f64; otherwise the peer is listed as wrong and its times
//! are discarded. A peer's time is the median of the medians of its rounds. The run writes `target/peers.json` and
//! `target/peers.md`. The exit code is 1 if something fails and 2 if the command line is invalid.

mod arguments;
mod baseline;
mod bench;
mod git;
mod machine;
mod patience;
mod peers;
mod process;
mod python;
mod record;
mod reference;
mod row;
mod table;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use peer_harness::{Job, Probe, agrees, classes, jobs};

use arguments::Arguments;
use machine::About;
use patience::Patience;
use peers::{Program, Said, Slice};
use reference::Reference;
use row::{Cell, Row};

/// The root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(3).map(Path::to_path_buf).unwrap_or_default()
}

/// Runs one slice of a job on one peer, and compares its result with the reference.
fn turn(program: &Program, job: &Job, truth: &[Probe], seconds: f64) -> Result<Slice, Cell> {
    match program.run(job, seconds) {
        Ok(Said::Slice(slice)) => match agrees(&slice.probes, truth, job.tolerance) {
            Ok(()) => Ok(slice),
            Err(reason) => Err(Cell::Wrong(reason)),
        },
        Ok(Said::Absent(reason)) => Err(Cell::Absent(reason)),
        Err(reason) => Err(Cell::Failed(reason)),
    }
}

/// Measures a job on all peers.
fn measure(job: &Job, programs: &[Program], truth: &[Probe], arguments: &Arguments, patience: &mut Patience) -> Row {
    // Memory hardly varies between processes, and a process that does all jobs takes a long time.
    let rounds = if job.is_all() { 1 } else { arguments.rounds };
    let mut cells: Vec<(&'static str, Cell)> =
        programs.iter().map(|program| (program.name, Cell::Measured(Vec::new()))).collect();
    for round in 0..rounds {
        for place in 0..programs.len() {
            // Each round begins with a different peer.
            let i = (round + place) % programs.len();
            let Cell::Measured(slices) = &mut cells[i].1 else { continue };
            let seconds = arguments.seconds / rounds as f64;
            match patience.quietest(|| turn(&programs[i], job, truth, seconds)) {
                Ok(slice) => slices.push(slice),
                Err(cell) => cells[i].1 = cell,
            }
        }
    }
    Row { job: job.clone(), cells }
}

/// Writes a file below `target`.
fn put(root: &Path, name: &str, text: String) -> Result<(), String> {
    let target = root.join("target");
    std::fs::create_dir_all(&target).map_err(|e| format!("{}: {e}", target.display()))?;
    let path = target.join(name);
    std::fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))
}

fn write(root: &Path, arguments: &Arguments, about: &About, rows: &[Row]) -> Result<(), String> {
    put(root, &arguments.file("peers", "json"), format!("{:#}\n", record::to_json(about.to_json(), rows)))?;
    put(root, &arguments.file("peers", "md"), table::markdown(&about.text(), rows))
}

fn run(arguments: &Arguments) -> Result<(), String> {
    let root = root();
    let (jobs, classes) = (jobs()?, classes()?);
    peers::check_cores()?;
    if arguments.make_reference {
        return reference::make(
            &root,
            &[jobs, classes].concat(),
            python::interpreter(&root, arguments.venv.as_deref()),
        );
    }
    if arguments.growth {
        let ours = peers::programs(&root, &Err("it was not asked for".into()), |name| name == peers::OURS)?;
        return ours.iter().try_for_each(|program| program.growth(arguments.part()));
    }
    let all = if arguments.classes { classes } else { jobs };
    let wanted: Vec<Job> = all.into_iter().filter(|job| arguments.wants_job(job.name)).collect();
    if wanted.is_empty() {
        return Err("no job has such a name; benches/peers/jobs.txt and classes.txt list them".into());
    }
    let reference = Reference::read(&root)?;
    let truths = wanted.iter().map(|job| reference.of(job)).collect::<Result<Vec<_>, _>>()?;
    if arguments.bench {
        return bench::run(&root, &wanted, &truths, arguments);
    }
    let python = if peers::NAMES.iter().any(|name| peers::is_python(name) && arguments.wants_peer(name)) {
        python::interpreter(&root, arguments.venv.as_deref()).inspect_err(|reason| eprintln!("warning: {reason}"))
    } else {
        Err("it was not asked for".into())
    };
    let programs = peers::programs(&root, &python, |name| arguments.wants_peer(name))?;
    let broken = programs.iter().find_map(|program| Some((program.name, program.reason()?)));
    if let Some((name, reason)) = broken.filter(|_| arguments.write) {
        return Err(format!("docs/performance.md shows all peers, and {name} cannot be run: {reason}"));
    }
    let about = About::new(machine::versions(&root, python.as_deref().ok(), &programs)?, arguments);
    println!("{}", about.text());
    let (mut rows, mut patience) = (Vec::new(), Patience::new(arguments.patience));
    for (job, truth) in wanted.iter().zip(&truths) {
        let row = measure(job, &programs, truth, arguments, &mut patience);
        println!("{}", table::line(&row));
        rows.push(row);
        // The file is written after each job, so that an interrupted run keeps its results.
        write(&root, arguments, &about, &rows)?;
    }
    let table = table::markdown(&about.text(), &rows);
    println!("\n{table}");
    table::check_ours(&rows)?;
    if !arguments.write {
        return Ok(());
    }
    table::check(&rows)
        .map_err(|reason| format!("{reason}: docs/performance.md stays as it is, the table is in target/peers.md"))?;
    table::write_page(&root, &table)
}

fn main() -> ExitCode {
    let venv = std::env::var_os("GRADUS_PEERS_VENV").map(PathBuf::from);
    let arguments = match Arguments::read(std::env::args().skip(1), venv) {
        Ok(arguments) if arguments.help => {
            println!("{}", arguments.usage());
            return ExitCode::SUCCESS;
        }
        Ok(arguments) => arguments,
        Err(message) => {
            eprintln!("error: {message}");
            return ExitCode::from(2);
        }
    };
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}

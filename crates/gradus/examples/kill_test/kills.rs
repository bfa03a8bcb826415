//! Starts children, ends them in three ways, and compares what they give.
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gradus::Generator;
use gradus::train::Os;

use super::disks::{Full, PowerCut};
use super::training::train;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// How often runs are ended, and in which way.
pub(crate) struct Plan {
    /// The width of the network and the number of epochs.
    pub(crate) size: (usize, usize),
    /// Ends by SIGKILL at a random instant.
    pub(crate) kills: usize,
    /// Ends because the disk is full.
    pub(crate) full: usize,
    /// Ends by a power cut.
    pub(crate) cuts: usize,
    pub(crate) seed: u64,
    /// The longest time before a kill.
    pub(crate) longest_ms: usize,
}

/// The folder into which a power cut puts what is left, beside the folder of the checkpoints.
fn left_of(folder: &Path) -> PathBuf {
    folder.with_extension("left")
}

/// What the child does: trains in a folder, and writes its bits to a file. The arguments are the folder, the file, the
/// size of the network and the number of epochs, the kind of disk, and a number for this disk.
pub(crate) fn child(arguments: &[String]) -> Result<()> {
    let [folder, out, hidden, epochs, kind, number] = arguments else { return Err("a child has 6 arguments".into()) };
    let (folder, number) = (Path::new(folder), number.parse()?);
    let size = (hidden.parse()?, epochs.parse()?);
    let bits = match kind.as_str() {
        "full" => train(folder, Arc::new(Full::with_room(number)), size)?,
        "cut" => {
            let folder_ = folder.to_owned();
            let cut = PowerCut::new(
                folder,
                number as u64,
                true,
                Box::new(move |disk| {
                    let mut rng = Generator::new(number as u64);
                    let left = disk.left(&left_of(&folder_), &mut rng);
                    std::process::exit(if left.is_ok() { CUT } else { 1 });
                }),
            );
            train(folder, Arc::new(cut), size)?
        }
        _ => train(folder, Arc::new(Os), size)?,
    };
    fs::write(format!("{out}.part"), bits)?;
    Ok(fs::rename(format!("{out}.part"), out)?)
}

/// The exit code of a child whose power was cut.
const CUT: i32 = 3;

/// Ends runs as planned. Returns the summary, whose last line says how many of the kills ended in the bits of the run
/// that nobody ended.
pub(crate) fn run(plan: &Plan, folder: &Path, start: &dyn Fn(&[String]) -> Command) -> Result<String> {
    fs::create_dir_all(folder)?;
    let mut rng = Generator::new(plan.seed);
    let arguments = |checkpoints: &Path, out: &Path, kind: &str, number: usize| {
        let paths = [checkpoints, out].map(|path| path.display().to_string());
        let (hidden, epochs) = plan.size;
        let rest = [hidden.to_string(), epochs.to_string(), kind.to_owned(), number.to_string()];
        paths.into_iter().chain(rest).collect::<Vec<String>>()
    };
    let begin = Instant::now();
    let out = folder.join("whole");
    let whole = start(&arguments(&folder.join("0"), &out, "plain", 0)).status()?;
    if !whole.success() {
        return Err("the run that nobody ends failed".into());
    }
    let took = begin.elapsed();
    let want = fs::read(&out)?;
    println!("a run without a break takes {:.1} s and gives {} bytes", took.as_secs_f64(), want.len());

    let mut summary = String::new();
    for (kind, times) in [("full", plan.full), ("cut", plan.cuts), ("plain", plan.kills)] {
        let (mut ended, mut right, mut in_this_run, mut number) = (0, 0, 0, 0);
        let new =
            |number: usize| (folder.join(format!("{kind}-{number}")), folder.join(format!("{kind}-{number}.out")));
        let (mut checkpoints, mut out) = new(number);
        while ended < times || in_this_run > 0 {
            let last = ended == times;
            // Bytes or calls; the room of a disk is some checkpoints.
            let limit = match kind {
                "full" => rng.below(60 * want.len()),
                _ => 1 + rng.below(1500),
            };
            let kind_now = if last { "plain" } else { kind };
            let mut command = start(&arguments(&checkpoints, &out, kind_now, limit));
            let mut running = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
            if kind == "plain" && !last {
                std::thread::sleep(Duration::from_millis(rng.below(plan.longest_ms) as u64));
                // An error says that the child has ended already.
                let _ = running.kill();
            }
            let done = running.wait_with_output()?;
            if done.status.success() {
                if fs::read(&out)? != want {
                    return Err(format!("{kind}: after {in_this_run} ends the bits differ").into());
                }
                right += in_this_run;
                fs::remove_dir_all(&checkpoints)?;
                number += 1;
                in_this_run = 0;
                (checkpoints, out) = new(number);
                continue;
            }
            let said = String::from_utf8_lossy(&done.stderr);
            let is_meant = match kind_now {
                _ if last => false,
                "full" => said.contains("make room"),
                "cut" => done.status.code() == Some(CUT),
                _ => done.status.code().is_none(),
            };
            if !is_meant {
                return Err(format!("{kind}: the child failed with {}: {said}", done.status).into());
            }
            if kind == "cut" {
                fs::remove_dir_all(&checkpoints)?;
                fs::rename(left_of(&checkpoints), &checkpoints)?;
            }
            ended += 1;
            in_this_run += 1;
        }
        let what = match kind {
            "full" => "times the disk was full",
            "cut" => "times the power was cut",
            _ => "kills",
        };
        println!("{times} {what}, in {number} runs: {right} ended in the same bits");
        summary = format!("{right} of {times}");
    }
    Ok(summary)
}

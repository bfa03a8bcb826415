//! `cargo xtask dist`: training on several ranks gives the same bits as on one, trouble of a rank is an error on all
//! others in time, `gradus launch` does what it says, and the speed: an all-reduce beside that of MPI alone, a step beside its
//! parts, and a plan beside the steps that it foretells. The command fails where one of them is past its limit.

mod command;
mod disk;
mod hosts;
mod launch;
mod planned;
mod process;
mod small;
mod wrong;

use std::path::Path;
use std::time::{Duration, Instant};

use launch::{Launch, Mpi, optimised_ranks, programs};

/// The models that are trained, and the steps.
const MODELS: [(&str, &str); 3] = [("digits", "8"), ("gpt", "6"), ("resnet", "4")];
/// How a rank makes trouble, and whether it goes on to write its outcome.
const TROUBLES: [&str; 5] = ["kill", "other", "stop", "leave", "kill-soon"];
/// How many runs with trouble there are.
const TROUBLES_OF_CI: usize = 24;
const MOST_TROUBLES: usize = 500;
/// The calls of a step of `ranks trouble`.
const CALLS: usize = 11;
const RANKS: usize = 4;
/// How often the speed is measured.
const ROUNDS: usize = 5;
/// How much longer than MPI's an all-reduce of 4 KB may take, in microseconds, and how many times as long one of 64 MB.
const MOST_MORE: f64 = 20.0;
const MOST_TIMES: f64 = 1.1;
/// By what a step may be longer than its passes and their all-reduce, as a share of the passes.
const MOST_OF_A_STEP: f64 = 0.05;
/// How often steps are measured.
const STEP_ROUNDS: usize = 3;
/// The deadline of runs with trouble, in seconds, and how much later an error may come.
const DEADLINE: f64 = 1.5;
const LATER: f64 = 1.0;

/// What was counted.
#[derive(Default)]
struct Counts {
    same: usize,
    compared: usize,
    in_time: usize,
    runs: usize,
}

/// What is run.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Which {
    /// All but the speed, with the fewest troubles.
    Quick,
    /// The speed, of an optimised build.
    Speed,
    /// Both, with many troubles.
    All,
    /// The many troubles alone.
    Trouble,
    /// The checks of `gradus launch` whose names contain this text.
    Checks(String),
}

/// Parses the arguments after `dist`: what is run, and whether on MPICH.
pub(crate) fn parse(arguments: &[&str]) -> Result<(Which, bool), String> {
    let (arguments, mpich) = match arguments {
        [rest @ .., "--mpi", "mpich"] => (rest, true),
        rest => (rest, false),
    };
    match arguments {
        [] => Ok((Which::Quick, mpich)),
        ["--speed"] if !mpich => Ok((Which::Speed, false)),
        ["--all"] => Ok((Which::All, mpich)),
        ["--trouble"] => Ok((Which::Trouble, mpich)),
        ["--checks", text] => Ok((Which::Checks((*text).to_owned()), mpich)),
        other => Err(format!("`dist` does not take `{}`", other.join(" "))),
    }
}

/// Runs the checks, and prints a last line with the counts.
pub(crate) fn run(root: &Path, which: Which, mpich: bool) -> Result<(), String> {
    let folder = std::env::temp_dir().join(format!("gradus-dist-{}", std::process::id()));
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let outcome = Mpi::find(mpich, &folder).and_then(|mpi| all(&mpi, root, &folder, which));
    // If the folder cannot be removed, the system cleans it up with its other temporary files.
    let _ = std::fs::remove_dir_all(&folder);
    outcome
}

fn all(mpi: &Mpi, root: &Path, folder: &Path, which: Which) -> Result<(), String> {
    let measures = matches!(which, Which::Speed | Which::All) && !mpi.is_mpich;
    let (speed, slow) = if measures {
        let (speed, slow) = speed(mpi, root, &optimised_ranks(root)?, folder)?;
        (Some(speed), slow)
    } else {
        (None, vec![])
    };
    if let (Which::Speed, Some(speed)) = (&which, &speed) {
        slow.iter().for_each(|failure| println!("FAILED {failure}"));
        println!("{speed}");
        return if slow.is_empty() { Ok(()) } else { Err(format!("{} failures", slow.len())) };
    }
    let [ranks, gradus] = &programs(root)?;
    let commands = command::Gradus { mpi, program: gradus, folder: &folder.join("launch"), root };
    if let Which::Checks(text) = which {
        let (failed, said) = commands.check(&text)?;
        failed.iter().for_each(|failure| println!("FAILED {failure}"));
        println!("dist: {said}");
        return if failed.is_empty() { Ok(()) } else { Err(format!("{} failures", failed.len())) };
    }
    let mut counts = Counts::default();
    let begun = Instant::now();
    let mut failures = vec![];
    if which != Which::Trouble {
        failures.extend(same_bits(mpi, ranks, folder, &mut counts)?);
        failures.extend(pipelines(mpi, ranks, folder, &mut counts)?);
        println!("trainings on 1, 2 and 4 ranks: {:.1} s", begun.elapsed().as_secs_f64());
        failures.extend(mesh(mpi, ranks, folder)?);
    }
    let begun = Instant::now();
    let troubles = if which == Which::Quick { TROUBLES_OF_CI } else { MOST_TROUBLES };
    failures.extend(trouble(mpi, ranks, folder, troubles, &mut counts)?);
    println!("{} runs with trouble: {:.1} s", counts.runs, begun.elapsed().as_secs_f64());
    let (failed, said) =
        if which == Which::Trouble { (vec![], "no other checks".into()) } else { commands.check("")? };
    failures.extend(failed);
    failures.extend(slow);
    failures.iter().for_each(|failure| println!("FAILED {failure}"));
    let speed = speed.map_or_else(String::new, |speed| format!("; {speed}"));
    println!(
        "dist{}: {} of {} trainings have the bits of one rank, {} of {} runs with trouble end in time on all ranks, \
         {said}{speed}",
        if mpi.is_mpich { " on MPICH" } else { "" },
        counts.same,
        counts.compared,
        counts.in_time,
        counts.runs
    );
    if failures.is_empty() { Ok(()) } else { Err(format!("{} failures", failures.len())) }
}

/// Trains each model on 1, 2 and 4 ranks, eagerly and captured, on 4 with a divided optimiser or divided parameters, and
/// with these on 4 and then without on 2, with a checkpoint in between.
fn same_bits(mpi: &Mpi, program: &Path, folder: &Path, counts: &mut Counts) -> Result<Vec<String>, String> {
    let mut failures = vec![];
    for (model, steps) in MODELS {
        let train = |ranks: usize, name: &str, more: &[&str]| -> Result<String, String> {
            let out = folder.join(format!("{model}-{name}"));
            let arguments = [&["train", model, steps], more].concat();
            let outcome = Launch::new(mpi, program, ranks, &out).run(&arguments, Duration::from_secs(300))?;
            let whole = outcome.iter().all(|one| one.as_ref().is_some_and(|text| !text.starts_with("error")));
            match &outcome[0] {
                Some(text) if whole => Ok(text.trim().to_owned()),
                _ => Err(format!("{model} on {ranks} ranks: {outcome:?}")),
            }
        };
        let one = train(1, "1", &[])?;
        println!("{model}: {one}");
        // The state of four ranks with a part of the parameters each is that of two with all of them.
        let changed = || train(4, "changed", &["save", "shard"]).and_then(|_| train(2, "changed", &["resume"]));
        for (name, other) in [
            ("2 ranks", train(2, "2", &[])),
            ("4 ranks", train(4, "4", &[])),
            ("1 rank, captured", train(1, "1-captured", &["captured"])),
            ("2 ranks, captured", train(2, "2-captured", &["captured"])),
            ("4 ranks, captured", train(4, "4-captured", &["captured"])),
            ("4 ranks with ZeRO 2, captured", train(4, "4-divided", &["divide", "captured"])),
            ("4 ranks with ZeRO 3, captured", train(4, "4-sharded-captured", &["shard", "captured"])),
            ("4 ranks with ZeRO 3", train(4, "4-shard", &["shard"])),
            ("4 ranks with ZeRO 3, then 2 without", changed()),
        ] {
            counts.compared += 1;
            match other {
                Ok(other) if other == one => counts.same += 1,
                Ok(other) => failures.push(format!("{model} on {name}: {other}, not {one}")),
                Err(e) => failures.push(e),
            }
        }
    }
    Ok(failures)
}

/// Trains a GPT in pipelines: on 1 stage, then on 2 and 4, and in 2 pipelines of 2 stages each, eager and captured.
fn pipelines(mpi: &Mpi, program: &Path, folder: &Path, counts: &mut Counts) -> Result<Vec<String>, String> {
    let train = |ranks: usize, pipelines: &str, steps: &str| -> Result<String, String> {
        let out = folder.join(format!("pipeline-{ranks}-{pipelines}-{steps}"));
        let arguments = ["pipeline", "6", pipelines, steps];
        let outcome = Launch::new(mpi, program, ranks, &out).run(&arguments, Duration::from_secs(300))?;
        let whole = outcome.iter().all(|one| one.is_some() && *one == outcome[0]);
        match &outcome[0] {
            Some(text) if whole && !text.starts_with("error") => Ok(text.trim().to_owned()),
            _ => Err(format!("{pipelines} pipelines on {ranks} ranks, {steps}: {outcome:?}")),
        }
    };
    let one = train(1, "1", "eager")?;
    println!("gpt in a pipeline: {one}");
    let mut failures = vec![];
    for steps in ["eager", "captured"] {
        for (ranks, pipelines) in [(2, "1"), (4, "1"), (4, "2")] {
            counts.compared += 1;
            match train(ranks, pipelines, steps) {
                Ok(other) if other == one => counts.same += 1,
                Ok(other) => {
                    failures.push(format!("{pipelines} pipelines on {ranks} ranks, {steps}: {other}, not {one}"));
                }
                Err(e) => failures.push(e),
            }
        }
    }
    // A stage that fails ends the others long before the deadline of 60 s.
    for steps in ["eager", "captured"] {
        let out = folder.join(format!("pipeline-fails-{steps}"));
        let arguments = ["pipeline", "5", "1", steps, "fail"];
        let outcome = Launch::new(mpi, program, RANKS, &out).run(&arguments, Duration::from_secs(30))?;
        counts.runs += 1;
        let told = |one: &Option<String>| one.as_ref().is_some_and(|text| text.contains("no loss for these rows"));
        if outcome.iter().all(told) {
            counts.in_time += 1;
        } else {
            failures.push(format!("a stage of a pipeline that fails, {steps}: {outcome:?}"));
        }
    }
    Ok(failures)
}

/// Trains a GPT with data and tensor parallelism at once; it is within rounding of one process, as the program checks.
fn mesh(mpi: &Mpi, program: &Path, folder: &Path) -> Result<Vec<String>, String> {
    let outcome = Launch::new(mpi, program, RANKS, &folder.join("mesh")).run(&["mesh"], Duration::from_secs(300))?;
    let whole = outcome.iter().all(|one| one.as_ref().is_some_and(|text| !text.starts_with("error")));
    let Some(text) = outcome[0].as_ref().filter(|_| whole) else {
        return Ok(vec![format!("a GPT on a mesh: {outcome:?}")]);
    };
    text.lines().for_each(|line| println!("a GPT on a mesh of 2 x 2, {line}"));
    Ok(vec![])
}

/// Runs in which one rank makes trouble at one call: `number` of them, spread over all ways, ranks and calls.
fn trouble(
    mpi: &Mpi,
    program: &Path,
    folder: &Path,
    number: usize,
    counts: &mut Counts,
) -> Result<Vec<String>, String> {
    let mut failures = vec![];
    let all = TROUBLES.len() * RANKS * CALLS;
    for run in 0..number {
        // A step that shares no factor with the number of cases visits all of them, and its first multiples lie far apart.
        let case = run * 137 % all;
        let (how, rank, call) = (TROUBLES[case % 5], case / 5 % RANKS, case / 5 / RANKS);
        let out = folder.join(format!("trouble-{run}"));
        // Of the two times that a case may come, the calls are replays of captured steps in one.
        let captured = (run + run / all) % 2 == 1;
        let (rank_word, call_word, deadline) = (rank.to_string(), call.to_string(), DEADLINE.to_string());
        let mut arguments = vec!["trouble", how, &rank_word, &call_word];
        arguments.extend(captured.then_some("captured"));
        arguments.push(&deadline);
        let begun = Instant::now();
        let launch = Launch::new(mpi, program, RANKS, &out)
            .gone(if how == "kill" || how == "stop" || how == "kill-soon" { Some(rank) } else { None });
        let outcome = launch.run(&arguments, Duration::from_secs(40))?;
        counts.runs += 1;
        let case = format!("{how} of rank {rank} at call {call}{}", if captured { ", captured" } else { "" });
        let wrong: Vec<String> = (0..RANKS)
            .filter(|&other| other != rank)
            .filter_map(|other| wrong(other, outcome[other].as_deref(), rank))
            .collect();
        if wrong.is_empty() {
            counts.in_time += 1;
        } else {
            failures.push(format!("{case}, after {:.1} s: {}", begun.elapsed().as_secs_f64(), wrong.join("; ")));
        }
        // If it cannot be removed, it goes with the whole folder.
        let _ = std::fs::remove_dir_all(&out);
    }
    Ok(failures)
}

/// What is wrong with the outcome of a rank that lives, if anything: it must be a typed error in time that names the rank
/// with the trouble.
fn wrong(rank: usize, outcome: Option<&str>, troubled: usize) -> Option<String> {
    let Some(text) = outcome else { return Some(format!("rank {rank} hangs or has died")) };
    let seconds = text.strip_prefix("peer after ").and_then(|rest| rest.split(' ').next()?.parse::<f64>().ok());
    match seconds {
        Some(seconds) if seconds <= DEADLINE + LATER && names(text, troubled) => None,
        _ => Some(format!("rank {rank}: {}", text.trim().replace('\n', " | "))),
    }
}

/// Whether an error names a rank, alone or in a list, other than as the one that makes the call or has given up. What happened
/// in a half of the ranks, whose only call is its first, names them by their numbers there.
fn names(text: &str, rank: usize) -> bool {
    let in_half = match text.contains("of the world has given up") {
        true => text.contains("in a communicator of"),
        false => text.contains("of 2 makes call 1, all_reduce"),
    };
    let number = if in_half { rank % (RANKS / 2) } else { rank };
    text.split("rank").skip(1).any(|rest| {
        let rest = rest.strip_prefix('s').unwrap_or(rest);
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != ',' && c != ' ').unwrap_or(rest.len());
        let (list, after) = rest.split_at(end);
        !after.starts_with("of ") && list.split(',').any(|word| word.trim().parse() == Ok(number))
    })
}

/// The times of all-reduces beside those of MPI, what they add to a step, and steps beside what `gradus plan` says of them;
/// with them, which of these are slower or farther off than they may be.
fn speed(mpi: &Mpi, root: &Path, program: &Path, folder: &Path) -> Result<(String, Vec<String>), String> {
    let bare = folder.join("bare");
    let source = root.join("crates/gradus-dist/examples/ranks/bare.c");
    let mut mpicc = std::process::Command::new("mpicc");
    crate::workspace::done(mpicc.args(["-O2", "-o"]).arg(&bare).arg(source), "mpicc")?;
    let out = folder.join("speed");
    let limit = Duration::from_secs(200);
    let ours = |what: &str| {
        let outcome = Launch::new(mpi, program, RANKS, &out).run(&[what], limit)?;
        numbers(outcome[0].as_deref().unwrap_or_default())
    };
    // In turns, so that both meet the same disturbances.
    let mut rounds = vec![];
    for _ in 0..ROUNDS {
        rounds.push((ours("speed")?, numbers(&Launch::new(mpi, &bare, RANKS, &out).printed(limit)?)?));
    }
    let (mut words, mut slow) = (vec![], vec![]);
    for (i, bytes) in [4 << 10, 1 << 20, 64 << 20].into_iter().enumerate() {
        let time = |times: &[Vec<f64>]| times.get(i).and_then(|line| line.get(1).copied()).unwrap_or(f64::NAN);
        let of = |of: fn(f64, f64) -> f64| median(rounds.iter().map(|(a, b)| of(time(a), time(b))));
        let [ours, theirs, quotient, more] = [of(|a, _| a), of(|_, b| b), of(|a, b| a / b), of(|a, b| a - b)];
        let size = if bytes < 1 << 20 { format!("{} KB", bytes >> 10) } else { format!("{} MB", bytes >> 20) };
        let said = format!("{size} {ours:.0} us, MPI {theirs:.0} us ({quotient:.2}, {more:+.0} us)");
        // The smallest are bound by the latency, the largest by memory. Where there are no times, these are not numbers.
        let holds = [more <= MOST_MORE, true, quotient <= MOST_TIMES][i];
        if !holds {
            slow.push(format!("all-reduce: {said}"));
        }
        words.push(said);
    }
    let mut steps = vec![];
    for _ in 0..STEP_ROUNDS {
        let lines = ours("step")?;
        let Some(&[bytes, step, passes, sum, more]) = lines.first().map(Vec::as_slice) else {
            return Err(format!("no times of a step: {lines:?}"));
        };
        steps.push([bytes, step / 1e3, passes / 1e3, sum / 1e3, more]);
    }
    steps.sort_by(|a, b| a[4].total_cmp(&b[4]));
    let [bytes, step, passes, sum, more] = steps[STEP_ROUNDS / 2];
    let said = format!(
        "a step with {:.0} MB of gradients takes {step:.1} ms, its passes {passes:.1} ms and their all-reduce {sum:.1} ms ({:+.1} %)",
        bytes / f64::from(1 << 20),
        100.0 * more
    );
    let holds = more <= MOST_OF_A_STEP;
    if !holds {
        slow.push(format!("{said}: that is more than {:+.0} % of the passes", 100.0 * MOST_OF_A_STEP));
    }
    words.push(said);
    let (said, off) = planned::run(root, &folder.join("planned"))?;
    words.push(said);
    slow.extend(off);
    Ok((format!("all-reduce: {}", words.join("; ")), slow))
}

/// The numbers of each line, after which may stand a unit.
fn numbers(text: &str) -> Result<Vec<Vec<f64>>, String> {
    let line = |line: &str| line.trim_end_matches(" us").split(' ').map(|word| word.parse().ok()).collect();
    text.lines()
        .map(line)
        .collect::<Option<_>>()
        .filter(|lines: &Vec<_>| !lines.is_empty())
        .ok_or(format!("no times: {text}"))
}

fn median(numbers: impl Iterator<Item = f64>) -> f64 {
    let mut numbers: Vec<f64> = numbers.collect();
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::names;

    #[test]
    fn the_rank_with_the_trouble_is_found() {
        let died = "all_reduce: rank 2 has died: its process is gone\n  at examples/ranks/trouble.rs:17:19\n  \
                    rank 0 of 4 makes call 13, all_reduce(sum)";
        assert_eq!([0, 1, 2, 3].map(|rank| names(died, rank)), [false, false, true, false]);
        let told = "split: rank 2 of the world has given up\n  rank 0 of 4 makes call 19, split\n  \
                    ranks 1, 3 did not come to this call within 1.5 s (call 19, split)";
        assert_eq!([0, 1, 2, 3].map(|rank| names(told, rank)), [false, true, false, true]);
        let half = "all_reduce: rank 1 has died: its process is gone\n  rank 0 of 2 makes call 1, all_reduce(sum)";
        assert_eq!([0, 1, 2, 3].map(|rank| names(half, rank)), [false, true, false, true]);
        // The first call of another communicator of all.
        let first = "all_reduce: rank 3 has died: its process is gone\n  rank 1 of 4 makes call 1, all_reduce(sum)";
        assert_eq!([0, 1, 2, 3].map(|rank| names(first, rank)), [false, false, false, true]);
        // Told from the call after, in which all ranks are, and from a half.
        let later = "all_reduce: rank 1 of the world has given up\n  rank 1 of 2 makes call 1, all_reduce(sum)\n  \
                     rank 2 has died: its process is gone (call 20, all_reduce(sum))";
        assert_eq!([0, 1, 2, 3].map(|rank| names(later, rank)), [false, false, true, false]);
        let there = "barrier: rank 3 of the world has given up\n  rank 0 of 4 makes call 20, barrier\n  rank 0 has died \
                     (call 1, all_reduce(sum)), in a communicator of the ranks 2, 3 of the world, in this order";
        assert_eq!([0, 1, 2, 3].map(|rank| names(there, rank)), [true, false, true, false]);
    }
}

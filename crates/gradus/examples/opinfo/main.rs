//! Runs the samples of PyTorch's OpInfo database on Gradus: `cargo xtask opinfo`.
//!
//! ```sh
//! python crates/gradus/examples/opinfo/samples.py target/opinfo.safetensors
//! cargo run --release -p gradus --example opinfo -- target/opinfo.safetensors [--list] [--page docs/opinfo.md]
//! ```
//!
//! Tables map each entry of the database to a call. They are in `elementwise`, `structure`, `layers` and `losses`, and
//! in `random` for entries that draw random numbers. `absent` lists the entries without a counterpart in Gradus, and
//! `differences` the samples that differ on purpose, both with reasons. The exit code is 1 if a sample differs without
//! a reason, or if a reason applies to no sample.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod absent;
#[path = "../../tests/golden/compare.rs"]
mod compare;
mod differences;
mod elementwise;
mod layers;
mod losses;
mod page;
mod random;
mod sample;
mod structure;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use compare::{File, check, order};
use differences::{DIFFERENCES, Finding};
use gradus::prelude::*;
use safetensors::SafeTensors;
use sample::{Call, SAMPLE, Sample};
use serde_json::Value;

const USAGE: &str = "usage: opinfo SAMPLES.safetensors [--list] [--page PATH]";

/// Counts over all samples.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) torch: String,
    pub(crate) entries: usize,
    /// The number of entries that have a call.
    pub(crate) called: usize,
    /// The number of samples of these entries, including the draws but not the calls that PyTorch refuses.
    pub(crate) samples: usize,
    /// The number of samples that agree in values; in values and first gradients; and in values and both gradients.
    pub(crate) agree: [usize; 3],
    /// The number of random samples that agree in shape and dtype.
    pub(crate) draws: usize,
    /// The number of calls that PyTorch refuses. Gradus refuses `refused` of them, and `unwritten` of them cannot be
    /// written with its types.
    pub(crate) errors: usize,
    pub(crate) refused: usize,
    pub(crate) unwritten: usize,
    /// For each reason, the number of samples by entry.
    pub(crate) listed: Vec<BTreeMap<String, usize>>,
    /// The number of samples that `samples.py` left out, by reason.
    pub(crate) left_out: BTreeMap<String, usize>,
    pub(crate) wrong: Vec<String>,
}

/// The call of each entry, and whether it draws random numbers.
fn calls() -> BTreeMap<&'static str, (Call, bool)> {
    let tables = [elementwise::ROWS, structure::ROWS, layers::ROWS, losses::ROWS, random::ROWS];
    let rows = tables.iter().enumerate().flat_map(|(i, rows)| rows.iter().map(move |row| (i, row)));
    let names = rows.flat_map(|(i, (names, call))| names.split_whitespace().map(move |n| (n, (*call, i == 4))));
    let mut calls = BTreeMap::new();
    for (name, call) in names {
        assert!(calls.insert(name, call).is_none(), "{name} has two rows");
    }
    calls
}

/// The JSON arguments in the description of a sample.
fn arguments(words: &str) -> &str {
    let from = |n| words.splitn(n + 1, ' ').nth(n).unwrap();
    if words.starts_with("error ") { from(1).lines().next().unwrap() } else { from(3) }
}

/// Runs a sample. Returns the number of stages that agree, or a finding.
fn run(
    file: &File<'_>,
    name: &str,
    words: &str,
    call: &dyn Fn(&[Tensor]) -> Result<Vec<Tensor>>,
    draws: bool,
) -> std::result::Result<usize, Finding> {
    if words.starts_with("error ") {
        return match call(&file.inputs(name)) {
            Err(e) => Err(Finding::Refused(e)),
            Ok(_) => Err(Finding::Accepted(words.lines().nth(1).unwrap_or_default().to_owned())),
        };
    }
    if draws {
        let y = call(&file.inputs(name)).map_err(Finding::Refused)?;
        let want = file.get(name, "out", 0).unwrap();
        let same = (y[0].shape(), y[0].dtype()) == (want.shape(), want.dtype());
        let words =
            format!("{:?} {} is drawn, PyTorch's is {:?} {}", y[0].shape(), y[0].dtype(), want.shape(), want.dtype());
        return if same { Ok(0) } else { Err(Finding::Differs(words)) };
    }
    let found = check(file, name, words, call).map_err(Finding::Refused)?;
    found.difference.map_or(Ok(found.stages), |words| Err(Finding::Differs(words)))
}

/// Runs all samples of an entry, and counts the results in `tally`.
fn entry(
    file: &File<'_>,
    entry: &str,
    (call, draws): (Call, bool),
    samples: &[(&str, &str)],
    tally: &mut Tally,
    list: bool,
) {
    for &(name, words) in samples {
        let json: Value = serde_json::from_str(arguments(words)).unwrap();
        let with = |tensors: &[Tensor]| -> Result<Vec<Tensor>> {
            let sample = Sample::new(entry, &json, tensors, &file.device).unwrap();
            let outs = call(&sample)?.0;
            match sample.unread() {
                Some(name) => sample::inexpressible(format!("{name} was not read")),
                None => Ok(outs),
            }
        };
        let error = words.starts_with("error ");
        if error {
            tally.errors += 1;
        } else {
            tally.samples += 1;
        }
        let found = catch_unwind(AssertUnwindSafe(|| run(file, name, words, &with, draws)));
        let finding = match found {
            Ok(Ok(_)) if draws => {
                tally.draws += 1;
                continue;
            }
            Ok(Ok(stages)) => {
                assert_eq!(stages, order(words) + 1, "{name}");
                tally.agree[..stages].iter_mut().for_each(|n| *n += 1);
                continue;
            }
            Ok(Err(Finding::Refused(e))) if error => {
                if e.op() == SAMPLE {
                    tally.unwritten += 1;
                } else {
                    tally.refused += 1;
                }
                continue;
            }
            Ok(Err(finding)) => finding,
            Err(_) => {
                tally.wrong.push(format!("{name}: a panic"));
                continue;
            }
        };
        let inputs = file.inputs(name);
        let sample = Sample::new(entry, &json, &inputs, &file.device).unwrap();
        let reason = DIFFERENCES.iter().position(|d| d.covers(&sample, &finding));
        match reason {
            Some(at) => {
                *tally.listed[at].entry(entry.to_owned()).or_default() += 1;
                if list {
                    println!("{name}: {finding}: {}", DIFFERENCES[at].reason);
                }
            }
            None => tally.wrong.push(format!("{name}: {finding}")),
        }
    }
}

fn tally(bytes: &[u8], list: bool) -> Tally {
    let (_, metadata) = SafeTensors::read_metadata(bytes).unwrap();
    let words: BTreeMap<String, String> = metadata.metadata().clone().unwrap().into_iter().collect();
    let missing = |_: &str| vec![];
    let file = File { tensors: SafeTensors::deserialize(bytes).unwrap(), device: Device::cpu().unwrap(), missing };
    let entries: Vec<String> = serde_json::from_str(&words["entries"]).unwrap();
    let left_out: BTreeMap<String, BTreeMap<String, usize>> = serde_json::from_str(&words["left out"]).unwrap();
    let mut tally = Tally { torch: words["torch"].clone(), entries: entries.len(), ..Tally::default() };
    tally.listed = vec![BTreeMap::new(); DIFFERENCES.len()];
    let calls = calls();
    let mut absent: Vec<&str> = absent::ABSENT.iter().flat_map(|(_, names)| names.split_whitespace()).collect();
    for name in &entries {
        let at = absent.iter().position(|n| n == name).map(|i| absent.swap_remove(i));
        match (calls.get(name.as_str()), at) {
            (Some(_), Some(_)) => tally.wrong.push(format!("{name} has a call, and is listed as absent")),
            (None, None) => tally.wrong.push(format!("{name} has no call, and no reason why")),
            (None, Some(_)) => {}
            (Some(&call), None) => {
                tally.called += 1;
                for (reason, n) in &left_out[name] {
                    *tally.left_out.entry(reason.clone()).or_default() += n;
                }
                let prefix = format!("{name}|");
                let samples = words.range(prefix.clone()..).take_while(|(key, _)| key.starts_with(&prefix));
                let samples: Vec<(&str, &str)> = samples.map(|(k, v)| (k.as_str(), v.as_str())).collect();
                entry(&file, name, call, &samples, &mut tally, list);
            }
        }
    }
    tally.wrong.extend(absent.iter().map(|n| format!("{n} is listed as absent, and PyTorch has no such entry")));
    let unused = DIFFERENCES.iter().zip(&tally.listed).filter(|(_, found)| found.is_empty());
    let unused: Vec<String> = unused.map(|(d, _)| format!("no sample differs because: {}", d.reason)).collect();
    tally.wrong.extend(unused);
    tally
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut words = arguments.iter().map(String::as_str);
    let (mut samples, mut list, mut page) = (None, false, None);
    while let Some(word) = words.next() {
        match word {
            "--list" => list = true,
            "--page" => page = words.next(),
            path => samples = Some(path),
        }
    }
    let Some(bytes) = samples.map(std::fs::read) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    // A panic is reported together with its sample, so the usual message is suppressed.
    std::panic::set_hook(Box::new(|_| {}));
    let tally = tally(&bytes.unwrap(), list);
    println!("{}", page::counts(&tally));
    if !tally.wrong.is_empty() {
        println!("{} wrong:\n{}", tally.wrong.len(), tally.wrong.join("\n"));
        return ExitCode::FAILURE;
    }
    if let Some(path) = page {
        std::fs::write(path, page::page(&tally)).unwrap();
    }
    ExitCode::SUCCESS
}

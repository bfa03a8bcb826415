//! Project chores, run as `cargo xtask <command>`.
//!
//! `ci` checks everything a change must pass, `tidy` the rules that neither the compiler nor clippy knows, `packages` the
//! budget of dependencies, and `digits` what the README promises of its first command; `deep` runs random cases of the
//! conformance suite, `op-table`, `sources` and `gallery` look after pages of `docs`, and `peers` compares the speed with
//! other libraries. The exit code is 0 when all is well, 1 when a check fails and 2 when the command line is wrong.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)]

mod ci;
mod digits;
mod gallery;
mod packages;
mod pages;
mod peers;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask <command>

commands:
  ci [--skip-tests]  format, clippy, tests, docs, tidy and digits, up to the first failure
  tidy               layering, unsafe code, leftovers, file lengths, links, number of packages
  packages           how many packages `gradus` with default features depends on
  deep [SEED [N]]    N rounds of random cases on the CPU (10,000 of seed 1), each failure with its reproducer
  op-table           writes docs/op-matrix.md; with --check, fails if it is stale or has an empty cell
  sources --check    every name in docs/sources.md has its call and an existing test
  digits             trains the digits for several seeds: accuracy, time, equal bits for 1 and 2 threads
  gallery            makes docs/gallery.md and its pictures anew
  peers [OPTIONS]    the speed of Gradus beside other libraries; `peers --help` lists the options";

/// What a command line asks for.
#[derive(Debug, PartialEq)]
enum Task {
    Ci { skip_tests: bool },
    Tidy,
    Packages,
    Digits,
    Gallery,
    Deep { seed: u64, rounds: u64 },
    OpTable { check: bool },
    Sources,
    Peers(Vec<String>),
    Help,
}

/// Reads the arguments after the program's name; the error says which of them is wrong.
fn parse(arguments: &[&str]) -> Result<Task, String> {
    match arguments {
        ["ci"] => Ok(Task::Ci { skip_tests: false }),
        ["ci", "--skip-tests"] => Ok(Task::Ci { skip_tests: true }),
        ["tidy"] => Ok(Task::Tidy),
        ["packages"] => Ok(Task::Packages),
        ["digits"] => Ok(Task::Digits),
        ["gallery"] => Ok(Task::Gallery),
        ["deep", numbers @ ..] if numbers.len() <= 2 => {
            let number = |i: usize, default: u64| match numbers.get(i) {
                Some(text) => text.parse().map_err(|_| format!("`{text}` is no number")),
                None => Ok(default),
            };
            Ok(Task::Deep { seed: number(0, 1)?, rounds: number(1, 10_000)? })
        }
        ["op-table"] => Ok(Task::OpTable { check: false }),
        ["op-table", "--check"] => Ok(Task::OpTable { check: true }),
        ["sources"] | ["sources", "--check"] => Ok(Task::Sources),
        ["peers", options @ ..] => Ok(Task::Peers(options.iter().map(|option| option.to_string()).collect())),
        ["help" | "--help" | "-h", ..] => Ok(Task::Help),
        [] => Err("no command given".into()),
        ["ci" | "tidy" | "packages" | "digits" | "deep" | "gallery" | "op-table" | "sources", rest @ ..] => {
            Err(format!("`{}` does not take `{}`", arguments[0], rest.join(" ")))
        }
        [unknown, ..] => Err(format!("unknown command `{unknown}`")),
    }
}

/// The workspace's root: cargo says where this package lies when it runs it.
fn root() -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let package = package.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")));
    package.parent().map(Path::to_path_buf).unwrap_or(package)
}

/// The cargo that runs this program, or the one on the path.
fn cargo() -> std::process::Command {
    std::process::Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Runs the conformance suite's random rounds on the CPU.
fn deep(root: &Path, seed: u64, rounds: u64) -> Result<(), String> {
    let mut command = cargo();
    command.args(["run", "--release", "-p", "gradus-cpu", "--example", "deep", "--"]);
    match command.args([seed.to_string(), rounds.to_string()]).current_dir(root).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("the deep run: {status}")),
        Err(error) => Err(format!("cargo did not start: {error}")),
    }
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
        Task::Gallery => gallery::run(&root()),
        Task::Deep { seed, rounds } => deep(&root(), seed, rounds),
        Task::OpTable { check } => pages::op_table(&root(), check),
        Task::Sources => pages::sources(&root()),
        Task::Peers(options) => peers::run(&root(), &options),
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
        assert_eq!(parse(&["op-table", "--check"]), Ok(Task::OpTable { check: true }));
        assert_eq!(parse(&["sources", "--check"]), Ok(Task::Sources));
        assert_eq!(parse(&["peers", "--quick"]), Ok(Task::Peers(vec!["--quick".into()])));
        assert_eq!(parse(&["--help"]), Ok(Task::Help));
    }

    #[test]
    fn a_wrong_command_line_names_what_is_wrong() {
        assert_eq!(parse(&[]), Err("no command given".into()));
        assert_eq!(parse(&["deploy"]), Err("unknown command `deploy`".into()));
        assert_eq!(parse(&["deep", "many"]), Err("`many` is no number".into()));
        assert_eq!(parse(&["tidy", "--fix"]), Err("`tidy` does not take `--fix`".into()));
    }

    #[test]
    fn the_root_holds_this_package() {
        assert!(root().join("xtask/src/main.rs").is_file());
    }
}

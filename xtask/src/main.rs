//! Project chores, run as `cargo xtask <command>`.
//!
//! `ci` checks everything a change must pass, `tidy` the rules that neither the compiler nor clippy knows, `packages` the
//! budget of dependencies, `digits` what the README promises of its first command, and `gallery` makes the page of pictures.
//! The exit code is 0 when all is well, 1 when a check fails and 2 when the
//! command line is wrong.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)]

mod ci;
mod digits;
mod gallery;
mod packages;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask <command>

commands:
  ci [--skip-tests]  format, clippy, tests, docs, tidy and digits, up to the first failure
  tidy               layering, unsafe code, leftovers, file lengths, links, number of packages
  packages           how many packages `gradus` with default features depends on
  digits             trains the digits for several seeds: accuracy, time, equal bits for 1 and 2 threads
  gallery            makes docs/gallery.md and its pictures anew";

/// What a command line asks for.
#[derive(Debug, PartialEq)]
enum Task {
    Ci { skip_tests: bool },
    Tidy,
    Packages,
    Digits,
    Gallery,
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
        ["help" | "--help" | "-h", ..] => Ok(Task::Help),
        [] => Err("no command given".into()),
        ["ci" | "tidy" | "packages" | "digits" | "gallery", rest @ ..] => {
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
        assert_eq!(parse(&["--help"]), Ok(Task::Help));
    }

    #[test]
    fn a_wrong_command_line_names_what_is_wrong() {
        assert_eq!(parse(&[]), Err("no command given".into()));
        assert_eq!(parse(&["deploy"]), Err("unknown command `deploy`".into()));
        assert_eq!(parse(&["tidy", "--fix"]), Err("`tidy` does not take `--fix`".into()));
    }

    #[test]
    fn the_root_holds_this_package() {
        assert!(root().join("xtask/src/main.rs").is_file());
    }
}

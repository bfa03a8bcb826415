//! `cargo xtask fuzz-grad`: compares gradients of random programs with a functional reference.
//!
//! The crate `gradus-fuzz-grad` does the work. This module runs it for the command itself, for `ci` and for `deep`.

use std::path::Path;

/// The default number of programs.
const PROGRAMS: u64 = 20_000;

/// What to run.
#[derive(Debug, PartialEq)]
pub(crate) enum Which {
    /// Random programs.
    Many { seed: u64, programs: u64 },
    /// Random programs as captured steps.
    Captured { seed: u64, programs: u64 },
    /// One program, given as a line of text.
    One(String),
}

/// Parses the arguments of the command. The error says which one is invalid.
pub(crate) fn parse(arguments: &[&str]) -> Result<Which, String> {
    if let ["--captured", rest @ ..] = arguments {
        return match parse(rest)? {
            Which::Many { seed, programs } => Ok(Which::Captured { seed, programs }),
            _ => Err("`--captured` takes --programs and --seed".to_owned()),
        };
    }
    let (mut seed, mut programs) = (1, PROGRAMS);
    for pair in arguments.chunks(2) {
        let [key, value] = *pair else { return Err(format!("`{}` needs a value", pair.concat())) };
        let number = || value.parse().map_err(|_| format!("`{value}` is no number"));
        match key {
            "--program" if arguments.len() == 2 => return Ok(Which::One(value.to_string())),
            "--programs" => programs = number()?,
            "--seed" => seed = number()?,
            _ => return Err(format!("`fuzz-grad` does not take `{key}`")),
        }
    }
    Ok(Which::Many { seed, programs })
}

/// Runs the programs. Each failure is printed with the command line that repeats it.
pub(crate) fn run(root: &Path, which: &Which) -> Result<(), String> {
    let mut command = crate::workspace::cargo();
    command.args(["run", "--release", "-p", "gradus-fuzz-grad", "--"]);
    match which {
        Which::Many { seed, programs } => {
            command.args(["--programs", &programs.to_string(), "--seed", &seed.to_string()])
        }
        Which::Captured { seed, programs } => {
            command.args(["--captured", "--programs", &programs.to_string(), "--seed", &seed.to_string()])
        }
        Which::One(line) => command.args(["--program", line]),
    };
    match command.current_dir(root).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("the random programs: {status}")),
        Err(error) => Err(format!("cargo did not start: {error}")),
    }
}

/// Runs the random programs of `xtask ci`.
pub(crate) fn default_run(root: &Path) -> Result<(), String> {
    run(root, &Which::Many { seed: 1, programs: PROGRAMS })?;
    run(root, &Which::Captured { seed: 1, programs: PROGRAMS / 5 })
}

//! `cargo xtask fuzz-grad`: gradients of random programs against a functional reference.
//!
//! The work is done by `gradus-fuzz-grad`; here is what `ci` and `deep` run of it.

use std::path::Path;

/// Programs of a run where nothing else is said.
const PROGRAMS: u64 = 20_000;

/// What is run.
#[derive(Debug, PartialEq)]
pub(crate) enum Which {
    /// Random programs.
    Many { seed: u64, programs: u64 },
    /// The program of one line of text.
    One(String),
}

/// Reads the arguments of the command; the error says which of them is wrong.
pub(crate) fn parse(arguments: &[&str]) -> Result<Which, String> {
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

/// Runs the programs; a failure was printed with the line that repeats it.
pub(crate) fn run(root: &Path, which: &Which) -> Result<(), String> {
    let mut command = crate::workspace::cargo();
    command.args(["run", "--release", "-p", "gradus-fuzz-grad", "--"]);
    match which {
        Which::Many { seed, programs } => {
            command.args(["--programs", &programs.to_string(), "--seed", &seed.to_string()])
        }
        Which::One(line) => command.args(["--program", line]),
    };
    match command.current_dir(root).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("the random programs: {status}")),
        Err(error) => Err(format!("cargo did not start: {error}")),
    }
}

/// The run of `ci`.
pub(crate) fn default_run(root: &Path) -> Result<(), String> {
    run(root, &Which::Many { seed: 1, programs: PROGRAMS })
}

//! `cargo xtask calls` and `cargo xtask files`: random calls of everything public, and damaged files of everything that is read,
//! in child processes that may panic, abort or hang.
//!
//! The work is done by the programs of `gradus-fuzz`; here is what `ci` and `deep` run of them.

use std::path::Path;

/// Runs the program `calls` or `files` with these options; `--release` before them says how it is built. A failure was printed
/// with the line that repeats it.
pub(crate) fn run(root: &Path, program: &str, options: &[&str]) -> Result<(), String> {
    let (build, options) = match options {
        ["--release", rest @ ..] => (&["--release"][..], rest),
        all => (&[][..], all),
    };
    crate::workspace::cargo_run(root, &[build, &["-p", "gradus-fuzz", "--bin", program, "--"], options].concat())
}

/// The run of `ci`: calls with debug assertions, a few seconds.
pub(crate) fn default_run(root: &Path) -> Result<(), String> {
    run(root, "calls", &[])
}

/// The runs of `deep`: `many` files of each format and calls as users build Gradus, and a tenth as many calls with debug
/// assertions.
pub(crate) fn deep(root: &Path, seed: u64, many: u64) -> Result<(), String> {
    let (seed, many, tenth) = (&*seed.to_string(), &*many.to_string(), &*(many / 10).to_string());
    run(root, "files", &["--release", "--files", many, "--seed", seed])?;
    run(root, "calls", &["--seed", seed, "--calls", tenth])?;
    run(root, "calls", &["--release", "--seed", seed, "--calls", many])
}

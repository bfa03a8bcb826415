//! `cargo xtask calls` and `cargo xtask files`: make random calls of the public API and read damaged files, in child
//! processes that may panic, abort or hang.
//!
//! The programs are in `gradus-fuzz`; this module runs them for `ci` and `deep`.

use std::path::Path;

/// Runs the program `calls` or `files` with these options. A leading `--release` selects the build profile. The program
/// prints each failure with the command line that repeats it.
pub(crate) fn run(root: &Path, program: &str, options: &[&str]) -> Result<(), String> {
    let (build, options) = match options {
        ["--release", rest @ ..] => (&["--release"][..], rest),
        all => (&[][..], all),
    };
    crate::workspace::cargo_run(root, &[build, &["-p", "gradus-fuzz", "--bin", program, "--"], options].concat())
}

/// Runs the part of `xtask ci`: a few seconds of calls with debug assertions.
pub(crate) fn default_run(root: &Path) -> Result<(), String> {
    run(root, "calls", &[])
}

/// Runs the part of `xtask deep`: `many` files of each format, as many calls in a release build, and a tenth as many
/// calls with debug assertions.
pub(crate) fn deep(root: &Path, seed: u64, many: u64) -> Result<(), String> {
    let (seed, many, tenth) = (&*seed.to_string(), &*many.to_string(), &*(many / 10).to_string());
    run(root, "files", &["--release", "--files", many, "--seed", seed])?;
    run(root, "calls", &["--seed", seed, "--calls", tenth])?;
    run(root, "calls", &["--release", "--seed", seed, "--calls", many])
}

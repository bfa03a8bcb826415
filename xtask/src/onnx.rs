//! `cargo xtask onnx`: runs the backend tests of ONNX on Gradus, and exports of Gradus on ONNX Runtime.
//!
//! The tests are data in the Python package `onnx`: models, inputs and outputs. The example `onnx_cases` of `gradus-onnx`
//! runs them. The example `onnx_exports` writes the networks of `gradus-models` as ONNX, and the script beside it compares.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::wheels::unpacked;
use crate::workspace::done;

/// The package, with the version that `docs/onnx.md` gives figures of.
const PACKAGE: &str = "onnx==1.22.0";

/// What the comparison of exports needs.
const CHECKERS: [&str; 4] = ["onnx==1.23.2", "onnxruntime==1.32.0", "safetensors==0.8.0", "numpy"];

/// The folders of the package that are run. `light` and `real` hold models whose weights are elsewhere.
const FOLDERS: [&str; 4] = ["node", "simple", "pytorch-converted", "pytorch-operator"];

/// The options of the command.
#[derive(Debug, PartialEq)]
pub(crate) struct Options {
    /// A Python interpreter with pip.
    python: String,
    /// Folders with tests, in place of those of the package.
    folders: Vec<PathBuf>,
    /// How many damaged copies of each model are run, in place of the tests.
    damage: Option<u64>,
}

/// Parses the arguments. The error says which one is invalid.
pub(crate) fn parse(arguments: &[&str]) -> Result<Options, String> {
    let mut options = Options { python: "python3".into(), folders: Vec::new(), damage: None };
    let mut rest = arguments.iter();
    while let Some(&word) = rest.next() {
        match (word, word.starts_with('-')) {
            ("--python", _) => options.python = rest.next().ok_or("`--python` needs a value")?.to_string(),
            ("--damage", _) => {
                let copies = rest.next().ok_or("`--damage` needs a value")?;
                options.damage = Some(copies.parse().map_err(|_| format!("`{copies}` is no number"))?);
            }
            (_, true) => return Err(format!("`onnx` does not take `{word}`")),
            (_, false) => options.folders.push(word.into()),
        }
    }
    Ok(options)
}

/// Downloads the packages that are not there yet, and runs the tests. Without folders, exports are compared too.
pub(crate) fn run(root: &Path, options: &Options) -> Result<(), String> {
    if options.folders.is_empty() && options.damage.is_none() {
        exports(root, &options.python)?;
    }
    let folders = match options.folders.is_empty() {
        true => fetched(root, &options.python)?,
        false => options.folders.clone(),
    };
    let mut command = crate::workspace::cargo();
    command.args(["run", "-p", "gradus-onnx", "--example", "onnx_cases", "--"]).current_dir(root);
    if let Some(copies) = options.damage {
        command.args(["--damage", &copies.to_string()]);
    }
    command.args(folders);
    done(&mut command, "the tests")
}

/// The folders with tests, from the package.
fn fetched(root: &Path, python: &str) -> Result<Vec<PathBuf>, String> {
    let data = unpacked(&root.join("target/onnx-tests"), python, PACKAGE)?.join("onnx/backend/test/data");
    Ok(FOLDERS.iter().map(|folder| data.join(folder)).collect())
}

/// Exports networks, and compares them with ONNX Runtime. The last line is `exports: N of M`.
fn exports(root: &Path, python: &str) -> Result<(), String> {
    let (packages, folder) = (root.join("target/onnx-python"), root.join("target/onnx-exports"));
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    if !packages.join("onnxruntime").is_dir() {
        let install = ["-m", "pip", "install", "--quiet", "--target"];
        let mut pip = Command::new(python);
        done(
            pip.args(install).arg(&packages).args(CHECKERS),
            "the download of ONNX Runtime (is pip there? see --python)",
        )?;
    }
    if folder.exists() {
        std::fs::remove_dir_all(&folder).map_err(failed)?;
    }
    let mut export = crate::workspace::cargo();
    export.args(["run", "-p", "gradus-onnx", "--example", "onnx_exports", "--"]).arg(&folder).current_dir(root);
    done(&mut export, "the exports")?;
    let script = root.join("crates/gradus-onnx/examples/onnx_exports/check.py");
    let mut check = Command::new(python);
    done(check.arg(script).arg(&folder).env("PYTHONPATH", &packages), "the comparison of exports")
}

//! `cargo xtask peers` and `bench`: run the driver of the comparison, which is a program of the workspace `benches/peers`.

use std::path::Path;

/// Builds and runs the driver with the command and its options.
pub(crate) fn run(root: &Path, words: &[String]) -> Result<(), String> {
    let folder = root.join("benches/peers");
    let mut command = crate::cargo();
    command.args(["run", "--release", "--locked", "--quiet", "-p", "peer-driver", "--manifest-path"]);
    command.arg(folder.join("Cargo.toml")).arg("--target-dir").arg(folder.join("target")).arg("--").args(words);
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("the comparison: {status}")),
        Err(error) => Err(format!("cargo did not start: {error}")),
    }
}

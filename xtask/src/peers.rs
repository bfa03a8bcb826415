//! `cargo xtask peers` and `bench`: run the driver of the speed comparison, a program in the workspace `benches/peers`.

use std::path::Path;
use std::process::ExitCode;

/// Builds and runs the driver with the command and its options. Its exit code is passed on; 1 or 2 means that it failed
/// and has printed the reason.
pub(crate) fn run(root: &Path, words: &[String]) -> Result<ExitCode, String> {
    let folder = root.join("benches/peers");
    let mut command = crate::workspace::cargo();
    command.args(["run", "--release", "--locked", "--quiet", "-p", "peer-driver", "--manifest-path"]);
    command.arg(folder.join("Cargo.toml")).arg("--target-dir").arg(folder.join("target")).arg("--").args(words);
    match command.status() {
        Ok(status) => match status.code() {
            Some(code @ 0..=2) => Ok(ExitCode::from(code as u8)),
            _ => Err(format!("the comparison: {status}")),
        },
        Err(error) => Err(format!("cargo did not start: {error}")),
    }
}

//! The root of the workspace, and cargo commands in it.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The root of the workspace. When cargo runs this package, it says where the package is.
pub(crate) fn root() -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let package = package.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")));
    package.parent().map(Path::to_path_buf).unwrap_or(package)
}

/// The cargo that runs this program, or the one on the path.
pub(crate) fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Builds and runs a program of the workspace. The arguments are those of `cargo run`.
pub(crate) fn cargo_run(root: &Path, arguments: &[&str]) -> Result<(), String> {
    cargo_do(root, "run", arguments)
}

/// Builds and runs tests of the workspace. The arguments are those of `cargo test`.
pub(crate) fn cargo_test(root: &Path, arguments: &[&str]) -> Result<(), String> {
    cargo_do(root, "test", arguments)
}

/// Builds and runs benchmarks of the workspace. The arguments are those of `cargo bench`.
pub(crate) fn cargo_bench(root: &Path, arguments: &[&str]) -> Result<(), String> {
    cargo_do(root, "bench", arguments)
}

fn cargo_do(root: &Path, command: &str, arguments: &[&str]) -> Result<(), String> {
    match cargo().arg(command).args(arguments).current_dir(root).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`cargo {command} {}`: {status}", arguments.join(" "))),
        Err(error) => Err(format!("cargo did not start: {error}")),
    }
}

/// Runs a command. The error says `what` failed.
pub(crate) fn done(command: &mut Command, what: &str) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{what}: {status}")),
        Err(error) => Err(format!("{what}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_holds_this_package() {
        assert!(root().join("xtask/src/main.rs").is_file());
    }
}

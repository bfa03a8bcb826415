//! The Python environment with the peers that are not crates.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What is installed, and the versions that the comparison is about.
const PACKAGES: [&str; 3] = ["torch==2.15.0", "jax[cpu]", "numpy"];

/// The interpreter of the given environment, or of `target/peers-venv`, which is made if it is absent (some minutes and
/// 5 GB).
pub fn interpreter(root: &Path, venv: Option<&Path>) -> Result<PathBuf, String> {
    if let Some(venv) = venv {
        let python = venv.join("bin/python");
        return if python.is_file() { Ok(python) } else { Err(format!("there is no {}", python.display())) };
    }
    let venv = root.join("target/peers-venv");
    let python = venv.join("bin/python");
    if !complete(&python) {
        println!("installing {} into {}", PACKAGES.join(", "), venv.display());
        succeed(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
        succeed(Command::new(&python).args(["-m", "pip", "install", "--quiet"]).args(PACKAGES))?;
    }
    Ok(python)
}

/// Whether everything is there: an installation that was stopped is finished.
fn complete(python: &Path) -> bool {
    let find = "import importlib.util as u, sys; sys.exit(not all(u.find_spec(m) for m in ('torch', 'jax', 'numpy')))";
    Command::new(python).args(["-c", find]).status().is_ok_and(|status| status.success())
}

fn succeed(command: &mut Command) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?}: {status}")),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}

/// The version of a package, if it is there.
pub fn version(python: &Path, package: &str) -> Option<String> {
    let ask = format!("import importlib.metadata as m; print(m.version('{package}'))");
    let output = Command::new(python).args(["-c", &ask]).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

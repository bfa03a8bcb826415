//! The Python environment of the peers that are not crates.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The Python packages that are compared, with their extras and versions.
const PACKAGES: [(&str, &str, &str); 3] = [("torch", "", "2.15.0"), ("jax", "[cpu]", "0.10.2"), ("numpy", "", "2.4.6")];

/// The interpreter of the given environment or, without one, of `target/peers-venv`. That environment is created if it
/// is absent or has other versions, which takes minutes and 5 GB.
pub fn interpreter(root: &Path, venv: Option<&Path>) -> Result<PathBuf, String> {
    if let Some(venv) = venv {
        let python = venv.join("bin/python");
        return if python.is_file() { Ok(python) } else { Err(format!("there is no {}", python.display())) };
    }
    let venv = root.join("target/peers-venv");
    let python = venv.join("bin/python");
    let is_there = |(name, _, wanted): &(&str, &str, &str)| version(&python, name).is_some_and(|v| is_of(&v, wanted));
    if !PACKAGES.iter().all(is_there) {
        let packages = PACKAGES.map(|(name, extra, version)| format!("{name}{extra}=={version}"));
        println!("installing {} into {}", packages.join(", "), venv.display());
        succeed(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
        succeed(Command::new(&python).args(["-m", "pip", "install", "--quiet"]).args(packages))?;
    }
    Ok(python)
}

/// Whether `found` is the wanted version. It may name a build after `+`.
fn is_of(found: &str, wanted: &str) -> bool {
    found.split('+').next() == Some(wanted)
}

fn succeed(command: &mut Command) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?}: {status}")),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}

/// The version of a package, if it is installed.
pub fn version(python: &Path, package: &str) -> Option<String> {
    let ask = format!("import importlib.metadata as m; print(m.version('{package}'))");
    let output = Command::new(python).args(["-c", &ask]).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_is_of_its_version() {
        assert!(is_of("2.15.0", "2.15.0") && is_of("2.15.0+cu132", "2.15.0"));
        assert!(!is_of("2.15.1", "2.15.0") && !is_of("", "2.15.0"));
    }

    #[test]
    fn an_environment_that_is_not_there_is_named() {
        let error = interpreter(Path::new("/"), Some(Path::new("/no/such/place"))).unwrap_err();
        assert_eq!(error, "there is no /no/such/place/bin/python");
    }
}

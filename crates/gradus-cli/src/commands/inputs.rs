//! The files that `gradus predict` is given, by name or as folders.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use gradus::{Error, ErrorKind, Result};

/// The ends of the names of files that are taken from a folder.
pub(super) const PICTURES: &[&str] = &["png", "jpg", "jpeg"];
pub(super) const TABLES: &[&str] = match cfg!(feature = "parquet") {
    true => &["csv", "parquet", "pq", "arrow", "feather", "ipc"],
    false => &["csv"],
};

/// The files among `inputs`, and, sorted, those in the folders among them and in their subfolders whose names end in one of
/// `ends`. Errors if a folder cannot be read or has no such file.
pub(super) fn files(inputs: &[PathBuf], ends: &[&str]) -> Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for input in inputs {
        if !input.is_dir() {
            all.push(input.clone());
            continue;
        }
        let before = all.len();
        collect(input, ends, &mut all, &mut BTreeSet::new())?;
        if all.len() == before {
            let m = format!("{} has no file whose name ends in .{}", input.display(), ends.join(", ."));
            return Err(Error::new(ErrorKind::Io, "predict", m).help("name files, or a folder that has some"));
        }
    }
    Ok(all)
}

/// [`files`] without the file `out`, which a folder has from an earlier call. Errors if `out` itself is an input.
pub(super) fn files_without(inputs: &[PathBuf], ends: &[&str], out: Option<&Path>) -> Result<Vec<PathBuf>> {
    let Some(out) = out.and_then(|out| out.canonicalize().ok()) else { return files(inputs, ends) };
    let is_out = |path: &PathBuf| path.canonicalize().is_ok_and(|path| path == out);
    if let Some(input) = inputs.iter().find(|input| is_out(input)) {
        let m = format!("{} is an input and would be replaced by the predictions", input.display());
        return Err(Error::argument("predict", m).help("name another file for the predictions (--out)"));
    }
    let mut all = files(inputs, ends)?;
    all.retain(|path| !is_out(path));
    Ok(all)
}

/// Appends the files in a folder. `seen` has the folders that were visited: a link may lead back to one of them.
fn collect(folder: &Path, ends: &[&str], all: &mut Vec<PathBuf>, seen: &mut BTreeSet<PathBuf>) -> Result<()> {
    let failed = |e| Error::io("predict", folder.display(), e).help("name files and folders that can be read");
    if !seen.insert(folder.canonicalize().map_err(failed)?) {
        return Ok(());
    }
    let mut entries: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        entries.push(entry.map_err(failed)?.path());
    }
    entries.sort();
    for path in entries {
        let end = path.extension().and_then(|end| end.to_str()).map(str::to_ascii_lowercase);
        if path.is_dir() {
            collect(&path, ends, all, seen)?;
        } else if end.is_some_and(|end| ends.contains(&end.as_str())) {
            all.push(path);
        }
    }
    Ok(())
}

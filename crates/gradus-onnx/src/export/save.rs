//! Replaces a model together with the file of its tensors. The data of the new model has another name than that of the old
//! one, so at each moment the path holds one of the two with its own data.

use std::fs;
use std::path::{Path, PathBuf};

use gradus_tensor::Result;

use super::trace::OP;
use super::write::Files;
use crate::proto::{self, Proto};
use crate::wire::Message;

/// Where a model is written.
pub(super) struct Target<'a> {
    path: &'a Path,
    replace: bool,
    /// The file beside the model that holds its tensors, if they are too large for one file.
    pub(super) data: PathBuf,
    /// Such a file of the model that is replaced.
    old: Option<PathBuf>,
}

impl<'a> Target<'a> {
    /// Fails if the model cannot be written there.
    pub(super) fn new(path: &'a Path, replace: bool) -> Result<Self> {
        gradus_file::check(OP, path, replace)?;
        let [data, other] = [".data", ".1.data"].map(|end| {
            let mut name = path.file_name().unwrap_or_default().to_owned();
            name.push(end);
            path.with_file_name(name)
        });
        Ok(match (reads(path, &data), reads(path, &other)) {
            (true, _) => Target { path, replace, data: other, old: Some(data) },
            (_, is_old) => Target { path, replace, data, old: is_old.then_some(other) },
        })
    }

    /// Fails if the files cannot be written.
    pub(super) fn check(&self, files: &Files) -> Result<()> {
        if files.data.is_some() { gradus_file::check(OP, &self.data, self.replace) } else { Ok(()) }
    }

    pub(super) fn write(&self, files: &Files) -> Result<()> {
        let write = |path: &Path, bytes: &[u8]| {
            gradus_file::write(OP, path, self.replace, |w| {
                w.write_all(bytes).map_err(|e| gradus_file::failed(OP, path, e))
            })
        };
        if let Some(data) = &files.data {
            write(&self.data, data)?;
        }
        write(self.path, &files.model)?;
        if let Some(old) = &self.old {
            // The export has succeeded, whether or not the file that nothing reads any more can be removed.
            let _ = fs::remove_file(old);
        }
        Ok(())
    }
}

/// Whether there is a model that has its tensors in this file beside it.
fn reads(model: &Path, data: &Path) -> bool {
    if !data.exists() {
        return false;
    }
    let Ok(bytes) = fs::read(model) else { return false };
    let Ok(read) = proto::Model::read(Message::new(&bytes)) else { return false };
    let name = data.file_name().unwrap_or_default().to_string_lossy();
    let mut entries = read.graph.iter().flat_map(|graph| &graph.initializers).flat_map(|tensor| &tensor.external);
    entries.any(|entry| entry.key == "location" && entry.value == name)
}

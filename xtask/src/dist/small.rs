//! A disk that is soon full.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A small disk in memory. It is taken away when it is dropped.
pub(super) struct Small(PathBuf);

impl Small {
    /// `None` if this user may not mount one.
    pub(super) fn mount(folder: PathBuf) -> Result<Option<Small>, String> {
        std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=16m", "gradus-dist"]).arg(&folder).stderr(Stdio::null());
        Ok(mount.status().is_ok_and(|status| status.success()).then_some(Small(folder)))
    }

    /// Takes the room that is left. Returns the file that has it.
    pub(super) fn fill(&self) -> Result<PathBuf, String> {
        let path = self.0.join("filler");
        let filled = File::create(&path).and_then(|mut file| {
            loop {
                file.write_all(&[0; 4096])?;
            }
        });
        match filled {
            Err(e) if e.kind() == ErrorKind::StorageFull => Ok(path),
            other => other.map_err(|e| format!("{}: {e}", path.display())),
        }
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).stderr(Stdio::null()).status();
    }
}

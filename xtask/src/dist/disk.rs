//! Disks that get full while ranks save a training.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::command::{Gradus, LIMIT, LONG, failed, has_state, ranks, with_out};
use super::process::{Ended, Running};

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
    fn fill(&self) -> Result<PathBuf, String> {
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

impl Gradus<'_> {
    /// Rank 0 saves alone, on a disk that gets full.
    pub(super) fn full_disk(&self, small: &Small, whole: &[u8]) -> Result<(), String> {
        let (running, out, _) = self.begun(&[], "full-disk")?;
        let filler = small.fill()?;
        let ended = running.end(LIMIT)?;
        failed(&ended, &["rank 0 of the world has given up"])?;
        all_say(&ended, &["full-disk/checkpoints/checkpoint-", "no storage space"])?;
        whole_states(&out)?;
        std::fs::remove_file(&filler).map_err(|e| format!("{}: {e}", filler.display()))?;
        self.goes_on(&out, "full-disk", whole)
    }

    /// One of four ranks can write no more: the size of its files is limited, since its disk is that of the others.
    pub(super) fn full_part(&self, whole: &[u8]) -> Result<(), String> {
        let out = self.folder.join("full-part");
        let words = with_out(&[&LONG[..], &["--shard", "--resume"]].concat(), &out);
        let mut mpirun = self.mpi.mpirun(4);
        // Without the signal of this limit, to write is an error.
        mpirun.args(["sh", "-c", "trap '' XFSZ; exec \"$0\" \"$@\""]).arg(self.program).args(words);
        let mut running = Running::start(mpirun.current_dir(self.folder), &out)?;
        running.until("a state", || has_state(&out))?;
        let &[_, _, rank, _] = &ranks(running.process())[..] else { return Err("there are not four ranks".into()) };
        let mut limit = Command::new("prlimit");
        crate::workspace::done(limit.args(["--fsize=0", "--pid", &rank.to_string()]), "prlimit")?;
        let ended = running.end(LIMIT)?;
        failed(&ended, &["this is rank 2 of 4"])?;
        all_say(&ended, &[".part-2-of-4.safetensors", "file too large"])?;
        whole_states(&out)?;
        self.goes_on(&out, "full-part", whole)
    }
}

/// Each of four ranks says each of these.
fn all_say(ended: &Ended, said: &[&str]) -> Result<(), String> {
    let few = said.iter().find(|text| ended.err.matches(**text).count() < 4);
    few.map_or(Ok(()), |text| Err(format!("not all ranks say `{text}`: {}", ended.err)))
}

/// The folder of the states has at least one, and no file that belongs to none.
fn whole_states(out: &Path) -> Result<(), String> {
    let folder = out.join("checkpoints");
    let entries = std::fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let names: Vec<String> = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    let manifest = |name: &str| format!("{}.json", name.split('.').next().unwrap_or_default());
    if has_state(out) && names.iter().all(|name| names.contains(&manifest(name))) {
        return Ok(());
    }
    Err(format!("the folder of the states has {names:?}"))
}

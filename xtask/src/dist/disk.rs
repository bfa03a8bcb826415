//! Disks that get full while ranks save a training.

use std::path::Path;
use std::process::Command;

use super::command::{Gradus, LIMIT, LONG, failed, has_state, ranks, with_out};
use super::process::{Ended, Running};
use super::small::Small;

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

//! [`Session`]: where a run of `gradus train` computes and saves.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gradus::prelude::*;
use gradus::train::RunFolder;

use super::team::Team;
use crate::args::TrainOptions;
pub(super) use crate::commands::MODEL;
use crate::interrupt::{INTERRUPTED, Interrupt};
use crate::output::{complain, say};

/// The files of a run, beside the model.
pub(super) const METRICS: &str = "metrics.csv";
pub(super) const CONFIG: &str = "config.toml";
pub(super) const REPORT: &str = "report.html";

/// The folder of the states from which a run goes on. It is removed when the run is complete.
pub(super) const CHECKPOINTS: &str = "checkpoints";

/// A run of `gradus train`.
pub(super) struct Session<'a> {
    pub(super) options: &'a TrainOptions,
    pub(super) device: Device,
    pub(super) team: Team,
    /// A flag that stops the training between two steps; `None` if nothing is saved.
    pub(super) stop: Option<Arc<AtomicBool>>,
    /// `None` if this process saves nothing.
    pub(super) place: Option<Place>,
}

/// Where a run saves, and what must not be interrupted.
pub(super) struct Place {
    pub(super) interrupt: Interrupt,
    pub(super) out: Arc<RunFolder>,
}

impl<'a> Session<'a> {
    /// Joins the other ranks, if there are any, and opens the device.
    pub(super) fn open(options: &'a TrainOptions) -> Result<Session<'a>> {
        if options.resume && options.out.is_none() {
            let e = Error::argument("train", "--resume without --out");
            return Err(e.help("name the folder of the run to go on with: --out DIR"));
        }
        let (team, device) = Team::join(options.shard, &options.common)?;
        Ok(Session { options, device, team, stop: None, place: None })
    }

    /// Claims the folder for the results: the one that the user named, or the next free one of `out/NAME`. `files` are
    /// the names of the task's own files. Claims nothing if nothing is saved.
    pub(super) fn claim(&mut self, name: &str, files: &[&str]) -> Result<()> {
        let TrainOptions { fast_dev_run, overfit_batch, find_lr, .. } = *self.options;
        if fast_dev_run || overfit_batch || find_lr {
            // What saves nothing ends at once, on all ranks: mpirun ends the others.
            self.team.watch_launcher(|| std::process::exit(INTERRUPTED));
            return Ok(());
        }
        let interrupt = Interrupt::watch()?;
        let stop = interrupt.flag();
        self.stop = Some(stop.clone());
        self.team.watch_launcher(move || stop.store(true, Ordering::Relaxed));
        if !self.team.is_first() {
            return Ok(());
        }
        let out = interrupt.claim(|| self.open_folder(name)).map_err(|e| self.team.told(e))?;
        out.check(&[&[MODEL, METRICS, CONFIG, REPORT], files].concat()).map_err(|e| self.team.told(e))?;
        self.place = Some(Place { interrupt, out });
        Ok(())
    }

    fn open_folder(&self, name: &str) -> Result<RunFolder> {
        let TrainOptions { force, resume, .. } = *self.options;
        if let Some(out) = &self.options.out {
            let has_state = has_state(&out.join(CHECKPOINTS));
            let folder = RunFolder::create(out, force || (resume && has_state) || is_bare(out));
            return folder.map_err(|e| match (has_state, resume) {
                (true, false) => {
                    e.help("it holds an unfinished run: go on with it (--resume), or replace it (--force)")
                }
                (false, true) => e.note("it holds no state of an unfinished run to go on with"),
                _ => e,
            });
        }
        let base = PathBuf::from("out").join(name);
        if !force && has_state(&base.join(CHECKPOINTS)) {
            let base = base.display();
            complain(&format!("note: {base} holds an unfinished run; --resume --out {base} goes on with it"));
        }
        if force || is_bare(&base) { RunFolder::create(base, true) } else { RunFolder::next_free(base) }
    }

    /// Prints a JSON object as the last line, if the user asked for one.
    pub(super) fn say_json(&self, object: serde_json::Value) -> Result<()> {
        if self.options.common.json { say(&object.to_string()) } else { Ok(()) }
    }
}

/// Whether the folder of a run's states has one to go on from.
pub(super) fn has_state(states: &Path) -> bool {
    let mut names = std::fs::read_dir(states).into_iter().flatten().flatten().map(|entry| entry.file_name());
    names.any(|name| name.to_str().is_some_and(is_state))
}

/// The name of the newest state of a run in this folder, if there is one.
pub(crate) fn newest_state(out: &Path) -> Option<String> {
    let names = std::fs::read_dir(out.join(CHECKPOINTS)).into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| is_state(name)).max_by_key(|name| (name.len(), name.clone()))
}

fn is_state(name: &str) -> bool {
    name.starts_with("checkpoint-") && name.ends_with(".json")
}

/// Whether a folder has nothing but what a run leaves that was killed before it saved a state.
fn is_bare(folder: &Path) -> bool {
    let states = folder.join(CHECKPOINTS);
    let mut entries = std::fs::read_dir(folder).into_iter().flatten();
    let is_left = |name: &std::ffi::OsStr| name == CHECKPOINTS || name == ".gradus-run";
    states.is_dir() && !has_state(&states) && entries.all(|e| e.is_ok_and(|e| is_left(&e.file_name())))
}

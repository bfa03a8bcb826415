//! Ctrl-C: the first asks the training to end, the second ends the program, but never in the midst of saving.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use gradus::train::RunFolder;
use gradus::{Error, ErrorKind, Result};

use crate::output::complain;

/// The exit code of a program that Ctrl-C ended.
const INTERRUPTED: i32 = 130;

/// What Ctrl-C acts on.
#[derive(Default)]
pub(crate) struct Interrupt {
    stop: Arc<AtomicBool>,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    saving: bool,
    /// What to tidy up before the program ends.
    folder: Weak<RunFolder>,
}

impl Interrupt {
    /// Handles Ctrl-C from now on.
    pub(crate) fn watch() -> Result<Interrupt> {
        let watched = Interrupt::default();
        let (stop, state) = (watched.stop.clone(), watched.state.clone());
        let handler = move || {
            let again = stop.swap(true, Ordering::Relaxed);
            let state = lock(&state);
            if state.saving {
                complain("\nthe results are being saved; this takes a moment");
            } else if again {
                if let Some(folder) = state.folder.upgrade() {
                    folder.release();
                }
                // Still locked: saving cannot begin before the end.
                std::process::exit(INTERRUPTED);
            } else {
                complain("\nstopping after this step; Ctrl-C again to end at once without saving");
            }
        };
        ctrlc::set_handler(handler).map_err(|e| {
            Error::new(ErrorKind::Backend, "train", "the handler of Ctrl-C could not be set").with_source(e)
        })?;
        Ok(watched)
    }

    /// A flag that Ctrl-C sets.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        self.stop.clone()
    }

    /// Opens a folder that is tidied up if Ctrl-C ends the program.
    pub(crate) fn claim(&self, open: impl FnOnce() -> Result<RunFolder>) -> Result<Arc<RunFolder>> {
        let mut state = lock(&self.state);
        let folder = Arc::new(open()?);
        state.folder = Arc::downgrade(&folder);
        Ok(folder)
    }

    /// Runs `save`, which Ctrl-C does not end.
    pub(crate) fn while_saving<T>(&self, save: impl FnOnce() -> T) -> T {
        lock(&self.state).saving = true;
        let saved = save();
        lock(&self.state).saving = false;
        saved
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

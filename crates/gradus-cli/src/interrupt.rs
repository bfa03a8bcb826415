//! Handles Ctrl-C and SIGTERM, which have the same effect. The first signal asks the training to stop. The second ends
//! the program, but never while results are being saved.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use gradus::train::RunFolder;
use gradus::{Error, ErrorKind, Result};

use crate::output::complain;

/// The exit code of a program that was ended by Ctrl-C.
pub(crate) const INTERRUPTED: i32 = 130;

/// Signals that follow each other faster than this count as one: a terminal and a parent process may both forward the
/// same request.
const AT_ONCE: Duration = Duration::from_millis(500);

/// The state on which the signal handler acts.
#[derive(Default)]
pub(crate) struct Interrupt {
    stop: Arc<AtomicBool>,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// When the first signal arrived.
    asked: Option<Instant>,
    saving: bool,
    /// The folder to clean up before the program ends.
    folder: Weak<RunFolder>,
    /// What else happens before the second signal ends the program.
    last: Option<Box<dyn FnOnce() + Send>>,
}

impl Interrupt {
    /// Starts handling the signals.
    pub(crate) fn watch() -> Result<Interrupt> {
        let watched = Interrupt::default();
        let (stop, state) = (watched.stop.clone(), watched.state.clone());
        let handler = move || {
            stop.store(true, Ordering::Relaxed);
            let mut state = lock(&state);
            let asked = *state.asked.get_or_insert_with(Instant::now);
            if state.saving {
                complain("\nthe results are being saved; this takes a moment");
            } else if asked.elapsed() >= AT_ONCE {
                if let Some(folder) = state.folder.upgrade() {
                    folder.release();
                }
                if let Some(last) = state.last.take() {
                    last();
                }
                // The lock is still held, so saving cannot begin before the program ends.
                std::process::exit(INTERRUPTED);
            } else {
                complain("\nstopping after this step; Ctrl-C again to end at once without saving");
            }
        };
        on_signal(handler).map_err(|e| {
            Error::new(ErrorKind::Backend, "train", "the handler of Ctrl-C could not be set").with_source(e)
        })?;
        Ok(watched)
    }

    /// A flag that the first signal sets.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        self.stop.clone()
    }

    /// Opens a folder that is cleaned up if a signal ends the program.
    pub(crate) fn claim(&self, open: impl FnOnce() -> Result<RunFolder>) -> Result<Arc<RunFolder>> {
        let mut state = lock(&self.state);
        let folder = Arc::new(open()?);
        state.folder = Arc::downgrade(&folder);
        Ok(folder)
    }

    /// Runs `last` before the second signal ends the program.
    pub(crate) fn before_the_end(&self, last: impl FnOnce() + Send + 'static) {
        lock(&self.state).last = Some(Box::new(last));
    }

    /// Runs `save`; the handled signals do not interrupt it.
    pub(crate) fn while_saving<T>(&self, save: impl FnOnce() -> T) -> T {
        lock(&self.state).saving = true;
        let saved = save();
        lock(&self.state).saving = false;
        saved
    }
}

/// Calls `handler` for each SIGINT and SIGTERM, on a separate thread. SIGHUP is left alone, so that `nohup` can make
/// the program ignore it.
#[cfg(unix)]
fn on_signal(mut handler: impl FnMut() + Send + 'static) -> std::io::Result<()> {
    use signal_hook::consts::{SIGINT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM])?;
    let thread = std::thread::Builder::new().name("signals".into());
    thread.spawn(move || signals.forever().for_each(|_| handler())).map(drop)
}

/// Calls `handler` on a separate thread when the user or the system asks the program to end.
#[cfg(not(unix))]
fn on_signal(handler: impl FnMut() + Send + 'static) -> std::io::Result<()> {
    ctrlc::set_handler(handler).map_err(std::io::Error::other)
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

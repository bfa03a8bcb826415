//! Ctrl-C: the first asks the training to end, the second ends the program.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gradus::{Error, ErrorKind, Result};

use crate::output::complain;

/// The exit code of a program that Ctrl-C ended.
const INTERRUPTED: i32 = 130;

/// A flag that Ctrl-C sets.
pub(crate) fn flag() -> Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    let raised = flag.clone();
    ctrlc::set_handler(move || {
        if raised.swap(true, Ordering::Relaxed) {
            std::process::exit(INTERRUPTED);
        }
        complain("\nstopping after this step; Ctrl-C again to end at once without saving");
    })
    .map_err(|e| Error::new(ErrorKind::Backend, "train", "the handler of Ctrl-C could not be set").with_source(e))?;
    Ok(flag)
}

//! Errors that wgpu's callbacks report: validation errors, out-of-memory errors and the loss of the device.
//!
//! What a kernel finds is the subject of [`gradus_backend::late`].

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use gradus_backend::{Error, ErrorKind, Result};

/// The errors that wgpu's callbacks reported.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    lost: AtomicBool,
    /// Whether there are errors that have not been taken.
    reported: AtomicBool,
    reports: Mutex<Reports>,
}

#[derive(Debug, Default)]
struct Reports {
    lost: String,
    errors: Vec<Error>,
}

impl Faults {
    fn reports(&self) -> MutexGuard<'_, Reports> {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores an error that cannot be attributed to a call.
    pub(crate) fn report(&self, error: wgpu::Error) {
        let (kind, what) = match error {
            wgpu::Error::OutOfMemory { source } => (ErrorKind::OutOfMemory { requested: 0 }, source.to_string()),
            wgpu::Error::Validation { description, .. } | wgpu::Error::Internal { description, .. } => {
                (ErrorKind::Backend, description)
            }
        };
        self.reports().errors.push(Error::new(kind, "wgpu", what));
        self.reported.store(true, Ordering::Release);
    }

    /// Records that the device is lost.
    pub(crate) fn report_lost(&self, why: String) {
        self.reports().lost = why;
        self.lost.store(true, Ordering::Release);
    }

    /// Whether the device is lost.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Fails if the device is lost, because nothing works on it any more.
    pub(crate) fn check_lost(&self, op: &str) -> Result<()> {
        if !self.is_lost() {
            return Ok(());
        }
        let why = self.reports().lost.clone();
        Err(Error::new(ErrorKind::Backend, op, format!("the device is lost: {why}"))
            .help("open the device again; what was on it is gone"))
    }

    /// Removes the reported errors, and returns the first with the others as its notes.
    pub(crate) fn take(&self) -> Option<Error> {
        if !self.reported.swap(false, Ordering::Acquire) {
            return None;
        }
        let errors = std::mem::take(&mut self.reports().errors);
        errors.into_iter().reduce(|first, other| first.note(other.to_string()))
    }
}

//! [`Handle`]: a call that goes on while this rank computes.

use std::panic::Location;
use std::sync::mpsc;

use gradus_tensor::{Error, ErrorKind, Result, Tensor};

/// A call that was started. Calls of one communicator run one after the other, in the order in which they were started.
#[derive(Debug)]
#[must_use = "the result, and what went wrong, are returned by wait"]
pub struct Handle {
    result: mpsc::Receiver<Result<Tensor>>,
    op: &'static str,
    line: &'static Location<'static>,
}

impl Handle {
    pub(crate) fn new(
        result: mpsc::Receiver<Result<Tensor>>,
        op: &'static str,
        line: &'static Location<'static>,
    ) -> Self {
        Handle { result, op, line }
    }

    /// Waits for the call and returns its result.
    ///
    /// # Errors
    /// Those of the call, with the line on which it was started.
    pub fn wait(self) -> Result<Tensor> {
        let gone = || Error::new(ErrorKind::Peer, self.op, "the thread that made the call has ended").at(self.line);
        self.result.recv().unwrap_or_else(|_| Err(gone()))
    }
}

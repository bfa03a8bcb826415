//! [`Handle`]: a call that goes on while this rank computes.

use std::panic::Location;
use std::sync::{Arc, mpsc};

use gradus_tensor::ops::HostCall;
use gradus_tensor::{Error, ErrorKind, Result, Tensor};

/// A call that was started. Calls of one communicator run one after the other, in the order in which they were started.
#[derive(Debug)]
#[must_use = "the result, and what went wrong, are returned by wait"]
pub struct Handle {
    result: mpsc::Receiver<Result<Tensor>>,
    op: &'static str,
    line: &'static Location<'static>,
    /// How a captured step waits for the call.
    wait: Option<Arc<dyn HostCall>>,
}

impl Handle {
    pub(crate) fn new(
        result: mpsc::Receiver<Result<Tensor>>,
        op: &'static str,
        line: &'static Location<'static>,
    ) -> Self {
        Handle { result, op, line, wait: None }
    }

    /// That of a call that has ended.
    pub(crate) fn of_result(result: Result<Tensor>, op: &'static str, line: &'static Location<'static>) -> Self {
        let (sender, receiver) = mpsc::channel();
        // The receiver is there.
        let _ = sender.send(result);
        Handle::new(receiver, op, line)
    }

    /// That of a call of a captured step, for whose end `wait` waits in each replay.
    pub(crate) fn of_step(
        result: Tensor,
        wait: Arc<dyn HostCall>,
        op: &'static str,
        line: &'static Location<'static>,
    ) -> Self {
        Handle { wait: Some(wait), ..Handle::of_result(Ok(result), op, line) }
    }

    /// Waits for the call and returns its result.
    ///
    /// # Errors
    /// Those of the call, with the line on which it was started.
    pub fn wait(self) -> Result<Tensor> {
        let gone = || Error::new(ErrorKind::Peer, self.op, "the thread that made the call has ended").at(self.line);
        let result = self.result.recv().unwrap_or_else(|_| Err(gone()))?;
        if let Some(wait) = self.wait {
            result.device().dispatch_host(wait, &[], self.line)?;
        }
        Ok(result)
    }
}

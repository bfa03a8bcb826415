//! A device that records its calls, together with a trace of the operations that made them.

use std::sync::{Arc, Mutex};

use gradus::ops::{Traced, trace};
use gradus::prelude::*;

/// A CPU that records its calls. Reads and writes by the host are not recorded, because they belong to no operation.
pub(crate) struct Noted {
    pub(crate) device: Device,
    calls: Arc<Mutex<Vec<String>>>,
}

impl Noted {
    pub(crate) fn new() -> Noted {
        let calls = Arc::new(Mutex::new(vec![]));
        let seen = calls.clone();
        let device = Device::from_backend(Arc::new(gradus::cpu::CpuBackend::new().unwrap())).watched(move |call| {
            if !matches!(call.name, "upload" | "download") {
                seen.lock().unwrap().push(call.name.to_owned());
            }
        });
        Noted { device, calls }
    }

    /// Runs a step. Passes each operation to `seen`, with the calls made since the previous operation.
    pub(crate) fn walk<R>(
        &self,
        mut seen: impl FnMut(&Traced<'_>, Vec<String>) + 'static,
        step: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        self.calls.lock().unwrap().clear();
        let calls = self.calls.clone();
        let told = move |ran: &Traced<'_>| {
            let calls = std::mem::take(&mut *calls.lock().unwrap());
            seen(ran, calls);
        };
        let result = trace(told, step)?;
        let rest = self.calls.lock().unwrap();
        assert!(rest.is_empty(), "calls of no operation: {rest:?}");
        Ok(result)
    }
}

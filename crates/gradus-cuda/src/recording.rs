//! Lists what a thread queues while it makes the calls of a list that is to become a graph.
//!
//! The calls run as always; what they queue is noted here too. A call that does more than to queue kernels and copies on
//! the device ends the recording.

use std::cell::RefCell;
use std::sync::Arc;

use gradus_backend::late::{Access, Contents, Fault};

use crate::arguments::Arguments;
use crate::driver::{Device, Kernel, Product};
use crate::memory::{Block, Place};

/// Work that was queued.
pub(crate) struct Work {
    pub(crate) what: What,
    /// The slot that the work depends on.
    pub(crate) slot: Option<u32>,
    /// How many faults had been announced when the work was queued.
    pub(crate) faults: usize,
    /// What it uses.
    pub(crate) uses: Vec<(Arc<Place>, Arc<Contents>, Access)>,
    /// How many successive uses belong together. The others do not depend on them.
    pub(crate) part: usize,
}

/// What the device is to do.
pub(crate) enum What {
    Launch { kernel: Kernel, shape: ([u32; 3], [u32; 3], u32), arguments: Arguments },
    Multiply(Product),
    Copy { to: u64, from: u64, bytes: usize },
}

/// What a thread has queued since its recording began.
pub(crate) struct Recording {
    device: Arc<Device>,
    pub(crate) works: Vec<Work>,
    /// The faults that calls have announced, with their slots. A slot may have had several, of which the last counts.
    pub(crate) faults: Vec<(u32, Fault)>,
}

thread_local! {
    static RECORDING: RefCell<Option<Recording>> = const { RefCell::new(None) };
}

/// The recording of this thread, which ends when this is dropped.
pub(crate) struct Session(());

impl Session {
    /// Begins a recording; `None` if this thread has one.
    pub(crate) fn begin(device: &Arc<Device>) -> Option<Session> {
        RECORDING.with_borrow_mut(|recording| {
            if recording.is_some() {
                return None;
            }
            *recording = Some(Recording { device: device.clone(), works: vec![], faults: vec![] });
            Some(Session(()))
        })
    }

    /// Ends the recording; `None` if a call has ended it.
    pub(crate) fn end(self) -> Option<Recording> {
        RECORDING.take()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        refuse();
    }
}

/// Ends the recording of this thread without a result, because a graph could not do what a call does.
pub(crate) fn refuse() {
    let _ = RECORDING.try_with(RefCell::take);
}

/// Notes something in the recording of this thread. If that is the recording of another device, it ends.
fn note(device: &Device, what: impl FnOnce(&mut Recording)) {
    // A thread that ends records nothing.
    let _ = RECORDING.try_with(|recording| match &mut *recording.borrow_mut() {
        Some(one) if std::ptr::eq(&*one.device, device) => what(one),
        other => *other = None,
    });
}

/// A call has announced a fault, and holds this slot for it.
pub(crate) fn held(device: &Device, slot: u32, fault: impl Fn() -> Fault) {
    note(device, |recording| recording.faults.push((slot, fault())));
}

/// Work was queued that depends on `slot`. Every `part` of its uses is a list of its own.
pub(crate) fn queued<'a>(
    device: &Device,
    (slot, part): (Option<u32>, usize),
    uses: impl Iterator<Item = (&'a Block, Access)>,
    what: impl FnOnce() -> What,
) {
    note(device, |recording| {
        let uses = uses.map(|(block, access)| (block.place.clone(), block.contents.clone(), access)).collect();
        let faults = recording.faults.len();
        recording.works.push(Work { what: what(), slot, faults, uses, part });
    });
}

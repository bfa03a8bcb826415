//! [`Agreed`]: a call while NCCL moves its data.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gradus_tensor::{Error, Result};

use crate::call::Call;
use crate::group::{Group, Talk};

/// How long a rank keeps its core while it waits, without leaving it to others.
const SPIN: Duration = Duration::from_micros(100);
/// How often a rank that waits looks for news of the others.
const LOOK: Duration = Duration::from_millis(2);
/// How long a rank whose NCCL fails waits for news of a rank that is the reason.
const NEWS: Duration = Duration::from_millis(300);

/// A call that the ranks have compared.
#[derive(Debug)]
pub(super) struct Agreed {
    pub(super) group: Arc<Group>,
    pub(super) call: Call,
    number: u64,
    since: Instant,
}

impl Agreed {
    pub(super) fn new(group: &Arc<Group>, call: &Call) -> Result<Arc<Agreed>> {
        // The deadline begins with the call, as in the other engines.
        let since = Instant::now();
        let number = group.agree(call)?;
        Ok(Arc::new(Agreed { group: group.clone(), call: call.clone(), number, since }))
    }

    pub(super) fn talk(&self) -> Talk<'_> {
        Talk { group: &self.group, call: &self.call, number: self.number, began: self.since }
    }

    /// Waits until `is_done` says so. What goes wrong, here or on another rank, ends all calls of all ranks.
    pub(super) fn wait(&self, mut is_done: impl FnMut() -> Result<bool>) -> Result<()> {
        let (talk, deadline) = (self.talk(), self.group.world.options.deadline);
        let heard = || self.group.lock().heard.clone();
        let mut looked = self.since;
        loop {
            match is_done() {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(e) => return Err(self.failed(&e)),
            }
            let now = Instant::now();
            if now - looked > LOOK {
                looked = now;
                talk.look().map_err(|stop| talk.stopped(stop, true, &heard()))?;
            }
            let waited = now - self.since;
            if waited >= deadline {
                return Err(talk.overdue("NCCL"));
            }
            if waited > Duration::from_secs(1) {
                std::thread::sleep(Duration::from_micros(200));
            } else if waited > SPIN {
                std::thread::yield_now();
            }
        }
    }

    /// The error of a call in which NCCL fails. The reason may be another rank, of which there is news then.
    pub(super) fn failed(&self, e: &Error) -> Error {
        let talk = self.talk();
        let until = Instant::now() + NEWS;
        while Instant::now() < until {
            if let Err(stop) = talk.look() {
                return talk.stopped(stop, true, &self.group.lock().heard).note(e.message());
            }
            std::thread::sleep(LOOK);
        }
        talk.fail(e.message()).help("NCCL_DEBUG=WARN in the environment has NCCL say more")
    }
}

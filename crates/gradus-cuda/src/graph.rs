//! Lists of calls that run many times, as graphs: see [`Backend::run_prepared`](gradus_backend::Backend::run_prepared).
//!
//! The first run of a list makes its calls. The second is recorded too, and from the third on, one call of the driver
//! starts all that the recording lists. The log of late errors gets the notes that the calls would have made. Kernels of
//! the graph write faults to slots of its own; after each start, they are copied to slots that belong to this run.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use gradus_backend::{ErrorKind, Prepared, Reclaim, Result};

use crate::memory::{Keeping, Pool};
use crate::queue::Queue;
use crate::recorded::Recorded;
use crate::recording::{Session, What};

const OP: &str = "replay";

/// A recording, until memory is short.
struct Shared(Mutex<Option<Recorded>>);

impl Reclaim for Shared {
    fn bytes(&self) -> usize {
        self.0.try_lock().ok().and_then(|recorded| recorded.as_ref().map(Recorded::bytes)).unwrap_or(0)
    }

    fn clear(&self) -> bool {
        self.0.try_lock().ok().and_then(|mut recorded| recorded.take()).is_some()
    }
}

/// What is kept of a list of calls.
enum Kept {
    /// A graph.
    Graph(Arc<Shared>),
    /// The list cannot be a graph.
    Refused,
    /// Memory was short. As many more runs make calls before another graph is made.
    Short(u32),
}

/// After memory was short, the number of runs in which a list makes its calls before a graph is made again.
const REST: u32 = 64;

/// See [`Backend::run_prepared`](gradus_backend::Backend::run_prepared).
pub(crate) fn run_prepared(
    queue: &Queue,
    pool: &Arc<Pool>,
    prepared: &mut Prepared,
    is_same: bool,
    calls: &mut dyn FnMut() -> Result<()>,
) -> Result<()> {
    if !is_same {
        prepared.forget();
        return calls();
    }
    match prepared.get_mut::<Kept>() {
        Some(Kept::Refused) => return calls(),
        Some(Kept::Short(runs)) if *runs > 0 => {
            *runs -= 1;
            return calls();
        }
        Some(Kept::Graph(shared)) => {
            let shared = shared.clone();
            let guard = shared.0.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(recorded) = &*guard else {
                prepared.keep(Kept::Short(REST));
                return calls();
            };
            if queue.replay(OP, recorded)? {
                return Ok(());
            }
        }
        _ => {}
    }
    prepared.forget();
    let (Some(session), Some(keeping)) = (Session::begin(&queue.device), Keeping::begin(pool)) else { return calls() };
    calls()?;
    prepared.keep(match (session.end(), keeping.end()) {
        (Some(recording), Some(temporary)) => {
            let allocate = |bytes| {
                let buffer = pool.alloc(bytes)?;
                let address = pool.block(OP, &buffer)?.ptr;
                Ok((buffer, address))
            };
            let capture = |works: &[What], slots, bytes| queue.capture(OP, works, slots, bytes);
            // An error is one of the graph alone, since the calls have been made.
            match Recorded::new(recording, temporary, allocate, capture) {
                Ok(Some(recorded)) => {
                    let shared = Arc::new(Shared(Mutex::new(Some(recorded))));
                    let weak: Weak<Shared> = Arc::downgrade(&shared);
                    pool.register(weak);
                    Kept::Graph(shared)
                }
                Err(e) if matches!(e.kind(), ErrorKind::OutOfMemory { .. }) => Kept::Short(REST),
                Ok(None) | Err(_) => Kept::Refused,
            }
        }
        (Some(_), None) => Kept::Short(REST),
        (None, _) => Kept::Refused,
    });
    Ok(())
}

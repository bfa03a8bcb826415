//! Lists of calls that run many times, as graphs: see [`Backend::run_prepared`](gradus_backend::Backend::run_prepared).
//!
//! The first run of a list makes its calls. The second is recorded too, and from the third on, one call of the driver
//! starts all that the recording lists. The log of late errors gets the notes that the calls would have made. Kernels of
//! the graph write faults to slots of its own; after each start, they are copied to slots that belong to this run.

use std::sync::{Arc, Mutex, PoisonError};

use gradus_backend::{Prepared, Result};

use crate::memory::{Keeping, Pool, Reclaim};
use crate::queue::Queue;
use crate::recorded::Recorded;
use crate::recording::Session;

const OP: &str = "replay";

/// A recording, until memory is short.
struct Shared(Mutex<Option<Recorded>>);

impl Reclaim for Shared {
    fn clear(&self) -> bool {
        let recorded = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        recorded.is_some()
    }
}

/// What is kept of a list of calls.
enum Kept {
    /// A graph.
    Graph(Arc<Shared>),
    /// The list cannot be a graph, or there is not enough memory for it.
    Refused,
}

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
    match prepared.get::<Kept>() {
        Some(Kept::Refused) => return calls(),
        Some(Kept::Graph(shared)) => {
            let shared = shared.clone();
            let guard = shared.0.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(recorded) = &*guard else {
                // Memory was short.
                prepared.keep(Kept::Refused);
                return calls();
            };
            if queue.replay(OP, recorded)? {
                return Ok(());
            }
        }
        None => {}
    }
    prepared.forget();
    let (Some(session), Some(keeping)) = (Session::begin(&queue.device), Keeping::begin(pool)) else { return calls() };
    calls()?;
    let made = match (session.end(), keeping.end()) {
        (Some(recording), Some(temporary)) => Recorded::new(
            recording,
            temporary,
            |bytes| {
                let buffer = pool.alloc(bytes)?;
                let address = pool.block(OP, &buffer)?.ptr;
                Ok((buffer, address))
            },
            |works, slots, bytes| queue.capture(OP, works, slots, bytes),
        ),
        _ => None,
    };
    prepared.keep(match made {
        Some(recorded) => {
            let shared = Arc::new(Shared(Mutex::new(Some(recorded))));
            pool.register(shared.clone());
            Kept::Graph(shared)
        }
        None => Kept::Refused,
    });
    Ok(())
}

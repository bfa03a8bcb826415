//! [`Recorded`]: a list of calls as a graph.

use std::collections::HashMap;
use std::sync::Arc;

use gradus_backend::late::{Access, Contents, Fault, SLOT};
use gradus_backend::{Buffer, Result};

use crate::driver::Graph;
use crate::memory::{Place, Temporary};
use crate::recording::{Recording, What};

/// A graph of fewer launches and copies costs as much as these.
const FEWEST: usize = 2;
/// The largest number of faults of a graph: a part of the slots that there are.
const MOST_FAULTS: usize = 128;

/// A list of calls as a graph, with everything that it uses besides the operands of the list.
pub(crate) struct Recorded {
    pub(crate) graph: Graph,
    /// For each note about a launch or a copy, the number of its fault, and how many of `uses` are its own.
    pub(crate) notes: Vec<(Option<usize>, usize)>,
    /// The buffers that are used, in order: a number of `places`, or beyond them, a temporary buffer.
    pub(crate) uses: Vec<(usize, Access)>,
    places: Vec<Arc<Place>>,
    temporary: usize,
    pub(crate) faults: Vec<Fault>,
    /// The address of the graph's slots for faults.
    pub(crate) slots: u64,
    /// The memory of temporary buffers and of the slots.
    memory: Vec<Buffer>,
}

impl Recorded {
    /// Makes a graph of a recording; `None` if a recording like this cannot be one. An error is that of `allocate`, which
    /// allocates memory, whose address it returns too, or of `capture`, which makes a graph that clears as many bytes at an
    /// address and then does the work.
    pub(crate) fn new(
        recording: Recording,
        temporary: Temporary,
        allocate: impl FnOnce(usize) -> Result<(Buffer, u64)>,
        capture: impl FnOnce(&[What], u64, usize) -> Result<Graph>,
    ) -> Result<Option<Recorded>> {
        let Recording { works, faults, .. } = recording;
        let Temporary { contents: temporary, kept: mut memory, live } = temporary;
        if works.len() < FEWEST || faults.len() > MOST_FAULTS || live > 0 {
            return Ok(None);
        }
        let bytes = faults.len() * SLOT;
        let mut slots = 0;
        if bytes > 0 {
            let (buffer, address) = allocate(bytes)?;
            memory.push(buffer);
            slots = address;
        }
        let lives: HashMap<_, _> = temporary.iter().enumerate().map(|(i, life)| (Arc::as_ptr(life), i)).collect();
        let life = |contents: &Arc<Contents>| lives.get(&Arc::as_ptr(contents)).copied();
        let mut places: Vec<Arc<Place>> = vec![];
        let mut numbers = HashMap::new();
        for (place, ..) in works.iter().flat_map(|work| &work.uses).filter(|(_, contents, _)| life(contents).is_none())
        {
            numbers.entry(Arc::as_ptr(place)).or_insert_with(|| {
                places.push(place.clone());
                places.len() - 1
            });
        }
        let (mut uses, mut noted, mut listed) = (vec![], vec![], vec![]);
        for work in works {
            let fault = match work.slot {
                None => None,
                Some(slot) => match faults[..work.faults].iter().rposition(|(held, _)| *held == slot) {
                    None => return Ok(None),
                    fault => fault,
                },
            };
            noted.extend(work.uses.chunks(work.part).map(|part| (fault, part.len())));
            for (place, contents, access) in &work.uses {
                let number = life(contents).map(|life| places.len() + life);
                let Some(number) = number.or_else(|| numbers.get(&Arc::as_ptr(place)).copied()) else {
                    return Ok(None);
                };
                uses.push((number, *access));
            }
            let mut what = work.what;
            if let (What::Launch { arguments, .. }, Some(fault)) = (&mut what, fault) {
                arguments.set_fault(slots + (fault * SLOT) as u64);
            }
            listed.push(what);
        }
        let graph = capture(&listed, slots, bytes)?;
        let faults = faults.into_iter().map(|(_, fault)| fault).collect();
        let temporary = temporary.len();
        Ok(Some(Recorded { graph, notes: noted, uses, places, temporary, faults, slots, memory }))
    }

    /// The bytes of its own memory.
    pub(crate) fn bytes(&self) -> usize {
        self.memory.iter().map(Buffer::bytes).sum()
    }

    /// The contents of the buffers that are used, in the order of their numbers; `None` if the memory of one was given
    /// back.
    pub(crate) fn contents(&self) -> Option<Vec<Arc<Contents>>> {
        let temporary = (0..self.temporary).map(|_| Some(Arc::default()));
        self.places.iter().map(|place| place.contents()).chain(temporary).collect()
    }

    /// Notes that the graph was started, which writes what its list of uses says.
    pub(crate) fn started(&self) {
        self.places.iter().for_each(|place| place.written());
    }
}

//! Ranks that are processes, started by `mpirun`.
//!
//! The library is loaded when [`world`] is called: Open MPI 4 and 5, or MPICH. All transfers are non-blocking and are
//! polled, so that no call of MPI ever waits for a rank; errors of MPI are returned.

mod begin;
mod greeting;
mod library;
mod machine;

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use gradus_tensor::{Error, ErrorKind, Result};

use self::begin::{begin, fails};
use self::greeting::{GREETING, greeting, one_version, process};
use self::library::{AnyHandle, Functions, Loaded, text};
use crate::communicator::Communicator;
use crate::engine::{Channel, Engine, GRACE, Incoming, LENGTH, Notice, Outgoing, Stop, Until};
use crate::group::{Options, names};
use crate::on_device::Peers;

/// The communicator of all processes that `mpirun` started, or of this process alone without it. It can be made once in
/// a process. When the last handle to it is dropped, MPI is finalised.
///
/// # Errors
/// [`ErrorKind::Unsupported`] without an MPI library, with one that is not Open MPI or MPICH, or if ranks run different
/// versions of Gradus;
/// [`ErrorKind::InvalidArgument`] if it was made before; [`ErrorKind::Peer`] if the launcher belongs to another MPI, or if
/// MPI does not start within the deadline, or a minute if that is longer.
#[track_caller]
pub fn world(options: Options) -> Result<Arc<dyn Communicator>> {
    let engine = match Loaded::open()? {
        Loaded::OpenMpi(version, functions) => start(functions, version, options.deadline)?,
        Loaded::Mpich(version, functions) => start(functions, version, options.deadline)?,
    };
    let peers = Peers::new(engine, options);
    Ok(Arc::new(peers))
}

fn start<H: AnyHandle>(f: Functions<H>, version: String, deadline: Duration) -> Result<Box<dyn Engine>> {
    let (rank, size) = begin(&f, &version, deadline)?;
    // These live until the process ends, since MPI may write into them until then.
    let notices: &'static mut [[u8; NOTICE]] = Box::leak(vec![[0; NOTICE]; size].into_boxed_slice());
    let mut requests = vec![f.null; size];
    for (from, room) in notices.iter_mut().enumerate().filter(|(from, _)| *from != rank) {
        let request = &raw mut requests[from];
        // SAFETY: the room is never freed, and is read only after the request has completed.
        let code = unsafe {
            (f.irecv)(room.as_mut_ptr().cast(), NOTICE as c_int, f.byte, from as c_int, CONTROL, f.world, request)
        };
        fails("MPI_Irecv", code)?;
    }
    let turn = Turn { requests, notices, told: HashMap::new(), sending: HashMap::new(), broken: false };
    let mut mpi =
        Mpi { f, version, rank, size, turn: Mutex::new(turn), neighbours: vec![None; size], spin: Duration::ZERO };
    // MPI has begun, which may take long on many machines.
    mpi.meet(Instant::now() + deadline)?;
    Ok(Box::new(mpi))
}

/// A transfer that was begun.
#[derive(Clone, Copy)]
struct Posted {
    rank: usize,
    receives: bool,
    /// The index of the incoming bytes, if more of them may follow.
    first_of: Option<usize>,
    open: bool,
}

/// Transfers, and what is known about each.
type Begun<H> = (Vec<H>, Vec<Posted>);

/// Bytes of a notice.
const NOTICE: usize = 1024;
/// The tag of notices.
const CONTROL: c_int = 1;
/// How long a rank that waits keeps its core without leaving it to others, unless there are more ranks than cores.
const SPIN: Duration = Duration::from_micros(100);
/// How long nothing may arrive before a rank looks whether those of its machine are alive, and how often it does.
const QUIET: Duration = Duration::from_millis(200);
const LOOK: Duration = Duration::from_millis(100);
/// The most bytes of one message; longer ones are cut.
const MOST: usize = 1 << 30;
/// The most bytes of a piece of a message that begins with its length. Open MPI sends up to 4096 bytes with its own head
/// within one machine without waiting for the receiver.
const PIECE: usize = 4000;

/// What only the thread may touch whose turn it is to call MPI.
struct Turn<H> {
    /// A request for a notice of each rank.
    requests: Vec<H>,
    notices: &'static mut [[u8; NOTICE]],
    /// The notices that came, and when.
    told: HashMap<usize, (Notice, Instant)>,
    /// What exchanges have begun to send that have returned.
    sending: HashMap<Channel, Begun<H>>,
    /// Whether an exchange stopped half-way. From then on MPI is called for notices only.
    broken: bool,
}

struct Mpi<H> {
    f: Functions<H>,
    version: String,
    rank: usize,
    size: usize,
    turn: Mutex<Turn<H>>,
    /// The processes of the ranks of this machine.
    neighbours: Vec<Option<u32>>,
    spin: Duration,
}

impl<H> fmt::Debug for Mpi<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mpi(rank {} of {}, {})", self.rank, self.size, self.version)
    }
}

impl<H: AnyHandle> Mpi<H> {
    fn turn(&self) -> MutexGuard<'_, Turn<H>> {
        self.turn.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn check(&self, what: &str, code: c_int) -> std::result::Result<(), Stop> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: the room is as long as MPI's longest text.
        let why = text(|room, length| unsafe { (self.f.error_string)(code, room, length) });
        Err(Stop::Engine(format!("{what}: {why}")))
    }

    /// Learns whether all ranks are of one version, and which of them run on this machine.
    fn meet(&mut self, deadline: Instant) -> Result<()> {
        let mine = greeting().to_vec();
        let mut all = vec![[0; GREETING]; self.size];
        let other = |rank: &usize| *rank != self.rank;
        let outgoing: Vec<_> = (0..self.size).filter(other).map(|to| Outgoing { to, bytes: &mine }).collect();
        let rooms = all.iter_mut().enumerate().filter(|(from, _)| other(from));
        let mut incoming: Vec<_> = rooms.map(|(from, room)| Incoming { from, room }).collect();
        let channel = Channel { context: 0, body: true };
        // SAFETY: what is forgotten is never freed.
        let made = unsafe { self.exchange(channel, &outgoing, &mut incoming, Until::Done, deadline) };
        if let Err(stop) = made {
            std::mem::forget((mine, all));
            let why = match stop {
                Stop::Late { from, .. } if !from.is_empty() => format!("no message came from {}", names(&from)),
                other => format!("{other:?}"),
            };
            let e = Error::new(ErrorKind::Peer, "mpi", format!("not all ranks have started: {why}"));
            return Err(e.help("see whether one has ended, or runs another program"));
        }
        if let Some(mine) = all.get_mut(self.rank) {
            *mine = greeting();
        }
        if let Err(e) = one_version(&all, self.rank) {
            // All ranks have this error, and end together: a launcher may end the others once one has ended otherwise.
            self.notify(&Notice::Left);
            self.close(true, deadline);
            return Err(e);
        }
        let here = |(rank, greeting)| process(greeting).filter(|_| rank != self.rank);
        self.neighbours = all.iter().enumerate().map(here).collect();
        let ranks_here = 1 + self.neighbours.iter().flatten().count();
        // Open MPI leaves the core itself then, at each look. More often would leave it to other programs for whole time slices.
        let leaves = std::env::var("OMPI_MCA_mpi_oversubscribe").is_ok_and(|value| value == "1");
        self.spin = if ranks_here > machine::cores() && !leaves { Duration::ZERO } else { SPIN };
        Ok(())
    }

    /// A rank of this machine that is waited for, whose process is gone, and which has told nobody that it would end.
    ///
    /// # Errors
    /// What ends the wait otherwise, if a notice has come in the meantime: a rank that gave up because of another one
    /// said so before it ended.
    fn dead(&self, turn: &mut Turn<H>, missing: &dyn Fn(usize) -> bool) -> std::result::Result<Option<usize>, Stop> {
        let gone = |rank: usize| self.neighbours[rank].is_some_and(|process| !machine::is_alive(process));
        let find =
            |turn: &Turn<H>| (0..self.size).find(|&rank| missing(rank) && !turn.told.contains_key(&rank) && gone(rank));
        if find(turn).is_none() {
            return Ok(None);
        }
        // MPI moves a message a little further with each look.
        for _ in 0..32 {
            self.listen(turn, missing)?;
        }
        Ok(find(turn))
    }

    /// One that has completed among the requests, if any.
    fn test(&self, requests: &mut [H]) -> std::result::Result<Option<usize>, Stop> {
        let (mut index, mut done) = (-1, 0);
        let (count, first) = (requests.len() as c_int, requests.as_mut_ptr());
        // SAFETY: the requests are active, or null. This thread has the turn.
        let code = unsafe { (self.f.testany)(count, first, &raw mut index, &raw mut done, self.f.ignore) };
        self.check("MPI_Testany", code)?;
        // A negative index means that no request is active.
        Ok(if done != 0 { usize::try_from(index).ok() } else { None })
    }

    /// Looks for notices, and says whether one of them ends the wait for these ranks.
    fn listen(&self, turn: &mut Turn<H>, missing: &dyn Fn(usize) -> bool) -> std::result::Result<(), Stop> {
        while let Some(rank) = self.test(&mut turn.requests)? {
            let notice = decode(&turn.notices[rank]);
            turn.told.insert(rank, (notice, Instant::now()));
        }
        for (&rank, (notice, since)) in &turn.told {
            match notice {
                Notice::Failed(why) => return Err(Stop::Failed { rank, why: why.clone() }),
                Notice::Left if missing(rank) && since.elapsed() > GRACE => return Err(Stop::Left { rank }),
                Notice::Left => {}
            }
        }
        Ok(())
    }

    fn tag(channel: Channel) -> c_int {
        2 + 2 * channel.context as c_int + c_int::from(channel.body)
    }

    /// Begins to receive into `room`.
    fn receive(&self, room: &mut [u8], from: usize, tag: c_int) -> std::result::Result<H, Stop> {
        let (f, mut request) = (&self.f, self.f.null);
        let (start, length) = (room.as_mut_ptr().cast::<c_void>(), room.len() as c_int);
        // SAFETY: the caller of `exchange` keeps the memory until the request completes, or forever. This thread has the
        // turn.
        let code = unsafe { (f.irecv)(start, length, f.byte, from as c_int, tag, f.world, &raw mut request) };
        self.check("MPI_Irecv", code)?;
        Ok(request)
    }

    /// Begins the transfers, and adds them to these.
    fn post(
        &self,
        channel: Channel,
        outgoing: &[Outgoing<'_>],
        incoming: &mut [Incoming<'_>],
        (requests, about): &mut Begun<H>,
    ) -> std::result::Result<(), Stop> {
        let tag = Self::tag(channel);
        for (index, Incoming { from: rank, room }) in incoming.iter_mut().enumerate() {
            let (rank, receives, open) = (*rank, true, true);
            if channel.body {
                for piece in room.chunks_mut(MOST) {
                    requests.push(self.receive(piece, rank, tag)?);
                    about.push(Posted { rank, receives, first_of: None, open });
                }
            } else {
                let first = room.len().min(PIECE);
                requests.push(self.receive(&mut room[..first], rank, tag)?);
                about.push(Posted { rank, receives, first_of: Some(index), open });
            }
        }
        for Outgoing { to: rank, bytes } in outgoing {
            for piece in bytes.chunks(if channel.body { MOST } else { PIECE }) {
                let (f, mut request) = (&self.f, self.f.null);
                let (start, length) = (piece.as_ptr().cast::<c_void>(), piece.len() as c_int);
                // SAFETY: the caller of `exchange` keeps the memory until the request completes, or forever; MPI only
                // reads it. This thread has the turn.
                let code = unsafe { (f.isend)(start, length, f.byte, *rank as c_int, tag, f.world, &raw mut request) };
                self.check("MPI_Isend", code)?;
                requests.push(request);
                about.push(Posted { rank: *rank, receives: false, first_of: None, open: true });
            }
        }
        Ok(())
    }

    /// Begins to receive the rest of a message whose first piece has come. Returns the number of transfers.
    fn rest(
        &self,
        channel: Channel,
        incoming: &mut Incoming<'_>,
        requests: &mut Vec<H>,
        about: &mut Vec<Posted>,
    ) -> std::result::Result<usize, Stop> {
        let length = incoming.room.first_chunk::<LENGTH>().map_or(0, |length| u64::from_le_bytes(*length));
        let before = requests.len();
        // A message that is longer than the room is of another version, which the caller finds out.
        let rest = incoming.room.get_mut(PIECE..length as usize).unwrap_or_default();
        for piece in rest.chunks_mut(PIECE) {
            requests.push(self.receive(piece, incoming.from, Self::tag(channel))?);
            about.push(Posted { rank: incoming.from, receives: true, first_of: None, open: true });
        }
        Ok(requests.len() - before)
    }

    /// Cancels what has not been received, as far as MPI can.
    fn cancel(&self, turn: &mut Turn<H>, requests: &mut [H], about: &[Posted]) {
        turn.broken = true;
        for i in (0..requests.len()).filter(|&i| about[i].open && about[i].receives) {
            // SAFETY: the request is active. This thread has the turn.
            unsafe { (self.f.cancel)(&raw mut requests[i]) };
        }
        // Errors no longer matter: the exchange has failed.
        while let Ok(Some(_)) = self.test(requests) {}
    }
}

impl<H: AnyHandle> Engine for Mpi<H> {
    fn name(&self) -> String {
        self.version.clone()
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    unsafe fn exchange(
        &self,
        channel: Channel,
        outgoing: &[Outgoing<'_>],
        incoming: &mut [Incoming<'_>],
        until: Until,
        deadline: Instant,
    ) -> std::result::Result<(), Stop> {
        let mut turn = self.turn();
        let mut begun = turn.sending.remove(&channel).unwrap_or_default();
        self.post(channel, outgoing, incoming, &mut begun).inspect_err(|_| turn.broken = true)?;
        let (mut requests, mut about) = begun;
        let awaited = |one: &Posted| one.open && (one.receives || until == Until::Done);
        let mut left = about.iter().filter(|one| awaited(one)).count();
        let (mut polls, mut progress) = (0u32, Instant::now());
        let mut looked = progress;
        let stop = loop {
            let before = left;
            let stop = loop {
                if left == 0 {
                    break None;
                }
                match self.test(&mut requests) {
                    Ok(Some(i)) => {
                        left -= usize::from(awaited(&about[i]));
                        about[i].open = false;
                        if let Some(index) = about[i].first_of {
                            match self.rest(channel, &mut incoming[index], &mut requests, &mut about) {
                                Ok(more) => left += more,
                                Err(stop) => break Some(stop),
                            }
                        }
                    }
                    Ok(None) => break None,
                    Err(stop) => break Some(stop),
                }
            };
            if let Some(stop) = stop {
                break stop;
            }
            polls += 1;
            let missing = |rank: usize| about.iter().any(|one| awaited(one) && one.rank == rank);
            // Notices are looked for while it waits: each look may leave the core to others.
            if left == 0 {
                let still = requests.into_iter().zip(about).filter(|(_, one)| one.open);
                let still: Begun<H> = still.unzip();
                if !still.0.is_empty() {
                    turn.sending.insert(channel, still);
                }
                return Ok(());
            }
            if polls.is_multiple_of(32)
                && let Err(stop) = self.listen(&mut turn, &missing)
            {
                break stop;
            }
            let now = Instant::now();
            if left < before {
                progress = now;
            }
            if now >= deadline {
                let of = |receives: bool| {
                    let open = about.iter().filter(|one| awaited(one) && one.receives == receives);
                    let mut ranks: Vec<usize> = open.map(|one| one.rank).collect();
                    ranks.dedup();
                    ranks
                };
                break Stop::Late { from: of(true), to: of(false) };
            }
            let idle = now - progress;
            if idle > QUIET && now - looked > LOOK {
                looked = now;
                match self.dead(&mut turn, &missing) {
                    Ok(None) => {}
                    Ok(Some(rank)) => break Stop::Died { rank },
                    Err(stop) => break stop,
                }
            }
            // Others of this process may call in between.
            drop(turn);
            if idle > Duration::from_secs(1) {
                std::thread::sleep(Duration::from_micros(500));
            } else if idle >= self.spin {
                std::thread::yield_now();
            }
            turn = self.turn();
        };
        self.cancel(&mut turn, &mut requests, &about);
        Err(stop)
    }

    #[cfg(feature = "nccl")]
    fn look(&self, ranks: &[usize]) -> std::result::Result<(), Stop> {
        let mut turn = self.turn();
        self.listen(&mut turn, &|_| false)?;
        match self.dead(&mut turn, &|rank| ranks.contains(&rank))? {
            Some(rank) => Err(Stop::Died { rank }),
            None => Ok(()),
        }
    }

    fn notify(&self, notice: &Notice) {
        let mut turn = self.turn();
        if *notice != Notice::Left {
            turn.told.insert(self.rank, (notice.clone(), Instant::now()));
        }
        let bytes: &'static [u8; NOTICE] = Box::leak(Box::new(encode(notice)));
        let mut requests = vec![];
        for to in (0..self.size).filter(|to| *to != self.rank) {
            let mut request = self.f.null;
            // SAFETY: the bytes are never freed. This thread has the turn.
            let code = unsafe {
                let start = bytes.as_ptr().cast();
                (self.f.isend)(
                    start,
                    NOTICE as c_int,
                    self.f.byte,
                    to as c_int,
                    CONTROL,
                    self.f.world,
                    &raw mut request,
                )
            };
            if code == 0 {
                requests.push(request);
            }
        }
        // Short messages leave at once, or at the next call of MPI; this is the last one if a call has failed.
        let end = Instant::now() + Duration::from_millis(100);
        let mut left = requests.len();
        while left > 0 && Instant::now() < end {
            match self.test(&mut requests) {
                Ok(Some(_)) => left -= 1,
                Ok(None) => std::thread::yield_now(),
                Err(_) => break,
            }
        }
        drop(turn);
    }

    fn close(&self, healthy: bool, deadline: Instant) {
        // MPI_Finalize waits for all ranks, and never returns if one is gone. So the ranks first wait for each other's
        // notices here; if one does not come, MPI is left as it is and ends with the process.
        while healthy && Instant::now() < deadline {
            let mut turn = self.turn();
            if turn.broken || self.listen(&mut turn, &|_| false).is_err() {
                return;
            }
            if turn.told.len() + 1 == self.size {
                // SAFETY: MPI is initialised, all requests have completed, and no thread calls it later: this is the
                // drop of the last communicator. Open MPI and MPICH take it from another thread than initialised them.
                unsafe { (self.f.finalize)() };
                return;
            }
            drop(turn);
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// A notice as bytes: a length, 0 for `Left`, and the text.
fn encode(notice: &Notice) -> [u8; NOTICE] {
    let mut bytes = [0; NOTICE];
    if let Notice::Failed(why) = notice {
        let mut end = why.len().min(NOTICE - 2);
        while !why.is_char_boundary(end) {
            end -= 1;
        }
        bytes[..2].copy_from_slice(&(end as u16 + 1).to_le_bytes());
        bytes[2..2 + end].copy_from_slice(&why.as_bytes()[..end]);
    }
    bytes
}

fn decode(bytes: &[u8; NOTICE]) -> Notice {
    match usize::from(u16::from_le_bytes([bytes[0], bytes[1]])) {
        0 => Notice::Left,
        length => Notice::Failed(String::from_utf8_lossy(&bytes[2..(length + 1).min(NOTICE)]).into_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_arrive_as_they_were_sent() {
        for notice in [Notice::Left, Notice::Failed(String::new()), Notice::Failed("rank 2 did not come".into())] {
            assert_eq!(decode(&encode(&notice)), notice);
        }
        let long = Notice::Failed("é".repeat(2000));
        assert_eq!(decode(&encode(&long)), Notice::Failed("é".repeat((NOTICE - 2) / 2)));
    }
}

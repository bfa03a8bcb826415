//! [`Group`]: what a communicator knows of its ranks, and how calls are compared and failures told.

use std::fmt;
use std::panic::Location;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use gradus_tensor::backend::Element;
use gradus_tensor::{Error, ErrorKind, Result};

use crate::call::{Call, Collective, HEAD, Seen};
use crate::engine::{Channel, Engine, Incoming, LENGTH, Notice, Outgoing, Stop, Until};

/// How ranks wait for each other.
#[derive(Debug, Clone)]
pub struct Options {
    /// The longest that a call waits for other ranks; 60 s by default.
    pub deadline: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Options { deadline: Duration::from_secs(60) }
    }
}

/// Data of at most this many bytes travels with the description of the call, in one message.
pub(crate) const INLINE: usize = 8192;

/// All ranks of a program.
pub(crate) struct World {
    pub(crate) engine: Box<dyn Engine>,
    pub(crate) options: Options,
    /// Why no further call can be made.
    failed: Mutex<Option<String>>,
    /// The number of the next communicator.
    contexts: AtomicU32,
}

impl World {
    /// Makes every further call fail, and tells all ranks why unless an earlier failure did.
    fn fail(&self, why: String) {
        if self.remember(why.clone()) {
            self.engine.notify(&Notice::Failed(why));
        }
    }

    /// Makes every further call fail. Returns whether this is the first failure.
    fn remember(&self, why: String) -> bool {
        let mut failed = self.failed.lock().unwrap_or_else(|e| e.into_inner());
        let first = failed.is_none();
        failed.get_or_insert(why);
        first
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let healthy = self.failed.get_mut().unwrap_or_else(|e| e.into_inner()).is_none();
        if healthy {
            self.engine.notify(&Notice::Left);
        }
        self.engine.close(healthy, Instant::now() + self.options.deadline);
    }
}

/// What changes from call to call.
pub(crate) struct State {
    /// The number of calls so far, without `send` and `receive`.
    number: u64,
    /// For each rank, when its last call came here, and its head.
    pub(crate) heard: Vec<Option<(Instant, [u8; HEAD])>>,
    /// The head of this rank's call, with its data.
    head: Vec<u8>,
    /// Heads of all ranks, each with room for [`INLINE`] bytes.
    heads: Vec<u64>,
    /// Room for the data of others.
    pub(crate) scratch: Vec<u64>,
}

/// The ranks of one communicator.
pub(crate) struct Group {
    pub(crate) world: Arc<World>,
    /// The numbers of the ranks in the world.
    pub(crate) ranks: Vec<usize>,
    pub(crate) rank: usize,
    context: u32,
    pub(crate) state: Mutex<State>,
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Communicator(rank {} of {}, {})", self.rank, self.ranks.len(), self.world.engine.name())
    }
}

/// How long after the deadline a rank waits for an answer to whether another one is still in the call.
#[cfg(all(feature = "nccl", unix))]
const ANSWER: Duration = Duration::from_millis(600);

const ROOM: usize = LENGTH + HEAD + INLINE;

/// One call while it is made.
pub(crate) struct Talk<'a> {
    pub(crate) group: &'a Group,
    pub(crate) call: &'a Call,
    pub(crate) number: u64,
    pub(crate) began: Instant,
}

impl Group {
    /// The communicator of all ranks.
    pub(crate) fn whole(engine: Box<dyn Engine>, options: Options) -> Group {
        let (rank, size) = (engine.rank(), engine.size());
        let world = World { engine, options, failed: Mutex::new(None), contexts: AtomicU32::new(1) };
        Group::new(Arc::new(world), (0..size).collect(), rank, 0)
    }

    fn new(world: Arc<World>, ranks: Vec<usize>, rank: usize, context: u32) -> Group {
        let state = State { number: 0, heard: vec![None; ranks.len()], head: vec![], heads: vec![], scratch: vec![] };
        Group { world, ranks, rank, context, state: Mutex::new(state) }
    }

    pub(crate) fn size(&self) -> usize {
        self.ranks.len()
    }

    /// Waits until no other thread of this rank is inside a call.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The other ranks that take part in a call.
    pub(crate) fn others(&self, collective: Collective) -> Vec<usize> {
        match collective {
            Collective::Send(rank) | Collective::Receive(rank) => vec![rank],
            _ => (0..self.size()).filter(|&rank| rank != self.rank).collect(),
        }
    }

    /// Begins a call. Fails at once if an earlier call of any communicator has failed.
    pub(crate) fn begin<'a>(&'a self, call: &'a Call, state: &mut State) -> Result<Talk<'a>> {
        let paired = matches!(call.collective, Collective::Send(_) | Collective::Receive(_));
        state.number += u64::from(!paired);
        let talk = Talk { group: self, call, number: state.number, began: Instant::now() };
        let failed = self.world.failed.lock().unwrap_or_else(|e| e.into_inner()).clone();
        match failed {
            Some(why) => Err(talk.error("an earlier call has failed, and no call can follow it").note(why)),
            None => Ok(talk),
        }
    }

    /// Fails if an earlier call of any communicator has failed.
    pub(crate) fn check(&self, call: &Call) -> Result<()> {
        if self.has_failed() { self.begin(call, &mut self.lock()).map(drop) } else { Ok(()) }
    }

    /// Makes every further call fail, on all ranks.
    pub(crate) fn give_up(&self, why: &str) {
        self.world.fail(why.to_owned());
    }

    /// Makes a call whose data then moves by other means. Returns its number.
    #[cfg(all(feature = "nccl", unix))]
    pub(crate) fn agree(&self, call: &Call) -> Result<u64> {
        let mut state = self.lock();
        let talk = self.begin(call, &mut state)?;
        let compared = talk.compare(&mut state, &[]).map(drop);
        Group::made(&mut state, compared).map(|()| talk.number)
    }

    /// Whether a call has failed, so that none can follow.
    pub(crate) fn has_failed(&self) -> bool {
        self.world.failed.lock().unwrap_or_else(|e| e.into_inner()).is_some()
    }

    /// The end of a call. After a failure the engine may still be at work on the memory of the state, so that is never
    /// freed.
    pub(crate) fn made<R>(state: &mut State, result: Result<R>) -> Result<R> {
        if result.is_err() {
            let State { head, heads, scratch, .. } = state;
            std::mem::forget((std::mem::take(head), std::mem::take(heads), std::mem::take(scratch)));
        }
        result
    }

    /// The group of the ranks of this one that gave the same colour, after a gathering of all colours and keys, and of
    /// the number of communicators that each rank knows.
    pub(crate) fn part(&self, gathered: &[[i64; 3]]) -> Group {
        let color = gathered[self.rank][0];
        let mut members: Vec<usize> = (0..self.size()).filter(|&rank| gathered[rank][0] == color).collect();
        members.sort_by_key(|&rank| (gathered[rank][1], rank));
        let mut colors: Vec<i64> = gathered.iter().map(|g| g[0]).collect();
        colors.sort_unstable();
        colors.dedup();
        let first = gathered.iter().map(|g| g[2]).max().unwrap_or(1) as u32;
        self.world.contexts.store(first + colors.len() as u32, Ordering::SeqCst);
        let context = first + colors.iter().position(|&c| c == color).unwrap_or(0) as u32;
        let rank = members.iter().position(|&rank| rank == self.rank).unwrap_or(0);
        let ranks = members.iter().map(|&rank| self.ranks[rank]).collect();
        Group::new(self.world.clone(), ranks, rank, context)
    }

    /// The number of the next communicator that this rank would make.
    pub(crate) fn next_context(&self) -> i64 {
        i64::from(self.world.contexts.load(Ordering::SeqCst))
    }
}

impl Talk<'_> {
    /// Tells the other ranks what this one calls, with `data` of at most [`INLINE`] bytes, and fails unless all of them
    /// call the same. Returns their data, in the order of [`Group::others`].
    pub(crate) fn compare<'s>(&self, state: &'s mut State, data: &[u8]) -> Result<Vec<&'s mut [u8]>> {
        let group = self.group;
        let others = group.others(self.call.collective);
        let State { head, heads, heard, .. } = state;
        heads.resize(others.len() * ROOM / 8, 0);
        let Some(bytes) = u64::as_bytes_mut(heads) else { return Err(self.error("no room")) };
        head.clear();
        head.extend([0; LENGTH]);
        self.call.encode(self.number, head);
        let length = head.len();
        head.extend(data);
        let whole = (head.len() as u64).to_le_bytes();
        head[..LENGTH].copy_from_slice(&whole);
        self.exchange(
            false,
            Until::Done,
            &others.iter().map(|&to| (to, &head[..])).collect::<Vec<_>>(),
            others.iter().copied().zip(bytes.chunks_mut(ROOM)).collect(),
            heard,
        )?;
        let now = Instant::now();
        for (&rank, bytes) in others.iter().zip(bytes.chunks(ROOM)) {
            if let Some(first) = bytes[LENGTH..].first_chunk() {
                heard[rank] = Some((now, *first));
            }
        }
        let paired = matches!(self.call.collective, Collective::Send(_) | Collective::Receive(_));
        let mut rest = Vec::with_capacity(others.len());
        for (&rank, bytes) in others.iter().zip(bytes.chunks_mut(ROOM)) {
            // Ranks that make the same call on the same line send the same bytes.
            let start = if !paired && bytes[..length] == head[..length] {
                length
            } else {
                match Seen::decode(&bytes[LENGTH..]) {
                    Some((other, start)) if self.call.fits(self.number, group.rank, &other, rank) => LENGTH + start,
                    Some(_) => return Err(self.disagreement(&others, heard)),
                    None => {
                        let m = format!("{} speaks another version of the protocol", names(&[rank]));
                        return Err(self.fail(m));
                    }
                }
            };
            rest.push(&mut bytes[start..start + data.len()]);
        }
        Ok(rest)
    }

    /// Sends and receives bytes, waits at most until the deadline, and says what went wrong. Ranks are those of the
    /// group.
    pub(crate) fn exchange(
        &self,
        body: bool,
        until: Until,
        outgoing: &[(usize, &[u8])],
        incoming: Vec<(usize, &mut [u8])>,
        heard: &[Option<(Instant, [u8; HEAD])>],
    ) -> Result<()> {
        let group = self.group;
        let outgoing: Vec<Outgoing<'_>> =
            outgoing.iter().map(|&(to, bytes)| Outgoing { to: group.ranks[to], bytes }).collect();
        let mut incoming: Vec<Incoming<'_>> =
            incoming.into_iter().map(|(from, room)| Incoming { from: group.ranks[from], room }).collect();
        let channel = Channel { context: group.context, body };
        let deadline = group.world.options.deadline;
        // SAFETY: the bytes lie in the `State`, which forgets its memory if a call fails (`Group::made`), or in the memory
        // of the caller of `Group::transfer`, who promises the same. A call that sends until received sends bytes that it
        // only reads, and ends with an exchange that is done.
        let made =
            unsafe { group.world.engine.exchange(channel, &outgoing, &mut incoming, until, self.began + deadline) };
        made.map_err(|stop| self.stopped(stop, body, heard))
    }

    /// The error of this call, which ends all communication, for what stopped it.
    pub(crate) fn stopped(&self, stop: Stop, body: bool, heard: &[Option<(Instant, [u8; HEAD])>]) -> Error {
        let group = self.group;
        let here = |world: &usize| group.ranks.iter().position(|rank| rank == world);
        let waited = self.began.elapsed().as_secs_f64();
        match stop {
            Stop::Late { from, to } => {
                let missing = if from.is_empty() { to } else { from };
                let missing: Vec<usize> = missing.iter().filter_map(here).collect();
                let what = if body { "stopped in the middle of" } else { "did not come to" };
                let m = format!("{} {what} this call within {waited:.1} s", names(&missing));
                let e = self.fail(m);
                let last = missing.iter().map(|&rank| match &heard[rank] {
                    Some((when, head)) => {
                        let call = Seen::decode(head).map_or_else(String::new, |(call, _)| format!(", at {call}"));
                        format!("rank {rank} was last heard of {:.1} s ago{call}", when.elapsed().as_secs_f64())
                    }
                    None => format!("rank {rank} has made no call"),
                });
                last.fold(e, Error::note).help("see whether it has ended, is stopped or is slower than the deadline")
            }
            Stop::Left { rank } => {
                let name = here(&rank).map_or_else(|| format!("rank {rank} of the world"), |rank| names(&[rank]));
                self.fail(format!("{name} has left: its program ended, or dropped the communicator, before this call"))
                    .help("every rank makes the same calls; look at how that rank ended")
            }
            Stop::Failed { rank, why } => {
                let e = self.error(format!("rank {rank} of the world has given up"));
                group.world.remember(format!("rank {rank}: {why}"));
                e.note(why)
            }
            #[cfg(feature = "mpi")]
            Stop::Died { rank } => {
                let name = here(&rank).map_or_else(|| format!("rank {rank} of the world"), |rank| names(&[rank]));
                self.fail(format!("{name} has died: its process is gone"))
                    .help("look at what it printed last, and whether the memory of its machine was full")
            }
            #[cfg(feature = "mpi")]
            Stop::Engine(why) => self.fail(format!("{} fails: {why}", group.world.engine.name())),
        }
    }

    /// An error of this call. Nobody else is told.
    pub(crate) fn error(&self, message: impl Into<String>) -> Error {
        let call = self.call.seen(self.number);
        let e = Error::new(ErrorKind::Peer, self.call.collective.name(), message).at(self.call.line);
        e.note(format!("rank {} of {} makes {call}", self.group.rank, self.group.size()))
    }

    /// An error of this call that ends all communication, and is told to all ranks.
    pub(crate) fn fail(&self, message: impl Into<String>) -> Error {
        let message = message.into();
        self.tell(&message, &format!("({})", self.call.seen(self.number)));
        self.error(message)
    }

    /// Ends all communication, and tells all ranks of the world why. Others may have other numbers than here.
    fn tell(&self, what: &str, more: &str) {
        let Group { world, ranks, .. } = self.group;
        let here = match ranks.len() == world.engine.size() && ranks.is_sorted() {
            true => String::new(),
            false => format!(", in a communicator of the {} of the world, in this order", names(ranks)),
        };
        world.fail(format!("{what} {more}{here}"));
    }

    /// Ends all communication because of what happened to this rank alone.
    #[cfg(all(feature = "nccl", unix))]
    pub(crate) fn give_up(&self, why: &Error) {
        self.tell(why.message(), &format!("({})", self.call.seen(self.number)));
    }

    /// Whether another rank has ended the call, while its data moves by other means. Never waits.
    #[cfg(all(feature = "nccl", unix))]
    pub(crate) fn look(&self) -> std::result::Result<(), Stop> {
        let group = self.group;
        let others: Vec<usize> = group.others(self.call.collective).into_iter().map(|rank| group.ranks[rank]).collect();
        group.world.engine.look(&others)
    }

    /// The error of a call whose data moves by other means, when its deadline has passed: asks which ranks still answer,
    /// and names those that do not.
    #[cfg(all(feature = "nccl", unix))]
    pub(crate) fn overdue(&self, by: &str) -> Error {
        let (group, state) = (self.group, self.group.lock());
        let others: Vec<usize> = group.others(self.call.collective).into_iter().map(|rank| group.ranks[rank]).collect();
        // The engine may be at work on these after it has returned, so they are never freed.
        let word: &'static [u8] = &[0; 8];
        let rooms: &'static mut [u8] = Box::leak(vec![0; 8 * others.len()].into_boxed_slice());
        let outgoing: Vec<Outgoing<'_>> = others.iter().map(|&to| Outgoing { to, bytes: word }).collect();
        let mut incoming: Vec<Incoming<'_>> =
            others.iter().zip(rooms.chunks_mut(8)).map(|(&from, room)| Incoming { from, room }).collect();
        let channel = Channel { context: group.context, body: true };
        let deadline = Instant::now() + ANSWER;
        // SAFETY: the bytes live for ever.
        let made = unsafe { group.world.engine.exchange(channel, &outgoing, &mut incoming, Until::Done, deadline) };
        let m = format!("{by} did not complete this call within {:.1} s", self.began.elapsed().as_secs_f64());
        match made {
            Ok(()) => self
                .fail(format!("{m}, though all ranks are in it"))
                .help("give the ranks a longer deadline, and look at the network between the machines"),
            Err(Stop::Late { from, .. }) if !from.is_empty() => {
                let here = |world: &usize| group.ranks.iter().position(|rank| rank == world);
                let silent = names(&from.iter().filter_map(here).collect::<Vec<_>>());
                self.fail(format!("{m}, and {silent} did not answer afterwards"))
                    .help("see whether it has ended, or is stopped, or did its part and went on")
            }
            Err(stop) => self.stopped(stop, true, &state.heard),
        }
    }

    /// The error that lists the calls of all ranks.
    fn disagreement(&self, others: &[usize], heard: &[Option<(Instant, [u8; HEAD])>]) -> Error {
        let call = |rank: usize| Some((rank, Seen::decode(&heard[rank].as_ref()?.1)?.0));
        let mut seen: Vec<(usize, Seen)> = others.iter().filter_map(|&rank| call(rank)).collect();
        seen.push((self.group.rank, self.call.seen(self.number)));
        seen.sort_by_key(|(rank, _)| *rank);
        let mut lines: Vec<(Vec<usize>, String)> = vec![];
        for (rank, call) in seen {
            let call = call.to_string();
            match lines.iter_mut().find(|(_, other)| *other == call) {
                Some((ranks, _)) => ranks.push(rank),
                None => lines.push((vec![rank], call)),
            }
        }
        let lines: Vec<String> = lines.into_iter().map(|(ranks, call)| format!("{}: {call}", names(&ranks))).collect();
        self.tell("ranks make different calls:", &lines.join("; "));
        let line = self.call.line;
        let e = Error::new(ErrorKind::Peer, self.call.collective.name(), "ranks make different calls").at(line);
        lines
            .into_iter()
            .fold(e, Error::note)
            .help("all ranks make the same calls in the same order, with tensors of one shape")
    }
}

/// `rank 2` or `ranks 1, 2`.
pub(crate) fn names(ranks: &[usize]) -> String {
    let numbers: Vec<String> = ranks.iter().map(usize::to_string).collect();
    format!("rank{} {}", if ranks.len() == 1 { "" } else { "s" }, numbers.join(", "))
}

/// The line of a caller, as calls carry it.
pub(crate) type Line = &'static Location<'static>;

//! The functions of the library's C interface.

use std::cell::RefCell;
use std::ffi::{CStr, c_char};
use std::sync::Arc;

use super::{
    ASYNCHRONOUS, BEHAVIOUR, CUDA_ERROR, Clique, Comm, IN_PROGRESS, INVALID_ARGUMENT, INVALID_USAGE, Key, Launch, Part,
    What,
};
use crate::driver::abi::{Code, Handle, Out, SUCCESS};
use crate::driver::call::exported;
use crate::driver::machine::Driver;
use crate::driver::work::Work;

/// What makes communicators one.
#[derive(Clone, Copy)]
#[repr(C)]
struct Id([u8; 128]);

/// The beginning of a configuration.
#[derive(Clone, Copy)]
#[repr(C)]
struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: i32,
}

/// The calls of a group that a thread has begun: the communicator, the stream, the call, and how it behaves.
type Group = Vec<(Handle, Handle, Part, Option<u32>)>;

thread_local! {
    static GROUP: RefCell<Option<Group>> = const { RefCell::new(None) };
}

/// Reports a call that the real library might answer in any way.
fn mistake(driver: &mut Driver, text: &str, code: Code) -> Code {
    driver.counts.report(&format!("NCCL: {text}"));
    code
}

/// A communicator whose device is the thread's.
fn found(driver: &mut Driver, comm: Handle) -> Result<&mut Comm, Code> {
    let device = driver.current().map_err(|_| CUDA_ERROR)?;
    match driver.nccl.comms.get(&comm).map(|comm| comm.device) {
        None => Err(mistake(driver, "the communicator was aborted, or never made", INVALID_ARGUMENT)),
        Some(own) if own != device => {
            Err(mistake(driver, "the context of another device is current", INVALID_ARGUMENT))
        }
        Some(_) => driver.nccl.comms.get_mut(&comm).ok_or(INVALID_ARGUMENT),
    }
}

/// Whether all ranks have come.
fn is_connected(driver: &Driver, clique: usize) -> bool {
    driver.nccl.cliques[clique].members.iter().all(Option::is_some)
}

/// Adds a call to the group, or makes it.
fn add(
    driver: &mut Driver,
    comm: Handle,
    stream: Handle,
    what: What,
    from: u64,
    to: u64,
    peer: Option<i32>,
) -> Result<(), Code> {
    let behaviour = driver.nccl.behaviour.take();
    let Comm { clique, rank, device, questions, ref begun, error, .. } = *found(driver, comm)?;
    if let Some(code) = error {
        return Err(code);
    }
    if questions != Some(0) || !begun.is_empty() || !is_connected(driver, clique) {
        return Err(mistake(driver, "the communicator is not ready: an earlier call goes on", INVALID_USAGE));
    }
    let resolved = driver.stream(stream).map_err(|_| INVALID_ARGUMENT)?;
    if driver.streams[&resolved].device != device || driver.is_capturing(resolved) {
        return Err(mistake(driver, "the stream is another device's, or is captured", INVALID_USAGE));
    }
    let size = driver.nccl.cliques[clique].members.len();
    let (given, taken) = what.bytes(size);
    let is_message = matches!(what, What::Message { .. });
    for (address, bytes) in [(from, given), (to, taken)].into_iter().filter(|(at, _)| !is_message || *at != 0) {
        let memory = &driver.devices[device].memory.memory;
        let is_there = memory.range_of(address).is_some_and(|(base, len)| base + len >= address + bytes as u64);
        if bytes > 0 && !is_there {
            let text = format!("{what:?}: the {bytes} bytes at {address:#x} are not allocated on the device");
            return Err(mistake(driver, &text, INVALID_ARGUMENT));
        }
    }
    let peer = match peer {
        None => rank,
        Some(peer) => usize::try_from(peer).ok().filter(|peer| *peer < size).ok_or(INVALID_ARGUMENT)?,
    };
    if let What::Broadcast { root, .. } = what
        && root >= size
    {
        return Err(INVALID_ARGUMENT);
    }
    let comm_of = found(driver, comm)?;
    let key = if is_message {
        let sides = if from != 0 { (rank, peer) } else { (peer, rank) };
        let number = comm_of.pairs.entry(if from != 0 { (0, peer) } else { (1, peer) }).or_default();
        *number += 1;
        Key::Message { from: sides.0, to: sides.1, number: *number }
    } else {
        comm_of.collectives += 1;
        Key::Collective(comm_of.collectives)
    };
    let one = (comm, resolved, Part { key, what, device, from, to }, behaviour);
    let alone = GROUP.with_borrow_mut(|group| match group {
        Some(group) => {
            group.push(one);
            None
        }
        None => Some(one),
    });
    match alone {
        None => Ok(()),
        Some(one) => begin(driver, vec![one]),
    }
}

/// Begins the calls of a group: one launch for each communicator and stream.
fn begin(driver: &mut Driver, mut group: Group) -> Result<(), Code> {
    while let Some(&(comm, stream, ..)) = group.first() {
        let own = group.extract_if(.., |one| (one.0, one.1) == (comm, stream));
        let (parts, behaviours): (Vec<Part>, Vec<Option<u32>>) = own.map(|(_, _, part, how)| (part, how)).unzip();
        let behaviour = behaviours.into_iter().flatten().next();
        let of = found(driver, comm)?;
        let (clique, rank) = (of.clique, of.rank);
        of.questions = Some(match behaviour {
            Some(how) if how < ASYNCHRONOUS => how - BEHAVIOUR,
            _ => 1,
        });
        if let Some(how) = behaviour.filter(|how| *how >= ASYNCHRONOUS) {
            of.error = Some(Code(how - ASYNCHRONOUS));
        }
        let is_endless = behaviour == Some(BEHAVIOUR);
        of.begun.push((stream, Arc::new(Launch { comm, clique, rank, parts, is_endless })));
    }
    Err(IN_PROGRESS)
}

/// As a number of the real library's: major version times 10000, and so on.
fn version(driver: &Driver) -> i32 {
    driver.settings.nccl_version
}

fn bytes_of(count: usize, kind: i32) -> Result<usize, Code> {
    let size = match kind {
        0 | 1 => 1,
        6 | 9 => 2,
        2 | 3 | 7 => 4,
        4 | 5 | 8 => 8,
        _ => return Err(INVALID_ARGUMENT),
    };
    count.checked_mul(size).ok_or(INVALID_ARGUMENT)
}

/// What a code means. The texts live as long as the program.
// SAFETY: the name is that of the library's interface, so no other library of the process has a function of the name unless
// it is the library itself.
#[unsafe(no_mangle)]
extern "C" fn ncclGetErrorString(code: Code) -> *const c_char {
    let text: &'static CStr = match code.0 {
        0 => c"no error",
        1 => c"unhandled cuda error",
        2 => c"unhandled system error",
        3 => c"internal error",
        4 => c"invalid argument",
        5 => c"invalid usage",
        6 => c"remote process exited or there was a network error",
        7 => c"NCCL operation in progress",
        _ => c"unknown result code",
    };
    text.as_ptr()
}

exported! {
    fn ncclGetVersion(driver, to: Out<i32>) {
        to.put(version(driver))
    }

    fn ncclGetUniqueId(driver, to: Out<Id>) {
        driver.nccl.ids += 1;
        let mut id = Id([7; 128]);
        id.0[..8].copy_from_slice(&driver.nccl.ids.to_le_bytes());
        to.put(id)
    }

    fn ncclCommInitRankConfig(driver, to: Out<Handle>, size: i32, id: Id, rank: i32, config: Out<Config>) {
        let behaviour = driver.nccl.behaviour.take();
        let device = driver.current().map_err(|_| CUDA_ERROR)?;
        let Config { size: bytes, magic, version: of, blocking } = config.get()?;
        if magic != 0xcafe_beef || bytes < size_of::<Config>() || of < 21_400 {
            return Err(INVALID_ARGUMENT);
        }
        if blocking != 0 {
            return Err(mistake(driver, "a communicator that is blocking waits without end", INVALID_USAGE));
        }
        let (Ok(size), Ok(rank)) = (usize::try_from(size), usize::try_from(rank)) else { return Err(INVALID_ARGUMENT) };
        let (number, rest) = id.0.split_at(8);
        let number = number.try_into().map_or(0, u64::from_le_bytes);
        if rank >= size || number == 0 || number > driver.nccl.ids || rest.iter().any(|byte| *byte != 7) {
            return Err(INVALID_ARGUMENT);
        }
        let at = driver.nccl.cliques.iter().position(|clique| clique.id == number).unwrap_or_else(|| {
            driver.nccl.cliques.push(Clique { id: number, members: vec![None; size], calls: Default::default() });
            driver.nccl.cliques.len() - 1
        });
        let handle = driver.handle();
        let has_device = driver.nccl.comms.values().any(|other| other.clique == at && other.device == device);
        let members = &mut driver.nccl.cliques[at].members;
        if members.len() != size || members[rank].is_some() {
            return Err(mistake(driver, "ranks that are to be connected have other numbers", INVALID_ARGUMENT));
        }
        if has_device {
            return Err(INVALID_USAGE);
        }
        to.put(handle)?;
        members[rank] = Some(handle);
        let questions = match behaviour {
            Some(BEHAVIOUR) => None,
            Some(how) if how < ASYNCHRONOUS => Some(how - BEHAVIOUR),
            _ => Some(1),
        };
        let error = behaviour.filter(|how| *how >= ASYNCHRONOUS).map(|how| Code(how - ASYNCHRONOUS));
        driver.nccl.comms.insert(handle, Comm {
            clique: at,
            rank,
            device,
            questions,
            error,
            begun: Vec::new(),
            is_ending: false,
            collectives: 0,
            pairs: Default::default(),
        });
        Err(IN_PROGRESS)
    }

    /// The state of a communicator. When it is ready, what was begun is under way.
    fn ncclCommGetAsyncError(driver, comm: Handle, to: Out<Code>) {
        let clique = found(driver, comm)?.clique;
        let is_connected = is_connected(driver, clique);
        let comms = driver.nccl.comms.values();
        let all_end = comms.filter(|other| other.clique == clique).all(|other| other.is_ending);
        let of = found(driver, comm)?;
        let state = match of.questions {
            _ if of.error.is_some() => of.error.unwrap_or(SUCCESS),
            None => IN_PROGRESS,
            _ if !is_connected => IN_PROGRESS,
            Some(0) if !of.is_ending || all_end => SUCCESS,
            Some(n) => {
                of.questions = Some(n.saturating_sub(1));
                IN_PROGRESS
            }
        };
        if state == SUCCESS {
            let begun = std::mem::take(&mut of.begun);
            for (stream, launch) in begun {
                driver.give(stream, Work::Collective(launch)).map_err(|_| CUDA_ERROR)?;
            }
        }
        to.put(state)
    }

    fn ncclCommFinalize(driver, comm: Handle) {
        let of = found(driver, comm)?;
        if of.is_ending || !of.begun.is_empty() {
            return Err(mistake(driver, "the communicator is ended while a call goes on, or twice", INVALID_USAGE));
        }
        of.is_ending = true;
        Err(IN_PROGRESS)
    }

    fn ncclCommDestroy(driver, comm: Handle) {
        if !found(driver, comm)?.is_ending {
            return Err(mistake(driver, "the communicator is destroyed before it has ended", INVALID_USAGE));
        }
        driver.nccl.comms.remove(&comm);
        Ok(())
    }

    fn ncclCommAbort(driver, comm: Handle) {
        found(driver, comm)?;
        driver.nccl.comms.remove(&comm);
        Ok(())
    }

    fn ncclGroupStart(driver) {
        let is_new = GROUP.with_borrow_mut(|group| group.replace(Vec::new()).is_none());
        if is_new { Ok(()) } else { Err(mistake(driver, "a group within a group", INVALID_USAGE)) }
    }

    fn ncclGroupEnd(driver) {
        match GROUP.take() {
            None => Err(mistake(driver, "a group ends that was not begun", INVALID_USAGE)),
            Some(group) if group.is_empty() => Ok(()),
            Some(group) => begin(driver, group),
        }
    }

    fn ncclAllReduce(driver, from: u64, to: u64, count: usize, kind: i32, reduction: i32, comm: Handle, stream: Handle) {
        let what = What::AllReduce { bytes: bytes_of(count, kind)?, kind, reduction };
        add(driver, comm, stream, what, from, to, None)
    }

    fn ncclReduceScatter(driver, from: u64, to: u64, count: usize, kind: i32, reduction: i32, comm: Handle, stream: Handle) {
        let what = What::ReduceScatter { bytes: bytes_of(count, kind)?, kind, reduction };
        add(driver, comm, stream, what, from, to, None)
    }

    fn ncclAllGather(driver, from: u64, to: u64, count: usize, kind: i32, comm: Handle, stream: Handle) {
        add(driver, comm, stream, What::AllGather { bytes: bytes_of(count, kind)? }, from, to, None)
    }

    fn ncclBroadcast(driver, from: u64, to: u64, count: usize, kind: i32, root: i32, comm: Handle, stream: Handle) {
        let root = usize::try_from(root).map_err(|_| INVALID_ARGUMENT)?;
        add(driver, comm, stream, What::Broadcast { bytes: bytes_of(count, kind)?, root }, from, to, None)
    }

    fn ncclSend(driver, from: u64, count: usize, kind: i32, peer: i32, comm: Handle, stream: Handle) {
        if from == 0 {
            return Err(INVALID_ARGUMENT);
        }
        add(driver, comm, stream, What::Message { bytes: bytes_of(count, kind)? }, from, 0, Some(peer))
    }

    fn ncclRecv(driver, to: u64, count: usize, kind: i32, peer: i32, comm: Handle, stream: Handle) {
        if to == 0 {
            return Err(INVALID_ARGUMENT);
        }
        add(driver, comm, stream, What::Message { bytes: bytes_of(count, kind)? }, 0, to, Some(peer))
    }
}

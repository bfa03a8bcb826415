//! What stands in for NCCL: collectives between devices, and the mistakes of callers that it finds.

use super::api::*;
use super::with_variables;

const F32: i32 = 7;
const INVALID_ARGUMENT: Outcome<()> = Err(4);
const INVALID_USAGE: Outcome<()> = Err(5);
const IN_PROGRESS: Outcome<()> = Err(7);

#[derive(Clone, Copy)]
#[repr(C)]
struct Id([u8; 128]);

#[repr(C)]
struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: i32,
    others: [i32; 3],
    name: usize,
    share: i32,
}

/// A rank: its device, and what it has there.
struct Rank {
    device: i32,
    comm: usize,
    stream: usize,
    memory: u64,
}

fn is_in_progress(outcome: Outcome<()>) -> Outcome<()> {
    if outcome == IN_PROGRESS { Ok(()) } else { outcome }
}

impl Rank {
    /// Begins to connect a device, with four numbers on it.
    fn begin(device: i32, id: Id, size: i32, rank: i32, blocking: i32) -> Outcome<Rank> {
        start_with(device)?;
        let (mut comm, mut stream, mut memory) = (0, 0, 0);
        call!(cuStreamCreate(&mut stream => &mut usize, 1 => u32))?;
        call!(cuMemAlloc_v2(&mut memory => &mut u64, 16 => usize))?;
        let numbers = [1.0f32 + rank as f32; 4];
        call!(cuMemcpyHtoD_v2(memory => u64, &numbers => &[f32; 4], 16 => usize))?;
        let mut config = Config {
            size: size_of::<Config>(),
            magic: 0xcafe_beef,
            version: 21_800,
            blocking,
            others: [i32::MIN; 3],
            name: 0,
            share: i32::MIN,
        };
        is_in_progress(
            call!(ncclCommInitRankConfig(&mut comm => &mut usize, size => i32, id => Id, rank => i32, &mut config => &mut Config)),
        )?;
        Ok(Rank { device, comm, stream, memory })
    }

    fn enter(&self) {
        start_with(self.device).expect("a context");
    }

    /// The state of the communicator: 0 when it is ready.
    fn state(&self) -> u32 {
        self.enter();
        let mut state = 99;
        call!(ncclCommGetAsyncError(self.comm => usize, &mut state => &mut u32)).expect("a state");
        state
    }

    fn sum(&self, from: u64, count: usize, kind: i32, stream: usize) -> Outcome<()> {
        call!(ncclAllReduce(from => u64, from => u64, count => usize, kind => i32, 0 => i32, self.comm => usize, stream => usize))
    }

    fn numbers(&self) -> [f32; 4] {
        self.enter();
        let mut numbers = [0.0f32; 4];
        call!(cuMemcpyDtoH_v2(&mut numbers => &mut [f32; 4], self.memory => u64, 16 => usize)).expect("numbers");
        numbers
    }
}

fn id() -> Id {
    init().expect("a driver");
    let mut id = Id([0; 128]);
    call!(ncclGetUniqueId(&mut id => &mut Id)).expect("an identity");
    id
}

/// Two ranks that are connected.
fn connected() -> [Rank; 2] {
    let id = id();
    let ranks = [0, 1].map(|rank| Rank::begin(rank, id, 2, rank, 0).expect("it begins"));
    assert_eq!([ranks[0].state(), ranks[0].state()], [7, 0]);
    assert_eq!([ranks[1].state(), ranks[1].state()], [7, 0]);
    ranks
}

#[test]
fn a_collective_is_done_once_all_ranks_have_come() {
    with_variables("nccl::a_collective_is_done_once_all_ranks_have_come", &[("GRADUS_PTX_DEVICES", "2")], || {
        let [a, b] = connected();
        a.enter();
        assert_eq!(a.sum(a.memory, 4, F32, a.stream), IN_PROGRESS);
        assert_eq!(call!(cuStreamQuery(a.stream => usize)), Ok(()), "nothing is under way yet");
        assert_eq!([a.state(), a.state()], [7, 0]);
        for _ in 0..2 {
            assert_eq!(call!(cuStreamQuery(a.stream => usize)), Err(600), "the other rank has not come");
        }
        assert_eq!(a.numbers(), [1.0; 4]);
        // Who waits for other ranks without a deadline might wait for ever.
        assert_eq!(call!(cuStreamSynchronize(a.stream => usize)), Err(702));
        assert!(fault().contains("without a deadline"), "{}", fault());
        b.enter();
        assert_eq!(b.sum(b.memory, 4, F32, b.stream), IN_PROGRESS);
        assert_eq!([b.state(), b.state()], [7, 0]);
        assert_eq!(call!(cuStreamSynchronize(b.stream => usize)), Ok(()));
        a.enter();
        assert_eq!(call!(cuStreamSynchronize(a.stream => usize)), Ok(()));
        assert_eq!((a.numbers(), b.numbers()), ([3.0; 4], [3.0; 4]));
        // A message, and its end.
        b.enter();
        let sent =
            call!(ncclSend(b.memory => u64, 2 => usize, F32 => i32, 0 => i32, b.comm => usize, b.stream => usize));
        assert_eq!((sent, b.state(), b.state()), (IN_PROGRESS, 7, 0));
        a.enter();
        assert_eq!(call!(ncclGroupStart()), Ok(()));
        let received =
            call!(ncclRecv(a.memory + 8 => u64, 2 => usize, F32 => i32, 1 => i32, a.comm => usize, a.stream => usize));
        assert_eq!((received, call!(ncclGroupEnd())), (Ok(()), IN_PROGRESS));
        assert_eq!([a.state(), a.state()], [7, 0]);
        assert_eq!(call!(cuStreamSynchronize(a.stream => usize)), Ok(()));
        for rank in [&a, &b] {
            rank.enter();
            assert_eq!(call!(ncclCommFinalize(rank.comm => usize)), IN_PROGRESS);
        }
        assert_eq!((a.state(), call!(ncclCommDestroy(a.comm => usize))), (0, Ok(())));
        assert_eq!((b.state(), call!(ncclCommDestroy(b.comm => usize))), (0, Ok(())));
    });
}

#[test]
fn mistakes_of_callers_are_found() {
    with_variables("nccl::mistakes_of_callers_are_found", &[("GRADUS_PTX_DEVICES", "3")], || {
        let [a, b] = connected();
        a.enter();
        for (why, outcome, text) in [
            (a.sum(0, 4, F32, a.stream), INVALID_ARGUMENT, "are not allocated"),
            (a.sum(a.memory, 5, F32, a.stream), INVALID_ARGUMENT, "are not allocated"),
            (a.sum(a.memory, 4, F32, b.stream), INVALID_USAGE, "another device's"),
            (b.sum(b.memory, 4, F32, b.stream), INVALID_ARGUMENT, "the context of another device"),
            (call!(ncclGroupEnd()), INVALID_USAGE, "that was not begun"),
            (call!(ncclCommDestroy(a.comm => usize)), INVALID_USAGE, "before it has ended"),
        ] {
            assert_eq!(why, outcome, "{text}");
        }
        assert!(fault().contains("before it has ended"), "{}", fault());
        assert_eq!(a.sum(a.memory, 4, 3, a.stream), IN_PROGRESS);
        assert_eq!(a.sum(a.memory, 4, 3, a.stream), INVALID_USAGE, "it is not ready");
        assert!(fault().contains("an earlier call goes on"), "{}", fault());
        assert_eq!([a.state(), a.state()], [7, 0]);
        // Another count.
        b.enter();
        assert_eq!(b.sum(b.memory, 3, 3, b.stream), IN_PROGRESS);
        assert_eq!([b.state(), b.state(), b.state(), a.state()], [7, 0, 5, 5]);
        assert!(fault().contains("ranks make different calls"), "{}", fault());
        a.enter();
        assert_eq!(call!(ncclCommAbort(a.comm => usize)), Ok(()));
        assert_eq!(call!(cuStreamSynchronize(a.stream => usize)), Ok(()), "what was aborted holds up nothing");
        assert_eq!(a.sum(a.memory, 4, F32, a.stream), INVALID_ARGUMENT);
        assert!(fault().contains("was aborted"), "{}", fault());
    });
}

#[test]
fn ranks_that_do_not_fit_are_not_connected() {
    with_variables("nccl::ranks_that_do_not_fit_are_not_connected", &[("GRADUS_PTX_DEVICES", "2")], || {
        let id = id();
        let begin = |device, size, rank, blocking| Rank::begin(device, id, size, rank, blocking).map(drop);
        assert_eq!(begin(0, 2, 0, 1), INVALID_USAGE, "a communicator that blocks");
        assert_eq!(begin(0, 2, 2, 0), INVALID_ARGUMENT, "no such rank");
        assert_eq!(begin(0, 2, 0, 0), Ok(()));
        assert_eq!(begin(1, 2, 0, 0), INVALID_ARGUMENT, "the rank is there");
        assert_eq!(begin(1, 3, 1, 0), INVALID_ARGUMENT, "another number of ranks");
        assert_eq!(begin(0, 2, 1, 0), INVALID_USAGE, "the device is there");
        assert_eq!(Rank::begin(1, Id([3; 128]), 2, 1, 0).map(drop), INVALID_ARGUMENT, "no such identity");
    });
}

#[test]
fn memory_that_was_never_written_is_not_sent() {
    with_variables("nccl::memory_that_was_never_written_is_not_sent", &[("GRADUS_PTX_DEVICES", "2")], || {
        let [a, b] = connected();
        for rank in [&a, &b] {
            rank.enter();
            let mut memory = 0;
            call!(cuMemAlloc_v2(&mut memory => &mut u64, 16 => usize)).expect("memory");
            assert_eq!(rank.sum(memory, 4, F32, rank.stream), IN_PROGRESS);
            rank.state();
            rank.state();
        }
        assert!(fault().contains("were never written"), "{}", fault());
        assert_eq!([a.state(), b.state()], [5, 5]);
    });
}

#[test]
fn a_plan_says_how_calls_go_on() {
    with_variables("nccl::a_plan_says_how_calls_go_on", &[("GRADUS_PTX_DEVICES", "2")], || {
        let [a, b] = connected();
        fail("ncclAllReduce:1=3,ncclAllReduce:2=1003,ncclAllReduce:3=2006").expect("a plan");
        a.enter();
        assert_eq!(a.sum(a.memory, 4, F32, a.stream), Err(3));
        assert_eq!(a.sum(a.memory, 4, F32, a.stream), IN_PROGRESS);
        assert_eq!([a.state(), a.state(), a.state(), a.state()], [7, 7, 7, 0]);
        b.enter();
        assert_eq!(b.sum(b.memory, 4, F32, b.stream), IN_PROGRESS);
        assert_eq!([b.state(), b.state()], [6, 6]);
        fail("ncclCommInitRankConfig:1=1000").expect("a plan");
        let late = Rank::begin(0, id(), 1, 0, 0).expect("it begins");
        assert_eq!([late.state(), late.state(), late.state()], [7, 7, 7]);
    });
}

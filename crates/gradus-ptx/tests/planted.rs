//! Planted mistakes are found, with their lines, and the twins without them run.

mod common;

use common::{Arg, Device};
use gradus_ptx::{Fault, FaultKind, Stats};

const SOURCE: &str = include_str!("kernels/mistakes.cu");

fn device() -> Device {
    Device::new(include_str!("kernels/mistakes.ptx"))
}

/// Checks the kind and the line of a mistake.
#[track_caller]
fn found(result: Result<Stats, Fault>, kind: FaultKind, line: &str) -> Fault {
    let fault = result.expect_err("the mistake is found");
    assert_eq!(fault.kind, kind, "{fault}");
    let lines: Vec<usize> =
        (1..).zip(SOURCE.lines()).filter(|(_, text)| text.contains(line)).map(|(at, _)| at).collect();
    let source = fault.source.clone().expect("the line of the source is known");
    assert!(lines.contains(&(source.line as usize)), "{fault}\nexpected line {lines:?}");
    assert!(source.file.ends_with("mistakes.cu"), "{fault}");
    fault
}

/// The number of the line with these words, as a fault's text names it.
fn place(words: &str) -> String {
    let at = SOURCE.lines().position(|text| text.contains(words)).expect("the line exists");
    format!("mistakes.cu:{}", at + 1)
}

#[track_caller]
fn fine(result: Result<Stats, Fault>) {
    if let Err(fault) = result {
        panic!("{fault}");
    }
}

#[test]
fn a_missing_barrier() {
    let device = device();
    let x: Vec<i32> = (0..256).collect();
    let (from, to) = (device.upload(&x), device.alloc::<i32>(256));
    let args = |barrier| [Arg::U64(from), Arg::U64(to), Arg::U32(barrier)];
    fine(device.run("reverse", 1, 256, &args(1)));
    assert!(device.download::<i32>(to, 256).into_iter().eq((0..256).rev()));
    let result = device.run("reverse", 1, 256, &args(0));
    // Warp 0 reads what warp 7 has not written yet, or warp 7 writes what warp 0 read.
    let fault = result.expect_err("the mistake is found");
    assert!(matches!(fault.kind, FaultKind::Race | FaultKind::Uninitialised), "{fault}");
    let x = device.upload(&x[..32]);
    fine(device.run("rotate", 1, 32, &[Arg::U64(x), Arg::U32(1)]));
    let result = device.run("rotate", 1, 32, &[Arg::U64(x), Arg::U32(0)]);
    let fault = found(result, FaultKind::Race, "rotate reads");
    assert!(fault.text.contains("shared memory") && fault.text.contains("mistakes.cu:"), "{fault}");
}

#[test]
fn a_missing_barrier_between_halves_of_a_word() {
    let device = device();
    let x: Vec<u16> = (0..64).collect();
    let (from, to) = (device.upload(&x), device.alloc::<u16>(64));
    fine(device.run("sixteen", 1, 64, &[Arg::U64(from), Arg::U64(to), Arg::U32(1)]));
    let fault = device.run("sixteen", 1, 64, &[Arg::U64(from), Arg::U64(to), Arg::U32(0)]).expect_err("it is found");
    assert!(matches!(fault.kind, FaultKind::Race | FaultKind::Uninitialised), "{fault}");
}

#[test]
fn one_past_the_end() {
    let device = device();
    let x = device.upload(&[1f32; 100]);
    let (y, z) = (device.upload(&[2f32; 100]), device.alloc::<f32>(100));
    let args = |n| [Arg::U64(x), Arg::U64(y), Arg::U64(z), Arg::U32(n)];
    fine(device.run("add", 1, 128, &args(99)));
    assert_eq!(device.download::<f32>(z, 100), [3f32; 100]);
    let fault = found(device.run("add", 1, 128, &args(100)), FaultKind::OutOfBounds, "one too many");
    assert_eq!(fault.thread, [100, 0, 0]);
    assert!(fault.text.contains("0 bytes past the end of the allocation of 400 bytes"), "{fault}");
    device.memory.free(y).unwrap();
    let fault = found(device.run("add", 1, 128, &args(99)), FaultKind::OutOfBounds, "one too many");
    assert!(fault.text.contains("which was freed"), "{fault}");
}

#[test]
fn past_an_array_of_shared_memory() {
    let device = device();
    let (x, y) = (device.upload(&[1f32; 32]), device.alloc::<f32>(32));
    fine(device.run("past", 1, 32, &[Arg::U64(x), Arg::U64(y), Arg::U32(0)]));
    let fault = found(
        device.run("past", 1, 32, &[Arg::U64(x), Arg::U64(y), Arg::U32(1)]),
        FaultKind::OutOfBounds,
        "past the array",
    );
    assert_eq!(fault.thread, [31, 0, 0]);
}

#[test]
fn a_wrong_stride() {
    let device = device();
    let x = device.upload(&vec![1f32; 4096]);
    let y = device.alloc::<f32>(4096);
    fine(device.run("rows", 64, 64, &[Arg::U64(x), Arg::U64(y), Arg::U32(64)]));
    let fault =
        found(device.run("rows", 64, 64, &[Arg::U64(x), Arg::U64(y), Arg::U32(63)]), FaultKind::Race, "rows overlap");
    assert!(fault.text.contains("a thread of another block"), "{fault}");
    assert!(fault.text.contains(&place("rows overlap")), "{fault}");
}

#[test]
fn reads_of_what_was_never_written() {
    let device = device();
    let (x, y) = (device.upload(&[1f32; 32]), device.alloc::<f32>(64));
    let fault =
        found(device.run("partial", 1, 64, &[Arg::U64(x), Arg::U64(y)]), FaultKind::Uninitialised, "half is unset");
    assert_eq!(fault.thread[0], 32);
    let unset = device.alloc::<f32>(100);
    let args = [Arg::U64(unset), Arg::U64(unset), Arg::U64(y), Arg::U32(9)];
    found(device.run("add", 1, 1, &args), FaultKind::Uninitialised, "one too many");
    let x = device.upload(&[0, 1, 2, 3, 4, 5, 6, 6]);
    fine(device.run("local_unset", 1, 1, &[Arg::U64(x), Arg::U64(y)]));
    assert_eq!(device.download::<i32>(y, 1), [6]);
    let x = device.upload(&[0, 1, 2, 3, 4, 5, 6, 7]);
    found(device.run("local_unset", 1, 1, &[Arg::U64(x), Arg::U64(y)]), FaultKind::Uninitialised, "never set");
}

#[test]
fn divergent_barriers() {
    let device = device();
    let x = device.upload(&[0i32; 128]);
    fine(device.run("half_barrier", 1, 64, &[Arg::U64(x), Arg::U32(64)]));
    for limit in [16, 32] {
        let args = [Arg::U64(x), Arg::U32(limit)];
        found(device.run("half_barrier", 1, 64, &args), FaultKind::DivergentBarrier, "not all come");
        let result = device.run("two_barriers", 1, 64, &args);
        let fault = result.expect_err("the mistake is found");
        assert_eq!(fault.kind, FaultKind::DivergentBarrier, "{fault}");
    }
}

#[test]
fn an_endless_loop() {
    let mut device = device();
    device.limits.steps = 10_000;
    let x = device.upload(&[0i32]);
    let fault = device.run("forever", 1, 32, &[Arg::U64(x)]).expect_err("the loop is ended");
    assert_eq!(fault.kind, FaultKind::Steps, "{fault}");
}

#[test]
fn shuffles_without_their_lanes() {
    let device = device();
    let x = device.upload(&[0i32; 32]);
    fine(device.run("shuffled", 1, 32, &[Arg::U64(x), Arg::U32(32)]));
    found(device.run("shuffled", 1, 32, &[Arg::U64(x), Arg::U32(8)]), FaultKind::DivergentWarp, "lanes are missing");
    found(device.run("inactive", 1, 32, &[Arg::U64(x)]), FaultKind::DivergentWarp, "outside the mask");
}

#[test]
fn blocks_that_race() {
    let device = device();
    let x = device.upload(&[0i32; 2049]);
    fine(device.run("blocks", 100, 1, &[Arg::U64(x), Arg::U32(1)]));
    assert_eq!(device.download::<i32>(x, 1), [100]);
    found(device.run("blocks", 100, 1, &[Arg::U64(x), Arg::U32(0)]), FaultKind::Race, "every block");
    found(device.run("neighbours", 64, 32, &[Arg::U64(x)]), FaultKind::Race, "next block");
    let mut unchecked = device;
    unchecked.limits.races = false;
    fine(unchecked.run("neighbours", 64, 32, &[Arg::U64(x)]));
}

#[test]
fn other_mistakes() {
    let device = device();
    let (x, y) = (device.upload(&[0u8; 16]), device.alloc::<f32>(1));
    found(device.run("misaligned", 1, 1, &[Arg::U64(x), Arg::U64(y)]), FaultKind::Misaligned, "odd address");
    found(device.run("asserts", 1, 1, &[Arg::U64(x)]), FaultKind::Trap, "trapped");
    let x = device.upload(&(0..128).collect::<Vec<i32>>());
    let y = device.alloc::<i32>(128);
    fine(device.run("copied", 1, 32, &[Arg::U64(x), Arg::U64(y), Arg::U32(1)]));
    assert_eq!(device.download::<i32>(y, 4), [124, 125, 126, 127]);
    let fault =
        found(device.run("copied", 1, 32, &[Arg::U64(x), Arg::U64(y), Arg::U32(0)]), FaultKind::Race, "too early");
    assert!(fault.text.contains("cp.async"), "{fault}");
}

#[test]
fn impossible_launches() {
    let device = device();
    let x = device.upload(&[0i32; 32]);
    for (grid, block) in
        [([0, 1, 1], [1, 1, 1]), ([1, 65_536, 1], [1, 1, 1]), ([1, 1, 1], [1024, 2, 1]), ([1, 1, 1], [1, 1, 65])]
    {
        let fault = device.run_with("inactive", grid, block, 0, &[Arg::U64(x)]).expect_err("it is refused");
        assert_eq!(fault.kind, FaultKind::Launch, "{fault}");
    }
    let fault = device.run_with("inactive", [1; 3], [32, 1, 1], 1 << 20, &[Arg::U64(x)]).expect_err("it is refused");
    assert!(fault.text.contains("shared memory"), "{fault}");
    let fault = device.run("inactive", 1, 32, &[]).expect_err("it is refused");
    assert!(fault.text.contains("0 bytes of parameters were given, the kernel has 8"), "{fault}");
}

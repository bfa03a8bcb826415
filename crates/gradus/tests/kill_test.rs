//! Ends training runs in several ways. `examples/kill_test` is the long form of this test.
#![cfg(feature = "cpu")]
#![allow(clippy::unwrap_used)]

#[allow(dead_code)]
#[path = "../examples/kill_test/disks.rs"]
mod disks;
#[path = "../examples/kill_test/kills.rs"]
mod kills;
#[path = "../examples/kill_test/training.rs"]
mod training;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use disks::{Full, PowerCut};
use gradus::prelude::*;
use gradus::train::{Checkpoint, Checkpoints, Os};
use kills::Plan;

/// The arguments of the child, one a line.
const CHILD: &str = "GRADUS_KILL_TEST_CHILD";

/// A folder that is removed at the end of the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("gradus-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_run_that_is_ended_again_and_again_gives_the_bits_of_one_that_is_not() {
    let folder = Folder::new("kill-test");
    let plan = Plan { size: (16, 6), kills: 10, full: 3, cuts: 4, seed: 5, longest_ms: 700 };
    let found = kills::run(&plan, &folder.0, &|arguments| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["this_test_is_the_child", "--exact", "--nocapture"]).env(CHILD, arguments.join("\n"));
        command
    });
    assert_eq!(found.unwrap(), "10 of 10");
}

/// Does nothing, unless the test above has started this process.
#[test]
fn this_test_is_the_child() {
    if let Ok(arguments) = std::env::var(CHILD) {
        let arguments: Vec<String> = arguments.lines().map(String::from).collect();
        if let Err(e) = kills::child(&arguments) {
            eprintln!("{e}");
            std::process::exit(1);
        }
    }
}

/// A checkpoint whose step is also the value of every element of a tensor of 3000 elements.
fn checkpoint(step: u64, device: &Device) -> Checkpoint {
    let mut checkpoint = Checkpoint::default();
    checkpoint.step = step;
    checkpoint.best = step == 2;
    checkpoint.model.insert("w", Tensor::full([3000], step as f64, DType::F32, device).unwrap());
    checkpoint
}

fn step_in(checkpoint: &Checkpoint) -> u64 {
    let values = checkpoint.model.get("w").unwrap().to_vec::<f32>().unwrap();
    assert_eq!(values, [checkpoint.step as f32; 3000]);
    checkpoint.step
}

/// Saves five checkpoints, one after the other. Returns the number of those that are safely written.
fn save_all(folder: &Path, disk: Arc<PowerCut>, device: &Device) -> u64 {
    let Ok(checkpoints) = Checkpoints::open_on(disk, folder) else { return 0 };
    (1..=5)
        .take_while(|&step| {
            let saved = checkpoints.save(checkpoint(step, device));
            saved.and_then(|()| checkpoints.wait()).is_ok()
        })
        .last()
        .unwrap_or(0)
}

/// Cuts the power at every call to the disk, several times each. Returns how often a checkpoint that was written was
/// not there or damaged, and how often the power was cut.
fn cuts(flushes: bool) -> (usize, usize) {
    let (device, mut rng) = (Device::cpu().unwrap(), Generator::new(9));
    let (mut lost, mut all) = (0, 0);
    for calls in 1.. {
        let folder = Folder::new(&format!("cuts-{flushes}-{calls}"));
        let place = folder.0.join("checkpoints");
        let is_cut = Arc::new(AtomicBool::new(false));
        let cut = is_cut.clone();
        let on_cut = Box::new(move |_: &PowerCut| cut.store(true, Ordering::SeqCst));
        let disk = Arc::new(PowerCut::new(&place, calls, flushes, on_cut));
        let done = save_all(&place, disk.clone(), &device);
        if !is_cut.load(Ordering::SeqCst) {
            assert_eq!(done, 5);
            return (lost, all);
        }
        for time in 0..4 {
            let left = folder.0.join(format!("left-{time}"));
            disk.left(&left, &mut rng).unwrap();
            let checkpoints = Checkpoints::open(&left).unwrap();
            all += 1;
            let is_there = |found: Result<Option<Checkpoint>>, least: u64| match found {
                Ok(Some(found)) => found.passed_over.is_empty() && step_in(&found) >= least,
                Ok(None) => least == 0,
                Err(_) => false,
            };
            let best = if done < 2 { 0 } else { 2 };
            let fine = is_there(checkpoints.newest(&device), done) && is_there(checkpoints.best(&device), best);
            lost += usize::from(!fine);
        }
    }
    unreachable!()
}

#[test]
fn a_power_cut_at_any_call_loses_no_checkpoint_that_was_written() {
    let (lost, all) = cuts(true);
    println!("{all} power cuts");
    assert!(all > 200, "{all}");
    assert_eq!(lost, 0);
}

/// The test above would notice it if the files were not flushed.
#[test]
fn a_disk_that_does_not_flush_loses_checkpoints() {
    let (lost, all) = cuts(false);
    println!("{lost} of {all}");
    assert!(lost * 4 > all, "{lost} of {all}");
}

#[test]
fn after_a_full_disk_the_checkpoint_before_is_there_and_the_next_call_says_so() {
    let (device, folder) = (Device::cpu().unwrap(), Folder::new("full"));
    let checkpoints = Checkpoints::open_on(Arc::new(Full::with_room(20_000)), &folder.0).unwrap();
    checkpoints.save(checkpoint(1, &device)).unwrap();
    checkpoints.wait().unwrap();
    checkpoints.save(checkpoint(2, &device)).unwrap();
    let e = checkpoints.wait().unwrap_err().to_string();
    assert!(e.contains("checkpoint-000002") && e.contains("make room") && e.contains("step 2 is not saved"), "{e}");
    // The error has been told, and the folder has what was there before.
    assert_eq!(step_in(&checkpoints.newest(&device).unwrap().unwrap()), 1);
    drop(checkpoints);
    let again = Checkpoints::open_on(Arc::new(Os), &folder.0).unwrap();
    assert_eq!(step_in(&again.newest(&device).unwrap().unwrap()), 1);
    assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 3);
}

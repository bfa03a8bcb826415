//! Kills a training run 200 times, and shows that it ends with the bits of a run that nobody killed.
//!
//! `cargo run --release -p gradus --example kill_test` starts itself as a child that trains a small network and saves a
//! checkpoint every 3 steps. The child ends by SIGKILL at random instants; others have a disk that writes less than it
//! is asked to and gets full, or a disk that loses what was not flushed when its power is cut. Each time a new child goes
//! on from what is in the folder. The last line is `200 of 200`.
//!
//! With the argument `cost` it measures what a checkpoint after every step costs.
#![allow(clippy::print_stdout)]

mod cost;
mod disks;
mod kills;
mod training;

use std::path::PathBuf;
use std::process::Command;

use kills::{Plan, child};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|a| a == "child") {
        return child(&arguments[1..]);
    }
    let folder = std::env::temp_dir().join(format!("gradus-kill-test-{}", std::process::id()));
    if arguments.first().is_some_and(|a| a == "cost") {
        for sizes in [[64, 128, 64], [784, 256, 64], [784, 256, 256]] {
            let [without, with, saved] = cost::measure(&folder, sizes)?;
            let [input, hidden, batch] = sizes;
            println!(
                "{input} -> {hidden} -> 10, batches of {batch}: a step takes {without:.3} ms, with checkpoints {with:.3} ms \
                 ({:+.1} %); {saved} of 300 steps were saved",
                (with / without - 1.0) * 100.0
            );
        }
        return Ok(std::fs::remove_dir_all(&folder)?);
    }
    let seed = arguments.first().map_or(Ok(0), |text| text.parse())?;
    let plan = Plan { size: (96, 150), kills: 200, full: 20, cuts: 20, seed, longest_ms: 300 };
    let program: PathBuf = std::env::current_exe()?;
    let found = kills::run(&plan, &folder, &|arguments: &[String]| {
        let mut command = Command::new(&program);
        command.arg("child").args(arguments);
        command
    });
    std::fs::remove_dir_all(&folder)?;
    println!("{}", found?);
    Ok(())
}

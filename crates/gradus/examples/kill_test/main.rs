//! Kills a training run 200 times, and shows that it ends with the bits of a run that nobody killed.
//!
//! `cargo run --release -p gradus --example kill_test` starts itself as a child that trains a small network and saves a
//! checkpoint every 3 steps. The child ends by SIGKILL at random instants; others have a disk that writes less than it
//! is asked to and gets full, or a disk that loses what was not flushed when its power is cut. Each time a new child goes
//! on from what is in the folder. The last line is `200 of 200`.

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
    let seed = arguments.first().map_or(Ok(0), |text| text.parse())?;
    let plan = Plan { size: (96, 60), kills: 200, full: 20, cuts: 20, seed, longest_ms: 400 };
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

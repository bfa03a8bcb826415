//! The stand-in for the CUDA driver, called as a program calls a driver: by the names of a loaded library.

#[macro_use]
mod api;
mod blas;
mod failures;
mod graphs;
mod kernels;
mod memory;
mod nccl;
mod settings;

use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Held by tests that change what all tests of the process see: the plan of failures, and whether the context is lost.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs the body of a test in a process of its own, with these variables, which a library reads when it is first called.
fn with_variables(test: &str, variables: &[(&str, &str)], body: impl FnOnce()) {
    const INSIDE: &str = "GRADUS_PTX_INSIDE";
    if std::env::var(INSIDE).as_deref() == Ok(test) {
        return body();
    }
    let this = std::env::current_exe().expect("the program knows where it is");
    let mut command = Command::new(this);
    command.args([test, "--exact", "--nocapture"]).env(INSIDE, test).envs(variables.iter().copied());
    let output = command.output().expect("the program starts");
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.contains("1 passed"), "{test}:\n{text}");
}

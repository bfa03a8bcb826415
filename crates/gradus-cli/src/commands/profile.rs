//! `gradus profile`: runs another command and reports where its time went.

use std::collections::HashMap;
use std::ffi::OsString;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread::ThreadId;
use std::time::Instant;

use gradus::backend::{Call, log};
use gradus::prelude::*;
use gradus::train::{check_file, rescue, write_file};
use serde::Serialize;

use crate::args::ProfileArgs;
use crate::output::{say, thousands};

/// The number of calls that the trace lists individually. Further calls count only in the totals.
const SHOWN: usize = 1_000_000;

/// The number of rows in the table.
const ROWS: usize = 20;

/// A complete event of the Trace Event Format.
#[derive(Serialize)]
struct Event {
    name: String,
    cat: &'static str,
    ph: &'static str,
    /// Microseconds since the start.
    ts: f64,
    dur: f64,
    pid: u32,
    tid: usize,
    args: Arguments,
}

#[derive(Serialize)]
struct Arguments {
    call: String,
    operations: u64,
    bytes: u64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Trace<'a> {
    trace_events: &'a [Event],
    display_time_unit: &'static str,
}

/// Totals over all calls with the same name.
#[derive(Default, Clone)]
struct Sum {
    calls: usize,
    seconds: f64,
    operations: u64,
    bytes: u64,
}

#[derive(Default)]
struct Recorded {
    events: Vec<Event>,
    sums: HashMap<String, Sum>,
    threads: HashMap<ThreadId, usize>,
}

/// The recorded calls; set only while a command is profiled.
static RECORDER: OnceLock<Recorder> = OnceLock::new();

struct Recorder {
    began: Instant,
    recorded: Arc<Mutex<Recorded>>,
}

fn lock(recorded: &Mutex<Recorded>) -> MutexGuard<'_, Recorded> {
    recorded.lock().unwrap_or_else(|e| e.into_inner())
}

/// The device, with its calls recorded if the command is profiled.
pub(super) fn watched(device: Device) -> Device {
    let Some(recorder) = RECORDER.get() else { return device };
    let (began, recorded) = (recorder.began, recorder.recorded.clone());
    device.watched(move |call| lock(&recorded).add(call, began))
}

impl Recorded {
    fn add(&mut self, call: &Call<'_>, began: Instant) {
        let next = self.threads.len();
        let tid = *self.threads.entry(std::thread::current().id()).or_insert(next);
        let seconds = call.took.as_secs_f64();
        let sum = match self.sums.get_mut(call.name) {
            Some(sum) => sum,
            None => self.sums.entry(call.name.to_owned()).or_default(),
        };
        sum.calls += 1;
        sum.seconds += seconds;
        sum.operations += call.operations;
        sum.bytes += call.bytes();
        if self.events.len() < SHOWN {
            self.events.push(Event {
                name: call.name.to_owned(),
                cat: "kernel",
                ph: "X",
                ts: call.began.duration_since(began).as_secs_f64() * 1e6,
                dur: seconds * 1e6,
                pid: 1,
                tid,
                args: Arguments { call: log::line(call, None), operations: call.operations, bytes: call.bytes() },
            });
        }
    }
}

/// Runs a command by calling `run` with its arguments, and writes its profile even if the command fails.
pub(crate) fn run(args: &ProfileArgs, run: impl FnOnce(&[OsString]) -> Result<()>) -> Result<()> {
    // If the output cannot be written, the error is reported before the command runs.
    check_file(&args.out)?;
    let recorder = RECORDER.get_or_init(|| Recorder { began: Instant::now(), recorded: Arc::default() });
    let outcome = run(&args.command);
    let total = recorder.began.elapsed().as_secs_f64();
    let recorded = std::mem::take(&mut *lock(&recorder.recorded));
    let trace = Trace { trace_events: &recorded.events, display_time_unit: "ms" };
    let text = serde_json::to_vec(&trace).map_err(|e| Error::argument("profile", e.to_string()))?;
    let written = write_file(&args.out, &text).map_err(|e| rescue(e, |files| files.write("profile.json", &text)));
    // If the command failed, its error takes precedence.
    outcome.and(written.and(report(args, &recorded, total)))
}

/// Prints the table. The kernels that took the longest come first.
fn report(args: &ProfileArgs, recorded: &Recorded, total: f64) -> Result<()> {
    let mut rows: Vec<(&String, &Sum)> = recorded.sums.iter().collect();
    rows.sort_by(|a, b| b.1.seconds.total_cmp(&a.1.seconds).then(a.0.cmp(b.0)));
    let kernels: f64 = rows.iter().map(|r| r.1.seconds).sum();
    let calls: usize = rows.iter().map(|r| r.1.calls).sum();
    say("")?;
    say(&format!("{:<28}{:>12}{:>12}{:>9}{:>12}{:>10}", "kernel", "calls", "seconds", "share", "GFLOP/s", "GB/s"))?;
    let speed =
        |count: u64, s: f64| if count > 0 && s > 0.0 { format!("{:.1}", count as f64 / s / 1e9) } else { "-".into() };
    for (name, sum) in rows.iter().take(ROWS) {
        let share = if kernels > 0.0 { 100.0 * sum.seconds / kernels } else { 0.0 };
        say(&format!(
            "{name:<28}{:>12}{:>12.3}{share:>7.1} %{:>12}{:>10}",
            thousands(sum.calls),
            sum.seconds,
            speed(sum.operations, sum.seconds),
            speed(sum.bytes, sum.seconds)
        ))?;
    }
    if rows.len() > ROWS {
        say(&format!("and {} more kernels", rows.len() - ROWS))?;
    }
    say(&format!("{} calls took {kernels:.3} s of {total:.3} s", thousands(calls)))?;
    if calls > recorded.events.len() {
        say(&format!("the trace has the first {} of them", thousands(recorded.events.len())))?;
    }
    say(&format!("wrote {}; open it at https://ui.perfetto.dev or chrome://tracing", args.out.display()))
}

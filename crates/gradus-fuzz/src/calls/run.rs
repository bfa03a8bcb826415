//! Runs one call: draws its arguments, makes the call, uses its results, and checks that nothing went wrong.

use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use gradus::prelude::*;
use gradus::{BackwardOptions, grad};

use super::Draw;
use super::table::Row;
use crate::{limited, panics};

/// The device's memory budget.
const BUDGET: usize = 64 << 20;
/// The most memory that a call may take from the system: the budget, the pool's rounding, and small lists that the
/// budget does not count.
const ALLOWED: usize = BUDGET + BUDGET / 2 + (32 << 20);
/// The limit above which large allocations are refused: far above what a call may take, and low enough to be harmless.
const REFUSED: usize = 4 * BUDGET;
/// Results with more elements than this are not inspected.
const LOOKED_AT: usize = 1 << 18;

/// The outcome of a call.
#[derive(Debug)]
pub struct Outcome {
    /// The table row that was called.
    pub name: &'static str,
    /// How the call ended.
    pub end: End,
    /// The call's duration in milliseconds.
    pub took: u128,
}

/// How a call ended.
#[derive(Debug)]
pub enum End {
    /// It returned a result.
    Done,
    /// It returned an error with a line of help.
    Error,
    /// It returned an error without a line of help.
    Helpless(String),
    /// It violated a property.
    Failed(String),
}

/// A device with the memory budget.
pub fn device() -> Result<Device> {
    let device = Device::cpu()?;
    device.backend().set_memory_budget(Some(BUDGET))?;
    Ok(device)
}

/// Makes call number `call` of the run `seed`.
pub fn one(rows: &[&'static Row], seed: u64, call: u64, device: &Device, tell: bool) -> Outcome {
    let mut d = Draw::new(seed, call, device);
    let row = rows[d.below(rows.len())];
    (d.huge, d.tell) = (row.huge, tell);
    // In one call of four, memory is short: 64 KiB to 2 MiB are left, and large allocations beyond that are refused.
    let short = d.once_in(4).then(|| limited::LARGE << d.below(6));
    if tell {
        eprintln!("{} {}", row.name, short.map_or(String::new(), |s| format!("with {s} bytes of memory left")));
    }
    let (in_use, live, began) = (device.memory_stats().in_use, limited::live(), Instant::now());
    limited::reset_peak();
    limited::set_limit(live + short.unwrap_or(REFUSED));
    let result = catch_unwind(AssertUnwindSafe(|| {
        let results = row.call(&mut d)?;
        look(&mut d, &results)
    }));
    limited::set_limit(usize::MAX);
    let (took, taken) = (began.elapsed().as_millis(), limited::peak().saturating_sub(live));
    let panic = panics::take();
    let end = match result {
        Err(_) => End::Failed(panic),
        Ok(_) if taken > ALLOWED => End::Failed(format!("took {taken} bytes, where the budget is {BUDGET}")),
        Ok(_) if device.memory_stats().in_use != in_use => {
            End::Failed(format!("{in_use} bytes were in use before, {} after", device.memory_stats().in_use))
        }
        Ok(Ok(())) => End::Done,
        Ok(Err(e)) => {
            let text = e.to_string();
            if tell {
                eprintln!("{e:?}");
            }
            if e.location().is_none() {
                return Outcome {
                    name: row.name,
                    end: End::Failed(format!("error without the caller's line: {text}")),
                    took,
                };
            }
            if text.contains("\n  help: ") { End::Error } else { End::Helpless(text) }
        }
    };
    Outcome { name: row.name, end, took }
}

/// A writer that discards its input.
struct Nowhere;

impl std::fmt::Write for Nowhere {
    fn write_str(&mut self, _: &str) -> std::fmt::Result {
        Ok(())
    }
}

/// Reads and prints results, and sometimes takes their gradients.
fn look(d: &mut Draw, results: &[Tensor]) -> Result<()> {
    for t in results.iter().filter(|t| t.numel() <= LOOKED_AT) {
        if d.once_in(3) {
            t.to_bytes()?;
        }
        if d.once_in(8) {
            // Writing to a sink cannot fail.
            let _ = write!(Nowhere, "{t:?}");
        }
        if !t.requires_grad() || d.once_in(3) {
            continue;
        }
        let total = t.sum_all()?;
        if d.once_in(3) {
            let first = total.backward_with(BackwardOptions::new().create_graph())?;
            if let Some(g) = first.get(t).filter(|g| g.requires_grad()) {
                grad(&[&g.sum_all()?], &[t], None, BackwardOptions::new())?;
            }
        } else {
            drop(total.backward()?);
        }
    }
    Ok(())
}

//! What only this driver has: counts, reports and failures for tests.

use std::fmt::Write as _;

use crate::driver::abi::{INVALID_VALUE, Out, Text};
use crate::driver::call::exported;
use crate::driver::machine::Driver;

/// Lines of a name and a number each: of the work, of memory, and of the calls of each function.
fn counted(driver: &Driver) -> String {
    let counts = &driver.counts;
    let (mut used, mut most, mut blocks) = (0, 0, 0);
    for device in &driver.devices {
        used += device.memory.used;
        most += device.memory.most;
        blocks += device.memory.blocks();
    }
    let mut text = format!(
        "launches {}\ngraph_launches {}\nproducts {}\nkernels {}\ninstructions {}\nbytes_in {}\nbytes_out {}\nfaults {}\n\
         bytes_used {used}\nbytes_most {most}\nblocks {blocks}\n",
        counts.launches,
        counts.graph_launches,
        counts.products,
        counts.kernels.len(),
        counts.instructions,
        counts.bytes_in,
        counts.bytes_out,
        counts.faults
    );
    for (name, calls) in driver.calls.totals() {
        let _ = writeln!(text, "{name} {calls}");
    }
    text
}

exported! {
    /// Writes what `counted` says, cut to `room` bytes with the 0 at the end.
    fn gradus_ptx_counts(driver, to: Out<u8>, room: usize) {
        to.put_text(room, counted(driver).as_bytes())
    }

    /// Writes the report of the last fault, likewise; nothing if there was none.
    fn gradus_ptx_fault(driver, to: Out<u8>, room: usize) {
        to.put_text(room, driver.counts.last_fault.as_bytes())
    }

    /// Replaces the plan of calls that fail; an empty text ends it. The calls of each function are counted from here.
    fn gradus_ptx_fail(driver, plan: Text) {
        driver.calls.plan(plan.get()?).map_err(|_| INVALID_VALUE)
    }
}

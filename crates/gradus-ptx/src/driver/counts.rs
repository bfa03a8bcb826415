//! What was done, in numbers.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::Path;

/// What was done since the process began.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) launches: u64,
    pub(super) graph_launches: u64,
    /// Products of matrices that the library beside the driver computed.
    pub(super) products: u64,
    /// The names of the kernels that ran.
    pub(super) kernels: BTreeSet<String>,
    /// Instructions of threads.
    pub(super) instructions: u64,
    /// Copied to and from the devices.
    pub(super) bytes_in: u64,
    pub(super) bytes_out: u64,
    pub(super) faults: u64,
    pub(super) last_fault: String,
}

impl Counts {
    /// Reports what went wrong with work that no call waits for.
    pub(super) fn report(&mut self, text: &str) {
        eprintln!("gradus-ptx: {text}");
        self.faults += 1;
        self.last_fault = text.into();
    }

    /// Adds a line to a file: launches, instructions, faults and products.
    pub(super) fn add_to(&self, path: &Path) {
        let line = format!("{} {} {} {}\n", self.launches, self.instructions, self.faults, self.products);
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        if let Err(error) = file.and_then(|mut file| file.write_all(line.as_bytes())) {
            eprintln!("gradus-ptx: {}: {error}", path.display());
        }
    }
}

//! The outcome of a run of the suite.

use std::collections::BTreeMap;
use std::fmt;

/// One case that failed.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The case's name: operation, dtype, shapes and layout number, separated by `/`.
    pub name: String,
    /// A description of the failure.
    pub detail: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}\n    reproduce: gradus_conformance::only(&backend, {:?})", self.name, self.detail, self.name)
    }
}

/// The outcome of a run. Its `Display` form shortens long lists of failures.
#[derive(Debug, Clone)]
pub struct Report {
    /// Name of the backend.
    pub backend: String,
    /// The number of calls that were made and compared.
    pub cases: usize,
    /// The same by operation: `gemm`, `sum`, `conv_backward_input`.
    pub operations: BTreeMap<String, usize>,
    /// The number of cases skipped because the backend does not support a dtype.
    pub skipped: usize,
    /// The failures, in the order of the suite.
    pub failures: Vec<Failure>,
}

/// The maximum number of failures that are printed.
const SHOWN: usize = 40;

impl Report {
    pub(crate) fn new(backend: &str) -> Self {
        Report { backend: backend.to_owned(), cases: 0, operations: BTreeMap::new(), skipped: 0, failures: Vec::new() }
    }

    /// Counts a call of the operation that the name of a case begins with.
    pub(crate) fn count(&mut self, name: &str) {
        self.cases += 1;
        *self.operations.entry(name.split('/').next().unwrap_or(name).to_owned()).or_default() += 1;
    }

    /// Whether every case passed.
    pub fn passed(&self) -> bool {
        self.failures.is_empty()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { backend, cases, skipped, failures, .. } = self;
        write!(f, "{backend}: {} of {cases} calls fail, {skipped} cases need a dtype that it lacks", failures.len())?;
        // Prints a few failures of every operation, so that one broken operation does not hide the others.
        let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
        let mut shown = 0;
        for failure in failures {
            let op = failure.name.split('/').next().unwrap_or_default();
            let count = seen.entry(op).or_default();
            *count += 1;
            if *count <= 3 && shown < SHOWN {
                shown += 1;
                write!(f, "\n{failure}")?;
            }
        }
        if shown < failures.len() {
            write!(f, "\nfailures by operation:")?;
            seen.iter().try_for_each(|(op, count)| write!(f, " {op} {count}"))?;
        }
        Ok(())
    }
}

//! [`LoadReport`]: what loading a state into a module or an optimiser did.

use std::fmt;

use gradus_tensor::Error;

/// Whether names and shapes have to agree exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strict {
    /// Anything that does not fit is an error, and nothing is loaded.
    Yes,
    /// What fits is loaded, the rest is reported.
    No,
}

/// What [`Module::load_state_dict`](crate::Module::load_state_dict) or
/// [`Optimizer::load_state_dict`](crate::Optimizer::load_state_dict) did. Printed, it lists what did not fit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// Names that were loaded.
    pub loaded: Vec<String>,
    /// Names that the state lacks.
    pub missing: Vec<String>,
    /// Names of the state that the module, or the optimiser, lacks.
    pub unexpected: Vec<String>,
    /// Names with another shape or dtype, each with what was found and what was expected.
    pub mismatched: Vec<String>,
    /// Names that were not loaded and keep their old values.
    pub kept: Vec<String>,
}

/// How many names of each kind a report prints.
const LISTED: usize = 20;

/// The first of some names, and how many more there are.
pub(crate) fn listed(names: &[String], separator: &str) -> String {
    let more =
        if names.len() > LISTED { format!("{separator}and {} more", names.len() - LISTED) } else { String::new() };
    format!("{}{more}", names[..names.len().min(LISTED)].join(separator))
}

impl LoadReport {
    /// Whether everything fits.
    pub fn is_complete(&self) -> bool {
        self.missing.is_empty() && self.unexpected.is_empty() && self.mismatched.is_empty()
    }

    /// What did not fit, a line for each kind of it.
    fn lines(&self) -> impl Iterator<Item = String> {
        let kinds = [
            ("missing", &self.missing, ", "),
            ("unexpected", &self.unexpected, ", "),
            ("mismatched", &self.mismatched, "; "),
        ];
        let line = |(what, names, separator): (&str, &Vec<String>, &str)| {
            (!names.is_empty()).then(|| format!("{what} ({}): {}", names.len(), listed(names, separator)))
        };
        kinds.into_iter().filter_map(line)
    }

    /// One error with everything that does not fit `target`.
    #[track_caller]
    pub(crate) fn error(&self, op: &str, target: &str) -> Error {
        let e = Error::argument(op, format!("the state does not fit the {target}; nothing was loaded"));
        self.lines().fold(e, Error::note).help("Strict::No loads what fits and reports the rest")
    }
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "loaded {}, kept {}", self.loaded.len(), self.kept.len())?;
        self.lines().try_for_each(|line| write!(f, "\n  {line}"))
    }
}

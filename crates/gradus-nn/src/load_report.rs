//! [`LoadReport`]: the outcome of loading a state into a module or an optimiser.

use std::fmt;

use gradus_tensor::Error;

/// Whether loading requires names, shapes and dtypes to match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strict {
    /// Any mismatch is an error, and nothing is loaded.
    Yes,
    /// What fits is loaded, and the rest is reported.
    No,
}

/// The outcome of [`Module::load_state_dict`](crate::Module::load_state_dict) or
/// [`Optimizer::load_state_dict`](crate::Optimizer::load_state_dict). When printed, it lists what did not fit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// Names that were loaded.
    pub loaded: Vec<String>,
    /// Names that the module or optimiser expects and the state lacks.
    pub missing: Vec<String>,
    /// Names in the state that the module or optimiser does not have.
    pub unexpected: Vec<String>,
    /// Descriptions of the tensors that do not match, with what was found and what was expected.
    pub mismatched: Vec<String>,
    /// Names that were not loaded and keep their old values.
    pub kept: Vec<String>,
}

/// How many names of each kind a report prints.
const LISTED: usize = 20;

/// The first names, joined by `separator`, and the number of names left out.
pub(crate) fn listed(names: &[String], separator: &str) -> String {
    let more =
        if names.len() > LISTED { format!("{separator}and {} more", names.len() - LISTED) } else { String::new() };
    format!("{}{more}", names[..names.len().min(LISTED)].join(separator))
}

impl LoadReport {
    /// Whether everything fitted.
    pub fn is_complete(&self) -> bool {
        self.missing.is_empty() && self.unexpected.is_empty() && self.mismatched.is_empty()
    }

    /// What did not fit: one line for each kind of problem.
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

    /// A single error that lists everything that does not fit `target`.
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

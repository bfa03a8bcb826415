//! `cargo xtask tidy`: the project's rules that neither the compiler nor clippy checks.
//!
//! Every check is a function from text to [`Finding`]s, one file each under `tidy/`; this file reads the tree once and
//! hands it to them. [`source`] separates Rust code from comments and strings, so that a rule about code is not
//! tripped by prose.

mod files;
mod host_lists;
mod layers;
mod links;
mod located;
mod portable;
mod source;
mod test_code;
mod text;
mod unsafety;

use std::fmt;
use std::path::Path;

use source::Source;

/// A broken rule and where; it prints as `file:line: message`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    path: String,
    line: usize,
    message: String,
}

impl Finding {
    /// `path` is relative to the root, with `/`; `line` counts from 1.
    fn new(path: &str, line: usize, message: impl Into<String>) -> Finding {
        Finding { path: path.into(), line, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}

/// Runs all checks, prints every finding, and fails if there is one.
pub(crate) fn run(root: &Path) -> Result<(), String> {
    let mut findings = Vec::new();
    let paths = files::list(root)?;
    let mut sources = Vec::new();
    for path in &paths {
        if path.ends_with(".rs") {
            sources.push(Source::new(path, &files::read(root, path)?));
        } else if layers::is_crate_manifest(path) {
            findings.extend(layers::check(path, &files::read(root, path)?));
        } else if links::is_checked(path) {
            let exists = |target: &str| root.join(target).exists();
            findings.extend(links::check(path, &files::read(root, path)?, exists));
        }
    }
    for source in &sources {
        findings.extend(text::check(source));
        findings.extend(unsafety::check(source));
    }
    findings.extend(portable::check(&sources));
    findings.extend(host_lists::check(&sources));
    findings.extend(located::check(&sources));
    if let Err(message) = crate::packages::check(crate::packages::count(root)?) {
        findings.push(Finding::new("crates/gradus/Cargo.toml", 1, message));
    }

    findings.sort();
    for finding in &findings {
        println!("{finding}");
    }
    match findings.len() {
        0 => {
            println!("tidy: {} files, nothing to complain about", paths.len());
            Ok(())
        }
        1 => Err("tidy: 1 finding".into()),
        count => Err(format!("tidy: {count} findings")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_prints_as_a_place_that_editors_open() {
        assert_eq!(Finding::new("src/lib.rs", 3, "too long").to_string(), "src/lib.rs:3: too long");
    }
}

//! `cargo xtask tidy`: the project's rules that neither the compiler nor clippy checks.
//!
//! Every check is a function from text to [`Finding`]s, in its own file under `tidy/`. This file reads the tree once
//! and passes it to the checks. [`source`] separates Rust code from comments and strings, so that prose does not
//! trigger a rule about code.

mod book;
mod circles;
mod files;
mod finding;
mod host_lists;
mod layers;
mod links;
mod located;
mod source;
mod test_code;
mod text;
mod unsafety;
mod uses;

use std::path::Path;

use finding::Finding;
use source::Source;

/// Runs all checks, prints every finding, and fails if there is one.
pub(crate) fn run(root: &Path) -> Result<(), String> {
    let mut findings = Vec::new();
    let paths = files::list(root)?;
    let (mut sources, mut pages) = (Vec::new(), Vec::new());
    for path in &paths {
        if path.ends_with(".rs") {
            sources.push(Source::new(path, &files::read(root, path)?));
        } else if links::is_checked(path) {
            let exists = |target: &str| root.join(target).exists();
            let text = files::read(root, path)?;
            findings.extend(links::check(path, &text, exists));
            pages.push((path.clone(), text));
        }
    }
    findings.extend(book::check(&pages));
    for source in &sources {
        findings.extend(text::check(source));
        findings.extend(unsafety::check(source));
    }
    findings.extend(layers::check(&layers::metadata(root)?));
    findings.extend(circles::check(&sources));
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

//! Rules for every Rust file: its first line, its length, no marks of unfinished work, and no tests that never run.

use super::finding::Finding;
use super::source::{Source, bracketed, token, words};

/// The largest permitted number of lines in a file.
const MAX_LINES: usize = 700;

/// Words in comments or code that mark unfinished work.
const MARKS: &[&str] = &[concat!("FIX", "ME"), concat!("X", "XX"), concat!("HA", "CK")];

/// Folders whose files must say in their first line what they are for.
const DOCUMENTED: &[&str] = &["src", "tests", "examples", "benches"];

pub(super) fn check(source: &Source) -> Vec<Finding> {
    let mut findings = leftovers(source);
    findings.extend(skipped_tests(source));
    findings.extend(first_line(source));
    findings.extend(length(source));
    findings
}

fn leftovers(source: &Source) -> Vec<Finding> {
    let text = &source.code_and_comments;
    let mut findings = Vec::new();
    for mark in MARKS {
        for at in words(text, mark) {
            findings.push(Finding::new(&source.path, source.line(at), format!("`{mark}` is left over")));
        }
    }
    findings
}

/// Tests under `#[ignore]`, even if only `cfg_attr` sets it.
fn skipped_tests(source: &Source) -> Vec<Finding> {
    let code = &source.code;
    let mut findings = Vec::new();
    for (at, _) in code.match_indices("#[") {
        let attribute = &code[at + 1..at + 1 + bracketed(&code[at + 1..])];
        let name = token(&attribute[1..]).0;
        if name == "ignore" || (name == "cfg_attr" && words(attribute, "ignore").next().is_some()) {
            let message = "a test that never runs: mend it, delete it, or make it fast enough to run";
            findings.push(Finding::new(&source.path, source.line(at), message));
        }
    }
    findings
}

fn first_line(source: &Source) -> Option<Finding> {
    let mut folders = source.path.split('/').rev().skip(1);
    let applies = folders.any(|folder| DOCUMENTED.contains(&folder));
    let missing = applies && !source.text.starts_with("//!");
    missing.then(|| Finding::new(&source.path, 1, "the file must begin with a `//!` comment that says what it is for"))
}

fn length(source: &Source) -> Option<Finding> {
    let lines = source.text.lines().count();
    let message = || format!("{lines} lines; split the file, at most {MAX_LINES} are allowed");
    (lines > MAX_LINES).then(|| Finding::new(&source.path, MAX_LINES + 1, message()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<(usize, String)> {
        check(&Source::new(path, text)).into_iter().map(|found| (found.line, found.message)).collect()
    }

    fn lines(text: &str) -> Vec<usize> {
        found("build.rs", text).into_iter().map(|(line, _)| line).collect()
    }

    #[test]
    fn marks_of_unfinished_work_fail() {
        for mark in MARKS {
            assert_eq!(lines(&format!("a;\n// {mark}: later\n")), [2]);
            assert_eq!(lines(&format!("f(\"{mark}\"); // {mark}ED")), []);
        }
    }

    #[test]
    fn tests_that_never_run_fail() {
        assert_eq!(lines("#[test]\n#[ignore]\nfn f() {}"), [2]);
        assert_eq!(lines("#[ignore = \"slow\"]\nfn f() {}"), [1]);
        assert_eq!(lines("#[cfg_attr(debug_assertions, ignore)]\nfn f() {}"), [1]);
        assert_eq!(lines("#[serde(ignore)]\nfn f() {} // not #[ignore]"), []);
    }

    #[test]
    fn a_file_says_what_it_is_for() {
        for path in ["crates/a/src/x/y.rs", "crates/a/tests/x.rs", "examples/01-x.rs", "xtask/src/main.rs"] {
            assert_eq!(found(path, "//! Doc.\n"), []);
            assert_eq!(found(path, "\n//! Doc.\n").len(), 1, "{path}");
            assert_eq!(found(path, "use a;\n").len(), 1, "{path}");
        }
        assert_eq!(found("crates/a/build.rs", "use a;\n"), []);
    }

    #[test]
    fn a_long_file_fails() {
        assert_eq!(lines(&"a\n".repeat(MAX_LINES)), []);
        assert_eq!(lines(&"a\n".repeat(MAX_LINES + 1)), [MAX_LINES + 1]);
    }
}

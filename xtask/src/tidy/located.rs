//! Checks that public functions that users call are `#[track_caller]` if they return a `Result`, so that their errors
//! have the line of the call. `cargo xtask calls` finds errors that lose this line on the way.

use super::finding::Finding;
use super::source::Source;
use super::test_code::outside_tests;

/// The crates whose functions users call.
const CRATES: &[&str] =
    &["gradus-data", "gradus-image", "gradus-models", "gradus-nn", "gradus-tasks", "gradus-tensor", "gradus-train"];

const MESSAGE: &str =
    "a public function that can fail is #[track_caller], so that its errors have the line of the call";

pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let product = |path: &str| CRATES.iter().any(|name| path.starts_with(&format!("crates/{name}/src/")));
    outside_tests(sources, product).iter().flat_map(|(source, code)| check_file(source, code)).collect()
}

fn check_file(source: &Source, code: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (at, _) in code.match_indices("pub fn ") {
        if gives_result(&code[at..]) && !attributes(&code[..at]).any(|line| line.contains("track_caller")) {
            findings.push(Finding::new(&source.path, source.line(at), MESSAGE));
        }
    }
    findings
}

/// The attribute lines at the end of `before`, last line first.
fn attributes(before: &str) -> impl Iterator<Item = &str> {
    let lines = before.trim_end().lines().rev().map(str::trim);
    lines.take_while(|line| line.is_empty() || line.starts_with("#["))
}

/// Whether the function that `code` begins with returns a `Result`. The return type follows the last arrow outside of
/// brackets, before any bounds.
fn gives_result(code: &str) -> bool {
    let (mut depth, mut gives) = (0, "");
    for (at, c) in code.char_indices() {
        let rest = &code[at..];
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            '{' | ';' if depth == 0 => break,
            '-' if depth == 0 && rest.starts_with("->") => gives = rest[2..].trim_start(),
            _ if depth == 0 && is_where(code, at) => break,
            _ => {}
        }
    }
    gives.starts_with("Result<")
}

/// Whether the word `where` begins at this offset.
fn is_where(code: &str, at: usize) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    code[at..].strip_prefix("where").is_some_and(|rest| !rest.starts_with(part)) && !code[..at].ends_with(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<usize> {
        check(&[Source::new("crates/gradus-tensor/src/a.rs", text)]).into_iter().map(|found| found.line).collect()
    }

    #[test]
    fn a_function_that_can_fail_has_the_line_of_its_caller() {
        assert_eq!(lines("pub fn f(x: u8) -> Result<()> {}"), [1]);
        assert_eq!(lines("#[inline]\npub fn f<T>(\n    x: u8,\n) -> Result<T>\nwhere\n    T: Fn() -> u8,\n{}"), [2]);
        assert_eq!(lines("/// Text.\n#[track_caller]\n#[inline]\npub fn f() -> Result<()> {}"), []);
        assert_eq!(lines("#[track_caller]\npub fn f() -> Result<()> {}\n\npub fn g() -> Result<()> {}"), [4]);
    }

    #[test]
    fn names_that_contain_where_end_nothing() {
        assert_eq!(lines("pub fn select_where(a: u8) -> Result<()> {}"), [1]);
        assert_eq!(lines("pub fn f() -> Result<Somewhere> {}"), [1]);
        assert_eq!(lines("pub fn where_all<T>() -> Result<T>\nwhere\n    T: Fn() -> u8 {}"), [1]);
    }

    #[test]
    fn others_pass() {
        assert_eq!(lines("pub fn f(g: impl Fn() -> Result<()>) -> u8 {}"), []);
        assert_eq!(lines("pub fn f<F>(g: F) where F: Fn() -> Result<()> {}"), []);
        assert_eq!(lines("pub(crate) fn f() -> Result<()> {}"), []);
        let elsewhere = Source::new("crates/gradus-cpu/src/a.rs", "pub fn f() -> Result<()> {}");
        assert!(check(&[elsewhere]).is_empty());
    }
}

//! Crates that also run in a browser use no threads, files or network, outside their tests.

use super::finding::Finding;
use super::source::{Source, bracketed, line_of, token, words};
use super::test_code::outside_tests;

/// The crates that must run in a browser.
const CRATES: &[&str] = &["gradus-backend", "gradus-tensor"];

/// The modules of `std` that a browser does not have.
const FORBIDDEN: &[&str] = &["thread", "fs", "net"];

/// What there is all the same: in a browser the answer is no.
const PANICKING: &str = "thread::panicking()";

pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    outside_tests(sources, is_portable).iter().flat_map(|(source, code)| check_file(source, code)).collect()
}

fn is_portable(path: &str) -> bool {
    CRATES.iter().any(|name| {
        path.strip_prefix("crates/")
            .and_then(|rest| rest.strip_prefix(name))
            .is_some_and(|rest| rest.starts_with("/src/"))
    })
}

fn check_file(source: &Source, code: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (offset, module) in std_modules(code) {
        if FORBIDDEN.contains(&module) && !code[offset..].starts_with(PANICKING) {
            let message = format!("`std::{module}` does not exist in a browser, where this crate must run too");
            findings.push(Finding::new(&source.path, line_of(code, offset), message));
        }
    }
    findings
}

/// The modules named directly after `std::`, also inside `std::{..}`, with their offsets.
fn std_modules(code: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for at in words(code, "std") {
        let Some(path) = code[at + 3..].trim_start().strip_prefix("::") else { continue };
        let path = path.trim_start();
        let offset_of = |part: &str| part.as_ptr() as usize - code.as_ptr() as usize;
        if path.starts_with('{') {
            let group = &path[1..bracketed(path).max(2) - 1];
            found.extend(split_group(group).into_iter().map(|part| (offset_of(part), token(part).0)));
        } else {
            found.push((offset_of(path), token(path).0));
        }
    }
    found
}

/// Splits at the commas that stand in no inner brackets.
fn split_group(group: &str) -> Vec<&str> {
    let (mut parts, mut start, mut depth) = (Vec::new(), 0, 0_i32);
    for (at, byte) in group.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            b',' if depth == 0 => {
                parts.push(group[start..at].trim_start());
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(group[start..].trim_start());
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(files: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<Source> = files.iter().map(|(path, text)| Source::new(path, text)).collect();
        check(&sources).iter().map(|found| format!("{}:{}", found.path, found.line)).collect()
    }

    const LIB: &str = "crates/gradus-tensor/src/lib.rs";

    #[test]
    fn threads_files_and_network_are_found() {
        assert_eq!(lines(&[(LIB, "use std::thread;\n")]), [format!("{LIB}:1")]);
        assert_eq!(lines(&[(LIB, "\nfn f() { ::std::fs::read(p) }\n")]), [format!("{LIB}:2")]);
        assert_eq!(
            lines(&[(LIB, "use std::{\n    fmt,\n    sync::{Arc, thread},\n    net::TcpStream,\n};\n")]),
            [format!("{LIB}:4")]
        );
    }

    #[test]
    fn prose_other_modules_and_other_crates_pass() {
        assert!(
            lines(&[(LIB, "// std::thread\nuse std::sync::Arc; use std::{fmt, sync::fs};\nfn f() { g(\"std::fs\") }")])
                .is_empty()
        );
        assert!(lines(&[(LIB, "fn f() -> bool { std::thread::panicking() }")]).is_empty());
        assert!(lines(&[("crates/gradus-cpu/src/lib.rs", "use std::thread;")]).is_empty());
        assert!(lines(&[("crates/gradus-tensor/tests/a.rs", "use std::thread;")]).is_empty());
        assert!(lines(&[("crates/gradus-tensor-extra/src/a.rs", "use std::thread;")]).is_empty());
    }

    #[test]
    fn test_items_pass_and_the_code_after_them_does_not() {
        let text = "#[cfg(test)]\n#[allow(x)]\nmod tests {\n use std::thread;\n}\nuse std::fs;\n";
        assert_eq!(lines(&[(LIB, text)]), [format!("{LIB}:6")]);
        assert!(lines(&[(LIB, "#[cfg(all(test, unix))]\nfn f(a: [u8; 4]) { std::fs::read(p) }")]).is_empty());
        assert_eq!(lines(&[(LIB, "#[cfg(not(test))]\nuse std::fs;")]), [format!("{LIB}:2")]);
    }

    #[test]
    fn a_test_module_in_its_own_file_passes() {
        let other = "crates/gradus-tensor/src/shape/tests.rs";
        let deeper = "crates/gradus-tensor/src/shape/tests/more.rs";
        let user = ("crates/gradus-tensor/src/shape.rs", "#[cfg(test)]\nmod tests;\nmod view;\n");
        assert!(lines(&[user, (other, "use std::thread;"), (deeper, "use std::thread;")]).is_empty());
        assert_eq!(lines(&[(other, "use std::thread;")]).len(), 1);
        assert_eq!(lines(&[user, ("crates/gradus-tensor/src/shape/view.rs", "use std::thread;")]).len(), 1);
        assert!(lines(&[(LIB, "#![cfg(test)]\nuse std::thread;")]).is_empty());
    }
}

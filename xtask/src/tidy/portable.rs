//! Crates that also run in a browser use no threads, files or network, outside their tests.

use super::Finding;
use super::source::{Source, bracketed, line_of, token, words};

/// The crates that must run in a browser.
const CRATES: &[&str] = &["gradus-backend", "gradus-tensor"];

/// The modules of `std` that a browser does not have.
const FORBIDDEN: &[&str] = &["thread", "fs", "net"];

/// What there is all the same: in a browser the answer is no.
const PANICKING: &str = "thread::panicking()";

/// Checks all sources together, because a file may be a test only by how another file includes it.
pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let portable: Vec<&Source> = sources.iter().filter(|source| is_portable(&source.path)).collect();
    let test_modules: Vec<String> = portable.iter().flat_map(|source| test_modules(source)).collect();
    let is_test = |path: &str| {
        let is_below =
            |module: &String| path.strip_prefix(module.as_str()).is_some_and(|rest| rest.starts_with(['.', '/']));
        test_modules.iter().any(is_below)
    };
    portable.iter().filter(|source| !is_test(&source.path)).flat_map(|source| check_file(source)).collect()
}

fn is_portable(path: &str) -> bool {
    CRATES.iter().any(|name| {
        path.strip_prefix("crates/")
            .and_then(|rest| rest.strip_prefix(name))
            .is_some_and(|rest| rest.starts_with("/src/"))
    })
}

fn check_file(source: &Source) -> Vec<Finding> {
    let code = split_tests(&source.code).0;
    let mut findings = Vec::new();
    for (offset, module) in std_modules(&code) {
        if FORBIDDEN.contains(&module) && !code[offset..].starts_with(PANICKING) {
            let message = format!("`std::{module}` does not exist in a browser, where this crate must run too");
            findings.push(Finding::new(&source.path, line_of(&code, offset), message));
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

/// Code outside and inside of items under `#[cfg(test)]` or `#[cfg(all(test, ..))]`; each blank where the other is not.
fn split_tests(code: &str) -> (String, String) {
    let mut is_test = vec![false; code.len()];
    for (at, _) in code.match_indices("#[cfg(").chain(code.match_indices("#![cfg(")) {
        let bracket = at + code[at..].find('[').unwrap_or(0);
        let length = bracketed(&code[bracket..]);
        let attribute: String = code[bracket..bracket + length].split_whitespace().collect();
        if !(attribute == "[cfg(test)]" || attribute.starts_with("[cfg(all(test,")) {
            continue;
        }
        let end = if code[at..].starts_with("#!") { code.len() } else { item_end(code, bracket + length) };
        is_test[at..end].fill(true);
    }
    let part = |wanted: bool| {
        let keep = |(at, byte): (usize, u8)| if byte == b'\n' || is_test[at] == wanted { byte } else { b' ' };
        String::from_utf8_lossy(&code.bytes().enumerate().map(keep).collect::<Vec<u8>>()).into_owned()
    };
    (part(false), part(true))
}

/// Where the item ends that begins at `start`: at its `;`, or at the `}` of its first block.
fn item_end(code: &str, start: usize) -> usize {
    let mut at = start;
    while let Some(byte) = code.as_bytes().get(at) {
        match byte {
            b';' => return at + 1,
            b'{' => return at + bracketed(&code[at..]),
            b'}' => return at,
            b'(' | b'[' => at += bracketed(&code[at..]),
            _ => at += 1,
        }
    }
    code.len()
}

/// The paths, without `.rs`, of the modules that this file includes only for tests.
fn test_modules(source: &Source) -> Vec<String> {
    let path = source.path.strip_suffix(".rs").unwrap_or(&source.path);
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    let folder = if matches!(name, "lib" | "main" | "mod") { folder } else { path };
    let tests = split_tests(&source.code).1;
    words(&tests, "mod")
        .filter_map(|at| {
            let (name, rest) = token(&tests[at + 3..]);
            rest.trim_start().starts_with(';').then(|| format!("{folder}/{name}"))
        })
        .collect()
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

//! Checks that lists on the host are made by `HostVec`, or by the functions of its module, if their length comes from a
//! shape, a file or an argument. If memory is short, these return an error, whereas a `Vec` ends the process.
//!
//! The check looks for `vec![x; n]`, `with_capacity(n)`, `resize(n, x)`, `reserve(n)`, `repeat(n)` and collected
//! ranges. Literals, constants, ranks and the length of another list are short enough. Any other `n` needs a comment,
//! on its line or the line before, that says how large it is `at most`.

use super::finding::Finding;
use super::source::{Source, bracketed, parts, token};
use super::test_code::outside_tests;

/// The crates whose lists may have a length that the user determines.
const CRATES: &[&str] = &[
    "gradus-backend",
    "gradus-cpu",
    "gradus-cuda",
    "gradus-data",
    "gradus-image",
    "gradus-nn",
    "gradus-tensor",
    "gradus-wgpu",
];

/// Calls whose first argument is a length.
const CALLS: &[&str] = &["with_capacity", "resize", "reserve", "reserve_exact", "repeat"];

const MESSAGE: &str = "a list of a length from outside: make it by HostVec or host_vec::collect, or say in a comment how long it is at most";

pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let product = |path: &str| {
        !path.ends_with("/host_vec.rs") && CRATES.iter().any(|name| path.starts_with(&format!("crates/{name}/src/")))
    };
    outside_tests(sources, product).iter().flat_map(|(source, code)| check_file(source, code)).collect()
}

fn check_file(source: &Source, code: &str) -> Vec<Finding> {
    let lines: Vec<&str> = source.comments.lines().collect();
    let says = |line: usize| lines.get(line).is_some_and(|comment| comment.to_lowercase().contains("at most"));
    let mut found: Vec<usize> = lists(code);
    found.extend(calls(code));
    found.extend(ranges(code));
    let mut lines: Vec<usize> = found.into_iter().map(|at| source.line(at)).collect();
    lines.sort_unstable();
    lines.dedup();
    // `line` counts from 1, but `says` counts from 0.
    lines.retain(|&line| !says(line - 1) && (line < 2 || !says(line - 2)));
    lines.into_iter().map(|line| Finding::new(&source.path, line, MESSAGE)).collect()
}

/// `vec![x; n]`
fn lists(code: &str) -> Vec<usize> {
    let inside = |at: usize| inner(&code[at + "vec!".len()..]);
    let all = code.match_indices("vec![").map(|(at, _)| at);
    all.filter(|&at| parts(inside(at), ';').get(1).is_some_and(|n| !is_short(n))).collect()
}

/// `with_capacity(n)` and similar calls, except those of `HostVec`.
fn calls(code: &str) -> Vec<usize> {
    let mut found = Vec::new();
    for name in CALLS {
        for (at, _) in code.match_indices(&format!("{name}(")) {
            let before = code[..at].trim_end();
            let mine = before.ends_with('.') || (before.ends_with("::") && !before.ends_with("HostVec::"));
            let arguments = parts(inner(&code[at + name.len()..]), ',');
            // The methods of tensors with these names take a list by reference.
            let mine = mine && !arguments[0].starts_with('&');
            if mine && arguments.first().is_some_and(|n| !is_short(n)) {
                found.push(at);
            }
        }
    }
    found
}

/// `(a..b)`, if a chain of calls collects its items.
fn ranges(code: &str) -> Vec<usize> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices('(') {
        let length = bracketed(&code[at..]);
        let Some((start, end)) = inner(&code[at..]).split_once("..") else { continue };
        let is_range = !start.contains(['(', '{', ',']) || start.trim_end().ends_with(')');
        if is_range && !is_short(end.trim_start_matches('=')) && is_collected(&code[at + length..]) {
            found.push(at);
        }
    }
    found
}

/// Whether a chain of calls that begins here ends by collecting a list.
fn is_collected(mut rest: &str) -> bool {
    while let Some(call) = rest.trim_start().strip_prefix('.') {
        let (name, after) = token(call);
        let generic = after.strip_prefix("::").unwrap_or(after);
        let brackets = if generic.starts_with('<') { generic.find('(').unwrap_or(generic.len()) } else { 0 };
        let arguments = &generic[brackets..];
        if name == "collect" || name == "unzip" {
            return !generic.starts_with("<SmallVec");
        }
        if !arguments.starts_with('(') {
            return false;
        }
        rest = &arguments[bracketed(arguments)..];
    }
    false
}

/// The text inside the brackets that `code` begins with.
fn inner(code: &str) -> &str {
    let length = bracketed(code);
    code.get(1..length.max(2) - 1).unwrap_or_default()
}

/// Whether a length consists only of literals, constants, ranks and lengths of other lists.
fn is_short(length: &str) -> bool {
    let (mut rest, mut path_is_short) = (length, true);
    loop {
        let (word, after) = token(rest);
        let behind = if after.starts_with('(') { &after[bracketed(after)..] } else { after }.trim_start();
        let joins = behind.starts_with('.') && !behind.starts_with("..");
        let first = word.bytes().next().unwrap_or(b' ');
        let short = match word {
            "" => return true,
            "len" | "rank" | "usize" | "isize" | "as" | "max" | "min" | "saturating_sub" => true,
            _ if !first.is_ascii_alphabetic() && first != b'_' => true,
            _ => word.contains("rank") || word.bytes().all(|b| !b.is_ascii_lowercase()),
        };
        // Only the last word of a path counts.
        path_is_short &= short || joins || after.starts_with("::");
        if !path_is_short {
            return false;
        }
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<usize> {
        let source = Source::new("crates/gradus-tensor/src/a.rs", text);
        check(&[source]).into_iter().map(|found| found.line).collect()
    }

    #[test]
    fn lists_of_a_length_from_outside_are_found() {
        for text in [
            "let v = vec![0u8; n];",
            "let v = vec![vec![]; dims[0] * 2];",
            "let v = Vec::with_capacity(self.numel());",
            "v.resize(start + count, 0);",
            "v.reserve(size);",
            "let s = \" \".repeat(column);",
            "let v: Vec<usize> = (0..n).collect();",
            "let v = (0..t.numel()).map(|i| (i, i + 1)).filter(f).collect::<Vec<_>>();",
            "let v = (start..=end).rev().collect();",
            "let (a, b) = (0..n).map(f).unzip();",
        ] {
            assert_eq!(lines(text), [1], "{text}");
        }
    }

    #[test]
    fn short_lists_and_those_of_host_vec_pass() {
        for text in [
            "let v = vec![1; rank + 1]; let w = vec![a, b, n];",
            "let v = vec![0; self.shape().len()];",
            "let v = vec![f64::INFINITY; MAX_RANK];",
            "let v = Vec::with_capacity(2 * tensors.len());",
            "let v = HostVec::with_capacity(backend, op, n)?;",
            "let v: Vec<isize> = (0..self.rank() as isize).collect();",
            "let all = (0..n).map(f).sum::<usize>();",
            "for i in (0..n).rev() { v.collect(); }",
            "let y = x.repeat(&[3]); let z = x.narrow(0, 0, n);",
            "#[cfg(test)]\nmod tests { fn f() { vec![0; n]; } }",
            "// vec![0; n]",
        ] {
            assert_eq!(lines(text), [], "{text}");
        }
    }

    #[test]
    fn a_comment_says_how_long_a_list_is() {
        assert_eq!(lines("// At most 8, and at most one an axis.\nlet v = vec![0; n];"), []);
        assert_eq!(lines("let v = vec![0; n]; // one a thread: at most 256"), []);
        assert_eq!(lines("// At most 8: at most.\n\nlet v = vec![0; n];"), [3]);
    }

    #[test]
    fn other_crates_and_tests_pass() {
        let text = "let v = vec![0; n];";
        for path in
            ["crates/gradus-cli/src/a.rs", "crates/gradus-tensor/tests/a.rs", "crates/gradus-cpu/src/a_tests.rs"]
        {
            assert!(check(&[Source::new(path, text)]).is_empty(), "{path}");
        }
    }
}

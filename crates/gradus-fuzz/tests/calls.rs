//! Tests that every method has a row in the table, and that every kind of failure is detected.
#![allow(clippy::unwrap_used)]

#[path = "../../gradus/tests/golden/sources.rs"]
#[allow(dead_code)]
mod sources;

use std::collections::BTreeSet;
use std::process::{Command, Output};

use gradus_fuzz::calls::table;

/// Methods without a row: they cannot fail, and other rows use them.
const ELSEWHERE: &[&str] = &[
    "device",
    "dtype",
    "frozen",
    "grad_fn",
    "is_contiguous",
    "is_leaf",
    "layout",
    "numel",
    "rank",
    "requires_grad",
    "shape",
    "storage",
];

#[test]
fn every_method_of_tensor_has_a_row_and_every_row_a_method() {
    let methods: BTreeSet<String> = sources::methods_in("").into_keys().collect();
    let all = table::all();
    let rows: BTreeSet<&str> = all.iter().map(|r| r.name).collect();
    assert_eq!(rows.len(), all.len(), "a name stands twice");
    let missing: Vec<_> =
        methods.iter().filter(|m| !rows.contains(m.as_str()) && !ELSEWHERE.contains(&m.as_str())).collect();
    assert!(missing.is_empty(), "methods without a row in src/table: {missing:?}");
    let stale: Vec<_> = rows.iter().filter(|r| !r.contains("::") && !methods.contains(**r)).collect();
    assert!(stale.is_empty(), "rows of methods that there are no more: {stale:?}");
    assert!(ELSEWHERE.iter().all(|m| methods.contains(*m)));
    assert!(rows.len() >= 350, "{} entry points", rows.len());
}

fn calls(options: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_calls")).args(options.split(' ')).output().unwrap()
}

fn text(of: &[u8]) -> String {
    String::from_utf8_lossy(of).into_owned()
}

/// Runs a planted bug and returns the report of its first failure. Checks that the printed command line repeats it.
fn found(name: &str, options: &str) -> String {
    let run = calls(&format!("--only planted::{name} --seed 3 {options}"));
    let said = text(&run.stderr);
    assert!(!run.status.success(), "{name} is not seen:\n{}{said}", text(&run.stdout));
    let (_, failure) = said.split_once("FAILED  cargo xtask calls ").unwrap_or_else(|| panic!("{name}: {said}"));
    let (line, what) = failure.split_once('\n').unwrap();
    assert!(line.contains("--seed 3 --only") && line.contains(&format!("planted::{name} --call ")), "{line}");
    if name != "hang" {
        let options = line.trim_start_matches("--release ").replace("cargo xtask calls ", "");
        assert!(!calls(&options).status.success(), "{line} does not repeat it");
    }
    what.to_owned()
}

#[test]
fn planted_mistakes_are_found_and_repeated_by_one_line() {
    assert!(found("panic", "--calls 3").contains("index out of bounds"));
    assert!(found("abort", "--calls 3").contains("memory allocation of"));
    assert!(found("short", "--calls 100").contains("memory allocation of"));
    assert!(found("memory", "--calls 3").contains("where the budget is"));
    assert!(found("leak", "--calls 3").contains("bytes were in use before"));
    assert!(found("hang", "--calls 1 --patience 2").contains("no end within 2 s"));
    assert!(found("overflow", "--calls 1").contains("overflowed its stack"));
    assert!(found("lineless", "--calls 3").contains("error without the caller's line"));
}

#[test]
fn errors_are_no_failures_but_a_row_that_never_gives_a_result_is_one() {
    let run = calls("--only planted::nothing --calls 30");
    assert!(run.status.success(), "{}", text(&run.stderr));
    assert!(text(&run.stdout).contains("30 calls of 1 entry points"), "{}", text(&run.stdout));
    let run = calls("--only planted::nothing --calls 1000");
    assert!(text(&run.stderr).contains("never a result: planted::nothing"), "{}", text(&run.stderr));
    assert!(!calls("--sed 3").status.success());
}

#[test]
fn a_few_calls_of_everything_are_right() {
    let run = calls("--calls 2000 --seed 11");
    assert!(run.status.success(), "{}{}", text(&run.stdout), text(&run.stderr));
}

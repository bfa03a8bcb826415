//! Pages that are checked against the code: `docs/op-matrix.md` and `docs/higher-order.md`, which tests make, and
//! `docs/sources.md`, whose rows name calls and tests.

use std::path::Path;

/// The sections of `docs/sources.md`, by how their headings begin, and how many names each source has.
const SOURCES: [(&str, usize); 6] =
    [("## S0", 38), ("## S1: backward", 16), ("## S1: the snapshot", 1), ("## S2", 52), ("## S3", 15), ("## S4", 4)];

/// Tries every operation in every dtype, and writes the page or compares it with the one that is there.
pub(crate) fn op_table(root: &Path, check: bool) -> Result<(), String> {
    made_by_test(root, check, &["--features", "wgpu"], "the_matrix_of_operations")
}

/// Differentiates every operation twice in every mode, and writes the page or compares it with the one that is there.
pub(crate) fn higher_order(root: &Path, check: bool) -> Result<(), String> {
    made_by_test(root, check, &[], "second_derivatives_are_right_in_every_mode")
}

/// Runs the test that compares a page, such that it writes the page unless it is to `check` it.
fn made_by_test(root: &Path, check: bool, features: &[&str], test: &str) -> Result<(), String> {
    let mut command = crate::cargo();
    command.args(["test", "-p", "gradus"]).args(features).args(["--test", "golden", test]).current_dir(root);
    if !check {
        command.env("GRADUS_WRITE", "1");
    }
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("the test `{test}`: {status}")),
        Err(error) => Err(format!("cargo did not start: {error}")),
    }
}

/// Checks `docs/sources.md`: all names of each source, no empty cell, and every test that it names exists.
pub(crate) fn sources(root: &Path) -> Result<(), String> {
    let page = root.join("docs/sources.md");
    let text = std::fs::read_to_string(&page).map_err(|e| format!("{}: {e}", page.display()))?;
    let golden = std::fs::read(root.join("crates/gradus/tests/golden/values.safetensors"))
        .map_err(|e| format!("values.safetensors: {e}"))?;
    // The names stand in the header, whose length comes first.
    let length = golden.first_chunk().map_or(0, |b| u64::from_le_bytes(*b) as usize);
    let header = String::from_utf8_lossy(golden.get(8..8 + length).unwrap_or_default()).into_owned();
    let mut wrong = Vec::new();
    for (heading, count) in SOURCES {
        let Some((_, section)) = text.split_once(heading) else {
            wrong.push(format!("there is no section `{heading}`"));
            continue;
        };
        let section = section.split("\n## ").next().unwrap_or_default();
        let rows: Vec<&str> = section.lines().filter(|l| l.starts_with("| `")).collect();
        if rows.len() != count {
            wrong.push(format!("`{heading}` has {} rows where the source has {count} names", rows.len()));
        }
        wrong.extend(rows.iter().filter_map(|row| row_is_wrong(root, &header, row)));
    }
    if wrong.is_empty() {
        println!("sources: {} names, each with its call and test", SOURCES.iter().map(|s| s.1).sum::<usize>());
        return Ok(());
    }
    Err(format!("docs/sources.md:\n{}", wrong.join("\n")))
}

/// What is wrong with a row `| name | call | test |`. A test is `golden CASE` or `FILE FUNCTION`.
fn row_is_wrong(root: &Path, golden: &str, row: &str) -> Option<String> {
    let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
    let [name, call, tests] = cells[..] else { return Some(format!("{row}: three cells are needed")) };
    if call.is_empty() || tests.is_empty() {
        return Some(format!("{name}: an empty cell"));
    }
    tests.split(", ").find_map(|test| {
        let test = test.trim_matches('`');
        let exists = match test.split_once(' ') {
            Some(("golden", case)) => golden.contains(&format!("\"{case}/out0\"")),
            Some((file, function)) => std::fs::read_to_string(root.join(file))
                .is_ok_and(|text| text.contains(&format!("fn {function}(")) || text.contains(&format!("{function}:"))),
            None => false,
        };
        (!exists).then(|| format!("{name}: there is no test `{test}`"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_without_call_or_with_an_absent_test_are_found() {
        let root = crate::root();
        let wrong = |row: &str| row_is_wrong(&root, "{\"relu/out0\":{}", row);
        assert_eq!(wrong("| `relu` | `Tensor::relu` | `golden relu` |"), None);
        assert_eq!(
            wrong("| `add` | `a` | `xtask/src/pages.rs rows_without_call_or_with_an_absent_test_are_found` |"),
            None
        );
        assert!(wrong("| `relu` | `Tensor::relu` | `golden gelu` |").is_some());
        assert!(wrong("| `relu` | `Tensor::relu` | `xtask/src/pages.rs no_such_test` |").is_some());
        assert!(wrong("| `relu` |  | `golden relu` |").is_some());
        assert!(wrong("| `relu` | `Tensor::relu` |").is_some());
    }
}

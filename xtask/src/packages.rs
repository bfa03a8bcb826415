//! `cargo xtask packages`: counts the packages that a user of `gradus` builds, and checks their number against a
//! budget.

use std::collections::BTreeSet;
use std::path::Path;

/// The crate whose dependencies are counted, with its default features.
const PACKAGE: &str = "gradus";

/// The budget: the largest permitted number of dependencies.
const BUDGET: usize = 75;

/// Prints the number of packages, and fails if it exceeds the budget.
pub(crate) fn run(root: &Path) -> Result<(), String> {
    let count = count(root)?;
    println!("{PACKAGE} depends on {count} packages (at most {BUDGET})");
    check(count)
}

/// The number of packages that `gradus` depends on through normal and build dependencies, without itself.
pub(crate) fn count(root: &Path) -> Result<usize, String> {
    let mut command = crate::workspace::cargo();
    command.args(["tree", "-p", PACKAGE, "-e", "normal,build", "--prefix", "none"]).current_dir(root);
    let output = command.output().map_err(|error| format!("cargo tree did not start: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo tree failed:\n{}", String::from_utf8_lossy(&output.stderr)));
    }
    Ok(distinct(&String::from_utf8_lossy(&output.stdout)))
}

/// Fails if `count` exceeds the budget.
pub(crate) fn check(count: usize) -> Result<(), String> {
    if count <= BUDGET {
        return Ok(());
    }
    Err(format!(
        "{PACKAGE} depends on {count} packages, {} above the budget of {BUDGET}; \
         `cargo tree -p {PACKAGE} -e normal,build` shows who brings them",
        count - BUDGET
    ))
}

/// The number of distinct `name version` pairs in the output of `cargo tree --prefix none`, without `PACKAGE`.
fn distinct(tree: &str) -> usize {
    let pairs: BTreeSet<(&str, &str)> = tree
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            Some((words.next()?, words.next()?))
        })
        .filter(|(name, _)| *name != PACKAGE)
        .collect();
    pairs.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_lines_count_once_and_versions_apart() {
        let tree = "gradus v0.1.0 (/w/gradus)\ngradus-cpu v0.1.0 (/w/gradus-cpu)\nsyn v2.0.1\nsyn v3.0.9\n\
                    syn v2.0.1 (*)\n\nserde_derive v1.0.0 (proc-macro)\n";
        assert_eq!(distinct(tree), 4);
    }

    #[test]
    fn the_budget_is_inclusive() {
        assert_eq!(check(BUDGET), Ok(()));
        assert!(check(BUDGET + 1).is_err_and(|message| message.contains("1 above the budget of 75")));
    }
}

//! Pages and lists that tests make.

use std::path::Path;
use std::process::Command;

/// What is made: its command, the test that makes it, and the arguments of `cargo test` that find the test.
type Page = (&'static str, &'static str, &'static [&'static str]);

/// In an order in which each finds what it reads.
const PAGES: [Page; 5] = [
    ("op-table", "the_matrix_of_operations", &["-p", "gradus", "--features", "wgpu", "--test", "golden"]),
    ("kinks", "the_page_says_what_the_operations_do", &["-p", "gradus", "--test", "kinks"]),
    ("higher-order", "second_derivatives_are_right_in_every_mode", &["-p", "gradus", "--test", "golden"]),
    ("spec", "the_vocabulary_is_complete_and_fresh", &["-p", "gradus", "--test", "golden"]),
    ("compiled", "the_list_is_made_from_the_kernels", &["-p", "gradus-cpu", "--lib"]),
];

/// What PyTorch says: the script, and the test that writes the file that the script reads.
const FROM_PYTORCH: [(&str, &str, &str); 3] = [
    ("golden/make.py", "golden", "the_file_has_the_cases_of_all_samples"),
    ("golden/higher.py", "golden", "the_file_has_the_cases_of_all_samples"),
    ("kinks/pytorch.py", "kinks", "the_rows_of_pytorch_are_of_the_same_points"),
];

/// Whether `name` is a page.
pub(crate) fn is_page(name: &str) -> bool {
    PAGES.iter().any(|page| page.0 == name)
}

/// Writes a page, or compares what would be written with what is there.
pub(crate) fn one(root: &Path, name: &str, check: bool) -> Result<(), String> {
    PAGES.iter().filter(|page| page.0 == name).try_for_each(|page| made_by_test(root, check, page))
}

/// Writes everything that is made; what PyTorch says only if there is a Python that has it.
pub(crate) fn bless(root: &Path, python: Option<&str>) -> Result<(), String> {
    for (script, target, test) in FROM_PYTORCH.iter().filter(|_| python.is_some()) {
        // The test fails while what it compares is stale; what it writes is there all the same.
        let _ = crate::workspace::cargo()
            .args(["test", "-q", "-p", "gradus", "--test", target, test])
            .current_dir(root)
            .output();
        let input = root.join("target/tmp").join(if *target == "kinks" { "kinks.json" } else { "samples.json" });
        let mut command = Command::new(python.unwrap_or_default());
        run(command.arg(root.join("crates/gradus/tests").join(script)).arg(input), script)?;
    }
    PAGES.iter().try_for_each(|page| made_by_test(root, false, page))
}

/// Runs the test that compares a page, such that it writes the page unless it is to `check` it.
fn made_by_test(root: &Path, check: bool, (_, test, place): &Page) -> Result<(), String> {
    let mut command = crate::workspace::cargo();
    command.arg("test").args(*place).arg(test).current_dir(root);
    if !check {
        command.env("GRADUS_WRITE", "1");
    }
    run(&mut command, test)
}

fn run(command: &mut Command, what: &str) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{what}`: {status}")),
        Err(error) => Err(format!("`{what}` did not start: {error}")),
    }
}

//! Pages that tests make.

use std::path::Path;

/// A page: the command, the features it needs, and the test that makes it.
type Page = (&'static str, &'static [&'static str], &'static str);

const PAGES: [Page; 3] = [
    ("op-table", &["--features", "wgpu"], "the_matrix_of_operations"),
    ("higher-order", &[], "second_derivatives_are_right_in_every_mode"),
    ("spec", &[], "the_vocabulary_is_complete_and_fresh"),
];

/// Writes a page, or all of them, or compares what would be written with what is there.
pub(crate) fn run(root: &Path, name: Option<&str>, check: bool) -> Result<(), String> {
    let wanted = |page: &&Page| name.is_none_or(|n| n == page.0);
    PAGES.iter().filter(wanted).try_for_each(|page| made_by_test(root, check, page))
}

/// Runs the test that compares a page, such that it writes the page unless it is to `check` it.
fn made_by_test(root: &Path, check: bool, (_, features, test): &Page) -> Result<(), String> {
    let mut command = crate::cargo();
    command.args(["test", "-p", "gradus"]).args(*features).args(["--test", "golden", test]).current_dir(root);
    if !check {
        command.env("GRADUS_WRITE", "1");
    }
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("the test `{test}`: {status}")),
        Err(error) => Err(format!("cargo did not start: {error}")),
    }
}

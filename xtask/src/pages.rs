//! Pages that tests make: `docs/op-matrix.md` and `docs/higher-order.md`.

use std::path::Path;

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

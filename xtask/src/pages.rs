//! The page `docs/op-matrix.md`, which a test makes.

use std::path::Path;

/// Tries every operation in every dtype, and writes the page or compares it with the one that is there.
pub(crate) fn op_table(root: &Path, check: bool) -> Result<(), String> {
    let mut command = crate::cargo();
    let test = ["test", "-p", "gradus", "--features", "wgpu", "--test", "golden", "the_matrix_of_operations"];
    command.args(test).current_dir(root);
    if !check {
        command.env("GRADUS_WRITE", "1");
    }
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("the table of operations: {status}")),
        Err(error) => Err(format!("cargo did not start: {error}")),
    }
}

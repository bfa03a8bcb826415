//! `gradus onnx inspect`: shows what an ONNX model holds, and what of it would not run.

use gradus::Result;
use gradus::onnx::OnnxModel;

use crate::args::OnnxCommand;
use crate::output::say;

/// Runs the command.
pub(crate) fn run(what: &OnnxCommand) -> Result<()> {
    match what {
        OnnxCommand::Inspect { file } => {
            let report = OnnxModel::inspect_file(file)?;
            say(report.to_string().trim_end())?;
            match report.unsupported().count() {
                0 => say("every operator runs"),
                1 => say("1 operator does not run"),
                n => say(&format!("{n} operators do not run")),
            }
        }
    }
}

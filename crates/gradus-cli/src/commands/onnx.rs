//! `gradus onnx`: shows what an ONNX model holds and what of it would not run, and runs it on arrays of NumPy.

use gradus::data::npy;
use gradus::onnx::OnnxModel;
use gradus::{Error, Result, Tensor, no_grad};

use crate::args::{OnnxCommand, OnnxRunArgs};
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
        OnnxCommand::Run(args) => evaluate(args),
    }
}

/// Runs a model, prints the shapes of its outputs, and saves them.
fn evaluate(args: &OnnxRunArgs) -> Result<()> {
    let device = super::open(&args.common.device, args.common.threads)?;
    let model = OnnxModel::load(&args.file, &device)?;
    let mut inputs = Vec::new();
    for text in &args.inputs {
        let Some((name, file)) = text.split_once('=') else {
            let e = Error::argument("onnx run", format!("--input {text} has no `=`"));
            return Err(e.help("give the input's name and its file, as in --input x=x.npy"));
        };
        inputs.push((name, npy::load(file, &device)?));
    }
    let outputs = no_grad(|| model.run(&inputs))?;
    for (name, output) in &outputs {
        say(&format!("{name}: {} {:?}", output.dtype(), output.shape()))?;
    }
    if let Some(path) = &args.out {
        npy::save_npz(path, outputs.iter().map(|(name, output): &(String, Tensor)| (name, output)))?;
    }
    if args.common.json {
        let shape = |(name, output): &(String, Tensor)| serde_json::json!({ "name": name, "dtype": output.dtype().name(), "shape": output.shape() });
        let outputs: Vec<_> = outputs.iter().map(shape).collect();
        say(&serde_json::json!({ "model": args.file.display().to_string(), "outputs": outputs }).to_string())?;
    }
    Ok(())
}

//! `gradus onnx`: shows what an ONNX model holds and what of it would not run, runs it on arrays of NumPy, and writes what
//! `gradus train` saved as one.

use gradus::data::npy;
use gradus::onnx::{OnnxExportOptions, OnnxModel, export_onnx};
use gradus::tasks::{self, Model};
use gradus::{DType, Generator, Result, Tensor, no_grad};

use crate::args::{OnnxCommand, OnnxExportArgs, OnnxRunArgs};
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
        OnnxCommand::Bench(args) => super::onnx_bench::run(args),
        OnnxCommand::Export(args) => export(args),
    }
}

/// Writes a trained model as ONNX. What prepares its inputs is not part of the file, but of its metadata.
fn export(args: &OnnxExportArgs) -> Result<()> {
    let device = super::open("cpu", None)?;
    let file = super::model_file(&args.model);
    let model = tasks::load(&file, &device)?;
    let options = OnnxExportOptions::new().opset(args.opset).replace(true).outputs(&["logits"]);
    let options = options.metadata("gradus.task", model.task());
    // An input of zeros would hide differences in the check of the export.
    let mut generator = Generator::new(0);
    let mut pictures =
        |input: [usize; 3]| Tensor::randn([&[2], &input[..]].concat(), DType::F32, &device, &mut generator);
    let of_pictures = |options: OnnxExportOptions| options.dynamic("batch", &[("images", 0)]);
    let found = match &model {
        Model::Digits(digits) => {
            let example = pictures(digits.spec().input)?;
            export_onnx(&args.out, digits.network(), ("images", &example), &of_pictures(options))?
        }
        Model::Images(images) => {
            let spec = images.spec();
            let listed = |values: &[f64]| values.iter().map(f64::to_string).collect::<Vec<_>>().join(",");
            let options = options.metadata("classes", &spec.classes.join("\n"));
            let options = options.metadata("mean", &listed(&spec.mean)).metadata("std", &listed(&spec.std));
            export_onnx(&args.out, images.network(), ("images", &pictures(spec.input)?), &of_pictures(options))?
        }
        Model::Text(text) => {
            let context = text.spec().sizes.context;
            let tokens = text.spec().tokenizer.tokenizer()?.vocabulary_size() as i64;
            let options = options.dynamic("batch", &[("tokens", 0)]);
            // Two lengths above 1 are needed to tell how the model depends on it.
            let (length, options) = match context {
                ..=2 => (context, options),
                _ => (context - 1, options.dynamic_to("length", &[("tokens", 1)], context)),
            };
            let example = Tensor::randint(0, tokens, [2, length], DType::I64, &device, &mut generator)?;
            export_onnx(&args.out, text.network(), ("tokens", &example), &options)?
        }
        other => return Err(super::unsupported(&file, other)),
    };
    say(&format!("{}: opset {}, {} nodes, {} bytes", args.out.display(), found.opset, found.nodes, found.bytes))
}

/// Runs a model, prints the shapes of its outputs, and saves them.
fn evaluate(args: &OnnxRunArgs) -> Result<()> {
    let device = super::open(&args.common.device, args.common.threads)?;
    let model = OnnxModel::load(&args.file, &device)?;
    let inputs = super::onnx_bench::arrays(&args.inputs, &device)?;
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

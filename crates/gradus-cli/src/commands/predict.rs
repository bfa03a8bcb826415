//! `gradus predict`: recognises what is in pictures.

use std::path::PathBuf;

use gradus::prelude::*;
use gradus::tasks::digits::{Digits, PictureOptions, has_bright_border};
use gradus::tasks::{self, Answer, Model};

use crate::args::PredictArgs;
use crate::output::{complain, say};

/// Prints the class and the probabilities for each picture. Prints nothing if any picture cannot be read.
pub(crate) fn run(args: &PredictArgs) -> Result<()> {
    let device = super::open(&args.common.device, args.common.threads)?;
    let model = tasks::load(&args.model, &device)?;
    let answers = match &model {
        Model::Digits(digits) => pictures(digits, args, &args.images)?,
        _ => {
            let m = format!("{} is a model of the task {:?}", args.model.display(), model.task());
            return Err(Error::new(ErrorKind::Unsupported, "predict", m));
        }
    };
    for (path, answer) in args.images.iter().zip(&answers) {
        say(&format!("{}: {answer}", path.display()))?;
        if let Answer::Class { probabilities, .. } = answer {
            for (class, &probability) in probabilities.iter().enumerate() {
                let bar = "#".repeat((probability * 40.0).round() as usize);
                say(format!("  {class:>3}  {:6.2} %  {bar}", probability * 100.0).trim_end())?;
            }
        }
    }
    if args.common.json {
        let model = args.model.display().to_string();
        let named = |(path, answer): (&PathBuf, &Answer)| {
            let mut object = serde_json::json!(answer);
            object["image"] = path.display().to_string().into();
            object
        };
        let predictions: Vec<_> = args.images.iter().zip(&answers).map(named).collect();
        say(&serde_json::json!({ "model": model, "predictions": predictions }).to_string())?;
    }
    Ok(())
}

fn pictures(digits: &Digits, args: &PredictArgs, paths: &[PathBuf]) -> Result<Vec<Answer>> {
    let options = PictureOptions { invert: args.invert, max_memory: args.max_memory };
    let images = paths.iter().map(|path| digits.read(path, options)).collect::<Result<Vec<_>>>()?;
    let mut answers = Vec::with_capacity(images.len());
    for (path, image) in paths.iter().zip(images) {
        if has_bright_border(&image) {
            let (path, advice) = (path.display(), if args.invert { "leave out --invert" } else { "see --invert" });
            let how = if args.invert { "inverted, " } else { "" };
            complain(&format!(
                "note: {how}{path} is bright at its border; the network expects bright on dark ({advice})"
            ));
        }
        let named = |e: Error| e.note(format!("for the picture {}", path.display()));
        answers.extend(digits.predict(vec![image]).map_err(named)?);
    }
    Ok(answers)
}

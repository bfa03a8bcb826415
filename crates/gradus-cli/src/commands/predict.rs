//! `gradus predict`: recognises what is in pictures.

use gradus::prelude::*;
use serde::Serialize;

use crate::args::PredictArgs;
use crate::output::{complain, say};
use crate::{network, picture};

#[derive(Serialize)]
struct Prediction {
    image: String,
    class: usize,
    probability: f32,
    probabilities: Vec<f32>,
}

/// Prints the class and the probabilities for each picture. Prints nothing if any picture cannot be read.
pub(crate) fn run(args: &PredictArgs) -> Result<()> {
    let device = super::open(&args.common.device, args.common.threads)?;
    let (model, spec) = network::load(&args.model, &device)?;
    let [_, height, width] = spec.input;
    let images = args.images.iter().map(|path| picture::read(path, args.max_memory, height, width, args.invert));
    let images = images.collect::<Result<Vec<Image>>>()?;
    let mut predictions = Vec::new();
    for (path, image) in args.images.iter().zip(images) {
        if picture::has_bright_border(&image) {
            let (path, advice) = (path.display(), if args.invert { "leave out --invert" } else { "see --invert" });
            let how = if args.invert { "inverted, " } else { "" };
            complain(&format!(
                "note: {how}{path} is bright at its border; the network expects bright on dark ({advice})"
            ));
        }
        predictions.push(predict(&model, image, &device, path.display().to_string())?);
    }
    for p in &predictions {
        say(&format!("{}: {}  ({:.2} %)", p.image, p.class, p.probability * 100.0))?;
        for (class, &probability) in p.probabilities.iter().enumerate() {
            let bar = "#".repeat((probability * 40.0).round() as usize);
            say(format!("  {class:>3}  {:6.2} %  {bar}", probability * 100.0).trim_end())?;
        }
    }
    if args.common.json {
        let model = args.model.display().to_string();
        say(&serde_json::json!({ "model": model, "predictions": predictions }).to_string())?;
    }
    Ok(())
}

fn predict(model: &network::Cnn, image: Image, device: &Device, name: String) -> Result<Prediction> {
    let images = Image::collate(vec![image], device)?;
    let probabilities = no_grad(|| model.forward(&images)?.softmax(1))?.to_vec::<f32>()?;
    if probabilities.iter().any(|p| !p.is_finite()) {
        let e = Error::argument("predict", format!("{name}: the network's probabilities are not finite"));
        return Err(e.help("its weights hold NaN or infinity; train it anew"));
    }
    let best = probabilities.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
    let (class, &probability) = best.ok_or_else(|| Error::argument("predict", "the network has no classes"))?;
    Ok(Prediction { image: name, class, probability, probabilities })
}

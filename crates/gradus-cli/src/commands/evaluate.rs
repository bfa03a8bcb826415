//! `gradus evaluate`: how good a trained model is on other data.

use gradus::data::idx;
use gradus::data::text::read_text;
use gradus::prelude::*;
use gradus::tasks::{self, Measured, Model};

use crate::args::EvaluateArgs;
use crate::output::{matrix, say, thousands};

/// Prints the metrics of a model on the data.
pub(crate) fn run(args: &EvaluateArgs) -> Result<()> {
    let device = super::open(&args.common.device, args.common.threads)?;
    let model = tasks::load(super::model_file(&args.model), &device)?;
    let (measured, classes): (Measured, Vec<String>) = match &model {
        Model::Digits(digits) => {
            let part = if idx::Part::Test.is_in(&args.data) { idx::Part::Test } else { idx::Part::Train };
            (digits.evaluate(&idx::read_folder(&args.data, part)?)?, Vec::new())
        }
        Model::Tabular(tabular) => {
            (tabular.evaluate(&tabular.read_with_target(&args.data)?)?, tabular.spec().classes().to_vec())
        }
        Model::Text(text) => (text.evaluate(&read_text(&args.data)?)?, Vec::new()),
        Model::Images(images) => (images.evaluate(&args.data, None)?, images.spec().classes.clone()),
        _ => return Err(super::unsupported(&args.model, &model)),
    };
    say(&format!("{} samples of {}", thousands(measured.losses.len()), args.data.display()))?;
    let width = measured.metrics.iter().map(|metric| metric.name.chars().count()).max().unwrap_or(0);
    for metric in &measured.metrics {
        say(&format!("  {:<width$}  {}", metric.name, metric.shown()))?;
    }
    matrix(measured.confusion.as_ref(), &classes).iter().try_for_each(|line| say(line))?;
    if args.common.json {
        let mut line = serde_json::json!({
            "model": args.model.display().to_string(),
            "task": model.task(),
            "samples": measured.losses.len(),
        });
        for metric in &measured.metrics {
            line[&metric.key] = metric.value.into();
        }
        say(&line.to_string())?;
    }
    Ok(())
}

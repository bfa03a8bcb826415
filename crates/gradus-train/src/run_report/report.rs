//! [`RunReport`]: the contents of the page.

use super::chart::{Chart, Curve, Unit};
use crate::{ConfusionMatrix, EpochReport, History, Run};

/// A page about a run, for human readers: curves, a confusion matrix, examples, and the settings.
/// [`html`](RunReport::html) returns it as one self-contained HTML file, which needs no network.
///
/// ```
/// use gradus_train::{Run, RunReport};
/// let run = Run::default(); // as `Trainer::fit` returns it
/// let mut report = RunReport::of("Digits", &run);
/// report.facts.push(("Test accuracy".into(), "98.3 %".into()));
/// report.config.push(("lr".into(), "0.001".into()));
/// assert!(report.html().starts_with("<!doctype html>"));
/// ```
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct RunReport {
    /// The heading of the page.
    pub title: String,
    /// A line below the heading.
    pub subtitle: String,
    /// The numbers at the top, each with its name.
    pub facts: Vec<(String, String)>,
    /// The curves.
    pub charts: Vec<Chart>,
    /// The confusion matrix, if the model classifies.
    pub confusion: Option<ConfusionMatrix>,
    /// The names of the classes. A class without a name is shown by number.
    pub classes: Vec<String>,
    /// Groups of examples, such as the worst ones.
    pub examples: Vec<Examples>,
    /// The settings of the run.
    pub config: Vec<(String, String)>,
}

/// Examples under a heading.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Examples {
    /// The heading.
    pub title: String,
    /// The examples, in the order in which they are shown.
    pub all: Vec<Example>,
}

/// A sample of the data, with the model's prediction.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Example {
    /// The sample as a PNG file, if it is a picture.
    pub png: Option<Vec<u8>>,
    /// The sample as text, if it is one.
    pub text: String,
    /// The line below it, such as `4, predicted as 9`.
    pub caption: String,
    /// A second line in small type, such as the probability.
    pub note: String,
    /// Whether the model is right, if that is known.
    pub is_right: Option<bool>,
}

impl RunReport {
    /// A report with the numbers of `run` and its curves over epochs: loss and accuracy in training and validation, the
    /// factor on the learning rate, and samples per second.
    pub fn of(title: impl Into<String>, run: &Run) -> RunReport {
        let each = |f: &dyn Fn(&EpochReport) -> Option<f64>| -> Vec<(u64, f64)> {
            run.epochs.iter().filter_map(|e| Some((e.epoch as u64, f(e)?))).collect()
        };
        let chart = |title: &str, unit: Unit, curves: [(&str, Vec<(u64, f64)>); 2], if_empty: &str| Chart {
            title: title.into(),
            over: "epoch".into(),
            unit,
            curves: curves
                .into_iter()
                .filter(|(name, points)| !name.is_empty() && !points.is_empty())
                .map(|(name, points)| Curve { name: name.to_owned(), points, is_faint: false })
                .collect(),
            if_empty: if_empty.into(),
        };
        let loss = [("training", each(&|e| Some(e.loss))), ("validation", each(&|e| e.validation.map(|v| v.loss)))];
        let accuracy =
            [("training", each(&|e| e.accuracy)), ("validation", each(&|e| e.validation.and_then(|v| v.accuracy)))];
        let speed = each(&|e| Some(e.samples as f64 / e.seconds.max(1e-9)));
        let rate = run.samples as f64 / run.seconds.max(1e-9);
        let mut facts = vec![
            ("Epochs".to_owned(), run.epochs.len().to_string()),
            ("Steps".to_owned(), run.steps.to_string()),
            ("Training time".to_owned(), duration(run.seconds)),
            ("Samples / s".to_owned(), format!("{rate:.0}")),
        ];
        if run.skipped > 0 {
            facts.push(("Steps skipped".into(), run.skipped.to_string()));
        }
        let none = "No epoch was completed.";
        let counted = accuracy.iter().any(|(_, points)| !points.is_empty());
        let mut charts = vec![chart("Loss", Unit::Number, loss, none)];
        // A task that counts no correct answers has no curve of them.
        if counted || run.epochs.is_empty() {
            charts.push(chart("Accuracy", Unit::Share, accuracy, none));
        }
        charts.push(chart("Samples per second", Unit::Number, [("training", speed), ("", vec![])], none));
        RunReport { title: title.into(), facts, charts, ..RunReport::default() }
    }

    /// Adds the curves of steps that [`StepCurves`](crate::StepCurves) collected: loss, learning rate and the norm of
    /// the gradients.
    pub fn add_steps(&mut self, history: &History) {
        for (name, title, if_empty) in [
            ("loss", "Loss of each step", "No step was done."),
            ("lr", "Learning rate", "No step was done."),
            ("grad_norm", "Norm of the gradients", "It was not computed. Trainer::log_grad_norm reports it."),
        ] {
            let points = history.get(name).to_vec();
            let mut curves = Vec::new();
            if points.len() >= LEAST_SMOOTHED && name != "lr" {
                let smoothed = Curve { name: "mean".into(), points: smoothed(&points), is_faint: false };
                curves = vec![Curve { name: "step".into(), points, is_faint: true }, smoothed];
            } else if !points.is_empty() {
                let name = if name == "lr" { "rate" } else { "step" };
                curves.push(Curve { name: name.into(), points, is_faint: false });
            }
            let (over, unit) = ("step".into(), Unit::Number);
            self.charts.push(Chart { title: title.into(), over, unit, curves, if_empty: if_empty.into() });
        }
    }
}

/// The smallest number of points for which a running mean is drawn as well, and the decay of the weights of older
/// points from one point to the next.
const LEAST_SMOOTHED: usize = 30;
const KEPT: f64 = 0.9;

/// The exponentially weighted mean of each point and those before it. Points that are not finite do not count.
fn smoothed(points: &[(u64, f64)]) -> Vec<(u64, f64)> {
    let (mut sum, mut weight) = (0.0, 0.0);
    let mean = |&(at, value): &(u64, f64)| {
        if value.is_finite() {
            (sum, weight) = (KEPT * sum + value, KEPT * weight + 1.0);
        }
        (at, sum / weight)
    };
    points.iter().map(mean).collect()
}

/// Seconds in words.
fn duration(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match whole {
        0..60 => format!("{seconds:.1} s"),
        60..3600 => format!("{} min {} s", whole / 60, whole % 60),
        _ => format!("{} h {} min", whole / 3600, whole / 60 % 60),
    }
}

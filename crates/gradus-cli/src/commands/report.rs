//! `report.html`: the page about a run of `train digits`.

use gradus::prelude::*;
use gradus::train::{ConfusionMatrix, Evaluation, Example, Examples, Run, RunReport, StepCurves};

use crate::config::Config;
use crate::output::thousands;
use crate::picture;

/// The number of pictures in each group of examples.
const EXAMPLES: usize = 16;

/// An image of the test set, and what the network makes of it.
struct Prediction {
    index: usize,
    label: i64,
    predicted: usize,
    probability: f64,
    /// Minus the logarithm of the label's probability.
    loss: f64,
}

/// The results of a run that the page shows.
pub(crate) struct Results<'a> {
    pub(crate) run: &'a Run,
    pub(crate) steps: &'a StepCurves,
    pub(crate) test: &'a Evaluation,
    pub(crate) confusion: &'a ConfusionMatrix,
    pub(crate) config: &'a Config,
    /// The largest number of bytes that the device held at once.
    pub(crate) peak_memory: usize,
}

/// The bytes that the page may take: to reserve them on the disk.
pub(crate) fn most_bytes([channels, height, width]: [usize; 3]) -> usize {
    let pictures = 2 * EXAMPLES * (channels * height * width * 3 / 2 + 1024);
    (200 << 10) + pictures
}

/// The page. `loader` has the images of `images` in their order.
pub(crate) fn page<D>(
    results: &Results<'_>,
    model: &impl Forward,
    images: &D,
    loader: &DataLoader<D>,
    random: &mut Generator,
) -> Result<String>
where
    D: Dataset<Item = (Image, i64)> + 'static,
    D::Item: Sample<Batch = (Tensor, Tensor)>,
{
    let Results { run, test, config, .. } = results;
    let mut report = RunReport::of("Handwritten digits", run);
    if let Some(data) = &config.data {
        report.title = format!("Images in {data}");
    }
    let [_, height, width] = config.network.input;
    report.subtitle = format!(
        "{} images of {height} \u{d7} {width}, {} held out; {} parameters on {}",
        thousands(config.result.training_samples),
        thousands(test.samples),
        thousands(config.network.parameters),
        config.device
    );
    let rate = run.samples as f64 / run.seconds.max(1e-9);
    for (name, value) in &mut report.facts {
        if name == "Samples / s" {
            *value = thousands(rate as usize);
        }
    }
    report.facts.insert(0, ("Test accuracy".into(), format!("{:.2} %", test.accuracy.unwrap_or(0.0) * 100.0)));
    report.facts.insert(1, ("Test loss".into(), format!("{:.4}", test.loss)));
    report.facts.push(("Peak memory".into(), format!("{:.1} MiB", results.peak_memory as f64 / f64::from(1 << 20))));
    report.add_steps(&results.steps.history());
    report.confusion = Some(results.confusion.clone());

    let mut all = predictions(model, loader)?;
    let order = random.permutation(all.len())?;
    let chosen = order.iter().filter_map(|&at| all.get(at)).take(EXAMPLES);
    let chosen: Vec<Example> = chosen.map(|p| example(p, images)).collect::<Result<_>>()?;
    all.sort_by(|a, b| b.loss.total_cmp(&a.loss));
    let worst: Vec<Example> = all.iter().take(EXAMPLES).map(|p| example(p, images)).collect::<Result<_>>()?;
    report.examples = vec![
        Examples { title: "Held-out images with the largest loss".into(), all: worst },
        Examples { title: "Held-out images at random".into(), all: chosen },
    ];
    report.config = rows(&config.text()?);
    Ok(report.html())
}

fn predictions<D>(model: &impl Forward, loader: &DataLoader<D>) -> Result<Vec<Prediction>>
where
    D: Dataset + 'static,
    D::Item: Sample<Batch = (Tensor, Tensor)>,
{
    let mut all = Vec::new();
    for batch in loader.epoch(0)? {
        let (images, labels) = batch?;
        let scores = no_grad(|| model.forward(&images)?.log_softmax(-1))?;
        let classes = scores.size(1)?.max(1);
        let (scores, labels) = (scores.to_vec::<f32>()?, labels.to_dtype(DType::I64)?.to_vec::<i64>()?);
        for (row, label) in scores.chunks_exact(classes).zip(labels) {
            let best = row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0)));
            let (predicted, score) = best.map_or((0, 0.0), |(class, score)| (class, *score));
            let own =
                usize::try_from(label).ok().and_then(|class| row.get(class)).copied().unwrap_or(f32::NEG_INFINITY);
            all.push(Prediction {
                index: all.len(),
                label,
                predicted,
                probability: f64::from(score).exp(),
                loss: -f64::from(own),
            });
        }
    }
    Ok(all)
}

fn example<D: Dataset<Item = (Image, i64)>>(p: &Prediction, images: &D) -> Result<Example> {
    let (image, _) = images.get(p.index)?;
    let is_right = usize::try_from(p.label) == Ok(p.predicted);
    let caption = if is_right { p.label.to_string() } else { format!("{}, predicted as {}", p.label, p.predicted) };
    Ok(Example {
        png: Some(picture::to_png(&image)?),
        text: String::new(),
        caption,
        note: format!("{:.1} % sure", p.probability * 100.0),
        is_right: Some(is_right),
    })
}

/// The settings of a TOML file as rows, without those of the results, which stand at the top of the page.
fn rows(toml: &str) -> Vec<(String, String)> {
    let (mut rows, mut section) = (Vec::new(), String::new());
    for line in toml.lines() {
        if let Some(name) = line.strip_prefix('[') {
            section = format!("{}.", name.trim_end_matches(']'));
        } else if let Some((name, value)) = line.split_once(" = ")
            && section != "result."
        {
            rows.push((format!("{section}{name}"), value.trim_matches('"').to_owned()));
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    #[test]
    fn settings_are_rows() {
        let rows =
            super::rows("seed = \"0\"\nlr = 0.002\n\n[network]\ninput = [1, 8, 8]\n\n[result]\nepochs_done = 2\n");
        let want = [("seed", "0"), ("lr", "0.002"), ("network.input", "[1, 8, 8]")];
        assert_eq!(rows, want.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }
}

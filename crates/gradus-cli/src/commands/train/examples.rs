//! The pictures on the page about a run: those with the largest loss, and some at random.

use gradus::prelude::*;
use gradus::train::{Example, Examples};

/// The number of pictures in each group.
pub(super) const EXAMPLE_COUNT: usize = 16;

/// The key with which the generator of the examples is forked from the seed.
const EXAMPLES: u64 = 4;

/// A held-out picture, and what the network makes of it.
pub(super) struct Prediction {
    pub(super) index: usize,
    pub(super) label: i64,
    pub(super) predicted: usize,
    pub(super) probability: f64,
    /// Minus the logarithm of the label's probability.
    pub(super) loss: f64,
}

/// What a classifier makes of each sample.
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

/// The held-out images with the largest loss, and some at random. `show` makes an example of a prediction.
pub(super) fn worst_and_random<D>(
    model: &impl Forward,
    loader: &DataLoader<D>,
    seed: u64,
    show: impl Fn(&Prediction) -> Result<Example>,
) -> Result<Vec<Examples>>
where
    D: Dataset + 'static,
    D::Item: Sample<Batch = (Tensor, Tensor)>,
{
    let mut all = predictions(model, loader)?;
    let order = Generator::new(seed).fork(EXAMPLES).permutation(all.len())?;
    let chosen = order.iter().filter_map(|&at| all.get(at)).take(EXAMPLE_COUNT).map(&show).collect::<Result<_>>()?;
    all.sort_by(|a, b| b.loss.total_cmp(&a.loss));
    let worst = all.iter().take(EXAMPLE_COUNT).map(&show).collect::<Result<_>>()?;
    Ok(vec![
        Examples { title: "Held-out images with the largest loss".into(), all: worst },
        Examples { title: "Held-out images at random".into(), all: chosen },
    ])
}

/// The example of a prediction: its picture, and captions with the names of the classes.
pub(super) fn captioned(p: &Prediction, png: Vec<u8>, name: impl Fn(usize) -> String) -> Example {
    let label = usize::try_from(p.label).unwrap_or_default();
    let is_right = label == p.predicted;
    let caption = if is_right { name(label) } else { format!("{}, predicted as {}", name(label), name(p.predicted)) };
    Example {
        png: Some(png),
        text: String::new(),
        caption,
        note: format!("{:.1} % sure", p.probability * 100.0),
        is_right: Some(is_right),
    }
}

//! `gradus train images`: a network on pictures in folders.

use std::sync::Arc;

use gradus::data::Photo;
use gradus::prelude::*;
use gradus::tasks;
use gradus::tasks::images::{
    Architecture, Augmentation, Network, Part, SMALL_SIDE, Spec, Split, open, survey, thumbnail,
};
use gradus::train::Example;
use toml::Value;

use super::examples::{EXAMPLE_COUNT, Prediction, captioned, worst_and_random};
use super::fingerprint::Fingerprint;
use super::job::{Job, Metric, Results, Settings};
use super::report::name_of;
use super::run::train;
use super::session::Session;
use crate::args::ImagesArgs;
use crate::output::{matrix, say, thousands};

/// The number of images in a test batch.
const TEST_BATCH: usize = 128;

/// The most pictures whose size is looked at to choose the input's.
const LOOKED_AT: usize = 100;

/// The size to which larger pictures are resized.
const LARGE: usize = 224;

/// The longer side of a picture on the page.
const SHOWN: usize = 96;

/// The share of a label that is spread over all classes.
const SMOOTHING: f64 = 0.05;

/// A held-out picture.
const EXAMPLE: &str = "example.png";

/// The held-out pictures as inputs of the network.
type Loader = DataLoader<Arc<dyn Dataset<Item = (Photo, i64)>>>;

/// Runs the command.
pub(super) fn run(args: &ImagesArgs) -> Result<()> {
    let mut session = Session::open(&args.options)?;
    let device = session.device.clone();
    let seed = args.options.seed;
    let split = open(&args.dir, args.max_memory, seed, &device)?;
    let (height, width) = input_size(args, &split)?;
    let is_small = height.max(width) <= SMALL_SIDE;
    let network = args.model.unwrap_or(if is_small { Architecture::Small } else { Architecture::Resnet18 });
    let name = args.dir.file_name().and_then(|n| n.to_str()).unwrap_or("images");
    session.claim(name, &[EXAMPLE])?;
    let are_files = split.train.dataset().path(0).is_some();
    let workers = args.workers.unwrap_or(if are_files { 2 } else { 1 });

    say(&format!("reading {} pictures", thousands(split.train.len() + split.test.len())))?;
    let seen = survey(&split.train, [height, width], workers, &device)?;
    // Only to find those that cannot be read.
    survey(&split.test, [height, width], workers, &device)?;
    let input = [seen.channels, height, width];
    let mut print = Fingerprint::new();
    for (index, mark) in split.train.indices().iter().zip(&seen.marks) {
        print.add(split.train.dataset().labels()[*index] as u64);
        print.add(*mark);
    }
    let spec = Spec { network, input, mean: seen.mean, std: seen.std, classes: split.classes.clone() };
    let model = spec.build(&device, seed)?;

    let (epochs, batch_size, lr) = match network {
        Architecture::Small => (8, 128, 0.004),
        _ => (30, 32, 0.001),
    };
    let mut own = vec![
        ("dir", Value::from(args.dir.display().to_string())),
        ("model", Value::from(network.name())),
        ("flip", Value::from(args.flip)),
        ("erase", Value::from(args.erase)),
        ("no-crop", Value::from(args.no_crop)),
    ];
    own.extend((height == width).then(|| ("size", Value::from(height as i64))));
    let mut settings = Settings::new("images", &args.options, (epochs, batch_size, lr), own);
    settings.data = print.value();
    let config = AdamConfig { lr: settings.lr, weight_decay: 0.02, ..Default::default() };
    let optimizer = AdamW::new(model.named_parameters(), config)?;
    let how = Augmentation { crop: !args.no_crop, flip: args.flip, erase: args.erase };
    let augment = spec.clone();
    let loader = DataLoader::new(split.train.clone(), &device)
        .batch_size(settings.batch_size)
        .shuffle(seed)
        .augment(move |(photo, label), g| Ok((augment.augmented(photo, how, g)?, label)))
        .workers(workers)
        .build()?;
    let test = test_loader(&split.test, &spec, workers, &device)?;
    let schedule = settings.schedule(loader.len(), 10, 0.01)?;
    let intro = format!(
        "training {network} on {} images as {height} x {width}, {} classes, {} parameters, {device}",
        thousands(split.train.len()),
        spec.classes.len(),
        thousands(model.num_parameters())
    );
    let (example, label) = split.test.get(0)?;
    let example = thumbnail(example, LARGE.max(SMALL_SIDE), &device)?;
    let class = spec.classes.get(label as usize).cloned().unwrap_or_default();
    let job = Job {
        trainer: Trainer::new(settings.epochs)?.schedule(schedule),
        settings,
        model,
        optimizer: Box::new(optimizer),
        loader,
        validation: Some(&test),
        task: Classification { label_smoothing: SMOOTHING },
        spec: tasks::Spec::Images(spec.clone()),
        files: vec![(EXAMPLE, example, format!("a held-out image, of class {class}"))],
        report_bytes: 2 * EXAMPLE_COUNT * (SHOWN * SHOWN * 5 + 1024),
        keeps_checkpoints: true,
        unit: "img",
        intro,
    };
    train(&session, job, |model, _| judge(args, model, &split, &test, &spec, &device))
}

/// The height and the width of the network's input.
fn input_size(args: &ImagesArgs, split: &Split) -> Result<(usize, usize)> {
    if let Some(size) = args.size {
        return Ok((size, size));
    }
    let count = split.train.len();
    let mut sizes = Vec::new();
    for index in (0..count).step_by(count.div_ceil(LOOKED_AT).max(1)) {
        sizes.push(split.train.get(index)?.0.size());
    }
    let first = sizes.first().copied().unwrap_or((LARGE, LARGE));
    let longest = sizes.iter().map(|&(h, w)| h.max(w)).max().unwrap_or(LARGE);
    Ok(match longest {
        _ if longest > SMALL_SIDE => (LARGE, LARGE),
        _ if sizes.iter().all(|&size| size == first) && first.0.min(first.1) >= 8 => first,
        longest => (longest.max(8), longest.max(8)),
    })
}

/// The held-out pictures, not changed at random.
fn test_loader(test: &Part, spec: &Spec, workers: usize, device: &Device) -> Result<Loader> {
    let spec = spec.clone();
    let prepared = test.clone().map(move |(photo, label)| Ok((spec.prepared(photo)?, label)));
    let all: Arc<dyn Dataset<Item = (Photo, i64)>> = Arc::new(prepared);
    DataLoader::new(all, device).batch_size(TEST_BATCH).workers(workers).build()
}

/// Tests the network on the held-out images.
fn judge(
    args: &ImagesArgs,
    model: &mut Network,
    split: &Split,
    loader: &Loader,
    spec: &Spec,
    device: &Device,
) -> Result<Results> {
    let result = evaluate(model, loader, &Classification::default())?;
    let confusion = Classification::confusion(model, loader, spec.classes.len())?;
    let accuracy = Metric::share("test_accuracy", "Test accuracy", result.accuracy.unwrap_or(0.0));
    let (correct, total) = (thousands(confusion.correct() as usize), thousands(result.samples));
    let mut lines = vec![format!("test accuracy {}: {correct} of {total} images that were held out", accuracy.shown())];
    lines.extend(matrix(Some(&confusion), &spec.classes));

    let mut page = RunReport::default();
    page.title = format!("Images in {}", name_of(&args.dir));
    let (parameters, [channels, height, width]) = (model.num_parameters(), spec.input);
    page.subtitle = format!(
        "{} images as {height} \u{d7} {width}, {} held out; {} with {} parameters on {}",
        thousands(split.train.len()),
        thousands(split.test.len()),
        spec.network,
        thousands(parameters),
        args.options.common.device
    );
    page.confusion = Some(confusion);
    page.classes = spec.classes.clone();
    page.examples = worst_and_random(model, loader, args.options.seed, |p| example(p, &split.test, spec, device))?;
    Ok(Results {
        metrics: vec![accuracy, Metric::number("test_loss", "Test loss", result.loss)],
        lines,
        page,
        network: vec![
            ("input", Value::from([channels, height, width].map(|n| n as i64).to_vec())),
            ("classes", Value::from(spec.classes.len() as i64)),
            ("parameters", Value::from(parameters as i64)),
        ],
        counts: vec![("training_samples", split.train.len()), ("test_samples", split.test.len())],
        next: ["predict", "--model", "{out}/model.safetensors", "{out}/example.png"].map(String::from).to_vec(),
    })
}

fn example(p: &Prediction, test: &Part, spec: &Spec, device: &Device) -> Result<Example> {
    let (photo, _) = test.get(p.index)?;
    let path = test.indices().get(p.index).and_then(|&index| test.dataset().path(index));
    let file = path.and_then(|path| path.file_name()).map(|name| format!(", {}", name.to_string_lossy()));
    let png = thumbnail(photo, SHOWN, device)?;
    let mut example = captioned(p, png, |class| spec.classes.get(class).cloned().unwrap_or_default());
    example.note.push_str(&file.unwrap_or_default());
    Ok(example)
}

//! `gradus train digits`: a small convolutional network on small grey images.

use std::sync::Arc;

use gradus::data::{Subset, digits, idx, split};
use gradus::prelude::*;
use gradus::tasks;
use gradus::tasks::digits::{Cnn, Spec, to_png};
use toml::Value;

use super::examples::{EXAMPLE_COUNT, captioned, worst_and_random};
use super::fingerprint::Fingerprint;
use super::job::{Job, Metric, Results, Settings};
use super::report::name_of;
use super::run::train;
use super::session::Session;
use crate::args::DigitsArgs;
use crate::output::{matrix, thousands};

/// The share of the images that is held out for testing.
const HELD_OUT: f64 = 0.2;

/// The key with which the generator of the split is forked from the seed.
const SPLIT: u64 = 3;

/// The number of images in a test batch.
const TEST_BATCH: usize = 256;

/// The default number of epochs, for the digits that come with the program and for other images.
const EPOCHS: (usize, usize) = (20, 5);

/// A held-out image.
const EXAMPLE: &str = "example.png";

type Part = Subset<Arc<ImageSet>>;

/// The images to train on and to test with.
struct Images {
    train: Part,
    test: Part,
    spec: Spec,
}

/// Runs the command.
pub(super) fn run(args: &DigitsArgs) -> Result<()> {
    let mut session = Session::open(&args.options)?;
    let Images { train: images, test, spec } = load(args)?;
    session.claim(folder_name(args), &[EXAMPLE])?;
    let device = session.device.clone();

    let epochs = if args.data.is_none() { EPOCHS.0 } else { EPOCHS.1 };
    let data = args.data.iter().map(|folder| ("data", Value::from(folder.display().to_string()))).collect();
    let mut settings = Settings::new("digits", &args.options, (epochs, 64, 0.003), data);
    settings.data = fingerprint(&images)?;
    let model = Cnn::new(spec, &device, settings.seed)?;
    let parameters = model.num_parameters();
    let config = AdamConfig { lr: settings.lr, weight_decay: 0.01, ..Default::default() };
    let optimizer = AdamW::new(model.named_parameters(), config)?;
    let loader = DataLoader::new(images.clone(), &device)
        .batch_size(settings.batch_size)
        .shuffle(settings.seed)
        .augment(|(image, label), generator| Ok((jittered(&image, generator), label)))
        .workers(1)
        .build()?;
    let schedule = settings.schedule(loader.len(), 10, 0.01)?;
    let [_, height, width] = spec.input;
    let intro = format!(
        "training on {} images of {height} x {width}, {} classes, {} parameters, {device}",
        thousands(images.len()),
        spec.classes,
        thousands(parameters)
    );
    let (example, label) = test.get(0)?;
    let example = to_png(&example, &device)?;
    let job = Job {
        trainer: Trainer::new(settings.epochs)?.schedule(schedule),
        settings,
        model,
        optimizer: Box::new(optimizer),
        loader,
        validation: None,
        task: Classification::default(),
        spec: tasks::Spec::Digits(spec),
        files: vec![(EXAMPLE, example, format!("a held-out image, of class {label}"))],
        report_bytes: 2 * EXAMPLE_COUNT * (height * width * 3 / 2 + 1024),
        keeps_checkpoints: false,
        unit: "img",
        intro,
    };
    train(&session, job, |model, _| judge(args, model, &images, &test, spec, &device))
}

fn fingerprint(images: &Part) -> Result<u64> {
    let mut print = Fingerprint::new();
    for at in 0..images.len() {
        let (image, label) = images.get(at)?;
        print.add(label as u64);
        image.pixels().iter().for_each(|pixel| print.add(u64::from(pixel.to_bits())));
    }
    Ok(print.value())
}

/// Tests the network on the held-out images.
fn judge(
    args: &DigitsArgs,
    model: &mut Cnn,
    images: &Part,
    test: &Part,
    spec: Spec,
    device: &Device,
) -> Result<Results> {
    let loader = DataLoader::new(test.clone(), device).batch_size(TEST_BATCH).build()?;
    let result = evaluate(model, &loader, &Classification::default())?;
    let confusion = Classification::confusion(model, &loader, spec.classes)?;
    let accuracy = Metric::share("test_accuracy", "Test accuracy", result.accuracy.unwrap_or(0.0));
    let (correct, total) = (thousands(confusion.correct() as usize), thousands(result.samples));
    let mut lines = vec![format!("test accuracy {}: {correct} of {total} images that were held out", accuracy.shown())];
    lines.extend(matrix(Some(&confusion), &[]));

    let mut page = RunReport::default();
    page.title = args.data.as_ref().map_or("Handwritten digits".into(), |data| format!("Images in {}", name_of(data)));
    let (parameters, [channels, height, width]) = (model.num_parameters(), spec.input);
    page.subtitle = format!(
        "{} images of {height} \u{d7} {width}, {} held out; {} parameters on {}",
        thousands(images.len()),
        thousands(test.len()),
        thousands(parameters),
        args.options.common.device
    );
    page.confusion = Some(confusion);
    page.examples = worst_and_random(model, &loader, args.options.seed, |p| {
        let (image, _) = test.get(p.index)?;
        Ok(captioned(p, to_png(&image, device)?, |class| class.to_string()))
    })?;
    Ok(Results {
        metrics: vec![accuracy, Metric::number("test_loss", "Test loss", result.loss)],
        lines,
        page,
        network: vec![
            ("input", Value::from([channels, height, width].map(|n| n as i64).to_vec())),
            ("classes", Value::from(spec.classes as i64)),
            ("parameters", Value::from(parameters as i64)),
        ],
        counts: vec![("training_samples", images.len()), ("test_samples", test.len())],
        next: ["predict", "--model", "{out}/model.safetensors", "{out}/example.png"].map(String::from).to_vec(),
    })
}

/// Reads the images. If there are no test images, splits the images.
fn load(args: &DigitsArgs) -> Result<Images> {
    let all = match &args.data {
        Some(folder) => idx::read_folder(folder, idx::Part::Train)?,
        None => digits::load()?,
    };
    let spec = Spec { input: all.image_shape(), classes: all.classes() };
    let note = |e: Error| match &args.data {
        Some(folder) => e.note(format!("in the folder {}", folder.display())),
        None => e,
    };
    spec.check().map_err(note)?;
    let test = match &args.data {
        Some(folder) if idx::Part::Test.is_in(folder) => Some(idx::read_folder(folder, idx::Part::Test)?),
        _ => None,
    };
    let Some(test) = test else {
        let split =
            split::stratified(all.labels(), HELD_OUT, Generator::new(args.options.seed).fork(SPLIT).next_u64())?;
        if split.test.is_empty() || split.train.is_empty() {
            let m = format!("{} images are too few to hold 20 % out for the test", all.len());
            return Err(note(Error::argument("train", m).help("give more images, or t10k-* files with test images")));
        }
        let all = Arc::new(all);
        return Ok(Images { train: all.clone().subset(split.train)?, test: all.subset(split.test)?, spec });
    };
    if test.image_shape() != spec.input {
        let m = format!("training images are {:?} and test images {:?}", spec.input, test.image_shape());
        return Err(note(Error::shape("train", m).help("are these files of one dataset?")));
    }
    if test.classes() > spec.classes {
        let m = format!("the test has the label {}; training labels go to {}", test.classes() - 1, spec.classes - 1);
        return Err(note(Error::argument("train", m).help("are these files of one dataset?")));
    }
    let whole = |set: ImageSet| {
        let n = set.len();
        Arc::new(set).subset((0..n).collect())
    };
    Ok(Images { train: whole(all)?, test: whole(test)?, spec })
}

/// The name of the folder for the results, unless the user names one.
fn folder_name(args: &DigitsArgs) -> &str {
    match &args.data {
        Some(folder) => folder.file_name().and_then(|n| n.to_str()).unwrap_or("images"),
        None => "digits",
    }
}

/// Returns the image unchanged or, half of the time, shifted by up to one pixel in each direction.
fn jittered(image: &Image, generator: &mut Generator) -> Image {
    if generator.below(2) == 0 {
        return image.clone();
    }
    let mut by = || generator.below(3) as isize - 1;
    image.shifted(by(), by())
}

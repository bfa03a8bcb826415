//! `gradus train digits`: trains a network, tests it, and saves it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use gradus::data::{Subset, digits, idx, split};
use gradus::prelude::*;
use gradus::train::{ConfusionMatrix, CsvLogger, Evaluation, Logger, Run, RunFolder, StagedFiles, StepCurves, rescue};

use super::report::{self, Results};
use crate::args::TrainArgs;
use crate::config::{Config, Network, Outcome};
use crate::interrupt::Interrupt;
use crate::network::{Cnn, Spec};
use crate::output::{say, thousands};
use crate::picture;
use crate::progress::Progress;

/// The share of the images that is held out for testing.
const HELD_OUT: f64 = 0.2;

/// The keys with which the generators of the split and of the examples in the report are forked from the seed.
const SPLIT: u64 = 3;
const EXAMPLES: u64 = 4;

/// The number of images in a test batch.
const TEST_BATCH: usize = 256;

/// The default number of epochs, for the digits that come with the program and for other images.
const EPOCHS: (usize, usize) = (20, 5);

/// The files of a run.
const MODEL: &str = "model.safetensors";
const METRICS: &str = "metrics.csv";
const CONFIG: &str = "config.toml";
const EXAMPLE: &str = "example.png";
const REPORT: &str = "report.html";

/// The bytes of disk space that are reserved for `config.toml` and for each row of `metrics.csv`, and the largest
/// number of rows for which space is reserved.
const CONFIG_BYTES: usize = 4096;
const ROW_BYTES: usize = 128;
const MOST_ROWS: usize = 10_000;

type Part = Subset<Arc<ImageSet>>;

/// The images to train on and to test with.
struct Images {
    train: Part,
    test: Part,
    spec: Spec,
}

/// Runs the command.
pub(crate) fn run(args: &TrainArgs) -> Result<()> {
    let device = super::open(&args.common.device, args.common.threads)?;
    let images = load(args)?;
    let interrupt = Interrupt::watch()?;
    let out = interrupt.claim(|| open_folder(args))?;
    out.check(&[MODEL, METRICS, CONFIG, EXAMPLE, REPORT])?;

    let mut model = Cnn::new(images.spec, &device, args.seed)?;
    let parameters = model.num_parameters();
    let epochs = args.epochs.unwrap_or(if args.data.is_none() { EPOCHS.0 } else { EPOCHS.1 });
    let (example, label) = images.test.get(0)?;
    let example = picture::to_png(&example)?;
    let write = |files: &mut StagedFiles<'_>, model: &Cnn, [metrics, config, page]: [&[u8]; 3]| {
        files.write_with(MODEL, |out| model.write(images.spec, out))?;
        files.write(METRICS, metrics)?;
        files.write(CONFIG, config)?;
        files.write(REPORT, page)?;
        files.write(EXAMPLE, &example)
    };
    // Writes files of the final size now. A full disk is then an error at the start, and the space stays reserved until
    // the end.
    let mut files = out.stage();
    let metrics = vec![b' '; epochs.min(MOST_ROWS) * ROW_BYTES];
    let page = vec![b' '; report::most_bytes(images.spec.input)];
    write(&mut files, &model, [&metrics, &[b' '; CONFIG_BYTES], &page])?;

    let config = AdamConfig { lr: args.lr, weight_decay: 0.01, ..Default::default() };
    let mut optimizer = AdamW::new(model.named_parameters(), config)?;
    let loader = DataLoader::new(images.train.clone(), &device)
        .batch_size(args.batch_size)
        .shuffle(args.seed)
        .augment(|(image, label), generator| Ok((jittered(&image, generator), label)))
        .workers(1)
        .build()?;
    let steps = (epochs as u64).saturating_mul(loader.len() as u64);
    let warmup = steps / 10;
    let trainer = Trainer::new(epochs)?
        .schedule(Schedule::cosine((steps - warmup).max(1), 0.01)?.after_warmup(warmup))
        .stop_when(interrupt.flag())
        .log_grad_norm();
    let [_, height, width] = images.spec.input;
    say(&format!(
        "training on {} images of {height} x {width}, {} classes, {} parameters, {device}",
        thousands(images.train.len()),
        images.spec.classes,
        thousands(parameters)
    ))?;
    let task = Classification::default();
    let mut steps = StepCurves::default();
    let loggers: &mut [&mut dyn Logger] = &mut [&mut Progress::new(), &mut steps];
    let run = trainer.fit(&mut model, &mut optimizer, &loader, None, &task, loggers)?;
    if run.steps == 0 {
        return Err(Error::argument("train", "stopped before the first step; there is nothing to save"));
    }

    let test_loader = DataLoader::new(images.test.clone(), &device).batch_size(TEST_BATCH).build()?;
    let result = evaluate(&mut model, &test_loader, &task)?;
    let confusion = Classification::confusion(&mut model, &test_loader, images.spec.classes)?;
    let accuracy = result.accuracy.unwrap_or(0.0);
    if !result.loss.is_finite() || !model.is_finite()? {
        let m = format!("the training diverged: the test loss is {}, and nothing is saved", result.loss);
        return Err(Error::argument("train", m).help("lower the learning rate (--lr)"));
    }

    let config = describe(args, &images, epochs, parameters, &run, accuracy);
    let results = Results {
        run: &run,
        steps: &steps,
        test: &result,
        confusion: &confusion,
        config: &config,
        peak_memory: device.memory_stats().peak,
    };
    let mut random = Generator::new(args.seed).fork(EXAMPLES);
    let page = report::page(&results, &model, &images.test, &test_loader, &mut random)?;
    let config = config.text()?;
    let metrics = CsvLogger::table(&run.epochs);
    let saved = interrupt.while_saving(|| {
        let write = |files: &mut StagedFiles<'_>| {
            write(files, &model, [metrics.as_bytes(), config.as_bytes(), page.as_bytes()])
        };
        let written = write(&mut files).and_then(|()| files.publish());
        written.map_err(|e| rescue(e, write))
    });
    // The results are printed even if a file could not be written; the error of that file takes precedence.
    saved.and(print(&run, epochs, &result, &confusion))?;
    say(&format!("saved in {}:", out.path().display()))?;
    say(&format!("  {MODEL}  the network; all that `predict` needs"))?;
    say(&format!("  {METRICS}        loss and accuracy of each epoch"))?;
    say(&format!("  {CONFIG}        what was asked for"))?;
    say(&format!("  {EXAMPLE}        a held-out image, of class {label}"))?;
    say(&format!("  {REPORT}        curves, mistakes and settings on a page for a browser"))?;
    let (model_path, example_path) = (quoted(&out.file(MODEL)), quoted(&out.file(EXAMPLE)));
    say(&format!("try:\n  {} predict --model {model_path} {example_path}", super::program()))?;
    if args.common.json {
        let line = serde_json::json!({
            "test_accuracy": accuracy,
            "test_loss": result.loss,
            "seconds": run.seconds,
            "epochs": run.epochs.len(),
            "seed": args.seed,
            "parameters": parameters,
            "model": out.file(MODEL).display().to_string(),
            "device": args.common.device,
            "interrupted": run.stopped,
        });
        say(&line.to_string())?;
    }
    Ok(())
}

/// Reads the images. If there are no test images, splits the images.
fn load(args: &TrainArgs) -> Result<Images> {
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
        let split = split::stratified(all.labels(), HELD_OUT, Generator::new(args.seed).fork(SPLIT).next_u64())?;
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

/// The folder for the results: the one that the user named, or the next free default.
fn open_folder(args: &TrainArgs) -> Result<RunFolder> {
    if let Some(out) = &args.out {
        return RunFolder::create(out, args.force);
    }
    let name = match &args.data {
        Some(folder) => folder.file_name().and_then(|n| n.to_str()).unwrap_or("images"),
        None => "digits",
    };
    let base = PathBuf::from("out").join(name);
    if args.force { RunFolder::create(base, true) } else { RunFolder::next_free(base) }
}

/// Returns the image unchanged or, half of the time, shifted by up to one pixel in each direction.
fn jittered(image: &Image, generator: &mut Generator) -> Image {
    if generator.below(2) == 0 {
        return image.clone();
    }
    let mut by = || generator.below(3) as isize - 1;
    image.shifted(by(), by())
}

fn describe(args: &TrainArgs, images: &Images, epochs: usize, parameters: usize, run: &Run, accuracy: f64) -> Config {
    Config {
        gradus: env!("CARGO_PKG_VERSION").to_owned(),
        command: "train digits".to_owned(),
        data: args.data.as_ref().map(|p| p.display().to_string()),
        seed: args.seed.to_string(),
        epochs,
        batch_size: args.batch_size,
        lr: args.lr,
        device: args.common.device.clone(),
        network: Network { input: images.spec.input, classes: images.spec.classes, parameters },
        result: Outcome {
            epochs_done: run.epochs.len(),
            interrupted: run.stopped,
            training_samples: images.train.len(),
            test_samples: images.test.len(),
            test_accuracy: accuracy,
        },
    }
}

fn print(run: &Run, epochs: usize, result: &Evaluation, confusion: &ConfusionMatrix) -> Result<()> {
    if run.stopped {
        say(&format!("stopped in epoch {} of {epochs}", run.epochs.len()))?;
    }
    let rate = run.samples as f64 / run.seconds.max(1e-9);
    say(&format!("trained in {:.1} s, {} samples/s", run.seconds, thousands(rate as usize)))?;
    let percent = result.accuracy.unwrap_or(0.0) * 100.0;
    let (correct, total) = (thousands(confusion.correct() as usize), thousands(result.samples));
    say(&format!("test accuracy {percent:.2} %: {correct} of {total} images that were held out"))?;
    // A wider table would not fit in a terminal.
    if confusion.classes() <= 20 {
        say(&format!("{confusion}"))?;
    }
    Ok(())
}

/// A path, quoted for the shell if necessary.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = text.chars().all(|c| c.is_ascii_alphanumeric() || "/._-+:\\".contains(c));
    if plain { text } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

//! [`train`]: the run that all tasks share.

use std::path::{Path, PathBuf};
use std::time::Duration;

use gradus::prelude::*;
use gradus::tasks;
use gradus::train::{CsvLogger, Logger, Run, StagedFiles, StepCurves, rescue};

use super::config::{self, Config};
use super::fingerprint::Fingerprint;
use super::job::{Job, Results, Settings};
use super::session::{CHECKPOINTS, CONFIG, METRICS, MODEL, REPORT, Session, has_state};
use super::{report, trial};
use crate::output::{complain, say, thousands};
use crate::progress::Progress;

/// The bytes of disk space that are reserved for each row of `metrics.csv`, and the largest number of rows for which
/// space is reserved.
const ROW_BYTES: usize = 128;
const MOST_ROWS: usize = 10_000;

/// The time after which the state of a run is saved again.
const STATE_INTERVAL: Duration = Duration::from_secs(10);

/// The folder with the states of a run, if they are saved.
fn checkpoints(session: &Session<'_>, settings: &Settings) -> Option<PathBuf> {
    session.place.as_ref().filter(|_| settings.resumes).map(|place| place.out.file(CHECKPOINTS))
}

/// What a run that goes on must have been started with: the hashes of its data and of the specification of its model,
/// which has the names of classes, the vocabulary and the statistics of columns.
fn fingerprints<M, D: Dataset, T>(job: &Job<'_, M, D, T>) -> Result<[(&'static str, u64); 2]> {
    let spec = serde_json::to_string(&job.spec);
    let spec = spec.map_err(|e| Error::new(ErrorKind::Format, "train", "the specification is no JSON").with_source(e));
    let mut print = Fingerprint::new();
    print.add_text(&spec?);
    Ok([("fingerprint of the data", job.settings.data), ("fingerprint of the classes and columns", print.value())])
}

/// Trains the model of `job`, lets `judge` measure it, and saves and prints everything.
pub(super) fn train<M, D, T>(
    session: &Session<'_>,
    mut job: Job<'_, M, D, T>,
    judge: impl FnOnce(&mut M, &Run) -> Result<Results>,
) -> Result<()>
where
    M: Module,
    D: Dataset + 'static,
    D::Item: Sample,
    T: Task<M, <D::Item as Sample>::Batch>,
{
    let options = session.options;
    if options.overfit_batch {
        return trial::overfit_batch(session, job);
    }
    if options.find_lr {
        return trial::find_lr(session, job);
    }
    let parameters = job.model.num_parameters();
    let write = |files: &mut StagedFiles<'_>, job: &Job<'_, M, D, T>, [metrics, config, page]: [&[u8]; 3]| {
        files.write_with(MODEL, |out| tasks::write(&job.spec, &job.model, out))?;
        files.write(METRICS, metrics)?;
        files.write(CONFIG, config)?;
        files.write(REPORT, page)?;
        job.files.iter().try_for_each(|(name, contents, _)| files.write(name, contents))
    };
    // Writes files of the final size now. A full disk is then an error at the start, and the space stays reserved until
    // the end.
    let mut files = session.place.as_ref().map(|place| place.out.stage());
    if let Some(files) = &mut files {
        let metrics = vec![b' '; job.settings.epochs.min(MOST_ROWS) * ROW_BYTES];
        let page = vec![b' '; report::MOST_BYTES + job.report_bytes];
        let written = write(files, &job, [&metrics, &[b' '; config::MOST_BYTES], &page]);
        written.map_err(|e| session.team.told(e))?;
    }

    let states = checkpoints(session, &job.settings);
    let mut trainer = session.team.share(job.trainer.clone()).log_grad_norm();
    for (name, value) in &job.settings.options {
        trainer = trainer.config(*name, value);
    }
    if let Some(stop) = &session.stop {
        trainer = trainer.stop_when(stop.clone());
    }
    if options.fast_dev_run {
        trainer = trainer.fast_dev_run();
    }
    if states.is_some() || session.team.size().is_some() {
        for (name, value) in fingerprints(&job)? {
            trainer = trainer.config(name, format!("{value:016x}"));
        }
    }
    if let Some(states) = &states {
        if options.force {
            remove(states);
        }
        // States that the user did not ask for must not end a run.
        trainer = match options.resume {
            true => trainer.resume(states),
            false => trainer.checkpoints(states).checkpoints_may_fail(),
        };
        trainer = trainer.save_interval(STATE_INTERVAL).save_epochs(options.resume || job.keeps_checkpoints);
    }
    say(&job.intro)?;
    let mut steps = StepCurves::default();
    let mut progress = Progress::new(job.unit);
    let mut loggers: Vec<&mut dyn Logger> = vec![&mut progress, &mut steps];
    loggers.retain(|_| session.team.is_first());
    let Job { model, optimizer, loader, validation, task, .. } = &mut job;
    let run = trainer.fit(model, &mut **optimizer, loader, *validation, task, &mut loggers);
    if !run.as_ref().is_ok_and(|run| run.steps > 0) {
        states.iter().filter(|states| !has_state(states)).for_each(|states| remove(states));
    }
    let run = run?;
    // From here on the first rank goes on alone.
    drop(trainer);
    session.team.part();
    if !session.team.is_first() {
        return Ok(());
    }
    if run.steps == 0 {
        return Err(Error::argument("train", "stopped before the first step; there is nothing to save"));
    }

    let diverged = |what: &str| {
        states.iter().for_each(|states| remove(states));
        let m = format!("the training diverged: {what}, and nothing is saved");
        Err(Error::argument("train", m).help("lower the learning rate (--lr)"))
    };
    if !is_finite(&job.model)? {
        return diverged("a weight is not finite");
    }
    // What was learnt is saved even if it could not be measured.
    let (results, failed) = match judge(&mut job.model, &run) {
        Ok(results) => (results, None),
        Err(e) => (Results::default(), Some(e)),
    };
    if let Some(wrong) = results.metrics.iter().find(|metric| !metric.value.is_finite()) {
        return diverged(&format!("the {} is {}", wrong.name, wrong.value));
    }
    let config = Config {
        settings: &job.settings,
        network: &results.network,
        counts: &results.counts,
        metrics: &results.metrics,
        epochs_done: run.epochs.len(),
        interrupted: run.stopped,
    }
    .text();
    let page = results.page.clone();
    let memory = session.device.memory_stats().peak;
    let page = report::finished(page, &run, &steps.history(), &results.metrics, &config, memory);
    let metrics = CsvLogger::table(&run.epochs);
    let mut line = serde_json::json!({
        "task": job.settings.task,
        "seconds": run.seconds,
        "epochs": run.epochs.len(),
        "seed": options.seed,
        "parameters": parameters,
        "device": options.common.device,
        "interrupted": run.stopped,
    });
    for metric in &results.metrics {
        line[&metric.key] = metric.value.into();
    }
    let (Some(place), Some(mut files)) = (&session.place, files) else {
        if let Some(e) = failed {
            return Err(e);
        }
        print(&run, job.settings.epochs, &results.lines)?;
        say("one step of everything works; nothing is saved (--fast-dev-run)")?;
        return session.say_json(line);
    };
    // What a stopped run goes on from is kept.
    let goes_on = run.stopped && states.as_ref().is_some_and(|states| has_state(states));
    let saved = place.interrupt.while_saving(|| {
        let write =
            |files: &mut StagedFiles<'_>| write(files, &job, [metrics.as_bytes(), config.as_bytes(), page.as_bytes()]);
        let written = write(&mut files).and_then(|()| files.publish());
        written.map_err(|e| rescue(e, write))?;
        states.iter().filter(|_| !goes_on).for_each(|states| remove(states));
        Ok(())
    });
    if let Some(e) = failed {
        saved?;
        return Err(e.note(format!(
            "the test after the training failed; the trained model is saved in {}",
            place.out.path().display()
        )));
    }
    // The results are printed even if a file could not be written; the error of that file takes precedence.
    saved.and(print(&run, job.settings.epochs, &results.lines))?;
    say(&format!("saved in {}:", place.out.path().display()))?;
    let own = job.files.iter().map(|(name, _, what)| (*name, what.as_str()));
    let common = [
        (MODEL, "the model; all that `predict` needs"),
        (METRICS, "loss and accuracy of each epoch"),
        (CONFIG, "what was asked for; --config takes it"),
    ];
    let page = [(REPORT, "curves, mistakes and settings on a page for a browser")];
    for (name, what) in common.into_iter().chain(own).chain(page) {
        say(&format!("  {name:<17}  {what}"))?;
    }
    if goes_on {
        let (out, task) = (place.out.path(), job.settings.task);
        let words = ["train", task, "--config"].map(String::from).into_iter().chain([
            quoted(&out.join(CONFIG).display().to_string()),
            "--resume".into(),
            "--out".into(),
            quoted(&out.display().to_string()),
        ]);
        let words: Vec<String> = words.collect();
        let launch = session.team.size().map_or_else(String::new, |ranks| format!("launch -n {ranks} -- "));
        say(&format!("go on with the training:\n  {} {launch}{}", crate::commands::program(), words.join(" ")))?;
    }
    let words = results.next.iter().map(|word| quoted(&word.replace("{out}", &place.out.path().display().to_string())));
    let words: Vec<String> = words.collect();
    say(&format!("try:\n  {} {}", crate::commands::program(), words.join(" ")))?;
    line["model"] = place.out.file(MODEL).display().to_string().into();
    session.say_json(line)
}

fn print(run: &Run, epochs: usize, lines: &[String]) -> Result<()> {
    if run.stopped {
        say(&format!("stopped in epoch {} of {epochs}", run.epochs.len()))?;
    }
    let rate = run.samples as f64 / run.seconds.max(1e-9);
    say(&format!("trained in {:.1} s, {} samples/s", run.seconds, thousands(rate as usize)))?;
    lines.iter().try_for_each(|line| say(line))
}

/// Removes the states of a run. They may take much room, but leaving them behind loses nothing.
fn remove(states: &Path) {
    match std::fs::remove_dir_all(states) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            complain(&format!("note: {} could not be removed: {e}", states.display()));
        }
        _ => {}
    }
}

/// Whether all weights and buffers are finite.
fn is_finite<M: Module>(model: &M) -> Result<bool> {
    for (_, tensor) in model.state_dict()?.iter() {
        if tensor.dtype().is_float() && tensor.to_dtype(DType::F32)?.to_vec::<f32>()?.iter().any(|x| !x.is_finite()) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A word, quoted for the shell if necessary.
fn quoted(text: &str) -> String {
    let plain = !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "/._-+:=\\".contains(c));
    if plain { text.to_owned() } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gradus::train::RunFolder;

    use super::*;
    use crate::args::TrainCommand;
    use crate::commands::train::session::Place;
    use crate::commands::train::team::Team;
    use crate::interrupt::Interrupt;

    #[test]
    fn a_model_whose_test_fails_is_saved() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("run");
        let words = ["gradus", "train", "digits", "--out", out.to_str().unwrap(), "--epochs", "1"];
        let TrainCommand::Digits(args) = parsed(&words) else { panic!("another task") };
        let device = Device::cpu().unwrap();
        let folder = Arc::new(RunFolder::create(&out, false).unwrap());
        let place = Some(Place { interrupt: Interrupt::default(), out: folder });
        let (team, stop) = (Team::alone(), None);
        let session = Session { options: &args.options, device: device.clone(), team, stop, place };
        let spec = tasks::digits::Spec { input: [1, 8, 8], classes: 2 };
        let model = tasks::digits::Cnn::new(spec, &device, 0).unwrap();
        let images = Tensor::zeros([4, 1, 8, 8], DType::F32, &device).unwrap();
        let labels = Tensor::from_vec(vec![0i64, 1, 0, 1], [4], &device).unwrap();
        let data = TensorDataset::new(images, labels).unwrap();
        let job = Job {
            settings: Settings::new("digits", &args.options, (1, 2, 0.01), Vec::new()),
            optimizer: Box::new(AdamW::new(model.named_parameters(), AdamConfig::default()).unwrap()),
            model,
            loader: DataLoader::new(data, &device).batch_size(2).build().unwrap(),
            validation: None,
            task: Classification::default(),
            trainer: Trainer::new(1).unwrap(),
            spec: tasks::Spec::Digits(spec),
            files: Vec::new(),
            report_bytes: 0,
            keeps_checkpoints: false,
            unit: "img",
            intro: String::new(),
        };
        let e = train(&session, job, |_, _| Err(Error::argument("test", "no test"))).unwrap_err().to_string();
        assert!(e.contains("no test") && e.contains("is saved in"), "{e}");
        assert_eq!(tasks::load(out.join(MODEL), &device).unwrap().task(), "digits");
        assert!(std::fs::read_to_string(out.join(CONFIG)).unwrap().contains("epochs_done = 1"));
    }

    fn parsed(words: &[&str]) -> TrainCommand {
        use clap::Parser;
        match crate::args::Args::try_parse_from(words).unwrap().command {
            crate::args::Command::Train { what } => what,
            _ => panic!("another command"),
        }
    }

    #[test]
    fn weights_that_are_not_finite_are_noticed() {
        let device = Device::cpu().unwrap();
        let mut model = Linear::new(2, 2, &mut Init::new(DType::F32, &device, &mut Generator::new(0))).unwrap();
        assert!(is_finite(&model).unwrap());
        let mut state = model.state_dict().unwrap();
        state.insert("bias", Tensor::full([2], f64::INFINITY, DType::F32, &device).unwrap());
        model.load_state_dict(&state, Strict::Yes).unwrap();
        assert!(!is_finite(&model).unwrap());
    }
}

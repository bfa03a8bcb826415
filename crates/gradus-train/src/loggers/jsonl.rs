//! [`JsonlLogger`]: a line of JSON for each step and each epoch.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use gradus_tensor::{Error, Here, Result};
use serde_json::{Value, json};

use super::event::{Event, Logger};
use crate::history::float;
use crate::write_file;

const OP: &str = "jsonl";

/// Writes a file with one JSON object per line, which other programs can follow during the run:
///
/// ```text
/// {"epoch":1,"event":"step","loss":2.31,"lr":0.001,"run_step":1,"seconds":0.012,"step":1}
/// {"epoch":1,"event":"epoch","loss":2.31,"lr_factor":1.0,"run_step":1,"samples":64,"seconds":0.012,"steps":1}
/// ```
///
/// Missing numbers, such as an accuracy that is not counted, are omitted. `run_step` counts the steps since the start
/// of the run. A run that resumes first removes the lines of later steps and an incomplete last line, and then appends
/// to the file.
#[derive(Debug)]
pub struct JsonlLogger {
    path: PathBuf,
    file: Option<File>,
    step: u64,
}

impl JsonlLogger {
    /// A logger that writes to `path`. A new run replaces an existing file.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        JsonlLogger { path: path.into(), file: None, step: 0 }
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Keeps the lines of the first `step` steps.
    #[track_caller]
    fn begin(&mut self, step: u64) -> Result<()> {
        let failed = |e| gradus_file::failed(OP, &self.path, e);
        let before = match step {
            0 => Vec::new(),
            _ => match fs::read(&self.path) {
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => Vec::new(),
                before => before.map_err(|e| Error::io(OP, self.path.display(), e)).here()?,
            },
        };
        // A damaged line must not cause the others to be lost.
        let before = String::from_utf8_lossy(&before);
        let is_kept = |line: &&str| {
            let line: Option<Value> = serde_json::from_str(line).ok();
            line.and_then(|line| line.get("run_step")?.as_u64()).is_some_and(|of| of <= step)
        };
        let kept: String = before.lines().filter(is_kept).flat_map(|line| [line, "\n"]).collect();
        write_file(&self.path, kept.as_bytes())?;
        self.file = Some(OpenOptions::new().append(true).open(&self.path).map_err(failed).here()?);
        self.step = step;
        Ok(())
    }

    #[track_caller]
    fn line(&mut self, line: Value) -> Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        file.write_all(format!("{line}\n").as_bytes()).map_err(|e| gradus_file::failed(OP, &self.path, e)).here()
    }
}

/// Adds a number, if there is one.
fn add(line: &mut Value, name: &str, number: Option<f64>) {
    if let (Some(line), Some(number)) = (line.as_object_mut(), number) {
        line.insert(name.to_owned(), float(number));
    }
}

impl Logger for JsonlLogger {
    #[track_caller]
    fn log(&mut self, event: Event<'_>) -> Result<()> {
        match event {
            // The file is not touched until it is known whether the run resumes.
            Event::Start { .. } => self.file = None,
            Event::Resumed { step, .. } => self.begin(step)?,
            Event::EpochStart { .. } if self.file.is_none() => self.begin(0)?,
            Event::Step(step) => {
                self.step += 1;
                let mut line = json!({"event": "step", "run_step": self.step, "epoch": step.epoch, "step": step.step});
                add(&mut line, "loss", Some(step.loss));
                add(&mut line, "lr", Some(step.lr));
                add(&mut line, "grad_norm", step.grad_norm);
                add(&mut line, "seconds", Some(step.seconds));
                self.line(line)?;
            }
            Event::Skipped { epoch, step, value } => {
                let mut line = json!({"event": "skipped", "run_step": self.step, "epoch": epoch, "step": step});
                add(&mut line, "value", Some(value));
                self.line(line)?;
            }
            Event::EpochEnd(epoch) => {
                let mut line = json!({"event": "epoch", "run_step": self.step, "epoch": epoch.epoch,
                    "steps": epoch.steps, "samples": epoch.samples});
                add(&mut line, "loss", Some(epoch.loss));
                add(&mut line, "accuracy", epoch.accuracy);
                add(&mut line, "lr_factor", Some(epoch.lr_factor));
                add(&mut line, "seconds", Some(epoch.seconds));
                add(&mut line, "validation_loss", epoch.validation.map(|v| v.loss));
                add(&mut line, "validation_accuracy", epoch.validation.and_then(|v| v.accuracy));
                self.line(line)?;
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EpochReport, Run, StepReport};

    fn step(step: usize, loss: f64) -> StepReport {
        let (accuracy, grad_norm) = (None, None);
        StepReport { epoch: 1, step, loss, mean_loss: loss, accuracy, samples: 2, lr: 0.5, grad_norm, seconds: 0.5 }
    }

    fn events(path: &Path) -> Vec<(String, u64)> {
        let text = fs::read_to_string(path).unwrap();
        assert!(text.ends_with('\n'));
        let line = |line: &str| {
            let line: Value = serde_json::from_str(line).unwrap();
            (line["event"].as_str().unwrap().to_owned(), line["run_step"].as_u64().unwrap())
        };
        text.lines().map(line).collect()
    }

    #[test]
    fn a_line_is_written_at_once_and_a_resumed_run_appends_to_those_it_keeps() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log.jsonl");
        fs::write(&path, "of another run\n").unwrap();
        let mut logger = JsonlLogger::new(&path);
        logger.log(Event::Start { epochs: 1, steps: 3, samples: 6 }).unwrap();
        logger.log(Event::EpochStart { epoch: 1 }).unwrap();
        logger.log(Event::Step(&step(1, f64::INFINITY))).unwrap();
        assert_eq!(events(&path), [("step".into(), 1)]);
        logger.log(Event::Step(&step(2, 0.25))).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains("\"loss\":\"inf\"") && text.contains("\"loss\":0.25") && !text.contains("grad_norm"));
        drop(logger);

        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"\xff\n{\"event\":\"ste").unwrap();
        let mut logger = JsonlLogger::new(&path);
        logger.log(Event::Start { epochs: 1, steps: 3, samples: 6 }).unwrap();
        logger.log(Event::Resumed { epoch: 1, step: 1, run: &Run::default(), damaged: &[] }).unwrap();
        logger.log(Event::EpochStart { epoch: 1 }).unwrap();
        logger.log(Event::Step(&step(2, 0.5))).unwrap();
        logger.log(Event::Skipped { epoch: 1, step: 3, value: f64::NAN }).unwrap();
        let epoch = EpochReport {
            epoch: 1,
            steps: 2,
            samples: 4,
            loss: 0.5,
            accuracy: None,
            lr_factor: 1.0,
            seconds: 0.5,
            validation: None,
        };
        logger.log(Event::EpochEnd(&epoch)).unwrap();
        let want = [("step", 1), ("step", 2), ("skipped", 2), ("epoch", 2)];
        assert_eq!(events(&path), want.map(|(name, step)| (name.to_owned(), step)));
    }
}

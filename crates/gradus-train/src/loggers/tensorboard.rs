//! [`TensorBoard`]: writes the event files that TensorBoard shows.
//!
//! A file is a list of TFRecords: the length of the record, its checksum, an `Event` message of Protocol Buffers
//! (`tensorboard/compat/proto/event.proto`), and its checksum.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use gradus_tensor::{Error, Here, Result, Tensor};

use super::crc32c::masked;
use super::event::{Event, Logger};
use super::protobuf::Message;
use crate::metrics::floats;

const OP: &str = "tensorboard";

/// The bytes that are kept in memory before they are written.
const BUFFERED: usize = 1 << 16;

/// Writes an event file for TensorBoard (`tensorboard --logdir FOLDER`).
///
/// As a [`Logger`] it writes, for each step, `train/loss`, `train/lr` and `train/grad_norm`, and for each epoch
/// `epoch/loss`, `epoch/accuracy`, `validation/loss` and `validation/accuracy`. The step of each value is the number of
/// steps since the start of the run. Its methods write your own scalars, histograms, pictures and texts.
///
/// Each writer has a file of its own in the folder. A run that resumes writes a new file, and TensorBoard discards the
/// later steps of the previous file. Buffered data is written at the end of each epoch, by
/// [`flush`](TensorBoard::flush), and on drop.
///
/// ```
/// let dir = tempfile::tempdir().unwrap();
/// let mut board = gradus_train::TensorBoard::create(dir.path())?;
/// board.scalar("score", 1, 0.5)?;
/// board.text("note", 1, "the **first** step")?;
/// board.flush()?;
/// # Ok::<(), gradus_tensor::Error>(())
/// ```
#[derive(Debug)]
pub struct TensorBoard {
    path: PathBuf,
    file: File,
    buffer: Vec<u8>,
    /// The number of steps since the start of the run.
    step: u64,
    clock: fn() -> f64,
}

/// Seconds since 1970.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

impl TensorBoard {
    /// Creates a new event file in `folder`, which is created if it does not exist.
    #[track_caller]
    pub fn create(folder: impl AsRef<Path>) -> Result<Self> {
        TensorBoard::with_clock(folder.as_ref(), now)
    }

    #[track_caller]
    fn with_clock(folder: &Path, clock: fn() -> f64) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let failed = |e| gradus_file::failed(OP, folder, e);
        fs::create_dir_all(folder).map_err(failed).here()?;
        let (seconds, process) = (clock() as u64, std::process::id());
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = folder.join(format!("events.out.tfevents.{seconds:010}.gradus.{process}.{number}"));
            match OpenOptions::new().append(true).create_new(true).open(&path) {
                Ok(file) => {
                    let mut board = TensorBoard { path, file, buffer: Vec::new(), step: 0, clock };
                    board.record(Message::default().double(1, clock()).bytes(3, b"brain.Event:2"))?;
                    return Ok(board);
                }
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(failed(e)),
            }
        }
    }

    /// The path of the event file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a number, which TensorBoard stores as f32.
    #[track_caller]
    pub fn scalar(&mut self, tag: &str, step: u64, value: f64) -> Result<()> {
        self.summary(step, Message::default().bytes(1, tag.as_bytes()).float(2, value as f32))
    }

    /// Writes the distribution of the values of a tensor, in buckets whose limits grow by 10 %.
    ///
    /// # Errors
    /// Fails if the tensor is empty or a value is not finite.
    #[track_caller]
    pub fn histogram(&mut self, tag: &str, step: u64, values: &Tensor) -> Result<()> {
        let values = floats(values)?;
        let histogram = histogram(&values).map_err(|m| Error::argument(OP, format!("{tag:?}: {m}"))).here()?;
        self.summary(step, Message::default().bytes(1, tag.as_bytes()).message(5, histogram))
    }

    /// Writes a picture: the bytes of a PNG file, its height and width, and the number of its channels.
    #[track_caller]
    pub fn image(&mut self, tag: &str, step: u64, png: &[u8], [height, width, channels]: [usize; 3]) -> Result<()> {
        let image = Message::default().int(1, height as i64).int(2, width as i64).int(3, channels as i64).bytes(4, png);
        self.summary(step, Message::default().bytes(1, tag.as_bytes()).message(4, image))
    }

    /// Writes a text, which TensorBoard shows as Markdown.
    #[track_caller]
    pub fn text(&mut self, tag: &str, step: u64, text: &str) -> Result<()> {
        const STRING: i64 = 7;
        let shape = Message::default().message(2, Message::default().int(1, 1));
        let tensor = Message::default().int(1, STRING).message(2, shape).bytes(8, text.as_bytes());
        let plugin = Message::default().message(1, Message::default().bytes(1, b"text"));
        self.summary(step, Message::default().bytes(1, tag.as_bytes()).message(8, tensor).message(9, plugin))
    }

    /// Writes the buffered data.
    #[track_caller]
    pub fn flush(&mut self) -> Result<()> {
        let written = self.file.write_all(&self.buffer).map_err(|e| gradus_file::failed(OP, &self.path, e)).here();
        self.buffer.clear();
        written
    }

    #[track_caller]
    fn summary(&mut self, step: u64, value: Message) -> Result<()> {
        let summary = Message::default().message(1, value);
        self.record(Message::default().double(1, (self.clock)()).int(2, step as i64).message(5, summary))
    }

    #[track_caller]
    fn record(&mut self, Message(event): Message) -> Result<()> {
        let length = (event.len() as u64).to_le_bytes();
        self.buffer.extend(length);
        self.buffer.extend(masked(&length).to_le_bytes());
        self.buffer.extend(&event);
        self.buffer.extend(masked(&event).to_le_bytes());
        if self.buffer.len() >= BUFFERED { self.flush() } else { Ok(()) }
    }
}

impl Drop for TensorBoard {
    fn drop(&mut self) {
        let _ = self.flush();
    }
}

impl Logger for TensorBoard {
    #[track_caller]
    fn log(&mut self, event: Event<'_>) -> Result<()> {
        match event {
            Event::Start { .. } => self.step = 0,
            Event::Resumed { step, .. } => {
                self.step = step;
                // A session start at this step: TensorBoard discards what other files hold for this and later steps.
                let start = Message::default().int(1, 1);
                self.record(Message::default().double(1, (self.clock)()).int(2, step as i64 + 1).message(7, start))?;
            }
            Event::Step(report) => {
                self.step += 1;
                self.scalar("train/loss", self.step, report.loss)?;
                self.scalar("train/lr", self.step, report.lr)?;
                if let Some(norm) = report.grad_norm {
                    self.scalar("train/grad_norm", self.step, norm)?;
                }
            }
            Event::EpochEnd(report) => {
                let validation = report.validation;
                for (tag, value) in [
                    ("epoch/loss", Some(report.loss)),
                    ("epoch/accuracy", report.accuracy),
                    ("validation/loss", validation.map(|v| v.loss)),
                    ("validation/accuracy", validation.and_then(|v| v.accuracy)),
                ] {
                    if let Some(value) = value {
                        self.scalar(tag, self.step, value)?;
                    }
                }
                self.flush()?;
            }
            Event::End(_) => self.flush()?,
            _ => {}
        }
        Ok(())
    }
}

/// The message of a histogram, or the reason why there is none.
fn histogram(values: &[f64]) -> std::result::Result<Message, String> {
    if values.is_empty() {
        return Err("a histogram of no values".into());
    }
    if let Some(bad) = values.iter().find(|value| !value.is_finite()) {
        return Err(format!("a value is {bad}; those of a histogram are finite"));
    }
    let limits = limits();
    let mut counts = vec![0.0; limits.len()];
    for value in values {
        // The bucket of a limit holds the values below it, down to the previous limit.
        let bucket = limits.partition_point(|limit| limit <= value);
        if let Some(count) = counts.get_mut(bucket.min(limits.len() - 1)) {
            *count += 1.0;
        }
    }
    let first = counts.iter().position(|count| *count > 0.0).unwrap_or(0);
    let last = counts.iter().rposition(|count| *count > 0.0).unwrap_or(0);
    // An empty bucket before the first supplies its lower limit.
    let kept = first.saturating_sub(1)..=last;
    let (limits, counts) = (limits.get(kept.clone()).unwrap_or(&[]), counts.get(kept).unwrap_or(&[]));
    Ok(Message::default()
        .double(1, values.iter().copied().fold(f64::INFINITY, f64::min))
        .double(2, values.iter().copied().fold(f64::NEG_INFINITY, f64::max))
        .double(3, values.len() as f64)
        .double(4, values.iter().sum())
        .double(5, values.iter().map(|value| value * value).sum())
        .doubles(6, limits)
        .doubles(7, counts))
}

/// The upper limits of buckets: 0, and powers of 1.1 times 1e-12 of both signs, up to the largest number.
fn limits() -> Vec<f64> {
    let mut positive = Vec::new();
    let mut limit = 1e-12;
    while limit < 1e20 {
        positive.push(limit);
        limit *= 1.1;
    }
    positive.push(f64::MAX);
    let negative = positive.iter().rev().map(|limit| -limit);
    negative.chain([0.0]).chain(positive.iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gradus_cpu::CpuBackend;
    use gradus_tensor::Device;

    use super::*;
    use crate::{EpochReport, Evaluation, Run, StepReport};

    /// A PNG file of one grey pixel.
    const PNG: &[u8] = include_bytes!("../../tests/reference/pixel.png");

    fn tensor(values: &[f32]) -> Tensor {
        let device = Device::from_backend(Arc::new(CpuBackend::new().unwrap()));
        Tensor::from_vec(values, [values.len()], &device).unwrap()
    }

    /// `tests/reference/events.py` wrote the reference file with TensorBoard's own code, and can read it back with that
    /// code.
    #[test]
    fn the_file_has_the_bytes_that_tensorboard_writes() {
        let dir = tempfile::tempdir().unwrap();
        let mut board = TensorBoard::with_clock(dir.path(), || 1_700_000_000.5).unwrap();
        board.scalar("score", 0, 0.0).unwrap();
        board.scalar("score", 1_000_000_000_000, -1.5).unwrap();
        board.histogram("weights", 3, &tensor(&[-1.0, 0.0, 0.5, 2.0, 2.0])).unwrap();
        board.image("digit", 4, PNG, [1, 1, 1]).unwrap();
        board.text("note", 5, "an *é*").unwrap();
        let step = StepReport {
            epoch: 1,
            step: 1,
            loss: 0.25,
            mean_loss: 0.25,
            accuracy: None,
            samples: 1,
            lr: 0.5,
            grad_norm: Some(2.0),
            seconds: 0.0,
        };
        let validation = Some(Evaluation { loss: 0.75, accuracy: Some(0.5), samples: 1 });
        let epoch = EpochReport {
            epoch: 1,
            steps: 1,
            samples: 1,
            loss: 0.25,
            accuracy: Some(1.0),
            lr_factor: 1.0,
            seconds: 0.0,
            validation,
        };
        board.log(Event::Resumed { epoch: 1, step: 6, run: &Run::default(), damaged: &[] }).unwrap();
        board.log(Event::Step(&step)).unwrap();
        board.log(Event::EpochEnd(&epoch)).unwrap();
        let bytes = fs::read(board.path()).unwrap();
        let want: &[u8] = include_bytes!("../../tests/reference/golden.tfevents");
        assert!(bytes == want, "{} bytes, not {}", bytes.len(), want.len());
    }

    #[test]
    fn histograms_of_nothing_and_of_nan_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        let mut board = TensorBoard::create(dir.path()).unwrap();
        for values in [&[][..], &[1.0, f32::NAN], &[f32::INFINITY]] {
            assert!(board.histogram("w", 0, &tensor(values)).is_err(), "{values:?}");
        }
        board.histogram("w", 0, &tensor(&[f32::MAX, f32::MIN])).unwrap();
        assert_ne!(TensorBoard::create(dir.path()).unwrap().path(), board.path());
        fs::write(dir.path().join("file"), "").unwrap();
        assert!(TensorBoard::create(dir.path().join("file")).is_err());
    }
}

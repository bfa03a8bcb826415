//! Shows the progress of training on standard error: a bar in a terminal, plain lines elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use gradus::Result;
use gradus::train::{Event, Logger, StepReport};
use indicatif::{ProgressBar, ProgressStyle};

use crate::output::{complain, thousands};

/// The number of seconds between plain lines within an epoch, and the least number between the lines of two epochs.
const PLAIN_LINE_EVERY: f64 = 10.0;
const EPOCH_LINE_EVERY: f64 = 0.5;

/// Shows the loss, the accuracy, the samples per second and the remaining time.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    /// The word for a sample.
    unit: &'static str,
    epochs: usize,
    /// The number of samples in the whole run. `done` counts those that have been processed.
    samples: usize,
    done: usize,
    last_line: f64,
    /// When the last line about an epoch was printed.
    last_epoch: Option<Instant>,
}

impl Progress {
    /// Shows a bar if standard error is a terminal, and plain lines otherwise. `unit` is the word for a sample.
    pub(crate) fn new(unit: &'static str) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| ProgressBar::new(0).with_style(style()));
        Progress { bar, unit, epochs: 0, samples: 0, done: 0, last_line: 0.0, last_epoch: None }
    }

    /// The samples per second so far, and the estimated remaining time.
    fn pace(&self, seconds: f64) -> (f64, Duration) {
        let rate = self.done as f64 / seconds.max(1e-9);
        let left = self.samples.saturating_sub(self.done) as f64 / rate.max(1e-9);
        (rate, Duration::try_from_secs_f64(left).unwrap_or(Duration::MAX))
    }

    /// Whether the end of this epoch is worth a line: epochs of a small data set end many times a second.
    fn is_due(&mut self, epoch: usize) -> bool {
        let waited = self.last_epoch.is_none_or(|last| last.elapsed().as_secs_f64() >= EPOCH_LINE_EVERY);
        if waited {
            self.last_epoch = Some(Instant::now());
        }
        waited || epoch == self.epochs
    }

    fn state(&self, step: &StepReport) -> String {
        let (rate, left) = self.pace(step.seconds);
        let accuracy = step.accuracy.map(|a| format!("  accuracy {:5.2} %", a * 100.0)).unwrap_or_default();
        let (epoch, epochs, loss) = (step.epoch, self.epochs, step.mean_loss);
        let (rate, left, unit) = (thousands(rate as usize), clock(left), self.unit);
        format!("epoch {epoch}/{epochs}  loss {loss:.4}{accuracy}  {rate} {unit}/s  {left} left")
    }

    fn step(&mut self, step: &StepReport) {
        self.done += step.samples;
        let state = self.state(step);
        match &self.bar {
            Some(bar) => {
                bar.set_position(self.done as u64);
                bar.set_message(state);
            }
            None if step.seconds - self.last_line >= PLAIN_LINE_EVERY => {
                self.last_line = step.seconds;
                complain(&state);
            }
            None => {}
        }
    }
}

/// The style of the bar. The line fits in a terminal of 80 columns; a narrower terminal cuts it off.
fn style() -> ProgressStyle {
    ProgressStyle::with_template("{bar:8}  {wide_msg}").unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// Minutes and seconds, with hours if the time is an hour or longer.
fn clock(time: Duration) -> String {
    let seconds = time.as_secs_f64().round() as u64;
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 { format!("{hours}:{minutes:02}:{seconds:02}") } else { format!("{minutes}:{seconds:02}") }
}

impl Logger for Progress {
    fn log(&mut self, event: Event<'_>) -> Result<()> {
        match event {
            Event::Start { epochs, samples, .. } => {
                self.epochs = epochs;
                self.samples = epochs.saturating_mul(samples);
                if let Some(bar) = &self.bar {
                    bar.set_length(self.samples as u64);
                }
            }
            Event::Step(step) => self.step(step),
            Event::Resumed { epoch, step, run, damaged } => {
                damaged
                    .iter()
                    .for_each(|e| complain(&format!("note: a damaged state was passed over: {}", e.message())));
                complain(&format!("going on from step {step}, in epoch {epoch}"));
                self.done = run.samples;
            }
            Event::Unsaved { error } => {
                complain(&format!("note: the training goes on, but its state is not saved: {}", error.message()));
            }
            Event::EpochEnd(epoch) if self.bar.is_none() && self.is_due(epoch.epoch) => {
                let accuracy = epoch.accuracy.map(|a| format!("  accuracy {:5.2} %", a * 100.0)).unwrap_or_default();
                let validation = epoch.validation.map(|v| format!("  validation {:.4}", v.loss)).unwrap_or_default();
                let rate = epoch.samples as f64 / epoch.seconds.max(1e-9);
                let rate = thousands(rate as usize);
                let (number, of) = (epoch.epoch, self.epochs);
                let loss = epoch.loss;
                complain(&format!("epoch {number}/{of}  loss {loss:.4}{accuracy}{validation}  {rate} samples/s"));
            }
            Event::End(_) => {
                if let Some(bar) = &self.bar {
                    bar.abandon();
                }
            }
            _ => {}
        }
        Ok(())
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        // After an error the bar stays where it stopped, and the message gets its own line.
        if let Some(bar) = self.bar.take().filter(|bar| !bar.is_finished()) {
            bar.abandon();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_fits_a_terminal() {
        let (epochs, done) = (100, 123_456);
        let progress =
            Progress { bar: None, unit: "img", epochs, samples: 2 * done, done, last_line: 0.0, last_epoch: None };
        let (loss, accuracy) = (12.3456, Some(1.0));
        let (lr, grad_norm) = (0.1, None);
        let step = StepReport {
            epoch: 99,
            step: 1,
            loss,
            mean_loss: loss,
            accuracy,
            samples: 64,
            lr,
            grad_norm,
            seconds: 10.0,
        };
        let line = progress.state(&step);
        assert!("########  ".len() + line.len() <= 80, "{line}");
    }

    #[test]
    fn clocks_show_hours_when_there_are_some() {
        let shown = [0, 59, 61, 3600, 90_061].map(|s| clock(Duration::from_secs(s)));
        assert_eq!(shown, ["0:00", "0:59", "1:01", "1:00:00", "25:01:01"]);
    }
}

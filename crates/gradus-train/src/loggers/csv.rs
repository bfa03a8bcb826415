//! [`CsvLogger`]: a table of the epochs.

use std::fmt::Write;
use std::path::PathBuf;

use gradus_tensor::Result;

use super::event::{Event, Logger};
use crate::report::EpochReport;
use crate::write_file;

/// Writes a CSV file with one row for each epoch. The whole file is rewritten at the end of each epoch.
#[derive(Debug)]
pub struct CsvLogger {
    path: PathBuf,
    text: String,
}

impl CsvLogger {
    /// The columns of the file.
    pub const HEADER: &str =
        "epoch,steps,samples,loss,accuracy,lr_factor,seconds,samples_per_second,validation_loss,validation_accuracy\n";

    /// A logger that writes to `path` and replaces an existing file.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        CsvLogger { path: path.into(), text: Self::HEADER.to_owned() }
    }

    /// The contents of the file for these epochs.
    pub fn table(epochs: &[EpochReport]) -> String {
        epochs.iter().fold(Self::HEADER.to_owned(), |mut text, epoch| {
            add_row(&mut text, epoch);
            text
        })
    }
}

fn add_row(text: &mut String, e: &EpochReport) {
    let number = |n: Option<f64>| n.map(|n| format!("{n:.6}")).unwrap_or_default();
    let rate = e.samples as f64 / e.seconds.max(1e-9);
    let (loss, accuracy) = (number(Some(e.loss)), number(e.accuracy));
    let (v_loss, v_accuracy) = (number(e.validation.map(|v| v.loss)), number(e.validation.and_then(|v| v.accuracy)));
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "{},{},{},{loss},{accuracy},{:.6},{:.4},{rate:.1},{v_loss},{v_accuracy}",
        e.epoch, e.steps, e.samples, e.lr_factor, e.seconds
    );
}

impl Logger for CsvLogger {
    fn log(&mut self, event: Event<'_>) -> Result<()> {
        match event {
            Event::Resumed { run, .. } => self.text = CsvLogger::table(&run.epochs),
            Event::EpochEnd(report) => {
                add_row(&mut self.text, report);
                write_file(&self.path, self.text.as_bytes())?;
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Evaluation;

    #[test]
    fn every_row_has_the_columns_of_the_header() {
        let mut report = EpochReport {
            epoch: 1,
            steps: 2,
            samples: 64,
            loss: 0.5,
            accuracy: None,
            lr_factor: 1.0,
            seconds: 0.25,
            validation: None,
        };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.csv");
        let mut logger = CsvLogger::new(&path);
        logger.log(Event::EpochEnd(&report)).unwrap();
        report.epoch = 2;
        report.accuracy = Some(0.75);
        report.validation = Some(Evaluation { loss: 0.125, accuracy: Some(1.0), samples: 3 });
        logger.log(Event::EpochEnd(&report)).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let rows: Vec<&str> = text.lines().collect();
        assert_eq!(rows[1], "1,2,64,0.500000,,1.000000,0.2500,256.0,,");
        assert_eq!(rows[2], "2,2,64,0.500000,0.750000,1.000000,0.2500,256.0,0.125000,1.000000");
        assert!(rows.iter().all(|r| r.split(',').count() == 10));
    }
}

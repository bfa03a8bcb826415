//! Metrics for regression: mean absolute and squared errors, and the coefficient of determination.

use gradus_tensor::{Error, Here, Result, Tensor};

use super::metric::{Metric, floats, nothing};

/// Sums over the samples, for one column of the outputs.
#[derive(Debug, Clone, Default)]
struct Column {
    absolute: f64,
    squared: f64,
    /// The first target. The others are stored relative to it, so that no precision is lost if all are far from zero.
    first: f64,
    /// The mean of the targets, and the sum of the squares of their distances from it.
    mean: f64,
    spread: f64,
}

/// Sums for all columns. Outputs `[n]` have one column, and outputs `[n, ..]` have one for each element of a sample.
#[derive(Debug, Clone, Default)]
struct Columns {
    columns: Vec<Column>,
    samples: u64,
}

impl Columns {
    #[track_caller]
    fn add(&mut self, name: &str, outputs: &Tensor, targets: &Tensor) -> Result<()> {
        let wrong = |m: &str| {
            Err(Error::shape(name, m)
                .operand("outputs", outputs.shape(), outputs.dtype(), outputs.device())
                .operand("targets", targets.shape(), targets.dtype(), targets.device())
                .help("both are [n], or [n, ..] with the same axes"))
        };
        let (&[n, ..], true) = (outputs.shape(), outputs.shape() == targets.shape()) else {
            return wrong("outputs and targets have different shapes, or no axis of samples").here();
        };
        if n == 0 {
            return Ok(());
        }
        self.add_rows(name, &floats(outputs)?, &floats(targets)?, outputs.numel() / n)
    }

    /// Adds rows of `width` numbers each.
    #[track_caller]
    fn add_rows(&mut self, name: &str, outputs: &[f64], targets: &[f64], width: usize) -> Result<()> {
        if outputs.len() != targets.len() {
            let m = format!("{} outputs and {} targets", outputs.len(), targets.len());
            return Err(Error::argument(name, m).help("give one target for each output"));
        }
        if self.samples > 0 && width != self.columns.len() {
            let m = format!("a sample has {width} numbers, those before have {}", self.columns.len());
            return Err(Error::argument(name, m));
        }
        self.columns.resize(width, Column::default());
        for (outputs, targets) in outputs.chunks(width.max(1)).zip(targets.chunks(width.max(1))) {
            self.samples += 1;
            for ((column, output), target) in self.columns.iter_mut().zip(outputs).zip(targets) {
                let error = output - target;
                column.absolute += error.abs();
                column.squared += error * error;
                if self.samples == 1 {
                    column.first = *target;
                }
                // Welford's method avoids the difference of large sums.
                let target = target - column.first;
                let distance = target - column.mean;
                column.mean += distance / self.samples as f64;
                column.spread += distance * (target - column.mean);
            }
        }
        Ok(())
    }

    /// The mean of a number over the columns.
    #[track_caller]
    fn mean(&self, name: &str, f: impl Fn(&Column, f64) -> f64) -> Result<f64> {
        if self.samples == 0 || self.columns.is_empty() {
            return Err(nothing(name));
        }
        let sum: f64 = self.columns.iter().map(|column| f(column, self.samples as f64)).sum();
        Ok(sum / self.columns.len() as f64)
    }
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Absolute,
    Squared,
    RootSquared,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Absolute => "mae",
            Kind::Squared => "mse",
            Kind::RootSquared => "rmse",
        }
    }
}

/// The mean absolute error, the mean squared error, or its square root. Outputs and targets are `[n]`, or `[n, ..]`
/// with the same axes; in the latter case, the value is the mean over the elements of a sample, as in scikit-learn.
#[derive(Debug, Clone)]
pub struct RegressionError {
    kind: Kind,
    columns: Columns,
}

impl RegressionError {
    /// The mean absolute error, as `sklearn.metrics.mean_absolute_error`.
    pub fn mae() -> Self {
        RegressionError { kind: Kind::Absolute, columns: Columns::default() }
    }

    /// The mean squared error, as `sklearn.metrics.mean_squared_error`.
    pub fn mse() -> Self {
        RegressionError { kind: Kind::Squared, columns: Columns::default() }
    }

    /// The square root of the mean squared error, as `sklearn.metrics.root_mean_squared_error`.
    pub fn rmse() -> Self {
        RegressionError { kind: Kind::RootSquared, columns: Columns::default() }
    }

    /// Adds samples of one number each, in f64. Errors unless there is one target for each output.
    #[track_caller]
    pub fn update_numbers(&mut self, outputs: &[f64], targets: &[f64]) -> Result<()> {
        let name = self.kind.name();
        self.columns.add_rows(name, outputs, targets, 1)
    }
}

impl Metric for RegressionError {
    fn name(&self) -> &str {
        self.kind.name()
    }

    #[track_caller]
    fn update(&mut self, outputs: &Tensor, targets: &Tensor) -> Result<()> {
        self.columns.add(self.kind.name(), outputs, targets)
    }

    #[track_caller]
    fn value(&self) -> Result<f64> {
        self.columns.mean(self.name(), |column, n| match self.kind {
            Kind::Absolute => column.absolute / n,
            Kind::Squared => column.squared / n,
            Kind::RootSquared => (column.squared / n).sqrt(),
        })
    }

    fn reset(&mut self) {
        self.columns = Columns::default();
    }
}

/// The coefficient of determination: 1 minus the sum of the squared errors divided by the sum of the squared distances
/// of the targets from their mean. Outputs and targets are those of [`RegressionError`]. As `sklearn.metrics.r2_score`:
/// if all targets are equal, it is 1 for outputs without errors, and 0 for others.
///
/// `value` is an error for fewer than 2 samples.
#[derive(Debug, Clone, Default)]
pub struct R2(Columns);

impl R2 {
    /// Adds samples of one number each, in f64. Errors unless there is one target for each output.
    #[track_caller]
    pub fn update_numbers(&mut self, outputs: &[f64], targets: &[f64]) -> Result<()> {
        self.0.add_rows("r2", outputs, targets, 1)
    }
}

impl Metric for R2 {
    fn name(&self) -> &str {
        "r2"
    }

    #[track_caller]
    fn update(&mut self, outputs: &Tensor, targets: &Tensor) -> Result<()> {
        self.0.add("r2", outputs, targets)
    }

    #[track_caller]
    fn value(&self) -> Result<f64> {
        if self.0.samples == 1 {
            return Err(Error::argument("r2", "it is not defined for a single sample").help("give at least 2"));
        }
        self.0.mean("r2", |column, _| match (column.squared, column.spread) {
            (errors, 0.0) => f64::from(u8::from(errors == 0.0)),
            (errors, spread) => 1.0 - errors / spread,
        })
    }

    fn reset(&mut self) {
        self.0 = Columns::default();
    }
}

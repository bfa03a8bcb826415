//! Metrics: numbers that measure how good the outputs of a model are. They agree with scikit-learn, even for ties; the
//! tests compare the two.

mod calibration;
mod classes;
mod confusion;
mod metric;
mod ranking;
mod regression;

pub use calibration::{CalibrationError, Perplexity};
pub use classes::{Accuracy, Average, ClassScore, TopK};
pub use confusion::ConfusionMatrix;
pub(crate) use metric::floats;
pub use metric::{Metric, measure};
pub use ranking::{AveragePrecision, RocAuc};
pub use regression::{R2, RegressionError};

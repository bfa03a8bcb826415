//! The report page of a run: one self-contained HTML file.

mod chart;
mod curves;
mod matrix;
mod page;
mod report;
mod text;

pub use chart::{Chart, Curve, Unit};
pub use curves::StepCurves;
pub use report::{Example, Examples, RunReport};

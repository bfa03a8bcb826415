//! Trainer, checkpoints, metrics, loggers, the report page and run folders.
//!
//! Part of [Gradus](https://docs.rs/gradus). Depend on the crate `gradus`: only its API is kept stable between
//! releases.
//!
//! A [`Trainer`] runs epochs of a [`DataLoader`](gradus_data::DataLoader) through a model and an optimiser. A [`Task`]
//! computes the loss, [`Logger`]s receive the events of the run, and a flag can end the run between two steps. A run
//! that was killed resumes from its [`Checkpoints`] with the same bits. A [`Metric`] measures how good a model is, and
//! a [`RunReport`] shows a run on a page.
//!
//! ```
//! # use gradus_cpu::CpuBackend; use std::sync::Arc;
//! # use gradus_tensor::{Device, DType, Error, Generator, Tensor};
//! # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
//! use gradus_data::{DataLoader, TensorDataset};
//! use gradus_nn::{AdamConfig, AdamW, Init, Linear, Module};
//! use gradus_train::{Classification, Trainer, evaluate};
//!
//! // Points in the plane; the label says whether the first coordinate is greater than the second.
//! let mut generator = Generator::new(1);
//! let x = Tensor::randn([256, 2], DType::F32, &device, &mut generator)?;
//! let y = x.select(1, 0)?.gt(&x.select(1, 1)?)?.to_dtype(DType::I64)?;
//! let loader = DataLoader::new(TensorDataset::new(x, y)?, &device).batch_size(32).shuffle(1).build()?;
//!
//! let mut model = Linear::new(2, 2, &mut Init::new(DType::F32, &device, &mut generator))?;
//! let mut optimizer = AdamW::new(model.named_parameters(), AdamConfig { lr: 0.1, ..Default::default() })?;
//! let task = Classification::default();
//! let run = Trainer::new(5)?.fit(&mut model, &mut optimizer, &loader, None, &task, &mut [])?;
//! assert_eq!(run.epochs.len(), 5);
//! assert!(evaluate(&mut model, &loader, &task)?.accuracy > Some(0.95));
//! # Ok::<(), Error>(())
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod checkpoint;
mod claim;
mod history;
mod loggers;
mod metrics;
mod ranks;
mod report;
mod run_folder;
mod run_report;
mod staged;
mod task;
mod trainer;
mod write;

pub use checkpoint::{Checkpoint, Checkpoints};
pub use gradus_file::{Disk, DiskFile, Os};
pub use history::History;
pub use loggers::{CsvLogger, Event, JsonlLogger, Logger, TensorBoard};
pub use metrics::{
    Accuracy, Average, AveragePrecision, CalibrationError, ClassScore, ConfusionMatrix, Metric, Perplexity, R2,
    RegressionError, RocAuc, TopK, measure,
};
pub use ranks::{Backward, Pass, Piece, Ranks};
pub use report::{EpochReport, Run, StepReport};
pub use run_folder::RunFolder;
pub use run_report::{Chart, Curve, Example, Examples, RunReport, StepCurves, Unit};
pub use staged::{StagedFiles, rescue};
pub use task::{Classification, Evaluation, Outcome, Task, Validation, evaluate};
pub use trainer::{EarlyStopping, LrFinder, LrPoint, LrRange, Monitor, OnNonFinite, Trainer};
pub use write::{check_file, write_file};

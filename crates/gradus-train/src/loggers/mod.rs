//! Loggers: they receive the events of a run and write them to files.

mod crc32c;
mod csv;
mod event;
mod jsonl;
mod protobuf;
mod tensorboard;

pub use csv::CsvLogger;
pub use event::{Event, Logger};
pub use jsonl::JsonlLogger;
pub use tensorboard::TensorBoard;

//! The functions of the driver's C interface.

mod context;
mod event;
mod graph;
mod memory;
mod module;
mod probe;
mod stream;

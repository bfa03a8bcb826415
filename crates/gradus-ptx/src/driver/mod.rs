//! A library that stands in for the CUDA driver: a program that loads it instead of `libcuda.so` has one device, whose
//! kernels the interpreter of this crate runs.
//!
//! It has the functions that `cudarc` calls for contexts, memory, streams, events, modules, launches and graphs; what is
//! not there is missing as a symbol. Work is done when it is given, in the order of its stream, or with
//! `GRADUS_PTX_LATE=1` as late as the order of streams permits: when somebody waits for it. Either way the fault
//! of a kernel is reported once on standard error. The next call that waits returns it, and so does every later call that
//! needs the context, as with a real driver.
//!
//! It also stands in for cuBLASLt and for NCCL, as far as the CUDA backend calls those: see `blas` and `nccl`.
//!
//! `settings.rs` lists the environment variables, `inject.rs` says how calls are made to fail, and `api/probe.rs` has the
//! functions for tests that no real driver has.

mod abi;
mod api;
mod blas;
mod call;
mod counts;
mod inject;
mod kernel;
mod machine;
mod nccl;
mod settings;
mod state;
mod work;

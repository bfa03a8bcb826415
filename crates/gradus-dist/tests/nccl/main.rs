//! NCCL between several GPUs, over the library of `gradus-ptx`, which stands in for the driver and for NCCL: its devices are
//! memory of the host, its ranks are threads, and its functions fail on request.
#![cfg(unix)]
#![allow(clippy::unwrap_used)]

mod collectives;
mod stand_in;
mod training;
mod trouble;

//! Runs PTX, the assembly language of NVIDIA's GPUs, on the processor, with checks that a GPU does not make. It is for
//! tests: the CUDA backend is proved with it on machines without a GPU.
//!
//! A [`Module`] is parsed once. [`run`] executes one kernel of it over a [`Memory`], the address space of a device. Blocks
//! are spread over threads of the host. A warp executes one instruction for all its lanes that are at the lowest place in
//! the code, so barriers, shuffles, votes and matrix instructions have their real meaning.
//!
//! Every access is checked against the live allocations and its alignment. It is a [`Fault`] to read a byte that was never
//! written, to reach a barrier or a shuffle without the lanes that must take part, to race with another thread, or to run
//! longer than [`Limits::steps`].
#![deny(unsafe_code)]

mod code;
#[allow(unsafe_code)]
mod driver;
mod exec;
mod fault;
mod launch;
mod lower;
mod memory;
mod module;
mod num;
mod parse;
mod run;
mod variable;

pub use fault::{Fault, FaultKind, SourceLine};
pub use launch::{Launch, Limits, Stats};
pub use memory::{Memory, MemoryError};
pub use module::{Kernel, Module};
pub use parse::ParseError;
pub use run::run;
pub use variable::{Param, Space, Variable};

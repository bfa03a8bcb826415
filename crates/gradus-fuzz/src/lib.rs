//! Gradus tried from outside: damaged files of everything that it reads.
//!
//! `cargo xtask deep` runs the programs in `src/bin`. A program works in child processes under a memory limit, with an
//! allocator that counts and refuses ([`limited`]), watched by their parent ([`watch`]): a panic, an abort, a hang and memory
//! beyond the budget are failures, each with the line that repeats it.

pub mod files;
pub mod limited;
pub mod watch;

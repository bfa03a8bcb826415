//! Gradus tried from outside: random calls of everything public, with ordinary, extreme and absurd arguments, and damaged files
//! of everything that it reads.
//!
//! `cargo xtask deep` runs the programs in `src/bin`. A program works in child processes under a memory limit, with an
//! allocator that counts and refuses ([`limited`]), watched by their parent ([`search`]): a panic, an abort, a hang and memory
//! beyond the budget are failures, each with the line that repeats it.

pub mod calls;
pub mod files;
pub mod limited;
pub mod panics;
pub mod random;
pub mod search;
pub mod words;

//! Fuzzing of Gradus through its public API: random calls with ordinary, extreme and absurd arguments, and damaged
//! files in every format that it reads.
//!
//! `cargo xtask deep` runs the programs in `src/bin`. Each runs its tries in child processes ([`search`]) under a
//! memory limit, with an allocator that counts and can refuse ([`limited`]). A panic, an abort, a hang, and memory
//! beyond the budget are failures. Each failure is printed with the command line that repeats it.

pub mod calls;
pub mod files;
pub mod limited;
pub mod panics;
pub mod random;
pub mod search;
pub mod words;

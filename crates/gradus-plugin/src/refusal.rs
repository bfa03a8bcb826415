//! [`Refusal`]: why a library was refused.

use std::fmt;

use gradus_backend::plugin::SYMBOL;
use gradus_tensor::Error;

/// The reason why a library was refused. In every case, no function of its table was called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The file is not a library that this machine can load.
    NotALibrary,
    /// The file ends before the contents that its headers describe.
    Truncated {
        /// Length of the file, in bytes.
        found: u64,
        /// Length that its headers require, in bytes.
        needed: u64,
    },
    /// The library exports no table.
    NoTable,
    /// The library exports the symbol, but it is not a table.
    WrongMagic,
    /// The two sides were built from different versions of the contract.
    WrongFingerprint {
        /// The fingerprint of the library.
        found: u64,
        /// The fingerprint of this program.
        expected: u64,
    },
    /// The table has a different size.
    WrongSize {
        /// Size of the library's table, in bytes.
        found: u64,
        /// Size of this program's table, in bytes.
        expected: u64,
    },
}

impl Refusal {
    /// The refusal behind an error of [`load`](crate::load), if there is one.
    pub fn of(error: &Error) -> Option<Refusal> {
        std::error::Error::source(error)?.downcast_ref().copied()
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::NotALibrary => write!(f, "it is no library that this machine can load"),
            Refusal::Truncated { found, needed } => {
                write!(f, "it is truncated: it has {found} bytes, and its headers name {needed}")
            }
            Refusal::NoTable => write!(f, "it exports no {}", SYMBOL),
            Refusal::WrongMagic => write!(f, "what it exports as {} is no table", SYMBOL),
            Refusal::WrongFingerprint { found, expected } => {
                write!(f, "it was built from another version of the contract: {found:016x}, not {expected:016x}")
            }
            Refusal::WrongSize { found, expected } => write!(f, "its table has {found} bytes, not {expected}"),
        }
    }
}

impl std::error::Error for Refusal {}

//! Backends in libraries that a running program loads: [`load`], and [`LoadPlugin`] for `Device::load_plugin(path)`.
//!
//! A part of [Gradus](https://docs.rs/gradus): depend on the crate `gradus`, which is what keeps its promises between releases.
//!
//! The other side of this, and what crosses the border, is [`gradus_backend::plugin`]. Before anything of a library is called,
//! the header of its table is compared with the one of this program; a library without a table, or with another, is refused
//! with a [`Refusal`]; so is an ELF file that is shorter than its headers say. A library that was accepted stays loaded until the process ends, so that no buffer, and no thread that
//! the plug-in may have started, outlives its code.

mod elf;
mod proxy;

use std::fmt;
use std::path::Path;

use gradus_tensor::{Device, Error, Result};

pub use proxy::load;

/// Opens devices of plug-ins.
pub trait LoadPlugin: Sized {
    /// The device of the backend in the library at `path`. Every call opens another.
    ///
    /// # Safety
    /// Loading a library runs code in it, and so does each operation on the device: whoever calls this vouches for the
    /// library, as for a dependency. Of any file: if it is a library, running its initialisers is sound, and if it exports
    /// `GRADUS_PLUGIN`, there are as many bytes to read as a [`Header`](gradus_backend::plugin::Header) has. If these are the
    /// header of this program, then [`export_plugin!`](gradus_backend::export_plugin) made it from a sound backend. The file
    /// does not change while it is loaded. Comparing headers guards against mistakes, not against malice.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](gradus_tensor::ErrorKind::Io) if there is no such file;
    /// [`ErrorKind::Format`](gradus_tensor::ErrorKind::Format), with a [`Refusal`], if it is no plug-in of this version; those
    /// of the backend.
    unsafe fn load_plugin(path: impl AsRef<Path>) -> Result<Self>;
}

impl LoadPlugin for Device {
    unsafe fn load_plugin(path: impl AsRef<Path>) -> Result<Device> {
        // SAFETY: the caller keeps the same promise.
        Ok(Device::from_backend(unsafe { load(path.as_ref()) }?))
    }
}

/// Why a library was not taken. No function of its table was called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The file is no library that this machine can load.
    NotALibrary,
    /// The file ends before what its headers name.
    Truncated {
        /// Bytes of the file.
        found: u64,
        /// Bytes that its headers ask for.
        needed: u64,
    },
    /// The library exports no table.
    NoTable,
    /// What it exports under that name is none.
    WrongMagic,
    /// The two sides were built from different versions of the contract.
    WrongFingerprint {
        /// That of the library.
        found: u64,
        /// That of this program.
        expected: u64,
    },
    /// The table has another size.
    WrongSize {
        /// Bytes of the library's.
        found: u64,
        /// Bytes of this program's.
        expected: u64,
    },
}

impl Refusal {
    /// The refusal that an error of [`load`] is about.
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
            Refusal::NoTable => write!(f, "it exports no {}", gradus_backend::plugin::SYMBOL),
            Refusal::WrongMagic => write!(f, "what it exports as {} is no table", gradus_backend::plugin::SYMBOL),
            Refusal::WrongFingerprint { found, expected } => {
                write!(f, "it was built from another version of the contract: {found:016x}, not {expected:016x}")
            }
            Refusal::WrongSize { found, expected } => write!(f, "its table has {found} bytes, not {expected}"),
        }
    }
}

impl std::error::Error for Refusal {}

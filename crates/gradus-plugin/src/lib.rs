//! Backends in libraries that a program loads at run time: [`load`], and [`LoadPlugin`] for
//! `Device::load_plugin(path)`.
//!
//! This crate is part of [Gradus](https://docs.rs/gradus). Depend on the crate `gradus` instead: only its API is kept
//! stable between releases.
//!
//! [`gradus_backend::plugin`] is the plug-in's side, and defines the types that cross the boundary. Before any function
//! of a library is called, the header of its table is compared with that of this program. A library without a table, or
//! with a different one, is refused with a [`Refusal`]; so is an ELF file that is shorter than its headers require. An
//! accepted library stays loaded until the process ends, so that no buffer, and no thread that the plug-in may have
//! started, outlives its code.

mod elf;
mod proxy;
mod refusal;

use std::path::Path;

use gradus_tensor::{Device, Result};

pub use proxy::load;
pub use refusal::Refusal;

/// Opens devices from plug-ins.
pub trait LoadPlugin: Sized {
    /// Opens the backend in the library at `path` as a device. Every call opens a new one.
    ///
    /// # Safety
    /// Loading a library runs code in it, and so does each operation on the device. The caller vouches for the library,
    /// as for a dependency:
    /// * If the file is a library, running its initialisers must be sound.
    /// * If it exports `GRADUS_PLUGIN`, that address must be readable for the size of a
    ///   [`Header`](gradus_backend::plugin::Header).
    /// * If the bytes there equal the header of this program, [`export_plugin!`](gradus_backend::export_plugin) must
    ///   have made the table from a sound backend.
    /// * The file must not change while it is being loaded.
    ///
    /// Comparing headers guards against mistakes, not against malice.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Io`](gradus_tensor::ErrorKind::Io) if there is no such file,
    /// [`ErrorKind::Format`](gradus_tensor::ErrorKind::Format) with a [`Refusal`] if it is not a plug-in of this
    /// version, and otherwise any error of the backend.
    #[track_caller]
    unsafe fn load_plugin(path: impl AsRef<Path>) -> Result<Self>;
}

impl LoadPlugin for Device {
    #[track_caller]
    unsafe fn load_plugin(path: impl AsRef<Path>) -> Result<Device> {
        // SAFETY: the caller guarantees the same conditions.
        Ok(Device::from_backend(unsafe { load(path.as_ref()) }?))
    }
}

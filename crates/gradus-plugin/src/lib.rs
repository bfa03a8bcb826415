//! Backends in libraries that a running program loads: [`load`], and [`LoadPlugin`] for `Device::load_plugin(path)`.
//!
//! A part of [Gradus](https://docs.rs/gradus): depend on the crate `gradus`, which is what keeps its promises between releases.
//!
//! [`gradus_backend::plugin`] is the other side, and defines the types that cross the border. Before any function of a
//! library is called, the header of its table is compared with that of this program. A library without a table, or with a
//! different one, is refused with a [`Refusal`]; so is an ELF file that is shorter than its headers say. A library that was
//! accepted stays loaded until the process ends, so that no buffer, and no thread that the plug-in may have started,
//! outlives its code.

mod elf;
mod proxy;
mod refusal;

use std::path::Path;

use gradus_tensor::{Device, Result};

pub use proxy::load;
pub use refusal::Refusal;

/// Opens devices of plug-ins.
pub trait LoadPlugin: Sized {
    /// Opens the backend in the library at `path` as a device. Every call opens a new one.
    ///
    /// # Safety
    /// Loading a library runs code in it, and so does each operation on the device: the caller vouches for the library, as
    /// for a dependency. If the file is a library, running its initialisers must be sound. If it exports `GRADUS_PLUGIN`, as
    /// many bytes as a [`Header`](gradus_backend::plugin::Header) has must be readable there. If these bytes equal the
    /// header of this program, [`export_plugin!`](gradus_backend::export_plugin) must have made the table from a sound
    /// backend. The file must not change while it is loaded. Comparing headers guards against mistakes, not against malice.
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

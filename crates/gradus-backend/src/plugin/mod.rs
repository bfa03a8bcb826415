//! Backends in libraries that a running program loads.
//!
//! A backend crate becomes a plug-in by a crate of the type `cdylib` with one line, [`export_plugin!`](crate::export_plugin).
//! What crosses the border is plain data (`repr(C)`) and functions with the C calling convention: a [`Table`] of the
//! required primitives. No Rust object does, no allocation changes hands, errors are copied, and a panic of the plug-in
//! becomes an error, unless it was built with `panic = "abort"`, which ends the process. So plug-in and program may be built by different compilers; the composites are the default bodies,
//! which run on the side of the program.
//!
//! The table begins with a [`Header`], which is read before anything is called. Its fingerprint is a hash, made when each
//! side is compiled, of the layout of the table and of all types that cross, of the lists of dtypes and instructions and of
//! the version of the contract: two sides with the same fingerprint understand each other.

mod convert;
mod export;
mod fingerprint;
mod hash;
mod table;

pub use convert::*;
pub use export::{create, table};
pub use fingerprint::{CONTRACT_VERSION, FINGERPRINT};
pub use table::*;

/// Makes a crate of the type `cdylib` a plug-in: exports the [`Table`](crate::plugin::Table) of a backend, under the name
/// [`SYMBOL`](crate::plugin::SYMBOL). The argument is a function that opens the backend, `Fn() -> Result<impl Backend>`.
///
/// ```ignore
/// gradus_backend::export_plugin!(tiny_backend::TinyBackend::new);
/// ```
#[macro_export]
macro_rules! export_plugin {
    ($open:expr) => {
        // SAFETY: the name is that of no other symbol of a library that is a plug-in, and its type is the one that the
        // loader expects behind it.
        #[unsafe(no_mangle)]
        #[doc(hidden)]
        pub static GRADUS_PLUGIN: $crate::plugin::Table = {
            /// # Safety
            /// That of [`create`](gradus_backend::plugin::create).
            unsafe extern "C" fn create(
                backend: *mut $crate::plugin::Handle,
                error: *mut $crate::plugin::RawError,
            ) -> u32 {
                // SAFETY: the caller keeps the same promise.
                unsafe { $crate::plugin::create(backend, error, $open) }
            }
            $crate::plugin::table(create)
        };
    };
}

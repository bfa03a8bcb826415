//! Backends in libraries that a running program loads.
//!
//! A backend crate becomes a plug-in by a second crate, a `cdylib` with the one line
//! [`export_plugin!`](crate::export_plugin). Only plain data (`repr(C)`) and functions with the C calling convention cross
//! the border: a [`Table`] of the required primitives. Rust objects do not cross it, and neither side frees memory of the
//! other; errors are copied. A panic in the plug-in becomes an error, unless the plug-in was built with `panic = "abort"`:
//! then it ends the process. So plug-in and program may be built by different compilers. Composites run their default
//! bodies, on the side of the program.
//!
//! The table begins with a [`Header`], which is read before any function is called. Its fingerprint is a hash that each side
//! computes when it is compiled: of the layout of the table and of all types that cross, of the lists of dtypes and
//! instructions, and of the version of the contract. Two sides with the same fingerprint understand each other.

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

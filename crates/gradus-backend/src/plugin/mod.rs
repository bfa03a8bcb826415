//! Backends in libraries that a program loads at run time.
//!
//! A backend crate becomes a plug-in through a second crate, a `cdylib` with the single line
//! [`export_plugin!`](crate::export_plugin). Only plain data (`repr(C)`) and functions with the C calling convention
//! cross the boundary, in a [`Table`] of the required primitives. Rust objects do not cross it, neither side frees
//! memory of the other, and errors are copied. Plug-in and program may therefore be built by different compilers.
//!
//! A panic in the plug-in becomes an error, unless the plug-in was built with `panic = "abort"`; then it ends the
//! process. Composites run their default bodies on the program's side.
//!
//! The table begins with a [`Header`], which is read before any function is called. It contains a fingerprint, a hash
//! that each side computes at compile time. The fingerprint covers the layout of the table and of all types that cross
//! the boundary, the lists of dtypes and instructions, and the version of the contract. Two sides with the same
//! fingerprint understand each other.

mod convert;
mod export;
mod fingerprint;
mod hash;
mod table;

pub use convert::*;
pub use export::{create, table};
pub use fingerprint::{CONTRACT_VERSION, FINGERPRINT};
pub use table::*;

/// Turns a crate of type `cdylib` into a plug-in by exporting the [`Table`](crate::plugin::Table) of a backend under
/// the name [`SYMBOL`](crate::plugin::SYMBOL). The argument is a function that opens the backend,
/// `Fn() -> Result<impl Backend>`.
///
/// ```ignore
/// gradus_backend::export_plugin!(tiny_backend::TinyBackend::new);
/// ```
#[macro_export]
macro_rules! export_plugin {
    ($open:expr) => {
        // SAFETY: no other symbol of a plug-in library has this name, and the loader expects a static of this type
        // under it.
        #[unsafe(no_mangle)]
        #[doc(hidden)]
        pub static GRADUS_PLUGIN: $crate::plugin::Table = {
            /// # Safety
            /// The conditions of [`create`](gradus_backend::plugin::create).
            unsafe extern "C" fn create(
                backend: *mut $crate::plugin::Handle,
                error: *mut $crate::plugin::RawError,
            ) -> u32 {
                // SAFETY: the caller guarantees the same conditions.
                unsafe { $crate::plugin::create(backend, error, $open) }
            }
            $crate::plugin::table(create)
        };
    };
}

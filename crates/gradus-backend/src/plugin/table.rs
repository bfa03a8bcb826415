//! The types that cross the plug-in boundary, all of them plain data, and a hash of their layout.

use std::ffi::c_void;
use std::mem::offset_of;

use super::hash::{number, text};
use crate::MAX_RANK;

/// The symbol name of the [`Table`] in a library.
pub const SYMBOL: &str = "GRADUS_PLUGIN";

/// The first bytes of a [`Table`].
pub const MAGIC: [u8; 8] = *b"\x7fGRADUS\n";

/// A pointer to an object of the plug-in: a backend or a buffer.
pub type Handle = *mut c_void;

/// Defines plain types and a hash of their layouts.
macro_rules! plain {
    ($hash:ident: $($(#[doc = $doc:literal])* $name:ident { $($field:ident: $type:ty,)* })*) => {
        $(
            $(#[doc = $doc])*
            #[derive(Debug, Clone, Copy)]
            #[repr(C)]
            #[allow(missing_docs)]
            pub struct $name {
                $(pub $field: $type,)*
            }
        )*

        pub(super) const fn $hash(mut hash: u64) -> u64 {
            $(
                hash = number(text(hash, stringify!($name)), size_of::<$name>());
                $(hash = number(text(text(hash, stringify!($field)), stringify!($type)), offset_of!($name, $field));)*
            )*
            hash
        }
    };
}

plain! { types:
    /// The beginning of a [`Table`].
    Header { magic: [u8; 8], fingerprint: u64, size: u64, }
    /// A UTF-8 text of `len` bytes, at most 1,024.
    Text { len: u32, bytes: [u8; 1024], }
    /// An [`Error`](crate::Error): its kind, and the rendered message without the name of the operation.
    RawError { kind: u32, numbers: [i64; 3], op: Text, message: Text, }
    /// A [`BackendInfo`](crate::BackendInfo). Bit `i` of `dtypes` is set if the backend supports `DType::ALL[i]`;
    /// `features` holds one feature per line.
    RawInfo { kind: u32, dtypes: u32, has_memory: u32, memory: u64, name: Text, hardware: Text, features: Text, }
    /// A [`MemoryStats`](crate::MemoryStats).
    RawStats { in_use: usize, peak: usize, cached: usize, buffers: usize, system_allocations: u64, }
    /// The bits of a [`Scalar`](crate::Scalar).
    RawScalar { kind: u32, bits: u64, }
    /// A [`View`](crate::View).
    RawView { buffer: Handle, dtype: u32, rank: u32, dims: [usize; MAX_RANK], strides: [isize; MAX_RANK], offset: usize, }
    /// A [`MapArg`](crate::MapArg): `form` is 0 for a view, 1 for the output number `output` and 2 for a scalar.
    RawArg { form: u32, output: usize, scalar: RawScalar, view: RawView, }
    /// One instruction. `op` is 0 for an argument, whose number is in `value`, and 1 for a constant, which is in
    /// `value`; for any other instruction it is 2 plus the index in `ScalarOp::ALL`.
    RawInst { op: u16, dtype: u16, operands: [u16; 3], value: RawScalar, }
    /// An output of a kernel.
    RawOutput { value: u16, dtype: u16, }
    /// A kernel, lent for the duration of a call.
    RawKernel {
        name: *const u8, name_len: usize,
        args: *const u16, args_len: usize,
        insts: *const RawInst, insts_len: usize,
        outputs: *const RawOutput, outputs_len: usize,
    }
    /// A [`Window`](crate::Window).
    RawWindow {
        rank: usize, kernel: [usize; 3], stride: [usize; 3], dilation: [usize; 3],
        pad_before: [usize; 3], pad_after: [usize; 3],
    }
    /// A [`Distribution`](crate::Distribution): `form` is 0 for uniform, 1 for normal, 2 for Bernoulli and 3 for
    /// integers; `a` and `b` are the bits of its parameters.
    RawDistribution { form: u32, a: u64, b: u64, }
}

/// Defines the table and a hash of its layout.
macro_rules! functions {
    ($($(#[doc = $doc:literal])* $name:ident($($arg:ty),*);)*) => {
        /// The functions of a plug-in. Where a function's documentation only lists its arguments, they follow the
        /// handle of the backend. The last argument of every function points to memory for an error. A function returns
        /// 0 if it succeeds, and 1 if it has written an error there.
        ///
        /// Pointers are valid only during the call. A view that is written is passed as a pointer to its description,
        /// and no other operand of the call uses its buffer. Calls may come from any thread, several at a time.
        #[derive(Debug, Clone, Copy)]
        #[repr(C)]
        pub struct Table {
            /// The header, which is read before any function is called.
            pub header: Header,
            $($(#[doc = $doc])* pub $name: unsafe extern "C" fn($($arg,)* *mut RawError) -> u32,)*
        }

        pub(super) const fn calls(mut hash: u64) -> u64 {
            $(hash = number(text(text(hash, stringify!($name)), stringify!($($arg),*)), offset_of!(Table, $name));)*
            number(hash, size_of::<Table>())
        }
    };
}

functions! {
    /// Opens the backend.
    create(*mut Handle);
    /// Closes the backend, which must have no buffers left.
    destroy(Handle);
    /// Writes the backend's description of itself.
    info(Handle, *mut RawInfo);
    /// Size in bytes, destination of the buffer's handle.
    alloc(Handle, usize, *mut Handle);
    /// Frees a buffer.
    free(Handle);
    /// Buffer, offset in the buffer, source of the bytes, number of bytes.
    upload(Handle, Handle, usize, *const u8, usize);
    /// Buffer, offset in the buffer, destination of the bytes, number of bytes.
    download(Handle, Handle, usize, *mut u8, usize);
    /// Source, offset in the source, destination, offset in the destination, number of bytes.
    copy_buffer(Handle, Handle, usize, Handle, usize, usize);
    /// Output, value.
    fill(Handle, *const RawView, RawScalar);
    /// Waits until all earlier calls have finished.
    synchronize(Handle);
    /// Writes the memory counters.
    memory_stats(Handle, *mut RawStats);
    /// Whether there is a budget, and its size.
    set_memory_budget(Handle, u32, usize);
    /// Returns cached memory to the system.
    trim(Handle);
    /// Kernel, arguments and their number, outputs and their number.
    map(Handle, *const RawKernel, *const RawArg, usize, *const RawView, usize);
    /// Operation, input, axes as bits, output.
    reduce(Handle, u32, *const RawView, u32, *const RawView);
    /// Operation, input, axis, output.
    arg_reduce(Handle, u32, *const RawView, usize, *const RawView);
    /// Operation, input, axis, output.
    scan(Handle, u32, *const RawView, usize, *const RawView);
    /// Alpha, a, b, beta, c.
    gemm(Handle, RawScalar, *const RawView, *const RawView, RawScalar, *const RawView);
    /// Window, input, padding, output.
    unfold(Handle, *const RawWindow, *const RawView, RawScalar, *const RawView);
    /// Window, input, output.
    fold(Handle, *const RawWindow, *const RawView, *const RawView);
    /// Input, axis, index, output.
    gather(Handle, *const RawView, usize, *const RawView, *const RawView);
    /// Operation, axis, index, source, output.
    scatter(Handle, u32, usize, *const RawView, *const RawView, *const RawView);
    /// Input, axis, whether descending, values, indices.
    sort(Handle, *const RawView, usize, u32, *const RawView, *const RawView);
    /// Distribution, seed, offset, output.
    random(Handle, RawDistribution, u64, u64, *const RawView);
    /// Input, output.
    copy_strided(Handle, *const RawView, *const RawView);
}

#[cfg(test)]
#[allow(unreachable_pub)] // for the items that the macros generate
mod tests {
    #[test]
    fn the_fingerprint_tells_layouts_apart() {
        macro_rules! toys {
            ($($module:ident { $($field:ident: $type:ty),* })*) => {{
                $(mod $module {
                    use super::super::*;
                    plain! { hash:
                        /// A toy.
                        Toy { $($field: $type,)* }
                    }
                    pub fn of() -> u64 {
                        hash(1)
                    }
                })*
                [$($module::of()),*]
            }};
        }
        let hashes = toys! {
            first { a: u32, b: u32 }
            swapped { b: u32, a: u32 }
            typed { a: u32, b: i32 }
            wider { a: u32, b: u64 }
            renamed { a: u32, c: u32 }
            longer { a: u32, b: u32, c: u32 }
        };
        for (i, a) in hashes.iter().enumerate() {
            assert!(hashes[i + 1..].iter().all(|b| a != b), "{i}");
        }
    }
}

//! The types of the driver's C interface: codes, handles, and pointers that a caller passes.

use std::ffi::{CStr, c_char};

/// What a function of the driver returns: 0, or why it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct Code(pub(super) u32);

pub(super) const SUCCESS: Code = Code(0);
pub(super) const INVALID_VALUE: Code = Code(1);
pub(super) const OUT_OF_MEMORY: Code = Code(2);
pub(super) const NOT_INITIALIZED: Code = Code(3);
pub(super) const NO_DEVICE: Code = Code(100);
pub(super) const INVALID_DEVICE: Code = Code(101);
pub(super) const INVALID_IMAGE: Code = Code(200);
pub(super) const INVALID_CONTEXT: Code = Code(201);
pub(super) const NO_BINARY_FOR_GPU: Code = Code(209);
pub(super) const INVALID_PTX: Code = Code(218);
pub(super) const INVALID_HANDLE: Code = Code(400);
pub(super) const NOT_FOUND: Code = Code(500);
pub(super) const NOT_READY: Code = Code(600);
pub(super) const ILLEGAL_ADDRESS: Code = Code(700);
pub(super) const LAUNCH_OUT_OF_RESOURCES: Code = Code(701);
pub(super) const LAUNCH_TIMEOUT: Code = Code(702);
pub(super) const ASSERT: Code = Code(710);
pub(super) const ILLEGAL_INSTRUCTION: Code = Code(715);
pub(super) const MISALIGNED_ADDRESS: Code = Code(716);
pub(super) const LAUNCH_FAILED: Code = Code(719);
pub(super) const NOT_SUPPORTED: Code = Code(801);
pub(super) const CAPTURE_UNSUPPORTED: Code = Code(900);
pub(super) const CAPTURE_INVALIDATED: Code = Code(901);
pub(super) const CAPTURE_UNMATCHED: Code = Code(903);
pub(super) const CAPTURED_EVENT: Code = Code(907);
pub(super) const UNKNOWN: Code = Code(999);

/// Codes with their names and what they mean. A real driver has more, which this one never returns by itself; injected
/// codes may be any.
const CODES: &[(u32, &CStr, &CStr)] = &[
    (0, c"CUDA_SUCCESS", c"no error"),
    (1, c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
    (2, c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
    (3, c"CUDA_ERROR_NOT_INITIALIZED", c"initialization error"),
    (4, c"CUDA_ERROR_DEINITIALIZED", c"driver shutting down"),
    (46, c"CUDA_ERROR_DEVICE_UNAVAILABLE", c"CUDA-capable device(s) is/are busy or unavailable"),
    (100, c"CUDA_ERROR_NO_DEVICE", c"no CUDA-capable device is detected"),
    (101, c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal"),
    (200, c"CUDA_ERROR_INVALID_IMAGE", c"device kernel image is invalid"),
    (201, c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context"),
    (209, c"CUDA_ERROR_NO_BINARY_FOR_GPU", c"no kernel image is available for execution on the device"),
    (214, c"CUDA_ERROR_ECC_UNCORRECTABLE", c"uncorrectable ECC error encountered"),
    (218, c"CUDA_ERROR_INVALID_PTX", c"a PTX JIT compilation failed"),
    (222, c"CUDA_ERROR_UNSUPPORTED_PTX_VERSION", c"the provided PTX was compiled with an unsupported toolchain."),
    (304, c"CUDA_ERROR_OPERATING_SYSTEM", c"OS call failed or operation not supported on this OS"),
    (400, c"CUDA_ERROR_INVALID_HANDLE", c"invalid resource handle"),
    (500, c"CUDA_ERROR_NOT_FOUND", c"named symbol not found"),
    (600, c"CUDA_ERROR_NOT_READY", c"device not ready"),
    (700, c"CUDA_ERROR_ILLEGAL_ADDRESS", c"an illegal memory access was encountered"),
    (701, c"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", c"too many resources requested for launch"),
    (702, c"CUDA_ERROR_LAUNCH_TIMEOUT", c"the launch timed out and was terminated"),
    (710, c"CUDA_ERROR_ASSERT", c"device-side assert triggered"),
    (715, c"CUDA_ERROR_ILLEGAL_INSTRUCTION", c"an illegal instruction was encountered"),
    (716, c"CUDA_ERROR_MISALIGNED_ADDRESS", c"misaligned address"),
    (719, c"CUDA_ERROR_LAUNCH_FAILED", c"unspecified launch failure"),
    (801, c"CUDA_ERROR_NOT_SUPPORTED", c"operation not supported"),
    (900, c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", c"operation not permitted when stream is capturing"),
    (901, c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", c"operation failed due to a previous error during capture"),
    (903, c"CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", c"capture was not initiated in this stream"),
    (907, c"CUDA_ERROR_CAPTURED_EVENT", c"operation not permitted on an event last recorded in a capturing stream"),
    (999, c"CUDA_ERROR_UNKNOWN", c"unknown error"),
];

impl Code {
    fn entry(self) -> Option<&'static (u32, &'static CStr, &'static CStr)> {
        CODES.iter().find(|(code, ..)| *code == self.0)
    }

    pub(super) fn name(self) -> Option<&'static CStr> {
        self.entry().map(|(_, name, _)| *name)
    }

    pub(super) fn meaning(self) -> Option<&'static CStr> {
        self.entry().map(|(.., meaning)| *meaning)
    }

    /// Whether a context that met this error is of no use any more: every later call returns it again.
    pub(super) fn is_sticky(self) -> bool {
        matches!(self.0, 214 | 700 | 702..=719 | 999) && self != LAUNCH_OUT_OF_RESOURCES
    }
}

/// An object of the driver: a number that is never 0 and never used again. Callers see an opaque pointer.
pub(super) type Handle = usize;

/// Where a caller wants a result.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// The address that an option of a caller holds.
    pub(super) fn at(address: usize) -> Out<T> {
        Out(address as *mut T)
    }

    /// Whether the caller wants the result.
    pub(super) fn is_wanted(&self) -> bool {
        !self.0.is_null()
    }

    pub(super) fn put(self, value: T) -> Result<(), Code> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the driver's interface asks its callers for a pointer to a `T`, which need not be initialised; null was
        // excluded.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// The value that the caller left there.
    pub(super) fn get(self) -> Result<T, Code>
    where
        T: Copy,
    {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: only used where the driver's interface asks for a pointer to an initialised `T`; null was excluded.
        Ok(unsafe { self.0.read_unaligned() })
    }
}

impl Out<u8> {
    /// Writes as many bytes as fit into `room`, and a 0 after them.
    pub(super) fn put_text(self, room: usize, text: &[u8]) -> Result<(), Code> {
        if self.0.is_null() || room == 0 {
            return Err(INVALID_VALUE);
        }
        let length = text.len().min(room - 1);
        // SAFETY: the caller has `room` bytes there, of which no more than that many are written.
        unsafe {
            self.0.copy_from_nonoverlapping(text.as_ptr(), length);
            self.0.add(length).write(0);
        }
        Ok(())
    }
}

/// A text that a caller passes, ended by a 0.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Text(*const c_char);

impl Text {
    pub(super) fn get<'a>(self) -> Result<&'a str, Code> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the driver's interface asks for a text that a 0 ends and that lives for the call; no reference outlives it.
        unsafe { CStr::from_ptr(self.0) }.to_str().map_err(|_| INVALID_VALUE)
    }
}

/// Memory of the host that a caller passes.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(super) struct Host(pub(super) *mut u8);

// SAFETY: the driver may use the memory from any thread until the work that was given it is done; callers know that.
unsafe impl Send for Host {}
// SAFETY: as above; a shared `Host` is only copied.
unsafe impl Sync for Host {}

impl Host {
    /// The bytes there.
    ///
    /// # Safety
    /// That many bytes are there, initialised, and nothing writes to them meanwhile.
    pub(super) unsafe fn bytes<'a>(self, length: usize) -> &'a [u8] {
        if length == 0 {
            return &[];
        }
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(self.0, length) }
    }

    /// The bytes there, to be overwritten.
    ///
    /// # Safety
    /// That many bytes are there, and nothing else uses them meanwhile.
    pub(super) unsafe fn bytes_mut<'a>(self, length: usize) -> &'a mut [u8] {
        if length == 0 {
            return &mut [];
        }
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.0, length) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_names_and_only_lost_contexts_are_sticky() {
        assert_eq!(OUT_OF_MEMORY.name(), Some(c"CUDA_ERROR_OUT_OF_MEMORY"));
        assert_eq!(Code(12345).name(), None);
        assert!(ILLEGAL_ADDRESS.is_sticky() && LAUNCH_FAILED.is_sticky());
        assert!(!OUT_OF_MEMORY.is_sticky() && !LAUNCH_OUT_OF_RESOURCES.is_sticky() && !NOT_READY.is_sticky());
    }
}

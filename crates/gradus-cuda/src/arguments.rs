//! The arguments of a kernel.

use std::ffi::c_void;

/// The arguments of a launch, in the order of the kernel's parameters. A method for each type of parameter adds the
/// next one.
#[derive(Debug, Clone, Default)]
pub(crate) struct Arguments {
    /// The values. Each begins in a word of its own.
    words: Vec<u64>,
    /// Where each value begins.
    starts: Vec<usize>,
    /// The word with the address of a fault's slot, if there is one.
    fault: Option<usize>,
}

impl Arguments {
    pub(crate) fn new() -> Self {
        Arguments::default()
    }

    fn push(&mut self, word: u64) -> &mut Self {
        self.starts.push(self.words.len());
        self.words.push(word);
        self
    }

    /// A pointer to memory of the device.
    pub(crate) fn ptr(&mut self, address: u64) -> &mut Self {
        self.push(address)
    }

    /// The address of the slot for a fault: `unsigned long long *fault`. A launch has at most one.
    pub(crate) fn fault(&mut self, address: u64) -> &mut Self {
        self.fault = Some(self.words.len());
        self.push(address)
    }

    /// Changes the address of the slot for a fault.
    pub(crate) fn set_fault(&mut self, address: u64) {
        self.fault.iter().for_each(|&at| self.words[at] = address);
    }

    /// An `int` or `unsigned int`.
    pub(crate) fn u32(&mut self, value: u32) -> &mut Self {
        self.push(u64::from(value))
    }

    /// A `long long`.
    pub(crate) fn i64(&mut self, value: i64) -> &mut Self {
        self.push(value as u64)
    }

    /// An `unsigned long long`.
    pub(crate) fn u64(&mut self, value: u64) -> &mut Self {
        self.push(value)
    }

    /// A `float`.
    pub(crate) fn f32(&mut self, value: f32) -> &mut Self {
        self.push(u64::from(value.to_bits()))
    }

    /// A `double`.
    pub(crate) fn f64(&mut self, value: f64) -> &mut Self {
        self.push(value.to_bits())
    }

    /// A struct, passed by value, of `values.len()` numbers of type `long long`. There is at least one.
    pub(crate) fn longs(&mut self, values: &[i64]) -> &mut Self {
        debug_assert!(!values.is_empty());
        self.starts.push(self.words.len());
        self.words.extend(values.iter().map(|&v| v as u64));
        self
    }

    /// The bytes of a struct, passed by value; a multiple of 8.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.starts.push(self.words.len());
        self.words.extend(bytes.chunks(8).map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_ne_bytes(word)
        }));
        self
    }

    /// A pointer to each value, for the driver. The pointers are valid until another value is added.
    pub(crate) fn pointers(&self) -> Vec<*mut c_void> {
        self.starts.iter().map(|&at| std::ptr::from_ref(&self.words[at]).cast_mut().cast()).collect()
    }
}

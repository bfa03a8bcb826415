//! Kernels whose text is a file of CUDA C: the definitions that stand before it, and the struct of its parameters.

use std::fmt::Write;

use gradus_backend::{DType, Scalar};

use crate::code::{self, whole};

const NUMBERS: &str = include_str!("numbers.cu");

/// The text of a kernel: type names, constants, and the files that make it up. One of the types is `A`.
pub(crate) fn source(types: &[(&str, &str)], constants: &[(&str, usize)], parts: &[&str]) -> String {
    let mut text = String::new();
    for (name, ty) in types {
        let _ = writeln!(text, "typedef {ty} {name};");
    }
    for (name, value) in constants {
        let _ = writeln!(text, "#define {name} {value}");
    }
    text.push_str(NUMBERS);
    parts.iter().for_each(|part| text.push_str(part));
    whole(&text)
}

/// The functions of floats that the files call, for sums of type `dtype`, which is f32 or f64.
pub(crate) fn float_functions(dtype: DType) -> String {
    let end = if dtype == DType::F64 { "f64" } else { "f32" };
    ["exp", "log", "rsqrt"].map(|f| format!("INLINE A {f}_of(A v) {{ return {f}_{end}(v); }}\n")).concat()
}

/// The type of a sum of products.
pub(crate) fn sum_type(dtype: DType) -> &'static str {
    match dtype {
        d if d.is_float() => code::compute(d),
        DType::I64 | DType::U64 => "u64",
        _ => "u32",
    }
}

/// The bytes of a struct, whose members are added in their order.
#[derive(Debug, Default)]
pub(crate) struct Record(Vec<u8>);

impl Record {
    pub(crate) fn new() -> Self {
        Record::default()
    }

    fn aligned(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.resize(self.0.len().next_multiple_of(bytes.len()), 0); // at most 7 bytes more
        self.0.extend_from_slice(bytes);
        self
    }

    /// An `i64`.
    pub(crate) fn i64(&mut self, value: i64) -> &mut Self {
        self.aligned(&value.to_ne_bytes())
    }

    /// An `int`, or a `u32` below 2^31.
    pub(crate) fn i32(&mut self, value: usize) -> &mut Self {
        debug_assert!(i32::try_from(value).is_ok());
        self.aligned(&(value as i32).to_ne_bytes())
    }

    /// An array of `i64` with `size` elements, of which those after `values` are 0.
    pub(crate) fn longs(&mut self, values: impl IntoIterator<Item = isize>, size: usize) -> &mut Self {
        let mut count = 0;
        for value in values {
            self.i64(value as i64);
            count += 1;
        }
        (count..size).for_each(|_| {
            self.i64(0);
        });
        self
    }

    /// An array of `u32` with `size` elements, of which those after `values` are 1.
    pub(crate) fn sizes(&mut self, values: &[usize], size: usize) -> &mut Self {
        let more = size.saturating_sub(values.len());
        for &value in values.iter().chain(std::iter::repeat_n(&1, more)) {
            self.i32(value);
        }
        self
    }

    /// A number of the type that sums of `dtype` have.
    pub(crate) fn number(&mut self, value: Scalar, dtype: DType) -> &mut Self {
        match (sum_type(dtype), value) {
            ("f32", v) => self.aligned(&(v.to_f64() as f32).to_ne_bytes()),
            ("f64", v) => self.aligned(&v.to_f64().to_ne_bytes()),
            ("u32", v) => self.aligned(&(v.to_i64() as u32).to_ne_bytes()),
            // A float above `i64::MAX` may be one that u64 can represent.
            (_, Scalar::Float(v)) if dtype == DType::U64 => self.aligned(&(v as u64).to_ne_bytes()),
            (_, v) => self.i64(v.to_i64()),
        }
    }

    /// The bytes, whose number is a multiple of 8.
    pub(crate) fn finish(&mut self) -> &[u8] {
        self.0.resize(self.0.len().next_multiple_of(8), 0); // at most 7 bytes more
        &self.0
    }
}

/// Compiles a text for the oldest GPU that is supported, and fails with the compiler's messages, or if the kernel declares
/// more shared memory than every block may have. If there is no NVRTC, says so, unless `GRADUS_REQUIRE_CUDA` is 1.
#[cfg(test)]
pub(crate) fn check_text(entry: &str, text: &str) {
    use crate::driver::{Declarations, Target, compile};
    let made = compile("test", entry, text, Target::Ptx(80), Declarations::Language);
    let required = std::env::var_os("GRADUS_REQUIRE_CUDA").is_some_and(|v| v == "1");
    match made {
        Ok(ptx) => {
            let ptx = String::from_utf8_lossy(&ptx);
            let module =
                gradus_ptx::Module::parse(ptx.trim_end_matches('\0')).unwrap_or_else(|e| panic!("{entry}: {e}"));
            let kernel = module.kernel(entry).unwrap_or_else(|| panic!("no kernel `{entry}` in\n{ptx}"));
            let (bytes, most) = (kernel.shared_bytes(), 48 << 10);
            assert!(bytes <= most, "{entry} declares {bytes} bytes of shared memory, more than {most}:\n{text}");
        }
        Err(e) if *e.kind() == gradus_backend::ErrorKind::Unsupported && !required => eprintln!("not compiled: {e}"),
        Err(e) => panic!("{e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_aligned_as_in_c() {
        let mut record = Record::new();
        record.i32(1).i64(-1).number(Scalar::Float(1.0), DType::F16).number(Scalar::Int(-1), DType::I8).sizes(&[7], 2);
        let words: Vec<u32> =
            record.finish().chunks(4).map(|c| c.try_into().map(u32::from_ne_bytes).unwrap_or_default()).collect();
        assert_eq!(words, [1, 0, u32::MAX, u32::MAX, 0x3f80_0000, u32::MAX, 7, 1]);
    }
}

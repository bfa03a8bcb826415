//! Finds the dtype of a result from the dtypes of its operands, and a dtype from its name.

use crate::{DType, Error, ErrorKind, Here, Result};

impl DType {
    /// The dtype of an operation that combines both operands. Within floats or within integers, it is the smallest
    /// dtype that holds every value of either operand.
    ///
    /// f16 with bf16 therefore promotes to f32. A float takes precedence over any integer. `i64` with `u64` is an
    /// error, because no dtype holds both. `bool` promotes to any other dtype.
    #[track_caller]
    pub fn promote(self, other: DType) -> Result<DType> {
        use DType::*;
        let (a, b) = (self, other);
        if a == b {
            return Ok(a);
        }
        Ok(match (a.is_float(), b.is_float()) {
            (true, true) => match (a, b) {
                (F64, _) | (_, F64) => F64,
                _ => F32,
            },
            (true, false) => a,
            (false, true) => b,
            (false, false) => {
                if a == Bool {
                    return Ok(b);
                }
                if b == Bool {
                    return Ok(a);
                }
                let wider = if a.size() >= b.size() { a } else { b };
                match (a.is_signed(), b.is_signed()) {
                    (true, true) | (false, false) => wider,
                    _ => {
                        let (signed, unsigned) = if a.is_signed() { (a, b) } else { (b, a) };
                        match signed.size().max(unsigned.size() * 2) {
                            1 => I8,
                            2 => I16,
                            4 => I32,
                            8 => I64,
                            _ => {
                                let m = format!("no dtype holds every value of {a} and of {b}");
                                return Err(Error::new(ErrorKind::DTypeMismatch, "promote", m)
                                    .help("cast one operand first, for example x.to_dtype(DType::I64)?"));
                            }
                        }
                    }
                }
            }
        })
    }
}

impl std::str::FromStr for DType {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        DType::ALL
            .into_iter()
            .find(|d| d.name() == s)
            .ok_or_else(|| {
                let names: Vec<_> = DType::ALL.iter().map(|d| d.name()).collect();
                Error::argument("dtype", format!("{s:?} is no dtype; the dtypes are {}", names.join(", ")))
            })
            .here()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promotion_holds_every_value_of_both() {
        use DType::*;
        for (a, b, want) in [
            (F16, BF16, F32),
            (F32, F64, F64),
            (F16, I64, F16),
            (I8, U8, I16),
            (I32, U32, I64),
            (I64, U32, I64),
            (Bool, U8, U8),
            (U16, U64, U64),
        ] {
            assert_eq!(a.promote(b).unwrap(), want, "{a} {b}");
            assert_eq!(b.promote(a).unwrap(), want, "{b} {a}");
        }
        assert_eq!(I64.promote(U64).unwrap_err().kind(), &ErrorKind::DTypeMismatch);
    }
}

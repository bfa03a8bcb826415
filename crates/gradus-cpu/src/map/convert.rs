//! Conversions of blocks: the cast instruction, loads that widen, stores that narrow, and selection.

use gradus_backend::{DType, Scalar, bf16, bf16_from_f64, f16, f16_from_f64};

use super::float::{LANES, each, step};
use crate::access::{Plain, match_dtype};
use crate::half_float::{bf16_from_f32, bf16_to_f32, f16_from_f32, f16_to_f32};
use crate::isa::{Isa, per_isa};

per_isa! {
    /// Widens f16 to f32.
    fn widen_f16(x: &[f16], out: &mut [f32]) = |x, out| each(x, out, f16_to_f32);
    /// Widens bf16 to f32.
    fn widen_bf16(x: &[bf16], out: &mut [f32]) = |x, out| each(x, out, bf16_to_f32);
    /// Rounds f32 to f16.
    fn narrow_f16(x: &[f32], out: &mut [f16]) = |x, out| each(x, out, f16_from_f32);
    /// Rounds f32 to bf16.
    fn narrow_bf16(x: &[f32], out: &mut [bf16]) = |x, out| each(x, out, bf16_from_f32);
    fn f32_from_f64(x: &[f64], out: &mut [f32]) = |x, out| each(x, out, |x| x as f32);
    fn f64_from_f32(x: &[f32], out: &mut [f64]) = |x, out| each(x, out, f64::from);
    fn f32_from_bool(x: &[u8], out: &mut [f32]) = |x, out| each(x, out, |x| f32::from(u8::from(x != 0)));
    fn f32_from_i32(x: &[i32], out: &mut [f32]) = |x, out| each(x, out, |x| x as f32);
    fn f32_from_u8(x: &[u8], out: &mut [f32]) = |x, out| each(x, out, f32::from);
    fn f32_from_i8(x: &[i8], out: &mut [f32]) = |x, out| each(x, out, f32::from);
    fn i32_from_f32(x: &[f32], out: &mut [i32]) = |x, out| each(x, out, |x| x as i32);
    fn u8_from_f32(x: &[f32], out: &mut [u8]) = |x, out| each(x, out, to_u8);
    fn i16_from_u8(x: &[u8], out: &mut [i16]) = |x, out| each(x, out, i16::from);
    fn i32_from_u8(x: &[u8], out: &mut [i32]) = |x, out| each(x, out, i32::from);
    /// Selects between elements of 1 byte, of any dtype.
    pub(super) fn select_1(c: &[u8], a: &[u8], b: &[u8], out: &mut [u8]) = select_body::<u8>;
    /// Selects between elements of 2 bytes, of any dtype.
    pub(super) fn select_2(c: &[u8], a: &[u16], b: &[u16], out: &mut [u16]) = select_body::<u16>;
    /// Selects between elements of 4 bytes, of any dtype.
    pub(super) fn select_4(c: &[u8], a: &[u32], b: &[u32], out: &mut [u32]) = select_body::<u32>;
    /// Selects between elements of 8 bytes, of any dtype.
    pub(super) fn select_8(c: &[u8], a: &[u64], b: &[u64], out: &mut [u64]) = select_body::<u64>;
}

/// Does what `as` does, in steps that are compiled to vectors, which `as` is not. After 2^23 is added, the integer is in the lowest
/// bits.
#[inline(always)]
pub(crate) fn to_u8(x: f32) -> u8 {
    // NaN is not above 0.
    let x = if x > 0.0 { x } else { 0.0 };
    (x.min(255.0).trunc() + 8_388_608.0).to_bits() as u8
}

/// Sets `out[i]` to `a[i]` if `c[i]` is not 0, and otherwise to `b[i]`. Every operand may be a splat.
#[inline(always)]
fn select_body<T: Plain>(c: &[u8], a: &[T], b: &[T], out: &mut [T]) {
    let n = out.len();
    let (step_c, step_a, step_b) = (step(c, n), step(a, n), step(b, n));
    let (mut at_c, mut at_a, mut at_b, mut at) = (0, 0, 0, 0);
    while at < n {
        let m = LANES.min(n - at);
        let (k, x, y, o) = (&c[at_c..at_c + m], &a[at_a..at_a + m], &b[at_b..at_b + m], &mut out[at..at + m]);
        for j in 0..m {
            o[j] = std::hint::select_unpredictable(k[j] != 0, x[j], y[j]);
        }
        (at_c, at_a, at_b, at) = (at_c + step_c, at_a + step_a, at_b + step_b, at + m);
    }
}

/// A type that the cast instruction converts from.
pub(super) trait Cast: Plain {
    /// Converts elements to compute type `D`.
    fn cast<D: CastTarget>(x: &[Self], out: &mut [D]);
}

/// A type that the cast instruction converts to.
pub(super) trait CastTarget: Plain {
    fn from_f64(v: f64) -> Self;
    fn from_f32(v: f32) -> Self;
    fn from_i64(v: i64) -> Self;
    fn from_u64(v: u64) -> Self;
}

macro_rules! cast_target {
    ($($t:ty)*) => {$(
        impl CastTarget for $t {
            #[inline(always)]
            fn from_f64(v: f64) -> $t {
                v as $t
            }
            #[inline(always)]
            fn from_f32(v: f32) -> $t {
                v as $t
            }
            #[inline(always)]
            fn from_i64(v: i64) -> $t {
                v as $t
            }
            #[inline(always)]
            fn from_u64(v: u64) -> $t {
                v as $t
            }
        }
    )*};
}
cast_target!(f64 f32 i64 i32 i16 i8 u64 u32 u16 u8);

/// Bool as the target of a cast. Every number other than 0 becomes true, including NaN.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(transparent)]
pub(super) struct Truth(u8);

// SAFETY: this is a transparent wrapper of u8, which has the size of a bool.
unsafe impl Plain for Truth {
    fn holds(dtype: DType) -> bool {
        dtype == DType::Bool
    }
}

impl CastTarget for Truth {
    #[inline(always)]
    fn from_f64(v: f64) -> Self {
        Truth(u8::from(v != 0.0))
    }
    #[inline(always)]
    fn from_f32(v: f32) -> Self {
        Truth(u8::from(v != 0.0))
    }
    #[inline(always)]
    fn from_i64(v: i64) -> Self {
        Truth(u8::from(v != 0))
    }
    #[inline(always)]
    fn from_u64(v: u64) -> Self {
        Truth(u8::from(v != 0))
    }
}

macro_rules! cast {
    ($($t:ty, $from:ident, $via:expr;)*) => {$(
        impl Cast for $t {
            fn cast<D: CastTarget>(x: &[$t], out: &mut [D]) {
                each(x, out, |x| D::$from($via(x)));
            }
        }
    )*};
}
cast! {
    f64, from_f64, |x| x;
    f32, from_f32, |x| x;
    i64, from_i64, |x| x;
    i32, from_i64, i64::from;
    i16, from_i64, i64::from;
    i8, from_i64, i64::from;
    u64, from_u64, |x| x;
    u32, from_u64, u64::from;
    u16, from_u64, u64::from;
    u8, from_u64, u64::from;
    Truth, from_u64, |x: Truth| u64::from(x.0 != 0);
}

/// Evaluates the expression with `$t` as the compute type of a dtype, which is f32 for half precision.
macro_rules! with_compute {
    ($dtype:expr, $t:ident => $body:expr) => {
        match_dtype!(
            $dtype, $t => $body;
            F64: f64, F32 | F16 | BF16: f32,
            I64: i64, I32: i32, I16: i16, I8: i8, U64: u64, U32: u32, U16: u16, U8: u8, Bool: Truth
        )
    };
}

/// Runs the cast instruction on `n` elements, from the compute type of `from` at `x` to the compute type of `to` at
/// `out`.
///
/// # Safety
/// `x` is readable and `out` is writable for `n` elements of their types, both are aligned, and they do not overlap.
pub(super) unsafe fn cast(isa: Isa, from: DType, to: DType, x: *const u8, out: *mut u8, n: usize) {
    // SAFETY: guaranteed by the caller, for the types that the dtypes stand for.
    unsafe {
        match (from, to) {
            (DType::F64, DType::F32) => f32_from_f64(isa, slice(x, n), slice_mut(out, n)),
            (DType::F32, DType::F64) => f64_from_f32(isa, slice(x, n), slice_mut(out, n)),
            (DType::Bool, DType::F32) => f32_from_bool(isa, slice(x, n), slice_mut(out, n)),
            (DType::I32, DType::F32) => f32_from_i32(isa, slice(x, n), slice_mut(out, n)),
            (DType::U8, DType::F32) => f32_from_u8(isa, slice(x, n), slice_mut(out, n)),
            (DType::I8, DType::F32) => f32_from_i8(isa, slice(x, n), slice_mut(out, n)),
            (DType::F32, DType::I32) => i32_from_f32(isa, slice(x, n), slice_mut(out, n)),
            (DType::F32, DType::U8) => u8_from_f32(isa, slice(x, n), slice_mut(out, n)),
            (DType::U8, DType::I16) => i16_from_u8(isa, slice(x, n), slice_mut(out, n)),
            (DType::U8, DType::I32) => i32_from_u8(isa, slice(x, n), slice_mut(out, n)),
            _ => {
                with_compute!(from, A => with_compute!(to, B => <A as Cast>::cast::<B>(slice(x, n), slice_mut(out, n))))
            }
        }
    }
}

/// Returns memory as a slice of elements.
///
/// # Safety
/// `x` is readable for `n` elements and aligned for them, and nothing writes them while the slice lives.
#[inline(always)]
pub(super) unsafe fn slice<'a, T: Plain>(x: *const u8, n: usize) -> &'a [T] {
    // SAFETY: guaranteed by the caller. Every bit pattern is a `T`.
    unsafe { std::slice::from_raw_parts(x.cast(), n) }
}

/// Returns memory as a slice of writable elements.
///
/// # Safety
/// `x` is valid for `n` elements and aligned for them, and nothing else accesses them while the slice lives.
#[inline(always)]
pub(super) unsafe fn slice_mut<'a, T: Plain>(x: *mut u8, n: usize) -> &'a mut [T] {
    // SAFETY: guaranteed by the caller. Every bit pattern is a `T`.
    unsafe { std::slice::from_raw_parts_mut(x.cast(), n) }
}

/// Converts a scalar to a compute type, as the cast instruction does.
pub(super) fn scalar_to<T: CastTarget>(s: Scalar) -> T {
    match s {
        Scalar::Bool(v) => T::from_u64(u64::from(v)),
        Scalar::Int(v) => T::from_i64(v),
        Scalar::Float(v) => T::from_f64(v),
    }
}

/// Fills a splat with a scalar, which is first rounded to `dtype` and then converted to its compute type.
pub(super) fn splat_scalar(dtype: DType, value: Scalar, out: &mut Splat) {
    let value = match dtype {
        DType::F16 => Scalar::Float(f16_from_f64(value.to_f64()).to_f64()),
        DType::BF16 => Scalar::Float(bf16_from_f64(value.to_f64()).to_f64()),
        _ => value,
    };
    with_compute!(dtype, T => {
        // SAFETY: a splat has room for `LANES` elements of every type and is aligned for them.
        unsafe { slice_mut::<T>(out.0.as_mut_ptr(), LANES) }.fill(scalar_to(value));
    });
}

/// `LANES` equal elements of any compute type.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Splat(pub(super) [u8; LANES * 8]);

/// Loads `n` elements of `dtype`, which lie `stride` elements apart from `x` on, and converts them to the compute type.
///
/// # Safety
/// Every element is readable, `out` is writable for `n` elements of the compute type, and they do not overlap.
pub(super) unsafe fn load(isa: Isa, dtype: DType, x: *const u8, stride: isize, out: *mut u8, n: usize) {
    // SAFETY: guaranteed by the caller, for the type that the dtype stands for. In every buffer, elements are aligned.
    unsafe {
        match (dtype, stride) {
            (DType::F16, 1) => widen_f16(isa, slice(x, n), slice_mut(out, n)),
            (DType::BF16, 1) => widen_bf16(isa, slice(x, n), slice_mut(out, n)),
            (DType::F16, _) => gather(x, stride, slice_mut(out, n), f16_to_f32),
            (DType::BF16, _) => gather(x, stride, slice_mut(out, n), bf16_to_f32),
            _ => load_raw(dtype.size(), x, stride, out, n),
        }
    }
}

/// Copies `n` elements of `size` bytes, which lie `stride` elements apart from `x` on, to consecutive places at `out`.
///
/// # Safety
/// Every element is readable, `out` is writable for `n` elements, all are aligned, and they do not overlap.
pub(crate) unsafe fn load_raw(size: usize, x: *const u8, stride: isize, out: *mut u8, n: usize) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match (size, stride) {
            (_, 1) => std::ptr::copy_nonoverlapping(x, out, n * size),
            (1, _) => gather(x, stride, slice_mut(out, n), |v: u8| v),
            (2, _) => gather(x, stride, slice_mut(out, n), |v: u16| v),
            (4, _) => gather(x, stride, slice_mut(out, n), |v: u32| v),
            _ => gather(x, stride, slice_mut(out, n), |v: u64| v),
        }
    }
}

/// Rounds `n` elements of type `from` to `dtype` and stores them at `out`, `stride` elements apart. `from` is the
/// compute type of `dtype` or, for half precision, may be f64. Each element is rounded once. Booleans become 0 or 1.
///
/// # Safety
/// `x` is readable for `n` elements of `from`, every element of `out` is writable, and they do not overlap.
pub(super) unsafe fn store(isa: Isa, from: DType, dtype: DType, x: *const u8, out: *mut u8, stride: isize, n: usize) {
    // SAFETY: guaranteed by the caller, for the type that the dtype stands for. In every buffer, elements are aligned.
    unsafe {
        match (dtype, stride) {
            (DType::F16, _) if from == DType::F64 => scatter(slice(x, n), out, stride, f16_from_f64),
            (DType::BF16, _) if from == DType::F64 => scatter(slice(x, n), out, stride, bf16_from_f64),
            (DType::F16, 1) => narrow_f16(isa, slice(x, n), slice_mut(out, n)),
            (DType::BF16, 1) => narrow_bf16(isa, slice(x, n), slice_mut(out, n)),
            (DType::F16, _) => scatter(slice(x, n), out, stride, f16_from_f32),
            (DType::BF16, _) => scatter(slice(x, n), out, stride, bf16_from_f32),
            (DType::Bool, _) => scatter(slice(x, n), out, stride, |v: u8| u8::from(v != 0)),
            (_, 1) => std::ptr::copy_nonoverlapping(x, out, n * dtype.size()),
            _ => match dtype.size() {
                1 => scatter(slice(x, n), out, stride, |v: u8| v),
                2 => scatter(slice(x, n), out, stride, |v: u16| v),
                4 => scatter(slice(x, n), out, stride, |v: u32| v),
                _ => scatter(slice(x, n), out, stride, |v: u64| v),
            },
        }
    }
}

/// # Safety
/// `x + i * stride` is readable for every index of `out`.
#[inline(always)]
unsafe fn gather<T: Plain, U: Plain>(x: *const u8, stride: isize, out: &mut [U], f: impl Fn(T) -> U) {
    let x = x.cast::<T>();
    for (i, o) in out.iter_mut().enumerate() {
        // SAFETY: guaranteed by the caller.
        *o = f(unsafe { *x.offset(i as isize * stride) });
    }
}

/// # Safety
/// `out + i * stride` is writable for every index of `x`.
#[inline(always)]
unsafe fn scatter<T: Plain, U: Plain>(x: &[T], out: *mut u8, stride: isize, f: impl Fn(T) -> U) {
    let out = out.cast::<U>();
    for (i, &v) in x.iter().enumerate() {
        // SAFETY: guaranteed by the caller.
        unsafe { *out.offset(i as isize * stride) = f(v) };
    }
}

#[cfg(test)]
mod tests {
    use super::to_u8;

    #[test]
    fn to_u8_does_what_as_does() {
        let near = (0..=257).flat_map(|k: u16| {
            let x = f32::from(k);
            [x.next_down(), x, x.next_up(), x + 0.5, -x]
        });
        let special = [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, 1e-44, -1e-44, 1e19];
        for x in near.chain(special) {
            assert_eq!(to_u8(x), x as u8, "{x}");
        }
    }
}

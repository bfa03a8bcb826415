//! Turns views into typed memory: after one check, kernels work with plain slices and positions.
//!
//! [`CpuBackend::slice`] and [`CpuBackend::slice_mut`] check the owner, dtype and span of a view and return its **whole
//! buffer** as a slice of elements. The position of each element in the view's layout ([`Layout::position`]) is then an
//! index into this slice. [`Nest`](crate::nest::Nest) walks several layouts of the same shape together along a few
//! long, merged axes. If the elements are contiguous, [`CpuBackend::contiguous`] returns exactly these elements.

use std::any::TypeId;

use gradus_backend::{Buffer, DType, Error, ErrorKind, Layout, Result, Shape, View, ViewMut, bf16, f16};

use crate::CpuBackend;
use crate::half_float::{bf16_from_f32, bf16_to_f32, f16_from_f32, f16_to_f32};

/// A type that any initialised memory may be read as, because every bit pattern is a valid value.
///
/// # Safety
/// The type has no padding and no invalid bit pattern, and `holds` is true only for dtypes of its size.
pub(crate) unsafe trait Plain:
    Copy + Default + PartialEq + Send + Sync + std::fmt::Debug + 'static
{
    /// Whether elements of this dtype are stored as this type. Bool is stored as u8.
    fn holds(dtype: DType) -> bool;
}

macro_rules! plain {
    ($($t:ty: $($d:ident)|+;)*) => {$(
        // SAFETY: the type is a primitive number (or a transparent wrapper of u16) and has the size of the dtype.
        unsafe impl Plain for $t {
            fn holds(dtype: DType) -> bool {
                matches!(dtype, $(DType::$d)|+)
            }
        }
    )*};
}
plain! {
    f64: F64; f32: F32; f16: F16; bf16: BF16; i64: I64; i32: I32; i16: I16; i8: I8; u64: U64; u32: U32; u16: U16;
    u8: U8 | Bool;
}

// SAFETY: the type is a primitive number, and no dtype is stored as it.
unsafe impl Plain for u128 {
    fn holds(_: DType) -> bool {
        false
    }
}

/// A float type that elements are stored as, along with the type that they are computed in: f16 and bf16 are computed
/// in f32 and rounded once, when they are stored.
pub(crate) trait Float: Plain {
    /// The type to compute in: f32 or f64.
    type Compute: Plain + Float<Compute = Self::Compute>;
    /// Converts the element to the compute type.
    fn widen(self) -> Self::Compute;
    /// Rounds a computed value to the stored type.
    fn narrow(x: Self::Compute) -> Self;
}

macro_rules! float {
    ($($t:ty, $c:ty, $widen:expr, $narrow:expr;)*) => {$(
        impl Float for $t {
            type Compute = $c;
            #[inline(always)]
            fn widen(self) -> $c {
                ($widen)(self)
            }
            #[inline(always)]
            fn narrow(x: $c) -> $t {
                ($narrow)(x)
            }
        }
    )*};
}
float! {
    f64, f64, |x| x, |x| x;
    f32, f32, |x| x, |x| x;
    f16, f32, f16_to_f32, f16_from_f32;
    bf16, f32, bf16_to_f32, bf16_from_f32;
}

/// Evaluates the expression with `$t` as the type listed for the dtype.
macro_rules! match_dtype {
    ($dtype:expr, $t:ident => $body:expr; $($($d:ident)|+: $type:ty),+ $(; $other:ident => $else:expr)?) => {
        match $dtype {
            $($(gradus_backend::DType::$d)|+ => {
                type $t = $type;
                $body
            })+
            $($other => $else,)?
        }
    };
}
pub(crate) use match_dtype;

/// Evaluates the expression with `$t` as the storage type of a float dtype. Any other dtype is an error of `$op`.
macro_rules! with_float {
    ($op:expr, $dtype:expr, $t:ident => $body:expr) => {
        $crate::access::match_dtype!(
            $dtype, $t => $body;
            F64: f64, F32: f32, F16: gradus_backend::f16, BF16: gradus_backend::bf16;
            other => Err(gradus_backend::Error::dtype($op, other, "f64, f32, f16 and bf16"))
        )
    };
}
pub(crate) use with_float;

/// Evaluates the expression with `$t` as the unsigned integer type of this many bytes, for code that moves elements
/// without needing to know their dtype.
macro_rules! with_word {
    ($bytes:expr, $t:ident => $body:expr) => {
        match $bytes {
            1 => {
                type $t = u8;
                $body
            }
            2 => {
                type $t = u16;
                $body
            }
            4 => {
                type $t = u32;
                $body
            }
            _ => {
                type $t = u64;
                $body
            }
        }
    };
}
pub(crate) use with_word;

impl CpuBackend {
    /// Returns an error if the buffer belongs to another backend.
    #[inline]
    pub(crate) fn check_owner(&self, op: &str, buffer: &Buffer) -> Result<()> {
        if std::ptr::addr_eq(std::sync::Arc::as_ptr(buffer.owner()), std::sync::Arc::as_ptr(self.pool())) {
            return Ok(());
        }
        let m = "an operand lives on another device or backend instance";
        Err(Error::new(ErrorKind::DeviceMismatch, op, m).help("move it here first"))
    }

    /// Returns the number of elements if the view is contiguous and not empty, and the buffer belongs to this backend
    /// and holds all of them.
    #[inline]
    pub(crate) fn dense(&self, buffer: &Buffer, dtype: DType, layout: &Layout) -> Option<usize> {
        let mut step = 1;
        for (&d, &s) in layout.dims().iter().zip(layout.strides()).rev() {
            if d != 1 && s != step as isize {
                return None;
            }
            step *= d;
        }
        let room = buffer.bytes() >> dtype.size().trailing_zeros();
        let inside = step > 0 && layout.offset() < room && step <= room - layout.offset();
        (inside && self.check_owner("", buffer).is_ok()).then_some(step)
    }

    /// Returns whether the elements are contiguous. Fails unless the buffer belongs to this backend and holds every
    /// element of the layout.
    #[inline]
    pub(crate) fn check_view(&self, op: &str, buffer: &Buffer, dtype: DType, layout: &Layout) -> Result<bool> {
        if self.dense(buffer, dtype, layout).is_some() {
            return Ok(true);
        }
        self.check_owner(op, buffer)?;
        // An empty view may have any offset.
        let (span, empty) = (layout.span(), layout.numel() == 0);
        let room = buffer.bytes() >> dtype.size().trailing_zeros();
        if empty || span.start <= span.end && span.end <= room {
            return Ok(layout.is_contiguous());
        }
        let m = format!("the layout {layout:?} of {dtype} leaves its buffer of {} bytes", buffer.bytes());
        Err(Error::argument(op, m))
    }

    /// Like [`check_view`](CpuBackend::check_view), but for an output: also fails if two elements share a position.
    #[inline]
    pub(crate) fn check_out(&self, op: &str, out: &ViewMut<'_>) -> Result<bool> {
        let contiguous = self.check_view(op, out.buffer, out.dtype, out.layout)?;
        if contiguous || !out.layout.overlaps_itself() {
            return Ok(contiguous);
        }
        Err(Error::argument(op, format!("the output layout {:?} has two elements in one place", out.layout)))
    }

    /// Returns the whole buffer behind a view as a slice of elements. The owner, dtype and span are checked, so every
    /// position of the layout is an index into the slice.
    pub(crate) fn slice<'a, T: Plain>(&self, op: &str, x: View<'a>) -> Result<&'a [T]> {
        check_type::<T>(op, x.dtype)?;
        self.words(op, x)
    }

    /// Like [`slice`](CpuBackend::slice), but with writable elements; also fails if two elements share a position.
    pub(crate) fn slice_mut<'a, T: Plain>(&self, op: &str, x: &'a mut ViewMut<'_>) -> Result<&'a mut [T]> {
        check_type::<T>(op, x.dtype)?;
        self.words_mut(op, x)
    }

    /// Like [`slice`](CpuBackend::slice), but with elements of any type that has the dtype's size.
    pub(crate) fn words<'a, T: Plain>(&self, op: &str, x: View<'a>) -> Result<&'a [T]> {
        assert_eq!(size_of::<T>(), x.dtype.size());
        self.check_view(op, x.buffer, x.dtype, x.layout)?;
        let n = x.buffer.bytes() / size_of::<T>();
        // SAFETY: the pool's memory is initialised, aligned for every type, valid for the buffer's size, and only read
        // while the shared borrow of the buffer lasts; every bit pattern is a `T`.
        Ok(unsafe { std::slice::from_raw_parts(x.buffer.as_ptr().as_ptr().cast::<T>(), n) })
    }

    /// Like [`slice_mut`](CpuBackend::slice_mut), but with elements of any type that has the dtype's size.
    pub(crate) fn words_mut<'a, T: Plain>(&self, op: &str, x: &'a mut ViewMut<'_>) -> Result<&'a mut [T]> {
        assert_eq!(size_of::<T>(), x.dtype.size());
        self.check_out(op, x)?;
        let n = x.buffer.bytes() / size_of::<T>();
        // SAFETY: as in `words`; the buffer is borrowed mutably for as long as the slice lives.
        Ok(unsafe { std::slice::from_raw_parts_mut(x.buffer.as_ptr().as_ptr().cast::<T>(), n) })
    }

    /// Returns the bytes of the elements of a contiguous view.
    pub(crate) fn element_bytes<'a>(&self, op: &str, x: View<'a>) -> Result<&'a [u8]> {
        let bytes = self.check_contiguous(op, x)?;
        // SAFETY: the pool's memory is initialised, valid for the buffer's size, and only read while the shared borrow
        // of the buffer lasts.
        let all = unsafe { std::slice::from_raw_parts(x.buffer.as_ptr().as_ptr(), x.buffer.bytes()) };
        Ok(&all[bytes])
    }

    /// Like [`element_bytes`](CpuBackend::element_bytes), but writable.
    pub(crate) fn element_bytes_mut<'a>(&self, op: &str, x: &'a mut ViewMut<'_>) -> Result<&'a mut [u8]> {
        let bytes = self.check_contiguous(op, x.as_view())?;
        // SAFETY: as in `element_bytes`; the buffer is borrowed mutably for as long as the slice lives.
        let all = unsafe { std::slice::from_raw_parts_mut(x.buffer.as_ptr().as_ptr(), x.buffer.bytes()) };
        Ok(&mut all[bytes])
    }

    /// Returns the range of the buffer's bytes in which the elements of a contiguous view lie.
    fn check_contiguous(&self, op: &str, x: View<'_>) -> Result<std::ops::Range<usize>> {
        if !self.check_view(op, x.buffer, x.dtype, x.layout)? {
            return Err(Error::new(ErrorKind::NotContiguous, op, format!("the layout {:?} has gaps", x.layout)));
        }
        let (span, size) = (x.layout.span(), x.dtype.size());
        Ok(span.start * size..span.end * size)
    }

    /// Returns exactly the elements of a view if they are contiguous, and otherwise `None`.
    pub(crate) fn contiguous<'a, T: Plain>(&self, op: &str, x: View<'a>) -> Result<Option<&'a [T]>> {
        check_type::<T>(op, x.dtype)?;
        self.contiguous_words(op, x)
    }

    /// Like [`contiguous`](CpuBackend::contiguous), but with writable elements.
    pub(crate) fn contiguous_mut<'a, T: Plain>(&self, op: &str, x: &'a mut ViewMut<'_>) -> Result<Option<&'a mut [T]>> {
        check_type::<T>(op, x.dtype)?;
        self.contiguous_words_mut(op, x)
    }

    /// Like [`contiguous`](CpuBackend::contiguous), but with elements of any type that has the dtype's size.
    pub(crate) fn contiguous_words<'a, T: Plain>(&self, op: &str, x: View<'a>) -> Result<Option<&'a [T]>> {
        let all = self.words(op, x)?;
        Ok(x.layout.is_contiguous().then(|| all.get(x.layout.span()).unwrap_or_default()))
    }

    /// Like [`contiguous_mut`](CpuBackend::contiguous_mut), but with elements of any type that has the dtype's size.
    pub(crate) fn contiguous_words_mut<'a, T: Plain>(
        &self,
        op: &str,
        x: &'a mut ViewMut<'_>,
    ) -> Result<Option<&'a mut [T]>> {
        let layout = x.layout;
        let all = self.words_mut(op, x)?;
        Ok(if layout.is_contiguous() { Some(all.get_mut(layout.span()).unwrap_or_default()) } else { None })
    }
}

fn check_type<T: Plain>(op: &str, dtype: DType) -> Result<()> {
    if T::holds(dtype) {
        return Ok(());
    }
    Err(Error::new(ErrorKind::DTypeMismatch, op, format!("an operand has dtype {dtype}, where another one is needed")))
}

/// Returns elements in their compute type. Panics if they are stored in another type.
pub(crate) fn as_computed<S: Float>(stored: &[S]) -> &[S::Compute] {
    assert!(TypeId::of::<S>() == TypeId::of::<S::Compute>());
    // SAFETY: the two types are the same.
    unsafe { std::slice::from_raw_parts(stored.as_ptr().cast(), stored.len()) }
}

/// Checks that an operand has the required dtype.
#[inline]
pub(crate) fn check_dtype(op: &str, name: &str, dtype: DType, want: DType) -> Result<()> {
    if dtype == want {
        return Ok(());
    }
    Err(Error::new(ErrorKind::DTypeMismatch, op, format!("{name} has dtype {dtype}, where {want} is needed")))
}

/// Checks that an operand has the required shape.
#[inline]
pub(crate) fn check_shape(op: &str, name: &str, dims: &[usize], want: &[usize]) -> Result<()> {
    if dims.len() == want.len() && dims.iter().zip(want).all(|(a, b)| a == b) {
        return Ok(());
    }
    let (d, w) = (Shape::display(dims), Shape::display(want));
    Err(Error::shape(op, format!("{name} has shape {d}, where {w} is needed")))
}

/// Checks that the shape has this axis.
pub(crate) fn check_axis(op: &str, axis: usize, dims: &[usize]) -> Result<()> {
    gradus_backend::shape::resolve_axis(op, isize::try_from(axis).unwrap_or(isize::MAX), dims.len()).map(drop)
}

/// Sets `out[i] = f(x[start + i * stride])`. Panics if a position lies outside `x`.
#[inline(always)]
pub(crate) fn load_strided<T: Copy, U>(x: &[T], start: usize, stride: isize, out: &mut [U], f: impl Fn(T) -> U) {
    match stride {
        1 => {
            let x = &x[start..start + out.len()];
            for (o, &x) in out.iter_mut().zip(x) {
                *o = f(x);
            }
        }
        _ => {
            for (i, o) in out.iter_mut().enumerate() {
                *o = f(x[start.wrapping_add_signed(stride * i as isize)]);
            }
        }
    }
}

/// Sets `out[start + i * stride] = f(x[i])`. Panics if a position lies outside `out`.
#[inline(always)]
pub(crate) fn store_strided<T: Copy, U>(x: &[T], out: &mut [U], start: usize, stride: isize, f: impl Fn(T) -> U) {
    match stride {
        1 => {
            let n = x.len();
            for (o, &x) in out[start..start + n].iter_mut().zip(x) {
                *o = f(x);
            }
        }
        _ => {
            for (i, &x) in x.iter().enumerate() {
                out[start.wrapping_add_signed(stride * i as isize)] = f(x);
            }
        }
    }
}

#[cfg(test)]
#[path = "access_tests.rs"]
mod tests;

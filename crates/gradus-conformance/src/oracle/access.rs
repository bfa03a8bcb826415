//! From views to arrays of scalars and back, with every check that keeps an access inside its buffer.

use std::ops::Range;

use gradus_backend::shape::resolve_axis;
use gradus_backend::{DType, Error, ErrorKind, Result, Scalar, Shape, View, ViewMut};

use super::{OracleBackend, load, store};

/// The error for a buffer that another backend made.
pub(super) fn foreign(op: &str, name: &str) -> Error {
    Error::new(ErrorKind::DeviceMismatch, op, format!("{name} lies in the memory of another backend"))
}

/// `offset..offset + len`, within `size` bytes.
pub(super) fn range(op: &str, size: usize, offset: usize, len: usize) -> Result<Range<usize>> {
    match offset.checked_add(len) {
        Some(end) if end <= size => Ok(offset..end),
        _ => Err(Error::argument(op, format!("{len} bytes from {offset} do not lie within a buffer of {size}"))),
    }
}

/// Checks dtype and shape of an operand.
pub(super) fn same(op: &str, name: &str, x: &View<'_>, dtype: DType, shape: &[usize]) -> Result<()> {
    let dims = x.layout.dims();
    if x.dtype != dtype {
        let m = format!("{name} must be {dtype} here");
        return Err(Error::new(ErrorKind::DTypeMismatch, op, m).operand(name, dims, x.dtype, "oracle"));
    }
    if dims != shape {
        let m = format!("{name} must have shape {}", Shape::display(shape));
        return Err(Error::shape(op, m).operand(name, dims, x.dtype, "oracle"));
    }
    Ok(())
}

/// Checks an axis.
pub(super) fn axis(op: &str, axis: usize, x: &View<'_>) -> Result<usize> {
    resolve_axis(op, isize::try_from(axis).unwrap_or(isize::MAX), x.layout.rank())
}

/// Every index of a shape in row-major order.
pub(super) fn indices(shape: Shape) -> impl Iterator<Item = Vec<usize>> {
    (0..shape.numel()).map(move |flat| {
        let mut index = vec![0; shape.rank()];
        let mut rest = flat;
        for axis in (0..shape.rank()).rev() {
            index[axis] = rest % shape[axis];
            rest /= shape[axis];
        }
        index
    })
}

impl OracleBackend {
    /// The elements in row-major order.
    pub(super) fn read(&self, op: &str, name: &str, x: View<'_>) -> Result<Vec<Scalar>> {
        let bytes = self.memory.bytes(x.buffer).ok_or_else(|| foreign(op, name))?;
        fits(op, name, &x)?;
        Ok(x.layout.positions().map(|p| load(bytes, x.dtype, p)).collect())
    }

    /// The elements of a float tensor.
    pub(super) fn read_floats(&self, op: &str, name: &str, x: View<'_>) -> Result<Vec<f64>> {
        Ok(self.read(op, name, x)?.into_iter().map(Scalar::to_f64).collect())
    }

    /// Sets the elements, which `values` has in row-major order.
    pub(super) fn write(&self, op: &str, name: &str, out: &mut ViewMut<'_>, values: &[Scalar]) -> Result<()> {
        debug_assert_eq!(values.len(), out.layout.numel());
        self.writable(op, name, &out.as_view())?;
        let bytes = self.memory.bytes_mut(out.buffer).ok_or_else(|| foreign(op, name))?;
        for (position, &value) in out.layout.positions().zip(values) {
            store(bytes, out.dtype, position, value);
        }
        Ok(())
    }

    /// Checks that a view can be written: inside its buffer, no two elements in one place.
    pub(super) fn writable(&self, op: &str, name: &str, out: &View<'_>) -> Result<()> {
        self.memory.bytes(out.buffer).ok_or_else(|| foreign(op, name))?;
        fits(op, name, out)?;
        if out.layout.overlaps_itself() {
            return Err(Error::argument(op, format!("{name} has several elements in one place: {:?}", out.layout)));
        }
        Ok(())
    }
}

/// Checks that every element lies inside the buffer.
fn fits(op: &str, name: &str, x: &View<'_>) -> Result<()> {
    let elements = x.buffer.bytes() / x.dtype.size();
    if x.layout.numel() > 0 && x.layout.span().end > elements {
        let m = format!("{name} {:?} leaves its buffer of {elements} elements", x.layout);
        return Err(Error::argument(op, m));
    }
    Ok(())
}

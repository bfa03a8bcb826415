//! Turns views of the backend contract into operands of a kernel.

use gradus_backend::late::Access;
use gradus_backend::{Buffer, DType, Error, Layout, Result, Shape, View, ViewMut};

use crate::CudaBackend;
use crate::queue::Use;

/// A checked operand that is not empty.
#[derive(Clone, Copy)]
pub(crate) struct Operand<'a> {
    pub(crate) used: Use<'a>,
    /// The address of the element at index 0 on every axis.
    pub(crate) ptr: u64,
    pub(crate) dtype: DType,
    pub(crate) layout: &'a Layout,
}

impl CudaBackend {
    fn operand<'a>(
        &self,
        op: &str,
        name: &str,
        (buffer, dtype, layout): (&'a Buffer, DType, &'a Layout),
        access: Access,
    ) -> Result<Operand<'a>> {
        let block = self.memory().block(op, buffer)?;
        let end = layout.span().end;
        if end as u128 * dtype.size() as u128 > buffer.bytes() as u128 {
            let m = format!("{name} reaches element {end} of a buffer of {} bytes", buffer.bytes());
            return Err(Error::argument(op, m));
        }
        if access != Access::Read && layout.overlaps_itself() {
            return Err(Error::argument(op, format!("elements of the output {name} share memory: {layout:?}")));
        }
        let ptr = block.ptr + (layout.offset() * dtype.size()) as u64;
        Ok(Operand { used: Use { block, access }, ptr, dtype, layout })
    }

    /// An operand that is read. Checks its device and its bounds.
    pub(crate) fn input<'a>(&self, op: &str, name: &str, x: View<'a>) -> Result<Operand<'a>> {
        self.operand(op, name, (x.buffer, x.dtype, x.layout), Access::Read)
    }

    /// An operand that is overwritten. Checks its device and its bounds, and that its elements do not overlap.
    pub(crate) fn output<'a>(&self, op: &str, name: &str, x: &'a ViewMut<'_>) -> Result<Operand<'a>> {
        let whole = x.layout.numel() * x.dtype.size() == x.buffer.bytes();
        let access = if whole { Access::Replace } else { Access::Write };
        self.operand(op, name, (x.buffer, x.dtype, x.layout), access)
    }

    /// An operand that is read and written.
    pub(crate) fn updated<'a>(&self, op: &str, name: &str, x: &'a ViewMut<'_>) -> Result<Operand<'a>> {
        self.operand(op, name, (x.buffer, x.dtype, x.layout), Access::Write)
    }

    /// Checks the dtype and the shape of an operand.
    pub(crate) fn expect(&self, op: &str, name: &str, x: View<'_>, dtype: DType, shape: &[usize]) -> Result<()> {
        let dims = x.layout.dims();
        if x.dtype != dtype {
            let m = format!("{name} must be {dtype} here");
            let kind = gradus_backend::ErrorKind::DTypeMismatch;
            return Err(Error::new(kind, op, m).operand(name, dims, x.dtype, self.label()));
        }
        if dims != shape {
            let m = format!("{name} must have shape {}", Shape::display(shape));
            return Err(Error::shape(op, m).operand(name, dims, x.dtype, self.label()));
        }
        Ok(())
    }
}

//! Temporaries of a recurrent layer, and products with a weight that every step reads.

use gradus_backend::{Backend, Buffer, DType, Error, Layout, Result, Scalar, Shape, View, ViewMut};

use crate::ops::panels::{in_panels, product};

/// A contiguous tensor with its own buffer.
pub(super) struct Temp {
    buffer: Buffer,
    dtype: DType,
    layout: Layout,
}

impl Temp {
    pub(super) fn new(backend: &dyn Backend, dtype: DType, shape: Shape) -> Result<Temp> {
        let buffer = backend.alloc(shape.numel() * dtype.size())?;
        Ok(Temp { buffer, dtype, layout: Layout::contiguous(shape) })
    }

    /// A matrix with one cache line of padding after each row, so that rows do not map to the same cache sets.
    pub(super) fn apart(backend: &dyn Backend, dtype: DType, [rows, columns]: [usize; 2]) -> Result<Temp> {
        let stride = columns + PANEL / 2 / dtype.size();
        let buffer = backend.alloc(rows * stride * dtype.size())?;
        let layout = Layout::from_parts(Shape::new(&[rows, columns])?, &[stride as isize, 1], 0, rows * stride)?;
        Ok(Temp { buffer, dtype, layout })
    }

    pub(super) fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(super) fn view(&self) -> View<'_> {
        View { buffer: &self.buffer, dtype: self.dtype, layout: &self.layout }
    }

    pub(super) fn view_mut(&mut self) -> ViewMut<'_> {
        ViewMut { buffer: &mut self.buffer, dtype: self.dtype, layout: &self.layout }
    }
}

/// The bytes of a row of a panel: two cache lines.
const PANEL: usize = 128;
/// The largest number of rows for which a product is faster without panels.
const FEW_ROWS: usize = 3;

/// A matrix `[k, n]` that is the right operand of many products. For many rows it is copied into panels
/// `[n / width, k, width]`: a product with it is a batch of products with its panels, each of which is read
/// sequentially. For few rows, or if the columns do not fill panels, it is one panel, and a contiguous matrix is read
/// where it lies.
pub(super) enum Panels<'a> {
    Copied(Temp),
    Given(View<'a>, Layout),
}

impl<'a> Panels<'a> {
    /// Lays out a matrix for products with matrices of up to `rows` rows.
    pub(super) fn new(backend: &dyn Backend, matrix: View<'a>, rows: usize) -> Result<Panels<'a>> {
        let (k, n) = (matrix.layout.dims()[0], matrix.layout.dims()[1]);
        let width = PANEL / matrix.dtype.size();
        let width = if rows > FEW_ROWS && n.is_multiple_of(width) { width } else { n };
        let split = in_panels(matrix.layout, width)
            .ok_or_else(|| Error::argument("recurrent", "a matrix does not split into panels"))?;
        if width == n && matrix.layout.is_contiguous() {
            return Ok(Panels::Given(matrix, split));
        }
        let mut copy = Temp::new(backend, matrix.dtype, Shape::new(&[n / width, k, width])?)?;
        backend.copy_strided(matrix.with(&split), &mut copy.view_mut())?;
        Ok(Panels::Copied(copy))
    }

    /// `c = a @ matrix + beta * c` for `a [rows, k]` and `c [rows, n]`.
    pub(super) fn product(&self, backend: &dyn Backend, a: View<'_>, beta: Scalar, c: &mut ViewMut<'_>) -> Result<()> {
        let panels = match self {
            Panels::Copied(copy) => copy.view(),
            Panels::Given(matrix, layout) => matrix.with(layout),
        };
        product(backend, a, panels, beta, c)
    }
}

//! Convolution as matrix products over unfolded windows.
//!
//! With `K` elements in a kernel, `P` positions and `G` groups:
//! * `out [n, G, k/G, P] = w [G, k/G, c/G * K] @ unfold(x) [n, G, c/G * K, P] + bias`;
//! * `dx = fold(w^T @ g)`;
//! * `dw [G, k/G, c/G * K] = g [G, k/G, n * P] @ unfold(x) [G, c/G * K, n * P]^T`.

use super::{Temp, expect, expect_rank, read_as, stretched, write_as};
use crate::{Backend, DType, Error, Layout, Result, Scalar, Shape, View, ViewMut, Window};

/// The sizes of a convolution, checked against each other.
struct Sizes {
    n: usize,
    c: usize,
    k: usize,
    groups: usize,
    /// Number of kernel elements over the channels of one group.
    taps: usize,
    /// Number of window positions.
    positions: usize,
    /// The shape `[n, c, kernel.., positions..]`.
    unfolded: Shape,
}

impl Sizes {
    /// Checks the operands; `x` is the input, `w` the weight and `y` the output.
    fn new<B: Backend + ?Sized>(
        b: &B,
        op: &'static str,
        window: &Window,
        groups: usize,
        (x, w, y): (View<'_>, View<'_>, View<'_>),
    ) -> Result<Self> {
        if x.dtype == DType::Bool {
            return Err(Error::dtype(op, x.dtype, "numbers"));
        }
        let rank = window.rank;
        if !(1..=3).contains(&rank) {
            return Err(Error::argument(op, format!("a window over {rank} axes; 1 to 3 are possible")));
        }
        expect_rank(b, op, "x", x, rank + 2, "[n, c, spatial..]")?;
        expect_rank(b, op, "w", w, rank + 2, "[k, c / groups, kernel..]")?;
        let (n, c, k) = (x.layout.dims()[0], x.layout.dims()[1], w.layout.dims()[0]);
        if groups == 0 || !c.is_multiple_of(groups) || !k.is_multiple_of(groups) {
            let m = format!("{groups} groups do not divide {c} input and {k} output channels");
            return Err(Error::argument(op, m));
        }
        let kernel = &window.kernel[..rank];
        let positions = window.output(op, &x.layout.dims()[2..])?;
        let positions = &positions[..rank];
        expect(b, op, "w", w, x.dtype, &[&[k, c / groups], kernel].concat())?;
        expect(b, op, "the output", y, x.dtype, &[&[n, k], positions].concat())?;
        Ok(Sizes {
            n,
            c,
            k,
            groups,
            taps: c / groups * window.numel(),
            positions: positions.iter().product(),
            unfolded: Shape::new(&[&[n, c], kernel, positions].concat())?,
        })
    }

    /// The shape of the weight as one matrix per group.
    fn weight(&self) -> Result<Shape> {
        Shape::new(&[self.groups, self.k / self.groups, self.taps])
    }

    /// The shape of the output as one matrix per sample and group.
    fn output(&self) -> Result<Shape> {
        Shape::new(&[self.n, self.groups, self.k / self.groups, self.positions])
    }

    /// The shape of the unfolded input as one matrix per sample and group.
    fn columns(&self) -> Result<Shape> {
        Shape::new(&[self.n, self.groups, self.taps, self.positions])
    }

    /// Permutes the axes `[n, G, rows, P]` to `[G, rows, n, P]`; the returned shape `[G, rows, n * P]` merges the last
    /// two.
    fn samples_last(&self, layout: &Layout) -> Result<(Layout, Shape)> {
        let layout = layout.permute(&[1, 2, 0, 3])?;
        Ok((layout, Shape::new(&[self.groups, layout.dims()[1], self.n * self.positions])?))
    }
}

/// See [`Backend::conv`].
pub fn forward<B: Backend + ?Sized>(
    b: &B,
    window: &Window,
    groups: usize,
    x: View<'_>,
    w: View<'_>,
    bias: Option<View<'_>>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "conv";
    let s = Sizes::new(b, OP, window, groups, (x, w, out.as_view()))?;
    if let Some(bias) = bias {
        expect(b, OP, "bias", bias, x.dtype, &[s.k])?;
    }
    if out.layout.numel() == 0 {
        return Ok(());
    }
    let mut columns = Temp::new(b, x.dtype, s.unfolded)?;
    b.unfold(window, x, Scalar::Int(0), &mut columns.view_mut())?;
    let columns = columns.shaped(s.columns()?);
    let w = read_as(b, w, w.dtype, s.weight()?)?;
    let per_sample = Shape::new(&[s.n, s.groups, s.k / s.groups, s.taps])?;
    let w = stretched(w.view(), &per_sample)?;
    write_as(b, out, x.dtype, s.output()?, |out| {
        let mut beta = 0;
        if let Some(bias) = bias {
            // The matrix product below adds to the bias in `out`, so that a half-precision sum is rounded once.
            let rows = bias.layout.reshape(Shape::new(&[s.groups, s.k / s.groups])?);
            let rows = rows.ok_or_else(|| Error::shape(OP, "a bias has one axis"))?;
            b.copy_strided(bias.with(&rows.unsqueeze(2)?.expand(s.output()?)?), out)?;
            beta = 1;
        }
        b.gemm(Scalar::Int(1), w.view(), columns.view(), Scalar::Int(beta), out)
    })
}

/// See [`Backend::conv_backward_input`].
pub fn backward_input<B: Backend + ?Sized>(
    b: &B,
    window: &Window,
    groups: usize,
    g: View<'_>,
    w: View<'_>,
    dx: &mut ViewMut<'_>,
) -> Result<()> {
    let s = Sizes::new(b, "conv_backward_input", window, groups, (dx.as_view(), w, g))?;
    if dx.layout.numel() == 0 {
        return Ok(());
    }
    let compute = g.dtype.compute();
    let g = read_as(b, g, compute, s.output()?)?;
    let w = read_as(b, w, compute, s.weight()?)?;
    let transposed = w.view().layout.transpose(-1, -2)?;
    let per_sample = Shape::new(&[s.n, s.groups, s.taps, s.k / s.groups])?;
    let transposed = transposed.expand(per_sample)?;
    let w = w.view().with(&transposed);
    let mut columns = Temp::new(b, compute, s.columns()?)?;
    b.gemm(Scalar::Int(1), w, g.view(), Scalar::Int(0), &mut columns.view_mut())?;
    let shape = *dx.layout.shape();
    write_as(b, dx, compute, shape, |dx| b.fold(window, columns.shaped(s.unfolded).view(), dx))
}

/// See [`Backend::conv_backward_weight`].
pub fn backward_weight<B: Backend + ?Sized>(
    b: &B,
    window: &Window,
    groups: usize,
    x: View<'_>,
    g: View<'_>,
    dw: &mut ViewMut<'_>,
) -> Result<()> {
    let s = Sizes::new(b, "conv_backward_weight", window, groups, (x, dw.as_view(), g))?;
    if dw.layout.numel() == 0 {
        return Ok(());
    }
    debug_assert_eq!(s.unfolded[1], s.c);
    let mut columns = Temp::new(b, x.dtype, s.unfolded)?;
    b.unfold(window, x, Scalar::Int(0), &mut columns.view_mut())?;
    let columns = columns.shaped(s.columns()?);
    let (layout, shape) = s.samples_last(&columns.layout)?;
    let columns = read_as(b, columns.view().with(&layout), x.dtype, shape)?;
    let transposed = columns.view().layout.transpose(-1, -2)?;
    let columns = columns.view().with(&transposed);

    let g = read_as(b, g, g.dtype, s.output()?)?;
    let (layout, shape) = s.samples_last(g.view().layout)?;
    let g = read_as(b, g.view().with(&layout), g.view().dtype, shape)?;
    write_as(b, dw, x.dtype, s.weight()?, |dw| b.gemm(Scalar::Int(1), g.view(), columns, Scalar::Int(0), dw))
}

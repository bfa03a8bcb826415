//! Products with a matrix that lies in panels, which a backend can read in place.
//!
//! A backend says by [`BackendInfo::f32_panel`](gradus_backend::BackendInfo::f32_panel) how many columns a panel has.

use gradus_backend::{Backend, Error, Layout, Result, Scalar, Shape, View, ViewMut};

use super::linear::begin;
use super::{Flow, InputSpec, Operation, Outputs, apply_one, one};
use crate::Tensor;

/// `input [m, k] @ matrix [k, n] + bias [n]`, with the matrix in panels `[n / width, k, width]`, of which the last one is
/// filled up if `width` does not divide `n`. The result `[m, n]` has the bits of [`Linear`](super::Linear). Without a
/// derivative: it takes the place of other products in captured steps and in models that are only run.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LinearPanels {
    /// The number of columns of the matrix.
    pub n: usize,
}

/// The least number of elements of a matrix whose copy saves a noticeable part of a product's time.
const SMALLEST: usize = 1 << 10;

/// The least number of whole panels of a matrix whose columns leave the last one partly empty.
const MANY: usize = 4;

impl LinearPanels {
    /// Whether products with a matrix `[k, n]` gain by panels of this `width`.
    pub fn is_worth_it(k: usize, n: usize, width: usize) -> bool {
        width > 0 && (n.is_multiple_of(width) || n / width >= MANY) && k.saturating_mul(n) >= SMALLEST
    }

    /// Copies a matrix `[k, n]` into panels with columns of the given `width`.
    ///
    /// # Errors
    /// Fails for another rank, or a width of 0.
    #[track_caller]
    pub fn pack(matrix: &Tensor, width: usize) -> Result<Tensor> {
        let &[k, n] = matrix.shape() else {
            return Err(Error::shape("linear_panels", format!("a matrix has two axes, not {}", matrix.rank())));
        };
        if width == 0 {
            return Err(Error::argument("linear_panels", "a panel has at least one column"));
        }
        let (whole, rest) = (n / width, n % width);
        let split = |m: &Tensor| m.reshape([k, whole, width])?.transpose(0, 1);
        if rest == 0 {
            return split(matrix)?.copy();
        }
        let panels = Tensor::zeros([whole + 1, k, width], matrix.dtype(), matrix.device())?;
        panels.narrow(0, 0, whole)?.copy_(&split(&matrix.narrow(1, 0, whole * width)?)?)?;
        panels.select(0, whole as isize)?.narrow(1, 0, rest)?.copy_(&matrix.narrow(1, n - rest, rest)?)?;
        Ok(panels)
    }

    /// Computes the product; `bias` may be absent.
    ///
    /// # Errors
    /// Fails if the operands have other shapes or different dtypes.
    #[track_caller]
    pub fn apply(self, input: &Tensor, panels: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        match bias {
            Some(bias) => apply_one(self, &[input, panels, bias]),
            None => apply_one(self, &[input, panels]),
        }
    }
}

/// The layout of a matrix `[rows, n]` as panels `[n / width, rows, width]`; `None` if `width` does not divide `n`, or the
/// columns are not evenly strided.
pub(super) fn in_panels(matrix: &Layout, width: usize) -> Option<Layout> {
    let &[rows, n] = matrix.dims() else { return None };
    if width == 0 || !n.is_multiple_of(width) {
        return None;
    }
    matrix.reshape(Shape::new(&[rows, n / width, width]).ok()?)?.transpose(0, 1).ok()
}

/// `c = a @ matrix + beta * c` for `a [m, k]`, `c [m, n]` and the panels of the matrix.
pub(super) fn product(
    backend: &dyn Backend,
    a: View<'_>,
    panels: View<'_>,
    beta: Scalar,
    c: &mut ViewMut<'_>,
) -> Result<()> {
    let (&[_, k, width @ (1..)], &[m, n]) = (panels.layout.dims(), c.layout.dims()) else {
        return Err(Error::shape("linear_panels", "the panels have three axes, and the result has two"));
    };
    let (whole, rest) = (n / width, n % width);
    let full = c.layout.slice(1, 0, n - rest, 1)?;
    let full = in_panels(&full, width)
        .ok_or_else(|| Error::argument("linear_panels", "the result does not split into panels"))?;
    let every = a.layout.expand(Shape::new(&[whole, m, k])?)?;
    let first = panels.layout.slice(0, 0, whole, 1)?;
    backend.gemm(Scalar::Int(1), a.with(&every), panels.with(&first), beta, &mut c.with(&full))?;
    if rest == 0 {
        return Ok(());
    }
    let last = panels.layout.select(0, whole)?.slice(1, 0, rest, 1)?;
    let end = c.layout.slice(1, n - rest, n, 1)?;
    backend.gemm(Scalar::Int(1), a, panels.with(&last), beta, &mut c.with(&end))
}

impl Operation for LinearPanels {
    fn name(&self) -> &str {
        "linear_panels"
    }

    fn input_names(&self) -> &'static [&'static str] {
        &["input", "panels", "bias"]
    }

    fn infer(&self, inputs: &[InputSpec<'_>]) -> Result<Outputs> {
        let (&[m, k], &[count, rows, width]) = (&inputs[0].shape[..], &inputs[1].shape[..]) else {
            return Err(Error::shape("linear_panels", "the input is [m, k], and the panels are [n / width, k, width]"));
        };
        let fits = width > 0 && count == self.n.div_ceil(width) && k == rows;
        if !fits || inputs.get(2).is_some_and(|b| b.shape[..] != [self.n]) {
            let m = format!(
                "an input [{m}, {k}] and panels [{count}, {rows}, {width}] of a matrix with {} columns",
                self.n
            );
            return Err(
                Error::shape("linear_panels", m).help("a bias, if there is one, has as many elements as columns")
            );
        }
        match inputs.iter().find(|x| x.dtype != inputs[0].dtype || !x.dtype.is_float()) {
            Some(x) => Err(Error::dtype("linear_panels", x.dtype, "floats of one dtype")),
            None => Ok(one(Shape::new(&[m, self.n])?, inputs[0].dtype)),
        }
    }

    fn forward(&self, backend: &dyn Backend, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        let beta = begin(backend, inputs.get(2), &mut outputs[0])?;
        product(backend, inputs[0], inputs[1], beta, &mut outputs[0])
    }

    fn flow(&self) -> Flow {
        Flow::Mixes
    }

    fn differentiable(&self, _: usize) -> bool {
        false
    }
}

//! Products with a matrix that lies in panels, which a backend can read in place.
//!
//! A backend says by [`BackendInfo::f32_panel`](gradus_backend::BackendInfo::f32_panel) how many columns a panel has.

use gradus_backend::{Backend, Error, Layout, Result, Scalar, Shape, View, ViewMut};

use super::linear::begin;
use super::{Flow, InputSpec, Operation, Outputs, apply_one, one};
use crate::Tensor;

/// `input [m, k] @ matrix [k, n] + bias [n]`, with the matrix in panels `[n / columns, k, columns]`. The result `[m, n]` has
/// the bits of [`Linear`](super::Linear). Without a derivative: it takes the place of other products in captured steps and
/// in models that are only run.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LinearPanels;

impl LinearPanels {
    /// Computes the product; `bias` may be absent.
    ///
    /// # Errors
    /// Fails if the operands have other shapes or different dtypes.
    #[track_caller]
    pub fn apply(input: &Tensor, panels: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        match bias {
            Some(bias) => apply_one(LinearPanels, &[input, panels, bias]),
            None => apply_one(LinearPanels, &[input, panels]),
        }
    }
}

/// The layout of a matrix `[k, n]` as panels `[n / columns, k, columns]`; `None` if `columns` does not divide `n`, or the
/// columns are not evenly strided.
pub fn in_panels(matrix: &Layout, columns: usize) -> Option<Layout> {
    let &[k, n] = matrix.dims() else { return None };
    if columns == 0 || !n.is_multiple_of(columns) {
        return None;
    }
    matrix.reshape(Shape::new(&[k, n / columns, columns]).ok()?)?.transpose(0, 1).ok()
}

/// `c = a @ matrix + beta * c` for `a [m, k]`, `c [m, n]` and the panels of the matrix.
pub(super) fn product(
    backend: &dyn Backend,
    a: View<'_>,
    panels: View<'_>,
    beta: Scalar,
    c: &mut ViewMut<'_>,
) -> Result<()> {
    let &[count, k, columns] = panels.layout.dims() else {
        return Err(Error::shape("linear_panels", "the panels have three axes"));
    };
    let every = a.layout.expand(Shape::new(&[count, a.layout.dims()[0], k])?)?;
    let split = in_panels(c.layout, columns)
        .ok_or_else(|| Error::argument("linear_panels", "the result does not split into panels"))?;
    backend.gemm(Scalar::Int(1), a.with(&every), panels, beta, &mut c.with(&split))
}

impl Operation for LinearPanels {
    fn name(&self) -> &str {
        "linear_panels"
    }

    fn input_names(&self) -> &'static [&'static str] {
        &["input", "panels", "bias"]
    }

    fn infer(&self, inputs: &[InputSpec<'_>]) -> Result<Outputs> {
        let (&[m, k], &[count, rows, columns]) = (&inputs[0].shape[..], &inputs[1].shape[..]) else {
            return Err(Error::shape(
                "linear_panels",
                "the input is [m, k], and the panels are [n / columns, k, columns]",
            ));
        };
        if k != rows || inputs.get(2).is_some_and(|b| b.shape[..] != [count * columns]) {
            return Err(Error::shape("linear_panels", "the operands do not fit together"));
        }
        match inputs.iter().find(|x| x.dtype != inputs[0].dtype || !x.dtype.is_float()) {
            Some(x) => Err(Error::dtype("linear_panels", x.dtype, "floats of one dtype")),
            None => Ok(one(Shape::new(&[m, count * columns])?, inputs[0].dtype)),
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

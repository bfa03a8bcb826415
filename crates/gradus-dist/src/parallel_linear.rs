//! [`ColumnLinear`] and [`RowLinear`]: layers whose weight is divided among the ranks (Shoeybi et al., 2019).
//!
//! All ranks see the same batch and compute the same loss. A pair of the two needs one sum over the ranks in the forward
//! pass, and one in the backward pass.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use gradus_nn::{Forward, Linear, Module, Parameter, Visitor, VisitorMut};
use gradus_tensor::autograd::{Context, Keep};
use gradus_tensor::{CustomOp, Error, Here, Result, Tensor, apply_custom};

use crate::communicator::Communicator;
use crate::division::{Divided, copied, part_of, whole_of};
use crate::group::Line;
use crate::region::{Border, cross, enter, leave, sequence_axis};

/// This rank's part of a parameter, along an axis that must divide.
#[track_caller]
fn part(x: &Parameter, axis: usize, comm: &Arc<dyn Communicator>, layer: &str) -> Result<Parameter> {
    let (n, ranks) = (x.shape()[axis], comm.size());
    if n % ranks != 0 {
        let m = format!("{n} features do not divide among {ranks} ranks");
        return Err(Error::shape(layer, m).operand("weight", x.shape(), x.dtype(), x.device()));
    }
    part_of(x, Divided::along(axis, n, comm))
}

/// The whole layer, with copies of the parameters.
fn whole(part: &Linear, line: Line) -> Result<Linear> {
    let bias = part.bias.as_ref().map(|bias| whole_of(bias, line)).transpose()?;
    Linear::from_parameters(whole_of(&part.weight, line)?, bias)
}

/// A [`Linear`] whose output features are divided: `[.., in_features]`, the same on all ranks, to this rank's
/// `[.., out_features / ranks]`. Names in the state are those of the whole layer.
#[derive(Clone)]
pub struct ColumnLinear {
    /// This rank's rows of the weight, and of the bias.
    pub linear: Linear,
    sequence: Option<isize>,
    comm: Arc<dyn Communicator>,
}

impl ColumnLinear {
    /// This rank's part of a layer that has the same weights on all ranks.
    ///
    /// # Errors
    /// [`ErrorKind::ShapeMismatch`](gradus_tensor::ErrorKind::ShapeMismatch) if the output features do not divide.
    #[track_caller]
    pub fn of(whole: &Linear, comm: &Arc<dyn Communicator>) -> Result<Self> {
        let weight = part(&whole.weight, 0, comm, "column_linear")?;
        let bias = match &whole.bias {
            Some(bias) => Some(part(bias, 0, comm, "column_linear")?),
            None => None,
        };
        Ok(Self::from_part(Linear::from_parameters(weight, bias)?, comm))
    }

    /// The layer of which this rank has a part.
    pub(crate) fn from_part(linear: Linear, comm: &Arc<dyn Communicator>) -> Self {
        ColumnLinear { linear, sequence: None, comm: comm.clone() }
    }

    /// Takes this rank's part of the input along `axis`, as [`split_sequence`](crate::split_sequence) gives it, in place
    /// of the whole. The parts of the others are gathered for the product, and again for the gradient of the weight.
    #[must_use]
    pub fn sequence(mut self, axis: isize) -> Self {
        self.sequence = Some(axis);
        self
    }

    /// The whole layer, with copies of the parameters, on all ranks. All ranks call it.
    #[track_caller]
    pub fn whole(&self) -> Result<Linear> {
        whole(&self.linear, Location::caller()).here()
    }
}

/// The product of the parts that all ranks have of the input and a weight, `[.., in]` and `[out, in]`, plus a bias. The
/// graph holds this rank's part of the input only.
struct Gathered {
    axis: usize,
    comm: Arc<dyn Communicator>,
    line: Line,
}

impl CustomOp for Gathered {
    fn name(&self) -> &str {
        "gather_linear"
    }

    fn forward(&self, x: &[Tensor]) -> Result<Vec<Tensor>> {
        let whole = cross(Border::Gather(self.axis), &self.comm, &x[0], self.line)?;
        Ok(vec![whole.linear(&x[1], x.get(2))?])
    }

    fn keeps(&self, _: &[bool]) -> Keep {
        Keep::inputs([0, 1])
    }

    fn backward(&self, ctx: &Context<'_>, g: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> {
        let mut gradients = vec![None; ctx.input_count()];
        let Some(g) = &g[0] else { return Ok(gradients) };
        let (x, weight) = (ctx.input(0)?, ctx.input(1)?);
        let [out, features] = [weight.shape()[0], weight.shape()[1]];
        let flat = g.reshape([g.numel() / out.max(1), out])?;
        if ctx.needs(1) {
            let whole = cross(Border::Gather(self.axis), &self.comm, &x.to_dtype(g.dtype())?, self.line)?;
            let rows = whole.reshape([flat.shape()[0], features])?;
            gradients[1] = Some(flat.t()?.matmul(&rows)?.to_dtype(weight.dtype())?);
        }
        if ctx.needs(0) {
            let whole = g.matmul(&weight.to_dtype(g.dtype())?)?;
            gradients[0] =
                Some(cross(Border::ReduceScatter(self.axis), &self.comm, &whole, self.line)?.to_dtype(x.dtype())?);
        }
        if gradients.len() > 2 && ctx.needs(2) {
            gradients[2] = Some(flat.sum(&[0], false)?.to_dtype(ctx.input_spec(2)?.dtype)?);
        }
        Ok(gradients)
    }
}

impl Forward for ColumnLinear {
    #[track_caller]
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        let line = Location::caller();
        let Some(axis) = self.sequence else {
            return self.linear.forward(&enter(x, None, &self.comm, line)?);
        };
        let op = Arc::new(Gathered { axis: sequence_axis(x, axis).here()?, comm: self.comm.clone(), line });
        let inputs: Vec<&Tensor> =
            [Some(x), Some(self.linear.weight.tensor()), self.linear.bias.as_deref()].into_iter().flatten().collect();
        apply_custom(&op, &inputs)?.pop().ok_or_else(|| Error::argument(op.name(), "no output"))
    }
}

/// A [`Linear`] whose input features are divided: this rank's `[.., in_features / ranks]` to `[.., out_features]`, the
/// same on all ranks. Names in the state are those of the whole layer.
#[derive(Clone)]
pub struct RowLinear {
    /// This rank's columns of the weight, and the whole bias, which is added once.
    pub linear: Linear,
    sequence: Option<isize>,
    comm: Arc<dyn Communicator>,
}

impl RowLinear {
    /// This rank's part of a layer that has the same weights on all ranks.
    ///
    /// # Errors
    /// [`ErrorKind::ShapeMismatch`](gradus_tensor::ErrorKind::ShapeMismatch) if the input features do not divide.
    #[track_caller]
    pub fn of(whole: &Linear, comm: &Arc<dyn Communicator>) -> Result<Self> {
        let weight = part(&whole.weight, 1, comm, "row_linear")?;
        let bias = whole.bias.as_ref().map(copied).transpose()?;
        Ok(RowLinear { linear: Linear::from_parameters(weight, bias)?, sequence: None, comm: comm.clone() })
    }

    /// Gives this rank's part of the output along `axis` in place of the whole: `[batch, length / ranks, out_features]`
    /// for axis 1.
    #[must_use]
    pub fn sequence(mut self, axis: isize) -> Self {
        self.sequence = Some(axis);
        self
    }

    /// The whole layer, with copies of the parameters, on all ranks. All ranks call it.
    #[track_caller]
    pub fn whole(&self) -> Result<Linear> {
        whole(&self.linear, Location::caller()).here()
    }
}

impl Forward for RowLinear {
    #[track_caller]
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        let share = x.linear(&self.linear.weight, None)?;
        leave(&share, self.linear.bias.as_ref(), self.sequence, &self.comm, Location::caller()).here()
    }
}

macro_rules! around_linear {
    ($($layer:ty),*) => {$(
        impl Module for $layer {
            fn visit<'m>(&'m self, visitor: &mut Visitor<'m>) {
                visitor.wrapped(&self.linear);
            }

            fn visit_mut<'m>(&'m mut self, visitor: &mut VisitorMut<'m>) {
                visitor.wrapped(&mut self.linear);
            }
        }

        impl fmt::Display for $layer {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.tree().fmt(f)
            }
        }
    )*};
}
around_linear!(ColumnLinear, RowLinear);

//! [`ColumnLinear`] and [`RowLinear`]: layers whose weight is divided among the ranks (Shoeybi et al., 2019).
//!
//! All ranks see the same batch and compute the same loss. A pair of the two needs one sum over the ranks in the forward
//! pass, and one in the backward pass.

use std::panic::Location;
use std::sync::Arc;

use gradus_nn::{Forward, Linear, Module, Parameter};
use gradus_tensor::autograd::{Context, Keep};
use gradus_tensor::{CustomOp, Error, Result, Tensor, apply_custom, is_grad_enabled};

use crate::call::Collective;
use crate::communicator::Communicator;
use crate::group::Line;
use crate::reduce::Reduce;

/// The two operations at the borders of divided layers, each the gradient of the other: the identity, and the sum over
/// ranks.
struct Border {
    sums: bool,
    comm: Arc<dyn Communicator>,
    line: Line,
}

impl CustomOp for Border {
    fn name(&self) -> &str {
        if self.sums { "sum_over_ranks" } else { "enter_ranks" }
    }

    fn forward(&self, x: &[Tensor]) -> Result<Vec<Tensor>> {
        Ok(vec![if self.sums {
            self.comm.run(Collective::AllReduce(Reduce::Sum), &x[0], self.line)?
        } else {
            x[0].clone()
        }])
    }

    fn keeps(&self, _: &[bool]) -> Keep {
        Keep::NONE
    }

    fn backward(&self, _: &Context<'_>, g: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> {
        let Some(g) = &g[0] else { return Ok(vec![None]) };
        Ok(vec![Some(border(!self.sums, &self.comm, g, self.line)?)])
    }
}

fn border(sums: bool, comm: &Arc<dyn Communicator>, x: &Tensor, line: Line) -> Result<Tensor> {
    let op = Arc::new(Border { sums, comm: comm.clone(), line });
    if !(x.requires_grad() && is_grad_enabled()) {
        return op.forward(std::slice::from_ref(x))?.pop().ok_or_else(|| Error::argument(op.name(), "no output"));
    }
    apply_custom(&op, &[x]).map_err(|e| e.at(line))?.pop().ok_or_else(|| Error::argument(op.name(), "no output"))
}

/// This rank's part of a tensor, along an axis that must divide.
#[track_caller]
fn part(x: &Tensor, axis: usize, comm: &dyn Communicator, layer: &str) -> Result<Parameter> {
    let (n, ranks) = (x.shape()[axis], comm.size());
    if n % ranks != 0 {
        let m = format!("{n} features do not divide among {ranks} ranks");
        return Err(Error::shape(layer, m).operand("weight", x.shape(), x.dtype(), x.device()));
    }
    Parameter::new(x.narrow(axis as isize, comm.rank() * (n / ranks), n / ranks)?.copy()?)
}

/// A [`Linear`] whose output features are divided: `[.., in_features]`, the same on all ranks, to this rank's
/// `[.., out_features / ranks]`.
#[derive(Clone, Module)]
pub struct ColumnLinear {
    /// This rank's rows of the weight, and of the bias.
    pub linear: Linear,
    #[module(skip)]
    comm: Arc<dyn Communicator>,
}

impl ColumnLinear {
    /// This rank's part of a layer that has the same weights on all ranks.
    ///
    /// # Errors
    /// [`ErrorKind::ShapeMismatch`](gradus_tensor::ErrorKind::ShapeMismatch) if the output features do not divide.
    #[track_caller]
    pub fn of(whole: &Linear, comm: &Arc<dyn Communicator>) -> Result<Self> {
        let weight = part(&whole.weight.values().detach(), 0, &**comm, "column_linear")?;
        let bias = match &whole.bias {
            Some(bias) => Some(part(&bias.values().detach(), 0, &**comm, "column_linear")?),
            None => None,
        };
        Ok(ColumnLinear { linear: Linear::from_parameters(weight, bias)?, comm: comm.clone() })
    }
}

impl Forward for ColumnLinear {
    #[track_caller]
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        self.linear.forward(&border(false, &self.comm, x, Location::caller())?)
    }
}

/// A [`Linear`] whose input features are divided: this rank's `[.., in_features / ranks]` to `[.., out_features]`, the
/// same on all ranks.
#[derive(Clone, Module)]
pub struct RowLinear {
    /// This rank's columns of the weight.
    pub linear: Linear,
    /// The whole bias, which is added once.
    pub bias: Option<Parameter>,
    #[module(skip)]
    comm: Arc<dyn Communicator>,
}

impl RowLinear {
    /// This rank's part of a layer that has the same weights on all ranks.
    ///
    /// # Errors
    /// [`ErrorKind::ShapeMismatch`](gradus_tensor::ErrorKind::ShapeMismatch) if the input features do not divide.
    #[track_caller]
    pub fn of(whole: &Linear, comm: &Arc<dyn Communicator>) -> Result<Self> {
        let weight = part(&whole.weight.values().detach(), 1, &**comm, "row_linear")?;
        let bias = match &whole.bias {
            Some(bias) => Some(Parameter::new(bias.values().detach().copy()?)?),
            None => None,
        };
        Ok(RowLinear { linear: Linear::from_parameters(weight, None)?, bias, comm: comm.clone() })
    }
}

impl Forward for RowLinear {
    #[track_caller]
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        let y = border(true, &self.comm, &self.linear.forward(x)?, Location::caller())?;
        match &self.bias {
            Some(bias) => y.add(bias.tensor()),
            None => Ok(y),
        }
    }
}

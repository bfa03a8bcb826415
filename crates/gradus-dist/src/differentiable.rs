//! Gradients of collectives. Each gradient is again a collective, so they exist to any order.
//!
//! The loss is the sum of the losses of all ranks. Then the gradient of `all_reduce` is `all_reduce` of the gradients,
//! `all_gather` and `reduce_scatter` are each other's, `all_to_all` is its own, and the root of a `broadcast` receives
//! the sum of the gradients.

use std::sync::Arc;

use gradus_tensor::autograd::{Context, Keep};
use gradus_tensor::{CustomOp, Error, ErrorKind, Result, Tensor, apply_custom, is_grad_enabled};

use crate::call::Collective;
use crate::communicator::{Communicator, check};
use crate::group::Line;
use crate::reduce::Reduce;

/// A collective as an operation of the graph.
struct Recorded {
    collective: Collective,
    /// The only rank that keeps the result of an `all_reduce`; the others have zeros. It is the gradient of `broadcast`.
    only: Option<usize>,
    comm: Arc<dyn Communicator>,
    line: Line,
}

impl CustomOp for Recorded {
    fn name(&self) -> &str {
        self.collective.name()
    }

    fn forward(&self, x: &[Tensor]) -> Result<Vec<Tensor>> {
        let y = self.comm.run(self.collective, &x[0], self.line)?;
        Ok(vec![if self.only.is_none_or(|rank| rank == self.comm.rank()) { y } else { y.zeros_like()? }])
    }

    fn keeps(&self, _: &[bool]) -> Keep {
        Keep::NONE
    }

    fn backward(&self, ctx: &Context<'_>, g: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> {
        // Every rank must make the call, also one whose gradient is zero.
        let g = match &g[0] {
            Some(g) => g.clone(),
            None => {
                return Err(Error::new(ErrorKind::Autograd, self.name(), "a gradient without a value").at(self.line));
            }
        };
        let spec = ctx.input_spec(0)?;
        let run = |collective| self.comm.recorded(collective, None, &g, self.line);
        let dx = match self.collective {
            Collective::AllReduce(Reduce::Sum) => match self.only {
                Some(root) => run(Collective::Broadcast(root))?,
                None => run(Collective::AllReduce(Reduce::Sum))?,
            },
            Collective::ReduceScatter(Reduce::Sum) => run(Collective::AllGather)?,
            Collective::AllGather => run(Collective::ReduceScatter(Reduce::Sum))?,
            Collective::AllToAll => run(Collective::AllToAll)?,
            Collective::Broadcast(root) => {
                self.comm.recorded(Collective::AllReduce(Reduce::Sum), Some(root), &g, self.line)?
            }
            other => {
                let m = format!("{other} has no gradient");
                return Err(Error::new(ErrorKind::Autograd, self.name(), m).at(self.line));
            }
        };
        Ok(vec![Some(if dx.shape() == &spec.shape[..] { dx } else { dx.reshape(&spec.shape[..])? })])
    }
}

impl dyn Communicator + '_ {
    /// Makes a call that is recorded if `x` is tracked.
    pub(crate) fn differentiable(&self, collective: Collective, x: &Tensor, line: Line) -> Result<Tensor> {
        check(collective, x, self, line)?;
        self.recorded(collective, None, x, line)
    }

    fn recorded(&self, collective: Collective, only: Option<usize>, x: &Tensor, line: Line) -> Result<Tensor> {
        if only.is_none() && !(x.requires_grad() && is_grad_enabled()) {
            return self.run(collective, x, line);
        }
        let op = Arc::new(Recorded { collective, only, comm: self.share(), line });
        apply_custom(&op, &[x]).map_err(|e| e.at(line))?.pop().ok_or_else(|| Error::argument(op.name(), "no output"))
    }
}

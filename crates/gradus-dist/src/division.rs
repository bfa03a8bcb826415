//! [`Divided`]: how a parameter is divided among the ranks.

use std::ops::Range;
use std::sync::Arc;

use gradus_nn::{Division, Parameter};
use gradus_tensor::{DType, Error, Result, Tensor};

use crate::call::Collective;
use crate::communicator::Communicator;
use crate::group::Line;
use crate::reduce::Reduce;
use crate::region::{Border, cross, enter, joined, leave, looked_up, range};

/// How a parameter is divided: along an axis, on which blocks of these lengths lie one after another. Each rank has its
/// [`range`] of each of them.
pub(crate) struct Divided {
    pub(crate) axis: usize,
    pub(crate) blocks: Vec<usize>,
    pub(crate) output: Output,
    pub(crate) comm: Arc<dyn Communicator>,
}

/// What a layer of `gradus_nn` with a divided weight gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Output {
    /// What it computes from the part, since a layer of this crate around it exchanges what is to be exchanged.
    Own,
    /// This rank's part of the outputs, if these are divided.
    Part,
    /// The outputs of all ranks.
    Whole,
}

impl Divided {
    /// For a layer of this crate, along an axis.
    pub(crate) fn along(axis: usize, length: usize, comm: &Arc<dyn Communicator>) -> Divided {
        Divided { axis, blocks: vec![length], output: Output::Own, comm: comm.clone() }
    }

    /// This rank's ranges of the blocks, each in its block.
    fn own(&self) -> impl Iterator<Item = Range<usize>> {
        self.blocks.iter().map(|&n| range(n, self.comm.rank(), self.comm.size()))
    }
}

impl Division for Divided {
    fn gather(&self, numbers: &[f64], line: Line) -> Result<Vec<f64>> {
        gathered(&*self.comm, numbers, line)
    }

    fn group(&self) -> usize {
        Arc::as_ptr(&self.comm).addr()
    }

    fn linear(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: Option<&Parameter>,
        output_axis: usize,
        line: Line,
    ) -> Result<Tensor> {
        if self.output == Output::Own {
            return x.linear(weight, bias.map(|bias| bias.tensor()));
        }
        if bias.is_some_and(|bias| bias.division().is_some() != (self.axis == output_axis)) {
            let m = "a bias is divided if its weight is divided along the outputs, and only then";
            let e = Error::argument("divide", m).at(line).operand(
                "weight",
                weight.shape(),
                weight.dtype(),
                weight.device(),
            );
            return Err(e.help("have both or neither in the plan, the bias with Split::Axis(0)"));
        }
        if self.axis != output_axis {
            return leave(&x.linear(weight, None)?, bias, None, &self.comm, line);
        }
        let y = enter(x, None, &self.comm, line)?.linear(weight, bias.map(|bias| bias.tensor()))?;
        match self.output {
            Output::Whole => cross(Border::Join(y.rank() - 1, self.blocks.iter().sum()), &self.comm, &y, line),
            _ => Ok(y),
        }
    }

    fn embedding(&self, weight: &Tensor, ids: &Tensor, padding: Option<usize>, line: Line) -> Result<Tensor> {
        if self.axis != 0 {
            let e = Error::argument("embedding", "a table is divided along axis 0, and this one along axis 1");
            return Err(e.operand("weight", weight.shape(), weight.dtype(), weight.device()));
        }
        looked_up(weight, ids, (self.blocks.iter().sum(), padding), None, &self.comm, line)
    }

    fn whole_shape(&self, part: &[usize]) -> Vec<usize> {
        let mut shape = part.to_vec();
        if let Some(length) = shape.get_mut(self.axis) {
            *length = self.blocks.iter().sum();
        }
        shape
    }

    fn whole(&self, part: &Tensor, line: Line) -> Result<Tensor> {
        let (mut first, mut wholes) = (0, vec![]);
        for (own, &n) in self.own().zip(&self.blocks) {
            let block = part.narrow(self.axis as isize, first, own.len())?;
            wholes.push(joined(&block, self.axis, n, &*self.comm, line)?);
            first += own.len();
        }
        Tensor::cat(&wholes.iter().collect::<Vec<_>>(), self.axis as isize)
    }

    fn part(&self, whole: &Tensor) -> Result<Tensor> {
        let (mut first, mut parts) = (0, vec![]);
        for (own, n) in self.own().zip(&self.blocks) {
            parts.push(whole.narrow(self.axis as isize, first + own.start, own.len())?);
            first += n;
        }
        // A copy in any case, since a view would hold the memory of the whole.
        Tensor::cat(&parts.iter().collect::<Vec<_>>(), self.axis as isize)
    }
}

/// This rank's part of a parameter.
pub(crate) fn part_of(whole: &Parameter, divided: Divided) -> Result<Parameter> {
    if whole.division().is_some() {
        let e = Error::argument("divide", "the parameter is a part already, and is divided again");
        return Err(e
            .operand("part", whole.shape(), whole.dtype(), whole.device())
            .help("divide the whole layer once"));
    }
    let part = Parameter::divided(divided.part(&whole.values().detach())?, Arc::new(divided))?;
    if whole.is_frozen() {
        part.freeze();
    }
    Ok(part)
}

/// The parameter of which this rank has a part, or a copy of one that it has as a whole. All ranks call it.
pub(crate) fn whole_of(parameter: &Parameter, line: Line) -> Result<Parameter> {
    let Some(division) = parameter.division() else { return copied(parameter) };
    let whole = Parameter::new(division.whole(&parameter.values().detach(), line)?)?;
    if parameter.is_frozen() {
        whole.freeze();
    }
    Ok(whole)
}

/// A copy of a parameter.
pub(crate) fn copied(parameter: &Parameter) -> Result<Parameter> {
    parameter.with_values(parameter.values().detach().copy()?)
}

/// The numbers of all ranks, one after the other.
pub(crate) fn gathered(comm: &dyn Communicator, mine: &[f64], line: Line) -> Result<Vec<f64>> {
    let (rank, sum) = (comm.rank(), Collective::AllReduce(Reduce::Sum));
    let mut counts = vec![0; comm.size()];
    counts[rank] = mine.len() as u64;
    let counts = comm.run_on_host(sum, DType::U64, counts, line)?;
    let at = counts[..rank].iter().sum::<u64>() as usize;
    let mut words = vec![0.0f64.to_bits(); counts.iter().sum::<u64>() as usize];
    words[at..at + mine.len()].iter_mut().zip(mine).for_each(|(word, x)| *word = x.to_bits());
    // Each number is added to zeros, which is exact.
    let all = comm.run_on_host(sum, DType::F64, words, line)?;
    Ok(all.into_iter().map(f64::from_bits).collect())
}

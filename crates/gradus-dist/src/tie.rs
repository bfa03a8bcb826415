//! [`Tie`]: two parameters of a pipeline that have the same values, such as the table of tokens and the weight of the head.

use std::sync::Arc;

use gradus_nn::{Module, Parameter};
use gradus_tensor::{DType, Error, Gradients, Result, Tensor, no_grad};

use crate::call::Collective;
use crate::communicator::Communicator;
use crate::group::Line;
use crate::reduce::Reduce;

/// Two parameters with the same values, each on one rank.
#[derive(Debug, Clone)]
pub(crate) struct Tie {
    /// Those of this rank.
    pub(crate) first: Option<Parameter>,
    pub(crate) second: Option<Parameter>,
    /// The two ranks that have them, the first one's as rank 0, if they are different and this is one of them.
    pair: Option<Arc<dyn Communicator>>,
}

impl Tie {
    /// Finds the parameters by their names, and gives the second the values of the first.
    pub(crate) fn new(
        comm: &dyn Communicator,
        stage: &(impl Module + ?Sized),
        names: [&str; 2],
        line: Line,
    ) -> Result<Tie> {
        let parameters = stage.named_parameters();
        let [first, second] =
            names.map(|name| parameters.iter().find(|(other, _)| other == name).map(|(_, p)| p.clone()));
        let mine = |there: &Option<Parameter>| there.as_ref().map_or(0, |_| comm.rank() as u64 + 1);
        let owners = vec![mine(&first), mine(&second)];
        let owners = comm.run_on_host(Collective::AllReduce(Reduce::Max), DType::U64, owners, line)?;
        if let Some((name, _)) = names.iter().zip(&owners).find(|(_, owner)| **owner == 0) {
            let e = Error::argument("tie", format!("no stage has a parameter {name}"));
            return Err(
                e.help("names are those of stage.named_parameters(); a shared parameter has its first name only")
            );
        }
        let mut tie = Tie { first, second, pair: None };
        if owners[0] == owners[1] {
            if let (Some(first), Some(second)) = (&tie.first, &tie.second) {
                second.set(&first.values().detach())?;
            }
            return Ok(tie);
        }
        let takes_part = tie.first.is_some() || tie.second.is_some();
        let pair = comm.split_by(u32::from(!takes_part), i64::from(tie.second.is_some()), line)?;
        if let Some(parameter) = tie.first.as_ref().or(tie.second.as_ref()) {
            // Shapes and dtypes that differ are an error of this call on both ranks.
            parameter.set(&pair.run(Collective::Broadcast(0), &parameter.values().detach(), line)?)?;
            tie.pair = Some(pair);
        }
        Ok(tie)
    }

    /// Gives both parameters the sum of their gradients, that of the first before that of the second.
    pub(crate) fn sum(&self, gradients: &mut Gradients, line: Line) -> Result<()> {
        let found = |gradients: &Gradients, p: &Parameter| gradients.get(p.tensor()).map(Tensor::detach);
        let (parameters, sum): (Vec<&Parameter>, _) = match (&self.first, &self.second, &self.pair) {
            (Some(first), Some(second), _) => {
                let sum = match (found(gradients, first), found(gradients, second)) {
                    (Some(a), Some(b)) => Some(no_grad(|| a.add(&b))?),
                    (a, b) => a.or(b),
                };
                (vec![first, second], sum)
            }
            (Some(p), None, Some(pair)) | (None, Some(p), Some(pair)) => {
                let (run, gradient) = (Collective::AllReduce(Reduce::Sum), found(gradients, p));
                let there = pair.run_on_host(run, DType::U64, vec![u64::from(gradient.is_some())], line)?;
                let sum = match there[..] {
                    [0] => None,
                    _ => Some(pair.run(run, &gradient.map_or_else(|| p.values().zeros_like(), Ok)?, line)?),
                };
                (vec![p], sum)
            }
            _ => return Ok(()),
        };
        match sum {
            Some(sum) => parameters
                .into_iter()
                .filter(|p| !p.is_frozen())
                .try_for_each(|p| gradients.insert(p.tensor(), sum.copy()?)),
            None => Ok(()),
        }
    }
}

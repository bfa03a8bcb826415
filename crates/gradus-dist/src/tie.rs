//! [`Tie`]: two parameters of a pipeline that have the same values, such as the table of tokens and the weight of the head.

use std::sync::Arc;

use gradus_nn::{Module, Parameter};
use gradus_tensor::{DType, Error, Gradients, Result, Tensor, no_grad};

use crate::call::Collective;
use crate::communicator::Communicator;
use crate::fact::fact;
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
    /// Finds the parameters by their names, and gives the second the values of the first. `earlier` are the other
    /// ties of the pipeline.
    pub(crate) fn new(
        comm: &dyn Communicator,
        stage: &(impl Module + ?Sized),
        names: [&str; 2],
        earlier: &[Tie],
        line: Line,
    ) -> Result<Tie> {
        if names[0] == names[1] {
            return Err(Error::argument("tie", format!("a parameter {} is tied to itself", names[0])));
        }
        let parameters = stage.named_parameters();
        let [first, second] =
            names.map(|name| parameters.iter().find(|(other, _)| other == name).map(|(_, p)| p.clone()));
        // For each name: how many ranks have the parameter, which rank does, and whether it is in another tie. All ranks see
        // the same sums, and so the same errors.
        let tied = |p: &Parameter| earlier.iter().any(|tie| tie.parameters().any(|q| q.is_same(p)));
        let words = |p: &Option<Parameter>| match p {
            Some(p) => [1, comm.rank() as u64, u64::from(tied(p))],
            None => [0; 3],
        };
        let words = [words(&first), words(&second)].concat();
        let words = comm.run_on_host(Collective::AllReduce(Reduce::Sum), DType::U64, words, line)?;
        let found: Vec<[u64; 3]> = words.chunks_exact(3).map(|word| [word[0], word[1], word[2]]).collect();
        for (name, [count, _, tied]) in names.iter().zip(&found) {
            let (m, help) = match (count, tied) {
                (1, 0) => continue,
                (1, _) => (format!("the parameter {name} is tied twice"), "tie each parameter at most once"),
                (0, _) => (
                    format!("no stage has a parameter {name}"),
                    "names are those of stage.named_parameters(); a shared parameter has its first name only",
                ),
                _ => (
                    format!("{count} stages have a parameter {name}"),
                    "give each parameter a name that no other stage has, as Stage does",
                ),
            };
            return Err(Error::argument("tie", m).help(help));
        }
        let mut tie = Tie { first, second, pair: None };
        if found[0][1] == found[1][1] {
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

    /// Those of this rank.
    fn parameters(&self) -> impl Iterator<Item = &Parameter> {
        self.first.iter().chain(&self.second)
    }

    /// Fails unless the parameters are among those of the stage.
    pub(crate) fn check(&self, parameters: &[Parameter]) -> Result<()> {
        if self.parameters().all(|p| parameters.iter().any(|q| q.is_same(p))) {
            return Ok(());
        }
        let e = Error::argument("tie", "a tied parameter is no longer one of the stage");
        Err(e.help("make the pipeline and its ties again after a change of dtype or device"))
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
                let there = Tensor::from_vec(vec![f32::from(u8::from(gradient.is_some()))], [1], p.device())?;
                pair.run_in_place(run, &there, line)?;
                let sum = match fact::<f32>(&there, "the tied parameters that have a gradient", line)?[..] {
                    [0.0] => None,
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

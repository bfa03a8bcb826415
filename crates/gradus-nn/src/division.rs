//! [`Division`]: how a parameter is divided among processes, each of which has a part of it.

use std::panic::Location;
use std::sync::Arc;

use gradus_tensor::{Result, Tensor};

use crate::Parameter;

/// How a parameter is divided among processes, and what layers and optimisers need from those with the other parts.
/// The crate `gradus-dist` implements it. All of these processes make the same calls in the same order, with the line of
/// the caller.
pub trait Division: Send + Sync {
    /// The numbers of all processes that have a part, in the same order on all of them.
    fn gather(&self, numbers: &[f64], line: &'static Location<'static>) -> Result<Vec<f64>>;

    /// Equal for parameters that are divided among the same processes.
    fn group(&self) -> usize;

    /// What [`Tensor::linear`] computes from the whole parameters, where `weight [out, in]` is the part of this process,
    /// or its transpose. `output_axis` is the axis of the outputs in the parameter. Whether `input` and the result are the
    /// same on all processes, or are parts too, is a matter of the division.
    fn linear(
        &self,
        input: &Tensor,
        weight: &Tensor,
        bias: Option<&Parameter>,
        output_axis: usize,
        line: &'static Location<'static>,
    ) -> Result<Tensor>;

    /// What [`Tensor::embedding`] computes from the whole table, of which `weight` is the part of this process.
    fn embedding(
        &self,
        weight: &Tensor,
        ids: &Tensor,
        padding_idx: Option<usize>,
        line: &'static Location<'static>,
    ) -> Result<Tensor>;

    /// The shape of the whole parameter, of which a part has the shape `part`.
    fn whole_shape(&self, part: &[usize]) -> Vec<usize>;

    /// The whole of a tensor with the shape of the parameter, of which this process has `part`.
    fn whole(&self, part: &Tensor, line: &'static Location<'static>) -> Result<Tensor>;

    /// This process' part of a tensor with the shape of the whole parameter.
    fn part(&self, whole: &Tensor) -> Result<Tensor>;
}

/// How [`Parameter`]s of a model are to be divided, as `gradus::dist::divide` does it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// Along this axis.
    Axis(usize),
    /// Along this axis, on which so many blocks of the same length lie one after another, such as queries, keys and
    /// values: each process has a part of each of them.
    Blocks(usize, usize),
    /// Along axis 0, which counts the tokens of a vocabulary and need not divide evenly. A linear layer with this weight gives the outputs of all
    /// processes.
    Vocabulary,
    /// As [`Vocabulary`](Split::Vocabulary), but a linear layer gives the outputs of this process alone, such as the logits
    /// of some classes for `gradus::dist::parallel_cross_entropy`.
    Classes,
    /// A random state that is not divided, but draws other numbers on each process, because what it is used for is divided.
    Random,
}

/// One division for each group of processes among which some of the parameters are divided.
pub fn divisions<'a>(parameters: impl IntoIterator<Item = &'a Parameter>) -> Vec<Arc<dyn Division>> {
    let mut found: Vec<Arc<dyn Division>> = vec![];
    for division in parameters.into_iter().filter_map(Parameter::division) {
        if !found.iter().any(|other| other.group() == division.group()) {
            found.push(division.clone());
        }
    }
    found
}

/// Whether all processes that have parts of these parameters say yes.
pub(crate) fn on_all(parameters: &[Parameter], yes: bool, line: &'static Location<'static>) -> Result<bool> {
    let mut all = yes;
    for division in divisions(parameters) {
        all &= division.gather(&[f64::from(u8::from(yes))], line)?.iter().all(|&yes| yes == 1.0);
    }
    Ok(all)
}

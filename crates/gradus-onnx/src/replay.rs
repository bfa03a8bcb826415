//! [`Replays`]: runs of a model that are replayed. The first run of a model is an ordinary one. The next ones are traced,
//! and once two traces for the same sizes agree, runs with these sizes replay the operations, without the graph of the
//! model and the arithmetic of its shapes.

use gradus_graph::Captured;
use gradus_tensor::{Device, Result, Tensor};

use crate::elem::Elem;
use crate::value::{Array, OnnxValue};

/// The most elements of an integer input whose values may decide what runs.
const FEW: usize = 16;

/// How many different values of these inputs are told apart.
const VALUES: usize = 8;

/// An output of a run, besides its tensor.
#[derive(Debug, Clone, PartialEq)]
enum Output {
    Tensor(Elem),
    Host(Elem, Vec<usize>, Vec<i64>),
}

/// How runs are replayed.
enum Stage {
    /// The model was not run yet. The first run loads constants to where they are needed.
    New,
    /// Only the sizes of inputs decide what runs.
    Sizes(Captured<Vec<Output>>),
    /// The values of small integer inputs decide too. The number of a form is the position of its values.
    Values(Captured<Vec<Output>>, Vec<Vec<Option<Vec<i64>>>>),
    /// Runs are not replayed.
    Off,
}

/// The replays of a model.
pub(crate) struct Replays {
    stage: Stage,
    /// The replays of earlier stages.
    before: u64,
}

impl Replays {
    pub(crate) fn new() -> Replays {
        Replays { stage: Stage::New, before: 0 }
    }

    /// The number of runs that were replays.
    pub(crate) fn count(&self) -> u64 {
        let now = match &self.stage {
            Stage::Sizes(captured) | Stage::Values(captured, _) => captured.replays(),
            Stage::New | Stage::Off => 0,
        };
        self.before + now
    }

    /// Goes on in another way.
    fn go_on(&mut self, stage: Stage) {
        self.before = self.count();
        self.stage = stage;
    }

    /// Runs `f`, the model, on its inputs, or replays it.
    pub(crate) fn run(
        &mut self,
        inputs: &[Option<OnnxValue>],
        device: &Device,
        mut f: impl FnMut(Vec<Option<OnnxValue>>) -> Result<Vec<OnnxValue>>,
    ) -> Result<Vec<OnnxValue>> {
        let array = |value: &'_ Option<OnnxValue>| match value {
            None => Some(None),
            Some(OnnxValue::Tensor(array)) => Some(Some(array.clone())),
            Some(_) => None,
        };
        let Some(arrays) = inputs.iter().map(array).collect::<Option<Vec<_>>>() else { return f(inputs.to_vec()) };
        if let Stage::Sizes(captured) = &self.stage
            && captured.refusal().is_some()
        {
            self.go_on(Stage::Values(Captured::or_eager(), Vec::new()));
        }
        if let Stage::Values(captured, _) = &self.stage
            && captured.refusal().is_some()
        {
            self.go_on(Stage::Off);
        }
        let (captured, form, fixed) = match &mut self.stage {
            Stage::Off => return f(inputs.to_vec()),
            Stage::New => {
                self.stage = Stage::Sizes(Captured::or_eager());
                return f(inputs.to_vec());
            }
            Stage::Sizes(captured) => (captured, 0, vec![None; arrays.len()]),
            Stage::Values(captured, known) => {
                let fixed = arrays.iter().map(|a| a.as_ref().and_then(few_integers)).collect::<Vec<_>>();
                let form = match known.iter().position(|values| *values == fixed) {
                    Some(form) => form,
                    None if known.len() < VALUES => {
                        known.push(fixed.clone());
                        known.len() - 1
                    }
                    None => return f(inputs.to_vec()),
                };
                (captured, form, fixed)
            }
        };
        let varies = |i: usize| arrays[i].as_ref().filter(|_| fixed[i].is_none());
        let tensors = (0..arrays.len()).filter_map(varies).map(|a| a.raw(device)).collect::<Result<Vec<_>>>()?;
        // What an output is that cannot leave a replay.
        let mut other = None;
        let step = |given: &[Tensor]| {
            let mut given = given.iter();
            let value = |(array, fixed): (&Option<Array>, &Option<Vec<i64>>)| {
                let array = array.as_ref()?;
                match fixed {
                    Some(values) => Some(Array::host(array.elem(), array.shape().to_vec(), values.clone())),
                    None => given.next().map(|tensor| Array::stored(array.elem(), tensor.clone())),
                }
            };
            let values = arrays.iter().zip(&fixed).map(value).map(|a| a.map(OnnxValue::Tensor)).collect();
            let results = f(values)?;
            let (mut tensors, mut outputs) = (Vec::new(), Vec::new());
            for result in &results {
                match result {
                    OnnxValue::Tensor(a) => match a.on_host() {
                        Some(ints) => outputs.push(Output::Host(a.elem(), a.shape().to_vec(), ints.to_vec())),
                        None => {
                            outputs.push(Output::Tensor(a.elem()));
                            tensors.push(a.raw(device)?);
                        }
                    },
                    _ => {
                        other = Some(results);
                        return Ok((Vec::new(), Vec::new()));
                    }
                }
            }
            Ok((tensors, outputs))
        };
        let (tensors, outputs) = captured.call(form as u64, &tensors.iter().collect::<Vec<_>>(), step)?;
        if let Some(results) = other {
            self.go_on(Stage::Off);
            return Ok(results);
        }
        let mut tensors = tensors.into_iter();
        let value = |output: Output| match output {
            Output::Host(elem, shape, ints) => Some(Array::host(elem, shape, ints)),
            Output::Tensor(elem) => tensors.next().map(|tensor| Array::stored(elem, tensor)),
        };
        Ok(outputs.into_iter().filter_map(value).map(OnnxValue::Tensor).collect())
    }
}

/// The elements of a small array of integers or booleans.
fn few_integers(array: &Array) -> Option<Vec<i64>> {
    let integers = array.elem().dtype().is_some_and(|d| !d.is_float());
    if !integers || array.numel() > FEW {
        return None;
    }
    array.ints().ok().map(|ints| ints.to_vec())
}

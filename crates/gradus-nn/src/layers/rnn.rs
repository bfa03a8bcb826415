//! The recurrent layers [`Rnn`], [`Lstm`] and [`Gru`].

use gradus_tensor::ops::{RecurrentCell, RecurrentOptions};
use gradus_tensor::{Error, Generator, Here, Result, Tensor};

use super::dropout::check_probability;
use super::lstm_projected::projected;
use crate::module::ForwardPass;
use crate::{Forward, Init, Mode, Module, Parameter, RandomState, Visitor, VisitorMut};

/// Options of [`Rnn`], [`Lstm`] and [`Gru`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RecurrentConfig {
    /// Number of layers, each of which reads the outputs of the one below; at least 1. Default 1.
    pub num_layers: usize,
    /// Whether the layers have biases. Default true.
    pub bias: bool,
    /// Whether the batch axis comes first in input and output, and not the time axis. The states begin with the axis of
    /// the layers and directions in any case. Default false.
    pub batch_first: bool,
    /// Probability of dropping an output of each layer but the last in training, 0 to 1. Default 0.
    pub dropout: f64,
    /// Whether each layer also reads the sequences from the end. The outputs of both directions are concatenated.
    /// Default false.
    pub bidirectional: bool,
    /// The number of features to which a matrix projects the hidden states of an [`Lstm`], less than `hidden_size`
    /// (Sak et al., 2014); 0 for none. The other layers have no projection. Default 0.
    pub proj_size: usize,
}

impl Default for RecurrentConfig {
    fn default() -> Self {
        let (num_layers, bias, batch_first, dropout, bidirectional, proj_size) = (1, true, false, 0.0, false, 0);
        RecurrentConfig { num_layers, bias, batch_first, dropout, bidirectional, proj_size }
    }
}

/// The activation of an [`Rnn`] or [`RnnCell`](super::RnnCell).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Nonlinearity {
    /// The hyperbolic tangent.
    #[default]
    Tanh,
    /// `max(x, 0)`
    Relu,
}

impl Nonlinearity {
    pub(super) fn cell(self) -> RecurrentCell {
        match self {
            Nonlinearity::Tanh => RecurrentCell::RnnTanh,
            Nonlinearity::Relu => RecurrentCell::RnnRelu,
        }
    }
}

/// The parameters of one layer in one direction: two weights, two biases or none, and the weight of a projection to
/// `proj` features unless that is 0.
pub(super) fn parameters(
    cell: RecurrentCell,
    [features, hidden, proj]: [usize; 3],
    bias: bool,
    init: &mut Init<'_>,
) -> Result<Vec<Parameter>> {
    if hidden == 0 {
        return Err(Error::argument(cell.name(), "the hidden size is 0"));
    }
    let wide = hidden.checked_mul(cell.gates()).ok_or_else(|| Error::argument(cell.name(), "too many features"))?;
    let bound = 1.0 / (hidden as f64).sqrt();
    let of_state = if proj > 0 { proj } else { hidden };
    let shapes = [&[wide, features][..], &[wide, of_state], &[wide], &[wide], &[proj, hidden]];
    // At most five parameters.
    let mut made = vec![];
    for shape in names(bias, proj).map(|k| shapes[k]) {
        made.push(Parameter::new(init.uniform(shape, -bound, bound)?)?);
    }
    Ok(made)
}

/// The names of parameters, without the number of the layer.
const NAMES: [&str; 5] = ["weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr"];

/// Which of [`NAMES`] the [`parameters`] have.
fn names(bias: bool, proj: usize) -> impl Iterator<Item = usize> {
    (0..NAMES.len()).filter(move |&k| if k < 4 { bias || k < 2 } else { proj > 0 })
}

/// Runs one layer in one direction.
#[track_caller]
pub(super) fn layer(
    options: RecurrentOptions<'_>,
    x: &Tensor,
    states: &[&Tensor],
    parameters: &[Parameter],
) -> Result<Vec<Tensor>> {
    let biases = if let [_, _, a, b] = parameters { Some([a.tensor(), b.tensor()]) } else { None };
    let [w_ih, w_hh, ..] = parameters else { return Err(Error::argument("recurrent", "the layer has no weights")) };
    x.recurrent(options, states, [w_ih, w_hh], biases)
}

/// What the three layers share.
#[derive(Clone)]
struct Stack {
    kind: &'static str,
    cell: RecurrentCell,
    input_size: usize,
    hidden_size: usize,
    /// The features of the output in one direction.
    output_size: usize,
    config: RecurrentConfig,
    /// The parameters of each layer and direction.
    parameters: Vec<Vec<Parameter>>,
    random: RandomState,
    mode: Mode,
}

impl Stack {
    fn new(
        kind: &'static str,
        cell: RecurrentCell,
        [input_size, hidden_size]: [usize; 2],
        config: RecurrentConfig,
        init: &mut Init<'_>,
    ) -> Result<Stack> {
        let RecurrentConfig { num_layers, dropout, proj_size, .. } = config;
        if num_layers == 0 {
            return Err(Error::argument(cell.name(), "the number of layers is 0"));
        }
        if proj_size > 0 && cell != RecurrentCell::Lstm {
            return Err(Error::argument(
                cell.name(),
                format!("proj_size is {proj_size}; only an Lstm has projections"),
            ));
        }
        if proj_size > 0 && proj_size >= hidden_size {
            let m = format!("proj_size is {proj_size}; it is less than the {hidden_size} hidden features");
            return Err(Error::argument(cell.name(), m));
        }
        let output_size = if proj_size > 0 { proj_size } else { hidden_size };
        check_probability(cell.name(), "dropout", dropout)?;
        let directions = 1 + usize::from(config.bidirectional);
        let product =
            |a: usize| a.checked_mul(directions).ok_or_else(|| Error::argument(cell.name(), "too many features"));
        let (count, wide) = (product(num_layers)?, product(output_size)?);
        // At most as many as there are layers and directions.
        let mut made = vec![];
        for i in 0..count {
            let features = if i < directions { input_size } else { wide };
            made.push(parameters(cell, [features, hidden_size, proj_size], config.bias, init)?);
        }
        let random = RandomState::new(Generator::new(init.generator.next_u64()));
        let mode = Mode::Train;
        Ok(Stack { kind, cell, input_size, hidden_size, output_size, config, parameters: made, random, mode })
    }

    fn directions(&self) -> usize {
        1 + usize::from(self.config.bidirectional)
    }

    /// The names of the parameters of layer and direction `i`.
    fn names(&self, i: usize) -> impl Iterator<Item = String> + use<> {
        let d = self.directions();
        let name = move |k| format!("{}_l{}{}", NAMES[k], i / d, if i % d == 1 { "_reverse" } else { "" });
        names(self.config.bias, self.config.proj_size).map(name)
    }

    /// Runs all layers: the output, and the final state of each kind.
    #[track_caller]
    fn run(
        &self,
        input: &Tensor,
        lengths: Option<&[usize]>,
        states: Option<&[&Tensor]>,
    ) -> Result<(Tensor, Vec<Tensor>)> {
        let op = self.cell.name();
        let unbatched = input.rank() == 2;
        if input.rank() != 3 && !unbatched {
            let e = Error::shape(op, "the input has rank 3, or rank 2 for one sequence");
            return Err(e.operand("input", input.shape(), input.dtype(), input.device()));
        }
        let features = input.shape()[input.rank() - 1];
        if features != self.input_size {
            let m = format!("the input has {features} features, the layer takes {}", self.input_size);
            let e = Error::shape(op, m);
            return Err(e.operand("input", input.shape(), input.dtype(), input.device()));
        }
        let mut x = match () {
            () if unbatched => input.unsqueeze(1)?,
            () if self.config.batch_first => input.transpose(0, 1)?,
            () => input.clone(),
        };
        let (b, count) = (x.shape()[1], self.parameters.len());
        // At most two states.
        let mut initial = vec![];
        for i in 0..self.cell.states() {
            // The first state is the output of a step.
            let features = if i == 0 { self.output_size } else { self.hidden_size };
            let shape: &[usize] = if unbatched { &[count, features] } else { &[count, b, features] };
            let state = match states.and_then(|s| s.get(i)) {
                Some(&state) => state.clone(),
                None => Tensor::zeros(shape, input.dtype().to_float(), input.device())?,
            };
            if state.shape() != shape {
                let e =
                    Error::shape(op, format!("an initial state is not {shape:?} (layers and directions, n, hidden)"));
                let e = e.operand("input", input.shape(), input.dtype(), input.device());
                return Err(e.operand("state", state.shape(), state.dtype(), state.device()));
            }
            initial.push(if unbatched { state.unsqueeze(1)? } else { state });
        }
        // At most two lists, as long as there are layers and directions.
        let mut finals: Vec<Vec<Tensor>> = vec![vec![]; initial.len()];
        let d = self.directions();
        for (number, both) in self.parameters.chunks(d).enumerate() {
            // At most two directions.
            let mut outputs = vec![];
            for (way, parameters) in both.iter().enumerate() {
                // At most two states.
                let mut begin = vec![];
                for state in &initial {
                    begin.push(state.select(0, (number * d + way) as isize)?);
                }
                let mut found = match &begin[..] {
                    [h, c] if self.config.proj_size > 0 => projected(&x, lengths, way == 1, [h, c], parameters)?,
                    _ => {
                        let mut options = RecurrentOptions::new(self.cell).reverse(way == 1);
                        if let Some(lengths) = lengths {
                            options = options.lengths(lengths);
                        }
                        layer(options, &x, &begin.iter().collect::<Vec<_>>(), parameters)?
                    }
                }
                .into_iter();
                outputs.extend(found.next());
                finals.iter_mut().zip(found).for_each(|(finals, state)| finals.push(state));
            }
            x = match &outputs[..] {
                [one] => one.clone(),
                several => Tensor::cat(&several.iter().collect::<Vec<_>>(), 2)?,
            };
            let last = (number + 1) * d == count;
            if self.mode.is_training() && self.config.dropout > 0.0 && !last {
                let mut draw = self.random.begin();
                let dropped = x.dropout(self.config.dropout, &mut draw.generator);
                x = draw.end(dropped)?;
            }
        }
        let y = match () {
            () if unbatched => x.squeeze(1)?,
            () if self.config.batch_first => x.transpose(0, 1)?,
            () => x,
        };
        let mut ends = vec![]; // at most two
        for finals in &finals {
            let state = Tensor::stack(&finals.iter().collect::<Vec<_>>(), 0)?;
            ends.push(if unbatched { state.squeeze(1)? } else { state });
        }
        Ok((y, ends))
    }

    /// [`run`](Stack::run), which restores the random state after an error.
    #[track_caller]
    fn run_or_restore(
        &self,
        input: &Tensor,
        lengths: Option<&[usize]>,
        states: Option<&[&Tensor]>,
    ) -> Result<(Tensor, Vec<Tensor>)> {
        if lengths.is_some() && input.rank() == 2 {
            let e = Error::argument(self.cell.name(), "lengths are given for an input without a batch axis");
            return Err(e.help("pass the part of the sequence that counts: input.narrow(0, 0, length)?"));
        }
        let pass = ForwardPass::begin()?;
        pass.end(self, self.run(input, lengths, states))
    }
}

impl Module for Stack {
    fn visit<'m>(&'m self, visitor: &mut Visitor<'m>) {
        visitor.kind(self.kind);
        let c = &self.config;
        visitor.child("input_size", &self.input_size);
        visitor.child("hidden_size", &self.hidden_size);
        visitor.child("num_layers", &c.num_layers);
        visitor.child("batch_first", &c.batch_first);
        visitor.child("dropout", &c.dropout);
        visitor.child("bidirectional", &c.bidirectional);
        if c.proj_size > 0 {
            visitor.child("proj_size", &c.proj_size);
        }
        for (i, parameters) in self.parameters.iter().enumerate() {
            for (name, parameter) in self.names(i).zip(parameters) {
                visitor.child(name, parameter);
            }
        }
        visitor.child("random", &self.random);
        visitor.child("mode", &self.mode);
    }

    fn visit_mut<'m>(&'m mut self, visitor: &mut VisitorMut<'m>) {
        // At most five for each layer and direction.
        let names: Vec<Vec<String>> = (0..self.parameters.len()).map(|i| self.names(i).collect()).collect();
        for (names, parameters) in names.into_iter().zip(&mut self.parameters) {
            for (name, parameter) in names.into_iter().zip(parameters) {
                visitor.child(name, parameter);
            }
        }
        visitor.child("random", &mut self.random);
        visitor.child("mode", &mut self.mode);
    }
}

/// An Elman network: layers that compute `h' = tanh(W x + b + U h + c)` (or `relu`) at each step.
///
/// Input `[t, n, input_size]`, or `[n, t, input_size]` if `batch_first` is set, or `[t, input_size]` for one sequence.
/// Output: the same with `hidden_size` features, twice as many if the layer is bidirectional. Parameters have PyTorch's
/// names, shapes and initial values (uniform in `±1 / sqrt(hidden_size)`): `weight_ih_l0`, `weight_hh_l0`, `bias_ih_l0`,
/// `bias_hh_l0`, then the same with `_reverse`, and so on with `_l1`.
///
/// ```
/// # use gradus_nn::{Forward, Init, Nonlinearity, RecurrentConfig, Rnn}; use gradus_tensor::*;
/// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
/// # let mut generator = Generator::new(0);
/// # let mut init = Init::new(DType::F32, &device, &mut generator);
/// let rnn = Rnn::new(3, 4, Nonlinearity::Tanh, RecurrentConfig::default(), &mut init)?;
/// let x = Tensor::ones([5, 2, 3], DType::F32, &device)?;
/// assert_eq!(rnn.forward(&x)?.shape(), [5, 2, 4]);
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Module)]
pub struct Rnn(Stack);

/// Long short-term memory (Hochreiter and Schmidhuber, 1997); the formula stands at
/// [`RecurrentCell::Lstm`](gradus_tensor::ops::RecurrentCell::Lstm).
///
/// Shapes and names are those of [`Rnn`]; the weights have four rows for each hidden feature, for the gates `i`, `f`, `g`
/// and `o` in this order. With `proj_size`, output and hidden state have so many features: each hidden state is
/// multiplied by `weight_hr_l0 [proj_size, hidden_size]`. Its steps then run one operation after the other, not as one
/// fused operation.
///
/// ```
/// # use gradus_nn::{Init, Lstm, Module, RecurrentConfig}; use gradus_tensor::*;
/// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
/// # let mut generator = Generator::new(0);
/// # let mut init = Init::new(DType::F32, &device, &mut generator);
/// let config = RecurrentConfig { num_layers: 2, bidirectional: true, batch_first: true, ..Default::default() };
/// let lstm = Lstm::new(3, 4, config, &mut init)?;
/// let x = Tensor::ones([2, 5, 3], DType::F32, &device)?;
/// // Two sequences of the lengths 5 and 2.
/// let (y, [h, c]) = lstm.run(&x, Some(&[5, 2]), None)?;
/// assert_eq!((y.shape(), h.shape(), c.shape()), (&[2, 5, 8][..], &[4, 2, 4][..], &[4, 2, 4][..]));
/// assert_eq!(lstm.named_parameters()[4].0, "weight_ih_l0_reverse");
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Module)]
pub struct Lstm(Stack);

/// A gated recurrent unit (Cho et al., 2014); the formula stands at
/// [`RecurrentCell::Gru`](gradus_tensor::ops::RecurrentCell::Gru).
///
/// Shapes and names are those of [`Rnn`]; the weights have three rows for each hidden feature, for the gates `r`, `z` and
/// `n` in this order.
#[derive(Clone, Module)]
pub struct Gru(Stack);

impl Rnn {
    /// Creates the layers with new parameters. Errors if there are no layers or no hidden features, if the dropout
    /// probability is outside 0 to 1, or if `proj_size` is not 0.
    #[track_caller]
    pub fn new(
        input_size: usize,
        hidden_size: usize,
        nonlinearity: Nonlinearity,
        config: RecurrentConfig,
        init: &mut Init<'_>,
    ) -> Result<Self> {
        Ok(Rnn(Stack::new("Rnn", nonlinearity.cell(), [input_size, hidden_size], config, init).here()?))
    }
}

impl Lstm {
    /// Creates the layers with new parameters. Errors as [`Rnn::new`] does, and if a projection has not fewer features
    /// than the hidden states.
    #[track_caller]
    pub fn new(input_size: usize, hidden_size: usize, config: RecurrentConfig, init: &mut Init<'_>) -> Result<Self> {
        Ok(Lstm(Stack::new("Lstm", RecurrentCell::Lstm, [input_size, hidden_size], config, init).here()?))
    }

    /// Runs the layers and returns the output, and the final hidden and cell states
    /// `[layers * directions, n, hidden_size]` (the hidden state has `proj_size` features, if there is a projection).
    /// See [`Rnn::run`]; `states` are the initial hidden and cell states.
    #[track_caller]
    pub fn run(
        &self,
        input: &Tensor,
        lengths: Option<&[usize]>,
        states: Option<[&Tensor; 2]>,
    ) -> Result<(Tensor, [Tensor; 2])> {
        let (y, finals) = self.0.run_or_restore(input, lengths, states.as_ref().map(|s| &s[..]))?;
        match <[Tensor; 2]>::try_from(finals) {
            Ok(finals) => Ok((y, finals)),
            Err(_) => Err(Error::argument("lstm", "the layers gave no final states")),
        }
    }
}

impl Gru {
    /// Creates the layers with new parameters. Errors as [`Rnn::new`] does.
    #[track_caller]
    pub fn new(input_size: usize, hidden_size: usize, config: RecurrentConfig, init: &mut Init<'_>) -> Result<Self> {
        Ok(Gru(Stack::new("Gru", RecurrentCell::Gru, [input_size, hidden_size], config, init).here()?))
    }
}

macro_rules! one_state {
    ($($layer:ident $name:literal),*) => {$(
        impl $layer {
            /// Runs the layers and returns the output and the final states `[layers * directions, n, hidden_size]`, or
            /// `[layers * directions, hidden_size]` for one sequence. The states of layer 0 come first, forward before
            /// reverse. The initial states `state` have the same shape and are 0 by default.
            ///
            /// `lengths` are the lengths of the sequences of a padded batch, in descending order. The output is then 0
            /// behind the end of each sequence, and its final state is that after its own last step, as with
            /// PyTorch's `pack_padded_sequence` and `pad_packed_sequence`. After an error, the random state of dropout
            /// is restored.
            ///
            /// # Errors
            /// Fails if the input or the state has another shape, and if the lengths are not in descending order, are
            /// 0 or exceed the time steps, or are not as many as there are sequences.
            #[track_caller]
            pub fn run(
                &self,
                input: &Tensor,
                lengths: Option<&[usize]>,
                state: Option<&Tensor>,
            ) -> Result<(Tensor, Tensor)> {
                let (y, mut finals) = self.0.run_or_restore(input, lengths, state.as_ref().map(std::slice::from_ref))?;
                match finals.pop() {
                    Some(last) => Ok((y, last)),
                    None => Err(Error::argument($name, "the layers gave no final state")),
                }
            }
        }
    )*};
}
one_state!(Rnn "rnn", Gru "gru");

macro_rules! forward {
    ($($layer:ident),*) => {$(
        impl Forward for $layer {
            /// The output, without the final states.
            #[track_caller]
            fn compute(&self, input: &Tensor) -> Result<Tensor> {
                Ok(self.0.run(input, None, None)?.0)
            }
        }
    )*};
}
forward!(Rnn, Lstm, Gru);

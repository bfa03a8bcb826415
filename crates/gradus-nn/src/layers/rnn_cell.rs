//! The cells of recurrent layers, which compute one step: [`RnnCell`], [`LstmCell`] and [`GruCell`].

use gradus_tensor::ops::{RecurrentCell, RecurrentOptions};
use gradus_tensor::{Error, Here, Result, Tensor};

use super::rnn::{Nonlinearity, layer, parameters};
use crate::module::out_of_forward;
use crate::{Init, Module, Parameter};

/// What the three cells share.
#[derive(Clone, Module)]
struct Cell {
    input_size: usize,
    hidden_size: usize,
    weight_ih: Parameter,
    weight_hh: Parameter,
    bias_ih: Option<Parameter>,
    bias_hh: Option<Parameter>,
    #[module(skip)]
    cell: RecurrentCell,
}

impl Cell {
    fn new(cell: RecurrentCell, sizes: [usize; 2], bias: bool, init: &mut Init<'_>) -> Result<Cell> {
        let [input_size, hidden_size] = sizes;
        let mut made = parameters(cell, [input_size, hidden_size, 0], bias, init)?.into_iter();
        let (Some(weight_ih), Some(weight_hh)) = (made.next(), made.next()) else {
            return Err(Error::argument(cell.name(), "the cell has no weights"));
        };
        Ok(Cell { input_size, hidden_size, weight_ih, weight_hh, bias_ih: made.next(), bias_hh: made.next(), cell })
    }

    /// The new states from the old ones, which are 0 if they are absent.
    #[track_caller]
    fn step(&self, input: &Tensor, states: &[Option<&Tensor>]) -> Result<Vec<Tensor>> {
        let (name, h) = (self.cell.name(), self.hidden_size);
        let single = input.rank() == 1;
        let describe = |e: Error| e.operand("input", input.shape(), input.dtype(), input.device());
        if !matches!(input.rank(), 1 | 2) || input.shape()[input.rank() - 1] != self.input_size {
            let m = format!("the input is not [n, {0}] or [{0}]", self.input_size);
            return Err(describe(Error::shape(name, m)));
        }
        let x = if single { input.unsqueeze(0)? } else { input.clone() };
        // At most two states.
        let mut old = vec![];
        for state in states {
            let wanted: &[usize] = if single { &[h] } else { &[x.shape()[0], h] };
            old.push(match state {
                None => Tensor::zeros([x.shape()[0], h], input.dtype().to_float(), input.device())?,
                Some(state) if state.shape() != wanted => {
                    let e = describe(Error::shape(name, format!("a state is not {wanted:?}")));
                    return Err(e.operand("state", state.shape(), state.dtype(), state.device()));
                }
                Some(state) => state.reshape([x.shape()[0], h])?,
            });
        }
        // At most four parameters.
        let mut parameters = vec![self.weight_ih.clone(), self.weight_hh.clone()];
        parameters.extend(self.bias_ih.iter().chain(&self.bias_hh).cloned());
        let options = RecurrentOptions::new(self.cell);
        let found = layer(options, &x.unsqueeze(0)?, &old.iter().collect::<Vec<_>>(), &parameters)?;
        // At most two states.
        let mut new = vec![];
        for state in found.into_iter().skip(1) {
            new.push(if single { state.squeeze(0)? } else { state });
        }
        Ok(new)
    }
}

/// One step of an [`Rnn`](super::Rnn): `h' = tanh(W x + b + U h + c)`, or `relu`. Parameters: `weight_ih`, `weight_hh`,
/// `bias_ih` and `bias_hh`, initialised as in [`Rnn`](super::Rnn).
#[derive(Clone, Module)]
pub struct RnnCell(Cell);

/// One step of an [`Lstm`](super::Lstm).
///
/// ```
/// # use gradus_nn::{Init, LstmCell}; use gradus_tensor::*;
/// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
/// # let mut generator = Generator::new(0);
/// let cell = LstmCell::new(3, 4, true, &mut Init::new(DType::F32, &device, &mut generator))?;
/// let x = Tensor::ones([2, 3], DType::F32, &device)?;
/// let (h, c) = cell.step(&x, None)?;
/// let (h, _) = cell.step(&x, Some((&h, &c)))?;
/// assert_eq!(h.shape(), [2, 4]);
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Module)]
pub struct LstmCell(Cell);

/// One step of a [`Gru`](super::Gru).
#[derive(Clone, Module)]
pub struct GruCell(Cell);

impl RnnCell {
    /// Creates a cell with new parameters. Errors if the hidden size is 0.
    #[track_caller]
    pub fn new(
        input_size: usize,
        hidden_size: usize,
        bias: bool,
        nonlinearity: Nonlinearity,
        init: &mut Init<'_>,
    ) -> Result<Self> {
        Ok(RnnCell(Cell::new(nonlinearity.cell(), [input_size, hidden_size], bias, init).here()?))
    }
}

impl GruCell {
    /// Creates a cell with new parameters. Errors if the hidden size is 0.
    #[track_caller]
    pub fn new(input_size: usize, hidden_size: usize, bias: bool, init: &mut Init<'_>) -> Result<Self> {
        Ok(GruCell(Cell::new(RecurrentCell::Gru, [input_size, hidden_size], bias, init).here()?))
    }
}

impl LstmCell {
    /// Creates a cell with new parameters. Errors if the hidden size is 0.
    #[track_caller]
    pub fn new(input_size: usize, hidden_size: usize, bias: bool, init: &mut Init<'_>) -> Result<Self> {
        Ok(LstmCell(Cell::new(RecurrentCell::Lstm, [input_size, hidden_size], bias, init).here()?))
    }

    /// The new hidden and cell state from `input [n, input_size]` (or `[input_size]`) and the old ones
    /// `[n, hidden_size]` (or `[hidden_size]`), which are 0 by default. Errors if a shape does not fit.
    #[track_caller]
    pub fn step(&self, input: &Tensor, states: Option<(&Tensor, &Tensor)>) -> Result<(Tensor, Tensor)> {
        let (h, c) = states.unzip();
        let new = self.0.step(input, &[h, c]).map_err(|e| out_of_forward(self, e.here()))?;
        match <[Tensor; 2]>::try_from(new) {
            Ok([h, c]) => Ok((h, c)),
            Err(_) => Err(Error::argument("lstm", "the step gave no states")),
        }
    }
}

macro_rules! one_state {
    ($($cell:ident $name:literal),*) => {$(
        impl $cell {
            /// The new hidden state from `input [n, input_size]` (or `[input_size]`) and the old one `[n, hidden_size]`
            /// (or `[hidden_size]`), which is 0 by default. Errors if a shape does not fit.
            #[track_caller]
            pub fn step(&self, input: &Tensor, state: Option<&Tensor>) -> Result<Tensor> {
                let new = self.0.step(input, &[state]).map_err(|e| out_of_forward(self, e.here()))?.pop();
                new.ok_or_else(|| Error::argument($name, "the step gave no state")).here()
            }
        }
    )*};
}
one_state!(RnnCell "rnn", GruCell "gru");

//! The formulas of one time step of each [`RecurrentCell`], and of its gradient.

use std::sync::Arc;

use gradus_backend::{DType, Expr, Kernel, Result};

use crate::ops::UpdateFn;

/// The cell of a recurrent layer. Each gate is a block of rows of the weights, in the order given here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RecurrentCell {
    /// `h' = tanh(W x + b + U h + c)`
    RnnTanh,
    /// `h' = relu(W x + b + U h + c)`
    RnnRelu,
    /// Long short-term memory (Hochreiter and Schmidhuber, 1997). With the gates `i`, `f`, `g`, `o` of
    /// `W x + b + U h + c`: `c' = sigmoid(f) * c + sigmoid(i) * tanh(g)` and `h' = sigmoid(o) * tanh(c')`.
    Lstm,
    /// Gated recurrent unit (Cho et al., 2014). With the gates `r`, `z`, `n` of `W x + b` and of `U h + c`:
    /// `n' = tanh(n_x + sigmoid(r_x + r_h) * n_h)` and `h' = n' + sigmoid(z_x + z_h) * (h - n')`.
    Gru,
}

impl RecurrentCell {
    /// The number of gates: the weights have this many times `hidden_size` rows.
    pub fn gates(self) -> usize {
        match self {
            RecurrentCell::RnnTanh | RecurrentCell::RnnRelu => 1,
            RecurrentCell::Lstm => 4,
            RecurrentCell::Gru => 3,
        }
    }

    /// The number of states: 2 for the LSTM, which has a cell state as well as a hidden state, and otherwise 1.
    pub fn states(self) -> usize {
        if self == RecurrentCell::Lstm { 2 } else { 1 }
    }

    /// The name: `rnn_tanh`, `rnn_relu`, `lstm` or `gru`.
    pub fn name(self) -> &'static str {
        match self {
            RecurrentCell::RnnTanh => "rnn_tanh",
            RecurrentCell::RnnRelu => "rnn_relu",
            RecurrentCell::Lstm => "lstm",
            RecurrentCell::Gru => "gru",
        }
    }

    /// Whether the products of the input and of the hidden state are only ever used as their sum.
    pub(super) fn adds_products(self) -> bool {
        self != RecurrentCell::Gru
    }

    /// The kernel of a step. Arguments: the gates; for a GRU, the gates of the hidden state; and the old state, except
    /// for an RNN. Outputs: the new states, twice.
    pub(super) fn step(self, dtype: DType) -> Result<Arc<Kernel>> {
        static RNN_TANH: UpdateFn = UpdateFn::new("rnn_tanh", |x| vec![x[0].tanh(); 2]);
        static RNN_RELU: UpdateFn = UpdateFn::new("rnn_relu", |x| vec![x[0].relu(); 2]);
        static LSTM: UpdateFn = UpdateFn::new("lstm", |x| {
            let c = x[1].sigmoid() * x[4] + x[0].sigmoid() * x[2].tanh();
            let h = x[3].sigmoid() * c.tanh();
            vec![h, c, h, c]
        });
        static GRU: UpdateFn = UpdateFn::new("gru", |x| {
            let n = (x[2] + (x[0] + x[3]).sigmoid() * x[5]).tanh();
            vec![n + (x[1] + x[4]).sigmoid() * (x[6] - n); 2]
        });
        let (kernel, args) = match self {
            RecurrentCell::RnnTanh => (&RNN_TANH, 1),
            RecurrentCell::RnnRelu => (&RNN_RELU, 1),
            RecurrentCell::Lstm => (&LSTM, 5),
            RecurrentCell::Gru => (&GRU, 7),
        };
        kernel.kernel(&[dtype; 7][..args], &[dtype; 4][..2 * self.states()])
    }

    /// The kernel of the gradient of a step.
    ///
    /// Arguments: the gates; for a GRU, those of the hidden state; the old state, except for an RNN; for an LSTM, the
    /// new cell state; the gradient of the output of this step; and the gradient of the new hidden state from later
    /// steps. For an LSTM, two gradients of the new cell state follow: its own as an output, and that from later steps.
    ///
    /// Outputs: the gradients of the gates. For a GRU, the gradient of the last gate of the hidden state and the direct
    /// part of the gradient of the old state follow; for an LSTM, the gradient of the old cell state.
    pub(super) fn step_backward(self, dtype: DType) -> Result<Arc<Kernel>> {
        static RNN_TANH: UpdateFn = UpdateFn::new("rnn_tanh_backward", |x| {
            let y = x[0].tanh();
            vec![(x[1] + x[2]) * (1.0 - y * y)]
        });
        static RNN_RELU: UpdateFn = UpdateFn::new("rnn_relu_backward", |x| vec![x[0].le(0.0).select(0.0, x[1] + x[2])]);
        static LSTM: UpdateFn = UpdateFn::new("lstm_backward", lstm_backward);
        static GRU: UpdateFn = UpdateFn::new("gru_backward", gru_backward);
        let (kernel, args, outputs) = match self {
            RecurrentCell::RnnTanh => (&RNN_TANH, 3, 1),
            RecurrentCell::RnnRelu => (&RNN_RELU, 3, 1),
            RecurrentCell::Lstm => (&LSTM, 10, 5),
            RecurrentCell::Gru => (&GRU, 9, 5),
        };
        kernel.kernel(&[dtype; 10][..args], &[dtype; 5][..outputs])
    }
}

fn lstm_backward<'k>(x: &[Expr<'k>]) -> Vec<Expr<'k>> {
    let [i, f, g, o] = [x[0].sigmoid(), x[1].sigmoid(), x[2].tanh(), x[3].sigmoid()];
    let (c_old, dh, y) = (x[4], x[6] + x[7], x[5].tanh());
    let dc = x[8] + x[9] + dh * o * (1.0 - y * y);
    let slope = |s: Expr<'k>| s * (1.0 - s);
    vec![dc * g * slope(i), dc * c_old * slope(f), dc * i * (1.0 - g * g), dh * y * slope(o), dc * f]
}

fn gru_backward<'k>(x: &[Expr<'k>]) -> Vec<Expr<'k>> {
    let (r, z) = ((x[0] + x[3]).sigmoid(), (x[1] + x[4]).sigmoid());
    let n = (x[2] + r * x[5]).tanh();
    let dh = x[7] + x[8];
    let dn = dh * (1.0 - z) * (1.0 - n * n);
    vec![dn * x[5] * r * (1.0 - r), dh * (x[6] - n) * z * (1.0 - z), dn, dn * r, dh * z]
}

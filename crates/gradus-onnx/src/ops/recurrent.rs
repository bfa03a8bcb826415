//! `RNN`, `GRU` and `LSTM`.

use gradus_tensor::{DType, Error, Result, Tensor, fused};

use crate::graph::{Call, Row, row, size};
use crate::value::OnnxValue;

type Values = Result<Vec<OnnxValue>>;

pub(super) const ROWS: &[Row] = &[
    row("RNN", &[1, 7, 14, 22], |c| recurrent(c, Cell::Rnn)),
    row("GRU", &[1, 3, 7, 14, 22], |c| recurrent(c, Cell::Gru)),
    row("LSTM", &[1, 7, 14, 22], |c| recurrent(c, Cell::Lstm)),
];

/// Of the domain `com.microsoft`: an LSTM with weights of 8 bits.
pub(super) const MICROSOFT: &[Row] = &[row("DynamicQuantizeLSTM", &[1], |c| {
    let weights = |at: usize, scale: usize| dequantised(&c.tensor(at)?, &c.tensor(scale)?, &c.tensor(scale + 1)?);
    recurrent_with(c, Cell::Lstm, true, weights(1, 8)?, weights(2, 10)?)
})];

/// The same with weights that [`dequantised`] gives.
pub(crate) static DEQUANTISED: Row =
    row("DynamicQuantizeLSTM", &[1], |c| recurrent_with(c, Cell::Lstm, true, c.tensor(1)?, c.tensor(2)?));

/// The weights `[directions, gates * hidden, in]` whose integers are stored the other way around, each with a scale and
/// a zero point for the direction or for each of its outputs.
pub(crate) fn dequantised(w: &Tensor, scale: &Tensor, zero: &Tensor) -> Result<Tensor> {
    if w.rank() != 3 {
        return Err(Error::shape("onnx", format!("weights of shape {:?}", w.shape())));
    }
    let spread = |t: &Tensor| -> Result<Tensor> {
        let t = t.to_dtype(DType::F32)?;
        match t.rank() {
            1 => t.unsqueeze(-1)?.unsqueeze(-1),
            2 => t.unsqueeze(1),
            _ => Err(Error::shape("onnx", format!("a scale or zero point of shape {:?}", t.shape()))),
        }
    };
    w.to_dtype(DType::F32)?.sub(spread(zero)?)?.mul(spread(scale)?)?.transpose(-2, -1)
}

/// The numbers that are left of `x` after `DynamicQuantizeLinear`, in 8 bits for the range of its elements.
fn in_8_bits(x: &Tensor) -> Result<Tensor> {
    if x.numel() == 0 {
        return Ok(x.clone());
    }
    let rounded = fused!(|x, lo, hi| {
        let (lo, hi) = (lo.min(0.0), hi.max(0.0));
        let range = (hi - lo) / 255.0;
        let scale = range.eq(0.0).select(1.0, range);
        let zero = (-lo / scale).round().max(0.0).min(255.0);
        (((x / scale).round() + zero).max(0.0).min(255.0) - zero) * scale
    });
    rounded(x, &x.min_all()?, &x.max_all()?)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cell {
    Rnn,
    Gru,
    Lstm,
}

/// An activation with its parameters alpha and beta.
struct Activation {
    name: String,
    alpha: Option<f64>,
    beta: Option<f64>,
}

impl Activation {
    fn apply(&self, x: &Tensor) -> Result<Tensor> {
        let alpha = |default: f64| self.alpha.unwrap_or(default);
        let beta = |default: f64| self.beta.unwrap_or(default);
        match self.name.to_ascii_lowercase().as_str() {
            "sigmoid" => x.sigmoid(),
            "tanh" => x.tanh(),
            "relu" => x.relu(),
            "affine" => x.mul(alpha(1.0))?.add(beta(0.0)),
            "leakyrelu" => x.leaky_relu(alpha(0.01)),
            "thresholdedrelu" => x.threshold(alpha(1.0), 0.0),
            "scaledtanh" => x.mul(beta(1.0))?.tanh()?.mul(alpha(1.0)),
            "hardsigmoid" => x.mul(alpha(0.2))?.add(beta(0.5))?.hardtanh(0.0, 1.0),
            "elu" => x.elu(alpha(1.0)),
            "softsign" => x.softsign(),
            "softplus" => x.softplus(),
            other => Err(Error::argument("onnx", format!("the activation `{other}`"))),
        }
    }
}

/// The weights and options of one direction.
struct Direction {
    w: Tensor,
    r: Tensor,
    input_bias: Tensor,
    hidden_bias: Tensor,
    peepholes: Option<Tensor>,
    activations: Vec<Activation>,
    clip: Option<f64>,
    /// For a GRU: whether the reset gate is applied after the product with the hidden state.
    reset_after: bool,
    /// For an LSTM: whether the forget gate is 1 minus the input gate.
    coupled: bool,
    /// Whether the hidden state is rounded to 8 bits before its product.
    in_8_bits: bool,
    hidden: usize,
}

impl Direction {
    fn activate(&self, which: usize, x: &Tensor) -> Result<Tensor> {
        let x = match self.clip {
            Some(limit) => &x.clamp(-limit, limit)?,
            None => x,
        };
        match self.activations.get(which) {
            Some(activation) => activation.apply(x),
            None => Err(Error::argument("onnx", "an activation is missing")),
        }
    }

    /// Whether an LSTM has the usual activations and nothing else.
    fn is_usual(&self) -> bool {
        let names = self.activations.iter().map(|a| a.name.to_ascii_lowercase());
        names.eq(["sigmoid", "tanh", "tanh"]) && self.peepholes.is_none() && self.clip.is_none() && !self.coupled
    }

    /// The part of a vector `[.., gates * hidden]` that belongs to a gate.
    fn gate(&self, x: &Tensor, i: usize) -> Result<Tensor> {
        x.narrow(-1, i * self.hidden, self.hidden)
    }

    /// Computes one step. `x` is the product of the input with its weights, with the biases added.
    fn step(&self, cell: Cell, x: &Tensor, h: &Tensor, state: &Tensor) -> Result<(Tensor, Tensor)> {
        match cell {
            Cell::Rnn => {
                let h = self.activate(0, &x.add(h.linear(&self.r, Some(&self.hidden_bias))?)?)?;
                Ok((h, state.clone()))
            }
            Cell::Gru => {
                let n = self.hidden;
                let (rz, rh) = (self.r.narrow(0, 0, 2 * n)?, self.r.narrow(0, 2 * n, n)?);
                let (bz, bh) = (self.hidden_bias.narrow(0, 0, 2 * n)?, self.hidden_bias.narrow(0, 2 * n, n)?);
                let gates = self.activate(0, &x.narrow(-1, 0, 2 * n)?.add(h.linear(&rz, Some(&bz))?)?)?;
                let (z, r) = (self.gate(&gates, 0)?, self.gate(&gates, 1)?);
                let hidden = match self.reset_after {
                    true => r.mul(h.linear(&rh, Some(&bh))?)?,
                    false => r.mul(h)?.linear(&rh, Some(&bh))?,
                };
                let new = self.activate(1, &self.gate(x, 2)?.add(hidden)?)?;
                Ok((new.add(z.mul(h.sub(&new)?)?)?, state.clone()))
            }
            Cell::Lstm => {
                let h = if self.in_8_bits { &in_8_bits(h)? } else { h };
                if self.is_usual() {
                    let more = h.linear(&self.r, Some(&self.hidden_bias))?;
                    let gate = |i: usize| Ok((self.gate(x, i)?, self.gate(&more, i)?));
                    let [(xi, hi), (xo, ho), (xf, hf), (xg, hg)] = [gate(0)?, gate(1)?, gate(2)?, gate(3)?];
                    let next = fused!(|xi, hi, xf, hf, xg, hg, c| {
                        (xf + hf).sigmoid() * c + (xi + hi).sigmoid() * (xg + hg).tanh()
                    });
                    let state = next(&xi, &hi, &xf, &hf, &xg, &hg, state)?;
                    return Ok((fused!(|xo, ho, c| (xo + ho).sigmoid() * c.tanh())(&xo, &ho, &state)?, state));
                }
                let gates = x.add(h.linear(&self.r, Some(&self.hidden_bias))?)?;
                let peep = |gate: Tensor, i: usize, c: &Tensor| match &self.peepholes {
                    Some(p) => gate.add(self.gate(p, i)?.mul(c)?),
                    None => Ok(gate),
                };
                let input = self.activate(0, &peep(self.gate(&gates, 0)?, 0, state)?)?;
                let forget = match self.coupled {
                    true => input.neg()?.add(1.0)?,
                    false => self.activate(0, &peep(self.gate(&gates, 2)?, 2, state)?)?,
                };
                let new = self.activate(1, &self.gate(&gates, 3)?)?;
                let state = forget.mul(state)?.add(input.mul(new)?)?;
                let output = self.activate(0, &peep(self.gate(&gates, 1)?, 1, &state)?)?;
                let h = output.mul(match self.activations.get(2) {
                    Some(activation) => activation.apply(&state)?,
                    None => state.tanh()?,
                })?;
                Ok((h, state))
            }
        }
    }
}

fn activations(c: &Call<'_>, cell: Cell, directions: usize) -> Result<Vec<Vec<Activation>>> {
    let defaults: &[&str] = match cell {
        Cell::Rnn => &["Tanh"],
        Cell::Gru => &["Sigmoid", "Tanh"],
        Cell::Lstm => &["Sigmoid", "Tanh", "Tanh"],
    };
    let names: Vec<String> = match c.texts("activations")? {
        Some(names) if !names.is_empty() => names.to_vec(),
        _ => (0..directions).flat_map(|_| defaults.iter().map(|n| (*n).to_owned())).collect(),
    };
    if names.len() != directions * defaults.len() {
        return Err(Error::argument("onnx", format!("{} activations for {directions} directions", names.len())));
    }
    // The lists hold values only for the activations that have such a parameter.
    let mut alphas = c.floats("activation_alpha")?.unwrap_or_default().iter();
    let mut betas = c.floats("activation_beta")?.unwrap_or_default().iter();
    let mut all: Vec<Vec<Activation>> = Vec::new();
    for (i, name) in names.into_iter().enumerate() {
        let lower = name.to_ascii_lowercase();
        let has_alpha =
            ["affine", "leakyrelu", "thresholdedrelu", "scaledtanh", "hardsigmoid", "elu"].contains(&&*lower);
        let has_beta = ["affine", "scaledtanh", "hardsigmoid"].contains(&&*lower);
        let alpha = if has_alpha { alphas.next().map(|&v| f64::from(v)) } else { None };
        let beta = if has_beta { betas.next().map(|&v| f64::from(v)) } else { None };
        if i % defaults.len() == 0 {
            all.push(Vec::new());
        }
        if let Some(last) = all.last_mut() {
            last.push(Activation { name, alpha, beta });
        }
    }
    Ok(all)
}

fn recurrent(c: &Call<'_>, cell: Cell) -> Values {
    recurrent_with(c, cell, false, c.tensor(1)?, c.tensor(2)?)
}

/// Runs a layer with these weights. If it is quantised, the input and the states are rounded to 8 bits before products.
fn recurrent_with(c: &Call<'_>, cell: Cell, quantised: bool, w: Tensor, r: Tensor) -> Values {
    c.skip(&["output_sequence"]);
    let x = c.tensor(0)?;
    let x = if quantised { in_8_bits(&x)? } else { x };
    let batch_first = c.flag("layout", false)?;
    let x = if batch_first { x.transpose(0, 1)? } else { x };
    let directions: &[bool] = match c.text("direction", "forward")? {
        "forward" => &[false],
        "reverse" => &[true],
        "bidirectional" => &[false, true],
        other => return Err(Error::argument("onnx", format!("direction = `{other}`"))),
    };
    let count = directions.len();
    let (&[steps, batch, _], &[in_w, _, hidden]) = (x.shape(), r.shape()) else {
        return Err(Error::shape("onnx", format!("an input {:?} and weights {:?}", x.shape(), r.shape())));
    };
    if in_w != count || size(c.int("hidden_size", hidden as i64)?)? != hidden || w.shape().first() != Some(&count) {
        return Err(Error::shape(
            "onnx",
            format!("weights {:?} and {:?} for {count} directions", w.shape(), r.shape()),
        ));
    }
    let gates = match cell {
        Cell::Rnn => 1,
        Cell::Gru => 3,
        Cell::Lstm => 4,
    };
    let bias = match c.optional(3)? {
        Some(bias) => bias,
        None => Tensor::zeros([count, 2 * gates * hidden], x.dtype(), c.device)?,
    };
    let lengths = c.optional(4)?;
    let start = |input: usize| -> Result<Tensor> {
        match c.optional(input)? {
            Some(h) => {
                if batch_first {
                    h.transpose(0, 1)
                } else {
                    Ok(h)
                }
            }
            None => Tensor::zeros([count, batch, hidden], x.dtype(), c.device),
        }
    };
    let (first_h, first_c) = (start(5)?, if cell == Cell::Lstm { start(6)? } else { start(99)? });
    let peepholes = if cell == Cell::Lstm { c.optional(7)? } else { None };
    let clip = c.has("clip").then(|| c.float("clip", 0.0)).transpose()?;
    let reset_after = cell == Cell::Gru && c.flag("linear_before_reset", false)?;
    let coupled = cell == Cell::Lstm && c.flag("input_forget", false)?;
    // Whether each sequence has each step, as [steps, batch, 1].
    let alive = match &lengths {
        None => None,
        Some(lengths) => {
            let t = Tensor::arange(0, steps as i64, 1, DType::I64, c.device)?.unsqueeze(1)?;
            Some(t.lt(lengths.to_dtype(DType::I64)?)?.unsqueeze(-1)?)
        }
    };
    let (mut outputs, mut last_h, mut last_c) = (Vec::new(), Vec::new(), Vec::new());
    for (i, (&backward, activations)) in directions.iter().zip(activations(c, cell, count)?).enumerate() {
        let at = i as isize;
        let bias = bias.select(0, at)?;
        let d = Direction {
            w: w.select(0, at)?,
            r: r.select(0, at)?,
            input_bias: bias.narrow(0, 0, gates * hidden)?,
            hidden_bias: bias.narrow(0, gates * hidden, gates * hidden)?,
            peepholes: peepholes.as_ref().map(|p| p.select(0, at)).transpose()?,
            activations,
            clip,
            reset_after,
            coupled,
            in_8_bits: quantised,
            hidden,
        };
        let products = x.linear(&d.w, Some(&d.input_bias))?;
        let (mut h, mut state) = (first_h.select(0, at)?, first_c.select(0, at)?);
        let mut ys = Vec::new();
        for step in 0..steps {
            let t = if backward { steps - 1 - step } else { step } as isize;
            let (next, next_state) = d.step(cell, &products.select(0, t)?, &h, &state)?;
            match &alive {
                None => {
                    (h, state) = (next.clone(), next_state);
                    ys.push(next);
                }
                Some(alive) => {
                    let alive = alive.select(0, t)?;
                    h = alive.where_(&next, &h)?;
                    state = alive.where_(next_state, &state)?;
                    ys.push(alive.where_(&next, 0.0)?);
                }
            }
        }
        if backward {
            ys.reverse();
        }
        outputs.push(match ys.is_empty() {
            true => Tensor::zeros([0, batch, hidden], x.dtype(), c.device)?,
            false => Tensor::stack(&ys.iter().collect::<Vec<_>>(), 0)?,
        });
        last_h.push(h);
        last_c.push(state);
    }
    let joined = |parts: &[Tensor], axis: isize| Tensor::stack(&parts.iter().collect::<Vec<_>>(), axis);
    // [steps, directions, batch, hidden], or [batch, steps, directions, hidden].
    let y = joined(&outputs, 1)?;
    let y = if batch_first { y.permute(&[2, 0, 1, 3])? } else { y };
    let axis = if batch_first { 1 } else { 0 };
    let mut results: Vec<OnnxValue> = vec![y.into(), joined(&last_h, axis)?.into()];
    if cell == Cell::Lstm {
        results.push(joined(&last_c, axis)?.into());
    }
    Ok(results)
}

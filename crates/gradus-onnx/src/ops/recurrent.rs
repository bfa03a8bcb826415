//! `RNN`, `GRU` and `LSTM`.

use std::ops::Range;

use gradus_tensor::ops::LstmI8;
use gradus_tensor::{DType, Error, Result, Tensor, fused};

use super::quantise::{in_8_bits, in_bytes};
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
    let weights =
        |at: usize, scale: usize| Weights::of(centred_weights(&c.tensor(at)?, &c.tensor(scale + 1)?)?, c, scale);
    recurrent_with(c, Cell::Lstm, weights(1, 8)?, weights(2, 10)?)
})];

/// The same with prepared weights `[directions, outputs, in]` of i8 or i16, from which their zero points were subtracted. In the
/// place of the zero points are the sums of the weights of each output, `[directions, 1, outputs]` in i32.
pub(crate) static CENTRED_LSTM: Row = row("DynamicQuantizeLSTM", &[1], |c| {
    let weights = |at: usize, scale: usize| -> Result<Weights> {
        Ok(Weights { sums: Some(c.tensor(scale + 1)?), ..Weights::of(c.tensor(at)?, c, scale)? })
    };
    recurrent_with(c, Cell::Lstm, weights(1, 8)?, weights(2, 10)?)
});

/// Weights that are stored as `[directions, in, gates * hidden]`, transposed to `[directions, gates * hidden, in]`, with their
/// zero points subtracted.
fn centred_weights(w: &Tensor, zero: &Tensor) -> Result<Tensor> {
    let zero = zero_points(w, zero)?;
    w.to_dtype(DType::I16)?.sub(zero.to_dtype(DType::I16)?)?.transpose(-2, -1)
}

/// The zero points of weights `[directions, in, gates * hidden]`, one for each direction, or for each of its outputs, in
/// a shape that expands to that of the weights.
pub(crate) fn zero_points(w: &Tensor, zero: &Tensor) -> Result<Tensor> {
    let bytes = [w, zero].iter().all(|t| matches!(t.dtype(), DType::I8 | DType::U8));
    match *w.shape() {
        [directions, _, _] if bytes && zero.shape() == [directions] => zero.unsqueeze(-1)?.unsqueeze(-1),
        [directions, _, outputs] if bytes && zero.shape() == [directions, outputs] => zero.unsqueeze(1),
        _ => {
            let [w, zero] = [w, zero].map(|t| format!("{:?} of {}", t.shape(), t.dtype()));
            let e = Error::shape("onnx", format!("weights {w} with zero points {zero}"));
            Err(e.help("both are of 8 bits; a direction, or an output of it, has one zero point"))
        }
    }
}

/// The weights `[directions, gates * hidden, in]` of a product: floats, or integers with a scale `[directions, 1, 1]` or
/// `[directions, 1, gates * hidden]`.
struct Weights {
    values: Tensor,
    scale: Option<Tensor>,
    /// The sums of the weights of each output, which spare a subtraction of the zero point of `x`, so that its numbers
    /// are bytes.
    sums: Option<Tensor>,
}

impl Weights {
    fn of(values: Tensor, c: &Call<'_>, scale: usize) -> Result<Weights> {
        let scale = c.tensor(scale)?;
        let scale = match *values.shape() {
            [directions, _, _] if scale.shape() == [directions] => scale.unsqueeze(-1)?,
            [directions, outputs, _] if scale.shape() == [directions, outputs] => scale,
            _ => {
                let m = format!("weights {:?} with scales {:?}", values.shape(), scale.shape());
                return Err(Error::shape("onnx", m).help("a direction, or an output of it, has one scale"));
            }
        };
        Ok(Weights { values, scale: Some(scale.to_dtype(DType::F32)?.unsqueeze(1)?), sums: None })
    }

    fn of_directions(&self, part: &Range<usize>) -> Result<Weights> {
        let narrow = |t: &Tensor| t.narrow(0, part.start, part.len());
        let optional = |t: &Option<Tensor>| t.as_ref().map(narrow).transpose();
        Ok(Weights { values: narrow(&self.values)?, scale: optional(&self.scale)?, sums: optional(&self.sums)? })
    }

    fn of_outputs(&self, part: &Range<usize>) -> Result<Weights> {
        // Only an LSTM, which has no need of this, has integers.
        let values = self.values.narrow(1, part.start, part.len())?;
        Ok(Weights { values, scale: None, sums: None })
    }

    /// `x @ w^T + bias` for `x [directions, rows, in]`, or one `x` for all directions, and `bias [directions, 1, outputs]`.
    /// If the weights are integers, `x` is rounded to 8 bits first. With `to`, the result is added to that.
    fn linear(&self, x: &Tensor, bias: &Tensor, to: Option<&Tensor>) -> Result<Tensor> {
        let w = self.values.transpose(-2, -1)?;
        let Some(w_scale) = &self.scale else {
            let x = x.expand([bias.shape()[0], x.shape()[1], x.shape()[2]])?;
            let y = bias.baddbmm(&x, &w, 1, 1)?;
            return if let Some(to) = to { to.add(y) } else { Ok(y) };
        };
        let scaled = |sums: &Tensor, x_scale: &Tensor| match to {
            None => {
                fused!(|sums, x_scale, w_scale, bias| sums * (x_scale * w_scale) + bias)(sums, x_scale, w_scale, bias)
            }
            Some(to) => fused!(|to, sums, x_scale, w_scale, bias| to + (sums * (x_scale * w_scale) + bias))(
                to, sums, x_scale, w_scale, bias,
            ),
        };
        if let Some(weights) = self.sums.as_ref().filter(|_| x.numel() > 0) {
            let (x, x_scale, zero) = in_bytes(x, &[-2, -1])?;
            let sums = x.matmul_i32(&w)?.sub(zero.mul(weights)?)?;
            return scaled(&sums, &x_scale);
        }
        let (x, x_scale) = in_8_bits(x, &[-2, -1])?;
        scaled(&x.matmul_i32(&w)?, &x_scale)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cell {
    Rnn,
    Gru,
    Lstm,
}

/// An activation with its parameters alpha and beta.
#[derive(PartialEq)]
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

/// The weights and options of directions that run side by side. Biases and peepholes are `[directions, 1, ..]`.
struct Directions {
    w: Weights,
    r: Weights,
    input_bias: Tensor,
    hidden_bias: Tensor,
    peepholes: Option<Tensor>,
    activations: Vec<Activation>,
    clip: Option<f64>,
    /// For a GRU: whether the reset gate is applied after the product with the hidden state.
    reset_after: bool,
    /// For an LSTM: whether the forget gate is 1 minus the input gate.
    coupled: bool,
    hidden: usize,
}

impl Directions {
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
        are_usual(&self.activations) && self.peepholes.is_none() && self.clip.is_none() && !self.coupled
    }

    /// The part of `[.., gates * hidden]` that belongs to a gate.
    fn gate(&self, x: &Tensor, i: usize) -> Result<Tensor> {
        x.narrow(-1, i * self.hidden, self.hidden)
    }

    /// Computes one step. `x` is the product of the input with its weights, with the biases added.
    fn step(&self, cell: Cell, x: &Tensor, h: &Tensor, state: &Tensor) -> Result<(Tensor, Tensor)> {
        match cell {
            Cell::Rnn => {
                let h = self.activate(0, &self.r.linear(h, &self.hidden_bias, Some(x))?)?;
                Ok((h, state.clone()))
            }
            Cell::Gru => {
                let n = self.hidden;
                let (rz, rh) = (self.r.of_outputs(&(0..2 * n))?, self.r.of_outputs(&(2 * n..3 * n))?);
                let (bz, bh) = (self.hidden_bias.narrow(-1, 0, 2 * n)?, self.hidden_bias.narrow(-1, 2 * n, n)?);
                let gates = self.activate(0, &x.narrow(-1, 0, 2 * n)?.add(rz.linear(h, &bz, None)?)?)?;
                let (z, r) = (self.gate(&gates, 0)?, self.gate(&gates, 1)?);
                let hidden = match self.reset_after {
                    true => r.mul(rh.linear(h, &bh, None)?)?,
                    false => rh.linear(&r.mul(h)?, &bh, None)?,
                };
                let new = self.activate(1, &self.gate(x, 2)?.add(hidden)?)?;
                Ok((new.add(z.mul(h.sub(&new)?)?)?, state.clone()))
            }
            Cell::Lstm => {
                let gates = self.r.linear(h, &self.hidden_bias, Some(x))?;
                if self.is_usual() {
                    let [i, o, f, g] =
                        [self.gate(&gates, 0)?, self.gate(&gates, 1)?, self.gate(&gates, 2)?, self.gate(&gates, 3)?];
                    let next = fused!(|i, f, g, c| f.sigmoid() * c + i.sigmoid() * g.tanh());
                    let state = next(&i, &f, &g, state)?;
                    return Ok((fused!(|o, c| o.sigmoid() * c.tanh())(&o, &state)?, state));
                }
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

/// Whether these are the usual activations of an LSTM.
fn are_usual(activations: &[Activation]) -> bool {
    activations.iter().map(|a| a.name.to_ascii_lowercase()).eq(["sigmoid", "tanh", "tanh"])
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
    let weights = |at: usize| Ok(Weights { values: c.tensor(at)?, scale: None, sums: None });
    recurrent_with(c, cell, weights(1)?, weights(2)?)
}

/// Runs a layer with weights of the input and of the hidden state.
fn recurrent_with(c: &Call<'_>, cell: Cell, w: Weights, r: Weights) -> Values {
    c.skip(&["output_sequence"]);
    let x = c.tensor(0)?;
    let batch_first = c.flag("layout", false)?;
    let x = if batch_first { x.transpose(0, 1)? } else { x };
    let directions: &[bool] = match c.text("direction", "forward")? {
        "forward" => &[false],
        "reverse" => &[true],
        "bidirectional" => &[false, true],
        other => return Err(Error::argument("onnx", format!("direction = `{other}`"))),
    };
    let count = directions.len();
    let (&[steps, batch, _], &[.., hidden]) = (x.shape(), r.values.shape()) else {
        return Err(Error::shape("onnx", format!("an input {:?} and weights {:?}", x.shape(), r.values.shape())));
    };
    let gates = match cell {
        Cell::Rnn => 1,
        Cell::Gru => 3,
        Cell::Lstm => 4,
    };
    if hidden != size(c.int("hidden_size", hidden as i64)?)? {
        let m = format!("hidden_size differs from that of the weights {:?}", r.values.shape());
        return Err(Error::argument("onnx", m));
    }
    let check = |name: &str, t: &Tensor, shape: &[usize]| match t.shape() == shape {
        true => Ok(()),
        false => Err(Error::shape("onnx", format!("{name} of shape {:?}, where {shape:?} is needed", t.shape()))),
    };
    let width = gates * hidden;
    check("weights", &w.values, &[count, width, x.shape()[2]])?;
    check("recurrent weights", &r.values, &[count, width, hidden])?;
    let bias = match c.optional(3)? {
        Some(bias) => bias,
        None => Tensor::zeros([count, 2 * width], x.dtype(), c.device)?,
    };
    check("a bias", &bias, &[count, 2 * width])?;
    let lengths = c.optional(4)?;
    let start = |input: usize| match c.optional(input)? {
        Some(h) if batch_first => h.transpose(0, 1),
        Some(h) => Ok(h),
        None => Tensor::zeros([count, batch, hidden], x.dtype(), c.device),
    };
    let (first_h, first_c) = (start(5)?, if cell == Cell::Lstm { start(6)? } else { start(99)? });
    let peepholes = if cell == Cell::Lstm { c.optional(7)? } else { None };
    for state in [&first_h, &first_c] {
        check("an initial state", state, &[count, batch, hidden])?;
    }
    if let Some(peepholes) = &peepholes {
        check("peepholes", peepholes, &[count, 3 * hidden])?;
    }
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
    // Directions with the same activations run side by side.
    let mut lists = activations(c, cell, count)?;
    let usual = lists.iter().all(|list| are_usual(list)) && peepholes.is_none() && clip.is_none() && !coupled;
    if usual
        && lengths.is_none()
        && let Some([y, h, state]) = in_one(&x, [&first_h, &first_c], [&w, &r], &bias, directions)?
    {
        let last = |t: Tensor| if batch_first { t.transpose(0, 1) } else { Ok(t) };
        let y = if batch_first { y.permute(&[2, 0, 1, 3])? } else { y };
        return Ok(vec![y.into(), last(h)?.into(), last(state)?.into()]);
    }
    let alike = lists.iter().all(|list| *list == lists[0]);
    let together = if alike { count } else { 1 };
    let (mut outputs, mut last_h, mut last_c) = (Vec::new(), Vec::new(), Vec::new());
    for first in (0..count).step_by(together) {
        let group = first..first + together;
        let of_group = |t: &Tensor| t.narrow(0, group.start, group.len());
        let backward = &directions[group.clone()];
        let bias = of_group(&bias)?.unsqueeze(1)?;
        let d = Directions {
            w: w.of_directions(&group)?,
            r: r.of_directions(&group)?,
            input_bias: bias.narrow(-1, 0, width)?,
            hidden_bias: bias.narrow(-1, width, width)?,
            peepholes: peepholes.as_ref().map(|p| of_group(p)?.unsqueeze(1)).transpose()?,
            activations: std::mem::take(&mut lists[group.start]),
            clip,
            reset_after,
            coupled,
            hidden,
        };
        let rows = x.reshape([1, steps * batch, x.shape()[2]])?;
        let products = d.w.linear(&rows, &d.input_bias, None)?.reshape([group.len(), steps, batch, width])?;
        // For each direction in the order of its steps.
        let products = turned(&products, backward)?;
        let in_turn = |t: &Tensor| turned(&t.unsqueeze(0)?.expand([&[group.len()], t.shape()].concat())?, backward);
        let alive = alive.as_ref().map(in_turn).transpose()?;
        let (mut h, mut state) = (of_group(&first_h)?, of_group(&first_c)?);
        let mut ys = Vec::new();
        for step in 0..steps as isize {
            let (next, next_state) = d.step(cell, &products.select(1, step)?, &h, &state)?;
            match &alive {
                None => {
                    (h, state) = (next.clone(), next_state);
                    ys.push(next);
                }
                Some(alive) => {
                    let alive = alive.select(1, step)?;
                    h = alive.where_(&next, &h)?;
                    state = alive.where_(next_state, &state)?;
                    ys.push(alive.where_(&next, 0.0)?);
                }
            }
        }
        outputs.push(match ys.is_empty() {
            true => Tensor::zeros([group.len(), 0, batch, hidden], x.dtype(), c.device)?,
            false => turned(&Tensor::stack(&ys.iter().collect::<Vec<_>>(), 1)?, backward)?,
        });
        last_h.push(h);
        last_c.push(state);
    }
    let joined = |parts: &[Tensor]| Tensor::cat(&parts.iter().collect::<Vec<_>>(), 0);
    let last = |parts: &[Tensor]| if batch_first { joined(parts)?.transpose(0, 1) } else { joined(parts) };
    // [directions, steps, batch, hidden] becomes [steps, directions, batch, hidden] or [batch, steps, directions, hidden].
    let y = joined(&outputs)?.permute(if batch_first { &[2, 1, 0, 3] } else { &[1, 0, 2, 3] })?;
    let mut results: Vec<OnnxValue> = vec![y.into(), last(&last_h)?.into()];
    if cell == Cell::Lstm {
        results.push(last(&last_c)?.into());
    }
    Ok(results)
}

/// Runs a usual LSTM as one operation, if its prepared weights are of 8 bits: the hidden states of all steps
/// `[steps, directions, batch, hidden]`, and the last states.
fn in_one(
    x: &Tensor,
    [h, c]: [&Tensor; 2],
    [w, r]: [&Weights; 2],
    bias: &Tensor,
    directions: &[bool],
) -> Result<Option<[Tensor; 3]>> {
    let fits = [x, h, c, bias].iter().all(|t| t.dtype() == DType::F32 && t.numel() > 0);
    let parts = |w: &Weights| match (&w.scale, &w.sums) {
        (Some(scale), Some(sums)) if w.values.dtype() == DType::I8 => {
            Ok(Some((scale.expand(sums.shape())?.squeeze(1)?, sums.squeeze(1)?)))
        }
        _ => Ok(None),
    };
    let (true, Some((w_scale, w_sums)), Some((r_scale, r_sums))) = (fits, parts(w)?, parts(r)?) else {
        return Ok(None);
    };
    let width = r.values.shape()[1];
    let biases = [bias.narrow(1, 0, width)?, bias.narrow(1, width, width)?];
    let op = LstmI8 { reverse: directions.iter().copied().collect() };
    let (w, r) = (&w.values, &r.values);
    let all = [x, h, c, w, &w_scale, &w_sums, r, &r_scale, &r_sums, &biases[0], &biases[1]];
    Ok(op.apply(all)?.try_into().ok())
}

/// `[directions, steps, ..]` with the steps of backward directions in the opposite order.
fn turned(x: &Tensor, backward: &[bool]) -> Result<Tensor> {
    if !backward.contains(&true) {
        return Ok(x.clone());
    }
    if backward.len() == 1 {
        return x.flip(1);
    }
    let part = |(i, &backward): (usize, &bool)| {
        let part = x.narrow(0, i, 1)?;
        if backward { part.flip(1) } else { Ok(part) }
    };
    let parts = backward.iter().enumerate().map(part).collect::<Result<Vec<_>>>()?;
    Tensor::cat(&parts.iter().collect::<Vec<_>>(), 0)
}

//! Recurrent layers with constant weights and the usual activations: their weights are put in PyTorch's order once, for
//! the operation that runs all steps, and stored in the order in which its products read them.

use gradus_tensor::ops::{RecurrentCell, RecurrentOptions};
use gradus_tensor::{DType, Error, Result, Tensor};

use super::integer::Columns;
use super::links::{Links, add_constant};
use crate::graph::{Attribute, Call, Graph, Node, Row, State, row};
use crate::ops::{CENTRED_LSTM, zero_points};
use crate::value::OnnxValue;

static LSTM: Row = row("LSTM", &[1], |c| layers(c, RecurrentCell::Lstm));
static GRU: Row = row("GRU", &[1], |c| layers(c, RecurrentCell::Gru));

/// The number of inputs of a prepared node before its weights: the input, the initial hidden and the initial cell state,
/// and the lengths of the sequences, which only a GRU may have.
const BEFORE: usize = 4;

/// Takes the zero points from the weights of quantised layers, which then need no more than 8 or 16 bits, and adds up the
/// weights of each output.
pub(super) fn centre_weights(graph: &mut Graph, state: &State<'_>) {
    let links = Links::of(graph);
    for at in 0..graph.nodes.len() {
        let node = &graph.nodes[at];
        if node.row.name != "DynamicQuantizeLSTM" || node.inputs.len() != 12 {
            continue;
        }
        let (w_scale, r_scale) = (node.inputs[8], node.inputs[10]);
        let constant = |input: usize| links.constant_input(node, input)?.tensor(state.device).ok();
        let weights = |at: usize, zero: usize| {
            let w = constant(at)?;
            let columns = Columns::of(&w, &zero_points(&w, &constant(zero)?).ok()?).ok()?;
            let sums = columns.sums().and_then(|sums| sums.unsqueeze(1)).ok()?;
            Some((columns.tensor().ok()?, sums))
        };
        let (Some((w, w_sums)), Some((r, r_sums))) = (weights(1, 9), weights(2, 11)) else { continue };
        let [w, r, w_sums, r_sums] = [w, r, w_sums, r_sums].map(|t| Some(add_constant(graph, t.into())));
        let node = &mut graph.nodes[at];
        node.row = &CENTRED_LSTM;
        node.inputs.truncate(8);
        node.inputs.extend([w_scale, w_sums, r_scale, r_sums]);
        (node.inputs[1], node.inputs[2]) = (w, r);
    }
}

/// Gives layers that [`Tensor::recurrent`] computes their weights in its order.
pub(super) fn prepare_weights(graph: &mut Graph, state: &State<'_>) {
    let links = Links::of(graph);
    for at in 0..graph.nodes.len() {
        let Some((row, weights)) = prepared(&links, &graph.nodes[at], state) else { continue };
        let node = &graph.nodes[at];
        let given = |input: usize| node.inputs.get(input).copied().flatten();
        let mut inputs = vec![given(0), given(5), given(6), given(4)];
        for weight in weights {
            inputs.push(Some(add_constant(graph, weight.into())));
        }
        let node = &mut graph.nodes[at];
        (node.row, node.inputs) = (row, inputs);
        node.attributes.retain(|(name, _)| matches!(&**name, "direction" | "layout"));
    }
}

/// The row of a layer, and for each direction the two weights and the two biases.
fn prepared(links: &Links, node: &Node, state: &State<'_>) -> Option<(&'static Row, Vec<Tensor>)> {
    // The gates in PyTorch's order, by their numbers in ONNX.
    let (row, order, usual): (_, &[usize], &[&str]) = match node.row.name {
        "LSTM" => (&LSTM, &[0, 2, 3, 1], &["sigmoid", "tanh", "tanh"]),
        "GRU" if node.int_attribute("linear_before_reset") == Some(1) => (&GRU, &[1, 0, 2], &["sigmoid", "tanh"]),
        _ => return None,
    };
    for (name, value) in &node.attributes {
        let plain = match (&**name, value) {
            ("direction" | "layout" | "hidden_size" | "linear_before_reset" | "output_sequence", _) => true,
            ("input_forget", Attribute::Int(value)) => *value == 0,
            ("activations", Attribute::Texts(names)) => {
                names.iter().zip(usual.iter().cycle()).all(|(name, usual)| name.eq_ignore_ascii_case(usual))
            }
            _ => false,
        };
        if !plain {
            return None;
        }
    }
    let given = |input: usize| node.inputs.get(input).copied().flatten().is_some();
    if given(4) && node.row.name == "LSTM" || given(7) {
        return None;
    }
    let constant = |input: usize| links.constant_input(node, input)?.tensor(state.device).ok();
    let (w, r) = (constant(1)?, constant(2)?);
    let (&[directions, rows, _], &[also, rows_too, hidden]) = (w.shape(), r.shape()) else { return None };
    let count = if node.text_attribute("direction") == Some("bidirectional") { 2 } else { 1 };
    let sizes_agree = rows == order.len() * hidden && rows_too == rows && directions == count && also == count;
    let named = node.int_attribute("hidden_size").is_none_or(|n| usize::try_from(n) == Ok(hidden));
    if !sizes_agree || !named || hidden == 0 || w.dtype() != DType::F32 || r.dtype() != DType::F32 {
        return None;
    }
    let bias = match given(3) {
        true => Some(constant(3)?).filter(|b| b.shape() == [count, 2 * rows] && b.dtype() == DType::F32)?,
        false => Tensor::zeros([count, 2 * rows], DType::F32, state.device).ok()?,
    };
    // Weights are views whose transposes are contiguous: products read their second operand by rows.
    let ordered = |t: Tensor| -> Result<Tensor> {
        let gates = order.iter().map(|&gate| t.narrow(0, gate * hidden, hidden)).collect::<Result<Vec<_>>>()?;
        let all = Tensor::cat(&gates.iter().collect::<Vec<_>>(), 0)?;
        if all.rank() == 2 { all.t()?.contiguous()?.t() } else { Ok(all) }
    };
    let mut weights = Vec::new();
    for i in 0..count {
        let bias = bias.select(0, i as isize).ok()?;
        let parts =
            [w.select(0, i as isize), r.select(0, i as isize), bias.narrow(0, 0, rows), bias.narrow(0, rows, rows)];
        for part in parts {
            weights.push(ordered(part.ok()?).ok()?);
        }
    }
    Some((row, weights))
}

/// The lengths of the sequences of a batch. They stay on the device.
struct Lengths {
    /// `[1, batch]`, from 0 to the number of steps.
    lengths: Tensor,
    /// The numbers of the steps, `[steps, 1]`.
    steps: Tensor,
    /// Whether each sequence has each step, `[steps, batch, 1]`.
    alive: Tensor,
}

impl Lengths {
    fn new(lengths: &Tensor, steps: usize) -> Result<Lengths> {
        let lengths = lengths.to_dtype(DType::I64)?.clamp(0, steps as i64)?.unsqueeze(0)?;
        let steps = Tensor::arange(0, steps as i64, 1, DType::I64, lengths.device())?.unsqueeze(1)?;
        let alive = steps.lt(&lengths)?.unsqueeze(-1)?;
        Ok(Lengths { lengths, steps, alive })
    }

    /// `x [steps, batch, features]` with the steps of each sequence in the opposite order.
    fn reversed(&self, x: &Tensor) -> Result<Tensor> {
        let place = self.lengths.sub(&self.steps)?.sub(1)?.unsqueeze(-1)?;
        let place = self.alive.where_(&place, self.steps.unsqueeze(-1)?)?;
        x.gather(0, &place.expand(x.shape())?)
    }

    /// `y [steps, batch, features]` with zeros after the ends of the sequences.
    fn cut(&self, y: &Tensor) -> Result<Tensor> {
        self.alive.where_(y, 0.0)
    }

    /// The states `[batch, features]` after the last steps of the sequences: that of an empty one is the `first`.
    fn last(&self, y: &Tensor, first: &Tensor) -> Result<Tensor> {
        let place = self.lengths.sub(1)?.maximum(0)?.unsqueeze(-1)?;
        let last = y.gather(0, &place.expand([&[1], first.shape()].concat())?)?.squeeze(0)?;
        self.lengths.gt(0)?.squeeze(0)?.unsqueeze(-1)?.where_(&last, first)
    }
}

fn layers(c: &Call<'_>, cell: RecurrentCell) -> Result<Vec<OnnxValue>> {
    let batch_first = c.flag("layout", false)?;
    let x = if batch_first { c.tensor(0)?.transpose(0, 1)? } else { c.tensor(0)? };
    let directions: &[bool] = match c.text("direction", "forward")? {
        "reverse" => &[true],
        "bidirectional" => &[false, true],
        _ => &[false],
    };
    let &[steps, batch, _] = x.shape() else {
        return Err(Error::shape("onnx", format!("an input of shape {:?} for a recurrent layer", x.shape())));
    };
    let hidden = c.tensor(BEFORE + 1)?.shape()[1];
    let start = |input: usize| match c.optional(input)? {
        Some(h) if batch_first => h.transpose(0, 1),
        Some(h) => Ok(h),
        None => Tensor::zeros([directions.len(), batch, hidden], x.dtype(), c.device),
    };
    let (h, s) = (start(1)?, start(2)?);
    let states: &[&Tensor] = if cell == RecurrentCell::Lstm { &[&h, &s] } else { &[&h] };
    let lengths = c.optional(3)?.map(|lengths| Lengths::new(&lengths, steps)).transpose()?;
    let mut results = vec![Vec::new(); 1 + states.len()];
    for (i, &reverse) in directions.iter().enumerate() {
        let first = states.iter().map(|s| s.select(0, i as isize)).collect::<Result<Vec<_>>>()?;
        let weight = |k: usize| c.tensor(BEFORE + 4 * i + k);
        let found = if steps == 0 {
            [&[Tensor::zeros([0, batch, hidden], x.dtype(), c.device)?], &first[..]].concat()
        } else {
            let options = RecurrentOptions::new(cell).reverse(reverse && lengths.is_none());
            let (weights, biases) = ([&weight(0)?, &weight(1)?], [&weight(2)?, &weight(3)?]);
            let states: Vec<&Tensor> = first.iter().collect();
            match &lengths {
                None => x.recurrent(options, &states, weights, Some(biases))?,
                Some(lengths) => {
                    let turned = |t: &Tensor| if reverse { lengths.reversed(t) } else { Ok(t.clone()) };
                    let hidden = turned(&x)?.recurrent(options, &states, weights, Some(biases))?.swap_remove(0);
                    vec![lengths.cut(&turned(&hidden)?)?, lengths.last(&hidden, &first[0])?]
                }
            }
        };
        results.iter_mut().zip(found).for_each(|(all, one)| all.push(one));
    }
    let mut values = Vec::new();
    for (i, all) in results.into_iter().enumerate() {
        // [steps, directions, batch, hidden] and [directions, batch, hidden], or with the batch first.
        let joined = Tensor::stack(&all.iter().collect::<Vec<_>>(), if i == 0 { 1 } else { 0 })?;
        values.push(match (batch_first, i) {
            (false, _) => joined.into(),
            (true, 0) => joined.permute(&[2, 0, 1, 3])?.into(),
            (true, _) => joined.transpose(0, 1)?.into(),
        });
    }
    Ok(values)
}

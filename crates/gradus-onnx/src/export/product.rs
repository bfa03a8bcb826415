//! Products: linear layers, convolutions, pooling, attention and recurrent layers.

use gradus_tensor::backend::Window;
use gradus_tensor::ops::{Attention, AvgPool, Conv, ConvBackwardInput, MaxPool, Op, Recurrent, RecurrentCell};
use gradus_tensor::{DType, Result};

use super::build::{Builder, Dims};
use super::movement::in_each_trace;
use super::norm::fits;
use super::trace::Id;
use super::write::Attr;

/// The attributes of a window.
fn window(w: &Window) -> Vec<(&'static str, Attr)> {
    let ints = |values: &[usize; 3]| Attr::Ints(values[..w.rank].iter().map(|&v| v as i64).collect());
    let pads = [&w.pad_before[..w.rank], &w.pad_after[..w.rank]].concat();
    vec![
        ("kernel_shape", ints(&w.kernel)),
        ("strides", ints(&w.stride)),
        ("dilations", ints(&w.dilation)),
        ("pads", Attr::Ints(pads.iter().map(|&v| v as i64).collect())),
    ]
}

impl Builder<'_> {
    fn names_of(&mut self, ids: &[Id]) -> Result<Vec<String>> {
        ids.iter().map(|&id| self.name(id)).collect()
    }

    /// Fails if windows of padding differ between the traces.
    fn same_window(&self, at: usize, windows: &[Window]) -> Result<()> {
        match windows.iter().all(|w| *w == windows[0]) {
            true => Ok(()),
            false => Err(self.unsupported(at, "its window depends on a dynamic axis")),
        }
    }

    pub(super) fn linear(&mut self, inputs: &[Id]) -> Result<String> {
        let names = self.names_of(inputs)?;
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        Ok(self.node("Gemm", &names, vec![("transB", Attr::Int(1))], 0))
    }

    pub(super) fn matmul(&mut self, inputs: &[Id]) -> Result<String> {
        let names = self.names_of(inputs)?;
        Ok(self.plain("MatMul", &[&names[0], &names[1]]))
    }

    fn matmul_i32(&mut self, at: usize, inputs: &[Id]) -> Result<String> {
        if inputs.iter().any(|&id| self.dtype(id) == DType::I16) {
            let e = self.unsupported(at, "ONNX sums products of 8-bit integers in i32, but none of i16");
            return Err(e.help("convert both operands to i32 and use matmul"));
        }
        let names = self.names_of(inputs)?;
        Ok(self.plain("MatMulInteger", &[&names[0], &names[1]]))
    }

    pub(super) fn conv(&mut self, at: usize, inputs: &[Id], op: &Conv) -> Result<String> {
        self.same_window(at, &in_each_trace!(self, at, Conv, |op| op.window))?;
        let mut attributes = window(&op.window);
        attributes.push(("group", Attr::Int(op.groups as i64)));
        let names = self.names_of(inputs)?;
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        Ok(self.node("Conv", &names, attributes, 0))
    }

    /// A transposed convolution, which is recorded as a gradient.
    pub(super) fn conv_transpose(&mut self, at: usize, inputs: &[Id], op: &ConvBackwardInput) -> Result<String> {
        self.same_window(at, &in_each_trace!(self, at, ConvBackwardInput, |op| op.conv.window))?;
        let w = &op.conv.window;
        let mut more = Vec::new();
        for i in 0..w.rank {
            let mut each = Vec::new();
            for (t, whole) in in_each_trace!(self, at, ConvBackwardInput, |op| op.input).iter().enumerate() {
                let size = self.traces[t].values[inputs[0]].shape()[2 + i];
                let least = (size - 1) * w.stride[i] + w.dilation[i] * (w.kernel[i] - 1) + 1;
                each.push((whole[2 + i] + w.pad_before[i] + w.pad_after[i]) as i64 - least as i64);
            }
            match super::sizes::fixed(&each) {
                Some(rest) if rest >= 0 => more.push(rest),
                _ => return Err(self.unsupported(at, "the size of its result is no function of that of its input")),
            }
        }
        let mut attributes = window(w);
        attributes.push(("group", Attr::Int(op.conv.groups as i64)));
        if more.iter().any(|&rest| rest > 0) {
            attributes.push(("output_padding", Attr::Ints(more)));
        }
        let names = self.names_of(inputs)?;
        Ok(self.node("ConvTranspose", &[&names[0], &names[1]], attributes, 0))
    }

    pub(super) fn max_pool(&mut self, at: usize, input: Id, op: &MaxPool) -> Result<String> {
        self.same_window(at, &in_each_trace!(self, at, MaxPool, |op| op.window))?;
        let x = self.name(input)?;
        Ok(self.node("MaxPool", &[&x], window(&op.window), 0))
    }

    pub(super) fn avg_pool(&mut self, at: usize, input: Id, op: &AvgPool) -> Result<String> {
        self.same_window(at, &in_each_trace!(self, at, AvgPool, |op| op.window))?;
        let mut attributes = window(&op.window);
        let mut since = 0;
        if op.window.dilation[..op.window.rank].iter().any(|&d| d > 1) {
            since = 19;
        } else {
            attributes.retain(|(name, _)| *name != "dilations");
        }
        attributes.push(("count_include_pad", Attr::Int(i64::from(op.count_include_pad))));
        let x = self.name(input)?;
        Ok(self.node("AveragePool", &[&x], attributes, since))
    }

    /// Attention. The heads of the result are moved beside each other, as in [`Attention`].
    pub(super) fn attention(&mut self, at: usize, inputs: &[Id], op: &Attention) -> Result<String> {
        let (lq, lk) = (self.dims(inputs[0])[2].clone(), self.dims(inputs[1])[2].clone());
        let names = self.names_of(inputs)?;
        let precise = fits(op.params.scale, self.dtype(inputs[0]));
        let whole = self.most >= 23 && precise && (!op.params.causal || lq == lk);
        let y = if whole {
            let attributes = vec![
                ("is_causal", Attr::Int(i64::from(op.params.causal))),
                ("scale", Attr::Float(op.params.scale as f32)),
            ];
            let mut names = names;
            if let (Some(mask), Some(&id)) = (names.get(3), inputs.get(3)) {
                // ONNX Runtime takes no mask with one row for all queries.
                let (mask, from) = (mask.clone(), self.dims(id));
                let mut to = from.clone();
                let row = to.len() - 2;
                to[row] = lq;
                names[3] = self.expanded(at, &mask, &from, &to, inputs)?;
            }
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            self.node("Attention", &names, attributes, 0)
        } else {
            self.attention_in_parts(at, inputs, &names, op)?
        };
        Ok(self.transpose(&y, vec![0, 2, 1, 3]))
    }

    /// Attention of simpler operators. The queries of all heads that share a key are rows of one matrix.
    fn attention_in_parts(&mut self, at: usize, inputs: &[Id], names: &[String], op: &Attention) -> Result<String> {
        let (q, k, v) = (self.dims(inputs[0]), self.dims(inputs[1]), self.dims(inputs[2]));
        let dtype = self.dtype(inputs[0]);
        let wide = dtype.compute();
        let [query, key, value] = [0, 1, 2].map(|i| self.cast(&names[i], dtype, wide));
        let rows: Vec<i64> = q[1].iter().zip(&k[1]).zip(&q[2]).map(|((h, hk), lq)| h / hk * lq).collect();
        let stacked: Dims = vec![q[0].clone(), k[1].clone(), rows.clone(), q[3].clone()];
        let scores: Dims = vec![q[0].clone(), k[1].clone(), rows, k[2].clone()];
        let apart: Dims = vec![q[0].clone(), q[1].clone(), q[2].clone(), k[2].clone()];
        let query = self.reshape(at, &query, &q, &stacked, inputs)?;
        let scale = self.scalar(op.params.scale, wide)?;
        let query = self.plain("Mul", &[&query, &scale]);
        let key = self.transpose(&key, vec![0, 1, 3, 2]);
        let products = self.plain("MatMul", &[&query, &key]);
        let mut x = self.reshape(at, &products, &scores, &apart, inputs)?;
        let hidden = self.scalar(f64::NEG_INFINITY, wide)?;
        if let (Some(mask), Some(&id)) = (names.get(3), inputs.get(3)) {
            x = if self.dtype(id) == DType::Bool {
                self.plain("Where", &[mask, &x, &hidden])
            } else {
                let mask = self.cast(mask, self.dtype(id), wide);
                self.plain("Add", &[&x, &mask])
            };
        }
        if op.params.causal {
            // The last query sees all keys, and each before it one key less.
            let more: Vec<i64> = k[2].iter().zip(&q[2]).map(|(lk, lq)| lk - lq).collect();
            let (queries, keys) = (self.scalar_size(at, &q[2], inputs)?, self.scalar_size(at, &k[2], inputs)?);
            let more = self.scalar_size(at, &more, inputs)?;
            let (zero, one, column) = (self.scalar(0, DType::I64)?, self.scalar(1, DType::I64)?, self.ints(&[1]));
            let rows = self.plain("Range", &[&zero, &queries, &one]);
            let rows = self.plain("Unsqueeze", &[&rows, &column]);
            let last = self.plain("Add", &[&rows, &more]);
            let columns = self.plain("Range", &[&zero, &keys, &one]);
            let seen = self.plain("LessOrEqual", &[&columns, &last]);
            x = self.plain("Where", &[&seen, &x, &hidden]);
        }
        let mut weights = self.node("Softmax", &[&x], vec![("axis", Attr::Int(-1))], 0);
        if names.len() > 3 || op.params.causal && q[2] != k[2] {
            // A query that sees no key has no weights, where a softmax of -inf is NaN.
            let largest = self.reduced("ReduceMax", &x, vec![-1]);
            let (blind, none) = (self.plain("Equal", &[&largest, &hidden]), self.scalar(0.0, wide)?);
            weights = self.plain("Where", &[&blind, &none, &weights]);
        }
        let weights = self.reshape(at, &weights, &apart, &scores, inputs)?;
        let y = self.plain("MatMul", &[&weights, &value]);
        let (narrow, result) = ([&scores[..3], &v[3..]].concat(), [&q[..3], &v[3..]].concat());
        let y = self.reshape(at, &y, &narrow, &result, inputs)?;
        Ok(self.cast(&y, wide, dtype))
    }

    /// A recurrent layer in one direction: the hidden states of all steps, and the final states.
    pub(super) fn recurrent(&mut self, at: usize, inputs: &[Id], op: &Recurrent) -> Result<Vec<String>> {
        if op.batch_sizes.is_some() {
            return Err(self.unsupported(at, "sequences of different lengths are not exported").help("pad them"));
        }
        // Where each of ONNX's gates stands among PyTorch's.
        let (name, order, states): (_, &[usize], _) = match op.cell {
            RecurrentCell::Lstm => ("LSTM", &[0, 3, 1, 2], 2),
            RecurrentCell::Gru => ("GRU", &[1, 0, 2], 1),
            _ => ("RNN", &[0], 1),
        };
        let names = self.names_of(inputs)?;
        let front = self.ints(&[0]);
        let hidden = self.tensor(inputs[1]).shape()[1];
        let mut given = vec![names[0].clone()];
        for weight in &names[1 + states..3 + states] {
            let ordered = self.gates(weight, order, hidden);
            given.push(self.plain("Unsqueeze", &[&ordered, &front]));
        }
        given.push(match &names[3 + states..] {
            [of_input, of_state] => {
                let both = [self.gates(of_input, order, hidden), self.gates(of_state, order, hidden)];
                let both = self.node("Concat", &[&both[0], &both[1]], vec![("axis", Attr::Int(0))], 0);
                self.plain("Unsqueeze", &[&both, &front])
            }
            _ => String::new(),
        });
        given.push(String::new()); // the lengths of the sequences, which are all the same
        for state in &names[1..1 + states] {
            given.push(self.plain("Unsqueeze", &[state, &front]));
        }
        let mut attributes = vec![("hidden_size", Attr::Int(hidden as i64))];
        if op.reverse {
            attributes.push(("direction", Attr::Text("reverse")));
        }
        match op.cell {
            RecurrentCell::Gru => attributes.push(("linear_before_reset", Attr::Int(1))),
            RecurrentCell::RnnRelu => attributes.push(("activations", Attr::Texts(vec!["Relu"]))),
            _ => {}
        }
        let given: Vec<&str> = given.iter().map(String::as_str).collect();
        let found = self.nodes(name, &given, 1 + states, attributes, 0);
        let directions = self.ints(&[1]);
        let mut outputs = vec![self.plain("Squeeze", &[&found[0], &directions])];
        for state in &found[1..] {
            outputs.push(self.plain("Squeeze", &[state, &front]));
        }
        Ok(outputs)
    }

    /// A weight or bias whose gates are in ONNX's order.
    fn gates(&mut self, weight: &str, order: &[usize], hidden: usize) -> String {
        if let [_] = order {
            return weight.to_owned();
        }
        let sizes: Vec<i64> = order.iter().map(|_| hidden as i64).collect();
        let sizes = self.ints(&sizes);
        let parts = self.nodes("Split", &[weight, &sizes], order.len(), vec![("axis", Attr::Int(0))], 0);
        let ordered: Vec<&str> = order.iter().map(|&i| parts[i].as_str()).collect();
        self.node("Concat", &ordered, vec![("axis", Attr::Int(0))], 0)
    }

    /// Emits a node for one of these operations, if it is one.
    pub(super) fn product(&mut self, at: usize, op: &Op, inputs: &[Id]) -> Result<Option<Vec<String>>> {
        Ok(Some(match op {
            Op::Linear(_) => vec![self.linear(inputs)?],
            Op::Matmul(_) => vec![self.matmul(inputs)?],
            Op::MatmulI32(_) => vec![self.matmul_i32(at, inputs)?],
            Op::Conv(op) => vec![self.conv(at, inputs, op)?],
            Op::ConvBackwardInput(op) => vec![self.conv_transpose(at, inputs, op)?],
            Op::MaxPool(op) => vec![self.max_pool(at, inputs[0], op)?],
            Op::AvgPool(op) => vec![self.avg_pool(at, inputs[0], op)?],
            Op::Attention(op) => vec![self.attention(at, inputs, op)?],
            Op::Recurrent(op) => self.recurrent(at, inputs, op)?,
            _ => return Ok(None),
        }))
    }
}

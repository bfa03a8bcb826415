//! The gradient of [`Recurrent`]: as a single operation, and composed of differentiable operations.

use gradus_backend::{Backend, DType, Error, Layout, MapArg, Result, Scalar, View, ViewMut};
use smallvec::{SmallVec, smallvec};

use super::panels::{Panels, Temp};
use super::{Recurrent, RecurrentCell, Steps, at};
use crate::Tensor;
use crate::ops::map::{Arg, Map};
use crate::ops::{Context, Flow, Grads, InputSpec, Operation, Outputs, Spec, apply};

/// The tensors that the steps of the backward pass read. Their shape is `[t, b, ..]` unless noted otherwise.
struct Trail {
    /// The gates before their activations.
    gates: Tensor,
    /// For a GRU, the products of the hidden states.
    products: Option<Tensor>,
    /// The state before each step: the cell state for an LSTM, the hidden state for a GRU.
    old: Option<Tensor>,
    /// For an LSTM, the cell state after each step.
    new: Option<Tensor>,
    /// `[gates * hidden, hidden]`
    w_hh: Tensor,
    /// The gradients of the hidden states and, for an LSTM, of the cell states.
    outputs: SmallVec<[Tensor; 2]>,
    /// The gradients of the final states `[b, hidden]`.
    finals: SmallVec<[Tensor; 2]>,
}

impl Trail {
    /// The tensors whose steps are arguments of the kernel, in order; the gradients follow them.
    fn read(&self) -> impl Iterator<Item = &Tensor> {
        [&self.products, &self.old, &self.new].into_iter().flatten()
    }
}

/// The steps of the backward pass of [`Recurrent`]. Inputs: the gates; for a GRU, the products of the hidden states;
/// for an LSTM or GRU, the state before each step; for an LSTM, the cell state after each step; the gradients of the
/// hidden states and, for an LSTM, of the cell states; `w_hh`; and the gradients of the final states.
///
/// Outputs: the gradients of the gates, of the products (for a GRU) and of the initial states.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RecurrentBackward {
    /// The operation of which this is the gradient.
    pub of: Recurrent,
}

impl RecurrentBackward {
    /// The number of tensors whose steps are arguments of the kernel.
    fn read(&self) -> usize {
        match self.of.cell {
            RecurrentCell::Lstm => 5,
            RecurrentCell::Gru => 4,
            _ => 2,
        }
    }

    fn name_of(cell: RecurrentCell) -> &'static str {
        match cell {
            RecurrentCell::RnnTanh => "rnn_tanh_backward",
            RecurrentCell::RnnRelu => "rnn_relu_backward",
            RecurrentCell::Lstm => "lstm_backward",
            RecurrentCell::Gru => "gru_backward",
        }
    }
}

impl Operation for RecurrentBackward {
    fn name(&self) -> &str {
        RecurrentBackward::name_of(self.of.cell)
    }

    fn infer(&self, inputs: &[InputSpec<'_>]) -> Result<Outputs> {
        let gates = Spec { shape: *inputs[0].shape, dtype: inputs[0].dtype };
        let mut specs: Outputs = smallvec![gates];
        if self.of.cell == RecurrentCell::Gru {
            specs.push(gates);
        }
        let finals = &inputs[self.read() + 1..];
        specs.extend(finals.iter().map(|g| Spec { shape: *g.shape, dtype: gates.dtype }));
        Ok(specs)
    }

    fn forward(&self, backend: &dyn Backend, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        let cell = self.of.cell;
        let (each, [w_hh, finals @ ..]) = inputs.split_at(self.read()) else { return Ok(()) };
        let hidden = w_hh.layout.dims()[1];
        let steps = self.of.steps(each[0].layout.dims(), hidden);
        let (gates, states) = outputs.split_at_mut(outputs.len() - cell.states());
        for (state, &last) in states.iter_mut().zip(finals) {
            backend.copy_strided(last, state)?;
        }
        if self.of.batch_sizes.is_some() {
            gates.iter_mut().try_for_each(|x| backend.fill(x, Scalar::Float(0.0)))?;
        }
        let dtype = each[0].dtype;
        let kernel = cell.step_backward(dtype)?;
        let w_hh = Panels::new(backend, *w_hh, steps.b)?;
        // A temporary for each gate: at most four.
        let mut found: Vec<Temp> = vec![];
        let count = if cell == RecurrentCell::Gru { 4 } else { cell.gates() };
        for _ in 0..count {
            found.push(Temp::new(backend, dtype, steps.state()?)?);
        }
        let mut d = Temp::apart(backend, dtype, [steps.b, cell.gates() * hidden])?;
        let beta = Scalar::Int(i64::from(cell == RecurrentCell::Gru));
        for (t, n) in steps.forward().rev().filter(|&(_, n)| n > 0) {
            let now = states[0].layout.narrow(0, 0, n)?;
            let mut layouts: SmallVec<[Layout; 16]> = SmallVec::new();
            let mut from: SmallVec<[View<'_>; 16]> = SmallVec::new();
            for &x in each {
                let all = at(x.layout, t, n)?;
                for first in (0..all.dims()[1]).step_by(hidden) {
                    layouts.push(all.narrow(1, first, hidden)?);
                    from.push(x);
                }
            }
            {
                let mut args: SmallVec<[MapArg<'_>; 16]> = SmallVec::new();
                args.extend(from.iter().zip(&layouts).map(|(x, l)| MapArg::View(x.with(l))));
                let mut outs: SmallVec<[ViewMut<'_>; 5]> = SmallVec::new();
                outs.extend(found.iter_mut().map(|x| ViewMut { layout: &now, ..x.view_mut() }));
                match (cell, &mut *states) {
                    (RecurrentCell::Lstm, [h, c]) => {
                        // Of the gradients from later steps, that of the hidden state comes before that of the cell
                        // state.
                        let of_cell = args.pop();
                        args.push(MapArg::View(h.as_view().with(&now)));
                        args.extend(of_cell);
                        args.push(MapArg::Output(4));
                        outs.push(c.with(&now));
                        backend.map(&kernel, &args, &mut outs)?;
                    }
                    (RecurrentCell::Gru, [h]) => {
                        args.push(MapArg::Output(4));
                        outs.push(h.with(&now));
                        backend.map(&kernel, &args, &mut outs)?;
                    }
                    (_, [h, ..]) => {
                        args.push(MapArg::View(h.as_view().with(&now)));
                        backend.map(&kernel, &args, &mut outs)?;
                    }
                    _ => return Err(Error::argument(self.name(), "the cell has no such states")),
                }
            }
            // The gradients of the products equal those of the gates, except for the last gate.
            let wide = d.layout().narrow(0, 0, n)?;
            for k in 0..cell.gates() {
                let source = if cell == RecurrentCell::Gru && k == 2 { 3 } else { k };
                let place = wide.narrow(1, k * hidden, hidden)?;
                backend.copy_strided(found[source].view().with(&now), &mut d.view_mut().with(&place))?;
            }
            w_hh.product(backend, d.view().with(&wide), beta, &mut states[0].with(&now))?;
            let [of_gates @ .., of_products] = &mut *gates else { return Ok(()) };
            let place = at(of_products.layout, t, n)?;
            backend.copy_strided(d.view().with(&wide), &mut of_products.with(&place))?;
            for to in of_gates {
                let all = at(to.layout, t, n)?;
                for (k, found) in found.iter().enumerate().take(cell.gates()) {
                    let place = all.narrow(1, k * hidden, hidden)?;
                    backend.copy_strided(found.view().with(&now), &mut to.with(&place))?;
                }
            }
        }
        Ok(())
    }

    fn flow(&self) -> Flow {
        Flow::Mixes
    }

    fn differentiable(&self, _: usize) -> bool {
        false
    }
}

impl Recurrent {
    /// The gradients of the inputs.
    #[track_caller]
    pub(super) fn gradients(&self, ctx: &Context<'_>, g: &[Option<Tensor>]) -> Result<Grads> {
        let (states, count) = (self.cell.states(), ctx.input_count());
        let mut out = Grads::from_elem(None, count);
        if g.iter().all(Option::is_none) {
            return Ok(out);
        }
        let (x, h0) = (self.without_padding(ctx.input(0)?)?, ctx.input(1)?);
        let (w_ih, w_hh) = (ctx.input(1 + states)?, ctx.input(2 + states)?);
        let steps = self.steps(x.shape(), h0.shape()[1]);
        let (shape, rows) = (steps.states()?, steps.t * steps.b);
        let before = self.before(&ctx.output(0)?, &h0)?;
        let (mut gates, mut products) = (None, None);
        if ctx.create_graph() {
            // Computes the gates again from the inputs, so that the gradient can itself be differentiated. The hidden
            // states are outputs of this operation, through which they depend on the inputs.
            let biases = if count > 3 + states { Some((ctx.input(3 + states)?, ctx.input(4 + states)?)) } else { None };
            let (b_ih, b_hh) = (biases.as_ref().map(|b| &b.0), biases.as_ref().map(|b| &b.1));
            let (of_x, of_h) = (x.linear(&w_ih, b_ih)?, before.linear(&w_hh, b_hh)?);
            if self.cell.adds_products() {
                gates = Some(of_x.add(&of_h)?);
            } else {
                (gates, products) = (Some(of_x), Some(of_h));
            }
        }
        let gates = if let Some(gates) = gates { gates } else { ctx.output(1 + states)? };
        let dtype = x.dtype();
        let zero = Tensor::zeros([1], dtype, x.device())?;
        let given = |i: usize, shape: &[usize]| match g.get(i) {
            Some(Some(g)) => Ok(g.clone()),
            _ => zero.expand(shape),
        };
        let mut trail = Trail {
            gates,
            products,
            old: None,
            new: None,
            w_hh: w_hh.clone(),
            outputs: smallvec![given(0, &shape)?],
            finals: smallvec![given(1, h0.shape())?],
        };
        match self.cell {
            RecurrentCell::Lstm => {
                let cells = ctx.output(4)?;
                trail.old = Some(self.before(&cells, &ctx.input(2)?)?);
                trail.new = Some(cells);
                trail.outputs.push(given(4, &shape)?);
                trail.finals.push(given(2, h0.shape())?);
            }
            RecurrentCell::Gru => {
                if trail.products.is_none() {
                    trail.products = Some(ctx.output(3)?);
                }
                trail.old = Some(before.clone());
            }
            _ => {}
        }
        let found = if ctx.create_graph() {
            self.composed(steps, &trail)?
        } else {
            let mut inputs: SmallVec<[&Tensor; 9]> = smallvec![&trail.gates];
            inputs.extend(trail.read());
            inputs.extend(&trail.outputs);
            inputs.push(&trail.w_hh);
            inputs.extend(&trail.finals);
            apply(RecurrentBackward { of: self.clone() }, &inputs)?
        };
        let (gates, initial) = found.split_at(found.len() - states);
        let wide = gates[0].shape()[2];
        let (of_x, of_h) = (gates[0].reshape([rows, wide])?, gates[gates.len() - 1].reshape([rows, wide])?);
        if ctx.needs(0) {
            out[0] = Some(of_x.matmul(&w_ih)?.reshape(x.shape())?);
        }
        for (i, d) in initial.iter().enumerate().filter(|&(i, _)| ctx.needs(1 + i)) {
            out[1 + i] = Some(d.clone());
        }
        if ctx.needs(1 + states) {
            out[1 + states] = Some(of_x.t()?.matmul(&x.reshape([rows, x.shape()[2]])?)?);
        }
        if ctx.needs(2 + states) {
            out[2 + states] = Some(of_h.t()?.matmul(&before.reshape([rows, steps.hidden])?)?);
        }
        if ctx.needs(3 + states) {
            out[3 + states] = Some(of_x.sum(&[0], false)?);
        }
        if ctx.needs(4 + states) {
            out[4 + states] = Some(match &out[3 + states] {
                Some(d) if self.cell.adds_products() => d.clone(),
                _ => of_h.sum(&[0], false)?,
            });
        }
        Ok(out)
    }

    /// The input with zeros beyond the end of each sequence: it may hold NaN there, and 0 times NaN is NaN.
    #[track_caller]
    fn without_padding(&self, x: Tensor) -> Result<Tensor> {
        let Some(sizes) = &self.batch_sizes else { return Ok(x) };
        let (t, b, device) = (x.shape()[0], x.shape()[1], x.device());
        // At most as many as the input has steps.
        let sizes: Vec<i64> = sizes.iter().map(|&n| n as i64).collect();
        let sizes = Tensor::from_vec(sizes, [t, 1, 1], device)?;
        Tensor::arange(0, b as i64, 1, DType::I64, device)?.unsqueeze(1)?.lt(&sizes)?.where_(&x, 0)
    }

    /// Returns the state before each step `[t, b, hidden]`, given the state after each step and the initial states.
    #[track_caller]
    fn before(&self, states: &Tensor, initial: &Tensor) -> Result<Tensor> {
        let t = states.shape()[0];
        let first = initial.unsqueeze(0)?;
        if !self.reverse {
            return Tensor::cat(&[&first, &states.narrow(0, 0, t - 1)?], 0);
        }
        let shifted = Tensor::cat(&[&states.narrow(0, 1, t - 1)?, &first], 0)?;
        let Some(sizes) = &self.batch_sizes else { return Ok(shifted) };
        // In reverse, a sequence begins at its last step, after which fewer sequences have a step.
        let (b, device) = (states.shape()[1] as i64, states.device());
        // At most as many as the input has steps.
        let after: Vec<i64> = sizes.iter().skip(1).map(|&n| n as i64).chain([0]).collect();
        let after = Tensor::from_vec(after, [t, 1, 1], device)?;
        let begins = Tensor::arange(0, b, 1, DType::I64, device)?.unsqueeze(1)?.ge(&after)?;
        begins.where_(&first, &shifted)
    }

    /// The steps of the backward pass as differentiable operations: what [`RecurrentBackward`] computes.
    #[track_caller]
    fn composed(&self, steps: Steps<'_>, trail: &Trail) -> Result<SmallVec<[Tensor; 1]>> {
        let (hidden, count) = (steps.hidden, self.cell.gates());
        let kernel = self.cell.step_backward(trail.gates.dtype())?;
        let mut states = trail.finals.clone();
        // The gradients of the gates and of the products of each step: at most as many as the input has steps.
        let mut found: [Vec<Tensor>; 2] = [vec![], vec![]];
        for (t, n) in steps.forward().rev() {
            let rows = |x: &Tensor| x.select(0, t as isize)?.narrow(0, 0, n);
            let mut args: SmallVec<[Tensor; 12]> = SmallVec::new();
            for x in std::iter::once(&trail.gates).chain(trail.read()) {
                let x = rows(x)?;
                for first in (0..x.shape()[1]).step_by(hidden) {
                    args.push(x.narrow(1, first, hidden)?);
                }
            }
            for (d, state) in trail.outputs.iter().zip(&states) {
                args.push(rows(d)?);
                args.push(state.narrow(0, 0, n)?);
            }
            let refs: SmallVec<[&Tensor; 12]> = args.iter().collect();
            let map = Map { kernel: kernel.clone(), args: (0..refs.len()).map(Arg::Tensor).collect() };
            let mut d = apply(map, &refs)?;
            let mut direct = None;
            let mut old: SmallVec<[Tensor; 2]> = SmallVec::new();
            match self.cell {
                RecurrentCell::Lstm => old.extend(d.pop()),
                RecurrentCell::Gru => direct = d.pop(),
                _ => {}
            }
            let gates: SmallVec<[&Tensor; 4]> = d.iter().take(count).collect();
            let of_x = Tensor::cat(&gates, 1)?;
            let of_h =
                if self.cell == RecurrentCell::Gru { Tensor::cat(&[&d[0], &d[1], &d[3]], 1)? } else { of_x.clone() };
            let mut dh = of_h.matmul(&trail.w_hh)?;
            if let Some(direct) = direct {
                dh = dh.add(&direct)?;
            }
            old.insert(0, dh);
            for (state, old) in states.iter_mut().zip(old) {
                let rest = state.narrow(0, n, steps.b - n)?;
                *state = if n == steps.b { old } else { Tensor::cat(&[&old, &rest], 0)? };
            }
            for (found, d) in found.iter_mut().zip([of_x, of_h]) {
                let rest = Tensor::zeros([steps.b - n, count * hidden], d.dtype(), d.device())?;
                found.push(if n == steps.b { d } else { Tensor::cat(&[&d, &rest], 0)? });
            }
        }
        let [of_x, of_h] = found.map(|mut found| {
            if !self.reverse {
                found.reverse();
            }
            found
        });
        let stacked = |found: &[Tensor]| Tensor::stack(&found.iter().collect::<Vec<_>>(), 0); // at most `t`
        let mut all: SmallVec<[Tensor; 1]> = smallvec![stacked(&of_x)?];
        if self.cell == RecurrentCell::Gru {
            all.push(stacked(&of_h)?);
        }
        all.extend(states);
        Ok(all)
    }
}

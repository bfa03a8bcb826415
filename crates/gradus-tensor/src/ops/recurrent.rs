//! One layer of a recurrent network in one direction: all time steps as one operation.
//!
//! The input is multiplied by its weight in one matrix product for all steps, so that each step takes one matrix
//! product and one elementwise kernel. The backward pass runs the steps in reverse in the same way, and computes the
//! gradient of each weight in one product for all steps. It reads the saved gates from before their activations, and
//! recomputes the activations.

mod backward;
mod panels;
mod steps;

use std::sync::Arc;

use gradus_backend::{Backend, Error, Here, Layout, MapArg, Result, Scalar, Shape, View, ViewMut};
use smallvec::SmallVec;

use super::operand_rules::{cast, common_dtype};
use super::{Context, Flow, Grads, InputSpec, Keep, Operation, Outputs, Spec, apply};
use crate::Tensor;
pub use backward::RecurrentBackward;
use panels::{Panels, Temp};
pub use steps::RecurrentCell;

/// The operation. Inputs: `x [t, b, in]`, the initial states `[b, hidden]`, `w_ih [gates * hidden, in]`,
/// `w_hh [gates * hidden, hidden]`, and either two biases `[gates * hidden]` or none.
///
/// Outputs: the hidden states of all steps `[t, b, hidden]`, the final states `[b, hidden]`, and what the backward pass
/// reads: the gates `[t, b, gates * hidden]` before their activations, and, for an LSTM, the cell states of all steps
/// or, for a GRU, the products of the hidden states `[t, b, gates * hidden]`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Recurrent {
    /// The formula of a step.
    pub cell: RecurrentCell,
    /// Whether the steps run from the last to the first.
    pub reverse: bool,
    /// For each step, the number of sequences of the batch that have this step; `None` if all sequences have every
    /// step. The numbers never increase.
    pub batch_sizes: Option<Arc<[usize]>>,
}

/// The sizes of a layer, and the order of its steps.
#[derive(Debug, Clone, Copy)]
struct Steps<'a> {
    op: &'a Recurrent,
    t: usize,
    b: usize,
    hidden: usize,
}

impl Steps<'_> {
    /// The steps in the order of the forward pass, each with the number of its sequences.
    fn forward(&self) -> impl DoubleEndedIterator<Item = (usize, usize)> + '_ {
        (0..self.t).map(|i| {
            let t = if self.op.reverse { self.t - 1 - i } else { i };
            (t, self.rows(t))
        })
    }

    fn rows(&self, t: usize) -> usize {
        self.op.batch_sizes.as_ref().map_or(self.b, |sizes| sizes[t])
    }

    /// The shape `[b, hidden]`.
    fn state(&self) -> Result<Shape> {
        Shape::new(&[self.b, self.hidden])
    }

    /// The shape `[t, b, hidden]`.
    fn states(&self) -> Result<Shape> {
        Shape::new(&[self.t, self.b, self.hidden])
    }

    /// The shape `[t, b, gates * hidden]`.
    fn gates(&self) -> Result<Shape> {
        Shape::new(&[self.t, self.b, self.op.cell.gates() * self.hidden])
    }
}

/// The first `n` rows of step `t` of a tensor `[t, b, ..]`.
fn at(x: &Layout, t: usize, n: usize) -> Result<Layout> {
    x.select(0, t)?.narrow(0, 0, n)
}

impl Recurrent {
    fn steps(&self, x: &[usize], hidden: usize) -> Steps<'_> {
        Steps { op: self, t: x[0], b: x[1], hidden }
    }

    /// Fills `out [t, b, gates * hidden]` with a bias, which may be the sum of two.
    fn fill_bias(&self, backend: &dyn Backend, biases: &[View<'_>], out: &mut ViewMut<'_>) -> Result<()> {
        static SUM: super::UpdateFn = super::UpdateFn::new("bias", |x| vec![x[0] + x[1]]);
        let shape = *out.layout.shape();
        if let [a, b] = *biases {
            let mut sum = Temp::new(backend, a.dtype, *a.layout.shape())?;
            let kernel = SUM.kernel(&[a.dtype; 2], &[a.dtype])?;
            backend.map(&kernel, &[MapArg::View(a), MapArg::View(b)], &mut [sum.view_mut()])?;
            return backend.copy_strided(sum.view().with(&sum.layout().expand(shape)?), out);
        }
        backend.copy_strided(biases[0].with(&biases[0].layout.expand(shape)?), out)
    }
}

impl Operation for Recurrent {
    fn name(&self) -> &str {
        self.cell.name()
    }

    fn input_names(&self) -> &'static [&'static str] {
        match self.cell {
            RecurrentCell::Lstm => &["input", "h_0", "c_0", "weight_ih", "weight_hh", "bias_ih", "bias_hh"],
            _ => &["input", "h_0", "weight_ih", "weight_hh", "bias_ih", "bias_hh"],
        }
    }

    fn infer(&self, inputs: &[InputSpec<'_>]) -> Result<Outputs> {
        let (x, h, dtype) = (inputs[0].shape, inputs[1].shape, inputs[0].dtype);
        let steps = self.steps(x, h[1]);
        let mut shapes = vec![steps.states()?, steps.state()?];
        match self.cell {
            RecurrentCell::Lstm => shapes.extend([steps.state()?, steps.gates()?, steps.states()?]),
            RecurrentCell::Gru => shapes.extend([steps.gates()?, steps.gates()?]),
            _ => shapes.push(steps.gates()?),
        }
        Ok(shapes.into_iter().map(|shape| Spec { shape, dtype }).collect())
    }

    fn forward(&self, backend: &dyn Backend, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        let (states, dtype) = (self.cell.states(), inputs[0].dtype);
        let (w_ih, w_hh, biases) = (inputs[1 + states], inputs[2 + states], &inputs[3 + states..]);
        let steps = self.steps(inputs[0].layout.dims(), inputs[1].layout.dims()[1]);
        let wide = steps.gates()?.dims()[2];
        let [out, rest @ ..] = outputs else { return Ok(()) };
        let (state, rest) = rest.split_at_mut(states);
        let [gates, extra @ ..] = rest else { return Ok(()) };
        for (state, &initial) in state.iter_mut().zip(&inputs[1..]) {
            backend.copy_strided(initial, state)?;
        }
        if self.batch_sizes.is_some() {
            backend.fill(out, Scalar::Float(0.0))?;
            extra.iter_mut().try_for_each(|x| backend.fill(x, Scalar::Float(0.0)))?;
        }

        // The products of all inputs at once.
        let mut beta = Scalar::Int(0);
        if !biases.is_empty() {
            let (here, there) = biases.split_at(if self.cell.adds_products() { 2 } else { 1 });
            self.fill_bias(backend, here, gates)?;
            if !there.is_empty() {
                self.fill_bias(backend, there, &mut extra[0])?;
            }
            beta = Scalar::Int(1);
        }
        let rows = |l: &Layout| {
            let shape = Shape::new(&[steps.t * steps.b, l.dims()[2]])?;
            l.reshape(shape).ok_or_else(|| Error::argument(self.name(), "the input is not contiguous"))
        };
        let (x, g, w) = (rows(inputs[0].layout)?, rows(gates.layout)?, w_ih.layout.transpose(0, 1)?);
        backend.gemm(Scalar::Int(1), inputs[0].with(&x), w_ih.with(&w), beta, &mut gates.with(&g))?;

        let w = w_hh.layout.transpose(0, 1)?;
        let w_hh = Panels::new(backend, w_hh.with(&w), steps.b)?;
        let kernel = self.cell.step(dtype)?;
        let added = self.cell.adds_products();
        let beta = if added { Scalar::Int(1) } else { beta };
        for (t, n) in steps.forward().filter(|&(_, n)| n > 0) {
            let now = state[0].layout.narrow(0, 0, n)?;
            let product = if added { &mut *gates } else { &mut extra[0] };
            let l = at(product.layout, t, n)?;
            w_hh.product(backend, state[0].as_view().with(&now), beta, &mut product.with(&l))?;

            let mut layouts: SmallVec<[Layout; 6]> = SmallVec::new();
            let all = at(gates.layout, t, n)?;
            for first in (0..wide).step_by(steps.hidden) {
                layouts.push(all.narrow(1, first, steps.hidden)?);
            }
            let mut args: SmallVec<[MapArg<'_>; 8]> = SmallVec::new();
            args.extend(layouts.iter().map(|l| MapArg::View(gates.as_view().with(l))));
            let place = at(out.layout, t, n)?;
            match (&mut *state, &mut *extra) {
                ([h, c], [cells]) => {
                    args.push(MapArg::Output(1));
                    let outs = &mut [h.with(&now), c.with(&now), out.with(&place), cells.with(&place)];
                    backend.map(&kernel, &args, outs)?;
                }
                ([h], [hidden]) => {
                    args.extend(layouts.iter().map(|l| MapArg::View(hidden.as_view().with(l))));
                    args.push(MapArg::Output(0));
                    backend.map(&kernel, &args, &mut [h.with(&now), out.with(&place)])?;
                }
                ([h], []) => backend.map(&kernel, &args, &mut [h.with(&now), out.with(&place)])?,
                _ => return Err(Error::argument(self.name(), "the cell has no such states")),
            }
        }
        Ok(())
    }

    fn flow(&self) -> Flow {
        Flow::Mixes
    }

    fn differentiable(&self, output: usize) -> bool {
        // The cell states of an LSTM carry a gradient, so that the gradient of the gradient can read them.
        output <= self.cell.states() || (self.cell == RecurrentCell::Lstm && output == 4)
    }

    fn keeps(&self, needs: &[bool]) -> Keep {
        let states = self.cell.states();
        let extra = if matches!(self.cell, RecurrentCell::Lstm | RecurrentCell::Gru) { 2 } else { 1 };
        Keep::inputs(0..needs.len()).and_outputs(std::iter::once(0).chain(states + 1..states + 1 + extra))
    }

    fn vjp(&self, ctx: &Context<'_>, g: &[Option<Tensor>]) -> Result<Grads> {
        self.gradients(ctx, g)
    }
}

/// A layer of a recurrent network in one direction: what [`Tensor::recurrent`] computes.
#[must_use = "options do nothing until they are passed to an operation, and setting one gives new options"]
#[derive(Debug, Clone, Copy)]
pub struct RecurrentOptions<'a> {
    cell: RecurrentCell,
    reverse: bool,
    lengths: Option<&'a [usize]>,
}

impl<'a> RecurrentOptions<'a> {
    /// A layer with this cell that runs from the first step to the last, over sequences of one length.
    pub fn new(cell: RecurrentCell) -> Self {
        RecurrentOptions { cell, reverse: false, lengths: None }
    }

    /// Sets whether each sequence is read from its last step to its first.
    pub fn reverse(mut self, reverse: bool) -> Self {
        self.reverse = reverse;
        self
    }

    /// Sets the length of each sequence of the batch, in descending order, each at least 1. Input beyond the end of a
    /// sequence is not read, and the output there is 0.
    pub fn lengths(mut self, lengths: &'a [usize]) -> Self {
        self.lengths = Some(lengths);
        self
    }
}

impl Tensor {
    /// Runs one layer of a recurrent network in one direction over `self [t, b, in]`, time first. Returns the hidden
    /// states of all steps `[t, b, hidden]`, followed by the final states `[b, hidden]`, which hold the state of each
    /// sequence after its own last step.
    ///
    /// `states` are the initial states `[b, hidden]`: the hidden state and, for an LSTM, the cell state. `weights` are
    /// `w_ih [gates * hidden, in]` and `w_hh [gates * hidden, hidden]`, and `biases` are two vectors `[gates *
    /// hidden]`. For the formulas see [`RecurrentCell`]; they and the order of the gates are those of PyTorch. The
    /// slope of ReLU at 0 is 0. Half precision is computed in f32, and the results are rounded once.
    ///
    /// # Errors
    /// Fails if an operand has another shape; if there are no time steps or no hidden features; if a length is 0 or
    /// exceeds `t`; if the lengths are not in descending order; or if their number is not that of the sequences.
    ///
    /// ```
    /// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
    /// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    /// use gradus_tensor::ops::{RecurrentCell, RecurrentOptions};
    ///
    /// let ones = |shape: &[usize]| Tensor::ones(shape, DType::F32, &device);
    /// let (x, zero) = (ones(&[5, 2, 3])?, ones(&[2, 4])?.zeros_like()?);
    /// let gru = RecurrentOptions::new(RecurrentCell::Gru).lengths(&[5, 3]);
    /// let found = x.recurrent(gru, &[&zero], [&ones(&[12, 3])?, &ones(&[12, 4])?], None)?;
    /// assert_eq!((found[0].shape(), found[1].shape()), (&[5, 2, 4][..], &[2, 4][..]));
    /// assert_eq!(found[0].select(0, 4)?.select(0, 1)?.sum_all()?.item()?, 0.0);
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn recurrent(
        &self,
        options: RecurrentOptions<'_>,
        states: &[&Tensor],
        weights: [&Tensor; 2],
        biases: Option<[&Tensor; 2]>,
    ) -> Result<Vec<Tensor>> {
        let RecurrentOptions { cell, reverse, lengths } = options;
        let name = cell.name();
        if states.len() != cell.states() {
            let m = format!("{} initial states; {name} has {}", states.len(), cell.states());
            return Err(Error::argument(name, m));
        }
        let op = Recurrent { cell, reverse, batch_sizes: None };
        // There are at most seven operands.
        let mut operands = vec![self];
        operands.extend(states);
        operands.extend(weights);
        operands.extend(biases.iter().flatten());
        let refuse = |m: String| {
            let named = operands.iter().zip(op.input_names());
            let e = named.fold(Error::shape(name, m), |e, (t, name)| t.describe(e, name));
            Err(e.help(
                "input is [t, b, in], a state [b, hidden], weight_ih [gates * hidden, in], weight_hh \
                 [gates * hidden, hidden] and a bias [gates * hidden]",
            ))
        };
        let (&[t, b, features], &[_, hidden]) = (self.shape(), states[0].shape()) else {
            return refuse("the input has rank 3, and the initial state rank 2".into()).here();
        };
        let wide = hidden.checked_mul(cell.gates()).ok_or_else(|| Error::argument(name, "too many features")).here()?;
        if t == 0 || hidden == 0 {
            return refuse("there are no time steps, or no hidden features".into()).here();
        }
        if let Some(s) = states.iter().find(|s| s.shape() != [b, hidden]) {
            let m = format!("an initial state is {}, not [{b}, {hidden}]", Shape::display(s.shape()));
            return refuse(m).here();
        }
        if weights[0].shape() != [wide, features] || weights[1].shape() != [wide, hidden] {
            return refuse(format!("the weights are not [{wide}, {features}] and [{wide}, {hidden}]")).here();
        }
        if biases.is_some_and(|b| b.iter().any(|b| b.shape() != [wide])) {
            return refuse(format!("the biases are not [{wide}]")).here();
        }
        let batch_sizes = if let Some(lengths) = lengths { Some(batch_sizes(name, lengths, t, b)?) } else { None };
        let dtype = common_dtype(name, &operands, op.input_names())?;
        let wide = dtype.to_float().compute();
        // At most seven.
        let mut inputs = vec![self.to_dtype(wide)?.contiguous()?];
        for t in &operands[1..] {
            inputs.push(cast(t, wide)?.into_owned());
        }
        // At most seven.
        let inputs: Vec<&Tensor> = inputs.iter().collect();
        let found = apply(Recurrent { batch_sizes, ..op }, &inputs)?;
        // At most three.
        let mut results = vec![];
        for result in found.into_iter().take(1 + cell.states()) {
            results.push(result.to_dtype(dtype.to_float())?);
        }
        Ok(results)
    }
}

/// For each of `t` steps, how many of the `b` sequences have it.
#[track_caller]
fn batch_sizes(name: &str, lengths: &[usize], t: usize, b: usize) -> Result<Arc<[usize]>> {
    let refuse = |m: String, help: &str| Err(Error::argument(name, m).help(help));
    if lengths.len() != b {
        return refuse(format!("{} lengths for {b} sequences", lengths.len()), "pass a length for each sequence")
            .here();
    }
    if let Some((i, &n)) = lengths.iter().enumerate().find(|(_, n)| !(1..=t).contains(*n)) {
        return refuse(
            format!("sequence {i} has length {n}"),
            &format!("a length is from 1 to {t}, the steps of the input"),
        )
        .here();
    }
    if let Some(i) = lengths.windows(2).position(|w| w[0] < w[1]) {
        let m = format!("length {} of sequence {} follows length {}", lengths[i + 1], i + 1, lengths[i]);
        return refuse(m, "sort the batch by length, the longest first").here();
    }
    // At most `t` numbers, no more than the input has steps.
    Ok((0..t).map(|t| lengths.partition_point(|&n| n > t)).collect())
}

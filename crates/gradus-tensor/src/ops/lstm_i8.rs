//! A layer of an LSTM with weights of 8 bits, in one direction or in two side by side, as one operation.
//!
//! The inputs of all steps are multiplied at once. Each step then takes one product, which rounds the hidden state to 8 bits,
//! and one elementwise kernel. The directions of a step are one call, although their steps run in opposite orders.

use gradus_backend::{Backend, Buffer, DType, Error, Layout, MapArg, Result, Shape, View, ViewMut};
use smallvec::{SmallVec, smallvec};

use super::{Flow, InputSpec, Operation, Outputs, Spec, UpdateFn, apply};
use crate::Tensor;

/// The number of gates.
const GATES: usize = 4;

/// The operation. A direction has the weights of its input and of its hidden state: the integers, the scale and the sum of
/// the integers of each output, and a bias. Inputs, where `d` is the number of directions and `n = 4 * hidden`:
/// `x [t, b, in]`, the initial states `[d, b, hidden]`, `w_ih [d, n, in]` of i8, its scale `[d, n]`, its sums `[d, n]` of i32,
/// `w_hh [d, n, hidden]` of i8, its scale and its sums, and two biases `[d, n]`.
///
/// The gates are in the order of ONNX: input, output, forget and cell. Each product rounds its operand as
/// [`Backend::linear_i8`] says: the input over all steps, and the hidden state in each. Outputs: the hidden states of all steps
/// `[t, d, b, hidden]`, and the final states. Without a derivative.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LstmI8 {
    /// For each direction, one or two, whether its steps run from the last to the first.
    pub reverse: SmallVec<[bool; 2]>,
}

impl LstmI8 {
    /// Runs the layer. The inputs are in the order above.
    ///
    /// # Errors
    /// Fails if the inputs have other shapes or dtypes, or if there is another number of directions.
    #[track_caller]
    pub fn apply(self, inputs: [&Tensor; 11]) -> Result<Vec<Tensor>> {
        let mut whole = Vec::with_capacity(inputs.len());
        for t in inputs {
            whole.push(t.contiguous()?);
        }
        Ok(apply(self, &whole.iter().collect::<Vec<_>>())?.into_iter().collect())
    }

    /// For step `i` of `t`, the step at which the first direction is, and how many steps later the second one is.
    fn at(&self, i: usize, t: usize) -> (usize, isize) {
        let step = |reverse: bool| if reverse { t - 1 - i } else { i };
        let first = step(self.reverse[0]);
        (first, self.reverse.get(1).map_or(0, |&r| step(r) as isize - first as isize))
    }
}

/// The rows of a layer's directions at one step.
struct Rows {
    /// `[d, b, columns]`.
    shape: Shape,
    /// The strides within a step.
    strides: [isize; 3],
    /// The numbers of elements of a step, and of all steps.
    step: usize,
    elements: usize,
}

impl Rows {
    fn at(&self, (first, later): (usize, isize)) -> Result<Layout> {
        let [direction, row, column] = self.strides;
        let strides = [direction + later * self.step as isize, row, column];
        Layout::from_parts(self.shape, &strides, first * self.step, self.elements)
    }
}

fn view<'a>(buffer: &'a Buffer, layout: &'a Layout) -> View<'a> {
    View { buffer, dtype: DType::F32, layout }
}

impl Operation for LstmI8 {
    fn name(&self) -> &str {
        "lstm_i8"
    }

    fn input_names(&self) -> &'static [&'static str] {
        &[
            "input",
            "h_0",
            "c_0",
            "weight_ih",
            "scale_ih",
            "sums_ih",
            "weight_hh",
            "scale_hh",
            "sums_hh",
            "bias_ih",
            "bias_hh",
        ]
    }

    fn infer(&self, inputs: &[InputSpec<'_>]) -> Result<Outputs> {
        let (&[t, b, features], &[d, _, hidden]) = (&inputs[0].shape[..], &inputs[1].shape[..]) else {
            return Err(Error::shape("lstm_i8", "the input has rank 3, and so have the initial states"));
        };
        if self.reverse.len() != d || !(1..=2).contains(&d) {
            let m = format!("{d} directions with {} orders of their steps", self.reverse.len());
            return Err(Error::argument("lstm_i8", m).help("there are one or two directions"));
        }
        let n = hidden.checked_mul(GATES).ok_or_else(|| Error::argument("lstm_i8", "too many features"))?;
        let (state, vector) = ([d, b, hidden], [d, n]);
        let expected: [(&[usize], DType); 11] = [
            (&[t, b, features], DType::F32),
            (&state, DType::F32),
            (&state, DType::F32),
            (&[d, n, features], DType::I8),
            (&vector, DType::F32),
            (&vector, DType::I32),
            (&[d, n, hidden], DType::I8),
            (&vector, DType::F32),
            (&vector, DType::I32),
            (&vector, DType::F32),
            (&vector, DType::F32),
        ];
        for ((x, (shape, dtype)), name) in inputs.iter().zip(expected).zip(self.input_names()) {
            if x.shape[..] != *shape || x.dtype != dtype {
                let m = format!("{name} is {} of {}, not {} of {dtype}", x.shape, x.dtype, Shape::display(shape));
                return Err(Error::shape("lstm_i8", m));
            }
        }
        let spec = |dims: &[usize]| Ok(Spec { shape: Shape::new(dims)?, dtype: DType::F32 });
        Shape::new(&[t, b, d, n])?;
        Ok(smallvec![spec(&[t, d, b, hidden])?, spec(&state)?, spec(&state)?])
    }

    fn forward(&self, backend: &dyn Backend, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        static CELL: UpdateFn = UpdateFn::new("lstm_i8", |x| {
            let c = x[2].sigmoid() * x[4] + x[0].sigmoid() * x[3].tanh();
            vec![x[1].sigmoid() * c.tanh(), c]
        });
        let (&[x, h_0, c_0, w, w_scale, w_sums, r, r_scale, r_sums, w_bias, r_bias], [y, h, c]) = (inputs, outputs)
        else {
            return Err(Error::argument("lstm_i8", "it has eleven inputs and three outputs"));
        };
        let (&[t, b, features], &[d, _, hidden]) = (x.layout.dims(), h_0.layout.dims()) else {
            return Err(Error::argument("lstm_i8", "the input and the states have three axes"));
        };
        backend.copy_strided(c_0, c)?;
        if t * b * hidden == 0 {
            return backend.copy_strided(h_0, h);
        }
        let reshaped = |l: &Layout, dims: &[usize]| {
            l.reshape(Shape::new(dims)?).ok_or_else(|| Error::argument("lstm_i8", "an operand is not contiguous"))
        };
        let wide = GATES * hidden;
        let all = d * wide;
        let mut gates = backend.alloc(t * b * all * DType::F32.size())?;

        // The products of all inputs: both directions are columns of one matrix.
        let columns = reshaped(w.layout, &[1, all, features])?.transpose(1, 2)?;
        let rows = reshaped(x.layout, &[1, t * b, features])?;
        let vector = |v: &View<'_>| reshaped(v.layout, &[1, all]);
        let [sums, scale, bias] = [vector(&w_sums)?, vector(&w_scale)?, vector(&w_bias)?];
        let product = Layout::contiguous(Shape::new(&[1, t * b, all])?);
        let out = &mut ViewMut { buffer: &mut gates, dtype: DType::F32, layout: &product };
        let (sums, scale, bias) = (w_sums.with(&sums), w_scale.with(&scale), w_bias.with(&bias));
        backend.linear_i8(false, x.with(&rows), w.with(&columns), sums, scale, bias, out)?;

        let r_columns = r.layout.transpose(1, 2)?;
        let r = r.with(&r_columns);
        let of_gates = Rows {
            shape: Shape::new(&[d, b, wide])?,
            strides: [wide as isize, all as isize, 1],
            step: b * all,
            elements: t * b * all,
        };
        let of_states = Rows {
            shape: Shape::new(&[d, b, hidden])?,
            strides: [(b * hidden) as isize, hidden as isize, 1],
            step: d * b * hidden,
            elements: t * d * b * hidden,
        };
        let kernel = CELL.kernel(&[DType::F32; 5], &[DType::F32; 2])?;
        let mut before: Option<Layout> = None;
        for i in 0..t {
            let (gate, state) = (of_gates.at(self.at(i, t))?, of_states.at(self.at(i, t))?);
            let h = before.as_ref().map_or(h_0, |l| y.as_view().with(l));
            let out = &mut ViewMut { buffer: &mut gates, dtype: DType::F32, layout: &gate };
            backend.linear_i8(true, h, r, r_sums, r_scale, r_bias, out)?;
            let [input, output, forget, cell] = std::array::from_fn(|k| gate.narrow(2, k * hidden, hidden));
            let parts = [input?, output?, forget?, cell?];
            let [input, output, forget, cell] = parts.each_ref().map(|l| MapArg::View(view(&gates, l)));
            let args = [input, output, forget, cell, MapArg::Output(1)];
            backend.map(&kernel, &args, &mut [y.with(&state), c.with(c.layout)])?;
            before = Some(state);
        }
        before.map_or(Ok(()), |l| backend.copy_strided(y.as_view().with(&l), h))
    }

    fn flow(&self) -> Flow {
        Flow::Mixes
    }

    fn differentiable(&self, _: usize) -> bool {
        false
    }
}

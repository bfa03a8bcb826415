//! [`Summary`]: the layers that run in a forward pass, with their outputs, parameters and work.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use gradus_tensor::ops::Traced;
use gradus_tensor::{Attempt, DType, Device, Error, Here, Result, Shape, Tensor, no_grad, ops};

use crate::failed_layer::{Place, kind_of};
use crate::module::places;
use crate::watch::{Event, watch};
use crate::{Forward, Item, Module, Visitor};

/// The layers of a model that run in a forward pass. It prints as a table.
///
/// These are the modules whose [`forward`](Forward::forward) runs. One that runs by another method, such as
/// [`MultiheadAttention::attend`](crate::MultiheadAttention::attend), has no line, and its work counts for the module
/// around it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// The modules in the order in which they begin, the model itself first. A module that runs twice is there twice.
    pub layers: Vec<LayerSummary>,
    /// Number of elements of all parameters. A shared parameter counts once.
    pub parameters: usize,
    /// Number of elements of the parameters that are not frozen.
    pub trainable_parameters: usize,
    /// Multiplications with an addition, in the products of the whole pass: `linear`, `matmul`, convolutions and
    /// attention, as the operations that ran say. Twice as many are the floating point operations of the products.
    /// Elementwise operations, norms and reductions count nothing.
    pub multiply_adds: u64,
    /// Bytes of the input.
    pub input_bytes: usize,
    /// Bytes of all parameters.
    pub parameter_bytes: usize,
    /// Bytes of all buffers.
    pub buffer_bytes: usize,
    /// Bytes of the outputs of the modules that run no other module. A training step takes other memory as well, see
    /// [`step_memory`](crate::step_memory).
    pub output_bytes: usize,
}

/// A module that ran.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LayerSummary {
    /// The name of the module in the model, such as `layers.0.fc1`. Empty for the model itself, and for a module that the
    /// model does not register.
    pub path: String,
    /// The name of its type.
    pub kind: String,
    /// How many modules run around it.
    pub depth: usize,
    /// The shape of its output.
    pub output_shape: Vec<usize>,
    /// The dtype of its output.
    pub output_dtype: DType,
    /// Number of elements of its parameters, and of those of the modules inside it.
    pub parameters: usize,
    /// As [`Summary::multiply_adds`], of this module and those inside it.
    pub multiply_adds: u64,
    /// Whether it ran before in the same pass.
    pub repeated: bool,
    /// Whether it runs other modules.
    pub has_layers: bool,
}

/// The layers that run for an input of this shape, filled with zeros. The model is left as it was.
///
/// The input has the dtype and the device of the first parameter. For other inputs, such as indices, use
/// [`Summary::of`].
///
/// ```
/// # use gradus_nn::{Init, Linear, Relu, Sequential, summary}; use gradus_tensor::*;
/// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
/// # let mut generator = Generator::new(0);
/// # let mut init = Init::new(DType::F32, &device, &mut generator);
/// let model = Sequential::new().add(Linear::new(4, 8, &mut init)?).add(Relu).add(Linear::new(8, 2, &mut init)?);
/// let found = summary(&model, [3, 4])?;
/// println!("{found}");
/// assert_eq!(found.layers[1].path, "0");
/// assert_eq!(found.layers[1].output_shape, [3, 8]);
/// assert_eq!((found.parameters, found.multiply_adds), (4 * 8 + 8 + 8 * 2 + 2, 3 * 4 * 8 + 3 * 8 * 2));
/// # Ok::<(), Error>(())
/// ```
///
/// # Errors
/// The errors of the forward pass, and an error if the model has no parameters.
#[track_caller]
pub fn summary<M: Forward + ?Sized>(model: &M, shape: impl AsRef<[usize]>) -> Result<Summary> {
    let (dtype, device) = taste(model, "summary")?;
    Summary::of(model, &Tensor::zeros(shape, dtype, &device)?)
}

/// The dtype and the device of the first parameter.
#[track_caller]
pub(super) fn taste<M: Module + ?Sized>(model: &M, op: &str) -> Result<(DType, Device)> {
    let Some(first) = model.parameters().into_iter().next() else {
        let e = Error::argument(op, "the model has no parameter that tells the dtype and the device of the input");
        return Err(e.help("pass an input to Summary::of or StepMemory::of"));
    };
    Ok((first.dtype(), first.device().clone()))
}

/// Runs `f`, and restores the buffers and generators that it changes, whether it fails or not.
#[track_caller]
pub(super) fn without_traces<R>(f: impl FnOnce() -> Result<R>) -> Result<R> {
    let attempt = Attempt::begin();
    let result = f();
    drop(attempt);
    result.here()
}

impl Summary {
    /// The layers that run for an input. The model is left as it was: running statistics and generators are restored.
    ///
    /// The model runs once, without gradients, in its current mode. Layers without fields that share a place in memory,
    /// such as two `Relu`s, are told apart by their order.
    ///
    /// # Errors
    /// The errors of the forward pass.
    #[track_caller]
    pub fn of<M: Forward + ?Sized>(model: &M, input: &Tensor) -> Result<Summary> {
        let log = Rc::new(RefCell::new(Log::of(model)));
        let (events, works) = (log.clone(), log.clone());
        let seen = move |ran: &Traced<'_>| works.borrow_mut().work(multiply_adds(ran));
        let pass = || no_grad(|| ops::trace(seen, || model.forward(input)));
        let _output = without_traces(|| watch(move |event| events.borrow_mut().event(event), pass)).here()?;
        let layers = std::mem::take(&mut log.borrow_mut().layers);

        let parameters = model.parameters();
        let bytes = |t: &Tensor| t.numel() * t.dtype().size();
        let mut buffers = HashSet::new();
        let all = model.named_buffers();
        let leaves = layers.iter().filter(|l| !l.has_layers);
        Ok(Summary {
            parameters: parameters.iter().map(|p| p.numel()).sum(),
            trainable_parameters: parameters.iter().filter(|p| !p.is_frozen()).map(|p| p.numel()).sum(),
            multiply_adds: layers.first().map_or(0, |l| l.multiply_adds),
            input_bytes: bytes(input),
            parameter_bytes: parameters.iter().map(|p| bytes(p)).sum(),
            buffer_bytes: all.iter().filter(|(_, b)| buffers.insert(b.id())).map(|(_, b)| bytes(&b.tensor())).sum(),
            output_bytes: leaves.map(|l| l.output_shape.iter().product::<usize>() * l.output_dtype.size()).sum(),
            layers,
        })
    }
}

/// A module of the model.
struct Known {
    path: String,
    kind: Option<String>,
    parameters: usize,
    ran: bool,
}

/// What is known about the model, and which parts of it ran.
struct Log {
    known: Vec<Known>,
    /// The modules at each place: several, if they take no memory.
    at: HashMap<Place, Vec<usize>>,
    layers: Vec<LayerSummary>,
    /// The forward passes that are open, as indices into `layers`.
    open: Vec<usize>,
}

impl Log {
    fn of<M: Module + ?Sized>(model: &M) -> Log {
        let mut log = Log { known: Vec::new(), at: HashMap::new(), layers: Vec::new(), open: Vec::new() };
        let mut by_path: HashMap<String, usize> = HashMap::new();
        for (place, path) in places(model) {
            // A wrapper and the module inside it have one path.
            let index = *by_path.entry(path.clone()).or_insert_with(|| {
                log.known.push(Known { path, kind: None, parameters: 0, ran: false });
                log.known.len() - 1
            });
            let here = log.at.entry(place).or_default();
            if !here.contains(&index) {
                here.push(index);
            }
        }
        let mut counted = HashSet::new();
        Visitor::walk(model, &mut |path, item| match item {
            Item::Kind(kind) => {
                if let Some(&index) = by_path.get(path) {
                    log.known[index].kind = Some(kind.to_owned());
                }
            }
            Item::Parameter(p) => {
                let mut above = Some(path);
                while let Some(path) = above {
                    if let Some(&index) = by_path.get(path).filter(|&&i| counted.insert((p.id(), i))) {
                        log.known[index].parameters += p.numel();
                    }
                    above = (!path.is_empty()).then(|| path.rsplit_once('.').map_or("", |(above, _)| above));
                }
            }
            _ => {}
        });
        log
    }

    fn event(&mut self, event: Event<'_>) {
        match event {
            Event::Begins(place) => {
                let around = self.open.last().and_then(|&i| self.layers.get(i)).map_or("", |l| &*l.path);
                let inside = |i: &&usize| {
                    let path = &self.known[**i].path;
                    around.is_empty() || path.strip_prefix(around).is_some_and(|rest| rest.starts_with('.'))
                };
                let candidates = self.at.get(&place).map_or(&[][..], Vec::as_slice);
                let mut fresh = candidates.iter().filter(|&&i| !self.known[i].ran);
                let found = fresh.clone().find(inside).or_else(|| fresh.next());
                let found = found.or_else(|| candidates.iter().find(inside)).or_else(|| candidates.first()).copied();
                let depth = self.open.len();
                if let Some(parent) = self.open.last().and_then(|&i| self.layers.get_mut(i)) {
                    parent.has_layers = true;
                }
                let known = found.map(|i| &mut self.known[i]);
                let (mut path, mut parameters, mut repeated, mut kind) = (String::new(), 0, false, None);
                if let Some(known) = known {
                    (path, parameters, kind) = (known.path.clone(), known.parameters, known.kind.clone());
                    repeated = std::mem::replace(&mut known.ran, true);
                }
                self.open.push(self.layers.len());
                self.layers.push(LayerSummary {
                    path,
                    kind: kind.unwrap_or_else(|| kind_of(place.1).to_owned()),
                    depth,
                    output_shape: Vec::new(),
                    output_dtype: DType::F32,
                    parameters,
                    multiply_adds: 0,
                    repeated,
                    has_layers: false,
                });
            }
            Event::Ends(output) => {
                let ended = self.open.pop().and_then(|i| self.layers.get_mut(i));
                if let (Some(layer), Some(output)) = (ended, output) {
                    (layer.output_shape, layer.output_dtype) = (output.shape().to_vec(), output.dtype());
                }
            }
        }
    }

    /// Adds work to the modules that run.
    fn work(&mut self, multiply_adds: u64) {
        for &i in &self.open {
            if let Some(layer) = self.layers.get_mut(i) {
                layer.multiply_adds = layer.multiply_adds.saturating_add(multiply_adds);
            }
        }
    }
}

/// The multiplications with an addition of an operation.
fn multiply_adds(ran: &Traced<'_>) -> u64 {
    let shape = |i: usize| ran.inputs.get(i).map_or(&[][..], |t| t.shape());
    let product = |dims: &[usize]| dims.iter().fold(1u64, |n, &d| n.saturating_mul(d as u64));
    let last = |i: usize| shape(i).last().map_or(0, |&d| d as u64);
    let output = ran.outputs.first().map_or(0, |t| t.numel() as u64);
    match ran.op.name() {
        "matmul" | "matmul_i32" | "linear" => output.saturating_mul(last(0)),
        // A weight is [out, in / groups, kernel..].
        "conv1d" | "conv2d" | "conv3d" => output.saturating_mul(product(shape(1).get(1..).unwrap_or(&[]))),
        // The transposed convolution: each input goes to as many outputs.
        "conv1d_backward_input" | "conv2d_backward_input" | "conv3d_backward_input" => {
            product(shape(0)).saturating_mul(product(shape(1).get(1..).unwrap_or(&[])))
        }
        "scaled_dot_product_attention" => {
            let keys = shape(1).iter().rev().nth(1).map_or(0, |&n| n as u64);
            let scores = product(shape(0)).saturating_mul(keys);
            scores.saturating_add(output.saturating_mul(keys))
        }
        // Each step of each sequence goes through both weights, [gates * hidden, in] and [gates * hidden, hidden]. The
        // rows of padding count.
        "rnn_tanh" | "rnn_relu" | "gru" | "lstm" => {
            let first = if ran.op.name() == "lstm" { 3 } else { 2 };
            let weights = product(shape(first)).saturating_add(product(shape(first + 1)));
            product(shape(0).get(..2).unwrap_or(&[])).saturating_mul(weights)
        }
        _ => 0,
    }
}

impl LayerSummary {
    /// The shape of the output as text.
    pub(super) fn shape_text(&self) -> String {
        Shape::display(&self.output_shape).to_string()
    }
}

//! [`OnnxModel`]: a model that runs.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};

use gradus_nn::{Module, Parameter, Visitor, VisitorMut};
use gradus_tensor::{Device, Error, ErrorKind, Generator, Here, Result, Tensor, limit_results};

use crate::decode::Place;
use crate::graph::{Graph, Slot, State};
use crate::inspect::{OnnxPort, OnnxReport, port, report};
use crate::optimise::optimised;
use crate::plan::plan;
use crate::profile::OnnxTime;
use crate::proto::{self, Proto};
use crate::replay::Replays;
use crate::run::{check_empty, run_with};
use crate::value::{Array, OnnxValue};
use crate::wire::Message;

/// An ONNX model: a function of tensors, run by the operations of Gradus.
///
/// ```no_run
/// # use gradus_onnx::OnnxModel; use gradus_tensor::*; use std::sync::Arc;
/// # let device = Device::from_backend(Arc::new(gradus_cpu::CpuBackend::new()?));
/// let model = OnnxModel::load("resnet18.onnx", &device)?;
/// println!("{}", model.inspect());
/// let x = Tensor::zeros([1, 3, 224, 224], DType::F32, &device)?;
/// let outputs = model.run(&[("image", x)])?;
/// println!("{} {:?}", outputs[0].0, outputs[0].1.shape());
/// # Ok::<(), Error>(())
/// ```
///
/// Each operator behaves as specified by the opset that the model imports. Functions in the file are inlined; `If`,
/// `Loop` and `Scan` run their sub-graphs from the host. If some operators are not supported, [`load`](OnnxModel::load)
/// fails with a list of all of them.
pub struct OnnxModel {
    graph: Graph,
    report: OnnxReport,
    device: Device,
    random: Mutex<Generator>,
    max_rounds: u64,
    /// The parameters, by the names of the constants that they replace.
    trained: BTreeMap<String, Parameter>,
    /// The type of each of the graph's inputs.
    ports: Vec<OnnxPort>,
    /// Whether runs use `fast`.
    optimised: bool,
    /// The graph with all optimisations, made for the first run that uses it.
    fast: OnceLock<Graph>,
    replays: Mutex<Replays>,
    max_bytes: usize,
}

impl fmt::Debug for OnnxModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnnxModel").field("report", &self.report).finish_non_exhaustive()
    }
}

/// How many iterations the loops of a run may make together, by default.
const MAX_ROUNDS: u64 = 1_000_000;

/// How many bytes the values of a run may have, by default.
const MAX_BYTES: usize = 4 << 30;

fn read(path: &Path) -> Result<Vec<u8>> {
    let meta = fs::metadata(path).map_err(|e| Error::io("onnx", path.display(), e))?;
    if !meta.is_file() {
        return Err(Error::new(ErrorKind::Io, "onnx", format!("{} is not a file", path.display())));
    }
    fs::read(path).map_err(|e| Error::io("onnx", path.display(), e))
}

impl OnnxModel {
    /// Reads a model from a file, with its tensors on `device`. External data is read only from the folder of the file.
    ///
    /// # Errors
    /// [`ErrorKind::Io`], [`ErrorKind::Format`] if the file is damaged, and [`ErrorKind::Unsupported`] with the list of
    /// all operators that do not run.
    #[track_caller]
    pub fn load(path: impl AsRef<Path>, device: &Device) -> Result<OnnxModel> {
        let path = path.as_ref();
        let folder = match path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        let model =
            read(path).and_then(|bytes| Self::parsed(&bytes, &Place { device, folder: Some(folder), loaded: None }));
        model.map_err(|e| e.note(format!("in the file {}", path.display()))).here()
    }

    /// Reads a model from the bytes of a file. The bytes must contain all of its data.
    ///
    /// # Errors
    /// Those of [`load`](OnnxModel::load).
    #[track_caller]
    pub fn from_bytes(bytes: &[u8], device: &Device) -> Result<OnnxModel> {
        Self::parsed(bytes, &Place { device, folder: None, loaded: None }).here()
    }

    /// Reads a model from bytes, together with those of the file beside it that it refers to by this name.
    pub(crate) fn with_data(bytes: &[u8], data: Option<(&str, &[u8])>, device: &Device) -> Result<OnnxModel> {
        Self::parsed(bytes, &Place { device, folder: None, loaded: data })
    }

    fn parsed(bytes: &[u8], place: &Place<'_>) -> Result<OnnxModel> {
        let model = proto::Model::read(Message::new(bytes))?;
        let report = report(&model);
        report.check()?;
        let graph = plan(&model, place)?;
        let random = Mutex::new(Generator::new(0));
        let ports = model.graph.iter().flat_map(|g| &g.inputs).map(port).collect();
        Ok(OnnxModel {
            graph,
            report,
            device: place.device.clone(),
            random,
            max_rounds: MAX_ROUNDS,
            trained: BTreeMap::new(),
            ports,
            optimised: true,
            fast: OnceLock::new(),
            replays: Mutex::new(Replays::new()),
            max_bytes: MAX_BYTES,
        })
    }

    /// Sets the seed for nodes that draw random numbers and have no seed of their own. The default is 0. The stream
    /// continues from one run to the next.
    pub fn seed(&mut self, seed: u64) {
        self.random = Mutex::new(Generator::new(seed));
    }

    /// Sets how many iterations the loops of a run may make in total. The default is a million, so that a damaged or
    /// hostile model terminates.
    pub fn max_rounds(&mut self, rounds: u64) {
        self.max_rounds = rounds;
    }

    /// Sets how many bytes a tensor that a node makes may have, and all values of a graph together while it runs. The
    /// default is 4 GiB. A few sizes in a damaged or hostile file can ask for any amount.
    ///
    /// What an operation needs besides its results is not counted.
    /// [`set_memory_budget`](gradus_tensor::Backend::set_memory_budget) bounds all memory of a device.
    pub fn max_bytes(&mut self, bytes: usize) {
        self.max_bytes = bytes;
        self.forget_optimised();
    }

    /// Sets whether runs are optimised, which they are by default. Then what depends only on constants is computed
    /// once, batch normalisation and other affine maps of channels become part of the convolution before them, biases
    /// part of products, and from the fourth run with inputs of the same sizes on the operations are replayed.
    /// Optimised results may differ from the others by the rounding of floats.
    ///
    /// A run for training is never optimised: one with an input that requires a gradient, or of a model with
    /// [trainable](OnnxModel::trainable) constants.
    pub fn optimise(&mut self, on: bool) {
        self.optimised = on;
        self.forget_optimised();
    }

    fn forget_optimised(&mut self) {
        (self.fast, self.replays) = (OnceLock::new(), Mutex::new(Replays::new()));
    }

    /// Lists the contents of a file, even if it would not run.
    ///
    /// # Errors
    /// [`ErrorKind::Io`], and [`ErrorKind::Format`] if the file is damaged.
    #[track_caller]
    pub fn inspect_file(path: impl AsRef<Path>) -> Result<OnnxReport> {
        let bytes = read(path.as_ref()).here()?;
        Ok(report(&proto::Model::read(Message::new(&bytes)).here()?))
    }

    /// The contents of the model: operators, inputs, outputs and parameters.
    pub fn inspect(&self) -> &OnnxReport {
        &self.report
    }

    /// The inputs that a run requires.
    pub fn inputs(&self) -> &[OnnxPort] {
        &self.report.inputs
    }

    /// The outputs.
    pub fn outputs(&self) -> &[OnnxPort] {
        &self.report.outputs
    }

    /// Runs the model on the named input tensors, and returns all outputs with their names. An input that is also an
    /// initialiser is optional: the initialiser is its default.
    ///
    /// The operations are recorded for gradients if an input or a parameter requires them.
    ///
    /// # Errors
    /// Fails if an input is missing or unknown, if its dtype or shape differs from that of the model, or if an output
    /// is not a tensor of a dtype that Gradus computes with (see [`run_values`](OnnxModel::run_values)). Also returns
    /// the errors of operations, with the name of the node.
    #[track_caller]
    pub fn run(&self, inputs: &[(&str, Tensor)]) -> Result<Vec<(String, Tensor)>> {
        let values: Vec<(&str, OnnxValue)> = inputs.iter().map(|(name, x)| (*name, x.clone().into())).collect();
        let tensor = |(name, value): (String, OnnxValue)| match value {
            OnnxValue::Tensor(array) => Ok((name, array.tensor(&self.device)?)),
            other => {
                let e = Error::argument("onnx", format!("the output \"{name}\" is {}", other.describe()));
                Err(e.help("run_values returns values of every kind"))
            }
        };
        self.evaluate(&values, None).and_then(|outputs| outputs.into_iter().map(tensor).collect()).here()
    }

    /// Like [`run`](OnnxModel::run), for all kinds of values: strings, sequences, optionals, and element types that
    /// Gradus does not compute with are accepted too.
    ///
    /// # Errors
    /// Those of [`run`](OnnxModel::run).
    #[track_caller]
    pub fn run_values(&self, inputs: &[(&str, OnnxValue)]) -> Result<Vec<(String, OnnxValue)>> {
        self.evaluate(inputs, None).here()
    }

    /// How many runs were replays since the model was loaded, or since an option was set. The first run is an ordinary one.
    /// For inputs of the same sizes, the next two are traced, and later ones repeat their operations without the graph of the
    /// model, unless what runs depends on numbers that operations compute. `GRADUS_LOG=graph` says why runs are not replayed.
    pub fn replays(&self) -> u64 {
        self.replays.lock().unwrap_or_else(PoisonError::into_inner).count()
    }

    /// Runs the model, and returns the time that each node took, in the order in which they ran. The device is waited
    /// for after each, so the sum is more than a run takes. Nodes with sub-graphs are not counted, but what runs in
    /// these is.
    ///
    /// # Errors
    /// Those of [`run`](OnnxModel::run).
    #[track_caller]
    pub fn profile(&self, inputs: &[(&str, OnnxValue)]) -> Result<Vec<OnnxTime>> {
        let times = RefCell::default();
        self.evaluate(inputs, Some(&times)).here()?;
        Ok(times.into_inner())
    }

    fn evaluate(
        &self,
        inputs: &[(&str, OnnxValue)],
        times: Option<&RefCell<Vec<OnnxTime>>>,
    ) -> Result<Vec<(String, OnnxValue)>> {
        let known = |name: &str| self.graph.inputs.iter().any(|(input, _)| input == name);
        if let Some((name, _)) = inputs.iter().find(|(name, _)| !known(name)) {
            let names: Vec<_> = self.report.inputs.iter().map(|i| i.name.as_str()).collect();
            let e = Error::argument("onnx", format!("the model has no input \"{name}\""));
            return Err(e.help(format!("its inputs are {}", names.join(", "))));
        }
        let mut values = Vec::new();
        for ((name, slot), port) in self.graph.inputs.iter().zip(&self.ports) {
            let given = inputs.iter().find(|(given, _)| given == name).map(|(_, value)| value.clone());
            match &given {
                Some(value) => {
                    check(port, value)?;
                    check_empty(value)?;
                }
                None if self.graph.constants.iter().any(|(_, constant, _)| constant == slot) => {}
                None => {
                    let e = Error::argument("onnx", format!("the input \"{name}\" is missing"));
                    return Err(e.help(format!("it is {}", port.kind)));
                }
            }
            values.push(given);
        }
        let rounds = Cell::new(self.max_rounds);
        let state = State { device: &self.device, random: &self.random, rounds, times, max_bytes: self.max_bytes };
        let trained = |(name, slot, _): &(String, Slot, OnnxValue)| {
            self.trained.get(name).map(|parameter| (*slot, parameter.tensor().clone().into()))
        };
        let given = |slot: &Slot| values.iter().zip(&self.graph.inputs).any(|(v, (_, s))| s == slot && v.is_some());
        let fixed = self.trained.is_empty() && !self.graph.constants.iter().any(|(_, slot, _)| given(slot));
        if self.optimised && fixed && !values.iter().flatten().any(requires_grad) {
            let fast = self.fast.get_or_init(|| optimised(&self.graph, &state));
            let run = |values| limit_results(self.max_bytes, || run_with(fast, Vec::new(), values, &[], &state));
            let outputs = match self.replays.try_lock() {
                Ok(mut replays) if times.is_none() => replays.run(&values, &self.device, run)?,
                _ => run(values)?,
            };
            return Ok(self.graph.outputs.iter().map(|(name, _)| name.clone()).zip(outputs).collect());
        }
        let trained = match self.trained.is_empty() {
            true => Vec::new(),
            false => self.graph.constants.iter().filter_map(trained).collect(),
        };
        let outputs = limit_results(self.max_bytes, || run_with(&self.graph, trained, values, &[], &state))?;
        Ok(self.graph.outputs.iter().map(|(name, _)| name.clone()).zip(outputs).collect())
    }

    /// Reads a value from a file in the layout of ONNX's test data (`input_0.pb`). Its type is that of `port`, an input
    /// or output of the model.
    ///
    /// # Errors
    /// [`ErrorKind::Io`], [`ErrorKind::Format`], and an unknown name.
    #[track_caller]
    pub fn read_value(&self, path: impl AsRef<Path>, port: &OnnxPort) -> Result<OnnxValue> {
        let bytes = read(path.as_ref()).here()?;
        let of = match port.kind.split_whitespace().next() {
            Some("sequence") => proto::Type { sequence: Some(Box::default()), ..proto::Type::default() },
            Some("optional") => proto::Type { optional: Some(Box::default()), ..proto::Type::default() },
            _ => proto::Type { tensor: Some(proto::TensorType::default()), ..proto::Type::default() },
        };
        Place { device: &self.device, folder: path.as_ref().parent(), loaded: None }.file(&bytes, &of).here()
    }

    /// The float initialisers and constants, with their names in the file. Constants are included because some
    /// exporters write all weights as constants.
    pub fn parameters(&self) -> Vec<(String, Tensor)> {
        let float = |name: &str, value: &OnnxValue| match (self.trained.get(name), value) {
            (Some(parameter), _) => Some(parameter.tensor().clone()),
            (None, OnnxValue::Tensor(a)) if is_float(a) => a.tensor(&self.device).ok(),
            _ => None,
        };
        self.graph.constants.iter().filter_map(|(name, _, value)| Some((name.clone(), float(name, value)?))).collect()
    }

    /// Turns the float initialisers and constants whose names match `pattern` into parameters, and returns these. `*`
    /// in the pattern stands for any text. The model is a [`Module`] of its parameters: `named_parameters` returns them
    /// for an optimiser, and `state_dict` saves them.
    ///
    /// # Errors
    /// Fails if none matches.
    #[track_caller]
    pub fn trainable(&mut self, pattern: &str) -> Result<Vec<(String, Parameter)>> {
        let mut parameters = Vec::new();
        for (name, _, value) in &self.graph.constants {
            let OnnxValue::Tensor(array) = value else { continue };
            if !matches(pattern, name) || !is_float(array) {
                continue;
            }
            let parameter = match self.trained.get(name) {
                Some(parameter) => parameter.clone(),
                None => {
                    // The parameter gets a copy, so that training it does not change other constants.
                    let parameter = Parameter::new(array.tensor(&self.device).here()?.copy().here()?).here()?;
                    self.trained.insert(name.clone(), parameter.clone());
                    parameter
                }
            };
            parameters.push((name.clone(), parameter));
        }
        if parameters.is_empty() {
            let m = format!("no float initialiser or constant of the model matches `{pattern}`");
            return Err(Error::argument("trainable", m).help("parameters() lists them"));
        }
        Ok(parameters)
    }
}

/// The parameters are those that [`OnnxModel::trainable`] has created, under their names in the file.
impl Module for OnnxModel {
    fn visit<'m>(&'m self, visitor: &mut Visitor<'m>) {
        visitor.kind("OnnxModel");
        self.trained.visit(visitor);
    }

    fn visit_mut<'m>(&'m mut self, visitor: &mut VisitorMut<'m>) {
        self.trained.visit_mut(visitor);
    }
}

/// Whether a value is a tensor that requires a gradient.
fn requires_grad(value: &OnnxValue) -> bool {
    match value {
        OnnxValue::Tensor(array) => array.requires_grad(),
        OnnxValue::Sequence(values) => values.iter().any(requires_grad),
        OnnxValue::Optional(Some(value)) => requires_grad(value),
        OnnxValue::Optional(None) | OnnxValue::Strings(_) | OnnxValue::Map(_) => false,
    }
}

fn is_float(array: &Array) -> bool {
    array.elem().dtype().is_some_and(|d| d.is_float())
}

/// Fails unless a value has the type that the file declares for the input.
fn check(port: &OnnxPort, value: &OnnxValue) -> Result<()> {
    let (Some(elem), OnnxValue::Tensor(array)) = (port.elem, value) else { return Ok(()) };
    let agrees = |(want, have): (&Option<usize>, &usize)| want.is_none_or(|want| want == *have);
    let fits =
        |shape: &Vec<Option<usize>>| shape.len() == array.shape().len() && shape.iter().zip(array.shape()).all(agrees);
    if array.elem() == elem && port.shape.as_ref().is_none_or(fits) {
        return Ok(());
    }
    let have: &[usize] = array.shape();
    let m =
        format!("the input \"{}\" is {} {have:?}, and the model wants {}", port.name, array.elem().name(), port.kind);
    let kind = if array.elem() == elem { ErrorKind::ShapeMismatch } else { ErrorKind::DTypeMismatch };
    Err(Error::new(kind, "onnx", m))
}

/// Whether a name matches a pattern in which `*` stands for any text.
fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

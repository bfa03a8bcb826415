//! [`Builder`]: the nodes and initialisers of a model under construction, and the names of its values.

use std::collections::{HashMap, HashSet};

use gradus_tensor::ops::Op;
use gradus_tensor::{DType, Error, ErrorKind, Result, Scalar, Tensor};

use super::opset;
use super::trace::{Id, OP, Trace};
use super::write::{Attr, Data, Initializer, OutNode};
use crate::elem::Elem;

/// The sizes of a value's axes, for each axis one size for each trace.
pub(super) type Dims = Vec<Vec<i64>>;

/// An axis of the inputs that may have any size.
pub(super) struct Symbol {
    pub(super) name: String,
    /// An input with this axis.
    pub(super) input: String,
    pub(super) axis: usize,
    /// Its size in each trace.
    pub(super) sizes: Vec<i64>,
}

/// A model under construction.
pub(super) struct Builder<'a> {
    pub(super) traces: &'a [Trace],
    pub(super) symbols: Vec<Symbol>,
    /// The opset that must not be exceeded.
    pub(super) most: i64,
    pub(super) names: HashMap<Id, String>,
    /// The values that depend on inputs or parameters.
    pub(super) varies: HashSet<Id>,
    pub(super) nodes: Vec<OutNode>,
    pub(super) initializers: Vec<Initializer>,
    /// Values that the operators of ONNX do not give, with the node that would compute them.
    pub(super) missing: HashMap<Id, usize>,
    /// What is wrong with the first node that no opset allows.
    pub(super) problem: Option<String>,
    /// The names in use.
    pub(super) taken: HashSet<String>,
    /// The dtypes of values by their names.
    pub(super) dtypes: HashMap<String, DType>,
    constants: HashMap<(Elem, Vec<usize>, Vec<u8>), String>,
    /// The tensors `[1]` that hold sizes, by these sizes in each trace.
    pub(super) sizes: HashMap<Vec<i64>, String>,
    /// Values that are others in another shape, with the original and its sizes.
    pub(super) reshaped: HashMap<String, (String, Dims)>,
    /// Values that are others with their axes in this order.
    pub(super) transposed: HashMap<String, (String, Vec<i64>)>,
}

impl<'a> Builder<'a> {
    pub(super) fn new(traces: &'a [Trace], symbols: Vec<Symbol>, most: i64) -> Self {
        Builder {
            traces,
            symbols,
            most,
            names: HashMap::new(),
            varies: HashSet::new(),
            nodes: Vec::new(),
            initializers: Vec::new(),
            missing: HashMap::new(),
            problem: None,
            taken: HashSet::new(),
            dtypes: HashMap::new(),
            constants: HashMap::new(),
            sizes: HashMap::new(),
            reshaped: HashMap::new(),
            transposed: HashMap::new(),
        }
    }

    /// The first trace, whose numbers stand for all traces where these agree.
    pub(super) fn first(&self) -> &'a Trace {
        &self.traces[0]
    }

    pub(super) fn tensor(&self, id: Id) -> &'a Tensor {
        &self.traces[0].values[id]
    }

    pub(super) fn dtype(&self, id: Id) -> DType {
        self.tensor(id).dtype()
    }

    /// The operation of a node in each trace.
    pub(super) fn ops(&self, at: usize) -> impl Iterator<Item = &'a Op> + use<'a> {
        self.traces.iter().map(move |t| &t.nodes[at].op)
    }

    pub(super) fn dims(&self, id: Id) -> Dims {
        let axis = |i: usize| self.traces.iter().map(|t| t.values[id].shape()[i] as i64).collect();
        (0..self.tensor(id).rank()).map(axis).collect()
    }

    /// The node that computes a value, with its number.
    pub(super) fn maker(&self, id: Id) -> Option<(usize, &'a Op, &'a [Id])> {
        let at = self.first().makers[id]?;
        let node = &self.first().nodes[at];
        Some((at, &node.op, &node.inputs))
    }

    /// The error for a node that cannot be expressed.
    pub(super) fn unsupported(&self, at: usize, why: impl std::fmt::Display) -> Error {
        let node = &self.first().nodes[at];
        let e = Error::new(ErrorKind::Unsupported, OP, format!("`{}` cannot be exported: {why}", node.op.name()));
        let e = e.note(format!("{} ran at {}", node.op.name(), node.location));
        node.inputs.iter().fold(e, |e, &id| {
            let t = self.tensor(id);
            e.operand("input", t.shape(), t.dtype(), t.device())
        })
    }

    /// A name that is not in use, which begins with `hint`.
    pub(super) fn fresh(&mut self, hint: &str) -> String {
        let mut number = self.taken.len();
        loop {
            let name = format!("{hint}_{number}");
            if self.taken.insert(name.clone()) {
                return name;
            }
            number += 1;
        }
    }

    /// Adds a node with several outputs, and returns their names. `since` is the opset that its attributes need, or 0. If
    /// its operator does not take the dtype at the highest opset that is allowed, it works on a wider dtype.
    pub(super) fn nodes(
        &mut self,
        op: &'static str,
        inputs: &[&str],
        outputs: usize,
        attributes: Vec<(&'static str, Attr)>,
        since: i64,
    ) -> Vec<String> {
        let dtype_of = |b: &Self, name: &str| b.dtypes.get(name).copied();
        let Some(dtype) = inputs.get(opset::data_input(op)).and_then(|name| dtype_of(self, name)) else {
            self.problem.get_or_insert_with(|| format!("the dtype on which {op} works is not known"));
            return vec![String::new(); outputs];
        };
        let since_for = |dtype| opset::since(op, dtype).max(since);
        if since_for(dtype) > self.most {
            if let Some(wide) = opset::wider(dtype).filter(|&wide| since_for(wide) <= self.most) {
                let mut names = Vec::new();
                for &name in inputs {
                    let is_data = dtype_of(self, name) == Some(dtype);
                    names.push(if is_data { self.cast(name, dtype, wide) } else { name.to_owned() });
                }
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                let mut results = self.nodes(op, &names, outputs, attributes, since);
                for (i, name) in results.iter_mut().enumerate() {
                    if opset::result(op, dtype, i) == dtype {
                        *name = self.cast(name, wide, dtype);
                    }
                }
                return results;
            }
            let most = self.most;
            self.problem.get_or_insert_with(|| match since_for(dtype) {
                opset::NEVER => format!("no opset has {op} of {dtype}"),
                least => format!("{op} of {dtype} needs opset {least} in this form, and the highest allowed is {most}"),
            });
        }
        let hint = op.to_lowercase();
        let results: Vec<DType> = (0..outputs).map(|i| opset::result(op, dtype, i)).collect();
        self.push(op, inputs, &results, &hint, attributes, since_for(dtype))
    }

    fn push(
        &mut self,
        op: &'static str,
        inputs: &[&str],
        results: &[DType],
        hint: &str,
        attributes: Vec<(&'static str, Attr)>,
        since: i64,
    ) -> Vec<String> {
        let outputs: Vec<String> = results.iter().map(|_| self.fresh(hint)).collect();
        self.dtypes.extend(outputs.iter().cloned().zip(results.iter().copied()));
        let inputs = inputs.iter().map(|&s| s.to_owned()).collect();
        self.nodes.push(OutNode { op, inputs, outputs: outputs.clone(), attributes, since });
        outputs
    }

    /// Adds a node with one output, and returns its name.
    pub(super) fn node(
        &mut self,
        op: &'static str,
        inputs: &[&str],
        attributes: Vec<(&'static str, Attr)>,
        since: i64,
    ) -> String {
        self.nodes(op, inputs, 1, attributes, since).swap_remove(0)
    }

    /// Adds a node without attributes.
    pub(super) fn plain(&mut self, op: &'static str, inputs: &[&str]) -> String {
        self.node(op, inputs, Vec::new(), 0)
    }

    pub(super) fn cast(&mut self, x: &str, from: DType, to: DType) -> String {
        if from == to {
            return x.to_owned();
        }
        let attribute = ("to", Attr::Int(Elem::of_dtype(to).number()));
        self.push("Cast", &[x], &[to], "cast", vec![attribute], 0).swap_remove(0)
    }

    fn constant_of(&mut self, dtype: DType, shape: &[usize], bytes: Vec<u8>) -> String {
        let elem = Elem::of_dtype(dtype);
        let key = (elem, shape.to_vec(), bytes);
        if let Some(name) = self.constants.get(&key) {
            return name.clone();
        }
        let name = self.fresh("constant");
        let data = Data::Bytes(key.2.clone());
        self.initializers.push(Initializer { name: name.clone(), elem, shape: shape.to_vec(), data });
        self.constants.insert(key, name.clone());
        self.dtypes.insert(name.clone(), dtype);
        name
    }

    /// A constant vector of integers.
    pub(super) fn ints(&mut self, values: &[i64]) -> String {
        let bytes = values.iter().flat_map(|v| v.to_ne_bytes()).collect();
        self.constant_of(DType::I64, &[values.len()], bytes)
    }

    /// A constant of rank 0.
    pub(super) fn scalar(&mut self, value: impl Into<Scalar>, dtype: DType) -> Result<String> {
        let t = Tensor::full([0usize; 0], value.into(), dtype, self.first_device())?;
        Ok(self.constant_of(dtype, &[], t.to_bytes()?))
    }

    pub(super) fn ones(&mut self, shape: &[usize], dtype: DType) -> Result<String> {
        let t = Tensor::ones(shape, dtype, self.first_device())?;
        Ok(self.constant_of(dtype, shape, t.to_bytes()?))
    }

    pub(super) fn zeros(&mut self, shape: &[usize], dtype: DType) -> Result<String> {
        let t = Tensor::zeros(shape, dtype, self.first_device())?;
        Ok(self.constant_of(dtype, shape, t.to_bytes()?))
    }

    fn first_device(&self) -> &'a gradus_tensor::Device {
        self.tensor(self.first().inputs[0]).device()
    }

    /// The name of a value, which becomes an initialiser if no node computes it.
    pub(super) fn name(&mut self, id: Id) -> Result<String> {
        if let Some(name) = self.names.get(&id) {
            return Ok(name.clone());
        }
        if let Some(&at) = self.missing.get(&id) {
            return Err(self.unsupported(at, "it has a result that the operator of ONNX does not give"));
        }
        if !self.is_constant(id)? {
            let user = self.first().nodes.iter().position(|n| n.inputs.contains(&id)).unwrap_or(0);
            return Err(self
                .unsupported(user, "it reads a tensor that the host makes, with other elements for each size")
                .help("compute it with operations of tensors, such as arange, or do not mark the axis as dynamic"));
        }
        let t = self.tensor(id);
        let name = self.constant_of(t.dtype(), t.shape(), t.to_bytes()?);
        self.names.insert(id, name.clone());
        Ok(name)
    }

    /// Whether a value has the same elements in all traces.
    pub(super) fn is_constant(&self, id: Id) -> Result<bool> {
        let t = self.tensor(id);
        let mut bytes = None;
        for other in self.traces[1..].iter().map(|trace| &trace.values[id]) {
            if other.shape() != t.shape() || other.dtype() != t.dtype() {
                return Ok(false);
            }
            if std::sync::Arc::ptr_eq(t.storage(), other.storage()) && t.layout() == other.layout() {
                continue;
            }
            if bytes.is_none() {
                bytes = Some(t.to_bytes()?);
            }
            if bytes != Some(other.to_bytes()?) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

//! A sample of PyTorch's database: the arguments of one call, with methods that read them.
//!
//! Every argument is read by its position and its keyword; an argument that can only be passed by keyword has the
//! position [`KW`]. Nothing is ignored: an argument that Gradus cannot express is an error whose operation is
//! [`SAMPLE`], and so is an argument that is never read.

use std::cell::RefCell;
use std::collections::BTreeSet;

use gradus::prelude::*;
use gradus::{Operand, Reduction, Scalar, ops};
use serde_json::{Map, Value};

/// The operation name in errors about reading arguments.
pub(crate) const SAMPLE: &str = "sample";
/// The position of an argument that can only be passed by keyword.
pub(crate) const KW: usize = usize::MAX;

pub(crate) struct Sample<'a> {
    pub(crate) entry: &'a str,
    args: &'a [Value],
    kwargs: &'a Map<String, Value>,
    pub(crate) tensors: &'a [Tensor],
    pub(crate) device: &'a Device,
    /// The names of the keyword arguments and the numbers of the positional arguments that have been read.
    read: RefCell<BTreeSet<String>>,
}

/// The results of a call, in the order of PyTorch's results.
pub(crate) struct Outs(pub(crate) Vec<Tensor>);

impl From<Tensor> for Outs {
    fn from(t: Tensor) -> Outs {
        Outs(vec![t])
    }
}
impl From<(Tensor, Tensor)> for Outs {
    fn from((a, b): (Tensor, Tensor)) -> Outs {
        Outs(vec![a, b])
    }
}
impl From<Vec<Tensor>> for Outs {
    fn from(all: Vec<Tensor>) -> Outs {
        Outs(all)
    }
}

/// A function that calls Gradus with the arguments of a sample.
pub(crate) type Call = for<'a, 'b> fn(&'a Sample<'b>) -> Result<Outs>;
/// Names of entries, separated by spaces, and the call that they share.
pub(crate) type Rows = &'static [(&'static str, Call)];

macro_rules! rows {
    ($($names:literal, |$s:ident| $body:expr;)*) => {
        &[$(($names, |$s: &crate::sample::Sample<'_>| Ok(crate::sample::Outs::from($body)))),*]
    };
}
pub(crate) use rows;

pub(crate) fn inexpressible<T>(words: impl Into<String>) -> Result<T> {
    Err(Error::argument(SAMPLE, words))
}

impl<'a> Sample<'a> {
    /// Creates a sample from the JSON `[args, kwargs]`.
    pub(crate) fn new(
        entry: &'a str,
        json: &'a Value,
        tensors: &'a [Tensor],
        device: &'a Device,
    ) -> Option<Sample<'a>> {
        let (args, kwargs) = (json.get(0)?.as_array()?, json.get(1)?.as_object()?);
        Some(Sample { entry, args, kwargs, tensors, device, read: RefCell::default() })
    }

    /// An argument that has not been read, if there is one.
    pub(crate) fn unread(&self) -> Option<String> {
        let names = (0..self.args.len()).map(|i| i.to_string()).chain(self.kwargs.keys().cloned());
        let read = self.read.borrow();
        names.into_iter().find(|name| !read.contains(name))
    }

    /// The argument, if it is present and not `None`.
    pub(crate) fn value(&self, at: usize, name: &str) -> Option<&'a Value> {
        let value = if let Some(v) = self.kwargs.get(name) {
            self.read.borrow_mut().insert(name.to_owned());
            v
        } else {
            self.read.borrow_mut().insert(at.to_string());
            self.args.get(at)?
        };
        (!value.is_null()).then_some(value)
    }

    fn need(&self, at: usize, name: &str) -> Result<&'a Value> {
        self.value(at, name).map_or_else(|| inexpressible(format!("{name} is absent")), Ok)
    }

    fn tensor(&self, value: &Value) -> Option<&'a Tensor> {
        let at = value.get("in")?.as_u64()?;
        self.tensors.get(at as usize)
    }

    /// The first argument.
    pub(crate) fn x(&self) -> Result<&'a Tensor> {
        self.t(0, "input")
    }

    pub(crate) fn t(&self, at: usize, name: &str) -> Result<&'a Tensor> {
        self.tensor(self.need(at, name)?).map_or_else(|| inexpressible(format!("{name} is no tensor")), Ok)
    }

    pub(crate) fn opt(&self, at: usize, name: &str) -> Result<Option<&'a Tensor>> {
        self.value(at, name).map(|_| self.t(at, name)).transpose()
    }

    /// A list of tensors; a single tensor counts as a list of one.
    pub(crate) fn list(&self, at: usize, name: &str) -> Result<Vec<&'a Tensor>> {
        let value = self.need(at, name)?;
        let all = if let Value::Array(all) = value { &all[..] } else { std::slice::from_ref(value) };
        all.iter().map(|v| self.tensor(v).map_or_else(|| inexpressible(format!("{name} is no tensor")), Ok)).collect()
    }

    /// All positional arguments, which must be tensors.
    pub(crate) fn all(&self) -> Result<Vec<&'a Tensor>> {
        (0..self.args.len()).map(|i| self.t(i, "")).collect()
    }

    /// A tensor or a number.
    pub(crate) fn operand(&self, at: usize, name: &str) -> Result<Operand<'a>> {
        let value = self.need(at, name)?;
        match self.tensor(value) {
            Some(t) => Ok(t.into()),
            None => self.scalar(at, name, 0).map(Operand::Scalar),
        }
    }

    pub(crate) fn scalar(&self, at: usize, name: &str, default: impl Into<Scalar>) -> Result<Scalar> {
        let Some(value) = self.value(at, name) else { return Ok(default.into()) };
        match (value, float(value)) {
            (Value::Bool(b), _) => Ok((*b).into()),
            (_, Some(v)) => Ok(value.as_i64().map_or_else(|| v.into(), Scalar::from)),
            _ => inexpressible(format!("{name} is {value}")),
        }
    }

    pub(crate) fn num(&self, at: usize, name: &str, default: f64) -> Result<f64> {
        let Some(value) = self.value(at, name) else { return Ok(default) };
        float(value).map_or_else(|| inexpressible(format!("{name} is {value}")), Ok)
    }

    pub(crate) fn opt_num(&self, at: usize, name: &str) -> Result<Option<f64>> {
        self.value(at, name).map(|_| self.num(at, name, 0.0)).transpose()
    }

    pub(crate) fn int(&self, at: usize, name: &str, default: isize) -> Result<isize> {
        let Some(value) = self.value(at, name) else { return Ok(default) };
        whole(value).map_or_else(|| inexpressible(format!("{name} is {value}")), Ok)
    }

    pub(crate) fn size(&self, at: usize, name: &str, default: usize) -> Result<usize> {
        self.int(at, name, default as isize).and_then(|v| size(v, name))
    }

    pub(crate) fn flag(&self, at: usize, name: &str, default: bool) -> Result<bool> {
        match self.value(at, name) {
            None => Ok(default),
            Some(Value::Bool(b)) => Ok(*b),
            Some(v) => inexpressible(format!("{name} is {v}")),
        }
    }

    pub(crate) fn text(&self, at: usize, name: &str, default: &'a str) -> Result<&'a str> {
        match self.value(at, name) {
            None => Ok(default),
            Some(Value::String(s)) => Ok(s),
            Some(v) => inexpressible(format!("{name} is {v}")),
        }
    }

    /// A list of integers; a single number counts as a list of one.
    pub(crate) fn ints(&self, at: usize, name: &str) -> Result<Option<Vec<isize>>> {
        let Some(value) = self.value(at, name) else { return Ok(None) };
        let all = if let Value::Array(all) = value { &all[..] } else { std::slice::from_ref(value) };
        let ints: Option<Vec<isize>> = all.iter().map(whole).collect();
        ints.map_or_else(|| inexpressible(format!("{name} is {value}")), |v| Ok(Some(v)))
    }

    /// All positional arguments from `at` on, or the list at that position.
    pub(crate) fn rest(&self, at: usize, name: &str) -> Result<Vec<isize>> {
        if self.args.len() > at.saturating_add(1) {
            return (at..self.args.len()).map(|i| self.int(i, name, 0)).collect();
        }
        self.ints(at, name).map(Option::unwrap_or_default)
    }

    pub(crate) fn sizes(&self, at: usize, name: &str) -> Result<Vec<usize>> {
        self.rest(at, name)?.into_iter().map(|v| size(v, name)).collect()
    }

    /// A size for each of the `N` axes; a single number applies to all axes.
    pub(crate) fn each<const N: usize>(&self, at: usize, name: &str, default: usize) -> Result<[usize; N]> {
        let Some(all) = self.ints(at, name)?.filter(|all| !all.is_empty()) else { return Ok([default; N]) };
        let all = all.into_iter().map(|v| size(v, name)).collect::<Result<Vec<_>>>()?;
        match <[usize; N]>::try_from(all) {
            Ok(sizes) => Ok(sizes),
            Err(all) if all.len() == 1 => Ok([all[0]; N]),
            Err(all) => inexpressible(format!("{name} is {all:?}")),
        }
    }

    /// The axes in an argument; if it is absent or an empty list, all axes.
    pub(crate) fn axes(&self, at: usize, name: &str, x: &Tensor) -> Result<Vec<isize>> {
        let all = (0..x.rank() as isize).collect();
        Ok(self.ints(at, name)?.filter(|axes| !axes.is_empty()).unwrap_or(all))
    }

    pub(crate) fn dtype(&self, at: usize, name: &str) -> Result<Option<DType>> {
        let Some(value) = self.value(at, name) else { return Ok(None) };
        let name = value.get("torch").and_then(Value::as_str).unwrap_or_default();
        let short = name.replace("uint", "u").replace("bfloat", "bf").replace("float", "f").replace("int", "i");
        short.parse().map(Some).or_else(|_| inexpressible(format!("{value} is no dtype")))
    }

    /// The input, converted to the dtype of the keyword argument `dtype`.
    pub(crate) fn cast(&self) -> Result<Tensor> {
        let x = self.x()?;
        x.to_dtype(self.dtype(KW, "dtype")?.unwrap_or(x.dtype()))
    }

    pub(crate) fn reduction(&self) -> Result<Reduction> {
        match self.text(KW, "reduction", "mean")? {
            "mean" => Ok(Reduction::Mean),
            "sum" => Ok(Reduction::Sum),
            "none" => Ok(Reduction::None),
            other => inexpressible(format!("reduction is {other:?}")),
        }
    }

    /// Applies the operation of the elementwise table that has the entry's name to all positional arguments.
    pub(crate) fn elementwise(&self) -> Result<Tensor> {
        let name = self.entry.rsplit('.').next().unwrap_or_default();
        let found = ops::table::TABLE.iter().find(|e| e.op.name() == name);
        let Some(entry) = found else { return inexpressible(format!("no entry {name}")) };
        let mut operands = vec![Operand::Tensor(self.x()?)];
        for i in 1..self.args.len() {
            operands.push(self.operand(i, "")?);
        }
        entry.op.apply(&operands)
    }
}

fn float(value: &Value) -> Option<f64> {
    let special = value.get("float").and_then(Value::as_str).and_then(|text| text.parse().ok());
    value.as_f64().or(special)
}

fn whole(value: &Value) -> Option<isize> {
    value.as_i64().and_then(|v| isize::try_from(v).ok())
}

fn size(v: isize, name: &str) -> Result<usize> {
    usize::try_from(v).or_else(|_| inexpressible(format!("{name} is {v}")))
}

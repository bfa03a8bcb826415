//! [`OnnxExportOptions`], and the sizes with which a model is traced and compared.

use std::path::PathBuf;

use gradus_tensor::{Error, Result, Tensor};

use super::build::Symbol;
use super::opset::LEAST_OPSET;
use super::trace::OP;

/// The highest opset that is written by default: the first with `Attention`.
const DEFAULT_OPSET: i64 = 23;

/// An axis that may have any size.
#[derive(Debug, Clone)]
pub(super) struct Axis {
    pub(super) name: String,
    /// The inputs and axes that have this size.
    places: Vec<(String, usize)>,
    /// A size other than the example's.
    other: Option<usize>,
}

/// Options of [`export_onnx`](crate::export_onnx). By default all axes keep the sizes of the example, outputs are called
/// `output` (or `output_0` and so on), and the file must not exist.
#[must_use = "options do nothing until they are passed to an export, and setting one gives new options"]
#[derive(Debug, Clone, Default)]
pub struct OnnxExportOptions {
    axes: Vec<Axis>,
    outputs: Vec<String>,
    opset: Option<i64>,
    pub(super) replace: bool,
    pub(super) metadata: Vec<(String, String)>,
    pub(super) most_bytes: Option<usize>,
}

/// What [`export_onnx`](crate::export_onnx) wrote.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct OnnxExport {
    /// The version of the operators.
    pub opset: i64,
    /// The number of nodes.
    pub nodes: usize,
    /// The size of the file, and of the one beside it if there is one.
    pub bytes: usize,
    /// The largest difference between the outputs of the module and those of the model as read back, as a part of the
    /// output's largest magnitude: 0 if all bits agree.
    pub difference: f64,
    /// The file with the tensors, if they have more than 2 GB and are not in the model itself.
    pub external_data: Option<PathBuf>,
}

impl OnnxExportOptions {
    /// The default options.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets the axes of inputs in `places`, each an input's name and an axis, have any size, but all the same one. The
    /// model is also traced with twice the size of the example and one more, or with twice the size if it does not accept
    /// that.
    pub fn dynamic(self, name: &str, places: &[(&str, usize)]) -> Self {
        self.axis(name, places, None)
    }

    /// Like [`dynamic`](OnnxExportOptions::dynamic), with another size with which the model is traced, at least 2. Use it if
    /// the model does not accept twice the size of the example, or does other operations there.
    ///
    /// The file is right for the sizes of the traces, and for others for which the model does the same operations with
    /// sizes and numbers that follow from the axis as they do in the traces. A U-Net that pads images whose sizes are no
    /// multiples of 16, for example, is exported for multiples of 16 if it is traced with these. Otherwise choose sizes
    /// without a common factor, which tell `n / 2` from `n.div_ceil(2)`. What changes only at sizes that were not traced,
    /// as `n.min(1000)` does, is not seen. Tables of positions that a model makes as it needs them reach at least as far
    /// as the sizes of the traces.
    pub fn dynamic_to(self, name: &str, places: &[(&str, usize)], other: usize) -> Self {
        self.axis(name, places, Some(other))
    }

    fn axis(mut self, name: &str, places: &[(&str, usize)], other: Option<usize>) -> Self {
        let places = places.iter().map(|&(input, axis)| (input.to_owned(), axis)).collect();
        self.axes.push(Axis { name: name.to_owned(), places, other });
        self
    }

    /// Names the outputs, in their order.
    pub fn outputs(mut self, names: &[&str]) -> Self {
        self.outputs = names.iter().map(|&name| name.to_owned()).collect();
        self
    }

    /// Sets the highest opset that may be used, 13 to 28; 23 by default. Operations that it lacks leave as those of which
    /// they consist: `LayerNormalization` came with 17, `Gelu` with 20, `Attention` and `RMSNormalization` with 23.
    pub fn opset(mut self, opset: i64) -> Self {
        self.opset = Some(opset);
        self
    }

    /// Sets whether a file of this name is replaced. By default that is an error.
    pub fn replace(mut self, replace: bool) -> Self {
        self.replace = replace;
        self
    }

    /// Adds an entry to the metadata of the model, such as the names of its classes.
    pub fn metadata(mut self, key: &str, value: &str) -> Self {
        self.metadata.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Sets from how many bytes of tensors on they are stored in a file beside the model. For tests.
    #[doc(hidden)]
    pub fn most_bytes(mut self, most: usize) -> Self {
        self.most_bytes = Some(most);
        self
    }

    pub(super) fn most_opset(&self) -> i64 {
        self.opset.unwrap_or(DEFAULT_OPSET)
    }

    /// The names of this many outputs.
    pub(super) fn output_names(&self, count: usize, inputs: &[(&str, &Tensor)]) -> Result<Vec<String>> {
        let names = match (&self.outputs[..], count) {
            ([], 1) => vec!["output".to_owned()],
            ([], _) => (0..count).map(|i| format!("output_{i}")).collect(),
            (names, _) if names.len() == count => names.to_vec(),
            (names, _) => return Err(Error::argument(OP, format!("{} names for {count} outputs", names.len()))),
        };
        let all: Vec<&str> = inputs.iter().map(|(name, _)| *name).chain(names.iter().map(String::as_str)).collect();
        for (i, name) in all.iter().enumerate() {
            if name.is_empty() || all[..i].contains(name) {
                let m = format!("an input or output is called \"{name}\", and names are not empty and used once");
                return Err(Error::argument(OP, m));
            }
        }
        Ok(names)
    }

    /// The sizes with which to trace the model.
    pub(super) fn plan(&self, inputs: &[(&str, &Tensor)]) -> Result<Plan<'_>> {
        let fail = |m: String| Err(Error::argument(OP, m));
        if !(LEAST_OPSET..=28).contains(&self.most_opset()) {
            return fail(format!("opset {}; it is {LEAST_OPSET} to 28", self.most_opset()));
        }
        if inputs.is_empty() {
            return fail("the model has no input".to_owned());
        }
        let (mut example, mut base, mut other) = (Vec::new(), Vec::new(), Vec::new());
        let mut seen = Vec::new();
        for axis in &self.axes {
            let mut size = None;
            for place in &axis.places {
                let Some((_, x)) = inputs.iter().find(|(name, _)| *name == place.0) else {
                    return fail(format!(
                        "the dynamic axis \"{}\" is of an input \"{}\", which is not there",
                        axis.name, place.0
                    ));
                };
                let Some(&found) = x.shape().get(place.1) else {
                    return fail(format!("the input \"{}\" has no axis {}", place.0, place.1));
                };
                if seen.contains(&place) {
                    return fail(format!("axis {} of the input \"{}\" has two names", place.1, place.0));
                }
                if *size.get_or_insert(found) != found || found == 0 {
                    return fail(format!(
                        "the dynamic axis \"{}\" has the size {found} in the input \"{}\"; all of its axes have one size, at least 1",
                        axis.name, place.0
                    ));
                }
                seen.push(place);
            }
            if axis.name.is_empty() || self.axes.iter().filter(|other| other.name == axis.name).count() > 1 {
                return fail(format!(
                    "a dynamic axis is called \"{}\"; names are not empty, and used once with all places of the axis",
                    axis.name
                ));
            }
            let Some(size) = size else {
                return fail(format!("the dynamic axis \"{}\" is an axis of no input", axis.name));
            };
            // What holds for an axis of size 1 often holds for no other.
            let first = if size == 1 { if axis.other == Some(2) { 3 } else { 2 } } else { size };
            let second = axis.other.unwrap_or(2 * first + 1);
            if second < 2 || second == first {
                return fail(format!(
                    "the dynamic axis \"{}\" is {first} in one trace and {second} in another; they differ, and are at least 2",
                    axis.name
                ));
            }
            example.push(size);
            base.push(first);
            other.push(second);
        }
        Ok(Plan { axes: &self.axes, example, base, other })
    }
}

/// The sizes of the dynamic axes with which a model is traced and compared.
pub(super) struct Plan<'o> {
    pub(super) axes: &'o [Axis],
    pub(super) example: Vec<usize>,
    base: Vec<usize>,
    /// A size of each axis other than that of `base`.
    other: Vec<usize>,
}

impl Plan<'_> {
    /// Takes twice the size for axes of which the module does not accept twice the size and one more. That one is better:
    /// for a multiple, `n / 2` and `n.div_ceil(2)` are the same.
    pub(super) fn adapt(&mut self, accepts: impl Fn(&Self, &[usize]) -> bool) {
        for i in 0..self.axes.len() {
            if self.axes[i].other.is_none() && !accepts(self, &self.with(i, self.other[i])) {
                self.other[i] = 2 * self.base[i];
            }
        }
    }

    /// The sizes of the first trace, but for one axis.
    fn with(&self, axis: usize, size: usize) -> Vec<usize> {
        let mut sizes = self.base.clone();
        sizes[axis] = size;
        sizes
    }

    /// The sizes of the traces: those of the example, another for each axis, and others for all.
    pub(super) fn traced(&self) -> Vec<Vec<usize>> {
        let mut traced = vec![self.base.clone()];
        traced.extend((0..self.axes.len()).map(|i| self.with(i, self.other[i])));
        if self.axes.len() > 1 {
            traced.push(self.other.clone());
        }
        traced
    }

    /// Sizes larger than those of the traces, as far apart as these.
    pub(super) fn larger(&self) -> Vec<usize> {
        self.base.iter().zip(&self.other).map(|(&a, &b)| a.max(b) + a.abs_diff(b)).collect()
    }

    /// More sizes for which the module may do the same as in the traces: larger ones, and one less for each axis whose sizes
    /// were not given.
    pub(super) fn more(&self) -> Vec<Vec<usize>> {
        let free = (0..self.axes.len()).filter(|&i| self.axes[i].other.is_none());
        let smaller = free.map(|i| self.with(i, self.base[i] - 1));
        std::iter::once(self.larger()).chain(smaller).collect()
    }

    /// The axes, with their sizes in the traces.
    pub(super) fn symbols(&self) -> Vec<Symbol> {
        let symbol = |(i, axis): (usize, &Axis)| Symbol {
            name: axis.name.clone(),
            input: axis.places[0].0.clone(),
            axis: axis.places[0].1,
            sizes: self.traced().iter().map(|sizes| sizes[i] as i64).collect(),
        };
        self.axes.iter().enumerate().map(symbol).collect()
    }

    /// The examples with other sizes: cut, or repeated.
    pub(super) fn inputs(&self, inputs: &[(&str, &Tensor)], sizes: &[usize]) -> Result<Vec<Tensor>> {
        let mut resized = Vec::new();
        for (name, x) in inputs {
            let mut x = (*x).detach();
            for (axis, &size) in self.axes.iter().zip(sizes) {
                for (_, at) in axis.places.iter().filter(|(input, _)| input == name) {
                    let at = *at as isize;
                    let old = x.size(at)?;
                    if size > old {
                        let copies: Vec<&Tensor> = (0..size.div_ceil(old)).map(|_| &x).collect(); // as many as fill the size
                        x = Tensor::cat(&copies, at)?;
                    }
                    x = x.narrow(at, 0, size)?;
                }
            }
            resized.push(x.copy()?);
        }
        Ok(resized)
    }
}

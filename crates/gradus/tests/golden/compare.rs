//! Compares Gradus with the cases recorded by `record.py`.

use gradus::prelude::*;
use gradus::{BackwardOptions, grad};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};

pub(crate) struct File<'a> {
    pub(crate) tensors: SafeTensors<'a>,
    pub(crate) device: Device,
    /// Creates the inputs, on the CPU, of a case whose inputs are not in the file.
    pub(crate) missing: fn(&str) -> Vec<Tensor>,
}

impl File<'_> {
    pub(crate) fn get(&self, name: &str, kind: &str, i: usize) -> Option<Tensor> {
        let view = self.tensors.tensor(&format!("{name}/{kind}{i}")).ok()?;
        Some(self.on_device(tensor(&view)).unwrap())
    }

    /// Moves a CPU tensor to the device. If the device has no f64, an f64 tensor becomes f32.
    fn on_device(&self, t: Result<Tensor>) -> Result<Tensor> {
        let t = t?;
        if t.dtype() == DType::F64 && self.is_narrow() { t.to_dtype(DType::F32) } else { Ok(t) }?
            .to_device(&self.device)
    }

    /// Whether the device lacks f64.
    pub(crate) fn is_narrow(&self) -> bool {
        !self.device.backend().supports(DType::F64)
    }

    pub(crate) fn inputs(&self, name: &str) -> Vec<Tensor> {
        let inputs: Vec<Tensor> = (0..).map_while(|i| self.get(name, "in", i)).collect();
        if !inputs.is_empty() {
            return inputs;
        }
        (self.missing)(name).into_iter().map(|t| self.on_device(Ok(t)).unwrap()).collect()
    }
}

fn tensor(view: &TensorView<'_>) -> Result<Tensor> {
    let dtype = match view.dtype() {
        Dtype::F64 => DType::F64,
        Dtype::F32 => DType::F32,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        Dtype::I64 => DType::I64,
        Dtype::I32 => DType::I32,
        Dtype::I16 => DType::I16,
        Dtype::I8 => DType::I8,
        Dtype::U64 => DType::U64,
        Dtype::U32 => DType::U32,
        Dtype::U16 => DType::U16,
        Dtype::U8 => DType::U8,
        Dtype::BOOL => DType::Bool,
        other => panic!("the file holds {other:?}"),
    };
    Tensor::from_bytes(view.data(), view.shape(), dtype, &Device::cpu()?)
}

pub(crate) fn values(t: &Tensor) -> Vec<f64> {
    let near = t.to_device(&Device::cpu().unwrap()).unwrap();
    near.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap()
}

/// Describes the first difference. If `exact`, zeros must also agree in sign.
pub(crate) fn difference(what: &str, got: &Tensor, want: &Tensor, tolerance: f64, exact: bool) -> Option<String> {
    if got.shape() != want.shape() {
        return Some(format!("{what} has shape {:?}, PyTorch's {:?}", got.shape(), want.shape()));
    }
    if got.dtype() != want.dtype() {
        return Some(format!("{what} is {}, PyTorch's {}", got.dtype(), want.dtype()));
    }
    let (got, want) = (values(got), values(want));
    // The tolerance is also relative to the largest finite value, because sums cancel.
    let largest = want.iter().filter(|w| w.is_finite()).fold(1.0, |m: f64, w| m.max(w.abs()));
    let scale = if largest < 1e6 { largest } else { 1.0 };
    for (i, (g, w)) in got.iter().zip(&want).enumerate() {
        let close = (g - w).abs() <= tolerance * (w.abs() + scale);
        let signs = *w != 0.0 || *g != 0.0 || g.is_sign_negative() == w.is_sign_negative() || !exact;
        if !(g == w || close || g.is_nan() && w.is_nan()) || !signs {
            return Some(format!("element {i} of {what} is {g:?}, PyTorch's {w:?}"));
        }
    }
    None
}

/// The text after `key` in the description of a case.
pub(crate) fn word<'a>(words: &'a str, key: &str) -> &'a str {
    words.split(' ').find_map(|w| w.strip_prefix(key)).unwrap()
}

/// The number of derivatives that the file has for a case.
pub(crate) fn order(words: &str) -> usize {
    word(words, "order=").parse().unwrap()
}

/// How far a case agrees with PyTorch.
pub(crate) struct Agreement {
    /// The number of comparisons that agree: 1 for the values, and 1 more for each of the two gradients.
    #[allow(dead_code)] // only one of the two programs that include this file reads it
    pub(crate) stages: usize,
    /// A description of the first difference.
    pub(crate) difference: Option<String>,
}

/// Runs a case as its description says, and compares its values and as many gradients as the file has. Returns an error
/// if the call fails; a gradient that fails counts as a difference.
pub(crate) fn check(
    file: &File<'_>,
    name: &str,
    words: &str,
    call: impl FnOnce(&[Tensor]) -> Result<Vec<Tensor>>,
) -> Result<Agreement> {
    let leaves: Vec<usize> = word(words, "leaves=").split(',').filter_map(|i| i.parse().ok()).collect();
    let exact = if file.is_narrow() { 1e-5 } else { 1e-12 };
    let tolerance = exact * 10f64.powi(word(words, "loose=").parse().unwrap());
    let mut inputs = file.inputs(name);
    for &i in &leaves {
        inputs[i] = inputs[i].with_grad()?;
    }
    let outs = call(&inputs)?;
    let mut stages = 0;
    let mut found = || {
        if let Some(wrong) = outputs_differ(file, name, &outs, tolerance) {
            return Ok(Some(wrong));
        }
        stages = 1;
        let order = order(words);
        if order == 0 {
            return Ok(None);
        }
        let points: Vec<(usize, &Tensor)> = leaves.iter().map(|&i| (i, &inputs[i])).collect();
        let options = if order > 1 { BackwardOptions::new().create_graph() } else { BackwardOptions::new() };
        let outs: Vec<(usize, &Tensor)> = outs.iter().enumerate().collect();
        let first = gradients(weighted(file, name, "v", &outs)?, &points, options)?;
        if let Some(wrong) = gradients_differ(file, name, "g", &points, &first, tolerance) {
            return Ok(Some(wrong));
        }
        stages = 2;
        if order == 1 {
            return Ok(None);
        }
        let first: Vec<(usize, &Tensor)> = leaves.iter().copied().zip(&first).collect();
        let second = gradients(weighted(file, name, "u", &first)?, &points, BackwardOptions::new())?;
        if let Some(wrong) = gradients_differ(file, name, "gg", &points, &second, tolerance) {
            return Ok(Some(wrong));
        }
        stages = 3;
        Ok(None)
    };
    let difference = found().unwrap_or_else(|e: Error| Some(format!("the gradient: {e}")));
    Ok(Agreement { stages, difference })
}

fn outputs_differ(file: &File<'_>, name: &str, outs: &[Tensor], tolerance: f64) -> Option<String> {
    let exact = name.ends_with("/special");
    for (i, y) in outs.iter().enumerate() {
        let Some(want) = file.get(name, "out", i) else { return Some(format!("there is an output {i}")) };
        if let Some(wrong) = difference(&format!("output {i}"), y, &want, tolerance, exact) {
            return Some(wrong);
        }
    }
    file.get(name, "out", outs.len()).map(|_| format!("only {} outputs", outs.len()))
}

fn gradients_differ(
    file: &File<'_>,
    name: &str,
    kind: &str,
    points: &[(usize, &Tensor)],
    found: &[Tensor],
    tolerance: f64,
) -> Option<String> {
    points.iter().zip(found).find_map(|((i, _), g)| {
        let what = format!("{} gradient of input {i}", if kind == "g" { "the" } else { "the second" });
        let Some(want) = file.get(name, kind, *i) else { return Some(format!("PyTorch lacks {what}")) };
        difference(&what, g, &want, tolerance, false)
    })
}

/// `sum(weights * outputs)`, over the outputs that have weights.
fn weighted(file: &File<'_>, name: &str, kind: &str, outs: &[(usize, &Tensor)]) -> Result<Option<Tensor>> {
    let mut total: Option<Tensor> = None;
    for &(i, y) in outs {
        if let Some(w) = file.get(name, kind, i) {
            let part = y.mul(&w)?.sum_all()?;
            total = Some(match total {
                Some(t) => t.add(&part)?,
                None => part,
            });
        }
    }
    Ok(total)
}

/// The gradients of a sum: zeros for points on which it does not depend.
fn gradients(total: Option<Tensor>, points: &[(usize, &Tensor)], options: BackwardOptions) -> Result<Vec<Tensor>> {
    let points: Vec<&Tensor> = points.iter().map(|p| p.1).collect();
    let found = match total.filter(Tensor::requires_grad) {
        Some(y) => grad(&[&y], &points, None, options)?,
        None => vec![None; points.len()],
    };
    found.into_iter().zip(points).map(|(g, p)| g.map_or_else(|| p.detach().zeros_like(), Ok)).collect()
}

//! Values and first and second gradients against PyTorch in f64. `make.py` beside this file made `values.safetensors`.
//!
//! A case of the file is looked up by its name, or by what stands before the first `/`.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod derivatives;
mod elementwise;
mod indexing;
mod layers;
mod locations;
mod losses;
mod matrix;
mod orders;
mod precision;
mod rows;
mod sources;
mod structure;

use std::collections::{BTreeMap, HashSet};

use gradus::prelude::*;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};

/// A call with the inputs of a case.
type Call = fn(&[Tensor]) -> Result<Vec<Tensor>>;
/// The cases of one module.
type Cases = &'static [(&'static str, Call)];

/// A call with one output.
macro_rules! one {
    (|$x:ident| $body:expr) => {
        |$x: &[Tensor]| Ok(vec![$body?])
    };
}
use one;

/// Two outputs.
fn pair((a, b): (Tensor, Tensor)) -> Vec<Tensor> {
    vec![a, b]
}

static VALUES: &[u8] = include_bytes!("values.safetensors");

fn tensor(view: &TensorView<'_>, device: &Device) -> Result<Tensor> {
    let dtype = match view.dtype() {
        Dtype::F64 => DType::F64,
        Dtype::F32 => DType::F32,
        Dtype::I64 => DType::I64,
        Dtype::BOOL => DType::Bool,
        other => panic!("the file holds {other:?}"),
    };
    Tensor::from_bytes(view.data(), view.shape(), dtype, device)
}

fn values(t: &Tensor) -> Vec<f64> {
    let wide = t.to_dtype(DType::F64).unwrap();
    wide.to_vec::<f64>().unwrap()
}

/// The first difference, in words. If `exact`, also in the signs of zeros.
fn difference(what: &str, got: &Tensor, want: &Tensor, tolerance: f64, exact: bool) -> Option<String> {
    if got.shape() != want.shape() {
        return Some(format!("{what} has shape {:?}, PyTorch's {:?}", got.shape(), want.shape()));
    }
    if got.dtype() != want.dtype() {
        return Some(format!("{what} is {}, PyTorch's {}", got.dtype(), want.dtype()));
    }
    let (got, want) = (values(got), values(want));
    // Relative to the largest finite value too: sums cancel.
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

struct File<'a> {
    tensors: SafeTensors<'a>,
    device: Device,
}

impl File<'_> {
    fn get(&self, name: &str, kind: &str, i: usize) -> Option<Tensor> {
        let view = self.tensors.tensor(&format!("{name}/{kind}{i}")).ok()?;
        Some(tensor(&view, &self.device).unwrap())
    }

    fn inputs(&self, name: &str) -> Vec<Tensor> {
        (0..).map_while(|i| self.get(name, "in", i)).collect()
    }
}

/// `sum(weights * outputs)`, over those that have weights.
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

/// Runs a case; a difference in words.
fn check(
    file: &File<'_>,
    name: &str,
    call: Call,
    order: usize,
    leaves: &[usize],
    tolerance: f64,
) -> Result<Option<String>> {
    let mut inputs = file.inputs(name);
    for &i in leaves {
        inputs[i] = inputs[i].with_grad()?;
    }
    let outs = call(&inputs)?;
    for (i, y) in outs.iter().enumerate() {
        let Some(want) = file.get(name, "out", i) else { return Ok(Some(format!("there is an output {i}"))) };
        if let Some(wrong) = difference(&format!("output {i}"), y, &want, tolerance, name.ends_with("/special")) {
            return Ok(Some(wrong));
        }
    }
    if file.get(name, "out", outs.len()).is_some() {
        return Ok(Some(format!("only {} outputs", outs.len())));
    }
    let outs: Vec<(usize, &Tensor)> = outs.iter().enumerate().collect();
    let Some(total) = weighted(file, name, "v", &outs)? else { return Ok(None) };
    let points: Vec<&Tensor> = leaves.iter().map(|&i| &inputs[i]).collect();
    let zeros = |t: &Tensor| Tensor::zeros(t.shape(), t.dtype(), t.device());
    let gradients = |y: &Tensor, options: BackwardOptions| -> Result<Vec<Tensor>> {
        if !y.requires_grad() {
            return points.iter().map(|p| zeros(p)).collect();
        }
        let found = grad(&[y], &points, None, options)?;
        found.into_iter().zip(&points).map(|(g, p)| g.map_or_else(|| zeros(p), Ok)).collect()
    };
    let options = if order > 1 { BackwardOptions::new().create_graph() } else { BackwardOptions::new() };
    let first = gradients(&total, options)?;
    for (&i, g) in leaves.iter().zip(&first) {
        let Some(want) = file.get(name, "g", i) else { return Ok(Some(format!("no gradient of input {i}"))) };
        if let Some(wrong) = difference(&format!("the gradient of input {i}"), g, &want, tolerance, false) {
            return Ok(Some(wrong));
        }
    }
    if order < 2 {
        return Ok(None);
    }
    let first: Vec<(usize, &Tensor)> = leaves.iter().copied().zip(&first).collect();
    let Some(again) = weighted(file, name, "u", &first)? else { return Ok(Some("no second gradient".to_owned())) };
    for (&i, g) in leaves.iter().zip(&gradients(&again, BackwardOptions::new())?) {
        let Some(want) = file.get(name, "gg", i) else { return Ok(Some(format!("no second gradient of input {i}"))) };
        if let Some(wrong) = difference(&format!("the second gradient of input {i}"), g, &want, tolerance, false) {
            return Ok(Some(wrong));
        }
    }
    Ok(None)
}

fn file() -> File<'static> {
    file_on(Device::cpu().unwrap())
}

fn file_on(device: Device) -> File<'static> {
    File { tensors: SafeTensors::deserialize(VALUES).unwrap(), device }
}

/// The WebGPU adapter to test on; without one, a line that says so and nothing.
#[cfg(feature = "wgpu")]
fn adapter() -> Option<Device> {
    if gradus::wgpu::adapters().is_empty() {
        let required = std::env::var_os("GRADUS_REQUIRE_WGPU").is_some_and(|v| v == "1");
        assert!(!required, "GRADUS_REQUIRE_WGPU is 1 and wgpu finds no adapter");
        println!("skipped: no adapter for wgpu here (install a Vulkan driver, such as mesa-vulkan-drivers)");
        return None;
    }
    Some(Device::open("wgpu").unwrap())
}

#[cfg(not(feature = "wgpu"))]
fn adapter() -> Option<Device> {
    println!("skipped: this build has no WebGPU backend");
    None
}

fn calls() -> BTreeMap<&'static str, Call> {
    let all = [elementwise::CASES, structure::CASES, indexing::CASES, layers::CASES, losses::CASES];
    let calls: BTreeMap<&str, Call> = all.iter().flat_map(|cases| cases.iter().copied()).collect();
    assert_eq!(calls.len(), all.iter().map(|c| c.len()).sum::<usize>(), "a name stands twice");
    calls
}

/// The file's words: versions, and what each case is.
fn words() -> BTreeMap<String, String> {
    let (_, metadata) = SafeTensors::read_metadata(VALUES).unwrap();
    metadata.metadata().clone().unwrap().into_iter().collect()
}

/// What follows `key` among the words of a case.
fn word<'a>(words: &'a str, key: &str) -> &'a str {
    words.split(' ').find_map(|w| w.strip_prefix(key)).unwrap()
}

#[test]
fn the_matrix_of_operations_is_complete_and_fresh() {
    let words = words();
    let cases: Vec<&str> = words.iter().filter(|(_, v)| v.starts_with("order=")).map(|(k, _)| k.as_str()).collect();
    let wgpu = adapter().map(file_on);
    let (text, mut wrong) = matrix::page(&file(), wgpu.as_ref(), &calls(), &cases);
    wrong.extend(matrix::compare(&text));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn operations_agree_with_pytorch() {
    agree(&file());
}

#[test]
fn operations_agree_with_pytorch_on_webgpu() {
    if let Some(device) = adapter() {
        agree(&file_on(device));
    }
}

fn agree(file: &File<'_>) {
    let (metadata, calls) = (words(), calls());
    let cases: Vec<_> = metadata.iter().filter(|(_, v)| v.starts_with("order=")).collect();
    let (mut used, mut wrong, mut operations) = (HashSet::new(), Vec::new(), HashSet::new());
    for (name, words) in &cases {
        let order: usize = word(words, "order=").parse().unwrap();
        let leaves: Vec<usize> = word(words, "leaves=").split(',').filter_map(|i| i.parse().ok()).collect();
        let tolerance = 1e-12 * 10f64.powi(word(words, "loose=").parse().unwrap());
        let family = name.split('/').next().unwrap();
        let found = [name.as_str(), family].into_iter().find(|n| calls.contains_key(n));
        let Some(key) = found else {
            wrong.push(format!("{name}: no call in tests/golden"));
            continue;
        };
        used.insert(key);
        operations.insert(family);
        match check(file, name, calls[key], order, &leaves, tolerance) {
            Ok(None) => {}
            Ok(Some(difference)) => wrong.push(format!("{name}: {difference}")),
            Err(e) => wrong.push(format!("{name}: {e}")),
        }
    }
    let unused: Vec<_> = calls.keys().filter(|k| !used.contains(*k)).collect();
    println!("{} operations in {} cases of PyTorch {}", operations.len(), cases.len(), metadata["torch"]);
    assert!(unused.is_empty(), "no case of the file is for {unused:?}");
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

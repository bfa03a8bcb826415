//! The cases of `tests/reference/layers.safetensors`.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::Arc;

use gradus_cpu::CpuBackend;
use gradus_nn::{Forward, Identity, Init, Module, StateDict, Strict};
use gradus_tensor::{DType, Device, Generator, Result, Tensor};
use safetensors::SafeTensors;

/// The cases whose names begin with one word, and which of them were checked.
pub(crate) struct Cases {
    pub(crate) device: Device,
    group: &'static str,
    file: SafeTensors<'static>,
    texts: std::collections::HashMap<String, String>,
    seen: RefCell<BTreeSet<String>>,
}

/// A part of a case.
struct Part {
    name: String,
    shape: Vec<usize>,
    values: Vec<f64>,
}

static FILE: &[u8] = include_bytes!("../reference/layers.safetensors");

impl Cases {
    pub(crate) fn of(group: &'static str) -> Self {
        let device = Device::from_backend(Arc::new(CpuBackend::new().unwrap()));
        let texts = SafeTensors::read_metadata(FILE).unwrap().1.metadata().clone().unwrap();
        let file = SafeTensors::deserialize(FILE).unwrap();
        Cases { device, group, file, texts, seen: RefCell::default() }
    }

    /// Element i is `1.5 sin(1.7 i + k + 0.3)`.
    pub(crate) fn value(&self, shape: &[usize], k: usize) -> Tensor {
        let n = shape.iter().product::<usize>();
        let values: Vec<f64> = (0..n).map(|i| 1.5 * (1.7 * i as f64 + k as f64 + 0.3).sin()).collect();
        Tensor::from_vec(values, shape, &self.device).unwrap()
    }

    pub(crate) fn ints(&self, values: &[i64], shape: &[usize]) -> Tensor {
        Tensor::from_vec(values, shape, &self.device).unwrap()
    }

    /// Makes a layer with f64 parameters.
    pub(crate) fn make<M>(&self, f: impl FnOnce(&mut Init<'_>) -> Result<M>) -> M {
        f(&mut Init::new(DType::F64, &self.device, &mut Generator::new(1))).unwrap()
    }

    fn parts(&self, case: &str) -> Vec<Part> {
        let name = format!("{}/{case}", self.group);
        assert!(self.seen.borrow_mut().insert(name.clone()), "{name} twice");
        let bytes = self.file.tensor(&name).unwrap_or_else(|_| panic!("the file has no {name}")).data();
        let mut numbers = bytes.chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap()));
        let part = |text: &str| {
            let (name, shape) = text.split_once('=').unwrap();
            let shape: Vec<usize> = shape.split(',').filter(|n| !n.is_empty()).map(|n| n.parse().unwrap()).collect();
            let values = numbers.by_ref().take(shape.iter().product()).collect();
            Part { name: name.to_owned(), shape, values }
        };
        let parts = self.texts[&name].split(' ').map(part).collect();
        assert!(numbers.next().is_none());
        parts
    }

    /// Checks a layer of one input of this shape.
    pub(crate) fn layer<M: Forward>(&self, case: &str, layer: M, shape: &[usize]) {
        self.check(case, layer, &[self.value(shape, 0)], |layer, x| layer.forward(&x[0]));
    }

    /// Checks a layer of one input.
    pub(crate) fn layer_of<M: Forward>(&self, case: &str, layer: M, input: Tensor) {
        self.check(case, layer, &[input], |layer, x| layer.forward(&x[0]));
    }

    /// Checks a function.
    pub(crate) fn function(&self, case: &str, inputs: &[Tensor], f: impl Fn(&[Tensor]) -> Result<Tensor>) {
        self.check(case, Identity, inputs, |_, x| f(x));
    }

    /// Checks a call of a module.
    pub(crate) fn check<M: Module>(
        &self,
        case: &str,
        mut module: M,
        inputs: &[Tensor],
        call: impl Fn(&M, &[Tensor]) -> Result<Tensor>,
    ) {
        let parts = self.parts(case);
        // Loading fails unless names and shapes are PyTorch's.
        let mut state = StateDict::default();
        for part in parts.iter().filter(|p| p.name.starts_with("state:")) {
            let name = part.name.trim_start_matches("state:");
            let t = Tensor::from_vec(part.values.clone(), &*part.shape, &self.device).unwrap();
            let dtype = if name.ends_with("num_batches_tracked") { DType::I64 } else { DType::F64 };
            state.insert(name, t.to_dtype(dtype).unwrap());
        }
        module.load_state_dict(&state, Strict::Yes).unwrap_or_else(|e| panic!("{case}: {e}"));

        let tracked = |x: &Tensor| if x.dtype().is_float() { x.with_grad().unwrap() } else { x.clone() };
        let inputs: Vec<Tensor> = inputs.iter().map(tracked).collect();
        let y = call(&module, &inputs).unwrap_or_else(|e| panic!("{case}: {e}"));
        let n = y.numel();
        let projection: Vec<f64> = (0..n).map(|i| (0.9 * i as f64).cos()).collect();
        let projection = Tensor::from_vec(projection, y.shape(), &self.device).unwrap();
        let gradients = if y.requires_grad() {
            Some(y.mul(&projection).unwrap().sum_all().unwrap().backward().unwrap())
        } else {
            None
        };
        let parameters = module.named_parameters();
        let after = module.state_dict().unwrap();
        for part in &parts {
            let gradient = |t: &Tensor| gradients.as_ref().and_then(|g| g.get(t).cloned());
            let got = match part.name.split_once(':') {
                None if part.name == "out" => y.clone(),
                None => {
                    module.eval();
                    call(&module, &inputs).unwrap_or_else(|e| panic!("{case}: {e}"))
                }
                Some(("state", _)) => continue,
                Some(("after", name)) => after.get(name).unwrap().to_dtype(DType::F64).unwrap(),
                Some((_, name)) => match name.parse::<usize>() {
                    Ok(i) => gradient(&inputs[i]).unwrap_or_else(|| panic!("{case}: no gradient of input {i}")),
                    Err(_) => {
                        let (_, p) = parameters.iter().find(|(n, _)| n == name).unwrap();
                        gradient(p).unwrap_or_else(|| panic!("{case}: no gradient of {name}"))
                    }
                },
            };
            assert_eq!(got.shape(), part.shape, "{case}: the shape of {}", part.name);
            if let Some(difference) = difference(&got, &part.values) {
                panic!("{}/{case}: {}\n{difference}", self.group, part.name);
            }
        }
    }

    /// Checks that there are no other cases.
    pub(crate) fn finish(self) {
        let prefix = format!("{}/", self.group);
        let all = self.file.names().into_iter().filter(|n| n.starts_with(&prefix)).map(ToString::to_string);
        let seen = self.seen.into_inner();
        let missing: Vec<String> = all.filter(|n| !seen.contains(n)).collect();
        assert!(missing.is_empty(), "not checked: {missing:?}");
    }
}

/// The elements that differ by more than 1e-10 of the largest.
fn difference(got: &Tensor, want: &[f64]) -> Option<String> {
    let got = got.detach().to_vec::<f64>().unwrap();
    let largest = want.iter().filter(|w| w.is_finite()).fold(0f64, |m, w| m.max(w.abs()));
    let same = |g: f64, w: f64| g == w || (g.is_nan() && w.is_nan()) || (g - w).abs() <= 1e-10 * largest;
    let mut lines = String::new();
    for (i, (&g, &w)) in got.iter().zip(want).enumerate().filter(|(_, (g, w))| !same(**g, **w)).take(8) {
        writeln!(lines, "  element {i}: {g} is not {w}").unwrap();
    }
    (!lines.is_empty()).then_some(lines)
}

/// Every case belongs to a test.
#[test]
fn all_groups_have_a_test() {
    let file = SafeTensors::deserialize(FILE).unwrap();
    let groups: BTreeSet<String> = file.names().iter().filter_map(|n| n.split('/').next().map(str::to_owned)).collect();
    assert_eq!(groups.into_iter().collect::<Vec<_>>(), ["act", "conv", "linear", "loss", "move", "norm", "pool"]);
}

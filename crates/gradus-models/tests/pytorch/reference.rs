//! The cases of `tests/reference/models.safetensors`.

use std::sync::Arc;

use gradus_cpu::CpuBackend;
use gradus_nn::{Init, Module};
use gradus_tensor::{DType, Device, Generator, Result, Tensor, no_grad};
use safetensors::SafeTensors;

use crate::formula::{digest, fill};

static FILE: &[u8] = include_bytes!("../reference/models.safetensors");

pub(crate) fn device() -> Device {
    Device::from_backend(Arc::new(CpuBackend::new().unwrap()))
}

/// Makes a model with f64 parameters, which are then those of the formula.
pub(crate) fn make<M: Module>(device: &Device, make: impl FnOnce(&mut Init<'_>) -> Result<M>) -> M {
    let mut model = make(&mut Init::new(DType::F64, device, &mut Generator::new(1)).skip()).unwrap();
    fill(&mut model, device);
    model
}

/// The numbers of a tensor of the file; `None` if there is no such tensor.
fn numbers(file: &SafeTensors<'_>, name: &str) -> Option<Vec<f64>> {
    let bytes = file.tensor(name).ok()?.data();
    Some(bytes.chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect())
}

/// The numbers of a tensor that belongs to no case.
pub(crate) fn array(name: &str) -> Vec<f64> {
    numbers(&SafeTensors::deserialize(FILE).unwrap(), name).unwrap_or_else(|| panic!("the file has no {name}"))
}

/// Compares with PyTorch: the names and shapes of the state, the output in training, the gradients of all parameters, the
/// buffers after a step, and the output in evaluation.
pub(crate) fn check<M: Module>(case: &str, mut model: M, call: impl Fn(&M) -> Result<Tensor>) {
    let file = SafeTensors::deserialize(FILE).unwrap();
    let texts = SafeTensors::read_metadata(FILE).unwrap().1.metadata().clone().unwrap();
    let state = model.state_dict().unwrap();
    let mut wanted: Vec<&str> = texts[case].split(' ').collect();
    wanted.sort_unstable();
    let shape = |t: &Tensor| t.shape().iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    let mut names: Vec<String> = state.iter().map(|(name, t)| format!("{name}={}", shape(t))).collect();
    names.sort_unstable();
    assert_eq!(names, wanted, "{case}: names and shapes");

    model.train();
    let y = call(&model).unwrap_or_else(|e| panic!("{case}: {e}"));
    let wave: Vec<f64> = (0..y.numel()).map(|i| (0.9 * i as f64).cos()).collect();
    let wave = Tensor::from_vec(wave, y.shape(), y.device()).unwrap();
    let gradients = y.mul(&wave).unwrap().sum_all().unwrap().backward().unwrap();
    close(
        case,
        "output in training",
        &y.detach().to_vec::<f64>().unwrap(),
        &numbers(&file, &format!("{case}/train")).unwrap(),
    );

    let mut parameters = model.named_parameters();
    parameters.sort_by(|a, b| a.0.cmp(&b.0));
    let wanted = numbers(&file, &format!("{case}/gradients")).unwrap();
    assert_eq!(wanted.len(), 8 * parameters.len(), "{case}: the number of parameters");
    // A gradient that is 0 in exact arithmetic is noise, and compared with the largest one.
    let floor = wanted.chunks_exact(8).fold(0f64, |m, row| m.max(row[1])) * 1e-4;
    for ((name, parameter), wanted) in parameters.iter().zip(wanted.chunks_exact(8)) {
        let got = gradients.get(parameter).map_or([0.0; 8], digest);
        rows(case, name, &got, wanted, floor);
    }
    let state = model.state_dict().unwrap();
    let mut buffers: Vec<String> = model.named_buffers().into_iter().map(|(name, _)| name).collect();
    buffers.sort_unstable();
    let wanted = numbers(&file, &format!("{case}/buffers")).unwrap_or_default();
    assert_eq!(wanted.len(), 8 * buffers.len(), "{case}: the number of buffers");
    for (name, wanted) in buffers.iter().zip(wanted.chunks_exact(8)) {
        rows(case, name, &digest(state.get(name).unwrap()), wanted, 0.0);
    }

    model.eval();
    let y = no_grad(|| call(&model)).unwrap();
    close(case, "output in evaluation", &y.to_vec::<f64>().unwrap(), &numbers(&file, &format!("{case}/eval")).unwrap());
}

/// Compares two digests, with an error of at most 1e-9 of the norm.
fn rows(case: &str, name: &str, got: &[f64; 8], wanted: &[f64], floor: f64) {
    let most = 1e-9 * wanted[1].max(floor);
    let fits = got.iter().zip(wanted).all(|(g, w)| (g - w).abs() <= most);
    assert!(fits, "{case}: {name}\n  {got:?} is not\n  {wanted:?}");
}

/// Compares outputs, with an error of at most 1e-10 of the largest.
pub(crate) fn close(case: &str, what: &str, got: &[f64], wanted: &[f64]) {
    assert_eq!(got.len(), wanted.len(), "{case}: the size of the {what}");
    let most = 1e-10 * wanted.iter().fold(0f64, |m, w| m.max(w.abs()));
    for (i, (g, w)) in got.iter().zip(wanted).enumerate() {
        assert!((g - w).abs() <= most, "{case}: element {i} of the {what} is {g}, not {w}");
    }
}

/// The cases in the file, each of which has a test.
pub(crate) fn cases() -> Vec<String> {
    let mut cases: Vec<String> =
        SafeTensors::read_metadata(FILE).unwrap().1.metadata().clone().unwrap().into_keys().collect();
    cases.sort_unstable();
    cases
}

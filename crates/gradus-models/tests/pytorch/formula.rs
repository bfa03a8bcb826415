//! Weights and inputs as `tests/reference/formula.py` makes them, from names and shapes alone.

use gradus_nn::{Module, StateDict, Strict};
use gradus_tensor::{DType, Device, Tensor};

/// `count` numbers from -1 to 1, drawn from an integer hash of the name and the index.
fn draw(name: &str, count: usize) -> Vec<f64> {
    let seed = name.bytes().fold(0x811C_9DC5u32, |seed, byte| (seed ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let one = |i: usize| {
        let mut x = (i as u32).wrapping_mul(2_654_435_761).wrapping_add(seed);
        x ^= x >> 16;
        x = x.wrapping_mul(0x045D_9F3B);
        x ^= x >> 16;
        f64::from(x) / 2f64.powi(31) - 1.0
    };
    (0..count).map(one).collect()
}

fn weight(name: &str, shape: &[usize], device: &Device) -> Tensor {
    if name.ends_with("num_batches_tracked") {
        return Tensor::scalar(3i64, device).unwrap();
    }
    let mut values = draw(name, shape.iter().product());
    let fan_in = shape.iter().skip(1).product::<usize>() as f64;
    let (shift, scale) = match () {
        () if name.ends_with("running_var") => (1.0, 0.5),
        () if name.ends_with("running_mean") || name.ends_with("bias") => (0.0, 0.2),
        () if shape.len() >= 2 => (0.0, (3.0 / fan_in).sqrt()),
        () => (1.0, 0.3),
    };
    values.iter_mut().for_each(|u| *u = shift + scale * *u);
    Tensor::from_vec(values, shape, device).unwrap()
}

/// Sets every parameter and buffer of a model in f64. A shared parameter has that of its first name.
pub(crate) fn fill<M: Module>(model: &mut M, device: &Device) {
    let mut state = StateDict::new();
    for (name, p) in model.named_parameters() {
        state.insert(name.clone(), weight(&name, p.shape(), device));
    }
    for (name, b) in model.named_buffers() {
        state.insert(name.clone(), weight(&name, b.tensor().shape(), device));
    }
    model.load_state_dict(&state, Strict::Yes).unwrap();
}

/// An input of numbers from -1.5 to 1.5.
pub(crate) fn floats(name: &str, shape: &[usize], device: &Device) -> Tensor {
    let values = draw(name, shape.iter().product()).into_iter().map(|u| 1.5 * u).collect::<Vec<f64>>();
    Tensor::from_vec(values, shape, device).unwrap()
}

/// An input of tokens below `most`.
pub(crate) fn ids(name: &str, most: usize, shape: &[usize], device: &Device) -> Tensor {
    let token = |u: f64| ((u + 1.0) / 2.0 * most as f64).floor() as i64;
    let values = draw(name, shape.iter().product()).into_iter().map(token).collect::<Vec<i64>>();
    Tensor::from_vec(values, shape, device).unwrap()
}

/// What the file keeps of a tensor: its product with a wave, its norm, and six of its elements.
pub(crate) fn digest(t: &Tensor) -> [f64; 8] {
    let flat = t.detach().to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
    let wave: f64 = flat.iter().enumerate().map(|(i, x)| x * (0.9 * i as f64).cos()).sum();
    let norm = flat.iter().map(|x| x * x).sum::<f64>().sqrt();
    let element = |k: usize| flat[k * flat.len() / 6];
    [wave, norm, element(0), element(1), element(2), element(3), element(4), element(5)]
}

//! The memory of a gradient that is no longer needed is reused for the next one; a gradient that is still held does not
//! change.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::{Arc, Mutex};

use common::{another_cpu, f64s, leaf, values};
use gradus_tensor::{BackwardOptions, DType, Tensor, grad};

const N: usize = 1 << 18;
const BUFFER: usize = N * 4;

#[test]
fn a_chain_runs_backward_in_one_buffer() {
    let device = another_cpu();
    let x = Tensor::ones([N], DType::F32, &device).unwrap().with_grad().unwrap();
    let mut y = x.clone();
    for _ in 0..8 {
        y = y.mul(2.0).unwrap().neg().unwrap();
    }
    let loss = y.sum_all().unwrap();
    drop(y);
    let backend = device.backend();
    backend.set_memory_budget(Some(backend.memory_stats().in_use + BUFFER + 4096)).unwrap();
    let gradients = loss.backward().unwrap();
    backend.set_memory_budget(None).unwrap();
    assert!(gradients.get(&x).unwrap().to_vec::<f32>().unwrap().iter().all(|&g| g == 256.0));
}

#[test]
fn gradients_are_summed_in_the_memory_of_one() {
    let device = another_cpu();
    let x = Tensor::ones([N], DType::F32, &device).unwrap().with_grad().unwrap();
    let parts: Vec<Tensor> = (1..6).map(|i| x.mul(i).unwrap().sum_all().unwrap()).collect();
    let loss = parts[1..].iter().fold(parts[0].clone(), |sum, part| sum.add(part).unwrap());
    let backend = device.backend();
    // The budget allows for the sum and one incoming gradient.
    backend.set_memory_budget(Some(backend.memory_stats().in_use + 2 * BUFFER + 4096)).unwrap();
    let gradients = loss.backward().unwrap();
    backend.set_memory_budget(None).unwrap();
    assert!(gradients.get(&x).unwrap().to_vec::<f32>().unwrap().iter().all(|&g| g == 15.0));
}

#[test]
fn a_gradient_of_another_dtype_is_not_taken() {
    let x = leaf(&[1.0, 2.0, 3.0]);
    let y = x.mul(2.0).unwrap().to_dtype(DType::F32).unwrap().mul(3.0).unwrap();
    let g = y.sum_all().unwrap().backward().unwrap();
    assert_eq!(values(g.get(&x).unwrap()), [6.0; 3]);
}

#[test]
fn what_somebody_holds_is_not_taken() {
    let n = 5;
    for options in [BackwardOptions::new(), BackwardOptions::new().retain_graph()] {
        let (x, z) = (leaf(&[1.0; 5]), leaf(&[1.0; 5]));
        // A sum passes the same gradient on to both inputs, and each copy then goes through its own kernels.
        let a = x.mul(3.0).unwrap();
        let b = z.mul(5.0).unwrap();
        let c = a.add(&b).unwrap();
        let y = c.mul(7.0).unwrap();
        let seen: Arc<Mutex<Vec<Tensor>>> = Arc::default();
        let hooks: Vec<_> = [&a, &b, &c, &y]
            .into_iter()
            .map(|t| {
                let seen = seen.clone();
                t.register_hook(move |g| {
                    seen.lock().unwrap().push(g.clone());
                    Ok(None)
                })
                .unwrap()
            })
            .collect();
        let seed = f64s(&[1.0, 2.0, 3.0, 4.0, 5.0], &[n]);
        let given = grad(&[&y], &[&x, &z, &c, &x], Some(&[&seed]), options).unwrap();
        let times = |k: f64| (1..=n).map(|i| k * i as f64).collect::<Vec<_>>();
        assert_eq!(values(&seed), times(1.0));
        let seen: Vec<Vec<f64>> = seen.lock().unwrap().iter().map(values).collect();
        assert_eq!(seen, [times(1.0), times(7.0), times(7.0), times(7.0)]);
        let given: Vec<Vec<f64>> = given.iter().map(|g| values(g.as_ref().unwrap())).collect();
        assert_eq!(given, [times(21.0), times(35.0), times(7.0), times(21.0)]);
        drop(hooks);
    }
}

#[test]
fn a_value_that_the_graph_keeps_is_not_taken() {
    // The second pass once more reads the values that the graph keeps.
    let x = leaf(&[2.0, 3.0]);
    let loss = x.exp().unwrap().mul(&x).unwrap().sum_all().unwrap();
    let keep = BackwardOptions::new().retain_graph();
    let first = loss.backward_with(keep).unwrap();
    let second = loss.backward_with(keep).unwrap();
    let want: Vec<f64> = [2.0f64, 3.0].iter().map(|x| x.exp() * (1.0 + x)).collect();
    for g in [&first, &second] {
        let g = values(g.get(&x).unwrap());
        assert!(g.iter().zip(&want).all(|(g, w)| (g - w).abs() < 1e-13), "{g:?} {want:?}");
    }
    // A recorded gradient that is differentiated again reads them as well.
    let dx = grad(&[&loss], &[&x], None, BackwardOptions::new().create_graph()).unwrap().remove(0).unwrap();
    let again = dx.sum_all().unwrap().backward().unwrap();
    let want: Vec<f64> = [2.0f64, 3.0].iter().map(|x| x.exp() * (2.0 + x)).collect();
    let g = values(again.get(&x).unwrap());
    assert!(g.iter().zip(&want).all(|(g, w)| (g - w).abs() < 1e-13), "{g:?} {want:?}");
}

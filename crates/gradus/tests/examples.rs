//! Runs the examples as tests: each must do what it claims.
#![cfg(feature = "cpu")]
#![allow(clippy::unwrap_used)]

#[allow(dead_code)]
#[path = "../examples/checkpoint_cost.rs"]
mod checkpoint_cost;
#[allow(dead_code)]
#[path = "../examples/compute_op.rs"]
mod compute_op;
#[allow(dead_code)]
#[path = "../examples/fashion_mnist.rs"]
mod fashion_mnist;
#[allow(dead_code)]
#[path = "../examples/gradient_penalty_through_attention.rs"]
mod gradient_penalty_through_attention;
#[allow(dead_code)]
#[path = "../examples/hessian_of_a_network.rs"]
mod hessian_of_a_network;
#[allow(dead_code)]
#[path = "../examples/maml.rs"]
mod maml;
#[allow(dead_code)]
#[path = "../examples/memory_of_a_graph.rs"]
mod memory_of_a_graph;
#[allow(dead_code)]
#[path = "../examples/pinn.rs"]
mod pinn;
#[allow(dead_code)]
#[path = "../examples/small_gpt.rs"]
mod small_gpt;
#[allow(dead_code)]
#[path = "../examples/who_mutated.rs"]
mod who_mutated;

#[test]
fn checkpoint_cost() {
    for cost in checkpoint_cost::run(2, 2).unwrap() {
        assert!(cost.same && cost.saved > 0, "{cost:?}");
    }
}

#[test]
fn compute_op() {
    let device = gradus::prelude::Device::from_backend(std::sync::Arc::new(gradus::cpu::CpuBackend::new().unwrap()));
    let found = compute_op::run(&device, compute_op::native(&device, 0.5).unwrap()).unwrap();
    println!("{found:?}");
    assert!(found.value < 1e-5 && found.gradient < 1e-5 && found.largest > 1.0, "{found:?}");
}

#[test]
fn compute_op_of_more_elements_than_one_row_of_groups() {
    use gradus::prelude::*;
    let device = Device::from_backend(std::sync::Arc::new(gradus::cpu::CpuBackend::new().unwrap()));
    let op = std::sync::Arc::new(compute_op::native(&device, 0.5).unwrap());
    let n = compute_op::GROUP * compute_op::ROW;
    for n in [0, n, n + 1] {
        let x = Tensor::full([n], 2.0, DType::F32, &device).unwrap();
        let y = gradus::apply_custom(&op, &[&x]).unwrap().swap_remove(0);
        assert_eq!(y.sum_all().unwrap().item().unwrap(), 4.0 * n as f64);
    }
}

#[test]
fn hessian_of_a_network() {
    let found = hessian_of_a_network::run(0).unwrap();
    println!("{found:?}");
    assert_eq!(found.parameters, 39);
    assert!(found.asymmetry < 1e-12 && found.null < 1e-12 && found.error < 1e-9, "{found:?}");
    // The trace lies within the bounds of 39 eigenvalues, and the Hessian is not just zeros.
    assert!(found.trace > 0.1 && found.trace < 39.0 * found.bounds.1 && found.bounds.0 < found.bounds.1, "{found:?}");
}

#[test]
fn gradient_penalty_through_attention() {
    let found = gradient_penalty_through_attention::run(0, 30).unwrap();
    println!("{found:?}");
    assert_eq!(found.parameters, 187);
    assert!(found.largest > 1e-2 && found.error < 1e-9, "{found:?}");
    assert!(found.penalty.1 < 0.1 * found.penalty.0, "{found:?}");
}

#[test]
fn who_mutated() {
    use who_mutated::{Write, run};
    for write in [Write::Needed, Write::Detached] {
        let error = run(write).unwrap_err().to_string();
        println!("{error}");
        assert!(error.contains("the gradient of mul needs its input 1, which fill_ overwrote"), "{error}");
        let lines = ["mul was recorded at", "fill_ wrote at"];
        assert!(lines.iter().all(|l| error.contains(l)) && error.matches("who_mutated.rs:").count() == 3, "{error}");
    }
    assert_eq!(run(Write::Beside).unwrap(), [0.5; 3]);
}

#[test]
fn maml() {
    let [untrained, second, first] =
        [(0, true), (600, true), (600, false)].map(|(steps, second)| maml::run(0, steps, second).unwrap());
    println!("{untrained:?} {second:?} {first:?}");
    assert!(untrained.after > 3.0 && second.before > 4.0 && second.after < 0.6, "{untrained:?} {second:?}");
    assert!(second.after < first.after, "{second:?} {first:?}");
}

#[test]
fn pinn() {
    let found = pinn::run(0, 600).unwrap();
    println!("{found:?}");
    assert!(found.error.0 > 0.5 && found.error.1 < 0.005, "{found:?}");
}

#[test]
fn a_graph_holds_what_its_gradients_need() {
    let found = memory_of_a_graph::run().unwrap();
    println!("{found:?}");
    assert_eq!(found.by_op.len(), 5);
    for (op, (needed, held)) in &found.by_op {
        assert_eq!(needed, held, "{op}");
    }
    // The backend's own count agrees: it grew by the bytes that the graph holds, without the parameters and inputs,
    // plus the loss (one f32).
    assert_eq!(found.grew, found.held - found.shared + 4);
    // Saved tensors are freed as the backward pass uses them, so the peak is less than all saved tensors, gradients and
    // scratch memory together.
    assert!(found.peak < found.grew + found.gradients + found.gradients / 2, "{found:?}");
}

/// Writes IDX files of 8 x 8 images to a new folder. The class of an image says which of its quarters is bright.
fn quarters(name: &str) -> std::path::PathBuf {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).unwrap();
    for (part, count) in [("train", 256u32), ("t10k", 32)] {
        let mut images = [&[0, 0, 8, 3], &count.to_be_bytes()[..], &[0, 0, 0, 8, 0, 0, 0, 8]].concat();
        let mut labels = [&[0, 0, 8, 1], &count.to_be_bytes()[..]].concat();
        for i in 0..count {
            let class = i % 4;
            labels.push(class as u8);
            images.extend(
                (0..64)
                    .map(|at| if at / 32 == class / 2 && at % 8 / 4 == class % 2 { 200 + (i % 50) as u8 } else { 10 }),
            );
        }
        std::fs::write(folder.join(format!("{part}-images-idx3-ubyte")), images).unwrap();
        std::fs::write(folder.join(format!("{part}-labels-idx1-ubyte")), labels).unwrap();
    }
    folder
}

#[test]
fn fashion_mnist() {
    use gradus::prelude::*;
    let folder = quarters("fashion_mnist");
    let model = folder.join("model.safetensors");
    let found = fashion_mnist::run(&folder, 4, &model).unwrap();
    assert_eq!(found.samples, 32);
    assert_eq!(found.accuracy, Some(1.0), "{found:?}");
    let saved = StateDict::load_safetensors(&model, &Device::cpu().unwrap()).unwrap();
    assert_eq!(saved.get("conv1.weight").unwrap().shape(), [16, 1, 3, 3]);
    // The mistake that everyone makes first: a folder without the files. The error says where to get them.
    let missing = fashion_mnist::run(&folder.join("nothing"), 1, &model).unwrap_err().to_string();
    assert!(missing.contains("dataset-fashion-mnist"), "{missing}");
}

#[test]
fn small_gpt() {
    let device = gradus::Device::from_backend(std::sync::Arc::new(gradus::cpu::CpuBackend::new().unwrap()));
    let (losses, sample) = small_gpt::run(&"abcd".repeat(40), 40, 12, &device).unwrap();
    assert!((losses[0] - 4f64.ln()).abs() < 0.7 && losses[39] < 0.05, "{losses:?}");
    assert_eq!(sample, "bcdabcdabcda");
    assert!(small_gpt::run("too short", 1, 1, &device).is_err());
}

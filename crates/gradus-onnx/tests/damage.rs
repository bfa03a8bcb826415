//! Damaged and hostile files lead to a helpful error, never to a panic.

#![allow(clippy::unwrap_used)]

mod writer;

use std::path::Path;
use std::sync::Arc;

use gradus_cpu::CpuBackend;
use gradus_onnx::OnnxModel;
use gradus_tensor::{DType, Device, Error, ErrorKind, Result, Tensor};
use writer::{Graph, Message, node, tensor, value};

fn device() -> Result<Device> {
    Ok(Device::from_backend(Arc::new(CpuBackend::new()?)))
}

/// `y = relu(x + w)`
fn small() -> Graph {
    Graph {
        nodes: vec![node("Add", &["x", "w"], &["s"], "sum"), node("Relu", &["s"], &["y"], "positive")],
        initializers: vec![tensor("w", &[2], &[1.0, -2.0])],
        inputs: vec![value("x", &[2])],
        outputs: vec![value("y", &[2])],
    }
}

fn refused(model: Message) -> Error {
    OnnxModel::from_bytes(&model.0, &device().unwrap()).expect_err("the model is refused")
}

fn says(error: &Error, parts: &[&str]) {
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "`{part}` is missing from:\n{text}");
    }
}

#[test]
fn the_small_model_runs() -> Result<()> {
    let device = device()?;
    let model = OnnxModel::from_bytes(&small().model().0, &device)?;
    let x = Tensor::from_vec(vec![0.5f32, 0.5], [2], &device)?;
    assert_eq!(model.run(&[("x", x)])?[0].1.to_vec::<f32>()?, [1.5, 0.0]);
    Ok(())
}

/// Loads the model and, if that succeeds, runs it on zeros.
fn try_all(bytes: &[u8], device: &Device) -> bool {
    let Ok(mut model) = OnnxModel::from_bytes(bytes, device) else { return false };
    model.max_rounds(100);
    let mut inputs = Vec::new();
    for port in model.inputs() {
        let shape: Vec<usize> = port.shape.iter().flatten().map(|n| n.unwrap_or(1).min(64)).collect();
        let dtype = port.elem.and_then(|e| e.dtype()).unwrap_or(DType::F32);
        let Ok(x) = Tensor::zeros(shape, dtype, device) else { return false };
        inputs.push((port.name.as_str(), x));
    }
    model.run(&inputs).is_ok()
}

#[test]
fn a_file_cut_anywhere_is_refused_or_a_smaller_model() -> Result<()> {
    let (device, whole) = (device()?, small().model().0);
    assert!(try_all(&whole, &device));
    for end in 0..whole.len() {
        try_all(&whole[..end], &device);
    }
    // A file whose last field is cut short does not load.
    assert!(OnnxModel::from_bytes(&whole[..whole.len() - 1], &device).is_err());
    assert!(OnnxModel::from_bytes(&[], &device).is_err());
    Ok(())
}

#[test]
fn changed_bytes_do_not_panic() -> Result<()> {
    let device = device()?;
    let cases: serde_json::Value = serde_json::from_str(include_str!("reference/models.json")).unwrap();
    let mut state = 1u64;
    let mut random = |n: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % n
    };
    let (mut ran, mut all) = (0, 0);
    for case in cases.as_object().unwrap().values() {
        let hex = case["model"].as_str().unwrap();
        let whole: Vec<u8> =
            (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect();
        for _ in 0..60 {
            let mut bytes = whole.clone();
            for _ in 0..=random(3) {
                let at = random(bytes.len());
                bytes[at] = random(256) as u8;
            }
            all += 1;
            ran += usize::from(try_all(&bytes, &device));
        }
    }
    // Some changes only affect weights and names, so that the model still runs, but not all of them.
    assert!(ran > 0 && ran < all, "{ran} of {all}");
    Ok(())
}

#[test]
fn a_kernel_without_spatial_axes_is_refused() -> Result<()> {
    let device = device()?;
    for (op, inputs) in [
        ("Conv", &["x", "k"][..]),
        ("ConvTranspose", &["x", "k"]),
        ("ConvInteger", &["x", "k"]),
        ("QLinearConv", &["x", "s", "s", "k", "s", "s", "s", "s"]),
    ] {
        for shape in [&[][..], &[1], &[1, 1]] {
            let graph = Graph {
                nodes: vec![node(op, inputs, &["y"], "conv")],
                initializers: vec![tensor("k", shape, &[1.0]), tensor("s", &[], &[1.0])],
                inputs: vec![value("x", &[1, 1, 4])],
                outputs: vec![value("y", &[])],
            };
            let model = OnnxModel::from_bytes(&graph.model().0, &device)?;
            let x = Tensor::zeros([1, 1, 4], DType::F32, &device)?;
            says(&model.run(&[("x", x)]).expect_err("it is refused"), &["a kernel of shape", "conv"]);
        }
    }
    Ok(())
}

#[test]
fn a_circle_names_a_node() {
    let mut g = small();
    g.nodes = vec![node("Add", &["x", "b"], &["a"], "first"), node("Relu", &["a"], &["b"], "second")];
    g.outputs = vec![value("b", &[2])];
    says(&refused(g.model()), &["circle", "\"first\" (Add)"]);
}

#[test]
fn a_missing_input_names_the_node() {
    let mut g = small();
    g.initializers.clear();
    says(&refused(g.model()), &["the input \"w\" is no input, initialiser or output", "\"sum\" (Add)"]);
}

#[test]
fn names_are_used_once() {
    let mut g = small();
    g.nodes.push(node("Neg", &["x"], &["s"], "again"));
    says(&refused(g.model()), &["\"s\" is made by two nodes", "\"again\" (Neg)"]);
    let mut g = small();
    g.initializers.push(tensor("w", &[2], &[0.0, 0.0]));
    says(&refused(g.model()), &["two initialisers are called \"w\""]);
    let mut g = small();
    g.nodes[0] = node("Add", &["w", "w"], &["x"], "over");
    says(&refused(g.model()), &["\"x\" has a value already", "\"over\" (Add)"]);
}

#[test]
fn an_output_needs_a_maker() {
    let mut g = small();
    g.outputs.push(value("z", &[2]));
    says(&refused(g.model()), &["the output \"z\" is made by no node"]);
}

#[test]
fn all_unsupported_operators_are_listed_at_once() {
    let mut g = small();
    g.nodes.push(node("Frobnicate", &["x"], &["p"], "one"));
    g.nodes.push(node("Frobnicate", &["x"], &["q"], "two"));
    g.nodes.push(node("Gelu", &["x"], &["r"], "three"));
    let error = refused(g.model());
    assert_eq!(error.kind(), &ErrorKind::Unsupported);
    says(
        &error,
        &["2 of the model's 4 operators", "Frobnicate in 2 nodes (one, two)", "Gelu in 1 nodes (three)", "opset 20"],
    );
}

#[test]
fn an_attribute_that_the_operator_has_not_is_refused() -> Result<()> {
    let device = device()?;
    let mut g = small();
    g.nodes[1] =
        node("Relu", &["s"], &["y"], "positive").message(5, Message::default().bytes(1, "slope").int(3, 1).int(20, 2));
    let model = OnnxModel::from_bytes(&g.model().0, &device)?;
    let error = model.run(&[("x", Tensor::zeros([2], DType::F32, &device)?)]).unwrap_err();
    says(&error, &["the attribute `slope`", "\"positive\" (Relu)"]);
    Ok(())
}

#[test]
fn sizes_must_fit_the_data() {
    for shape in [&[3][..], &[-2], &[1 << 40, 1 << 40], &[i64::MAX]] {
        let mut g = small();
        g.initializers = vec![tensor("w", shape, &[1.0, 2.0])];
        let error = refused(g.model());
        assert_eq!(error.kind(), &ErrorKind::Format, "{error}");
        says(&error, &["in the tensor \"w\""]);
    }
}

#[test]
fn functions_that_call_themselves_end() {
    let call = |name: &str| node("F", &["x"], &["y"], name).bytes(7, "own");
    let function =
        Message::default().bytes(1, "F").bytes(4, "x").bytes(5, "y").message(7, call("inner")).bytes(10, "own");
    let mut g = small();
    g.nodes = vec![call("outer")];
    let model = g.model().message(25, function).message(8, Message::default().bytes(1, "own").int(2, 1));
    says(&refused(model), &["does F call itself?"]);
}

#[test]
fn deep_messages_end() {
    let mut graph = Message::default();
    for _ in 0..2000 {
        let attribute = Message::default().bytes(1, "body").message(6, graph);
        graph = Message::default().message(1, node("If", &["x"], &["y"], "n").message(5, attribute));
    }
    says(&refused(Message::default().message(7, graph)), &["more than 100 deep"]);
}

/// A model whose `w` is in another file.
fn with_data(location: &str, offset: &str) -> Message {
    let entry = |key: &str, value: &str| Message::default().bytes(1, key).bytes(2, value);
    let external = Message::default().int(1, 2).int(2, 1).bytes(8, "w").int(14, 1);
    let mut g = small();
    g.initializers = vec![external.each(13, [entry("location", location), entry("offset", offset)])];
    g.model()
}

fn load(folder: &Path, model: Message, device: &Device) -> Result<OnnxModel> {
    let path = folder.join("model.onnx");
    std::fs::write(&path, model.0).unwrap();
    OnnxModel::load(path, device)
}

#[test]
fn external_data_comes_from_the_models_folder_only() -> Result<()> {
    let device = device()?;
    let load = |folder: &Path, model: Message| load(folder, model, &device);
    let outer = tempfile::tempdir().unwrap();
    let folder = outer.path().join("model");
    std::fs::create_dir(&folder).unwrap();
    let data: Vec<u8> = [9.0f32, 1.0, -2.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    std::fs::write(folder.join("w.data"), &data).unwrap();
    std::fs::write(outer.path().join("w.data"), &data).unwrap();
    let x = Tensor::from_vec(vec![0.5f32, 0.5], [2], &device)?;
    assert_eq!(load(&folder, with_data("w.data", "4"))?.run(&[("x", x)])?[0].1.to_vec::<f32>()?, [1.5, 0.0]);
    let absolute = outer.path().join("w.data").display().to_string();
    for outside in ["../w.data", "sub/../../w.data", &absolute] {
        assert!(load(&folder, with_data(outside, "4")).is_err(), "{outside}");
    }
    says(&load(&folder, with_data("../w.data", "4")).unwrap_err(), &["outside of the model's folder"]);
    says(&load(&folder, with_data("w.data", "8")).unwrap_err(), &["12 bytes, too few"]);
    says(&load(&folder, with_data("w.data", "18446744073709551615")).unwrap_err(), &["too few"]);
    says(&load(&folder, with_data(".", "0")).unwrap_err(), &["is not a file"]);
    assert_eq!(load(&folder, with_data("none.data", "0")).unwrap_err().kind(), &ErrorKind::Io);
    says(&refused(with_data("w.data", "4")), &["in another file", "load the model from its path"]);
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(outer.path().join("w.data"), folder.join("link.data")).unwrap();
        says(&load(&folder, with_data("link.data", "4")).unwrap_err(), &["is a link"]);
    }
    Ok(())
}

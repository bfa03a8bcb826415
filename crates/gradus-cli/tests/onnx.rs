//! Tests `gradus onnx inspect` and `gradus onnx run` on a model of two layers.
#![cfg(feature = "onnx")]
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;

use gradus::prelude::*;
use support::{gradus, succeed, text};

/// The bytes of the model `mlp` among the reference models of `gradus-onnx`, its input and its output.
fn reference() -> BTreeMap<&'static str, Vec<u8>> {
    let text = include_str!("../../gradus-onnx/tests/reference/models.json");
    let cases: serde_json::Value = serde_json::from_str(text).unwrap();
    let bytes = |hex: &serde_json::Value| -> Vec<u8> {
        let hex = hex.as_str().unwrap();
        (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
    };
    let mlp = &cases["mlp"];
    let parts = [("model", &mlp["model"]), ("input", &mlp["inputs"][0]), ("output", &mlp["outputs"][0])];
    parts.into_iter().map(|(name, hex)| (name, bytes(hex))).collect()
}

#[test]
fn a_model_is_listed_and_run() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let reference = reference();
    std::fs::write(at("mlp.onnx"), &reference["model"]).unwrap();
    let printed = succeed(gradus().args(["onnx", "inspect"]).arg(at("mlp.onnx")));
    assert!(
        printed.contains("x: float32 [4, 3]") && printed.contains("Gemm") && printed.contains("every operator runs")
    );

    // `raw_data`, field 9 of the reference tensors, holds their elements.
    let floats = |bytes: &[u8], n: usize| -> Vec<f32> {
        bytes[bytes.len() - 4 * n..].chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    };
    let device = Device::cpu().unwrap();
    let at_data = reference["input"].windows(2).position(|w| w == [0x4a, 48]).unwrap() + 2;
    let x = floats(&reference["input"][..at_data + 48], 12);
    gradus::data::npy::save(at("x.npy"), &Tensor::from_vec(x, [4, 3], &device).unwrap()).unwrap();
    let input = format!("x={}", at("x.npy").display());
    let printed =
        succeed(gradus().args(["onnx", "run"]).arg(at("mlp.onnx")).args(["--input", &input, "--out"]).arg(at("y.npz")));
    assert!(printed.contains("y: f32 [4, 2]"), "{printed}");
    let y = gradus::data::npy::load_npz(at("y.npz"), &device).unwrap()["y"].to_vec::<f32>().unwrap();
    let at_data = reference["output"].windows(2).position(|w| w == [0x4a, 32]).unwrap() + 2;
    let want = floats(&reference["output"][..at_data + 32], 8);
    assert!(y.iter().zip(&want).all(|(y, want)| (y - want).abs() < 1e-5), "{y:?} instead of {want:?}");

    let bench =
        |more: &[&str]| gradus().args(["onnx", "bench"]).arg(at("mlp.onnx")).args(["--runs", "2"]).args(more).output();
    let printed = text(&bench(&["--input", &input]).unwrap()).0;
    assert!(printed.contains("2 runs: median") && printed.contains("2 x Gemm"), "{printed}");
    let printed = text(&bench(&["--json"]).unwrap()).0;
    let times: serde_json::Value = serde_json::from_str(printed.lines().last().unwrap()).unwrap();
    assert!(times["median_ms"].as_f64().unwrap() > 0.0, "{printed}");
    for wrong in [&["--size", "x=4xthree"][..], &["--size", "z=4"], &["--size", "x=5x3"]] {
        assert_eq!(bench(wrong).unwrap().status.code(), Some(1), "{wrong:?}");
    }

    let failed = gradus().args(["onnx", "run"]).arg(at("mlp.onnx")).args(["--input", "x"]).output().unwrap();
    assert_eq!(failed.status.code(), Some(1));
    assert!(text(&failed).1.contains("as in --input x=x.npy"), "{}", text(&failed).1);
}

#[test]
fn a_trained_model_leaves_as_onnx() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.txt"), "pack my box with five dozen jugs. ".repeat(20)).unwrap();
    let command = |line: &str| {
        let mut command = gradus();
        command.current_dir(folder.path()).args(line.split(' '));
        command
    };
    succeed(&mut command("train text a.txt --epochs 1 --layers 1 --heads 2 --width 16 --context 16 --out run"));
    let printed = succeed(&mut command("onnx export run --out text.onnx"));
    assert!(printed.contains("text.onnx: opset 23"), "{printed}");
    let printed = succeed(&mut command("onnx inspect text.onnx"));
    assert!(printed.contains("Attention") && printed.contains("every operator runs"), "{printed}");

    let device = Device::cpu().unwrap();
    let gradus::tasks::Model::Text(trained) =
        gradus::tasks::load(folder.path().join("run/model.safetensors"), &device).unwrap()
    else {
        panic!("a language model was trained")
    };
    let read = gradus::onnx::OnnxModel::load(folder.path().join("text.onnx"), &device).unwrap();
    let tokens = Tensor::randint(0, 10, [3, 11], DType::I64, &device, &mut Generator::new(0)).unwrap();
    let logits = read.run(&[("tokens", tokens.clone())]).unwrap().remove(0).1.to_vec::<f32>().unwrap();
    let wanted = no_grad(|| trained.network().forward(&tokens)).unwrap().to_vec::<f32>().unwrap();
    assert_eq!(logits, wanted);

    // Too few tokens for two lengths above 1: the length is fixed.
    for context in ["1", "2"] {
        let train = "train text a.txt --epochs 1 --layers 1 --heads 2 --width 16 --out short --context";
        succeed(&mut command(&format!("{train} {context}")));
        succeed(&mut command("onnx export short --out short.onnx"));
        let printed = succeed(&mut command("onnx inspect short.onnx"));
        assert!(printed.contains(&format!("[batch, {context}]")), "{printed}");
        std::fs::remove_dir_all(folder.path().join("short")).unwrap();
    }

    let failed = command("onnx export run --out text.onnx --opset 12").output().unwrap();
    assert_eq!(failed.status.code(), Some(2), "{}", text(&failed).1);
}

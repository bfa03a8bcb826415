//! Compares operators of `com.microsoft` and `ai.onnx.ml` with ONNX Runtime. `reference/contributed.py` computed the
//! expected values.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;

use gradus_cpu::CpuBackend;
use gradus_onnx::{OnnxModel, OnnxPort, OnnxValue};
use gradus_tensor::{Device, Result};
use serde_json::Value;

fn bytes(hex: &Value) -> Vec<u8> {
    let digits = hex.as_str().unwrap().as_bytes();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

fn value(model: &OnnxModel, folder: &Path, hex: &Value, port: &OnnxPort) -> OnnxValue {
    let path = folder.join("value.pb");
    std::fs::write(&path, bytes(hex)).unwrap();
    model.read_value(&path, port).unwrap()
}

/// How a result differs from the expected one by more than `allowed`, which is a part of the largest magnitude, or a
/// number of steps for integers.
fn difference(have: &OnnxValue, want: &OnnxValue, allowed: f64, device: &Device) -> Option<String> {
    match (have, want) {
        (OnnxValue::Strings(have), OnnxValue::Strings(want)) => {
            (have != want).then(|| format!("{have:?} instead of {want:?}"))
        }
        (OnnxValue::Tensor(have), OnnxValue::Tensor(want)) => {
            let described = |a: &gradus_onnx::Array| format!("{} {:?}", a.elem().name(), a.shape());
            if described(have) != described(want) {
                return Some(format!("{} instead of {}", described(have), described(want)));
            }
            let (have, want) = (have.to_f64(device).unwrap(), want.to_f64(device).unwrap());
            let most = if allowed < 1.0 { want.iter().fold(1e-30f64, |m, v| m.max(v.abs())) } else { 1.0 };
            let near = |(a, b): &(&f64, &f64)| (*a - *b).abs() <= allowed * most || (a.is_nan() && b.is_nan());
            let wrong = have.iter().zip(&want).enumerate().find(|(_, pair)| !near(pair));
            wrong.map(|(i, (have, want))| format!("{have} instead of {want} at {i}"))
        }
        other => Some(format!("{other:?}")),
    }
}

#[test]
fn operators_give_what_onnx_runtime_gives() -> Result<()> {
    let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    let folder = tempfile::tempdir().unwrap();
    let cases: Value = serde_json::from_str(include_str!("reference/contributed.json")).unwrap();
    let cases = cases.as_object().unwrap();
    let mut failures = Vec::new();
    for (name, case) in cases {
        let mut model = match OnnxModel::from_bytes(&bytes(&case["model"]), &device) {
            Ok(model) => model,
            Err(e) => {
                failures.push(format!("{name}: {e}"));
                continue;
            }
        };
        let ports = model.inputs().to_vec();
        let given = case["inputs"].as_array().unwrap().iter().zip(&ports);
        let inputs: Vec<(&str, OnnxValue)> =
            given.map(|(hex, port)| (port.name.as_str(), value(&model, folder.path(), hex, port))).collect();
        let allowed = case["allowed"].as_f64().unwrap();
        let mut first: Vec<Vec<f64>> = Vec::new();
        // As in the file, optimised, and replayed.
        for run in 0..6 {
            if run < 2 {
                model.optimise(run > 0);
            }
            let outputs = match model.run_values(&inputs) {
                Ok(outputs) => outputs,
                Err(e) => {
                    failures.push(format!("{name}: {e}"));
                    break;
                }
            };
            let wanted = case["outputs"].as_array().unwrap();
            assert_eq!(outputs.len(), wanted.len(), "{name}");
            if name.starts_with("quantised_lstm") {
                // The integers are the same, and everything else is rounded in the same order.
                let numbers = |v: &OnnxValue| match v {
                    OnnxValue::Tensor(array) => array.to_f64(&device).unwrap(),
                    other => panic!("{other:?}"),
                };
                let numbers: Vec<_> = outputs.iter().map(|(_, v)| numbers(v)).collect();
                assert!(first.is_empty() || first == numbers, "{name}, run {run}");
                first = numbers;
            }
            for (i, ((_, have), (hex, port))) in outputs.iter().zip(wanted.iter().zip(model.outputs())).enumerate() {
                let want = value(&model, folder.path(), hex, port);
                if let Some(what) = difference(have, &want, allowed, &device) {
                    failures.push(format!("{name}, run {run}, output {i}: {what}"));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{} of {} cases:\n{}", failures.len(), cases.len(), failures.join("\n"));
    assert!(cases.len() > 60, "{} cases", cases.len());
    Ok(())
}

//! Compares small models with ONNX Runtime, and the gradient of one of them with NumPy. `reference/models.py` computed
//! the expected values.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;

use gradus_cpu::CpuBackend;
use gradus_nn::{Module, Optimizer, Sgd, SgdConfig};
use gradus_onnx::{OnnxModel, OnnxPort, OnnxValue};
use gradus_tensor::{Device, ErrorKind, Result, Tensor};
use serde_json::Value;

fn device() -> Result<Device> {
    Ok(Device::from_backend(Arc::new(CpuBackend::new()?)))
}

fn cases() -> Value {
    serde_json::from_str(include_str!("reference/models.json")).unwrap()
}

fn bytes(hex: &Value) -> Vec<u8> {
    let digits = hex.as_str().unwrap().as_bytes();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

fn value(model: &OnnxModel, folder: &Path, hex: &Value, port: &OnnxPort) -> OnnxValue {
    let path = folder.join("value.pb");
    std::fs::write(&path, bytes(hex)).unwrap();
    model.read_value(&path, port).unwrap()
}

fn floats(value: &OnnxValue, device: &Device) -> (Vec<usize>, Vec<f64>) {
    let OnnxValue::Tensor(array) = value else { panic!("{value:?}") };
    (array.shape().to_vec(), array.to_f64(device).unwrap())
}

/// The values are those of the unoptimised model up to rounding, and the same bits each time: while runs are traced, and
/// when they are replayed.
#[test]
fn optimised_runs_give_the_same() -> Result<()> {
    let (device, folder) = (device()?, tempfile::tempdir().unwrap());
    for (name, case) in cases().as_object().unwrap() {
        let mut model = OnnxModel::from_bytes(&bytes(&case["model"]), &device)?;
        let ports = model.inputs().to_vec();
        let given = case["inputs"].as_array().unwrap().iter().zip(&ports);
        let inputs: Vec<(&str, OnnxValue)> =
            given.map(|(hex, port)| (port.name.as_str(), value(&model, folder.path(), hex, port))).collect();
        let run = |model: &OnnxModel| -> Result<Vec<_>> {
            Ok(model.run_values(&inputs)?.iter().map(|(_, value)| floats(value, &device)).collect())
        };
        let first = run(&model)?;
        for _ in 0..6 {
            assert_eq!(run(&model)?, first, "{name}");
        }
        // The first run is an ordinary one, and two are traced. Branches read what operations compute, and sizes that are
        // inputs are found out to matter in a trace.
        let replays = match &**name {
            "if_negative" | "if_positive" | "loop_with_a_branch" => 0,
            "sizes_as_inputs" => 3,
            _ => 4,
        };
        assert_eq!(model.replays(), replays, "{name}");
        let times = model.profile(&inputs)?;
        model.optimise(false);
        for ((shape, have), (plain_shape, want)) in first.iter().zip(&run(&model)?) {
            assert_eq!(shape, plain_shape, "{name}");
            for (have, want) in have.iter().zip(want) {
                assert!((have - want).abs() <= 1e-5 * want.abs().max(1.0), "{name}: {have} instead of {want}");
            }
        }
        let nodes = |times: &[gradus_onnx::OnnxTime]| times.len();
        let in_panels = times.iter().filter(|t| t.operator == "MatMul+panels").count();
        assert_eq!(
            in_panels,
            match &**name {
                "products_with_a_larger_matrix" => 5,
                "product_with_a_column_too_many" => 1,
                _ => 0,
            },
            "{name}"
        );
        let fewer = match &**name {
            "convolution_and_norm" | "transposed_convolution_and_norm" | "product_and_bias" => 1,
            "convolution_and_affine_maps" => 5,
            "shapes_and_constants" => 2,
            _ => 0,
        };
        let plain = model.profile(&inputs)?;
        assert!(nodes(&times) + fewer <= nodes(&plain), "{name}: {times:?} of {plain:?}");
    }
    Ok(())
}

#[test]
fn what_sizes_ask_for_is_bounded() -> Result<()> {
    let device = device()?;
    let mut model = OnnxModel::from_bytes(&bytes(&cases()["sizes_as_inputs"]["model"]), &device)?;
    let run = |model: &OnnxModel, sizes: [i64; 2]| {
        let shape = Tensor::from_vec(sizes, [2], &device)?;
        Ok(model.run(&[("shape", shape)])?.remove(0).1.numel())
    };
    let refused = |result: Result<usize>, node: &str| {
        let e = result.unwrap_err();
        assert!(matches!(e.kind(), ErrorKind::OutOfMemory { .. }), "{e}");
        assert!(e.to_string().contains(node), "{e}");
    };
    // 16 GiB.
    refused(run(&model, [1 << 16, 1 << 16]), "(ConstantOfShape)");
    for optimised in [true, false] {
        model.optimise(optimised);
        model.max_bytes(4 << 20);
        assert_eq!(run(&model, [1000, 300])?, 300_000);
        // A tensor of more than 4 MiB, and two of 3 MiB.
        refused(run(&model, [1024, 1025]), "(ConstantOfShape)");
        refused(run(&model, [1024, 768]), "(Cos)");
        assert_eq!(run(&model, [1000, 300])?, 300_000);
    }
    Ok(())
}

#[test]
fn models_give_what_onnx_runtime_gives() -> Result<()> {
    let (device, folder) = (device()?, tempfile::tempdir().unwrap());
    let cases = cases();
    assert_eq!(cases.as_object().unwrap().len(), 46);
    for (name, case) in cases.as_object().unwrap() {
        let model = OnnxModel::from_bytes(&bytes(&case["model"]), &device).unwrap_or_else(|e| panic!("{name}: {e}"));
        let ports = model.inputs().to_vec();
        let given = case["inputs"].as_array().unwrap().iter().zip(&ports);
        let inputs: Vec<(&str, OnnxValue)> =
            given.map(|(hex, port)| (port.name.as_str(), value(&model, folder.path(), hex, port))).collect();
        let outputs = model.run_values(&inputs).unwrap_or_else(|e| panic!("{name}: {e}"));
        let wanted = case["outputs"].as_array().unwrap();
        assert_eq!(outputs.len(), wanted.len(), "{name}");
        for (((_, have), hex), port) in outputs.iter().zip(wanted).zip(model.outputs()) {
            let (shape, have) = floats(have, &device);
            let (wanted_shape, want) = floats(&value(&model, folder.path(), hex, port), &device);
            assert_eq!(shape, wanted_shape, "{name}");
            for (have, want) in have.iter().zip(&want) {
                assert!((have - want).abs() <= 2e-5 * want.abs().max(1.0), "{name}: {have} instead of {want}");
            }
        }
    }
    Ok(())
}

#[test]
fn an_imported_model_is_trained() -> Result<()> {
    let device = device()?;
    let case = &cases()["trained"];
    let mut model = OnnxModel::from_bytes(&bytes(&case["model"]), &device)?;
    assert_eq!(model.parameters().len(), 2);
    assert!(model.trainable("encoder.*").is_err());
    let leaves = model.trainable("layer.*")?;
    assert_eq!(leaves.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["layer.w", "layer.b"]);
    let folder = tempfile::tempdir().unwrap();
    let (shape, x) = floats(&value(&model, folder.path(), &case["inputs"][0], &model.inputs()[0].clone()), &device);
    let x = Tensor::from_vec(x.iter().map(|&v| v as f32).collect::<Vec<_>>(), shape, &device)?;
    let loss = |model: &OnnxModel| model.run(&[("x", x.clone())])?[0].1.square()?.sum_all();
    let before = loss(&model)?;
    let gradients = before.backward()?;
    for ((name, leaf), want) in leaves.iter().zip(case["gradients"].as_array().unwrap()) {
        let have = gradients.get(leaf.tensor()).unwrap().to_vec::<f32>()?;
        let want: Vec<f64> = want.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect();
        assert_eq!(have.len(), want.len());
        for (have, want) in have.iter().zip(&want) {
            assert!((f64::from(*have) - want).abs() < 1e-4 * want.abs().max(1.0), "{name}: {have} instead of {want}");
        }
    }
    let mut optimizer = Sgd::new(model.named_parameters(), SgdConfig { lr: 0.01, ..SgdConfig::default() })?;
    optimizer.step(&gradients)?;
    assert!(loss(&model)?.item()? < before.item()?);
    Ok(())
}

#[test]
fn a_wrong_call_is_an_error() -> Result<()> {
    let device = device()?;
    let model = OnnxModel::from_bytes(&bytes(&cases()["mlp"]["model"]), &device)?;
    let x = |shape: [usize; 2]| Tensor::zeros(shape, gradus_tensor::DType::F32, &device);
    let missing = model.run(&[]).unwrap_err().to_string();
    assert!(missing.contains("the input \"x\" is missing"), "{missing}");
    let unknown = model.run(&[("image", x([4, 3])?)]).unwrap_err().to_string();
    assert!(unknown.contains("no input \"image\"") && unknown.contains("its inputs are x"), "{unknown}");
    let shape = model.run(&[("x", x([4, 7])?)]).unwrap_err();
    assert_eq!(shape.kind(), &ErrorKind::ShapeMismatch);
    let dtype = model.run(&[("x", x([4, 3])?.to_dtype(gradus_tensor::DType::F64)?)]).unwrap_err();
    assert_eq!(dtype.kind(), &ErrorKind::DTypeMismatch);
    Ok(())
}

#[test]
fn the_report_counts_operators() -> Result<()> {
    let model = OnnxModel::from_bytes(&bytes(&cases()["loop_with_a_branch"]["model"]), &device()?)?;
    let count = |name: &str| model.inspect().operators.iter().find(|o| o.name == name).map(|o| o.count);
    assert_eq!((count("Loop"), count("If"), count("Identity"), count("Mul")), (Some(1), Some(1), Some(2), Some(1)));
    assert_eq!(model.inspect().unsupported().count(), 0);
    let table = model.inspect().to_string();
    assert!(table.contains("opset 17") && table.contains("x: float32 [2, 3, 4]"), "{table}");
    Ok(())
}

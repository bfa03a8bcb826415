//! Exports, and what is refused. `cargo xtask onnx` compares exports of whole networks with ONNX Runtime.

#![allow(clippy::unwrap_used)]

use std::sync::{Arc, OnceLock};

use gradus_cpu::CpuBackend;
use gradus_nn::{
    BatchNorm2d, Conv2d, Conv2dConfig, Dropout, Forward, GroupNorm, GroupNormConfig, Init, LayerNorm, Linear, Module,
    Relu, Sequential,
};
use gradus_onnx::{OnnxExportOptions, OnnxModel, export_onnx, export_onnx_with};
use gradus_tensor::ops::{Class, table};
use gradus_tensor::{DType, Device, ErrorKind, Generator, Result, Tensor, no_grad};

fn device() -> Device {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    DEVICE.get_or_init(|| Device::from_backend(Arc::new(CpuBackend::new().unwrap()))).clone()
}

fn made<M>(dtype: DType, make: impl FnOnce(&mut Init<'_>) -> Result<M>) -> M {
    make(&mut Init::new(dtype, &device(), &mut Generator::new(3))).unwrap()
}

fn values(shape: &[usize], dtype: DType) -> Tensor {
    Tensor::randn(shape, dtype, &device(), &mut Generator::new(5)).unwrap()
}

/// Exports a function of one tensor with a dynamic first axis, and returns what the file gives for another size.
fn exported(x: &Tensor, options: OnnxExportOptions, f: impl Fn(&Tensor) -> Result<Tensor>) -> Result<OnnxModel> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.onnx");
    export_onnx_with(&path, &Relu, &[("x", x)], &options.dynamic("n", &[("x", 0)]), |_, x| Ok(vec![f(&x[0])?]))?;
    OnnxModel::load(&path, &device())
}

fn refused(x: &Tensor, f: impl Fn(&Tensor) -> Result<Tensor>) -> String {
    let e = exported(x, OnnxExportOptions::new(), f).unwrap_err();
    assert_eq!(e.kind(), &ErrorKind::Unsupported, "{e}");
    e.to_string()
}

#[test]
fn every_elementwise_operation_of_the_table_leaves_and_computes_the_same() {
    let mut refused = vec![];
    for entry in table::TABLE {
        for dtype in [DType::F32, DType::F16] {
            let points = if entry.smooth.is_empty() { &[-1.5, -0.2, 0.3, 2.5][..] } else { entry.smooth };
            let all = Tensor::from_vec(points, [points.len()], &device()).unwrap().to_dtype(dtype).unwrap();
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("m.onnx");
            let other = all.flip(0).unwrap().copy().unwrap();
            let truth = |t: &Tensor| t.gt(0.0).unwrap();
            let is_bool = entry.class == Class::Bool;
            let condition = if is_bool || entry.condition { truth(&all) } else { all.clone() };
            let other = if is_bool { truth(&other) } else { other };
            let inputs = [("a", &condition), ("b", &other), ("c", &all)];
            let export = export_onnx_with(&path, &Relu, &inputs[..entry.tensors], &OnnxExportOptions::new(), |_, x| {
                (entry.call)(x)
            });
            match export {
                // The export itself has compared the file with the operation, within 1e-4 (2e-2 for f16).
                Ok(export) if dtype == DType::F32 => {
                    assert!(export.difference < 2e-6, "{}: {}", entry.op.name(), export.difference);
                }
                Ok(_) => {}
                Err(e) => {
                    assert_eq!(e.kind(), &ErrorKind::Unsupported, "{}: {e}", entry.op.name());
                    assert!(!e.to_string().contains("read back"), "{}: {e}", entry.op.name());
                    refused.push(entry.op.name());
                }
            }
        }
    }
    assert_eq!(refused, [""; 0]);
}

#[test]
fn composed_operations_are_one_node_where_the_opset_has_them() {
    let x = values(&[2, 8, 6, 6], DType::F32);
    let mut model = made(DType::F32, |i| {
        Ok(Sequential::new()
            .add(Conv2d::new(8, 8, [3, 3], Conv2dConfig { padding: [1, 1], ..Default::default() }, i)?)
            .add(BatchNorm2d::new(8, Default::default(), i)?)
            .add(GroupNorm::new(2, 8, GroupNormConfig::default(), i)?)
            .add(Dropout::new(0.5, i.generator)?)
            .add(LayerNorm::new([6, 6], Default::default(), i)?))
    });
    model.eval();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.onnx");
    let options = OnnxExportOptions::new().dynamic("n", &[("x", 0)]);
    let export = export_onnx(&path, &model, ("x", &x), &options).unwrap();
    assert_eq!((export.opset, export.nodes, export.difference), (21, 4, 0.0));
    let read = OnnxModel::load(&path, &device()).unwrap();
    let names: Vec<String> = read.parameters().into_iter().map(|(name, _)| name).collect();
    for (name, _) in model.named_parameters() {
        assert!(names.contains(&name), "{name} is not among {names:?}");
    }
    // With a lower opset, the norms that it lacks are made of other operators.
    let export = export_onnx(&path, &model, ("x", &x), &options.replace(true).opset(13)).unwrap();
    assert!(export.opset == 13 && export.nodes > 10 && export.difference < 1e-6, "{export:?}");
}

#[test]
fn sizes_that_depend_on_a_dynamic_axis_are_computed() {
    let x = values(&[4, 6], DType::F32);
    let f = |x: &Tensor| {
        let n = x.shape()[0];
        let steps = Tensor::arange(0, n as i64, 1, DType::F32, x.device())?.unsqueeze(1)?;
        let tail = x.add(&steps)?.narrow(0, n - 3, 3)?;
        let flat = Tensor::cat(&[x, &tail], 0)?.reshape([(n + 3) * 2, 3])?;
        flat.sub(&flat.mean(&[0], true)?)?.sum(&[1], false)?.expand([2, (n + 3) * 2])
    };
    let model = exported(&x, OnnxExportOptions::new(), f).unwrap();
    for n in [3, 4, 7, 20] {
        let x = values(&[n, 6], DType::F32);
        let y = model.run(&[("x", x.clone())]).unwrap().remove(0).1;
        assert_eq!(y.to_vec::<f32>().unwrap(), f(&x).unwrap().to_vec::<f32>().unwrap());
    }
    assert_eq!(model.outputs()[0].shape.as_deref(), Some(&[Some(2), None][..]));
}

#[test]
fn half_precision_and_f64_keep_their_dtype() {
    for dtype in [DType::F16, DType::BF16, DType::F64] {
        let model = made(dtype, |i| {
            Ok(Sequential::new().add(Linear::new(4, 3, i)?).add(LayerNorm::new([3], Default::default(), i)?))
        });
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.onnx");
        let x = values(&[2, 4], dtype);
        let export = export_onnx(&path, &model, ("x", &x), &OnnxExportOptions::new()).unwrap();
        // An attribute of ONNX has no more than the precision of f32, so in f64 the norm is made of other operators.
        let least = if dtype == DType::F64 { 1e-15 } else { 0.0 };
        assert!(export.difference <= least && (export.nodes == 2) == (dtype != DType::F64), "{export:?}");
        let read = OnnxModel::load(&path, &device()).unwrap();
        assert_eq!(read.run(&[("x", x.clone())]).unwrap().remove(0).1.dtype(), dtype);
    }
}

#[test]
fn large_models_have_their_tensors_in_a_file_beside_them() {
    let model = made(DType::F32, |i| Linear::new(64, 32, i));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.onnx");
    let x = values(&[2, 64], DType::F32);
    let export = export_onnx(&path, &model, ("x", &x), &OnnxExportOptions::new().most_bytes(4096)).unwrap();
    let beside = export.external_data.unwrap();
    assert_eq!(std::fs::metadata(&beside).unwrap().len(), 64 * 32 * 4);
    let read = OnnxModel::load(&path, &device()).unwrap();
    let y = read.run(&[("x", x.clone())]).unwrap().remove(0).1;
    assert_eq!(y.to_vec::<f32>().unwrap(), no_grad(|| model.forward(&x)).unwrap().to_vec::<f32>().unwrap());
    // Without the option, everything is in the file; and a file is replaced on request only.
    assert!(export_onnx(&path, &model, ("x", &x), &OnnxExportOptions::new()).is_err());
    let export = export_onnx(&path, &model, ("x", &x), &OnnxExportOptions::new().replace(true)).unwrap();
    assert_eq!(export.external_data, None);
}

#[test]
fn what_onnx_cannot_express_is_refused_with_the_line() {
    let x = values(&[4, 6], DType::F32);
    let m = refused(&x, |x| x.dropout(0.5, &mut Generator::new(0)));
    assert!(m.contains("random numbers") && m.contains("tests/export.rs") && m.contains("model.eval()"), "{m}");
    let m = refused(&x, |x| {
        let y = x.copy()?;
        y.add_(1.0)?;
        Ok(y)
    });
    assert!(m.contains("writes in place") && m.contains("tests/export.rs"), "{m}");
    let m = refused(&x, |x| x.cummax(1).map(|(y, _)| y));
    assert!(m.contains("cummax") && m.contains("tests/export.rs"), "{m}");
    // The host's numbers differ for each size.
    let m = refused(&x, |x| {
        let steps: Vec<f32> = (0..x.shape()[0]).map(|i| (i * i) as f32).collect();
        x.add(&Tensor::from_vec(steps, [x.shape()[0], 1], x.device())?)
    });
    assert!(m.contains("the host makes") && m.contains("arange"), "{m}");
    // A number that the host computes from a size.
    let m = refused(&x, |x| x.mul(1.0 / x.shape()[0] as f64));
    assert!(m.contains("depends on a dynamic axis"), "{m}");
    // Other operations at another size.
    let m = refused(&x, |x| if x.shape()[0] > 5 { x.exp() } else { x.tanh() });
    assert!(m.contains("other operations") && m.contains("tanh") && m.contains("exp"), "{m}");
    let e = exported(&x, OnnxExportOptions::new(), |x| x.mul(x.sum_all()?.item()?)).unwrap_err().to_string();
    assert!(e.contains("a graph cannot depend on what the host reads"), "{e}");
}

#[test]
fn options_that_do_not_fit_are_refused() {
    let (model, x) = (made(DType::F32, |i| Linear::new(6, 3, i)), values(&[4, 6], DType::F32));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.onnx");
    let fails = |options: OnnxExportOptions, text: &str| {
        let e = export_onnx(&path, &model, ("x", &x), &options).unwrap_err().to_string();
        assert!(e.contains(text), "{e}");
        assert!(!path.exists());
    };
    let options = OnnxExportOptions::new;
    fails(options().dynamic("n", &[("y", 0)]), "of an input \"y\"");
    fails(options().dynamic("n", &[("x", 2)]), "has no axis 2");
    fails(options().dynamic("n", &[("x", 0), ("x", 1)]), "all of its axes have one size");
    fails(options().dynamic("n", &[("x", 0)]).dynamic("m", &[("x", 0)]), "has two names");
    fails(options().dynamic_to("n", &[("x", 0)], 4), "they differ");
    fails(options().dynamic("features", &[("x", 1)]), "linear");
    fails(options().outputs(&["a", "b"]), "2 names for 1 outputs");
    fails(options().outputs(&["x"]), "\"x\"");
    fails(options().opset(12), "opset 12; it is 13 to 28");
}

//! Exports, and what is refused. `cargo xtask onnx` compares exports of whole networks with ONNX Runtime.

#![allow(clippy::unwrap_used)]

use std::sync::{Arc, OnceLock};

use gradus_cpu::CpuBackend;
use gradus_nn::{
    BatchNorm2d, Conv2d, Conv2dConfig, Dropout, Forward, GroupNorm, GroupNormConfig, Init, LayerNorm, Linear, Lstm,
    Module, RecurrentConfig, Relu, Sequential,
};
use gradus_onnx::{OnnxExportOptions, OnnxModel, export_onnx, export_onnx_with};
use gradus_tensor::ops::{AttentionOptions, Causal, Class, table};
use gradus_tensor::{DType, Device, ErrorKind, Generator, PadMode, Result, Tensor, no_grad};

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
        for (dtype, opset) in
            [(DType::F32, 23), (DType::F32, 13), (DType::F16, 13), (DType::BF16, 23), (DType::F64, 13)]
        {
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
            let options = OnnxExportOptions::new().opset(opset);
            let export = export_onnx_with(&path, &Relu, &inputs[..entry.tensors], &options, |_, x| (entry.call)(x));
            match export {
                // The export itself has compared the file with the operation, within 2e-2 for f16.
                Ok(export) => {
                    assert!(export.opset <= opset, "{}: opset {}", entry.op.name(), export.opset);
                    let most = [(DType::F32, 2e-6), (DType::F64, 1e-14)].iter().find(|(of, _)| *of == dtype);
                    assert!(most.is_none_or(|m| export.difference < m.1), "{}: {}", entry.op.name(), export.difference);
                }
                Err(e) => {
                    assert_eq!(e.kind(), &ErrorKind::Unsupported, "{}: {e}", entry.op.name());
                    assert!(!e.to_string().contains("read back"), "{}: {e}", entry.op.name());
                    refused.push((entry.op.name(), dtype));
                }
            }
        }
    }
    assert_eq!(refused, [("erfc", DType::F64)]);
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
fn products_of_small_integers_leave_if_onnx_has_them() {
    let x = Tensor::from_vec(vec![3i8, -128, 127, 5, 0, -1, 2, 100], [4, 2], &device()).unwrap();
    let w = Tensor::from_vec(vec![255u8, 1, 200, 0, 7, 9], [2, 3], &device()).unwrap();
    let model = exported(&x, OnnxExportOptions::new(), |x| x.matmul_i32(&w)).unwrap();
    let more = Tensor::cat(&[&x, &x], 0).unwrap();
    let y = model.run(&[("x", more.clone())]).unwrap().remove(0).1;
    let wide = |t: &Tensor| t.to_dtype(DType::I32).unwrap();
    assert_eq!(y.to_vec::<i32>().unwrap(), wide(&more).matmul(&wide(&w)).unwrap().to_vec::<i32>().unwrap());
    let wide = x.to_dtype(DType::I16).unwrap();
    assert!(refused(&wide, |x| x.matmul_i32(&w)).contains("none of i16"));
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
fn a_file_beside_a_model_that_is_replaced_gets_another_name_and_the_old_one_goes() {
    let model = made(DType::F32, |i| Linear::new(64, 32, i));
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let x = values(&[2, 64], DType::F32);
    let options = OnnxExportOptions::new().most_bytes(4096);
    // A file that is in the way is noticed before the model is written.
    std::fs::write(at("m.onnx.data"), "mine").unwrap();
    let e = export_onnx(at("m.onnx"), &model, ("x", &x), &options).unwrap_err().to_string();
    assert!(e.contains("m.onnx.data") && !at("m.onnx").exists(), "{e}");
    std::fs::remove_file(at("m.onnx.data")).unwrap();
    // A file of the same name that the model does not read stays.
    std::fs::write(at("m.onnx.1.data"), "mine").unwrap();
    let options = options.replace(true);
    export_onnx(at("m.onnx"), &model, ("x", &x), &options.clone().most_bytes(1 << 20)).unwrap();
    assert!(at("m.onnx.1.data").exists());
    for name in ["m.onnx.data", "m.onnx.1.data", "m.onnx.data"] {
        let export = export_onnx(at("m.onnx"), &model, ("x", &x), &options).unwrap();
        assert_eq!(export.external_data, Some(at(name)));
        let read = OnnxModel::load(at("m.onnx"), &device()).unwrap();
        assert_eq!(read.run(&[("x", x.clone())]).unwrap()[0].1.shape(), [2, 32]);
    }
    assert!(at("m.onnx.data").exists() && !at("m.onnx.1.data").exists());
    export_onnx(at("m.onnx"), &model, ("x", &x), &options.most_bytes(1 << 20)).unwrap();
    assert!(!at("m.onnx.data").exists());
}

#[test]
fn sizes_that_only_look_like_a_part_of_the_axis_are_refused() {
    for n in [4, 5, 8] {
        let x = values(&[n, 6], DType::F32);
        let m = refused(&x, |x| x.narrow(0, 0, x.shape()[0].div_ceil(2)));
        assert!(m.contains("no known function"), "{m}");
        for f in [(|x, n| x.narrow(0, 0, n - n % 2)) as fn(&Tensor, usize) -> Result<Tensor>, |x, n| {
            x.pad(&[(0, (n.next_multiple_of(3) - n) as isize), (0, 0)], PadMode::Constant(0.0.into()))
        }] {
            refused(&x, |x| f(x, x.shape()[0]));
        }
    }
    refused(&values(&[4, 6], DType::F32), |x| x.narrow(0, 0, x.shape()[0].min(5)));
    // With 5 and 11 this is n - 1. The check with 4 shows that it is something else.
    let m = refused(&values(&[5, 6], DType::F32), |x| x.narrow(0, 0, x.shape()[0] / 2 * 2));
    assert!(m.contains("differs from the module's") && m.contains("n = 4"), "{m}");
    // A module that accepts only even sizes is traced with these.
    let x = values(&[4, 6], DType::F32);
    let halves = |x: &Tensor| x.reshape([x.shape()[0] / 2, 2, 6])?.sum(&[1], false);
    let model = exported(&x, OnnxExportOptions::new(), halves).unwrap();
    assert_eq!(model.run(&[("x", values(&[14, 6], DType::F32))]).unwrap()[0].1.shape(), [7, 6]);
}

#[test]
fn no_operator_is_newer_than_the_opset_that_is_allowed() {
    let opset = |x: &Tensor, most: i64, f: &dyn Fn(&Tensor) -> Result<Tensor>| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.onnx");
        let options = OnnxExportOptions::new().opset(most).dynamic("n", &[("x", 0)]);
        export_onnx_with(&path, &Relu, &[("x", x)], &options, |_, x| Ok(vec![f(&x[0])?])).map(|e| e.opset)
    };
    // Causal attention over a dynamic length, and sizes in the shape of a result.
    let x = values(&[4, 6], DType::F32);
    let attention = |x: &Tensor| {
        let q = x.reshape([1, x.shape()[0], 2, 3])?.permute(&[0, 2, 1, 3])?;
        q.scaled_dot_product_attention(&q, &q, AttentionOptions::new().causal(Causal::BottomRight))
    };
    assert_eq!(opset(&x, 13, &attention).unwrap(), 13);
    let lstm = made(DType::F32, |i| Lstm::new(6, 4, RecurrentConfig::default(), i));
    let steps = values(&[5, 2, 6], DType::F32);
    assert_eq!(opset(&steps, 13, &|x| Ok(lstm.run(x, None, None)?.0)).unwrap(), 13);
    // What has no older form is an error.
    let index = Tensor::zeros([4, 6], DType::I64, &device()).unwrap();
    let fixed = |x: &Tensor| x.narrow(0, 0, 4)?.scatter_add(0, &index, &index.to_dtype(DType::F32)?);
    let e = opset(&x, 15, &fixed).unwrap_err().to_string();
    assert!(e.contains("ScatterElements of f32 needs opset 16") && e.contains("allow a higher opset"), "{e}");
    assert_eq!(opset(&x, 16, &fixed).unwrap(), 16);
    // Operators that take a dtype only later are computed in a wider one.
    for (dtype, least) in [(DType::F32, 13), (DType::F16, 13), (DType::BF16, 22)] {
        let conv = made(dtype, |i| Conv2d::new(2, 3, [3, 3], Conv2dConfig::default(), i));
        let picture = values(&[2, 2, 5, 5], dtype);
        assert_eq!(opset(&picture, 23, &|x| conv.forward(x)).unwrap(), least);
        assert_eq!(opset(&picture, 13, &|x| conv.forward(x)).unwrap(), 13);
    }
    let half = x.to_dtype(DType::F16).unwrap();
    assert_eq!(opset(&half, 23, &|x| x.cumsum(1)).unwrap(), 14);
    assert_eq!(opset(&half, 13, &|x| x.cumsum(1)).unwrap(), 13);
    let bytes = x.to_dtype(DType::I8).unwrap();
    assert_eq!(opset(&bytes, 13, &|x| x.add(x)).unwrap(), 13);
    // A constant that a mean makes superfluous is used again by the axes of that mean, which are an input from 18 on.
    assert_eq!(opset(&x, 23, &|x| x.gelu()?.mean(&[1], true)).unwrap(), 20);
}

#[test]
fn remainders_quotients_and_the_tail_of_erfc_are_those_of_the_module() {
    let x = Tensor::from_vec([1.0f32, -1.0, 7.5, -7.5, 0.3, 3.0, 4.0, 6.0, 9.0, -2.0], [10, 1], &device()).unwrap();
    let y = Tensor::from_vec([0.1f32, -0.1, 2.5, -0.7], [4], &device()).unwrap();
    let model = exported(&x, OnnxExportOptions::new(), |x| {
        Tensor::cat(&[&x.remainder(&y)?, &x.floor_div(&y)?, &x.floor_div(0.0)?, &x.erfc()?], 1)
    })
    .unwrap();
    let found = model.run(&[("x", x.clone())]).unwrap().remove(0).1;
    let bits = |t: Tensor| t.to_vec::<f32>().unwrap();
    assert_eq!(bits(found.narrow(1, 0, 4).unwrap()), bits(x.remainder(&y).unwrap()));
    assert_eq!(bits(found.narrow(1, 4, 4).unwrap()), bits(x.floor_div(&y).unwrap()));
    assert_eq!(bits(found.narrow(1, 4, 1).unwrap())[0], 9.0);
    assert_eq!(bits(found.narrow(1, 8, 1).unwrap()), bits(x.floor_div(0.0).unwrap()));
    let (erfc, wanted) = (bits(found.narrow(1, 9, 1).unwrap()), bits(x.erfc().unwrap()));
    assert!(erfc.iter().zip(&wanted).all(|(a, b)| (a - b).abs() <= 1e-5 * b), "{erfc:?} {wanted:?}");
}

#[test]
fn a_query_that_sees_no_key_gives_zeros() {
    for (dtype, most) in [(DType::F32, 22), (DType::F64, 23), (DType::F32, 23)] {
        let x = values(&[1, 2, 3, 4], dtype);
        let mask = Tensor::from_vec([1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0], [1, 1, 3, 3], &device()).unwrap();
        let mask = mask.gt(0.5).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.onnx");
        let inputs = [("x", &x), ("mask", &mask)];
        let options = OnnxExportOptions::new().opset(most);
        export_onnx_with(&path, &Relu, &inputs, &options, |_, x| {
            let few = x[0].narrow(2, 0, 2)?;
            let causal = AttentionOptions::new().causal(Causal::BottomRight);
            let masked = AttentionOptions::new().mask(&x[1]);
            Ok(vec![
                x[0].scaled_dot_product_attention(&x[0], &x[0], masked)?,
                x[0].scaled_dot_product_attention(&few, &few, causal)?,
            ])
        })
        .unwrap();
        let found = OnnxModel::load(&path, &device()).unwrap().run(&inputs.map(|(n, t)| (n, t.clone()))).unwrap();
        for (at, (_, y)) in [1, 0].into_iter().zip(found) {
            let blind = y.narrow(2, at, 1).unwrap().to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
            assert_eq!(blind, [0.0; 8], "{dtype} {most}");
        }
    }
}

#[test]
fn an_axis_without_elements_stays_so_in_another_shape() {
    let x = values(&[4, 6], DType::F32);
    let f = |x: &Tensor| x.narrow(1, 0, 0)?.reshape([0, x.shape()[0]]);
    let model = exported(&x, OnnxExportOptions::new(), f).unwrap();
    assert_eq!(model.run(&[("x", values(&[7, 6], DType::F32))]).unwrap()[0].1.shape(), [0, 7]);
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
    fails(options().dynamic("n", &[("x", 0)]).dynamic("n", &[("x", 1)]), "called \"n\"");
    fails(options().dynamic("", &[("x", 0)]), "called \"\"");
    fails(options().dynamic("features", &[("x", 1)]), "linear");
    fails(options().outputs(&["a", "b"]), "2 names for 1 outputs");
    fails(options().outputs(&["x"]), "\"x\"");
    fails(options().opset(12), "opset 12; it is 13 to 28");
}

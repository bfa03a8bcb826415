//! Exports each elementwise operation in each dtype of floats, with the lowest and the highest opset: `map.NAME.DTYPE.OPSET`.
//! What they compute is saved where NumPy has the dtype.

use gradus_nn::{Relu, StateDict};
use gradus_onnx::{OnnxExportOptions, export_onnx_with};
use gradus_tensor::ops::{Class, table};
use gradus_tensor::{DType, ErrorKind, Result, Tensor, no_grad};

use super::Zoo;

pub(super) fn elementwise(zoo: &mut Zoo) -> Result<()> {
    let mut refused = Vec::new();
    for entry in table::TABLE {
        for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
            let points = if entry.smooth.is_empty() { &[-1.5, -0.2, 0.3, 2.5][..] } else { entry.smooth };
            let all = Tensor::from_vec(points, [points.len()], &zoo.device)?.to_dtype(dtype)?;
            let other = all.flip(0)?.copy()?;
            let (truth, is_bool) = (|t: &Tensor| t.gt(0.0), entry.class == Class::Bool);
            let first = if is_bool || entry.condition { truth(&all)? } else { all.clone() };
            let second = if is_bool { truth(&other)? } else { other };
            let inputs = &[("a", &first), ("b", &second), ("c", &all)][..entry.tensors];
            for opset in [13, 28] {
                let name = format!("map.{}.{dtype}.{opset}", entry.op.name());
                let options = OnnxExportOptions::new().opset(opset).replace(true);
                let path = zoo.folder.join(format!("{name}.onnx"));
                match export_onnx_with(&path, &Relu, inputs, &options, |_, x| (entry.call)(x)) {
                    Ok(_) if dtype == DType::BF16 => {}
                    Ok(_) => {
                        let given: Vec<Tensor> = inputs.iter().map(|(_, x)| (*x).clone()).collect();
                        let mut saved = StateDict::new();
                        for (name, tensor) in inputs {
                            saved.insert(format!("in.{name}"), (*tensor).clone());
                        }
                        for (i, result) in no_grad(|| (entry.call)(&given))?.into_iter().enumerate() {
                            saved.insert(format!("out.{i}"), result);
                        }
                        saved.save_safetensors(zoo.folder.join(format!("{name}.0.safetensors")))?;
                    }
                    Err(e) if e.kind() == &ErrorKind::Unsupported => refused.push(name),
                    Err(e) => return Err(e),
                }
            }
        }
    }
    println!("elementwise operations that are refused: {}", refused.join(", "));
    Ok(())
}

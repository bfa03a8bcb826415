//! Exports the networks of `gradus-models` in small sizes, with what they compute, for `check.py` to compare with ONNX
//! Runtime. `onnx_exports FOLDER` writes `NAME.onnx`, and `NAME.I.safetensors` with inputs (`in.NAME`) and outputs
//! (`out.NAME`) of several sizes.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)]

mod table;
mod zoo;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use gradus_cpu::CpuBackend;
use gradus_nn::{Init, Module, StateDict, update_bn};
use gradus_onnx::{OnnxExportOptions, export_onnx_with};
use gradus_tensor::{DType, Device, Error, Generator, Result, Tensor, no_grad};

/// An input: its name, its sizes, and what it holds.
struct Input {
    name: &'static str,
    shape: Vec<usize>,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    /// Normally distributed floats.
    Float,
    /// Integers below a number.
    Tokens(i64),
    /// Ones and, in the second half of each row, a zero at the end.
    Mask,
}

struct Zoo {
    folder: PathBuf,
    device: Device,
    generator: Generator,
    failed: usize,
}

impl Zoo {
    fn tensor(&mut self, input: &Input) -> Result<Tensor> {
        let (shape, device) = (&input.shape[..], &self.device);
        match input.kind {
            Kind::Float => Tensor::randn(shape, DType::F32, device, &mut self.generator),
            Kind::Tokens(below) => Tensor::randint(0, below, shape, DType::I64, device, &mut self.generator),
            Kind::Mask => {
                let mask = Tensor::ones(shape, DType::I64, device)?;
                let last = Tensor::arange(0, shape[1] as i64, 1, DType::I64, device)?.lt(shape[1] as i64 - 1)?;
                let half = Tensor::arange(0, shape[0] as i64, 1, DType::I64, device)?.lt(shape[0] as i64 / 2 + 1)?;
                mask.mul(&last.logical_or(&half.unsqueeze(1)?)?.to_dtype(DType::I64)?)
            }
        }
    }

    /// Exports a model with the first of the `cases` as the example, and saves what it computes for all of them.
    fn export<M: Module>(
        &mut self,
        name: &str,
        mut model: M,
        cases: &[Vec<Input>],
        options: OnnxExportOptions,
        f: impl Fn(&M, &[Tensor]) -> Result<Vec<Tensor>>,
    ) {
        if let Err(e) = self.try_export(name, &mut model, cases, options, f) {
            println!("{name}: {e}");
            self.failed += 1;
        }
    }

    fn try_export<M: Module>(
        &mut self,
        name: &str,
        model: &mut M,
        cases: &[Vec<Input>],
        options: OnnxExportOptions,
        f: impl Fn(&M, &[Tensor]) -> Result<Vec<Tensor>>,
    ) -> Result<()> {
        let mut given = Vec::new();
        for case in cases {
            given.push(case.iter().map(|input| self.tensor(input)).collect::<Result<Vec<_>>>()?);
        }
        // Running statistics as after training.
        if !model.named_buffers().is_empty() {
            let batch = |_| cases[1].iter().map(|input| self.tensor(input)).collect::<Result<Vec<_>>>();
            update_bn(model, (0..8).map(batch), |model, inputs| f(model, inputs).map(|_| ()))?;
            // With the whole means, the layers of a new network subtract most of each value, and rounding grows with the
            // depth, to 1e-5 in 50 layers: in PyTorch as well, beside f64.
            for (_, mean) in model.named_buffers().iter().filter(|(name, _)| name.ends_with("running_mean")) {
                mean.set(&mean.tensor().mul(0.5)?)?;
            }
        }
        model.eval();
        let example: Vec<(&str, &Tensor)> = cases[0].iter().map(|input| input.name).zip(&given[0]).collect();
        let path = self.folder.join(format!("{name}.onnx"));
        let found = export_onnx_with(path, model, &example, &options.replace(true), &f)?;
        println!(
            "{name}: opset {}, {} nodes, {} bytes, difference {:.1e} as read back",
            found.opset, found.nodes, found.bytes, found.difference
        );
        for (i, (case, inputs)) in cases.iter().zip(&given).enumerate() {
            let mut saved = StateDict::new();
            for (input, tensor) in case.iter().zip(inputs) {
                saved.insert(format!("in.{}", input.name), tensor.clone());
            }
            for (j, result) in no_grad(|| f(model, inputs))?.into_iter().enumerate() {
                saved.insert(format!("out.{j}"), result);
            }
            saved.save_safetensors(self.folder.join(format!("{name}.{i}.safetensors")))?;
        }
        Ok(())
    }

    fn made<M>(&mut self, make: impl FnOnce(&mut Init<'_>) -> Result<M>) -> Result<M> {
        make(&mut Init::new(DType::F32, &self.device, &mut self.generator))
    }
}

fn main() -> Result<()> {
    let folder = std::env::args().nth(1).ok_or_else(|| Error::argument("onnx_exports", "give a folder"))?;
    let folder = Path::new(&folder).to_path_buf();
    std::fs::create_dir_all(&folder).map_err(|e| Error::io("onnx_exports", folder.display(), e))?;
    let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    let mut zoo = Zoo { folder, device, generator: Generator::new(0), failed: 0 };
    zoo::images(&mut zoo)?;
    zoo::texts(&mut zoo)?;
    zoo::others(&mut zoo)?;
    table::elementwise(&mut zoo)?;
    match zoo.failed {
        0 => Ok(()),
        n => Err(Error::argument("onnx_exports", format!("{n} models were not exported"))),
    }
}

//! Measures models for `beside_onnxruntime.py`: obeys one command a line, and answers with one line. `load MODEL
//! FOLDER` reads a model, and its inputs from `FOLDER/input_*.pb`; `run N` runs it N times; both print seconds.
//! `operators` prints the time of each operator, a line each, and an empty line.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)]

use std::io::BufRead;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use gradus_cpu::CpuBackend;
use gradus_onnx::{OnnxModel, OnnxValue, by_operator};
use gradus_tensor::{Device, Error, Result, no_grad};

type Loaded = (OnnxModel, Vec<(String, OnnxValue)>);

fn main() -> Result<()> {
    let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    println!("ready");
    let mut loaded: Option<Loaded> = None;
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|e| Error::io("onnx_times", "standard input", e))?;
        match line.split('\t').collect::<Vec<_>>()[..] {
            ["load", model, data] => {
                let start = Instant::now();
                let model = OnnxModel::load(model, &device)?;
                println!("{:e}", start.elapsed().as_secs_f64());
                let inputs = inputs(&model, Path::new(data))?;
                loaded = Some((model, inputs));
            }
            ["run", times] => {
                let (model, inputs) = loaded.as_ref().ok_or_else(|| wrong(&line))?;
                let inputs: Vec<(&str, OnnxValue)> = inputs.iter().map(|(n, v)| (n.as_str(), v.clone())).collect();
                let times: usize = times.parse().map_err(|_| wrong(&line))?;
                let start = Instant::now();
                for _ in 0..times {
                    no_grad(|| model.run_values(&inputs))?;
                }
                println!("{:e}", start.elapsed().as_secs_f64());
            }
            ["operators"] => {
                let (model, inputs) = loaded.as_ref().ok_or_else(|| wrong(&line))?;
                let inputs: Vec<(&str, OnnxValue)> = inputs.iter().map(|(n, v)| (n.as_str(), v.clone())).collect();
                for (operator, time, count) in by_operator(&no_grad(|| model.profile(&inputs))?) {
                    println!("{:9.3} ms {count:5} {operator}", 1e3 * time.as_secs_f64());
                }
                println!();
            }
            _ => return Err(wrong(&line)),
        }
    }
    Ok(())
}

fn wrong(line: &str) -> Error {
    Error::argument("onnx_times", format!("not a command here: {line}"))
}

fn inputs(model: &OnnxModel, data: &Path) -> Result<Vec<(String, OnnxValue)>> {
    let mut inputs = Vec::new();
    for (i, port) in model.inputs().iter().enumerate() {
        let path = data.join(format!("input_{i}.pb"));
        if path.exists() {
            inputs.push((port.name.clone(), model.read_value(path, port)?));
        }
    }
    Ok(inputs)
}

//! `gradus onnx bench`: how long a model takes to load and to run, and how long each of its operators does.

use std::time::{Duration, Instant};

use gradus::data::npy;
use gradus::onnx::{OnnxModel, OnnxPort, OnnxValue, by_operator};
use gradus::{DType, Device, Error, Generator, Result, Tensor, no_grad};

use crate::args::OnnxBenchArgs;
use crate::output::say;

/// Reads the arrays of `--input NAME=FILE`, with their names.
pub(super) fn arrays<'a>(texts: &'a [String], device: &Device) -> Result<Vec<(&'a str, Tensor)>> {
    let array = |text: &'a String| match text.split_once('=') {
        Some((name, file)) => Ok((name, npy::load(file, device)?)),
        None => {
            let e = Error::argument("onnx", format!("--input {text} has no `=`"));
            Err(e.help("give the input's name and its file, as in --input x=x.npy"))
        }
    };
    texts.iter().map(array).collect()
}

/// How many operators are listed.
const LISTED: usize = 25;

/// Runs the command.
pub(crate) fn run(args: &OnnxBenchArgs) -> Result<()> {
    let device = super::open(&args.common.device, args.common.threads)?;
    let start = Instant::now();
    let model = OnnxModel::load(&args.file, &device)?;
    device.synchronize()?;
    let load = start.elapsed();
    let inputs = inputs(&model, args, &device)?;
    let inputs: Vec<(&str, OnnxValue)> = inputs.iter().map(|(name, t)| (*name, t.clone().into())).collect();
    let once = || -> Result<Duration> {
        let start = Instant::now();
        no_grad(|| model.run_values(&inputs))?;
        device.synchronize()?;
        Ok(start.elapsed())
    };
    let first = once()?;
    // Memory is allocated, and what repeats is planned, in the first few runs.
    for _ in 0..2 {
        once()?;
    }
    let mut runs: Vec<Duration> = (0..args.runs).map(|_| once()).collect::<Result<_>>()?;
    runs.sort();
    let (least, median) = (runs.first().copied().unwrap_or_default(), runs[runs.len() / 2]);
    let table = by_operator(&no_grad(|| model.profile(&inputs))?);
    let ms = |t: Duration| 1e3 * t.as_secs_f64();
    for (name, value) in &inputs {
        if let OnnxValue::Tensor(array) = value {
            say(&format!("{name}: {} {:?}", array.elem().name(), array.shape()))?;
        }
    }
    say(&format!("load {:.3} ms, first run {:.3} ms", ms(load), ms(first)))?;
    say(&format!("{} runs: median {:.3} ms, fastest {:.3} ms", runs.len(), ms(median), ms(least)))?;
    let total: Duration = table.iter().map(|row| row.1).sum();
    say(&format!("by operator, in a run that waits for each node, {:.3} ms in all:", ms(total)))?;
    for (operator, time, nodes) in table.iter().take(LISTED) {
        let share = 100.0 * time.as_secs_f64() / total.as_secs_f64().max(f64::MIN_POSITIVE);
        say(&format!("{:>10.3} ms {share:>5.1} % {nodes:>6} x {operator}", ms(*time)))?;
    }
    if table.len() > LISTED {
        say(&format!("and {} others", table.len() - LISTED))?;
    }
    if args.common.json {
        let row = |(operator, time, nodes): &(&str, Duration, usize)| serde_json::json!({ "operator": operator, "ms": ms(*time), "nodes": nodes });
        let rows: Vec<_> = table.iter().map(row).collect();
        let times = serde_json::json!({
            "model": args.file.display().to_string(), "load_ms": ms(load), "first_ms": ms(first),
            "median_ms": ms(median), "fastest_ms": ms(least), "runs": runs.len(), "operators": rows,
        });
        say(&times.to_string())?;
    }
    Ok(())
}

/// The inputs: the given arrays, and tensors of the sizes that `--size` or the model states.
fn inputs<'a>(model: &'a OnnxModel, args: &'a OnnxBenchArgs, device: &Device) -> Result<Vec<(&'a str, Tensor)>> {
    let mut inputs = arrays(&args.inputs, device)?;
    let sizes: Vec<(&str, Vec<usize>)> = args.sizes.iter().map(|text| sizes_of(text)).collect::<Result<_>>()?;
    let known = |name: &str| model.inputs().iter().any(|port| port.name == name);
    if let Some((name, _)) = sizes.iter().find(|(name, _)| !known(name)) {
        return Err(Error::argument("onnx bench", format!("the model has no input \"{name}\"")));
    }
    let mut random = Generator::new(0);
    for port in model.inputs() {
        if inputs.iter().any(|(name, _)| *name == port.name) {
            continue;
        }
        let given = sizes.iter().find(|(name, _)| *name == port.name).map(|(_, sizes)| sizes.clone());
        let stated = || port.shape.as_ref().and_then(|s| s.iter().copied().collect::<Option<Vec<usize>>>());
        let Some(shape) = given.or_else(stated) else { return Err(open(port)) };
        let dtype = port.elem.and_then(|e| e.dtype()).ok_or_else(|| {
            Error::argument(
                "onnx bench",
                format!("the input \"{}\" is {}, which is not made here", port.name, port.kind),
            )
        })?;
        inputs.push((&port.name, made(&shape, dtype, device, &mut random)?));
    }
    Ok(inputs)
}

fn made(shape: &[usize], dtype: DType, device: &Device, random: &mut Generator) -> Result<Tensor> {
    match dtype.is_float() {
        true => Tensor::randn(shape, dtype, device, random),
        false => Tensor::zeros(shape, dtype, device),
    }
}

fn open(port: &OnnxPort) -> Error {
    let e = Error::argument("onnx bench", format!("the sizes of the input \"{}\" are open: {}", port.name, port.kind));
    e.help(format!("state them, as in --size {}=1x3x224x224", port.name))
}

fn sizes_of(text: &str) -> Result<(&str, Vec<usize>)> {
    let parsed = text.split_once('=').and_then(|(name, sizes)| {
        let sizes = if sizes.is_empty() { Some(vec![]) } else { sizes.split('x').map(|n| n.parse().ok()).collect() };
        Some((name, sizes?))
    });
    parsed.ok_or_else(|| {
        let e = Error::argument("onnx bench", format!("--size {text} is not a name and sizes"));
        e.help("as in --size image=1x3x224x224")
    })
}

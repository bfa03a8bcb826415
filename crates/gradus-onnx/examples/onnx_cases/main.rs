//! Runs folders in the layout of ONNX's backend tests (`*/model.onnx`, `test_data_set_*/input_*.pb`, `output_*.pb`),
//! and prints the failures by reason and a last line `N of M`. The tolerances are those of ONNX's own suite; with
//! `--relative E` each output may differ by `E` times its largest magnitude, and the errors are printed. With `--damage
//! N`, N damaged copies of each model are run, and a panic is a failure.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)]

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gradus_cpu::CpuBackend;
use gradus_onnx::{OnnxModel, OnnxValue};
use gradus_tensor::{Device, Error, Result};

/// The tolerances of `onnx.backend.test`.
const RELATIVE: f64 = 1e-3;
const ABSOLUTE: f64 = 1e-7;

/// The relative error of a quantised model, whose values are rounded to 8 bits in another order.
const QUANTISED: f64 = 2e-2;

/// The memory that damaged models may take together.
const DAMAGED_BYTES: usize = 256 << 20;

/// From when on a damaged model hangs. Many take a second or two, because a size has become large.
const HANGS: Duration = Duration::from_secs(30);

fn main() -> Result<()> {
    let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (relative, damage, folders) = match &words[..] {
        [flag, value, rest @ ..] if flag == "--relative" => (value.parse::<f64>().ok(), None, rest),
        [flag, value, rest @ ..] if flag == "--damage" => (None, value.parse::<u64>().ok(), rest),
        all => (None, None, all),
    };
    let folders: Vec<PathBuf> = folders.iter().map(PathBuf::from).collect();
    if damage.is_some() {
        // A damaged size may stand for any number of bytes.
        device.backend().set_memory_budget(Some(DAMAGED_BYTES))?;
    }
    std::panic::set_hook(Box::new(|_| {}));
    let (mut passed, mut all) = (0, 0);
    let mut failures: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for folder in &folders {
        let (mut passed_here, mut all_here) = (0, 0);
        for case in cases(folder)? {
            let name = case.file_name().map_or(String::new(), |n| n.to_string_lossy().into_owned());
            all_here += 1;
            let result = catch_unwind(AssertUnwindSafe(|| match damage {
                Some(copies) => try_damaged(&case, &device, copies),
                None => run(&case, &device, relative),
            }));
            match result {
                Ok(Ok(())) => passed_here += 1,
                Ok(Err(reason)) => failures.entry(reason).or_default().push(name),
                Err(panic) => {
                    let text = panic.downcast_ref::<String>().map(String::as_str);
                    let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("");
                    failures.entry(format!("PANIC {text}")).or_default().push(name);
                }
            }
        }
        println!("{}: {passed_here} of {all_here}", folder.display());
        passed += passed_here;
        all += all_here;
    }
    let mut groups: Vec<_> = failures.into_iter().collect();
    groups.sort_by_key(|(_, names)| std::cmp::Reverse(names.len()));
    for (reason, names) in groups {
        println!("{:>4}  {reason}\n      {}", names.len(), names.join(" "));
    }
    println!("{passed} of {all}");
    Ok(())
}

/// The folders with a model, in order.
fn cases(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).map_err(|e| Error::io("onnx", folder.display(), e))?;
    let mut cases: Vec<PathBuf> = entries.filter_map(|e| Some(e.ok()?.path())).collect();
    cases.retain(|path| path.join("model.onnx").exists());
    cases.sort();
    Ok(cases)
}

/// Runs a case on all of its data sets. The error is one line that describes the failure.
fn run(case: &Path, device: &Device, relative: Option<f64>) -> Result<(), String> {
    let model = OnnxModel::load(case.join("model.onnx"), device).map_err(|e| reason(&e))?;
    for set in 0.. {
        let data = case.join(format!("test_data_set_{set}"));
        if !data.exists() {
            return if set == 0 { Err("no data".to_owned()) } else { Ok(()) };
        }
        let mut inputs = Vec::new();
        for (i, port) in model.inputs().iter().enumerate() {
            let path = data.join(format!("input_{i}.pb"));
            if path.exists() {
                let value = model.read_value(path, port).map_err(|e| reason(&e))?;
                inputs.push((port.name.as_str(), value));
            }
        }
        let outputs = model.run_values(&inputs).map_err(|e| reason(&e))?;
        for (i, (port, (name, have))) in model.outputs().iter().zip(&outputs).enumerate() {
            let want = model.read_value(data.join(format!("output_{i}.pb")), port).map_err(|e| reason(&e))?;
            if let Some(limit) = relative {
                let error = largest(have, &want, device)?;
                println!("{} set {set} {name}: relative error {error:.1e}", case.display());
                let limit = if case.to_string_lossy().ends_with(".int8") { QUANTISED } else { limit };
                if error.is_nan() || error > limit {
                    return Err(format!("a relative error above {limit}"));
                }
                continue;
            }
            compare(have, &want, device)
                .map_err(|e| format!("values: {}{e}", if outputs.len() > 1 { name } else { "" }))?;
        }
    }
    Ok(())
}

/// Runs damaged copies of a model on the case's inputs. Results and errors are ignored; only a panic is a failure, or a
/// copy that takes very long.
fn try_damaged(case: &Path, device: &Device, copies: u64) -> Result<(), String> {
    let whole = std::fs::read(case.join("model.onnx")).map_err(|e| e.to_string())?;
    let data = case.join("test_data_set_0");
    let mut slowest = (0, Duration::ZERO);
    for seed in 0..copies {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(whole.len() as u64);
        let mut random = |n: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % n
        };
        let mut bytes = whole.clone();
        for _ in 0..=random(3) {
            let at = random(bytes.len());
            bytes[at] = random(256) as u8;
        }
        let Ok(mut model) = OnnxModel::from_bytes(&bytes, device) else { continue };
        model.max_rounds(1000);
        let mut inputs = Vec::new();
        for (i, port) in model.inputs().iter().enumerate() {
            if let Ok(value) = model.read_value(data.join(format!("input_{i}.pb")), port) {
                inputs.push((port.name.as_str(), value));
            }
        }
        let start = std::time::Instant::now();
        let _ = model.run_values(&inputs);
        if start.elapsed() > slowest.1 {
            slowest = (seed, start.elapsed());
        }
    }
    match slowest {
        (seed, time) if time > HANGS => Err(format!("copy {seed} took {time:.0?}")),
        _ => Ok(()),
    }
}

/// The first line of an error, and the operator.
fn reason(error: &Error) -> String {
    let text = error.to_string();
    let lines: Vec<&str> = text.lines().collect();
    let nodes = lines.iter().filter(|line| line.contains("in the node")).filter_map(|line| line.split('(').nth(1));
    let operator = nodes.map(|name| name.trim_end_matches(')')).next().unwrap_or("");
    let list = lines.iter().find(|line| line.contains(" nodes (")).map_or("", |line| line.trim());
    let list = list.split(" in ").next().unwrap_or("");
    format!("{operator} {} {list}", lines.first().unwrap_or(&""))
}

/// The largest difference, relative to the largest magnitude.
fn largest(have: &OnnxValue, want: &OnnxValue, device: &Device) -> Result<f64, String> {
    let (OnnxValue::Tensor(a), OnnxValue::Tensor(b)) = (have, want) else { return Err("not a tensor".to_owned()) };
    if (a.elem(), a.shape()) != (b.elem(), b.shape()) {
        return Err(format!("{} {:?} instead of {} {:?}", a.elem().name(), a.shape(), b.elem().name(), b.shape()));
    }
    let (x, y) = (a.to_f64(device).map_err(|e| reason(&e))?, b.to_f64(device).map_err(|e| reason(&e))?);
    let most = y.iter().fold(0.0f64, |m, v| m.max(v.abs()));
    let difference = x
        .iter()
        .zip(&y)
        .fold(0.0f64, |m, (x, y)| if m.is_nan() || (x - y).is_nan() { f64::NAN } else { m.max((x - y).abs()) });
    Ok(if difference == 0.0 { 0.0 } else { difference / most })
}

fn compare(have: &OnnxValue, want: &OnnxValue, device: &Device) -> Result<(), String> {
    match (have, want) {
        (OnnxValue::Tensor(a), OnnxValue::Tensor(b)) => {
            if a.elem() != b.elem() {
                return Err(format!("{} instead of {}", a.elem().name(), b.elem().name()));
            }
            if a.shape() != b.shape() {
                return Err(format!("shape {:?} instead of {:?}", a.shape(), b.shape()));
            }
            let (x, y) = (a.to_f64(device).map_err(|e| reason(&e))?, b.to_f64(device).map_err(|e| reason(&e))?);
            let near = |(x, y): &(&f64, &f64)| {
                x == y || (x.is_nan() && y.is_nan()) || (*x - *y).abs() <= ABSOLUTE + RELATIVE * y.abs()
            };
            match x.iter().zip(&y).find(|pair| !near(pair)) {
                None => Ok(()),
                Some((x, y)) => Err(format!("{x} instead of {y}")),
            }
        }
        (OnnxValue::Strings(a), OnnxValue::Strings(b)) if a == b => Ok(()),
        (OnnxValue::Sequence(a), OnnxValue::Sequence(b)) => {
            if a.len() != b.len() {
                return Err(format!("a sequence of {} instead of {}", a.len(), b.len()));
            }
            a.iter().zip(b.iter()).try_for_each(|(a, b)| compare(a, b, device))
        }
        (OnnxValue::Optional(Some(a)), OnnxValue::Optional(Some(b))) => compare(a, b, device),
        (a, OnnxValue::Optional(Some(b))) => compare(a, b, device),
        (OnnxValue::Optional(None), OnnxValue::Optional(None)) => Ok(()),
        (a, b) => Err(format!("{a:?} instead of {b:?}").chars().take(100).collect()),
    }
}

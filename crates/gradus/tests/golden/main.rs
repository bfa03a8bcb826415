//! Compares values, first gradients and second gradients with PyTorch's in f64. `make.py` in this folder wrote
//! `values.safetensors`.
//!
//! The call of a case is looked up by the name of the case, then by the part of the name before the first `/`.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod captured;
mod compare;
mod derivatives;
mod elementwise;
mod gpu;
mod higher;
mod indexing;
mod layers;
mod locations;
mod losses;
mod matrix;
mod operands;
mod orders;
mod precision;
mod rows;
#[allow(dead_code)] // two programs include this file
mod samples;
mod sources;
mod spec;
mod structure;
mod traced;

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use gradus::prelude::*;
use safetensors::SafeTensors;

use compare::{File, check, difference, values, word};
use samples::Call;

/// The cases of one module.
type Cases = &'static [(&'static str, Call)];

/// A call with one output.
macro_rules! one {
    (|$x:ident| $body:expr) => {
        |$x: &[Tensor]| Ok(vec![$body?])
    };
}
use one;

/// A call with two outputs.
fn pair((a, b): (Tensor, Tensor)) -> Vec<Tensor> {
    vec![a, b]
}

static VALUES: &[u8] = include_bytes!("values.safetensors");

fn file() -> File<'static> {
    file_on(Device::cpu().unwrap())
}

fn file_on(device: Device) -> File<'static> {
    let missing = |name: &str| {
        let sample = samples::all().into_iter().find(|s| s.name == name);
        sample.map_or(vec![], |s| s.draw(&Device::cpu().unwrap()).unwrap())
    };
    File { tensors: SafeTensors::deserialize(VALUES).unwrap(), device, missing }
}

/// The WebGPU adapter to test on, opened in all profiles, starting with the one that has the most features. Without an
/// adapter, prints a line that says so.
#[cfg(feature = "wgpu")]
fn adapters() -> Vec<Device> {
    use std::sync::Arc;

    use gradus::wgpu::{Profile, WgpuBackend, chosen};
    if gradus::wgpu::adapters().is_empty() {
        let required = std::env::var_os("GRADUS_REQUIRE_WGPU").is_some_and(|v| v == "1");
        assert!(!required, "GRADUS_REQUIRE_WGPU is 1 and wgpu finds no adapter");
        println!("skipped: no adapter for wgpu here (install a Vulkan driver, such as mesa-vulkan-drivers)");
        return vec![];
    }
    let open = |profile| WgpuBackend::open_as(chosen().unwrap(), profile).unwrap();
    Profile::ALL.into_iter().map(|profile| Device::from_backend(Arc::new(open(profile)))).collect()
}

#[cfg(not(feature = "wgpu"))]
fn adapters() -> Vec<Device> {
    println!("skipped: this build has no WebGPU backend");
    vec![]
}

fn calls() -> BTreeMap<&'static str, Call> {
    let all = [elementwise::CASES, structure::CASES, indexing::CASES, layers::CASES, losses::CASES];
    let samples = samples::all();
    let rows = all.iter().flat_map(|cases| cases.iter().copied()).chain(samples.iter().map(|s| (s.name, s.call)));
    let calls: BTreeMap<&str, Call> = rows.collect();
    assert_eq!(calls.len(), samples.len() + all.iter().map(|c| c.len()).sum::<usize>(), "a name stands twice");
    calls
}

/// The file's metadata: versions, and a description of each case.
fn recorded() -> BTreeMap<String, String> {
    let (_, metadata) = SafeTensors::read_metadata(VALUES).unwrap();
    metadata.metadata().clone().unwrap().into_iter().collect()
}

/// The descriptions of all cases: those of the file, and samples without a PyTorch counterpart.
fn words() -> BTreeMap<String, String> {
    let own = samples::all().into_iter().filter(|s| s.torch.is_empty());
    let own = own.map(|s| (s.name.to_owned(), "order=0 leaves= loose=0".to_owned()));
    own.chain(recorded()).collect()
}

/// Checks that every case of a sample was made from the current sample. Writes the samples for `make.py`.
#[test]
fn the_file_has_the_cases_of_all_samples() {
    let samples: Vec<_> = samples::all().into_iter().filter(|s| !s.torch.is_empty()).collect();
    let lines: Vec<String> = samples.iter().map(|s| format!("{:?}: {}", s.name, s.json())).collect();
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("samples.json");
    std::fs::write(path, format!("{{{}}}", lines.join(",\n"))).unwrap();
    let cases = recorded();
    let of = |name: &str| cases.get(name).and_then(|words| Some(words.split_once(" sample=")?.1));
    let stale = samples.iter().filter(|s| of(s.name) != Some(&s.json()));
    let stale: Vec<&str> = stale.map(|s| s.name).collect();
    assert!(stale.is_empty(), "new, or changed since the file was made: {stale:?}; `cargo xtask bless --python PATH`");
}

#[test]
fn the_matrix_of_operations_is_complete_and_fresh() {
    let words = words();
    let cases: Vec<&str> = words.iter().filter(|(_, v)| v.starts_with("order=")).map(|(k, _)| k.as_str()).collect();
    let (text, mut wrong) = matrix::page(&file(), &adapters(), gpu::opened().as_slice(), &calls(), &cases);
    wrong.extend(matrix::compare(matrix::PAGE, "op-table", &text));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_vocabulary_is_complete_and_fresh() {
    let words = words();
    let cases: Vec<&str> = words.iter().filter(|(_, v)| v.starts_with("order=")).map(|(k, _)| k.as_str()).collect();
    let (text, mut wrong) = spec::page(&calls(), &cases);
    wrong.extend(matrix::compare(spec::PAGE, "spec", &text));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn operations_agree_with_pytorch() {
    agree(&file());
}

#[test]
fn operations_agree_with_pytorch_on_webgpu() {
    for device in adapters() {
        agree(&file_on(device));
    }
}

#[test]
fn operations_agree_with_pytorch_on_cuda() {
    if let Some(device) = gpu::opened() {
        agree(&file_on(device));
    }
}

fn agree(file: &File<'_>) {
    let (metadata, calls) = (recorded(), calls());
    // The special values are the smallest and largest numbers of f64, which a device without f64 lacks.
    let special = |name: &str| name.ends_with("/special") && file.is_narrow();
    let cases: Vec<_> = metadata.iter().filter(|(_, v)| v.starts_with("order=")).collect();
    let (mut used, mut wrong, mut operations) = (HashSet::new(), Vec::new(), HashSet::new());
    for (name, words) in &cases {
        let family = name.split('/').next().unwrap();
        let found = [name.as_str(), family].into_iter().find(|n| calls.contains_key(n));
        let Some(key) = found else {
            wrong.push(format!("{name}: no call in tests/golden"));
            continue;
        };
        used.insert(key);
        operations.insert(family);
        if special(name) {
            continue;
        }
        match check(file, name, words, calls[key]) {
            Ok(found) => wrong.extend(found.difference.map(|d| format!("{name}: {d}"))),
            Err(e) => wrong.push(format!("{name}: {e}")),
        }
    }
    used.extend(samples::all().iter().filter(|s| s.torch.is_empty()).map(|s| s.name));
    let unused: Vec<_> = calls.keys().filter(|k| !used.contains(*k)).collect();
    println!("{} operations in {} cases of PyTorch {}", operations.len(), cases.len(), metadata["torch"]);
    assert!(unused.is_empty(), "no case of the file is for {unused:?}");
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

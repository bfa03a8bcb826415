//! The files that `reference/files.py` makes, and their values.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::sync::Arc;

use gradus_cpu::CpuBackend;
use gradus_tensor::{DType, Device, Tensor};
use serde_json::{Map, Value};

pub(crate) fn device() -> Device {
    Device::from_backend(Arc::new(CpuBackend::new().unwrap()))
}

pub(crate) fn file(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/reference/files")).join(name)
}

pub(crate) fn reference(part: &str) -> Map<String, Value> {
    let all: Value = serde_json::from_str(include_str!("../reference/files.json")).unwrap();
    all[part].as_object().unwrap().clone()
}

/// The tensors of each file by name.
pub(crate) fn expected() -> Map<String, Value> {
    reference("tensors")
}

/// Compares a tensor with its dtype, shape and values in Python.
pub(crate) fn check(name: &str, tensor: &Tensor, expected: &Value) {
    let dtype = match expected["dtype"].as_str().unwrap().trim_start_matches(">") {
        "bool" => "bool".to_owned(),
        "bfloat16" => "bf16".to_owned(),
        other => other.replace("float", "f").replace("uint", "u").replace("int", "i"),
    };
    assert!(tensor.dtype().name() == dtype || dtype == format!("{}{}", &dtype[..1], tensor.dtype().size()), "{name}");
    let shape: Vec<usize> = serde_json::from_value(expected["shape"].clone()).unwrap();
    assert_eq!(tensor.shape(), shape, "{name}");
    let values: Vec<f64> = serde_json::from_value(expected["values"].clone()).unwrap();
    assert_eq!(tensor.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap(), values, "{name}");
}

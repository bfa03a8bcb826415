//! Saving and loading state: round trips, strictness and tied parameters.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;

use common::{device, values, with_init};
use gradus_nn::{BatchNorm2d, BatchNormConfig, Forward, Linear, Module, Parameter, StateDict, Strict};
use gradus_tensor::{DType, Device, ErrorKind, Generator, Tensor};

#[derive(Module)]
struct Model {
    input: Linear,
    norm: BatchNorm2d,
    output: Linear,
}

fn model(device: &Device, seed: u64) -> Model {
    let mut generator = Generator::new(seed);
    let init = &mut gradus_nn::Init::new(DType::F32, device, &mut generator);
    Model {
        input: Linear::new(3, 4, init).unwrap(),
        norm: BatchNorm2d::new(4, BatchNormConfig::default(), init).unwrap(),
        output: Linear::without_bias(4, 3, init).unwrap(),
    }
}

fn bytes(state: &StateDict) -> Vec<(String, Vec<u8>)> {
    state.iter().map(|(name, t)| (name.to_owned(), t.to_bytes().unwrap())).collect()
}

#[test]
fn a_state_dict_is_a_copy_and_loads_back() {
    let device = device();
    let (mut a, mut b) = (model(&device, 1), model(&device, 2));
    let _ = a.norm.forward(&Tensor::ones([2, 4], DType::F32, &device).unwrap()).unwrap();
    let state = a.state_dict().unwrap();
    let names: Vec<&str> = state.iter().map(|(name, _)| name).collect();
    assert_eq!(
        names.join(" "),
        "input.bias input.weight norm.bias norm.num_batches_tracked norm.running_mean norm.running_var norm.weight \
         output.weight"
    );
    let before = bytes(&state);
    let report = b.load_state_dict(&state, Strict::Yes).unwrap();
    assert!(report.is_complete() && report.loaded.len() == 8);
    assert_eq!(bytes(&b.state_dict().unwrap()), before);
    a.load_state_dict(&model(&device, 3).state_dict().unwrap(), Strict::Yes).unwrap();
    assert_eq!(bytes(&state), before);
}

#[test]
fn strict_loading_lists_everything_that_is_wrong_and_changes_nothing() {
    let device = device();
    let mut target = model(&device, 1);
    let mut state = model(&device, 2).state_dict().unwrap();
    state.remove("input.weight");
    state.remove("norm.bias");
    state.insert("extra.weight", Tensor::ones([1], DType::F32, &device).unwrap());
    state.insert("output.weight", Tensor::ones([2, 2], DType::F32, &device).unwrap());
    state.insert("norm.num_batches_tracked", Tensor::ones([], DType::F32, &device).unwrap());
    let before = bytes(&target.state_dict().unwrap());
    let error = target.load_state_dict(&state, Strict::Yes).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::InvalidArgument);
    let text = error.to_string();
    for part in [
        "missing (2): input.weight, norm.bias",
        "unexpected (1): extra.weight",
        "output.weight is [2, 2] f32, the module has [3, 4] f32",
        "norm.num_batches_tracked is [] f32, the module has [] i64",
        "nothing was loaded",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(bytes(&target.state_dict().unwrap()), before);

    let report = target.load_state_dict(&state, Strict::No).unwrap();
    assert_eq!((report.missing.len(), report.unexpected.len(), report.mismatched.len()), (2, 1, 2));
    assert_eq!(report.loaded.len(), 4);
    assert_ne!(bytes(&target.state_dict().unwrap()), before);
}

#[test]
fn long_lists_end_in_a_count() {
    let device = device();
    let mut parameters: Vec<Parameter> = (0..30).map(|_| Parameter::new(values(&[1], &device)).unwrap()).collect();
    let error = parameters.load_state_dict(&StateDict::new(), Strict::Yes).unwrap_err().to_string();
    assert!(error.contains("missing (30): 0, 1,") && error.contains("19, and 10 more"), "{error}");
}

#[test]
fn floats_convert_between_dtypes() {
    let device = device();
    let mut wide = with_init(&device, |init| Linear::new(2, 2, init).unwrap());
    let half: StateDict = wide
        .state_dict()
        .unwrap()
        .iter()
        .map(|(name, t)| (name.to_owned(), t.to_dtype(DType::BF16).unwrap()))
        .collect();
    wide.load_state_dict(&half, Strict::Yes).unwrap();
    assert_eq!(wide.weight.dtype(), DType::F64);
    let rounded = half.get("weight").unwrap().to_dtype(DType::F64).unwrap();
    assert_eq!(wide.weight.to_vec::<f64>().unwrap(), rounded.to_vec::<f64>().unwrap());
}

#[test]
fn loading_is_seen_by_clones_and_frozen_parameters() {
    let device = device();
    let mut layer = with_init(&device, |init| Linear::without_bias(2, 2, init).unwrap());
    let tied = layer.weight.clone();
    layer.freeze();
    let state: StateDict = [("weight", values(&[2, 2], &device))].into_iter().collect();
    layer.load_state_dict(&state, Strict::Yes).unwrap();
    assert_eq!(tied.to_vec::<f64>().unwrap(), values(&[2, 2], &device).to_vec::<f64>().unwrap());
}

fn tied(device: &Device) -> Vec<Linear> {
    with_init(device, |init| {
        let first = Linear::without_bias(2, 2, init).unwrap();
        let second = Linear::from_parameters(first.weight.clone(), None).unwrap();
        vec![first, second]
    })
}

#[test]
fn a_tied_weight_needs_one_of_its_names() {
    let device = device();
    let mut model = tied(&device);
    let new = values(&[2, 2], &device);
    for name in ["0.weight", "1.weight"] {
        let state: StateDict = [(name, new.clone())].into_iter().collect();
        let report = model.load_state_dict(&state, Strict::Yes).unwrap();
        assert!(report.is_complete());
    }
    assert_eq!(model[1].weight.to_vec::<f64>().unwrap(), new.to_vec::<f64>().unwrap());
    let equal: StateDict = [("0.weight", new.clone()), ("1.weight", new.copy().unwrap())].into_iter().collect();
    model.load_state_dict(&equal, Strict::Yes).unwrap();
    let other = new.add(1.0).unwrap();
    let different: StateDict = [("0.weight", new), ("1.weight", other)].into_iter().collect();
    let error = model.load_state_dict(&different, Strict::Yes).unwrap_err().to_string();
    assert!(error.contains("1.weight and 0.weight are one tensor"), "{error}");
    let none = model.load_state_dict(&StateDict::new(), Strict::Yes).unwrap_err().to_string();
    assert!(none.contains("missing (2)"), "{none}");
}

#[test]
fn a_tied_weight_is_stored_once_and_stays_tied() {
    let device = device();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tied.safetensors");
    let mut model = tied(&device);
    model.save_safetensors(&path).unwrap();
    let header = String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned();
    assert!(header.contains(r#""__metadata__":{"gradus.tied":"{\"1.weight\":\"0.weight\"}"}"#), "{header}");
    let state = StateDict::load_safetensors(&path, &device).unwrap();
    assert_eq!((state.len(), state.iter_metadata().count()), (2, 0));
    assert!(std::sync::Arc::ptr_eq(state.get("0.weight").unwrap().storage(), state.get("1.weight").unwrap().storage()));
    let before = model[0].weight.to_vec::<f64>().unwrap();
    model[0].weight.set(&values(&[2, 2], &device)).unwrap();
    model.load_safetensors(&path, &device, Strict::Yes).unwrap();
    assert_eq!(model[1].weight.to_vec::<f64>().unwrap(), before);
    assert!(model[0].weight.is_same(&model[1].weight));
    // The file also fits a model in which the two weights are not tied.
    let mut apart = with_init(&device, |init| {
        vec![Linear::without_bias(2, 2, init).unwrap(), Linear::without_bias(2, 2, init).unwrap()]
    });
    apart.load_safetensors(&path, &device, Strict::Yes).unwrap();
    assert_eq!(apart[1].weight.to_vec::<f64>().unwrap(), before);
}

#[test]
fn a_state_in_the_memory_of_the_module_can_swap_layers() {
    let device = device();
    let make = |v: f64| Parameter::new(Tensor::from_vec([v, v + 1.0], [2], &device).unwrap()).unwrap();
    let mut layers = BTreeMap::from([("a".to_owned(), make(1.0)), ("b".to_owned(), make(5.0))]);
    let mut state = StateDict::new();
    state.insert("a", layers["b"].values().clone());
    state.insert("b", layers["a"].values().clone());
    layers.load_state_dict(&state, Strict::Yes).unwrap();
    assert_eq!(layers["a"].to_vec::<f64>().unwrap(), [5.0, 6.0]);
    assert_eq!(layers["b"].to_vec::<f64>().unwrap(), [1.0, 2.0]);
}

#[test]
fn one_name_for_two_tensors_is_an_error() {
    let device = device();
    let make = || Parameter::new(values(&[2], &device)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    let nested = |leaf: &str, p| BTreeMap::from([(leaf.to_owned(), Some(p))]);
    let mut dotted =
        (BTreeMap::from([("x.y".to_owned(), nested("z", make())), ("x".to_owned(), nested("y.z", make()))]), make());
    for error in [
        dotted.state_dict().unwrap_err(),
        dotted.save_safetensors(&path).unwrap_err(),
        dotted.load_state_dict(&StateDict::new(), Strict::No).unwrap_err(),
    ] {
        assert_eq!(error.kind(), &ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("two tensors of the module have one name: 0.x.y.z"), "{error}");
    }
    assert!(!path.exists());
    // A tensor found twice under the same name is stored once.
    let p = make();
    let mut same = BTreeMap::from([("x.y".to_owned(), nested("z", p.clone())), ("x".to_owned(), nested("y.z", p))]);
    let state = same.state_dict().unwrap();
    assert_eq!(same.load_state_dict(&state, Strict::Yes).unwrap().loaded, ["x.y.z"]);
}

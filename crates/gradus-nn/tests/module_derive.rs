//! The derive macro, and what every module can do.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::marker::PhantomData;

use common::{device, values, with_init};
use gradus_nn::{
    BatchNorm2d, BatchNormConfig, Buffer, Dropout, Embedding, Forward, Init, Linear, Mode, Module, Parameter, Relu,
    Sequential,
};
use gradus_tensor::{DType, Device, Result, Tensor};

/// A foreign type that is not a module.
#[derive(Default)]
struct Foreign;

#[derive(Module)]
struct Everything<A, T> {
    layers: Vec<Linear>,
    pair: (Linear, Relu),
    maybe: Option<Linear>,
    never: Option<Linear>,
    boxed: Box<Linear>,
    array: [Parameter; 2],
    table: BTreeMap<String, Parameter>,
    activation: A,
    choice: Choice,
    newtype: Newtype,
    #[module(rename = "norm")]
    batch_norm: BatchNorm2d,
    r#type: Parameter,
    width: usize,
    name: String,
    scales: Vec<f32>,
    marker: PhantomData<T>,
    function: fn(&Tensor) -> Result<Tensor>,
    mode: Mode,
    #[module(skip)]
    _foreign: Foreign,
}

#[derive(Module)]
enum Choice {
    Wrapped(Linear),
    Named {
        inner: Linear,
        #[module(skip)]
        _foreign: Foreign,
    },
    Pair(Parameter, Parameter),
    Nothing,
}

#[derive(Module)]
struct Newtype(Linear);

#[derive(Module)]
struct Recursive<M> {
    own: M,
    children: Vec<Recursive<M>>,
}

#[derive(Module)]
struct Residual<M: Forward> {
    inner: M,
}

impl<M: Forward> Forward for Residual<M> {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        self.inner.forward(x)?.add(x)
    }
}

struct NotAModule;

fn parameter(device: &Device) -> Parameter {
    Parameter::new(values(&[2], device)).unwrap()
}

fn linear(init: &mut Init<'_>) -> Linear {
    Linear::new(2, 2, init).unwrap()
}

fn everything(device: &Device, choice: impl FnOnce(&mut Init<'_>) -> Choice) -> Everything<Relu, NotAModule> {
    with_init(device, |init| Everything {
        layers: vec![linear(init), linear(init)],
        pair: (linear(init), Relu),
        maybe: Some(linear(init)),
        never: None,
        boxed: Box::new(linear(init)),
        array: [parameter(device), parameter(device)],
        table: [("key".to_owned(), parameter(device))].into(),
        activation: Relu,
        choice: choice(init),
        newtype: Newtype(linear(init)),
        batch_norm: BatchNorm2d::new(2, BatchNormConfig::default(), init).unwrap(),
        r#type: parameter(device),
        width: 3,
        name: "all".into(),
        scales: vec![0.5; 20],
        marker: PhantomData,
        function: |x| x.relu(),
        mode: Mode::Train,
        _foreign: Foreign,
    })
}

fn names(module: &dyn Module) -> Vec<String> {
    module.named_parameters().into_iter().map(|(name, _)| name).collect()
}

#[test]
fn every_kind_of_field_is_visited_under_pytorchs_names() {
    let device = device();
    let module = everything(&device, |init| Choice::Wrapped(linear(init)));
    let want = "layers.0.weight layers.0.bias layers.1.weight layers.1.bias pair.0.weight pair.0.bias maybe.weight \
        maybe.bias boxed.weight boxed.bias array.0 array.1 table.key choice.weight choice.bias newtype.weight \
        newtype.bias norm.weight norm.bias type";
    assert_eq!(names(&module).join(" "), want);
    let buffers: Vec<String> = module.named_buffers().into_iter().map(|(name, _)| name).collect();
    assert_eq!(buffers, ["norm.running_mean", "norm.running_var", "norm.num_batches_tracked"]);
    assert_eq!(module.num_parameters(), 7 * 6 + 4 * 2 + 2 * 2);
}

#[test]
fn an_enum_visits_its_variant_without_its_name() {
    let device = device();
    let of = |choice: &dyn Fn(&mut Init<'_>) -> Choice| with_init(&device, |init| names(&choice(init)));
    assert_eq!(of(&|init| Choice::Named { inner: linear(init), _foreign: Foreign }), ["inner.weight", "inner.bias"]);
    assert_eq!(of(&|_| Choice::Pair(parameter(&device), parameter(&device))), ["0", "1"]);
    assert!(of(&|_| Choice::Nothing).is_empty());
}

#[test]
fn generic_and_recursive_modules_derive() {
    let device = device();
    with_init(&device, |init| {
        let leaf = Recursive { own: linear(init), children: vec![] };
        let tree = Recursive { own: linear(init), children: vec![leaf] };
        assert_eq!(names(&tree), ["own.weight", "own.bias", "children.0.own.weight", "children.0.own.bias"]);

        let model = Residual { inner: Sequential::new().add(linear(init)).add(Residual { inner: linear(init) }) };
        assert_eq!(model.forward(&values(&[1, 2], &device)).unwrap().shape(), [1, 2]);
        assert_eq!(names(&model)[2], "inner.1.inner.weight");
    });
}

#[test]
fn train_and_eval_reach_every_mode() {
    let device = device();
    let mut module = everything(&device, |_| Choice::Nothing);
    module.eval();
    assert!(!module.mode.is_training());
    let x = values(&[2, 2], &device);
    let _ = module.batch_norm.forward(&x).unwrap();
    assert_eq!(module.batch_norm.num_batches_tracked.as_ref().unwrap().tensor().item().unwrap(), 0.0);
    module.train();
    assert!(module.mode.is_training());
    let _ = module.batch_norm.forward(&x).unwrap();
    assert_eq!(module.batch_norm.num_batches_tracked.as_ref().unwrap().tensor().item().unwrap(), 1.0);

    let mut generator = gradus_tensor::Generator::new(1);
    let mut drop: Box<dyn Forward> = Box::new(Dropout::new(1.0, &mut generator).unwrap());
    assert_eq!(drop.forward(&x).unwrap().sum_all().unwrap().item().unwrap(), 0.0);
    drop.eval();
    assert_eq!(drop.forward(&x).unwrap().to_vec::<f64>().unwrap(), x.to_vec::<f64>().unwrap());
}

#[test]
fn a_frozen_parameter_gets_no_gradient_and_its_clones_neither() {
    let device = device();
    let (mut a, x) = (with_init(&device, linear), values(&[3, 2], &device));
    let tied = a.weight.clone();
    a.freeze_under("weight").unwrap();
    assert!(tied.is_frozen() && !a.bias.as_ref().unwrap().is_frozen());
    let gradients = a.forward(&x).unwrap().sum_all().unwrap().backward().unwrap();
    assert!(gradients.get(&a.weight).is_none());
    assert_eq!(gradients.len(), 1);
    a.unfreeze();
    let gradients = a.forward(&x).unwrap().sum_all().unwrap().backward().unwrap();
    assert!(gradients.get(&tied).is_some());

    a.freeze();
    assert!(!a.forward(&x).unwrap().requires_grad());
    let error = a.unfreeze_under("wei").unwrap_err().to_string();
    assert!(error.contains("\"wei\"") && error.contains("weight, bias"), "{error}");
}

#[test]
fn the_tree_shows_settings_and_submodules() {
    let device = device();
    let mut module = everything(&device, |init| Choice::Wrapped(linear(init)));
    module.batch_norm = with_init(&device, |init| {
        BatchNorm2d::new(4, BatchNormConfig { affine: false, ..Default::default() }, init).unwrap()
    });
    let want = "\
Everything(never=None, width=3, name=\"all\", scales=(0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, ..)
  (layers): [
    (0): Linear(in_features=2, out_features=2)
    (1): Linear(in_features=2, out_features=2)
  ]
  (pair): [
    (0): Linear(in_features=2, out_features=2)
    (1): Relu()
  ]
  (maybe): Linear(in_features=2, out_features=2)
  (boxed): Linear(in_features=2, out_features=2)
  (activation): Relu()
  (choice): Linear(in_features=2, out_features=2)
  (newtype): Linear(in_features=2, out_features=2)
  (norm): BatchNorm(num_features=4, eps=1e-5, momentum=0.1, weight=None, bias=None)
)";
    assert_eq!(module.to_string(), want);
    let embedding = with_init(&device, |init| Embedding::new(3, 2, Some(1), init).unwrap());
    assert_eq!(format!("{embedding:?}"), "Embedding(num_embeddings=3, embedding_dim=2, padding_idx=1)");
    assert_eq!(Choice::Nothing.to_string(), "Choice::Nothing()");
}

#[test]
fn casting_keeps_ties_and_frozen_parameters() {
    let device = device();
    let mut layers = with_init(&device, |init| vec![linear(init), linear(init)]);
    layers[1].weight = layers[0].weight.clone();
    layers[0].weight.freeze();
    let other = common::device();
    layers.cast_parameters(DType::F32).unwrap();
    layers.to_device(&other).unwrap();
    assert!(layers[0].weight.is_same(&layers[1].weight) && layers[0].weight.is_frozen());
    assert!(layers.parameters().iter().all(|p| p.dtype() == DType::F32 && *p.device() == other));
    assert_eq!(layers.named_parameters().len(), 3);
    assert!(layers.cast_parameters(DType::I64).is_err());
}

#[test]
fn a_buffer_that_is_as_wanted_stays_the_one_that_others_hold() {
    let device = device();
    let mut both = [0.0, 1.0].map(|_| Buffer::new(values(&[2], &device)).unwrap());
    let held = both[1].clone();
    both.to_device(&device).unwrap();
    both.cast_parameters(DType::F64).unwrap();
    both[1].set(&Tensor::zeros([2], DType::F64, &device).unwrap()).unwrap();
    assert_eq!(held.tensor().to_vec::<f64>().unwrap(), [0.0; 2]);
}

#[test]
fn integers_are_buffers_not_parameters() {
    let device = device();
    let ids = Tensor::from_vec([1i64, 2], [2], &device).unwrap();
    assert!(Parameter::new(ids.clone()).is_err());
    let buffer = Buffer::new(ids).unwrap();
    assert!(buffer.set(&values(&[2], &device)).is_err());
    assert!(parameter(&device).set(&values(&[3], &device)).is_err());
    // A broadcast tensor becomes a parameter with its own memory.
    let wide = Tensor::ones([1], DType::F64, &device).unwrap().expand([4]).unwrap();
    Parameter::new(wide).unwrap().set(&values(&[4], &device)).unwrap();
}

#[test]
fn parameters_are_operands() {
    let device = device();
    let (p, b) = (parameter(&device), Buffer::new(values(&[2], &device)).unwrap());
    let x = values(&[2], &device);
    let loss =
        || -> Result<Tensor> { (((1.0 + &p)? * &x + b.tensor() - p.square()?)? / (-&p)?)?.minimum(&p)?.sum_all() };
    let same = p.add(1.0).unwrap().mul(&x).unwrap().add(b.tensor()).unwrap().sub(p.square().unwrap()).unwrap();
    let same = same.div(p.neg().unwrap()).unwrap().minimum(p.tensor()).unwrap().sum_all().unwrap();
    assert_eq!(loss().unwrap().item().unwrap(), same.item().unwrap());
    assert!(loss().unwrap().backward().unwrap().get(&p).is_some());
    p.freeze();
    assert!(!loss().unwrap().requires_grad());
    assert!((x * &p).unwrap().is_leaf());
}

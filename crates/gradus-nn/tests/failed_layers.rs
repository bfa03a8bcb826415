//! The error of a forward pass names the layer that failed, by its path in the model, and the user's line.

#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/failing.rs"]
mod failing;

use common::{device, values, with_init};
use failing::Failing;
use gradus_nn::{
    Adam, AdamConfig, BatchNorm, BatchNormConfig, Conv2d, Conv2dConfig, Forward, Linear, Module, MultiheadAttention,
    MultiheadAttentionConfig, Optimizer, Relu, Sequential,
};
use gradus_tensor::{Causal, Device, Error, Result, Tensor};

#[derive(Module)]
struct Block {
    conv1: Conv2d,
    act: Relu,
    conv2: Option<Conv2d>,
}

impl Forward for Block {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        let y = self.act.forward(&self.conv1.forward(x)?)?;
        self.conv2.as_ref().map_or(Ok(y.clone()), |conv| conv.forward(&y))
    }
}

#[derive(Module)]
struct Net<H> {
    stem: Block,
    layers: Vec<Block>,
    head: H,
}

impl<H: Forward> Forward for Net<H> {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        let mut x = self.stem.forward(x)?;
        for layer in &self.layers {
            x = layer.forward(&x)?;
        }
        self.head.forward(&x)
    }
}

fn conv(from: usize, to: usize, device: &Device) -> Conv2d {
    with_init(device, |init| {
        Conv2d::new(from, to, [3, 3], Conv2dConfig { padding: [1, 1], ..Default::default() }, init)
    })
    .unwrap()
}

fn block(a: usize, b: usize, c: usize, d: usize, device: &Device) -> Block {
    Block { conv1: conv(a, b, device), act: Relu, conv2: Some(conv(c, d, device)) }
}

fn linear(from: usize, to: usize, device: &Device) -> Linear {
    with_init(device, |init| Linear::new(from, to, init)).unwrap()
}

#[track_caller]
fn failed<T>(result: Result<T>) -> (Error, String) {
    let Err(e) = result else { panic!("no error") };
    let layer = e.layer().unwrap_or_else(|| panic!("no layer: {e}")).to_string();
    assert!(e.to_string().contains(&format!("\n  in {layer}\n  at ")), "{e}");
    assert_eq!(e.location().unwrap().file(), file!());
    (e, layer)
}

/// The text of the source line that the error names.
fn line_of(e: &Error) -> &'static str {
    let line = e.location().unwrap().line() as usize;
    include_str!("failed_layers.rs").lines().nth(line - 1).unwrap().trim()
}

fn image(device: &Device) -> Tensor {
    values(&[1, 2, 4, 4], device)
}

#[test]
fn the_path_is_that_of_the_parameters() {
    let d = device();
    let good = || block(2, 2, 2, 2, &d);
    let x = image(&d);
    let net = |stem, layers| Net { stem, layers, head: Relu };
    assert!(net(good(), vec![good()]).forward(&x).is_ok());

    let (e, layer) = failed(net(block(3, 2, 2, 2, &d), vec![]).forward(&x));
    assert_eq!(layer, "stem.conv1 (Conv2d)");
    assert_eq!(line_of(&e), "let y = self.act.forward(&self.conv1.forward(x)?)?;");
    let (e, layer) = failed(net(good(), vec![good(), good(), block(2, 2, 5, 2, &d)]).forward(&x));
    assert_eq!(layer, "layers.2.conv2 (Conv2d)");
    assert!(line_of(&e).starts_with("self.conv2.as_ref()"), "{e}");
    let net = net(good(), vec![good(), block(5, 2, 2, 2, &d)]);
    let e = net.forward(&x).unwrap_err();
    let weight = format!("{}.weight", e.layer().unwrap().path);
    assert!(net.named_parameters().iter().any(|(name, _)| *name == weight), "{weight}");
}

#[test]
fn sequences_in_models_in_boxes_in_sequences() {
    let d = device();
    let inner = Sequential::new().add(Relu).add(Relu).add(linear(7, 2, &d));
    let head = Sequential::new().add(Relu).add(Sequential::new().add(Relu).add(inner));
    let net: Box<dyn Forward> = Box::new(Net { stem: block(2, 2, 2, 2, &d), layers: vec![], head });
    let model = Sequential::new().add(Relu).add(net);
    let (_, layer) = failed(model.forward(&image(&d)));
    assert_eq!(layer, "1.head.1.1.2 (Linear)");
    let boxed: Box<dyn Forward> = Box::new(model);
    let (e, layer) = failed(boxed.forward(&image(&d)));
    assert_eq!(layer, "1.head.1.1.2 (Linear)");
    assert_eq!(line_of(&e), "self.head.forward(&x)");
}

#[test]
fn a_layer_that_gradus_calls_has_the_line_that_called_gradus() {
    let d = device();
    let model = Sequential::new().add(Relu).add(linear(3, 3, &d));
    let (e, layer) = failed(model.forward(&values(&[2], &d)));
    assert_eq!(layer, "1 (Linear)");
    assert_eq!(line_of(&e), "let (e, layer) = failed(model.forward(&values(&[2], &d)));");
    let boxed: Box<dyn Forward> = Box::new(model);
    let (e, _) = failed(boxed.forward(&values(&[2], &d)));
    assert_eq!(line_of(&e), "let (e, _) = failed(boxed.forward(&values(&[2], &d)));");
}

#[test]
fn a_layer_without_fields_is_known_by_its_number_in_a_sequence() {
    let d = device();
    // A `Linear` accepts no booleans.
    let x = values(&[2], &d).gt(0.0).unwrap();
    let model = Sequential::new().add(gradus_nn::Identity).add(gradus_nn::Identity).add(linear(3, 3, &d));
    assert_eq!(failed(model.forward(&x)).1, "2 (Linear)");
}

#[test]
fn the_model_itself_and_what_fails_beside_its_layers() {
    struct Reshaped;
    impl Module for Reshaped {
        fn visit<'m>(&'m self, _: &mut gradus_nn::Visitor<'m>) {}
        fn visit_mut<'m>(&'m mut self, _: &mut gradus_nn::VisitorMut<'m>) {}
    }
    impl Forward for Reshaped {
        fn compute(&self, x: &Tensor) -> Result<Tensor> {
            x.reshape([7])
        }
    }
    let d = device();
    assert_eq!(failed(Reshaped.forward(&image(&d))).1, "Reshaped");
    assert_eq!(failed(linear(3, 3, &d).forward(&values(&[2], &d))).1, "Linear");
    let net = Net { stem: block(2, 2, 2, 2, &d), layers: vec![], head: Reshaped };
    assert_eq!(failed(net.forward(&image(&d))).1, "head (Reshaped)");
}

#[test]
fn a_layer_that_the_model_does_not_show_counts_as_the_one_around_it() {
    #[derive(Module)]
    struct Teacher {
        #[module(skip)]
        teacher: Net<Relu>,
        scale: f64,
    }
    impl Forward for Teacher {
        fn compute(&self, x: &Tensor) -> Result<Tensor> {
            self.teacher.forward(x)?.mul(self.scale)
        }
    }
    let d = device();
    let teacher = Net { stem: block(3, 2, 2, 2, &d), layers: vec![], head: Relu };
    let model = Sequential::new().add(Teacher { teacher, scale: 0.5 });
    assert_eq!(failed(model.forward(&image(&d))).1, "0 (Teacher)");
}

#[test]
fn a_layer_with_a_pass_of_another_form() {
    let d = device();
    let config = MultiheadAttentionConfig::default();
    let attention = with_init(&d, |init| MultiheadAttention::new(4, 2, config, init)).unwrap();
    let (x, short) = (values(&[1, 3, 4], &d), values(&[1, 3, 5], &d));
    assert_eq!(failed(attention.attend(&x, &short, &x, None, Causal::No)).1, "MultiheadAttention");
}

#[test]
fn a_frozen_model_says_so() {
    let d = device();
    let mut model = linear(2, 1, &d);
    model.freeze();
    let loss = model.forward(&values(&[3, 2], &d)).unwrap().sum_all().unwrap();
    let e = loss.backward().unwrap_err().to_string();
    assert!(e.contains("the model is frozen") && e.contains("help: unfreeze"), "{e}");
    model.unfreeze();
    assert!(model.forward(&values(&[3, 2], &d)).unwrap().sum_all().unwrap().backward().is_ok());
}

#[test]
fn an_error_of_a_device_has_the_line_of_the_call_and_not_that_of_the_backend() {
    let (backend, d) = Failing::device();
    let norm = with_init(&d, |init| BatchNorm::new(2, BatchNormConfig::default(), init)).unwrap();
    let model = Sequential::new().add(conv(2, 2, &d)).add(norm).add(Relu);
    let mut optimizer = Adam::new(model.named_parameters(), AdamConfig::default()).unwrap();
    let x = image(&d);
    let saved = optimizer.state_dict().unwrap();
    let mut failures = 0;
    for n in 1.. {
        let step = || -> Result<()> {
            let y = model.forward(&x)?.clamp(0.0, 0.5)?;
            let y = y.gather(1, &y.argmax(1, true)?)?.cumsum(0)?.logsumexp(&[2], true)?;
            let order = y.sort(3, false)?.1;
            y.detach().mul_(2.0)?;
            optimizer.step(&y.index_select(0, &order.reshape([4])?.mul(0)?)?.mean_all()?.backward()?)
        };
        let (result, failed) = backend.at(n, step);
        let Some(call) = failed else { break };
        let e = result.unwrap_err();
        let line = e.location().unwrap_or_else(|| panic!("{call}: {e}"));
        assert_eq!(line.file(), file!(), "{call}: {e}");
        failures += 1;
        optimizer.load_state_dict(&saved, gradus_nn::Strict::Yes).unwrap();
    }
    assert!(failures > 50, "{failures}");
}

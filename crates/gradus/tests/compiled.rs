//! Models whose forward pass is captured, and what a profile shows of captured steps.
#![allow(clippy::unwrap_used)]

use gradus::prelude::*;

fn model(device: &Device) -> Sequential {
    let mut rng = Generator::new(3);
    let dropout = Dropout::new(0.5, &mut rng).unwrap();
    let mut init = Init::new(DType::F32, device, &mut rng);
    let convolution = Conv2d::new(3, 8, [3, 3], Conv2dConfig { padding: [1, 1], ..Default::default() }, &mut init);
    Sequential::new()
        .add(convolution.unwrap())
        .add(BatchNorm2d::new(8, BatchNormConfig::default(), &mut init).unwrap())
        .add(Relu)
        .add(Flatten::default())
        .add(dropout)
        .add(Linear::new(8 * 36, 5, &mut init).unwrap())
}

#[test]
fn other_inputs_of_the_same_shape_are_replayed() {
    let (device, mut rng) = (Device::cpu().unwrap(), Generator::new(0));
    let model = Linear::new(4, 2, &mut Init::new(DType::F32, &device, &mut rng)).unwrap();
    let [x, y] = [0, 1].map(|_| Tensor::randn([3, 4], DType::F32, &device, &mut rng).unwrap());
    let mut compiled = model.compiled(&x).unwrap();
    for input in [&y, &x, &y] {
        let want = no_grad(|| model.forward(input)).unwrap();
        assert_eq!(compiled.forward(input).unwrap().to_bytes().unwrap(), want.to_bytes().unwrap());
    }
    assert_eq!(compiled.replays(), 4);
}

#[test]
fn a_compiled_model_has_the_bits_of_its_forward_pass() {
    let device = Device::cpu().unwrap();
    let mut rng = Generator::new(1);
    let mut random = |n: usize| Tensor::randn([n, 3, 6, 6], DType::F32, &device, &mut rng).unwrap();
    let mut model = model(&device);
    let state = |m: &Sequential| format!("{:?} {:?}", m.state_dict().unwrap(), m.named_random_states());
    let before = state(&model);
    let e = model.compiled(&random(4)).err().unwrap();
    assert_eq!(state(&model), before);
    assert!(e.to_string().contains("model.eval()"), "{e}");
    model.eval();
    let mut compiled = model.compiled(&random(4)).unwrap();
    for n in [4, 4, 1, 1, 1, 4, 2] {
        let x = random(n);
        let want = no_grad(|| model.forward(&x)).unwrap();
        assert_eq!(compiled.forward(&x).unwrap().to_bytes().unwrap(), want.to_bytes().unwrap());
    }
    // Values written into a parameter are those of the next call.
    let x = random(4);
    let weight = model.parameters().into_iter().next_back().unwrap();
    no_grad(|| weight.values().mul_(2.0)).unwrap();
    let want = no_grad(|| model.forward(&x)).unwrap();
    assert_eq!(compiled.forward(&x).unwrap().to_bytes().unwrap(), want.to_bytes().unwrap());
    let e = compiled.forward(&random(4).reshape([4, 108]).unwrap()).unwrap_err();
    assert!(e.to_string().contains("compiled.rs"), "{e}");
}

#[test]
fn a_profile_shows_what_was_joined() {
    let names = std::sync::Arc::new(std::sync::Mutex::new(vec![]));
    let seen = names.clone();
    let device = Device::cpu().unwrap().watched(move |call| seen.lock().unwrap().push(call.name.to_owned()));
    let x = Tensor::ones([4, 4], DType::F32, &device).unwrap();
    let mut step = capture(|x| Ok(vec![x[0].mul(2.0)?.add(&x[0])?.tanh()?.sum_all()?]));
    for _ in 0..4 {
        names.lock().unwrap().clear();
        step.call(&[&x]).unwrap();
    }
    assert_eq!(*names.lock().unwrap(), ["mul+add+tanh", "reduce"]);
}

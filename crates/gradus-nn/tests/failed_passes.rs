//! A forward pass that fails changes nothing.
#![allow(clippy::unwrap_used)]

#[path = "common/failing.rs"]
mod failing;

use failing::Failing;
use gradus_nn::{
    BatchNorm2d, BatchNormConfig, Dropout, Forward, Init, Linear, Module, Relu, Sequential,
};
use gradus_tensor::{DType, Device, Generator, Result, Tensor};

/// Statistics, then random numbers, then a layer that may fail.
#[derive(Module)]
struct Net {
    first: Linear,
    norm: BatchNorm2d,
    drop: Dropout,
    last: Linear,
}

impl Net {
    fn new(device: &Device) -> Result<Net> {
        let mut generator = Generator::new(3);
        let drop = Dropout::new(0.5, &mut generator)?;
        let init = &mut Init::new(DType::F32, device, &mut generator);
        Ok(Net {
            first: Linear::new(3, 4, init)?,
            norm: BatchNorm2d::new(4, BatchNormConfig::default(), init)?,
            drop,
            last: Linear::new(4, 2, init)?,
        })
    }
}

impl Forward for Net {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.norm.forward(&self.first.forward(x)?)?;
        self.last.forward(&self.drop.forward(&x.relu()?)?)
    }
}

/// Every bit of a module that a pass may move.
fn state(module: &impl Module) -> Vec<(String, Vec<u8>)> {
    let tensors = module.state_dict().unwrap();
    let tensors = tensors.iter().map(|(name, t)| (name.to_owned(), t.to_bytes().unwrap()));
    let random = module.named_random_states().into_iter();
    tensors.chain(random.map(|(name, r)| (name, format!("{r:?}").into_bytes()))).collect()
}

/// Whichever call fails, `module` is what it was; and when none does, it moves on.
fn check(backend: &Failing, device: &Device, module: &impl Forward) -> Vec<&'static str> {
    let x = Tensor::rand([5, 3], DType::F32, device, &mut Generator::new(1)).unwrap();
    let (before, mut names) = (state(module), Vec::new());
    for n in 1.. {
        let (result, failed) = backend.at(n, || module.forward(&x));
        let Some(name) = failed else { break };
        assert!(result.is_err(), "call {n}, {name}");
        assert_eq!(state(module), before, "call {n}, {name}");
        names.push(name);
    }
    assert_ne!(state(module), before);
    names
}

#[test]
fn a_forward_pass_that_fails_at_any_call_changes_nothing() {
    let (backend, device) = Failing::device();
    let net = Net::new(&device).unwrap();
    let calls = check(&backend, &device, &net);
    assert!(calls.len() > 20 && calls.contains(&"random") && calls.contains(&"gemm"), "{calls:?}");
    let Net { first, norm, drop, last } = Net::new(&device).unwrap();
    let sequential = Sequential::new().add(first).add(norm).add(Sequential::new().add(Relu).add(drop)).add(last);
    assert_eq!(check(&backend, &device, &sequential), calls);
}

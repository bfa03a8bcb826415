//! If a forward pass or a step fails, nothing changes, whichever device call failed.
#![allow(clippy::unwrap_used)]

#[path = "common/failing.rs"]
mod failing;

use std::sync::{Arc, Barrier};

use failing::Failing;
use gradus_nn::{
    AdamConfig, AdamW, BatchNorm2d, BatchNormConfig, Dropout, Forward, Init, Linear, Module, MultiheadAttention,
    MultiheadAttentionConfig, Optimizer, Relu, Sequential, Sgd, SgdConfig, Strict,
};
use gradus_tensor::{DType, Device, Error, Generator, Result, Tensor, all_or_nothing, checkpoint, no_grad_guard};

/// A layer with statistics, then one with random numbers, then one that may fail.
#[derive(Module)]
struct Net {
    first: Linear,
    norm: BatchNorm2d,
    drop: Dropout,
    last: Linear,
}

impl Net {
    fn new(device: &Device) -> Net {
        let mut generator = Generator::new(3);
        let drop = Dropout::new(0.5, &mut generator).unwrap();
        let init = &mut Init::new(DType::F32, device, &mut generator);
        Net {
            first: Linear::new(3, 4, init).unwrap(),
            norm: BatchNorm2d::new(4, BatchNormConfig::default(), init).unwrap(),
            drop,
            last: Linear::new(4, 2, init).unwrap(),
        }
    }
}

impl Forward for Net {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.norm.forward(&self.first.forward(x)?)?;
        self.last.forward(&self.drop.forward(&x.relu()?)?)
    }
}

fn batch(device: &Device) -> Tensor {
    Tensor::rand([5, 3], DType::F32, device, &mut Generator::new(1)).unwrap()
}

/// Every bit of a module that a forward pass or a step may change.
fn bits(module: &impl Module) -> Vec<(String, Vec<u8>)> {
    let tensors = module.state_dict().unwrap();
    let tensors = tensors.iter().map(|(name, t)| (name.to_owned(), t.to_bytes().unwrap()));
    let random = module.named_random_states().into_iter();
    tensors.chain(random.map(|(name, r)| (name, format!("{r:?}").into_bytes()))).collect()
}

/// Lets every call of `pass` fail in turn, and checks that `module` is unchanged after each failure, and changed if
/// none fails. Returns the names of the calls.
fn check<M: Module, R>(backend: &Failing, module: &M, pass: impl Fn(&M) -> Result<R>) -> Vec<&'static str> {
    let (before, mut names) = (bits(module), Vec::new());
    for n in 1.. {
        let (result, failed) = backend.at(n, || pass(module));
        let Some(name) = failed else { break };
        assert!(result.is_err(), "call {n}, {name}");
        assert_eq!(bits(module), before, "call {n}, {name}");
        names.push(name);
    }
    assert_ne!(bits(module), before);
    names
}

#[test]
fn a_forward_pass_that_fails_at_any_call_changes_nothing() {
    let (backend, device) = Failing::device();
    let x = batch(&device);
    let calls = check(&backend, &Net::new(&device), |net| net.forward(&x));
    assert!(calls.len() > 20 && calls.contains(&"random") && calls.contains(&"gemm"), "{calls:?}");
    let Net { first, norm, drop, last } = Net::new(&device);
    let nested = Sequential::new().add(first).add(norm).add(Sequential::new().add(Relu).add(drop)).add(last);
    assert_eq!(check(&backend, &nested, |net| net.forward(&x)), calls);
    let nested: (Box<dyn Forward>, Option<Net>) = (Box::new(nested), Some(Net::new(&device)));
    check(&backend, &nested, |(a, b)| all_or_nothing(|| a.forward(&x)?.add(&b.as_ref().unwrap().forward(&x)?)));
}

#[test]
fn so_does_a_checkpointed_region_and_its_second_run_moves_nothing() {
    let (backend, device) = Failing::device();
    let x = batch(&device).with_grad().unwrap();
    let net = Arc::new(Net::new(&device));
    let run = |_: &Net| {
        let net = net.clone();
        checkpoint(move |x| net.forward(&x[0]), &[&x])
    };
    check(&backend, &*net, run);
    let before = bits(&*net);
    let loss = run(&net).unwrap().sum_all().unwrap();
    let after = bits(&*net);
    assert_ne!(before, after);
    for n in 1.. {
        let options = gradus_tensor::BackwardOptions::new().retain_graph();
        let (result, failed) = backend.at(n, || loss.backward_with(options));
        assert_eq!((result.is_err(), bits(&*net) == after), (failed.is_some(), true), "call {n}, {failed:?}");
        if failed.is_none() {
            break;
        }
    }
}

#[test]
fn attention_that_fails_after_dropout_drops_the_same_next_time() {
    let (backend, device) = Failing::device();
    let mut generator = Generator::new(2);
    let init = &mut Init::new(DType::F32, &device, &mut generator);
    let config = MultiheadAttentionConfig { dropout: 0.5, ..Default::default() };
    let attention = MultiheadAttention::new(4, 2, config, init).unwrap();
    let x = Tensor::ones([1, 3, 4], DType::F32, &device).unwrap();
    check(&backend, &attention, |a| a.attend(&x, &x, &x, None, gradus_tensor::Causal::No));
}

/// Runs a whole training step in which every call fails once. A device that fails in the middle of the optimiser's step
/// leaves the step unfinished, which is reported until the saved state is loaded. No other failure leaves a trace.
fn check_step<O: Optimizer>(dtype: DType, make: impl Fn(Vec<(String, gradus_nn::Parameter)>) -> O) {
    let (backend, device) = Failing::device();
    let new = || {
        let mut net = Net::new(&device);
        net.cast_parameters(dtype).unwrap();
        let optimizer = make(net.named_parameters());
        (net, optimizer)
    };
    let x = batch(&device).to_dtype(dtype).unwrap();
    let step = |net: &Net, optimizer: &mut O| {
        all_or_nothing(|| {
            let loss = net.forward(&x)?.square()?.mean_all()?;
            optimizer.step(&loss.backward()?)
        })
    };
    let all = |net: &Net, optimizer: &O| {
        let state = optimizer.state_dict().unwrap();
        let tensors = state.iter().map(|(name, t)| (format!("optimizer: {name}"), t.to_bytes().unwrap()));
        let texts = state.iter_metadata().map(|(name, text)| (name.to_owned(), text.as_bytes().to_vec()));
        bits(net).into_iter().chain(tensors).chain(texts).collect::<Vec<_>>()
    };
    let (mut net, mut optimizer) = new();
    let (reference, mut reference_optimizer) = new();
    for round in 0..2 {
        let before = all(&net, &optimizer);
        let (saved, saved_optimizer) = (net.state_dict().unwrap(), optimizer.state_dict().unwrap());
        let (mut calls, mut unfinished) = (0, 0);
        for n in 1.. {
            let (result, failed) = backend.at(n, || step(&net, &mut optimizer));
            let Some(name) = failed else { break };
            calls += 1;
            let text = result.unwrap_err().to_string();
            if text.contains("in the middle of a step") {
                unfinished += 1;
                assert_eq!(name, "map");
                assert!(text.contains("load what was saved last"), "{text}");
                for again in [step(&net, &mut optimizer).unwrap_err(), optimizer.state_dict().unwrap_err()] {
                    assert!(again.to_string().contains("in the middle of a step"), "{again}");
                }
                net.load_state_dict(&saved, Strict::Yes).unwrap();
                optimizer.load_state_dict(&saved_optimizer, Strict::Yes).unwrap();
            }
            assert_eq!(all(&net, &optimizer), before, "round {round}, call {n}, {name}: {text}");
        }
        // One kernel per parameter, and another one if the parameter is rounded from an f32 copy.
        assert_eq!(unfinished, 6 * if dtype == DType::F32 { 1 } else { 2 });
        assert!(calls > 50);
        step(&reference, &mut reference_optimizer).unwrap();
        assert_eq!(all(&net, &optimizer), all(&reference, &reference_optimizer));
    }
}

#[test]
fn a_whole_step_that_fails_at_any_call_changes_nothing_or_says_that_it_is_unfinished() {
    for dtype in [DType::F32, DType::BF16] {
        check_step(dtype, |p| AdamW::new(p, AdamConfig::default()).unwrap());
        check_step(dtype, |p| Sgd::new(p, SgdConfig { momentum: 0.9, ..Default::default() }).unwrap());
    }
}

/// A layer that fails if `how` says so, after the layer inside it has run.
#[derive(Module)]
struct Fails<M> {
    inside: M,
    how: &'static str,
}

impl<M: Forward> Forward for Fails<M> {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        let y = self.inside.forward(x)?;
        match self.how {
            "error" => Err(Error::argument("fails", "not today")),
            "panic" => panic!("not today"),
            _ => Ok(y),
        }
    }
}

/// Runs the second module if the first one fails.
#[derive(Module)]
struct Either<A, B>(A, B);

impl<A: Forward, B: Forward> Forward for Either<A, B> {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        self.0.forward(x).or_else(|_| self.1.forward(x))
    }
}

#[test]
fn a_part_that_fails_and_is_replaced_leaves_what_the_other_did() {
    let (_, device) = Failing::device();
    let net = Either(Fails { inside: Net::new(&device), how: "error" }, Net::new(&device));
    let (first, second) = (bits(&net.0), bits(&net.1));
    let _ = net.forward(&batch(&device)).unwrap();
    assert_eq!(bits(&net.0), first);
    assert_ne!(bits(&net.1), second);
}

#[test]
fn a_panic_puts_back_too() {
    let (_, device) = Failing::device();
    let net = Fails { inside: Net::new(&device), how: "panic" };
    let before = bits(&net);
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| net.forward(&batch(&device))));
    assert!(caught.is_err());
    assert_eq!(bits(&net), before);
}

#[test]
fn passes_on_several_threads_go_back_each_for_itself() {
    let (_, device) = Failing::device();
    let barrier = Barrier::new(4);
    std::thread::scope(|s| {
        for how in ["error", "no", "error", "no"] {
            let (device, barrier) = (&device, &barrier);
            s.spawn(move || {
                let net = Fails { inside: Net::new(device), how };
                let (before, x) = (bits(&net), batch(device));
                barrier.wait();
                for _ in 0..50 {
                    assert_eq!(net.forward(&x).is_ok(), how == "no");
                }
                assert_eq!(bits(&net) == before, how == "error");
            });
        }
    });
    // Every successful forward pass of a model counts.
    let net = Net::new(&device);
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                let _guard = no_grad_guard();
                (0..50).for_each(|_| drop(net.forward(&batch(&device)).unwrap()));
            });
        }
    });
    assert_eq!(net.norm.num_batches_tracked.as_ref().unwrap().tensor().item().unwrap(), 200.0);
}

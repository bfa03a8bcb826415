//! Tests that transfers between devices are explicit, differentiable and complete.
#![cfg(feature = "cpu")]
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use gradus::autograd;
use gradus::prelude::*;
use gradus::testing::{gradcheck, gradgradcheck};
use tiny_backend::TinyBackend;

fn cpu() -> Device {
    Device::cpu().unwrap()
}

fn tiny() -> Device {
    Device::from_backend(Arc::new(TinyBackend::new().unwrap()))
}

fn values(shape: &[usize], device: &Device) -> Tensor {
    let n = shape.iter().product::<usize>();
    let v: Vec<f64> = (0..n).map(|i| (i as f64 * 1.3 + 0.4).sin()).collect();
    Tensor::from_vec(v, shape, device).unwrap()
}

#[test]
fn values_arrive_in_every_dtype_and_layout() {
    let (here, there) = (cpu(), tiny());
    for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16, DType::I64, DType::U8, DType::Bool] {
        let x = values(&[3, 4, 5], &here).mul(3.0).unwrap().to_dtype(dtype).unwrap();
        for view in [x.clone(), x.transpose(0, 2).unwrap(), x.narrow(1, 1, 2).unwrap(), x.select(0, 1).unwrap()] {
            let moved = view.to_device(&there).unwrap();
            assert_eq!((moved.device(), moved.shape(), moved.dtype()), (&there, view.shape(), dtype));
            assert_eq!(moved.to_bytes().unwrap(), view.to_bytes().unwrap());
            assert_eq!(moved.to_device(&here).unwrap().to_bytes().unwrap(), view.to_bytes().unwrap());
        }
    }
    let nothing = Tensor::zeros([0, 3], DType::F32, &here).unwrap().to_device(&there).unwrap();
    assert_eq!((nothing.shape(), nothing.device()), (&[0, 3][..], &there));
    let x = values(&[2], &here);
    assert!(Arc::ptr_eq(x.to_device(&here).unwrap().storage(), x.storage()));
}

#[test]
fn gradients_of_any_order_come_back() {
    let there = tiny();
    let x = values(&[2, 3], &cpu());
    let round_trip = |x: &[Tensor]| {
        let y = x[0].t()?.sin()?.to_device(&there)?.exp()?.to_device(x[0].device())?;
        y.mul(&x[0].t()?)
    };
    gradcheck(round_trip, std::slice::from_ref(&x)).unwrap();
    gradgradcheck(round_trip, std::slice::from_ref(&x)).unwrap();

    // The result stays on the other device, and its gradient comes back to this one.
    let x = x.with_grad().unwrap();
    let y = x.to_device(&there).unwrap();
    let name = y.grad_fn().unwrap().name().to_owned();
    let gradients = y.square().unwrap().sum_all().unwrap().backward().unwrap();
    let dx = gradients.get(&x).unwrap();
    assert_eq!((name.as_str(), dx.device()), ("to_device", x.device()));
    assert_eq!(dx.to_vec::<f64>().unwrap(), x.detach().mul(2.0).unwrap().to_vec::<f64>().unwrap());
}

#[test]
fn a_gradient_of_zero_and_hooks_know_where_they_are() {
    let there = tiny();
    let x = values(&[3], &cpu()).with_grad().unwrap();
    let y = x.to_device(&there).unwrap();
    // The slope of floor is zero. The hook on the other device receives it as zeros on that device.
    let seen = Arc::new(std::sync::Mutex::new(None));
    let kept = seen.clone();
    let _hook = y.register_hook(move |g| {
        *kept.lock().unwrap() = Some(g.clone());
        Ok(Some(g.add(1.0)?))
    });
    let gradients = y.floor().unwrap().sum_all().unwrap().backward().unwrap();
    assert_eq!(seen.lock().unwrap().as_ref().unwrap().device(), &there);
    assert_eq!(gradients.get(&x).unwrap().to_vec::<f64>().unwrap(), [1.0; 3]);
    assert_eq!(gradients.get(&x).unwrap().device(), x.device());
    // A hook that returns a gradient on the wrong device causes an error.
    let here = x.device().clone();
    let _wrong = y.register_hook(move |g| g.to_device(&here).map(Some));
    let e = y.square().unwrap().sum_all().unwrap().backward().unwrap_err();
    assert_eq!(e.kind(), &ErrorKind::DeviceMismatch, "{e}");
}

#[test]
fn a_checkpointed_region_and_packed_values_may_cross() {
    let (here, there) = (cpu(), tiny());
    let x = values(&[4], &here).with_grad().unwrap();
    let region = {
        let (here, there) = (here.clone(), there.clone());
        move |x: &[Tensor]| x[0].to_device(&there)?.sin()?.square()?.to_device(&here)
    };
    let plain = region(std::slice::from_ref(&x)).unwrap().sum_all().unwrap().backward().unwrap();
    let again = checkpoint(region, &[&x]).unwrap().sum_all().unwrap().backward().unwrap();
    let packed = {
        // Saved tensors of the other device are kept on this device instead.
        let (to, back) = (here.clone(), there.clone());
        let _guard = autograd::saved_tensors_hooks_guard(move |t| t.to_device(&to), move |p| p.to_device(&back));
        x.to_device(&there).unwrap().sin().unwrap().square().unwrap().sum_all().unwrap()
    };
    let packed = packed.backward().unwrap();
    let numbers = |g: &Gradients| g.get(&x).unwrap().to_vec::<f64>().unwrap();
    assert_eq!(numbers(&plain), numbers(&again));
    assert_eq!(numbers(&plain), numbers(&packed));
}

#[test]
fn an_operation_on_two_devices_names_both() {
    let (a, b) = (values(&[2, 2], &cpu()), values(&[2, 2], &tiny()));
    let failures = [
        a.add(&b).unwrap_err(),
        a.matmul(&b).unwrap_err(),
        Tensor::cat(&[&a, &b], 0).unwrap_err(),
        a.add_(&b).unwrap_err(),
        a.copy_(&b).unwrap_err(),
        b.index_select(0, &Tensor::from_vec(vec![0i64], [1], a.device()).unwrap()).unwrap_err(),
    ];
    for e in failures {
        assert_eq!(e.kind(), &ErrorKind::DeviceMismatch, "{e}");
        let text = e.to_string();
        assert!(text.contains(" cpu") && text.contains(" tiny"), "{text}");
        assert!(!text.contains("two devices with the name"), "{text}");
    }
    // The two devices have the same name, so the error says that they differ.
    let e = b.add(values(&[2, 2], &tiny())).unwrap_err().to_string();
    assert!(e.contains("two devices with the name tiny"), "{e}");
}

#[derive(Module)]
struct Net {
    first: Linear,
    norm: BatchNorm2d,
    second: Linear,
    tied: Parameter,
}

impl Net {
    fn new(device: &Device) -> Net {
        let mut generator = Generator::new(4);
        let mut init = Init::new(DType::F64, device, &mut generator);
        let first = Linear::new(3, 4, &mut init).unwrap();
        let second = Linear::new(4, 2, &mut init).unwrap();
        let norm = BatchNorm2d::new(4, BatchNormConfig::default(), &mut init).unwrap();
        let tied = first.weight.clone();
        Net { first, norm, second, tied }
    }

    fn loss(&self, device: &Device) -> Tensor {
        let x = values(&[5, 3], device);
        let h = self.first.forward(&x).unwrap().reshape([5, 4, 1, 1]).unwrap();
        let h = self.norm.forward(&h).unwrap().reshape([5, 4]).unwrap();
        self.second.forward(&h).unwrap().square().unwrap().mean_all().unwrap()
    }

    fn step(&self, optimizer: &mut impl Optimizer, device: &Device) -> f64 {
        let loss = self.loss(device);
        optimizer.step(&loss.backward().unwrap()).unwrap();
        loss.item().unwrap()
    }
}

#[test]
fn a_model_and_its_optimiser_move_and_train_on_as_if_they_had_stayed() {
    let (here, there) = (cpu(), tiny());
    let config = AdamConfig { lr: 0.05, ..Default::default() };
    let run = |moves: bool| {
        let mut net = Net::new(&here);
        let mut optimizer = AdamW::new(net.named_parameters(), config).unwrap();
        let mut losses: Vec<f64> = (0..3).map(|_| net.step(&mut optimizer, &here)).collect();
        let device = if moves { &there } else { &here };
        if moves {
            net.first.bias.as_ref().unwrap().freeze();
            net.to_device(device).unwrap();
            assert!(net.tied.is_same(&net.first.weight) && net.first.bias.as_ref().unwrap().is_frozen());
            net.first.bias.as_ref().unwrap().unfreeze();
            assert!(net.state_dict().unwrap().iter().all(|(_, t)| *t.device() == *device));
            // Until the optimiser is rebound, it does not know any of these parameters.
            assert!(optimizer.step(&net.loss(device).backward().unwrap()).is_err());
            optimizer.rebind(net.named_parameters()).unwrap();
            assert!(optimizer.state_dict().unwrap().iter().all(|(_, t)| *t.device() == *device));
        }
        // The forward pass of the failed step updated the running statistics, which no training loss reads.
        losses.extend((0..3).map(|_| net.step(&mut optimizer, device)));
        losses
    };
    let (stayed, moved) = (run(false), run(true));
    assert!(stayed[5] < stayed[0]);
    for (a, b) in stayed.iter().zip(&moved) {
        assert!((a - b).abs() < 1e-9, "{stayed:?} {moved:?}");
    }
}

#[test]
fn rebinding_keeps_everything_or_changes_nothing() {
    let here = cpu();
    let mut net = Net::new(&here);
    let mut optimizer =
        Sgd::new(net.named_parameters(), SgdConfig { lr: 0.1, momentum: 0.9, ..Default::default() }).unwrap();
    net.step(&mut optimizer, &here);
    let before = optimizer.state_dict().unwrap();
    let mut fewer = net.named_parameters();
    fewer.pop();
    assert!(optimizer.rebind(fewer).unwrap_err().message().contains("no parameter"));
    let mut other = net.named_parameters();
    other[0].1 = Parameter::new(values(&[9], &here)).unwrap();
    assert_eq!(optimizer.rebind(other).unwrap_err().kind(), &ErrorKind::ShapeMismatch);
    assert!(optimizer.parameters().iter().zip(net.named_parameters()).all(|(a, (_, b))| a.is_same(&b)));
    // If the dtype of the parameters changes, the state is converted.
    net.cast_parameters(DType::BF16).unwrap();
    optimizer.rebind(net.named_parameters()).unwrap();
    let after = optimizer.state_dict().unwrap();
    assert_eq!(before.len(), after.len());
    for (name, t) in after.iter() {
        assert_eq!(t.dtype(), DType::F32, "{name}");
        let (old, new) = (before.get(name).unwrap().to_vec::<f64>().unwrap(), t.to_vec::<f32>().unwrap());
        assert!(old.iter().zip(&new).all(|(a, &b)| *a as f32 == b), "{name}");
    }
    assert_eq!(optimizer.lr(), [0.1]);
}

#[test]
fn checkpoints_are_read_on_any_device() {
    let (here, there) = (cpu(), tiny());
    let net = Net::new(&here);
    let path = std::env::temp_dir().join(format!("gradus-to-device-{}.safetensors", std::process::id()));
    net.save_safetensors(&path).unwrap();
    let state = StateDict::load_safetensors(&path, &there);
    std::fs::remove_file(&path).unwrap();
    let state = state.unwrap();
    assert!(state.iter().all(|(_, t)| *t.device() == there));
    // The state can be loaded into a model on another device, and can be moved as a whole.
    let mut other = Net::new(&here);
    other.first.weight.set(&values(&[4, 3], &here)).unwrap();
    assert!(other.load_state_dict(&state, Strict::Yes).unwrap().is_complete());
    let moved = state.to_device(&here).unwrap();
    assert_eq!(moved.len(), state.len());
    for (name, t) in moved.iter() {
        assert_eq!(t.device(), &here);
        assert_eq!(t.to_bytes().unwrap(), other.state_dict().unwrap().get(name).unwrap().to_bytes().unwrap(), "{name}");
    }
    let same = |s: &StateDict| Arc::ptr_eq(s.get("tied").unwrap().storage(), s.get("first.weight").unwrap().storage());
    assert!(same(&state) && same(&moved));
}

//! Tests of moves between the CPU and an adapter: of values and gradients, and of a model that continues to train.

mod common;

use std::sync::Arc;

use gradus::prelude::*;

fn devices() -> Option<(Device, Device)> {
    let there = Device::from_backend(Arc::new(common::opened()?));
    Some((Device::cpu().expect("a CPU"), there))
}

fn values(shape: &[usize], device: &Device) -> Tensor {
    let n = shape.iter().product::<usize>();
    let values: Vec<f32> = (0..n).map(|i| (i as f32 * 1.3 + 0.4).sin()).collect();
    Tensor::from_vec(values, shape, device).expect("values")
}

#[test]
fn values_and_gradients_cross() {
    let Some((here, there)) = devices() else { return };
    let x = values(&[3, 4, 5], &here).mul(3.0).expect("values");
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::I32, DType::U8, DType::Bool] {
        let x = x.to_dtype(dtype).expect("values");
        for view in [x.clone(), x.transpose(0, 2).expect("a view"), x.narrow(1, 1, 2).expect("a view")] {
            let moved = view.to_device(&there).expect("a move");
            assert_eq!((moved.device(), moved.shape(), moved.dtype()), (&there, view.shape(), dtype));
            assert_eq!(moved.to_bytes().expect("bytes"), view.to_bytes().expect("bytes"));
            let back = moved.to_device(&here).expect("a move");
            assert_eq!(back.to_bytes().expect("bytes"), view.to_bytes().expect("bytes"));
        }
    }
    let x = x.with_grad().expect("a leaf");
    let y = x.transpose(0, 2).and_then(|x| x.to_device(&there)).expect("a move");
    let loss = y.square().and_then(|y| y.to_device(&here)).and_then(|y| y.sum_all()).expect("a loss");
    let gradients = loss.backward().expect("gradients");
    let dx = gradients.get(&x).expect("a gradient");
    assert_eq!(dx.device(), &here);
    let want = x.detach().mul(2.0).and_then(|x| x.to_vec::<f32>()).expect("values");
    assert_eq!(dx.to_vec::<f32>().expect("values"), want);
    let e = x.detach().add(y.detach().transpose(0, 2).expect("a view")).expect_err("two devices");
    assert!(e.kind() == &ErrorKind::DeviceMismatch, "{e}");
    assert!(e.to_string().contains(here.name()) && e.to_string().contains(there.name()), "{e}");
}

#[derive(Module)]
struct Net {
    first: Linear,
    second: Linear,
}

impl Net {
    fn new(device: &Device) -> Result<Net> {
        let mut generator = Generator::new(4);
        let mut init = Init::new(DType::F32, device, &mut generator);
        Ok(Net { first: Linear::new(3, 8, &mut init)?, second: Linear::new(8, 2, &mut init)? })
    }

    fn step(&self, optimizer: &mut AdamW, device: &Device) -> Result<f64> {
        let h = self.first.forward(&values(&[5, 3], device))?.gelu()?;
        let loss = self.second.forward(&h)?.square()?.mean_all()?;
        optimizer.step(&loss.backward()?)?;
        loss.item()
    }
}

#[test]
fn a_model_and_its_optimiser_train_on_where_they_are_moved() {
    let Some((here, there)) = devices() else { return };
    let run = |moves: bool| -> Result<Vec<f64>> {
        let mut net = Net::new(&here)?;
        let config = AdamConfig { lr: 0.05, ..Default::default() };
        let mut optimizer = AdamW::new(net.named_parameters(), config)?;
        let mut losses = (0..3).map(|_| net.step(&mut optimizer, &here)).collect::<Result<Vec<_>>>()?;
        let device = if moves { &there } else { &here };
        if moves {
            net.to_device(device)?;
            optimizer.rebind(net.named_parameters())?;
            let (parameters, state) = (net.state_dict()?, optimizer.state_dict()?);
            assert!(parameters.iter().chain(state.iter()).all(|(_, t)| t.device() == device));
        }
        for _ in 0..5 {
            losses.push(net.step(&mut optimizer, device)?);
        }
        Ok(losses)
    };
    let (stayed, moved) = (run(false).expect("losses"), run(true).expect("losses"));
    assert!(stayed[7] < stayed[0] / 2.0, "{stayed:?}");
    for (a, b) in stayed.iter().zip(&moved) {
        assert!((a - b).abs() < 1e-5 * a.abs().max(1e-2), "{stayed:?} {moved:?}");
    }
}

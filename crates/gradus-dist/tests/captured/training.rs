//! Training steps over ranks: captured and eager ones give the same bits, for any number of ranks.

use std::ops::Range;

use gradus_dist::{DataParallel, Options, ShardedOptimizer, SyncBatchNorm, threads};
use gradus_graph::{Captured, capture};
use gradus_models::{Gpt2, Gpt2Config, ResNet, ResNetConfig};
use gradus_nn::{
    AdamConfig, AdamW, BatchNorm1d, BatchNormConfig, Conv2d, ConvConfig, Dropout, Flatten, Forward, Init, Linear,
    Module, Optimizer, Relu, Sequential, clip_grad_norm_on_device,
};
use gradus_tensor::{DType, Device, ErrorKind, Generator, Result, Tensor};

use crate::device;

const STEPS: usize = 5;

/// How a model is trained.
#[derive(Clone, Copy, PartialEq)]
enum How {
    Whole,
    /// With gradients that are clipped on the device.
    Clipped,
    /// With an optimiser whose state is divided (ZeRO 2).
    Divided,
    /// With divided parameters (ZeRO 3).
    Sharded,
}

/// The weights, running statistics and random states of all ranks after a few steps, and the losses.
fn train<M: Module + Forward>(
    ranks: usize,
    captured: bool,
    how: How,
    make: impl Fn(&Device, &mut Init<'_>) -> Result<M> + Sync,
    batch: impl Fn(&Device, usize) -> Result<(Tensor, Tensor)> + Sync,
) -> Vec<u8> {
    let mut all = threads(ranks, Options::default(), |comm| {
        let device = device()?;
        let mut rng = Generator::new(3);
        let model = make(&device, &mut Init::new(DType::F32, &device, &mut rng))?;
        let parallel = DataParallel::new(comm.clone())?;
        let adam = |parameters| AdamW::new(parameters, AdamConfig { lr: 0.02, ..AdamConfig::default() });
        let mut whole = adam(model.named_parameters())?;
        let mut divided = match how {
            How::Sharded => ShardedOptimizer::fully_sharded(&parallel, &model, adam)?,
            _ => ShardedOptimizer::new(&parallel, &model, adam)?,
        };
        let mut step = |x: &[Tensor]| -> Result<Tensor> {
            let loss = |rows: Range<usize>| {
                let classes = model.forward(&x[0].narrow(0, rows.start, rows.len())?)?;
                let y = x[1].narrow(0, rows.start, rows.len())?;
                classes.reshape([y.numel(), classes.size(-1)?])?.cross_entropy(&y.reshape([y.numel()])?)
            };
            if matches!(how, How::Divided | How::Sharded) {
                return divided.step(&model, x[0].shape()[0], loss);
            }
            let (loss, mut gradients) = parallel.backward(&model, x[0].shape()[0], loss)?;
            if how == How::Clipped {
                let _ = clip_grad_norm_on_device(&mut gradients, &model.parameters(), 0.1)?;
            }
            whole.step(&gradients)?;
            Ok(loss)
        };
        let mut bytes = vec![];
        if captured {
            let mut step = capture(step);
            for i in 0..STEPS {
                let (x, y) = batch(&device, i)?;
                bytes.extend(step.call::<Tensor>(&[&x, &y])?.to_bytes()?);
            }
            // The first call makes the state of the optimiser, so that the second and the third agree.
            assert!(step.replays() >= STEPS as u64 - 3, "{} replays", step.replays());
        } else {
            for i in 0..STEPS {
                let (x, y) = batch(&device, i)?;
                bytes.extend(step(&[x, y])?.to_bytes()?);
            }
        }
        divided.gather()?;
        for (_, tensor) in model.state_dict()?.iter() {
            bytes.extend(tensor.to_bytes()?);
        }
        for (_, state) in model.named_random_states() {
            bytes.extend([state.get().seed(), state.get().offset()].map(u64::to_le_bytes).concat());
        }
        Ok(bytes)
    })
    .unwrap();
    let first = all.remove(0);
    assert!(all.iter().all(|other| *other == first), "ranks differ");
    first
}

fn compare<M: Module + Forward>(
    name: &str,
    hows: &[How],
    make: impl Fn(&Device, &mut Init<'_>) -> Result<M> + Sync,
    batch: impl Fn(&Device, usize) -> Result<(Tensor, Tensor)> + Sync,
) {
    for &how in hows {
        let one = train(1, false, how, &make, &batch);
        for ranks in [1, 2, 4] {
            assert!(train(ranks, true, how, &make, &batch) == one, "{name} on {ranks} ranks");
        }
    }
}

/// Its bits depend on the number of ranks.
#[test]
fn a_network_whose_statistics_are_those_of_all_ranks() {
    for ranks in [1, 2, 4] {
        let trained = |captured: bool| {
            threads(ranks, Options::default(), |comm| {
                let device = device()?;
                let mut rng = Generator::new(3);
                let mut init = Init::new(DType::F32, &device, &mut rng);
                let norm = SyncBatchNorm::new(8, BatchNormConfig::default(), comm, &mut init)?;
                let model = Sequential::new().add(Linear::new(5, 8, &mut init)?).add(norm).add(Relu);
                let parallel = DataParallel::with_shards(comm.clone(), ranks)?;
                let mut optimizer = AdamW::new(model.named_parameters(), AdamConfig::default())?;
                let mut step = |x: &[Tensor]| {
                    let loss = |rows: Range<usize>| model.forward(&x[0].narrow(0, rows.start, rows.len())?)?.mean_all();
                    let (loss, gradients) = parallel.backward(&model, x[0].shape()[0], loss)?;
                    optimizer.step(&gradients)?;
                    Ok(loss)
                };
                let batch = |i: u64| Tensor::randn([20, 5], DType::F32, &device, &mut Generator::new(i));
                if captured {
                    let mut step = capture(step);
                    for i in 0..5 {
                        let _ = step.call::<Tensor>(&[&batch(i)?])?;
                    }
                    assert!(step.replays() >= 2);
                } else {
                    for i in 0..5 {
                        let _ = step(&[batch(i)?])?;
                    }
                }
                model.state_dict()?.iter().map(|(_, tensor)| tensor.to_bytes()).collect::<Result<Vec<_>>>()
            })
            .unwrap()
        };
        assert!(trained(true) == trained(false), "{ranks} ranks");
    }
}

fn classes(device: &Device, n: usize, rng: &mut Generator) -> Result<Tensor> {
    Tensor::randint(0, 4, [n], DType::I64, device, rng)
}

#[test]
fn a_network_with_statistics_and_dropout() {
    let make = |device: &Device, init: &mut Init<'_>| {
        let norm = BatchNorm1d::new(8, BatchNormConfig::default(), init)?;
        let model = Sequential::new().add(Linear::new(5, 8, init)?).add(norm).add(Relu);
        let _ = device;
        Ok(model.add(Dropout::new(0.3, &mut Generator::new(5))?).add(Linear::new(8, 4, init)?))
    };
    let batch = |device: &Device, i: usize| {
        let mut rng = Generator::new(20 + i as u64);
        Ok((Tensor::randn([40, 5], DType::F32, device, &mut rng)?, classes(device, 40, &mut rng)?))
    };
    compare("network", &[How::Whole, How::Clipped, How::Divided, How::Sharded], make, batch);
}

/// A batch with fewer rows than shards: some ranks compute nothing.
#[test]
fn a_batch_that_is_smaller_than_the_ranks() {
    let make = |_: &Device, init: &mut Init<'_>| Ok(Sequential::new().add(Linear::new(3, 4, init)?));
    let batch = |device: &Device, i: usize| {
        let mut rng = Generator::new(20 + i as u64);
        Ok((Tensor::randn([2, 3], DType::F32, device, &mut rng)?, classes(device, 2, &mut rng)?))
    };
    compare("small batch", &[How::Whole, How::Divided], make, batch);
}

fn pictures(device: &Device, i: usize) -> Result<(Tensor, Tensor)> {
    let mut rng = Generator::new(20 + i as u64);
    Ok((Tensor::randn([32, 1, 8, 8], DType::F32, device, &mut rng)?, classes(device, 32, &mut rng)?))
}

#[test]
fn a_convolutional_network() {
    let make = |_: &Device, init: &mut Init<'_>| {
        let conv = Conv2d::new(1, 4, [3, 3], ConvConfig::default(), init)?;
        Ok(Sequential::new().add(conv).add(Relu).add(Flatten::default()).add(Linear::new(4 * 36, 4, init)?))
    };
    compare("cnn", &[How::Whole, How::Divided, How::Sharded], make, pictures);
}

#[test]
fn a_resnet() {
    let make = |_: &Device, init: &mut Init<'_>| {
        let config = ResNetConfig {
            layers: [1; 4],
            num_classes: 4,
            in_channels: 1,
            width: 4,
            small_images: true,
            ..ResNetConfig::resnet18()
        };
        ResNet::new(config, init)
    };
    compare("resnet", &[How::Whole], make, pictures);
}

#[test]
fn a_gpt() {
    let make = |_: &Device, init: &mut Init<'_>| {
        let config =
            Gpt2Config { vocab_size: 16, n_positions: 8, n_embd: 16, n_layer: 2, n_head: 2, ..Gpt2Config::default() };
        Gpt2::new(config, init)
    };
    let batch = |device: &Device, i: usize| {
        let text = Tensor::randint(0, 16, [16, 9], DType::I64, device, &mut Generator::new(20 + i as u64))?;
        Ok((text.narrow(1, 0, 8)?.contiguous()?, text.narrow(1, 1, 8)?.contiguous()?))
    };
    compare("gpt", &[How::Whole, How::Divided, How::Sharded], make, batch);
}

/// Between two replays, divided parameters are gathered, written, read, and needed by a graph of the user's.
#[test]
fn divided_parameters_are_gathered_and_written_between_replays() {
    let trained = |captured: bool| {
        threads(2, Options::default(), |comm| {
            let device = device()?;
            let mut rng = Generator::new(3);
            let model = Linear::new(3, 2, &mut Init::new(DType::F32, &device, &mut rng))?;
            let adam = |parameters| AdamW::new(parameters, AdamConfig { lr: 0.1, ..AdamConfig::default() });
            let mut optimizer = ShardedOptimizer::fully_sharded(&DataParallel::new(comm.clone())?, &model, adam)?;
            let mut step = Captured::strict();
            let (mut bytes, mut stale) = (vec![], vec![]);
            for i in 0..8 {
                let x = Tensor::randn([16, 3], DType::F32, &device, &mut Generator::new(i))?;
                let mut run = || {
                    let loss = |rows: Range<usize>| model.forward(&x.narrow(0, rows.start, 1)?)?.square()?.mean_all();
                    optimizer.step(&model, 16, loss)
                };
                let loss = match captured {
                    true => step.call(0, &[&x], |_| Ok((vec![run()?], ())))?.0.pop(),
                    false => Some(run()?),
                };
                bytes.extend(loss.map(|loss| loss.to_bytes()).transpose()?.unwrap_or_default());
                if let Some(graph) = stale.pop() {
                    optimizer.gather()?;
                    let graph: Tensor = graph;
                    bytes.push(u8::from(graph.backward().is_err_and(|e| *e.kind() == ErrorKind::Autograd)));
                }
                if i % 2 == 1 {
                    optimizer.gather()?;
                    bytes.extend(model.weight.values().to_bytes()?);
                    stale.push(model.weight.tensor().square()?.sum_all()?);
                }
                if i == 5 {
                    model.weight.set(&Tensor::full([2, 3], 0.5, DType::F32, &device)?)?;
                    stale.clear();
                }
                if i == 6 {
                    let y = optimizer.supplied(|| model.forward(&x)?.detach().to_bytes())?;
                    bytes.extend(y);
                }
            }
            assert_eq!(step.replays() > 2, captured);
            Ok(bytes)
        })
        .unwrap()
    };
    let eager = trained(false);
    assert!(trained(true) == eager);
}

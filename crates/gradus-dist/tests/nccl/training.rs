//! Training over NCCL gives the same bits for any number of ranks.

use std::sync::Arc;

use gradus_dist::nccl::Reduction;
use gradus_dist::{Communicator, DataParallel, Options, Pipeline, Stage, threads};
use gradus_graph::Captured;
use gradus_nn::{Forward, Init, Linear, Module, Optimizer, Sgd, SgdConfig};
use gradus_tensor::{DType, Device, Generator, Reduction as Mean, Result, Tensor};

use crate::stand_in::{counted, gpu, inside, ranks};

#[derive(Module)]
struct Net {
    first: Linear,
    last: Linear,
}

/// Some steps, and then the bits of the losses and of the weights.
fn trained(comm: &Arc<dyn Communicator>, device: &Device) -> Result<Vec<u32>> {
    let mut generator = Generator::new(7);
    let x = Tensor::randn([24, 5], DType::F32, device, &mut generator)?;
    let y = x.sum(&[1], true)?;
    let mut init = Init::new(DType::F32, device, &mut generator);
    let net = Net { first: Linear::new(5, 8, &mut init)?, last: Linear::new(8, 1, &mut init)? };
    let parallel = DataParallel::with_shards(comm.clone(), 4)?;
    parallel.synchronize(&net)?;
    let mut optimizer =
        Sgd::new(net.named_parameters(), SgdConfig { lr: 0.05, momentum: 0.9, ..SgdConfig::default() })?;
    let mut bits = vec![];
    for _ in 0..3 {
        let (loss, gradients) = parallel.backward(&net, 24, |rows| {
            let (x, y) = (x.narrow(0, rows.start, rows.len())?, y.narrow(0, rows.start, rows.len())?);
            net.last.forward(&net.first.forward(&x)?.tanh()?)?.mse_loss(&y, Mean::Mean)
        })?;
        optimizer.step(&gradients)?;
        bits.extend(loss.to_vec::<f32>()?);
    }
    for (_, parameter) in net.named_parameters() {
        bits.extend(parameter.values().detach().to_vec::<f32>()?);
    }
    Ok(bits.into_iter().map(f32::to_bits).collect())
}

#[test]
fn any_number_of_gpus_gives_the_bits_of_one() {
    inside("training::any_number_of_gpus_gives_the_bits_of_one", || {
        // Without NCCL: one GPU, and two whose data goes over the host.
        let alone = threads(1, Options::default(), |comm| trained(comm, &gpu(0)?)).unwrap().remove(0);
        let over_host = threads(2, Options::default(), |comm| trained(comm, &gpu(comm.rank())?)).unwrap();
        assert_eq!(over_host, vec![alone.clone(); 2]);
        assert_eq!(counted("ncclCommInitRankConfig"), 0);
        for size in [1, 2, 4] {
            let found = ranks(size, Reduction::Tree, trained).unwrap();
            assert_eq!(found, vec![alone.clone(); size], "{size} GPUs");
        }
        assert!(alone.iter().any(|&bits| f32::from_bits(bits) != 0.0));
        // Where there are several ranks, the buckets of `DataParallel` have a communicator of their own.
        assert_eq!(counted("ncclCommInitRankConfig"), 1 + 2 * (2 + 4));
        // Without the promise, the loss is the same within rounding, and the same on both ranks.
        let fast = ranks(2, Reduction::Nccl, trained).unwrap();
        let close = |(a, b): (&u32, &u32)| (f32::from_bits(*a) - f32::from_bits(*b)).abs() < 1e-5;
        assert!(fast[0] == fast[1] && fast[0].iter().zip(&alone).all(close), "{fast:?}");
    });
}

/// Some steps of a pipeline, and then the bits of the losses and of the weights of this stage.
fn piped(comm: &Arc<dyn Communicator>, device: &Device, captured: bool) -> Result<[Vec<u32>; 2]> {
    let x = Tensor::randn([24, 5], DType::F32, device, &mut Generator::new(7))?;
    let y = x.sum(&[1], true)?;
    let layer = |i: usize| {
        let mut generator = Generator::new(8).fork(i as u64);
        Linear::new(5, if i == 3 { 1 } else { 5 }, &mut Init::new(DType::F32, device, &mut generator))
    };
    let stage = Stage::even(comm, 4, layer)?;
    let pipeline = Pipeline::new(comm, 8, device)?;
    let mut optimizer = Sgd::new(stage.named_parameters(), SgdConfig { lr: 0.05, ..SgdConfig::default() })?;
    let mut step = |x: &Tensor| {
        let input = |rows: std::ops::Range<usize>| x.narrow(0, rows.start, rows.len());
        let (loss, mut gradients) = pipeline.backward(&stage, 24, input, |output, rows| {
            output.mse_loss(&y.narrow(0, rows.start, rows.len())?, Mean::Mean)
        })?;
        let _ = pipeline.clip_grad_norm_on_device(&mut gradients, &stage.parameters(), 0.5)?;
        optimizer.step(&gradients)?;
        Ok(loss)
    };
    let (mut losses, mut replayed) = (vec![], Captured::strict());
    for _ in 0..5 {
        let loss = match captured {
            true => replayed.call(0, &[&x], |x| Ok((vec![step(&x[0])?], ())))?.0.remove(0),
            false => step(&x)?,
        };
        losses.push(loss.to_vec::<f32>()?[0].to_bits());
    }
    assert_eq!(replayed.replays(), if captured { 3 } else { 0 });
    let mut weights = vec![];
    for (_, parameter) in stage.named_parameters() {
        weights.extend(parameter.values().detach().to_vec::<f32>()?);
    }
    Ok([losses, weights.into_iter().map(f32::to_bits).collect()])
}

#[test]
fn stages_on_several_gpus_give_the_bits_of_one() {
    inside("training::stages_on_several_gpus_give_the_bits_of_one", || {
        let alone = threads(1, Options::default(), |comm| piped(comm, &gpu(0)?, false)).unwrap().remove(0);
        for (size, captured) in [(2, false), (2, true), (4, true)] {
            let found = ranks(size, Reduction::Tree, |comm, device| piped(comm, device, captured)).unwrap();
            assert!(found.iter().all(|[losses, _]| *losses == alone[0]), "{size} GPUs, captured: {captured}");
            let weights: Vec<u32> = found.into_iter().flat_map(|[_, weights]| weights).collect();
            assert_eq!(weights, alone[1], "{size} GPUs, captured: {captured}");
        }
        let over_host = threads(2, Options::default(), |comm| piped(comm, &gpu(comm.rank())?, true)).unwrap();
        assert!(over_host.iter().all(|[losses, _]| *losses == alone[0]));
    });
}

//! Training on several ranks: the same bits for any number of them, and the errors.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use gradus_cpu::CpuBackend;
use gradus_dist::{Communicator, DataParallel, Options, ShardedOptimizer, threads};
use gradus_nn::{
    AdamConfig, AdamW, BatchNorm1d, BatchNormConfig, Dropout, Forward, Init, Lamb, LambConfig, Linear, Module,
    NonFinite, Optimizer, Relu, Sequential, StateDict, Strict, clip_grad_norm,
};
use gradus_tensor::{DType, Device, Error, ErrorKind, Generator, Gradients, Reduction, Result, Tensor};

const BATCH: usize = 40;

fn device() -> Result<Device> {
    Ok(Device::from_backend(Arc::new(CpuBackend::new()?)))
}

/// A network with running statistics and random numbers, whose weights depend on the seed.
fn network(device: &Device, seed: u64) -> Result<Sequential> {
    let mut rng = Generator::new(seed);
    let norm = BatchNorm1d::new(8, BatchNormConfig::default(), &mut Init::new(DType::F32, device, &mut rng))?;
    let dropout = Dropout::new(0.3, &mut rng)?;
    let mut init = Init::new(DType::F32, device, &mut rng);
    let (first, second) = (Linear::new(5, 8, &mut init)?, Linear::new(8, 1, &mut init)?);
    Ok(Sequential::new().add(first).add(norm).add(Relu).add(dropout).add(second))
}

fn loss(model: &Sequential, x: &Tensor, rows: std::ops::Range<usize>) -> Result<Tensor> {
    let x = x.narrow(0, rows.start, rows.len())?;
    model.forward(&x)?.mse_loss(&x.sum(&[1], true)?, Reduction::Mean)
}

fn inputs(device: &Device) -> Result<Tensor> {
    Tensor::randn([BATCH, 5], DType::F32, device, &mut Generator::new(3))
}

/// All bytes of a state.
fn bytes(state: &StateDict) -> Result<Vec<u8>> {
    Ok(state.iter().map(|(_, tensor)| tensor.to_bytes()).collect::<Result<Vec<_>>>()?.concat())
}

/// The weights after a few steps on so many ranks, with buckets of so many bytes; rank 0's seed counts.
fn trained(ranks: usize, sharded: bool, bucket: usize) -> Vec<u8> {
    let all = threads(ranks, Options::default(), |comm| {
        let device = device()?;
        let x = inputs(&device)?;
        let model = network(&device, 1 + comm.rank() as u64)?;
        let parallel = DataParallel::new(comm.clone())?.bucket_bytes(bucket);
        parallel.synchronize(&model)?;
        let adam = |parameters| AdamW::new(parameters, AdamConfig { lr: 0.05, ..AdamConfig::default() });
        if sharded {
            let mut optimizer = ShardedOptimizer::new(&parallel, &model, adam)?;
            for _ in 0..4 {
                let _ = optimizer.step(&model, BATCH, |rows| loss(&model, &x, rows))?;
            }
        } else {
            let mut optimizer = adam(model.named_parameters())?;
            for _ in 0..4 {
                let (_, gradients) = parallel.backward(&model, BATCH, |rows| loss(&model, &x, rows))?;
                optimizer.step(&gradients)?;
            }
        }
        bytes(&model.state_dict()?)
    });
    let mut all = all.unwrap();
    let first = all.remove(0);
    assert!(all.iter().all(|other| *other == first), "ranks have different weights");
    first
}

#[test]
fn any_number_of_ranks_gives_the_same_bits() {
    let one = trained(1, false, 1 << 20);
    for ranks in [2, 4, 8, 16] {
        assert!(trained(ranks, false, 1 << 20) == one, "{ranks} ranks");
    }
}

#[test]
fn a_divided_optimizer_gives_the_bits_of_a_whole_one() {
    let whole = trained(1, false, 1 << 20);
    for bucket in [1, 64, 1 << 20] {
        for ranks in [1, 2, 4] {
            assert!(trained(ranks, true, bucket) == whole, "{ranks} ranks, buckets of {bucket} bytes");
        }
    }
}

#[test]
fn gradients_of_a_divided_optimizer_are_clipped_by_the_norm_of_all() {
    let mut bits = None;
    for ranks in [1, 2, 4, 16] {
        let mut all = threads(ranks, Options::default(), |comm| {
            let device = device()?;
            let x = inputs(&device)?;
            let [model, whole] = [network(&device, 1)?, network(&device, 1)?];
            let parallel = DataParallel::new(comm.clone())?;
            let adam = |parameters| AdamW::new(parameters, AdamConfig { lr: 0.05, ..AdamConfig::default() });
            let mut optimizer = ShardedOptimizer::new(&parallel, &model, adam)?;
            optimizer.clip_norm(0.01)?;
            assert_eq!(optimizer.grad_norm(), None);
            let mut theirs = adam(whole.named_parameters())?;
            for _ in 0..3 {
                let _ = optimizer.step(&model, BATCH, |rows| loss(&model, &x, rows))?;
                let (_, mut gradients) = parallel.backward(&whole, BATCH, |rows| loss(&whole, &x, rows))?;
                let norm = clip_grad_norm(&mut gradients, &whole.parameters(), 0.01)?;
                theirs.step(&gradients)?;
                assert!(norm > 0.01 && (optimizer.grad_norm().unwrap() / norm - 1.0).abs() < 1e-5);
            }
            for (a, b) in model.parameters().iter().zip(whole.parameters()) {
                assert!(a.values().sub(b.values())?.abs()?.max_all()?.item()? < 1e-4);
            }
            let unbounded = optimizer.step(&model, BATCH, |rows| loss(&model, &x, rows)?.mul(f64::INFINITY));
            let e = unbounded.unwrap_err();
            assert!(e.message().contains("the norm of the gradients is"), "{e}");
            assert!(optimizer.clip_norm(0.0).is_err());
            bytes(&model.state_dict()?)
        })
        .unwrap();
        let first = all.remove(0);
        assert!(*bits.get_or_insert_with(|| first.clone()) == first, "{ranks} ranks");
    }
}

#[test]
fn gradients_that_are_not_finite_are_seen_by_all_ranks() {
    for (stage, clips) in [(2, false), (2, true), (3, false)] {
        let outcomes = threads(4, Options::default(), |comm| {
            let device = device()?;
            let x = inputs(&device)?;
            let mut kinds = vec![];
            for policy in [NonFinite::Skip, NonFinite::Error] {
                let model = Linear::new(5, 3, &mut Init::new(DType::F32, &device, &mut Generator::new(1)))?;
                let parallel = DataParallel::new(comm.clone())?;
                let adam = |parameters| Ok(AdamW::new(parameters, AdamConfig::default())?.non_finite(policy));
                let mut optimizer = match stage {
                    2 => ShardedOptimizer::new(&parallel, &model, adam)?,
                    _ => ShardedOptimizer::fully_sharded(&parallel, &model, adam)?,
                };
                if clips {
                    optimizer.clip_norm(1.0)?;
                }
                let finite = |rows: std::ops::Range<usize>| {
                    model.forward(&x.narrow(0, rows.start, rows.len())?)?.square()?.mean_all()
                };
                let _ = optimizer.step(&model, BATCH, finite)?;
                optimizer.gather()?;
                let before = bytes(&model.state_dict()?)?;
                // Only the last element of the bias, of which one rank has the gradient.
                let made = optimizer.step(&model, BATCH, |rows| {
                    let y = model.forward(&x.narrow(0, rows.start, rows.len())?)?;
                    y.narrow(1, 2, 1)?
                        .sum_all()?
                        .mul(0.0)?
                        .add(&model.parameters()[1].narrow(0, 2, 1)?.sum_all()?.mul(f64::INFINITY)?)
                });
                kinds.push(made.map(drop).map_err(|e| e.kind().clone()));
                assert_eq!(optimizer.inner().skipped_steps(), u64::from(policy == NonFinite::Skip));
                optimizer.gather()?;
                assert!(bytes(&model.state_dict()?)? == before);
                // The ranks are still in step.
                let _ = optimizer.step(&model, BATCH, finite)?;
            }
            Ok(kinds)
        });
        for kinds in outcomes.unwrap() {
            assert_eq!(kinds, [Ok(()), Err(ErrorKind::InvalidArgument)], "stage {stage}");
        }
    }
}

#[test]
fn a_run_goes_on_with_the_same_bits_on_another_number_of_ranks() {
    let run = |ranks: usize, from: Option<(StateDict, StateDict)>, steps: usize| {
        let from = from.as_ref();
        let mut all = threads(ranks, Options::default(), move |comm| {
            let device = device()?;
            let x = inputs(&device)?;
            let mut model = Linear::new(5, 3, &mut Init::new(DType::F32, &device, &mut Generator::new(1)))?;
            if let Some((weights, _)) = from {
                model.load_state_dict(weights, Strict::Yes)?;
            }
            let adam = |parameters| AdamW::new(parameters, AdamConfig::default());
            let parallel = DataParallel::new(comm.clone())?;
            let mut optimizer = ShardedOptimizer::new(&parallel, &model, adam)?;
            if let Some((_, state)) = from {
                optimizer.load_state_dict(state)?;
            }
            for _ in 0..steps {
                let _ = optimizer.step(&model, BATCH, |rows| {
                    model.forward(&x.narrow(0, rows.start, rows.len())?)?.square()?.mean_all()
                })?;
            }
            Ok((model.state_dict()?, optimizer.state_dict()?))
        })
        .unwrap();
        all.remove(0)
    };
    let (weights, state) = run(4, None, 6);
    let half = run(4, None, 3);
    let (again, state_again) = run(2, Some(half), 3);
    assert!(bytes(&weights).unwrap() == bytes(&again).unwrap());
    assert!(bytes(&state).unwrap() == bytes(&state_again).unwrap());
}

#[test]
fn the_gradients_are_those_of_the_whole_batch() {
    threads(4, Options::default(), |comm| {
        let device = device()?;
        let x = inputs(&device)?;
        let model = Linear::new(5, 2, &mut Init::new(DType::F32, &device, &mut Generator::new(1)))?;
        // 10 rows on 16 shards: some are empty.
        for batch in [BATCH, 10, 1] {
            let of = |rows: std::ops::Range<usize>| {
                model.forward(&x.narrow(0, rows.start, rows.len())?)?.tanh()?.square()?.mean_all()
            };
            let (value, gradients) = DataParallel::new(comm.clone())?.backward(&model, batch, of)?;
            let whole = of(0..batch)?;
            assert!((value.item()? - whole.item()?).abs() < 1e-6);
            let expected = whole.backward()?;
            for parameter in model.parameters() {
                let difference = gradients.get(&parameter).unwrap().sub(expected.get(&parameter).unwrap())?;
                assert!(difference.abs()?.max_all()?.item()? < 1e-6);
            }
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_parameter_that_no_loss_depends_on_has_no_gradient() {
    threads(2, Options::default(), |comm| {
        let device = device()?;
        let mut rng = Generator::new(1);
        let mut init = Init::new(DType::F32, &device, &mut rng);
        let model = Sequential::new().add(Linear::new(2, 2, &mut init)?).add(Linear::new(2, 2, &mut init)?);
        let parameters = model.parameters();
        let of = |rows: std::ops::Range<usize>| parameters[0].mul(rows.len() as f64)?.sum_all();
        let parallel = DataParallel::new(comm.clone())?;
        let (_, gradients) = parallel.backward(&model, 16, of)?;
        assert!(gradients.get(&parameters[0]).is_some() && gradients.get(&parameters[2]).is_none());
        let adam = |parameters| AdamW::new(parameters, AdamConfig::default());
        let e = ShardedOptimizer::new(&parallel, &model, adam)?.step(&model, 16, of).unwrap_err();
        assert!(*e.kind() == ErrorKind::Autograd && e.message().contains("parameter 0.bias"), "{e}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn what_cannot_be_divided_is_refused() {
    threads(3, Options::default(), |comm| {
        let device = device()?;
        let e = DataParallel::new(comm.clone()).unwrap_err();
        assert!(*e.kind() == ErrorKind::InvalidArgument && e.message().contains("16 shards on 3 ranks"), "{e}");
        let parallel = DataParallel::with_shards(comm.clone(), 12)?;
        assert_eq!(parallel.shards(), comm.rank() * 4..comm.rank() * 4 + 4);
        let model = Linear::new(2, 2, &mut Init::new(DType::F32, &device, &mut Generator::new(1)))?;
        let e = ShardedOptimizer::new(&parallel, &model, |p| Lamb::new(p, LambConfig::default())).err().unwrap();
        assert!(*e.kind() == ErrorKind::Unsupported && e.message().contains("lamb"), "{e}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn gradients_that_are_given_are_those_of_the_whole_model() {
    threads(2, Options::default(), |comm| {
        let device = device()?;
        let (x, model) = (inputs(&device)?, network(&device, 1)?);
        let parallel = DataParallel::new(comm.clone())?;
        let adam = |parameters| AdamW::new(parameters, AdamConfig::default());
        let (_, gradients) = parallel.backward(&model, BATCH, |rows| loss(&model, &x, rows))?;
        let mut optimizer = ShardedOptimizer::new(&parallel, &model, adam)?;
        let before = bytes(&model.state_dict()?)?;
        let e = optimizer.step_with(&model, &Gradients::default()).unwrap_err();
        assert!(*e.kind() == ErrorKind::Autograd && e.message().contains("no loss depends on parameter"), "{e}");
        optimizer.clip_norm(1.0)?;
        let e = optimizer.step_with(&model, &gradients).unwrap_err();
        assert!(*e.kind() == ErrorKind::InvalidArgument && e.message().contains("clip_norm was called"), "{e}");
        assert!(bytes(&model.state_dict()?)? == before);
        let mut optimizer = ShardedOptimizer::fully_sharded(&parallel, &model, adam)?;
        let e = optimizer.step_with(&model, &gradients).unwrap_err();
        assert!(*e.kind() == ErrorKind::Unsupported && e.message().contains("its parameters are divided"), "{e}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_loss_that_fails_on_one_rank_ends_all_and_changes_nothing() {
    let options = Options { deadline: Duration::from_secs(20) };
    let kinds = threads(2, options, |comm: &Arc<dyn Communicator>| {
        let device = device()?;
        let x = inputs(&device)?;
        let model = network(&device, 1)?;
        let before = bytes(&model.state_dict()?)?;
        let made = {
            let parallel = DataParallel::new(comm.clone())?;
            parallel.backward(&model, BATCH, |rows| match comm.rank() {
                1 => Err(Error::argument("loss", "no")),
                _ => loss(&model, &x, rows),
            })
        };
        assert!(bytes(&model.state_dict()?)? == before);
        // The rank that failed leaves by returning; the other hears of it.
        Ok(made.map(drop).unwrap_err().kind().clone())
    });
    assert_eq!(kinds.unwrap(), [ErrorKind::Peer, ErrorKind::InvalidArgument]);
}

#[test]
fn ranks_that_get_different_batches_are_told_so_and_go_on() {
    threads(4, Options::default(), |comm| {
        let device = device()?;
        let x = inputs(&device)?;
        let model = Linear::new(5, 2, &mut Init::new(DType::F32, &device, &mut Generator::new(1)))?;
        let parallel = DataParallel::new(comm.clone())?;
        let of = |rows: std::ops::Range<usize>| model.forward(&x.narrow(0, rows.start, rows.len())?)?.mean_all();
        // The mean of all ranks is what rank 0 has.
        let batch = [10, 8, 12, 10][comm.rank()];
        let e = parallel.backward(&model, batch, of).unwrap_err();
        assert!(*e.kind() == ErrorKind::Peer, "{e}");
        let text = e.to_string();
        assert!(text.contains("ranks give batches of different numbers of rows") && text.contains("rank 2: 12 rows"));
        let adam = |parameters| AdamW::new(parameters, AdamConfig::default());
        let e = ShardedOptimizer::new(&parallel, &model, adam)?.step(&model, batch, of).unwrap_err();
        assert!(e.message().contains("batches of different numbers of rows"), "{e}");
        parallel.backward(&model, 10, of).map(drop)
    })
    .unwrap();
}

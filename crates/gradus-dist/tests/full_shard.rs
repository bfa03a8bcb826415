//! Divided parameters (ZeRO 3): the bits of training without, what a rank holds, and the errors.
#![allow(clippy::unwrap_used)]

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use gradus_cpu::CpuBackend;
use gradus_dist::{Communicator, DataParallel, Options, ShardedOptimizer, threads};
use gradus_models::{Gpt2, Gpt2Config};
use gradus_nn::{
    AdamConfig, AdamW, BatchNorm1d, BatchNormConfig, Dropout, Forward, Init, Linear, Module, Optimizer, Parameter,
    Relu, Sequential, Sgd, SgdConfig, StateDict, Strict,
};
use gradus_tensor::{DType, Device, Error, ErrorKind, Generator, Reduction, Result, Tensor, checkpoint, no_grad};

const BATCH: usize = 40;

fn device() -> Result<Device> {
    Ok(Device::from_backend(Arc::new(CpuBackend::new()?)))
}

fn adam(parameters: Vec<(String, Parameter)>) -> Result<AdamW> {
    AdamW::new(parameters, AdamConfig { lr: 0.05, ..AdamConfig::default() })
}

/// A network with running statistics and random numbers.
fn network(device: &Device) -> Result<Sequential> {
    let mut rng = Generator::new(1);
    let norm = BatchNorm1d::new(8, BatchNormConfig::default(), &mut Init::new(DType::F32, device, &mut rng))?;
    let dropout = Dropout::new(0.3, &mut rng)?;
    let mut init = Init::new(DType::F32, device, &mut rng);
    let (first, second) = (Linear::new(5, 8, &mut init)?, Linear::new(8, 1, &mut init)?);
    Ok(Sequential::new().add(first).add(norm).add(Relu).add(dropout).add(second))
}

fn linears(device: &Device, sizes: &[usize]) -> Result<Sequential> {
    let mut rng = Generator::new(1);
    let mut init = Init::new(DType::F32, device, &mut rng);
    sizes
        .windows(2)
        .try_fold(Sequential::new(), |all, pair| Ok(all.add(Linear::new(pair[0], pair[1], &mut init)?).add(Relu)))
}

/// A transformer whose first and last layer share a weight, and whose blocks compute their activations twice.
fn gpt(device: &Device) -> Result<Gpt2> {
    let config =
        Gpt2Config { vocab_size: 11, n_positions: 6, n_embd: 8, n_layer: 3, n_head: 2, ..Gpt2Config::default() };
    Gpt2::new(config, &mut Init::new(DType::F32, device, &mut Generator::new(1)))
}

fn squares<'a>(model: &'a Sequential, x: &'a Tensor) -> impl FnMut(Range<usize>) -> Result<Tensor> + use<'a> {
    move |rows| {
        let x = x.narrow(0, rows.start, rows.len())?;
        model.forward(&x)?.mse_loss(&x.sum(&[1], true)?, Reduction::Mean)
    }
}

fn inputs(device: &Device, width: usize) -> Result<Tensor> {
    Tensor::randn([BATCH, width], DType::F32, device, &mut Generator::new(3))
}

fn bytes(state: &StateDict) -> Result<Vec<u8>> {
    Ok(state.iter().map(|(_, tensor)| tensor.to_bytes()).collect::<Result<Vec<_>>>()?.concat())
}

/// The losses, weights and state of all ranks after some steps, which are the same on all of them.
fn on_ranks(ranks: usize, f: impl Fn(&Arc<dyn Communicator>) -> Result<Vec<u8>> + Send + Sync) -> Vec<u8> {
    let options = Options { deadline: Duration::from_secs(30) };
    let mut all = threads(ranks, options, f).unwrap();
    let first = all.remove(0);
    assert!(all.iter().all(|other| *other == first), "ranks differ");
    first
}

/// Trains without dividing anything but the batch.
fn whole<M: Module>(
    comm: &Arc<dyn Communicator>,
    model: &M,
    batch: usize,
    mut loss: impl FnMut(Range<usize>) -> Result<Tensor>,
) -> Result<Vec<u8>> {
    let parallel = DataParallel::new(comm.clone())?;
    let mut optimizer = adam(model.named_parameters())?;
    let mut all = vec![];
    for _ in 0..3 {
        let (value, gradients) = parallel.backward(model, batch, &mut loss)?;
        optimizer.step(&gradients)?;
        all.extend(value.to_bytes()?);
    }
    all.extend(bytes(&model.state_dict()?)?);
    all.extend(bytes(&optimizer.state_dict()?)?);
    Ok(all)
}

/// Trains with divided parameters.
fn divided<M: Module>(
    comm: &Arc<dyn Communicator>,
    model: &M,
    batch: usize,
    mut loss: impl FnMut(Range<usize>) -> Result<Tensor>,
) -> Result<Vec<u8>> {
    let mut optimizer = ShardedOptimizer::fully_sharded(&DataParallel::new(comm.clone())?, model, adam)?;
    let mut all = vec![];
    for _ in 0..3 {
        all.extend(optimizer.step(model, batch, &mut loss)?.to_bytes()?);
        assert!(model.parameters().iter().all(|p| p.values().storage().is_given_back()));
    }
    optimizer.gather()?;
    all.extend(bytes(&model.state_dict()?)?);
    all.extend(bytes(&optimizer.state_dict()?)?);
    Ok(all)
}

#[test]
fn divided_parameters_give_the_bits_of_whole_ones() {
    // With 10 rows some of the 16 shards are empty, and with 1 row all but one.
    for batch in [BATCH, 33] {
        let one = on_ranks(1, |comm| {
            let device = device()?;
            let (model, x) = (network(&device)?, inputs(&device, 5)?);
            whole(comm, &model, batch, squares(&model, &x))
        });
        for ranks in [1, 2, 4, 16] {
            let all = on_ranks(ranks, |comm| {
                let device = device()?;
                let (model, x) = (network(&device)?, inputs(&device, 5)?);
                divided(comm, &model, batch, squares(&model, &x))
            });
            assert!(all == one, "{ranks} ranks, {batch} rows");
        }
    }
}

#[test]
fn ranks_without_rows_take_part() {
    for batch in [10, 1] {
        let one = on_ranks(1, |comm| {
            let device = device()?;
            let (model, x) = (linears(&device, &[5, 7, 3, 1])?, inputs(&device, 5)?);
            whole(comm, &model, batch, squares(&model, &x))
        });
        for ranks in [2, 4, 8] {
            let all = on_ranks(ranks, |comm| {
                let device = device()?;
                let (model, x) = (linears(&device, &[5, 7, 3, 1])?, inputs(&device, 5)?);
                divided(comm, &model, batch, squares(&model, &x))
            });
            assert!(all == one, "{ranks} ranks, {batch} rows");
        }
    }
}

#[test]
fn a_transformer_with_a_tied_weight_and_checkpoints_gives_the_same_bits() {
    let text = |device: &Device| Tensor::randint(0, 11, [16, 6], DType::I64, device, &mut Generator::new(2));
    let loss = |model: Gpt2, text: Tensor| {
        let model = Arc::new(model);
        let inside = model.clone();
        let loss = move |rows: Range<usize>| {
            let text = text.narrow(0, rows.start, rows.len())?.contiguous()?;
            let inner = inside.clone();
            let targets = text.reshape([text.numel()])?;
            let of = move |x: &[Tensor]| inner.forward(&x[0]);
            let classes = checkpoint(of, &[&text])?;
            classes.reshape([targets.numel(), 11])?.cross_entropy(&targets)
        };
        (model, loss)
    };
    let one = on_ranks(1, |comm| {
        let device = device()?;
        let (model, loss) = loss(gpt(&device)?, text(&device)?);
        whole(comm, &*model, 16, loss)
    });
    for ranks in [1, 2, 4] {
        let all = on_ranks(ranks, |comm| {
            let device = device()?;
            let (model, loss) = loss(gpt(&device)?, text(&device)?);
            divided(comm, &*model, 16, loss)
        });
        assert!(all == one, "{ranks} ranks");
    }
}

#[test]
fn a_rank_holds_its_part_and_a_block() {
    const WIDTH: usize = 64;
    const LAYERS: usize = 8;
    // In bytes.
    const BLOCK: usize = (WIDTH * WIDTH + WIDTH) * 4;
    const ALL: usize = LAYERS * BLOCK;
    // The activations of one row and their gradients.
    const ROW: usize = 3 * 2 * LAYERS * WIDTH * 4;
    for ranks in [2, 4] {
        let held = threads(ranks, Options::default(), |comm| {
            let device = device()?;
            let model = linears(&device, &[WIDTH; LAYERS + 1])?;
            let x = Tensor::randn([8, WIDTH], DType::F32, &device, &mut Generator::new(3))?;
            let before = device.memory_stats().in_use - ALL;
            // As many shards as ranks: there is one sum of gradients at a time.
            let parallel = DataParallel::with_shards(comm.clone(), ranks)?;
            let mut optimizer = ShardedOptimizer::fully_sharded(&parallel, &model, adam)?;
            let (mut forward, mut after) = (0, 0);
            for _ in 0..3 {
                let _ = optimizer.step(&model, ranks, |rows| {
                    let loss = model.forward(&x.narrow(0, rows.start, rows.len())?)?.square()?.mean_all()?;
                    forward = device.memory_stats().in_use - before;
                    Ok(loss)
                })?;
                after = device.memory_stats().in_use - before;
            }
            Ok((after, forward, device.memory_stats().peak - before))
        });
        for (after, forward, peak) in held.unwrap() {
            // The parameters and the two moments of Adam.
            assert_eq!(after, 3 * ALL / ranks);
            // The values of a block, and those of the next.
            assert!(forward <= 3 * ALL / ranks + 2 * BLOCK + ROW, "{forward} with {ranks} ranks");
            // The sums of the gradients, the values and gradients of a block, the gradients of the block before, which are
            // being summed, and the values of the next one, which come ahead. Then at least three sums are missing, since
            // nobody needs the values of the first layer again. Before, the whole parameters are divided.
            let dividing = ALL + ALL / ranks + BLOCK;
            let peak_of_step = 4 * ALL / ranks + 4 * BLOCK - 3 * BLOCK / ranks + ROW;
            assert!(peak <= dividing.max(peak_of_step), "{peak} with {ranks} ranks");
        }
    }
}

#[test]
fn parameters_are_read_and_written_where_they_are_gathered() {
    on_ranks(2, |comm| {
        let device = device()?;
        let (model, x) = (linears(&device, &[5, 4, 1])?, inputs(&device, 5)?);
        let expected = bytes(&model.state_dict()?)?;
        let parallel = DataParallel::new(comm.clone())?;
        let mut optimizer = ShardedOptimizer::fully_sharded(&parallel, &model, |p| {
            Sgd::new(p, SgdConfig { lr: 0.0, ..Default::default() })
        })?;
        for e in [model.state_dict().err(), model.forward(&x).err(), model.parameters()[0].to_vec::<f32>().err()] {
            let e = e.unwrap();
            assert!(*e.kind() == ErrorKind::InvalidArgument && e.to_string().contains("optimizer.gather()"), "{e}");
        }
        optimizer.gather()?;
        assert!(bytes(&model.state_dict()?)? == expected);
        // What is written there is kept: a step with a learning rate of 0 goes on with it.
        let weight = &model.parameters()[0];
        weight.set(&weight.values().ones_like()?)?;
        let _ = optimizer.step(&model, BATCH, squares(&model, &x))?;
        // A rank may evaluate more than another one.
        let evaluate = || (0..=comm.rank()).map(|_| model.forward(&x)?.sum_all()?.item()).collect::<Result<Vec<_>>>();
        let values = optimizer.supplied(evaluate)?;
        assert!(values.iter().all(|value| *value == values[0]));
        assert!(model.parameters().iter().all(|p| p.values().storage().is_given_back()));
        optimizer.gather()?;
        assert_eq!(weight.to_vec::<f32>()?, [1.0; 20]);
        assert_eq!(model.forward(&x)?.sum_all()?.item()?, values[0]);
        Ok(vec![])
    });
}

#[test]
fn a_graph_from_before_a_step_is_an_error_and_no_old_number() {
    on_ranks(2, |comm| {
        let device = device()?;
        let (model, x) = (linears(&device, &[5, 4, 1])?, inputs(&device, 5)?);
        let mut optimizer = ShardedOptimizer::fully_sharded(&DataParallel::new(comm.clone())?, &model, adam)?;
        let old = optimizer.supplied(|| model.forward(&x)?.square()?.sum_all())?;
        let _ = optimizer.step(&model, BATCH, squares(&model, &x))?;
        let e = optimizer.supplied(|| old.backward()).unwrap_err();
        assert!(*e.kind() == ErrorKind::Autograd && e.message().contains("step"), "{e}");
        Ok(vec![])
    });
}

#[test]
fn a_run_goes_on_with_another_number_of_ranks_and_another_stage() {
    let run = |ranks: usize, stage: usize, from: Option<&(StateDict, StateDict)>, steps: usize| {
        let mut all = threads(ranks, Options::default(), move |comm| {
            let device = device()?;
            let (mut model, x) = (linears(&device, &[5, 6, 3, 1])?, inputs(&device, 5)?);
            if let Some((weights, _)) = from {
                model.load_state_dict(weights, Strict::Yes)?;
            }
            let parallel = DataParallel::new(comm.clone())?;
            if stage == 0 {
                let mut optimizer = adam(model.named_parameters())?;
                if let Some((_, state)) = from {
                    optimizer.load_state_dict(state, Strict::Yes)?;
                }
                for _ in 0..steps {
                    let (_, gradients) = parallel.backward(&model, BATCH, squares(&model, &x))?;
                    optimizer.step(&gradients)?;
                }
                return Ok((model.state_dict()?, optimizer.state_dict()?));
            }
            let mut optimizer = match stage {
                2 => ShardedOptimizer::new(&parallel, &model, adam)?,
                _ => ShardedOptimizer::fully_sharded(&parallel, &model, adam)?,
            };
            if let Some((_, state)) = from {
                optimizer.load_state_dict(state)?;
            }
            for _ in 0..steps {
                let _ = optimizer.step(&model, BATCH, squares(&model, &x))?;
            }
            optimizer.gather()?;
            Ok((model.state_dict()?, optimizer.state_dict()?))
        })
        .unwrap();
        all.remove(0)
    };
    let both = |state: &(StateDict, StateDict)| [bytes(&state.0).unwrap(), bytes(&state.1).unwrap()].concat();
    let expected = both(&run(1, 0, None, 6));
    for ((ranks, stage), (then, next)) in
        [((4, 3), (2, 3)), ((4, 3), (1, 0)), ((2, 0), (4, 3)), ((2, 2), (4, 3)), ((4, 3), (2, 2))]
    {
        let half = run(ranks, stage, None, 3);
        assert_eq!(half.1.metadata("steps.0.weight"), Some("3"));
        let case = format!("stage {stage} on {ranks} ranks, then stage {next} on {then}");
        assert!(both(&run(then, next, Some(&half), 3)) == expected, "{case}");
    }
    // Parameters that are stepped together have made equally many steps.
    let mut uneven = run(1, 0, None, 3);
    uneven.1.set_metadata("steps.0.bias", "2");
    let e = threads(1, Options::default(), |comm| {
        let model = linears(&device()?, &[5, 6, 3, 1])?;
        ShardedOptimizer::fully_sharded(&DataParallel::new(comm.clone())?, &model, adam)?.load_state_dict(&uneven.1)
    });
    assert!(e.unwrap_err().message().contains("equally often"));
}

#[test]
fn what_a_forward_pass_writes_is_stepped() {
    let run = |shards: bool, comm: &Arc<dyn Communicator>| {
        let device = device()?;
        // One block, which is there until the end of the pass.
        let (model, x) = (linears(&device, &[5, 1])?, inputs(&device, 5)?);
        let (weight, mut loss) = (model.parameters().remove(0), squares(&model, &x));
        let clamped = |rows: Range<usize>| {
            no_grad(|| weight.set(&weight.values().clamp(-0.1, 0.1)?))?;
            loss(rows)
        };
        if shards { divided(comm, &model, BATCH, clamped) } else { whole(comm, &model, BATCH, clamped) }
    };
    let one = on_ranks(1, |comm| run(false, comm));
    let all = on_ranks(2, |comm| run(true, comm));
    assert!(all == one);
}

#[test]
fn the_state_with_frozen_parameters_is_that_of_a_whole_optimiser() {
    for stage in [2, 3] {
        on_ranks(2, |comm| {
            let device = device()?;
            let (model, x) = (linears(&device, &[5, 4, 1])?, inputs(&device, 5)?);
            model.parameters()[0].freeze();
            let parallel = DataParallel::new(comm.clone())?;
            let mut other = adam(model.named_parameters())?;
            let mut optimizer = match stage {
                2 => ShardedOptimizer::new(&parallel, &model, adam)?,
                _ => ShardedOptimizer::fully_sharded(&parallel, &model, adam)?,
            };
            optimizer.load_state_dict(&other.state_dict()?)?;
            let _ = optimizer.step(&model, BATCH, squares(&model, &x))?;
            let state = optimizer.state_dict()?;
            assert_eq!((state.metadata("steps.0.weight"), state.metadata("steps.0.bias")), (Some("0"), Some("1")));
            optimizer.gather()?;
            other.load_state_dict(&state, Strict::Yes)?;
            Ok(vec![])
        });
    }
}

#[test]
fn blocks_have_names_of_their_own() {
    #[derive(Module)]
    struct Own {
        scale: Parameter,
        model: Linear,
    }
    on_ranks(2, |comm| {
        let device = device()?;
        let linear = Linear::new(5, 4, &mut Init::new(DType::F32, &device, &mut Generator::new(1)))?;
        let own = Own { scale: Parameter::new(Tensor::zeros([3], DType::F32, &device)?)?, model: linear };
        let mut names = vec![];
        ShardedOptimizer::fully_sharded(&DataParallel::new(comm.clone())?, &own, |parts| {
            names = parts.iter().map(|(name, _)| name.clone()).collect();
            adam(parts)
        })?;
        assert_eq!(names, ["scale.f32", "model.f32"]);
        Ok(vec![])
    });
}

#[test]
fn what_cannot_be_divided_is_refused() {
    threads(3, Options::default(), |comm| {
        let model = linears(&device()?, &[5, 4, 1])?;
        let parallel = DataParallel::with_shards(comm.clone(), 12)?;
        let e = ShardedOptimizer::fully_sharded(&parallel, &model, adam).err().unwrap();
        assert!(e.message().contains("no power of two"), "{e}");
        Ok(())
    })
    .unwrap();
    on_ranks(2, |comm| {
        let device = device()?;
        let parallel = DataParallel::new(comm.clone())?;
        let both = Tensor::zeros([2, 3], DType::F32, &device)?;
        let shared = vec![Parameter::new(both.narrow(0, 0, 1)?)?, Parameter::new(both.narrow(0, 1, 1)?)?];
        #[derive(Module)]
        struct Halves(Vec<Parameter>);
        let e = ShardedOptimizer::fully_sharded(&parallel, &Halves(shared), adam).err().unwrap();
        assert!(e.message().contains("shares its memory"), "{e}");
        let (model, x) = (linears(&device, &[5, 4, 1])?, inputs(&device, 5)?);
        let mut optimizer = ShardedOptimizer::fully_sharded(&parallel, &model, adam)?;
        model.parameters()[0].freeze();
        let e = optimizer.step(&model, BATCH, squares(&model, &x)).unwrap_err();
        assert!(e.message().contains("made for others"), "{e}");
        model.parameters()[0].unfreeze();
        // A loss that does not depend on the last layer.
        let part = |rows: Range<usize>| model.parameters()[0].mul(rows.len() as f64)?.sum_all();
        let e = optimizer.step(&model, BATCH, part).unwrap_err();
        assert!(*e.kind() == ErrorKind::Autograd && e.message().contains("parameter 0.bias"), "{e}");
        Ok(vec![])
    });
}

#[test]
fn a_loss_that_fails_on_one_rank_ends_all() {
    let options = Options { deadline: Duration::from_secs(20) };
    let kinds = threads(2, options, |comm| {
        let device = device()?;
        let (model, x) = (linears(&device, &[5, 4, 1])?, inputs(&device, 5)?);
        let mut optimizer = ShardedOptimizer::fully_sharded(&DataParallel::new(comm.clone())?, &model, adam)?;
        let made = optimizer.step(&model, BATCH, |rows| match comm.rank() {
            1 => Err(Error::argument("loss", "no")),
            _ => squares(&model, &x)(rows),
        });
        drop(optimizer);
        Ok(made.map(drop).unwrap_err().kind().clone())
    });
    assert_eq!(kinds.unwrap(), [ErrorKind::Peer, ErrorKind::InvalidArgument]);
}

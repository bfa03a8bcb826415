//! Pipelines in captured steps: the bits of eager ones, the memory of the schedule, and their errors.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use gradus_dist::{Communicator, DataParallel, Mesh, Options, Pipeline, ShardedOptimizer, Stage, cut_evenly, threads};
use gradus_graph::{Captured, MemoryLimit, capture};
use gradus_models::{Gpt2, Gpt2Config};
use gradus_nn::{
    AdamConfig, AdamW, BatchNorm1d, BatchNormConfig, Forward, Init, Linear, Module, Optimizer, Relu, Sequential,
};
use gradus_tensor::{DType, Device, Error, ErrorKind, Generator, Result, Tensor};

use crate::device;
use crate::far::far;

const STEPS: usize = 5;
const MICRO_BATCHES: usize = 8;

type Make = fn(&Device) -> Result<Sequential>;
type Batch = fn(&Device, usize) -> Result<[Tensor; 2]>;

/// A GPT-2 with dropout as four modules.
fn gpt(device: &Device) -> Result<Sequential> {
    let sizes =
        Gpt2Config { vocab_size: 17, n_positions: 6, n_embd: 8, n_layer: 2, n_head: 2, ..Gpt2Config::default() };
    let config = Gpt2Config { resid_pdrop: 0.2, embd_pdrop: 0.2, attn_pdrop: 0.2, ..sizes };
    let mut generator = Generator::new(5);
    let mut init = Init::new(DType::F32, device, &mut generator);
    (0..4).map(|i| Gpt2::part(&config, i, &mut init)).collect()
}

fn text(device: &Device, step: usize) -> Result<[Tensor; 2]> {
    let text = Tensor::randint(0, 17, [20, 7], DType::I64, device, &mut Generator::new(50 + step as u64))?;
    Ok([text.narrow(1, 0, 6)?.contiguous()?, text.narrow(1, 1, 6)?.contiguous()?])
}

/// A network with running statistics, as four modules.
fn network(device: &Device) -> Result<Sequential> {
    let mut generator = Generator::new(5);
    let mut init = Init::new(DType::F32, device, &mut generator);
    let first = Sequential::new().add(Linear::new(5, 8, &mut init)?).add(Relu);
    let norm = BatchNorm1d::new(8, BatchNormConfig::default(), &mut init)?;
    let hidden = Linear::new(8, 8, &mut init)?;
    Ok(Sequential::new().add(first).add(norm).add(hidden).add(Linear::new(8, 17, &mut init)?))
}

fn rows_of_five(device: &Device, step: usize) -> Result<[Tensor; 2]> {
    let mut rng = Generator::new(70 + step as u64);
    let x = Tensor::randn([20, 5], DType::F32, device, &mut rng)?;
    Ok([x, Tensor::randint(0, 17, [20], DType::I64, device, &mut rng)?])
}

fn cut_rows(x: &Tensor, rows: &Range<usize>) -> Result<Tensor> {
    x.narrow(0, rows.start, rows.len())
}

fn mean_loss(output: &Tensor, targets: &Tensor) -> Result<Tensor> {
    let classes = output.size(-1)?;
    output.reshape([targets.numel(), classes])?.cross_entropy(&targets.reshape([targets.numel()])?)
}

fn adam(model: &impl Module) -> Result<AdamW> {
    AdamW::new(model.named_parameters(), config())
}

fn config() -> AdamConfig {
    AdamConfig { lr: 0.02, ..AdamConfig::default() }
}

/// The stages of one pipeline after a few steps: their parameters, buffers and random states, and the losses.
type Trained = (Vec<Vec<u8>>, Vec<Vec<u8>>);

/// How a training is done.
struct How<'a> {
    stages: usize,
    pipelines: usize,
    /// Whether the steps of a rank are captured.
    captures: &'a (dyn Fn(usize) -> bool + Sync),
    verifies: bool,
    /// Whether the state of the optimiser is divided among the pipelines.
    divides: bool,
    device: &'a (dyn Fn() -> Result<Device> + Sync),
}

impl How<'_> {
    fn eager() -> Self {
        How { stages: 1, pipelines: 1, captures: &|_| false, verifies: false, divides: false, device: &device }
    }

    fn captured(stages: usize) -> Self {
        How { stages, captures: &|_| true, ..How::eager() }
    }
}

fn train(make: Make, batch: Batch, how: &How<'_>) -> Trained {
    let all = threads(how.stages * how.pipelines, Options::default(), |comm| {
        let device = (how.device)()?;
        let mesh = Mesh::new(comm, [("data", how.pipelines), ("pipe", how.stages)])?;
        let line = mesh.axis("pipe")?;
        let model = make(&device)?;
        let costs: Vec<usize> = model.iter().map(|layer| layer.num_parameters()).collect();
        let stage = Stage::of(&line, model, &cut_evenly(&costs, how.stages)?)?;
        let data = DataParallel::with_shards(mesh.axis("data")?, MICRO_BATCHES)?;
        let pipeline = Pipeline::with_data(&line, &data, &device)?;
        let mut whole = adam(&stage)?;
        let mut divided = ShardedOptimizer::new(&data, &stage, |parts| AdamW::new(parts, config()))?;
        let mut step = |x: &[Tensor]| {
            let input = |rows: Range<usize>| cut_rows(&x[0], &rows);
            let loss = |output: &Tensor, rows: Range<usize>| mean_loss(output, &cut_rows(&x[1], &rows)?);
            let (loss, gradients) = pipeline.backward(&stage, x[0].shape()[0], input, loss)?;
            match how.divides {
                true => divided.step_with(&stage, &gradients)?,
                false => whole.step(&gradients)?,
            }
            Ok(loss)
        };
        let mut losses = vec![];
        if (how.captures)(comm.rank()) {
            let mut step = capture(step);
            step.verify(if how.verifies { 1 } else { 0 });
            for i in 0..STEPS {
                let [x, y] = batch(&device, i)?;
                losses.push(step.call::<Tensor>(&[&x, &y])?.to_bytes()?);
            }
            // The first call makes the state of the optimiser.
            assert!(step.replays() >= STEPS as u64 - 3, "{} replays", step.replays());
        } else {
            for i in 0..STEPS {
                losses.push(step(&batch(&device, i)?)?.to_bytes()?);
            }
        }
        let mut bytes = stage.state_dict()?.iter().map(|(_, t)| t.to_bytes()).collect::<Result<Vec<_>>>()?;
        let states = stage.named_random_states();
        bytes
            .extend(states.into_iter().map(|(_, s)| [s.get().seed(), s.get().offset()].map(u64::to_le_bytes).concat()));
        Ok((bytes, losses))
    });
    let all = all.unwrap();
    assert!(all.iter().all(|(_, losses)| *losses == all[0].1), "ranks have different losses");
    let (first, others) = all.split_at(how.stages);
    assert!(others.chunks(how.stages).all(|other| other == first), "pipelines have different weights");
    // The random states come after the weights, on each stage.
    let mut bytes: Vec<Vec<u8>> = first.iter().flat_map(|(bytes, _)| bytes.clone()).collect();
    bytes.sort();
    (bytes, first[0].1.clone())
}

#[test]
fn replays_have_the_bits_of_eager_steps() {
    for (name, make, batch) in [("gpt", gpt as Make, text as Batch), ("network", network, rows_of_five)] {
        let eager = train(make, batch, &How::eager());
        for stages in [1, 2, 4] {
            assert!(train(make, batch, &How::captured(stages)) == eager, "{name}: {stages} stages");
        }
        let two_by_two = How { pipelines: 2, ..How::captured(2) };
        assert!(train(make, batch, &two_by_two) == eager, "{name}: 2 pipelines of 2 stages");
        for captures in [&|_| true, &|_| false] as [&(dyn Fn(usize) -> bool + Sync); 2] {
            let divided = How { pipelines: 2, divides: true, captures, ..How::captured(2) };
            assert!(train(make, batch, &divided) == eager, "{name}: 2 pipelines of 2 stages, ZeRO 1");
        }
        let mixed = How { captures: &|rank| rank % 2 == 1, ..How::captured(4) };
        assert!(train(make, batch, &mixed) == eager, "{name}: only some ranks replay");
        let verified = How { verifies: true, ..How::captured(2) };
        assert!(train(make, batch, &verified) == eager, "{name}: verified");
        let beyond = How { device: &|| Ok(far().0), ..How::captured(4) };
        assert!(train(make, batch, &beyond) == eager, "{name}: a device whose memory the host cannot reach");
    }
}

#[test]
fn tied_weights_and_clipping_are_captured() {
    let trained = |stages: usize, captured: bool| {
        let all = threads(stages, Options::default(), |comm| {
            let device = device()?;
            let stage = Stage::of(comm, gpt(&device)?, &cut_evenly(&[1; 4], stages)?)?;
            let mut pipeline = Pipeline::new(comm, MICRO_BATCHES, &device)?;
            pipeline.tie(&stage, ["0.wte.weight", "3.lm_head.weight"])?;
            let (mut optimizer, parameters) = (adam(&stage)?, stage.parameters());
            let mut step = |x: &[Tensor]| {
                let input = |rows: Range<usize>| cut_rows(&x[0], &rows);
                let loss = |output: &Tensor, rows: Range<usize>| mean_loss(output, &cut_rows(&x[1], &rows)?);
                let (_, mut gradients) = pipeline.backward(&stage, x[0].shape()[0], input, loss)?;
                let norm = match captured {
                    true => pipeline.clip_grad_norm_on_device(&mut gradients, &parameters, 0.05)?,
                    false => Tensor::scalar(pipeline.clip_grad_norm(&mut gradients, &parameters, 0.05)?, &device)?,
                };
                optimizer.step(&gradients)?;
                Ok(norm)
            };
            let mut norms = vec![];
            if captured {
                let mut step = capture(step);
                for i in 0..STEPS {
                    let [x, y] = text(&device, i)?;
                    norms.push(step.call::<Tensor>(&[&x, &y])?.item()?);
                }
                assert_eq!(step.replays(), STEPS as u64 - 3);
            } else {
                for i in 0..STEPS {
                    norms.push(step(&text(&device, i)?)?.item()?);
                }
            }
            Ok((stage.state_dict()?.iter().map(|(_, t)| t.to_bytes()).collect::<Result<Vec<_>>>()?, norms))
        });
        let all = all.unwrap();
        let norms = all[0].1.clone();
        assert!(all.iter().all(|(_, other)| *other == norms) && norms.iter().all(|norm| *norm > 0.05), "{norms:?}");
        (all.into_iter().flat_map(|(bytes, _)| bytes).collect::<Vec<_>>(), norms)
    };
    let eager = trained(1, false);
    for stages in [1, 2, 4] {
        assert!(trained(stages, true) == eager, "{stages} stages");
    }
}

#[test]
fn outputs_of_replays_are_those_of_the_model() {
    for stages in [1, 4] {
        threads(stages, Options::default(), |comm| {
            let device = device()?;
            let mut model = gpt(&device)?;
            model.eval();
            let [x, _] = text(&device, 0)?;
            let expected = model.forward(&x)?.to_vec::<f32>()?;
            let stage = Stage::of(comm, model, &cut_evenly(&[1; 4], stages)?)?;
            let pipeline = Pipeline::new(comm, 5, &device)?;
            let mut pass = capture(|x| pipeline.forward(&stage, 20, |rows| cut_rows(&x[0], &rows)));
            for _ in 0..4 {
                let found: Option<Tensor> = pass.call(&[&x])?;
                assert_eq!(found.is_some(), comm.rank() == stages - 1);
                assert!(found.is_none_or(|found| found.to_vec::<f32>().unwrap() == expected));
            }
            assert_eq!(pass.replays(), 2);
            Ok(())
        })
        .unwrap();
    }
}

/// Stage `r` of `n` needs memory for the activations of `n - r` micro-batches, however many there are.
#[test]
fn a_replay_holds_the_activations_of_few_micro_batches() {
    const STAGES: usize = 4;
    const ROWS: usize = 64;
    let layer = |device: &Device, i: usize| {
        let mut generator = Generator::new(i as u64);
        let mut init = Init::new(DType::F32, device, &mut generator);
        let linear = |init: &mut Init<'_>| Linear::new(16, 16, init);
        Ok(Sequential::new().add(linear(&mut init)?).add(Relu).add(linear(&mut init)?).add(Relu))
    };
    let memory = |micro_batches: usize| {
        threads(STAGES, Options::default(), |comm| {
            let device = device()?;
            let stage = Stage::even(comm, STAGES, |i| layer(&device, i))?;
            let pipeline = Pipeline::new(comm, micro_batches, &device)?;
            let batch = micro_batches * ROWS;
            let mut step = capture(|x| {
                let input = |rows: Range<usize>| cut_rows(&x[0], &rows);
                let (loss, gradients) = pipeline.backward(&stage, batch, input, |y, _| y.square()?.mean_all())?;
                let sums = stage.parameters().iter().map(|p| gradients.get(p).map(Tensor::detach)).collect();
                Ok::<(Tensor, Vec<Option<Tensor>>), Error>((loss, sums))
            });
            step.limit_memory(MemoryLimit::Bytes(0));
            for i in 0..3 {
                let x = Tensor::randn([batch, 16], DType::F32, &device, &mut Generator::new(i))?;
                let _: (Tensor, Vec<Option<Tensor>>) = step.call(&[&x])?;
            }
            Ok(step.temporary_bytes().unwrap())
        })
        .unwrap()
    };
    let [few, many] = [4, 32].map(memory);
    let activation = ROWS * 16 * 4;
    for (rank, (few, many)) in few.iter().zip(&many).enumerate() {
        assert!(*few > (STAGES - rank) * activation, "stage {rank}: {few}");
        // The tree of gradients holds 3 sums more. Blocks of memory need not fit.
        let sums = 3 * 2 * (16 * 16 + 16) * 4;
        assert!(*many <= few + sums + 2 * activation, "stage {rank}: {few} bytes with 4 micro-batches, {many} with 32");
    }
}

/// Batches of other sizes are traced again, and leave micro-batches empty or uneven.
#[test]
fn batches_of_other_sizes_are_captured_too() {
    let trained = |stages: usize, captured: bool| {
        let all = threads(stages, Options::default(), |comm| {
            let device = device()?;
            let stage = Stage::of(comm, gpt(&device)?, &cut_evenly(&[1; 4], stages)?)?;
            let pipeline = Pipeline::new(comm, MICRO_BATCHES, &device)?;
            let mut optimizer = adam(&stage)?;
            let mut step = |x: &[Tensor]| {
                let input = |rows: Range<usize>| cut_rows(&x[0], &rows);
                let loss = |output: &Tensor, rows: Range<usize>| mean_loss(output, &cut_rows(&x[1], &rows)?);
                let (loss, gradients) = pipeline.backward(&stage, x[0].shape()[0], input, loss)?;
                optimizer.step(&gradients).map(|()| (vec![loss], ()))
            };
            let (mut replayed, mut losses) = (Captured::strict(), vec![]);
            for (i, rows) in [20, 20, 20, 20, 5, 5, 20, 5, 1, 13, 5, 13].into_iter().enumerate() {
                let [x, y] = text(&device, i)?;
                let [x, y] = [cut_rows(&x, &(0..rows))?.contiguous()?, cut_rows(&y, &(0..rows))?.contiguous()?];
                let (loss, ()) = if captured { replayed.call(0, &[&x, &y], &mut step)? } else { step(&[x, y])? };
                losses.push(loss[0].item()?);
            }
            assert!(!captured || replayed.replays() >= 4, "{}", replayed.replays());
            Ok((stage.state_dict()?.iter().map(|(_, t)| t.to_bytes()).collect::<Result<Vec<_>>>()?, losses))
        });
        let all = all.unwrap();
        let losses = all[0].1.clone();
        (all.into_iter().flat_map(|(bytes, _)| bytes).collect::<Vec<_>>(), losses)
    };
    let eager = trained(1, false);
    for stages in [1, 2, 4] {
        assert!(trained(stages, true) == eager, "{stages} stages");
    }
}

/// The last stage cannot compute the loss of a late micro-batch, so its replay fails after it has made many calls. The others
/// are told why, long before the deadline.
#[test]
fn a_replay_that_fails_in_the_middle_is_an_error_on_all_at_once() {
    let options = Options { deadline: Duration::from_secs(3600) };
    let errors = threads(4, options, |comm| {
        let device = device()?;
        let stage = Stage::of(comm, network(&device)?, &cut_evenly(&[1; 4], 4)?)?;
        let pipeline = Pipeline::new(comm, MICRO_BATCHES, &device)?;
        let mut step = capture(|x| {
            let input = |rows: Range<usize>| cut_rows(&x[0], &rows);
            let loss = |output: &Tensor, rows: Range<usize>| mean_loss(output, &cut_rows(&x[1], &rows)?);
            pipeline.backward(&stage, 20, input, loss).map(|(loss, _)| loss)
        });
        let [x, y] = rows_of_five(&device, 0)?;
        for _ in 0..3 {
            let _: Tensor = step.call(&[&x, &y])?;
        }
        let mut wrong = y.to_vec::<i64>()?;
        wrong[17] = 99;
        let wrong = Tensor::from_vec(wrong, [20], &device)?;
        let e = step.call::<Tensor>(&[&x, &wrong]).unwrap_err();
        assert_eq!(step.replays(), 1);
        Ok(e)
    });
    let errors = errors.unwrap();
    let [others @ .., last] = &errors[..] else { panic!("no ranks") };
    assert!(matches!(last.kind(), ErrorKind::IndexOutOfBounds { .. }), "{last}");
    for e in others {
        assert!(*e.kind() == ErrorKind::Peer && e.to_string().contains(last.message()), "{e}");
    }
}

/// The errors of four stages that replay a step until rank `who` does `other` instead.
fn troubled(
    who: usize,
    other: impl Fn(&Arc<dyn Communicator>, &Pipeline, &Stage, &Tensor) -> Result<()> + Sync,
) -> Vec<Error> {
    let options = Options { deadline: Duration::from_millis(1000) };
    let errors = threads(4, options, |comm| {
        let device = device()?;
        let layer = |i: usize| Linear::new(3, 3, &mut Init::new(DType::F32, &device, &mut Generator::new(i as u64)));
        let stage = Stage::even(comm, 4, layer)?;
        let pipeline = Pipeline::new(comm, 4, &device)?;
        let mut step = capture(|x| {
            let input = |rows: Range<usize>| cut_rows(&x[0], &rows);
            pipeline.backward(&stage, 8, input, |y, _| y.square()?.mean_all()).map(|(loss, _)| loss)
        });
        let x = Tensor::ones([8, 3], DType::F32, &device)?;
        for _ in 0..4 {
            let _: Tensor = step.call(&[&x])?;
        }
        assert_eq!(step.replays(), 2);
        if comm.rank() == who {
            return Ok(other(comm, &pipeline, &stage, &x).err());
        }
        let e = step.call::<Tensor>(&[&x]).unwrap_err();
        let again = step.call::<Tensor>(&[&x]).unwrap_err();
        assert!(*again.kind() == ErrorKind::Peer, "{again}");
        Ok(Some(e))
    });
    errors.unwrap().into_iter().flatten().collect()
}

#[test]
fn a_stage_that_does_something_else_is_an_error_of_all_replays() {
    // It leaves.
    let errors = troubled(2, |_, _, _, _| Ok(()));
    assert!(errors.len() == 3 && errors.iter().all(|e| e.to_string().contains("rank 2 has left")), "{errors:?}");
    // It comes too late.
    let errors = troubled(2, |_, _, _, _| {
        std::thread::sleep(Duration::from_millis(2000));
        Ok(())
    });
    assert!(errors.len() == 3 && errors.iter().all(|e| *e.kind() == ErrorKind::Peer), "{errors:?}");
    // It makes another call.
    let errors = troubled(2, |comm, _, _, x| comm.all_reduce(x, gradus_dist::Reduce::Sum).map(drop));
    assert!(errors.len() == 4 && errors.iter().all(|e| *e.kind() == ErrorKind::Peer), "{errors:?}");
    // It fails in the middle.
    let errors = troubled(2, |_, pipeline, _, x| {
        let wide = Linear::new(5, 5, &mut Init::new(DType::F32, x.device(), &mut Generator::new(1)))?;
        pipeline.backward(&wide, 8, |_| Ok(x.clone()), |y, _| Ok(y.clone())).map(drop)
    });
    assert_eq!(errors.len(), 4);
    assert!(errors.iter().any(|e| *e.kind() != ErrorKind::Peer), "{errors:?}");
    // It computes other rows, which the stage after it sees in its replay.
    let errors = troubled(0, |_, pipeline, stage, x| {
        pipeline.backward(stage, 12, |_| x.narrow(0, 0, 3), |y, _| y.square()?.mean_all()).map(drop)
    });
    let differ = "the micro-batches of stage 0, their shapes or dtypes differ between two calls of a captured step";
    assert!(errors.len() == 4 && errors.iter().all(|e| e.to_string().contains(differ)), "{errors:?}");
}

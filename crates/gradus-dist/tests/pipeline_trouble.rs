//! Pipelines: how many activations are alive, and what happens when stages fail or disagree.
#![allow(clippy::unwrap_used)]

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use gradus_cpu::CpuBackend;
use gradus_dist::{DataParallel, Mesh, Options, Pipeline, Stage, cut_evenly, threads};
use gradus_nn::{Forward, Init, Linear, Module, Sequential};
use gradus_tensor::autograd::{Context, CustomOp, apply_custom};
use gradus_tensor::{DType, Device, Error, ErrorKind, Generator, Result, Tensor};

fn device() -> Result<Device> {
    Ok(Device::from_backend(Arc::new(CpuBackend::new()?)))
}

fn linear(device: &Device, seed: usize) -> Result<Linear> {
    Linear::new(3, 3, &mut Init::new(DType::F32, device, &mut Generator::new(seed as u64)))
}

/// How many graphs hold their values now, and the most that did at once.
#[derive(Default)]
struct Live {
    now: AtomicUsize,
    most: AtomicUsize,
}

/// An operation that is counted while a graph holds it.
struct Counted(Arc<Live>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::SeqCst);
    }
}

impl CustomOp for Counted {
    fn name(&self) -> &str {
        "counted"
    }

    fn forward(&self, x: &[Tensor]) -> Result<Vec<Tensor>> {
        Ok(vec![x[0].mul(2.0)?])
    }

    fn backward(&self, _: &Context<'_>, g: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![g[0].as_ref().map(|g| g.mul(2.0)).transpose()?])
    }
}

#[derive(Module)]
struct Counts {
    linear: Linear,
    #[module(skip)]
    live: Arc<Live>,
}

impl Forward for Counts {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        let now = self.live.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.live.most.fetch_max(now, Ordering::SeqCst);
        let op = Arc::new(Counted(self.live.clone()));
        Ok(apply_custom(&op, &[&self.linear.forward(x)?])?.remove(0))
    }
}

#[test]
fn a_stage_holds_the_activations_of_no_more_micro_batches_than_there_are_stages_from_it_on() {
    for (stages, micro_batches) in [(1, 8), (2, 8), (4, 8), (4, 2)] {
        let most = threads(stages, Options::default(), |comm| {
            let device = device()?;
            let live = Arc::new(Live::default());
            let cut = cut_evenly(&vec![1; stages], stages)?;
            let stage = Stage::new(comm, &cut, |i| Ok(Counts { linear: linear(&device, i)?, live: live.clone() }))?;
            let x = Tensor::ones([16, 3], DType::F32, &device)?;
            let pipeline = Pipeline::new(comm, micro_batches, &device)?;
            for _ in 0..2 {
                let input = |rows: Range<usize>| x.narrow(0, rows.start, rows.len());
                let _ = pipeline.backward(&stage, 16, input, |y, _| y.square()?.mean_all())?;
                assert_eq!(live.now.load(Ordering::SeqCst), 0);
            }
            Ok(live.most.load(Ordering::SeqCst))
        });
        let expected: Vec<usize> = (0..stages).map(|stage| (stages - stage).min(micro_batches)).collect();
        assert_eq!(most.unwrap(), expected, "{stages} stages, {micro_batches} micro-batches");
    }
}

/// A layer whose passes take some time, in which they count how many of all stages are at work.
#[derive(Module)]
struct Slow {
    linear: Linear,
    #[module(skip)]
    busy: Arc<Live>,
}

struct Work(Arc<Live>);

impl Work {
    fn done(&self, x: &Tensor) -> Result<Tensor> {
        let now = self.0.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.0.most.fetch_max(now, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(20));
        self.0.now.fetch_sub(1, Ordering::SeqCst);
        x.mul(1.0)
    }
}

impl CustomOp for Work {
    fn name(&self) -> &str {
        "work"
    }

    fn forward(&self, x: &[Tensor]) -> Result<Vec<Tensor>> {
        Ok(vec![self.done(&x[0])?])
    }

    fn backward(&self, _: &Context<'_>, g: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![g[0].as_ref().map(|g| self.done(g)).transpose()?])
    }
}

impl Forward for Slow {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        Ok(apply_custom(&Arc::new(Work(self.busy.clone())), &[&self.linear.forward(x)?])?.remove(0))
    }
}

#[test]
fn all_stages_compute_at_the_same_time() {
    let busy = Arc::new(Live::default());
    threads(4, Options::default(), |comm| {
        let device = device()?;
        let make = |i: usize| Ok(Slow { linear: linear(&device, i)?, busy: busy.clone() });
        let stage = Stage::new(comm, &cut_evenly(&[1; 4], 4)?, make)?;
        let x = Tensor::ones([16, 3], DType::F32, &device)?;
        let pipeline = Pipeline::new(comm, 8, &device)?;
        let input = |rows: Range<usize>| x.narrow(0, rows.start, rows.len());
        pipeline.backward(&stage, 16, input, |y, _| y.square()?.mean_all()).map(drop)
    })
    .unwrap();
    assert_eq!(busy.most.load(Ordering::SeqCst), 4);
}

/// A layer that fails at its n-th call.
#[derive(Module)]
struct Fails {
    linear: Linear,
    #[module(skip)]
    left: AtomicUsize,
}

impl Forward for Fails {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        match self.left.fetch_sub(1, Ordering::SeqCst) {
            0 => Err(Error::argument("fails", "this layer has had enough")),
            _ => self.linear.forward(x),
        }
    }
}

#[test]
fn a_stage_that_fails_is_an_error_on_all_at_once() {
    // The deadline is far away.
    let options = Options { deadline: Duration::from_secs(30) };
    for (failing, call) in [(0, 0), (0, 5), (1, 2), (3, 0), (3, 7)] {
        let outcomes = threads(4, options.clone(), |comm| {
            let device = device()?;
            let left = |i: usize| AtomicUsize::new(if i == failing { call } else { usize::MAX });
            let make = |i: usize| Ok(Fails { linear: linear(&device, i)?, left: left(i) });
            let stage = Stage::new(comm, &cut_evenly(&[1; 4], 4)?, make)?;
            let x = Tensor::ones([16, 3], DType::F32, &device)?;
            let begun = Instant::now();
            let input = |rows: Range<usize>| x.narrow(0, rows.start, rows.len());
            // A rank may hear of the failure before its last call of `new` has ended.
            let backward = |pipeline: Pipeline| pipeline.backward(&stage, 16, input, |y, _| y.square()?.mean_all());
            let e = Pipeline::new(comm, 8, &device).and_then(backward).unwrap_err();
            assert!(begun.elapsed() < Duration::from_secs(5), "{e}");
            // No call is possible any more, and none waits.
            let begun = Instant::now();
            assert_eq!(*comm.barrier(&device).unwrap_err().kind(), ErrorKind::Peer);
            assert!(begun.elapsed() < Duration::from_secs(1));
            // The communicator is held until here.
            Ok((e.kind().clone(), e.to_string()))
        });
        for (rank, (kind, text)) in outcomes.unwrap().into_iter().enumerate() {
            assert!(text.contains("this layer has had enough"), "{text}");
            let micro = format!("micro-batch {call}, ");
            let own = kind == ErrorKind::InvalidArgument && text.contains(&format!("in {failing} (Fails)"));
            let whole = if rank == failing {
                own && text.contains("forward pass") && text.contains(&micro)
            } else {
                kind == ErrorKind::Peer && text.contains(&format!("stage {failing} of 4 failed: fails: "))
            };
            assert!(whole, "rank {rank}: {text}");
        }
    }
}

/// The errors of all ranks.
fn errors(f: impl Fn(&Arc<dyn gradus_dist::Communicator>) -> Result<()> + Sync, ranks: usize) -> Vec<Error> {
    let options = Options { deadline: Duration::from_secs(30) };
    let begun = Instant::now();
    let all = threads(ranks, options, |comm| Ok(f(comm).unwrap_err())).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(10));
    all
}

#[test]
fn stages_that_compute_different_rows_are_told_so() {
    let all = errors(
        |comm| {
            let device = device()?;
            let stage = Stage::new(comm, &[0..1, 1..2], |i| linear(&device, i))?;
            let x = Tensor::ones([16, 3], DType::F32, &device)?;
            let input = |rows: Range<usize>| x.narrow(0, rows.start, rows.len());
            let pipeline = Pipeline::new(comm, 4, &device)?;
            pipeline.backward(&stage, 16 - comm.rank(), input, |y, _| y.square()?.mean_all()).map(drop)
        },
        2,
    );
    let text = all[1].to_string();
    assert!(
        text.contains("stages compute different rows") && text.contains("rank 0: micro-batch 0, rows 0..4"),
        "{text}"
    );
    assert!(all.iter().all(|e| *e.kind() == ErrorKind::Peer), "{all:?}");
    assert!(all[0].to_string().contains("stages compute different rows"), "{}", all[0]);
}

#[test]
fn cuts_and_micro_batches_that_differ_are_errors_on_all() {
    let cut = |comm: &Arc<dyn gradus_dist::Communicator>, cut: &[Range<usize>]| {
        let device = device()?;
        Stage::new(comm, cut, |i| linear(&device, i)).map(drop)
    };
    let all = errors(|comm| cut(comm, if comm.rank() == 0 { &[0..1, 1..3] } else { &[0..2, 2..3] }), 2);
    assert!(all.iter().all(|e| *e.kind() == ErrorKind::Peer && e.message().contains("different places")), "{all:?}");
    let wrong: [&[Range<usize>]; 4] = [&[], &[0..1, 2..3], &[0..1, 1..1], &[0..1, 1..2, 2..3]];
    for wrong in wrong {
        let all = errors(|comm| cut(comm, wrong), 2);
        let refused = |e: &Error| {
            *e.kind() == ErrorKind::Peer || (e.message().contains("a cut") && e.message().contains("2 ranks"))
        };
        assert!(all.iter().all(refused) && all.iter().any(|e| *e.kind() == ErrorKind::InvalidArgument), "{all:?}");
    }
    let all = errors(|comm| Pipeline::new(comm, 4 + comm.rank(), &device()?).map(drop), 2);
    assert!(all.iter().all(|e| e.message().contains("different micro-batches")), "{all:?}");
    let all = errors(|comm| Pipeline::new(comm, 0, &device()?).map(drop), 2);
    assert!(all.iter().all(|e| e.message().contains("0 micro-batches")), "{all:?}");
    assert!(cut_evenly(&[1, 2], 3).is_err() && cut_evenly(&[1, 2], 0).is_err());
}

#[test]
fn what_cannot_be_shared_or_tied_is_refused() {
    let all = errors(
        |comm| {
            let shared = linear(&device()?, 1)?;
            Stage::of(comm, Sequential::new().add(shared.clone()).add(shared), &[0..1, 1..2]).map(drop)
        },
        2,
    );
    let text = all.iter().find(|e| *e.kind() == ErrorKind::InvalidArgument).unwrap().to_string();
    assert!(text.contains("0.weight of stage 0 and 1.weight of stage 1 are one parameter"), "{text}");
    assert!(text.contains("pipeline.tie"), "{text}");
    let tie = |names: [&'static str; 2]| {
        move |comm: &Arc<dyn gradus_dist::Communicator>| {
            let device = device()?;
            let stage = Stage::new(comm, &[0..1, 1..2], |i| linear(&device, i))?;
            Pipeline::new(comm, 4, &device)?.tie(&stage, names)
        }
    };
    let all = errors(tie(["0.weight", "2.weight"]), 2);
    assert!(all.iter().all(|e| e.to_string().contains("no stage has a parameter 2.weight")), "{all:?}");
    let all = errors(tie(["0.weight", "1.bias"]), 2);
    assert!(all.iter().all(|e| *e.kind() == ErrorKind::Peer), "{all:?}");
    let all = errors(tie(["0.weight", "0.weight"]), 2);
    assert!(all.iter().any(|e| e.message().contains("0.weight is tied to itself")), "{all:?}");
    // A rank whose sum has not ended when another one gives up gets the reason from that one. The stages are layers whose
    // names do not say which stage it is.
    let same_names = |comm: &Arc<dyn gradus_dist::Communicator>| {
        let device = device()?;
        Pipeline::new(comm, 4, &device)?.tie(&linear(&device, 1)?, ["weight", "bias"])
    };
    let all = errors(same_names, 2);
    assert!(all.iter().all(|e| e.to_string().contains("2 stages have a parameter weight")), "{all:?}");
    // Sums one after the other would give the three parameters different gradients.
    let chain = |comm: &Arc<dyn gradus_dist::Communicator>| {
        let device = device()?;
        let stage = Stage::new(comm, &[0..1, 1..2, 2..3], |i| linear(&device, i))?;
        let mut pipeline = Pipeline::new(comm, 4, &device)?;
        pipeline.tie(&stage, ["0.weight", "1.weight"])?;
        pipeline.tie(&stage, ["2.weight", "1.weight"])
    };
    let all = errors(chain, 3);
    assert!(all.iter().all(|e| e.to_string().contains("the parameter 1.weight is tied twice")), "{all:?}");
    threads(1, Options::default(), |comm| {
        let device = device()?;
        let model = Sequential::new().add(linear(&device, 1)?);
        let e = Stage::of(comm, model, std::slice::from_ref(&(0..2))).unwrap_err();
        assert!(e.message().contains("the cut has 2 layers, and the model 1"), "{e}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn ties_of_parameters_that_the_stages_no_longer_have_are_refused() {
    let all = errors(
        |comm| {
            let device = device()?;
            let mut stage = Stage::new(comm, &[0..1, 1..2], |i| linear(&device, i))?;
            let mut pipeline = Pipeline::new(comm, 4, &device)?;
            pipeline.tie(&stage, ["0.weight", "1.weight"])?;
            stage.cast_parameters(DType::F64)?;
            let x = Tensor::ones([8, 3], DType::F64, &device)?;
            let input = |rows: Range<usize>| x.narrow(0, rows.start, rows.len());
            pipeline.backward(&stage, 8, input, |y, _| y.square()?.mean_all()).map(drop)
        },
        2,
    );
    assert!(all.iter().any(|e| e.message() == "a tied parameter is no longer one of the stage"), "{all:?}");
}

#[test]
fn pipelines_that_get_different_batches_are_told_so() {
    let all = errors(
        |comm| {
            let device = device()?;
            let mesh = Mesh::new(comm, [("data", 2), ("pipe", 2)])?;
            let pipe = mesh.axis("pipe")?;
            let stage = Stage::new(&pipe, &[0..1, 1..2], |i| linear(&device, i))?;
            let data = DataParallel::with_shards(mesh.axis("data")?, 4)?;
            let x = Tensor::ones([16, 3], DType::F32, &device)?;
            let input = |rows: Range<usize>| x.narrow(0, rows.start, rows.len());
            let batch = 16 - 4 * mesh.coordinate("data")?;
            let pipeline = Pipeline::with_data(&pipe, &data, &device)?;
            pipeline.backward(&stage, batch, input, |y, _| y.square()?.mean_all()).map(drop)
        },
        4,
    );
    let told = |e: &Error| {
        let text = e.to_string();
        text.contains("batches of different numbers of rows")
            && (*e.kind() == ErrorKind::Peer)
            && (text.contains("rank 1: 12 rows") || text.contains("failed: "))
    };
    assert!(all.iter().all(told), "{all:?}");
}

#[test]
fn what_was_sent_is_not_held_until_the_end_of_the_step() {
    const MICRO_BATCHES: usize = 32;
    threads(2, Options::default(), |comm| {
        let device = device()?;
        let stage = Stage::new(comm, &[0..1, 1..2], |i| linear(&device, i))?;
        let rows = 4096;
        let x = Tensor::ones([rows, 3], DType::F32, &device)?;
        let pipeline = Pipeline::new(comm, MICRO_BATCHES, &device)?;
        let held = std::cell::RefCell::new(vec![]);
        // Both stages send as much as they receive: an activation or its gradient.
        let note = || held.borrow_mut().push(device.memory_stats().in_use);
        let input = |_: Range<usize>| {
            note();
            x.narrow(0, 0, rows)
        };
        let loss = |y: &Tensor, _: Range<usize>| {
            note();
            y.square()?.mean_all()
        };
        let _ = pipeline.backward(&stage, MICRO_BATCHES, input, loss)?;
        let held = held.into_inner();
        let (early, late) = (held[3], held[MICRO_BATCHES - 1]);
        assert!(late < early + 6 * rows * 3 * 4, "{held:?}");
        Ok(())
    })
    .unwrap();
}

/// A layer whose output is its input.
#[derive(Module)]
struct Same {
    #[module(skip)]
    pause: Duration,
}

impl Forward for Same {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        std::thread::sleep(self.pause);
        x.narrow(0, 0, x.shape()[0])
    }
}

#[test]
fn an_input_that_is_written_again_does_not_change_what_was_sent() {
    threads(2, Options::default(), |comm| {
        let device = device()?;
        // The second stage is slower, so that activations wait for it.
        let same = |i: usize| Ok(Same { pause: Duration::from_millis(10 * i as u64) });
        let stage = Stage::new(comm, &[0..1, 1..2], same)?;
        let x = Tensor::randn([16, 3], DType::F32, &device, &mut Generator::new(1))?;
        let staging = Tensor::zeros([2, 3], DType::F32, &device)?;
        let input = |rows: Range<usize>| {
            staging.copy_(&x.narrow(0, rows.start, rows.len())?)?;
            Ok(staging.clone())
        };
        let y = Pipeline::new(comm, 8, &device)?.forward(&stage, 16, input)?;
        assert!(comm.rank() == 0 || y.unwrap().to_vec::<f32>()? == x.to_vec::<f32>()?);
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_pipeline_without_rows_has_no_output_and_goes_on() {
    threads(4, Options::default(), |comm| {
        let device = device()?;
        let mesh = Mesh::new(comm, [("data", 2), ("pipe", 2)])?;
        let pipe = mesh.axis("pipe")?;
        let stage = Stage::new(&pipe, &[0..1, 1..2], |i| linear(&device, i))?;
        let data = DataParallel::with_shards(mesh.axis("data")?, 4)?;
        let pipeline = Pipeline::with_data(&pipe, &data, &device)?;
        let x = Tensor::ones([4, 3], DType::F32, &device)?;
        for (batch, rows) in [(1, [0, 1]), (0, [0, 0]), (4, [2, 2])] {
            let y = pipeline.forward(&stage, batch, |rows| x.narrow(0, rows.start, rows.len()))?;
            let rows = if pipe.rank() == 1 { rows[mesh.coordinate("data")?] } else { 0 };
            assert_eq!(y.map_or(0, |y| y.shape()[0]), rows, "{batch} rows");
        }
        Ok(())
    })
    .unwrap();
}

//! The order of events: sums of gradients begin before the backward pass has ended, with a trainer, with divided
//! optimisers and with divided parameters too, and a block of these arrives while the one before it computes, on all ranks
//! alike.
#![allow(clippy::unwrap_used)]

use std::any::Any;
use std::ops::Range;
use std::panic::Location;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gradus_cpu::CpuBackend;
use gradus_data::{DataLoader, TensorDataset};
use gradus_dist::{Collective, Communicator, DataParallel, Handle, Options, ShardedOptimizer, threads};
use gradus_nn::{Forward, Init, Linear, Module, Optimizer, Relu, Sequential, Sgd, SgdConfig};
use gradus_tensor::autograd::Hook;
use gradus_tensor::backend::{Backend, Binding};
use gradus_tensor::ops::HostCall;
use gradus_tensor::{Bound, DType, Device, ErrorKind, Generator, Reduction, Result, Tensor};
use gradus_train::{Classification, Outcome, Trainer};

/// What happened, in this order.
type Events = Arc<Mutex<Vec<String>>>;

/// A communicator that notes the calls that are started, each after a pause.
#[derive(Debug)]
struct Noted {
    inner: Arc<dyn Communicator>,
    events: Events,
    pause: Duration,
    /// A reduce-scatter is not started before there is one of these events, if there is a list.
    awaited: Option<Events>,
}

impl Noted {
    fn of(inner: &Arc<dyn Communicator>, events: &Events) -> Arc<Noted> {
        Noted::paused(inner, events, Duration::ZERO)
    }

    fn paused(inner: &Arc<dyn Communicator>, events: &Events, pause: Duration) -> Arc<Noted> {
        let (inner, events) = (inner.clone(), events.clone());
        Arc::new(Noted { inner, events, pause, awaited: None })
    }
}

/// The event that the gradient of the first layer has come. A replay repeats it.
#[derive(Debug, Clone)]
struct Came {
    events: Events,
    /// Is done then, and told how often it has come.
    then: fn(usize) -> Result<()>,
}

const FIRST: &str = "first layer";

impl HostCall for Came {
    fn name(&self) -> &str {
        FIRST
    }

    fn is_same(&self, other: &dyn HostCall) -> bool {
        (other as &dyn Any).is::<Came>()
    }

    fn call(&self, _: &dyn Backend, _: &mut [Binding<'_>]) -> Result<()> {
        let mut events = self.events.lock().unwrap();
        events.push(FIRST.into());
        let count = events.iter().filter(|event| *event == FIRST).count();
        drop(events);
        (self.then)(count)
    }
}

/// Notes when the gradient of the weight of the first layer has come, which is complete last of all.
fn note(model: &Sequential, events: &Events, then: fn(usize) -> Result<()>) -> Result<Hook> {
    let came = Came { events: events.clone(), then };
    model.parameters()[0].tensor().register_hook(move |gradient| {
        let came = Arc::new(came.clone());
        gradient.device().dispatch_host(came, &[Bound::Read(gradient)], Location::caller())?;
        Ok(None)
    })
}

impl Communicator for Noted {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn size(&self) -> usize {
        self.inner.size()
    }

    fn deadline(&self) -> Duration {
        self.inner.deadline()
    }

    fn engine(&self) -> String {
        self.inner.engine()
    }

    fn run(&self, collective: Collective, x: &Tensor, line: &'static Location<'static>) -> Result<Tensor> {
        self.inner.run(collective, x, line)
    }

    fn run_in_place(&self, collective: Collective, x: &Tensor, line: &'static Location<'static>) -> Result<()> {
        self.inner.run_in_place(collective, x, line)
    }

    fn run_on_host(
        &self,
        collective: Collective,
        dtype: DType,
        words: Vec<u64>,
        line: &'static Location<'static>,
    ) -> Result<Vec<u64>> {
        self.inner.run_on_host(collective, dtype, words, line)
    }

    fn start(&self, collective: Collective, x: &Tensor, line: &'static Location<'static>) -> Result<Handle> {
        std::thread::sleep(self.pause);
        if let (Some(awaited), Collective::ReduceScatter(_)) = (&self.awaited, collective) {
            let begun = Instant::now();
            while awaited.lock().unwrap().is_empty() {
                assert!(begun.elapsed() < Duration::from_secs(60), "nothing happens on the other rank");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        self.events.lock().unwrap().push(format!("{} of {}", collective.name(), x.numel()));
        self.inner.start(collective, x, line)
    }

    fn give_up(&self, why: &str) {
        self.inner.give_up(why)
    }

    #[cfg(all(feature = "nccl", unix))]
    fn over_nccl(
        &self,
        device: &Device,
        reduction: gradus_dist::nccl::Reduction,
        line: &'static Location<'static>,
    ) -> Result<Arc<dyn Communicator>> {
        self.inner.over_nccl(device, reduction, line)
    }

    fn split_by(&self, color: u32, key: i64, line: &'static Location<'static>) -> Result<Arc<dyn Communicator>> {
        let (inner, events) = (self.inner.split_by(color, key, line)?, self.events.clone());
        Ok(Arc::new(Noted { inner, events, pause: self.pause, awaited: self.awaited.clone() }))
    }

    fn share(&self) -> Arc<dyn Communicator> {
        let (inner, events, awaited) = (self.inner.share(), self.events.clone(), self.awaited.clone());
        Arc::new(Noted { inner, events, pause: self.pause, awaited })
    }
}

fn device() -> Result<Device> {
    Ok(Device::from_backend(Arc::new(CpuBackend::new()?)))
}

/// Layers of 20, 15 and 4 elements.
fn network(device: &Device) -> Result<Sequential> {
    let mut rng = Generator::new(1);
    let mut init = Init::new(DType::F32, device, &mut rng);
    let (first, second, third) =
        (Linear::new(4, 4, &mut init)?, Linear::new(4, 3, &mut init)?, Linear::new(3, 1, &mut init)?);
    Ok(Sequential::new().add(first).add(Relu).add(second).add(Relu).add(third))
}

fn inputs(device: &Device) -> Result<Tensor> {
    Tensor::randn([16, 4], DType::F32, device, &mut Generator::new(3))
}

fn bits(gradients: &gradus_tensor::Gradients, model: &Sequential) -> Result<Vec<u8>> {
    let bytes = |p: &gradus_nn::Parameter| gradients.get(p.tensor()).map_or_else(|| Ok(vec![]), Tensor::to_bytes);
    Ok(model.parameters().iter().map(bytes).collect::<Result<Vec<_>>>()?.concat())
}

#[test]
fn sums_begin_before_the_backward_pass_has_ended() {
    let run = |bytes: usize| {
        threads(2, Options::default(), move |comm| {
            let device = device()?;
            let (model, x, events) = (network(&device)?, inputs(&device)?, Events::default());
            let noted = Noted::of(comm, &events);
            let parallel = DataParallel::with_shards(noted, 4)?.bucket_bytes(bytes);
            let _hook = note(&model, &events, |_| Ok(()))?;
            let mut all = vec![];
            for _ in 0..2 {
                let (_, gradients) = parallel.backward(&model, 16, |rows| {
                    let x = x.narrow(0, rows.start, rows.len())?;
                    model.forward(&x)?.mse_loss(&x.sum(&[1], true)?, Reduction::Mean)
                })?;
                all.extend(bits(&gradients, &model)?);
            }
            let events = events.lock().unwrap().clone();
            Ok((events, all))
        })
        .unwrap()
    };
    // The last two layers in one bucket, the first in another. The first of the two shards of a rank sends nothing.
    let of_layers = run(20 * 4);
    let step = [FIRST, "all_reduce of 19", FIRST, "all_reduce of 20"];
    for (events, _) in &of_layers {
        assert_eq!(*events, [step, step].concat());
    }
    // All in one: nothing is sent before the end, and the bits are the same.
    let at_once = run(1 << 20);
    for (events, all) in &at_once {
        assert_eq!(events[..3], [FIRST, FIRST, "all_reduce of 39"]);
        assert!(of_layers.iter().all(|(_, other)| other == all));
    }
}

#[test]
fn ranks_with_other_gradients_send_the_same_buckets() {
    let run = |bytes: usize| {
        threads(4, Options::default(), move |comm| {
            let device = device()?;
            let (model, x, events) = (network(&device)?, inputs(&device)?, Events::default());
            let noted = Noted::of(comm, &events);
            let parallel = DataParallel::with_shards(noted, 8)?.bucket_bytes(bytes);
            let parameters = model.parameters();
            // 5 rows for 8 shards, of which some ranks use the last layer only, and some the first.
            let loss = |rows: Range<usize>| match rows.start % 3 {
                0 => parameters[0].mul(x.narrow(0, rows.start, 1)?)?.sum_all(),
                1 => parameters[5].mul(rows.start as f64)?.sum_all(),
                _ => model.forward(&x.narrow(0, rows.start, rows.len())?)?.sum_all(),
            };
            let (_, gradients) = parallel.backward(&model, 5, loss)?;
            let events = events.lock().unwrap().clone();
            Ok((events, bits(&gradients, &model)?))
        })
        .unwrap()
    };
    let [all, other] = [run(1), run(1 << 20)];
    for (events, bits) in &all {
        assert_eq!(events.len(), 6);
        assert_eq!((events, bits), (&all[0].0, &other[0].1));
    }
}

#[test]
fn a_trainer_sends_gradients_before_the_backward_pass_has_ended() {
    let run = |ranks: usize, captured: bool| {
        threads(ranks, Options::default(), move |comm| {
            let device = device()?;
            let (mut model, events) = (network(&device)?, Events::default());
            let x = Tensor::randn([64, 4], DType::F32, &device, &mut Generator::new(3))?;
            let loader = DataLoader::new(TensorDataset::new(x, Tensor::zeros([64], DType::I64, &device)?)?, &device);
            let loader = loader.batch_size(16).build()?;
            let mut optimizer = Sgd::new(model.named_parameters(), SgdConfig { lr: 0.1, ..Default::default() })?;
            let _hook = note(&model, &events, |_| Ok(()))?;
            let parallel = DataParallel::with_shards(Noted::of(comm, &events), 4)?.bucket_bytes(20 * 4);
            let trainer = Trainer::new(1)?.ranks(Arc::new(parallel));
            let trainer = if captured { trainer.captured() } else { trainer.eager() };
            let task = |model: &Sequential, (x, _): &(Tensor, Tensor)| {
                let loss = model.forward(x)?.mse_loss(&x.sum(&[1], true)?, Reduction::Mean)?;
                Ok(Outcome { loss, samples: x.shape()[0], correct: None })
            };
            trainer.fit(&mut model, &mut optimizer, &loader, None, &task, &mut [])?;
            let bytes = model.parameters().iter().map(|p| p.values().to_bytes()).collect::<Result<Vec<_>>>()?;
            let events = events.lock().unwrap().clone();
            Ok((events, bytes.concat()))
        })
        .unwrap()
    };
    let step = [FIRST, "all_reduce of 19", FIRST, "all_reduce of 20"];
    // The passes of a first step are traced, and its gradients sent after them.
    let traced = [FIRST, FIRST, "all_reduce of 19", "all_reduce of 20"];
    let alone = run(1, false).remove(0).1;
    for (captured, first) in [(false, step), (true, traced)] {
        for (events, bytes) in run(2, captured) {
            assert_eq!(events, [first, step, step, step].concat(), "captured: {captured}");
            assert!(bytes == alone);
        }
    }
}

#[test]
fn a_divided_optimizer_sends_gradients_before_the_backward_pass_has_ended() {
    let all = threads(2, Options::default(), |comm| {
        let device = device()?;
        let (model, x, events) = (network(&device)?, inputs(&device)?, Events::default());
        let parallel = DataParallel::with_shards(Noted::of(comm, &events), 4)?.bucket_bytes(20 * 4);
        let _hook = note(&model, &events, |_| Ok(()))?;
        let sgd = |parameters| Sgd::new(parameters, SgdConfig::default());
        let mut optimizer = ShardedOptimizer::new(&parallel, &model, sgd)?;
        let _ = optimizer
            .step(&model, 16, |rows| model.forward(&x.narrow(0, rows.start, rows.len())?)?.square()?.mean_all())?;
        let events = events.lock().unwrap().clone();
        Ok(events)
    });
    // The 19 elements of the last two layers are padded to a multiple of the shards.
    let sum = "reduce_scatter of 20";
    for events in all.unwrap() {
        assert_eq!(events, [FIRST, sum, FIRST, sum]);
    }
}

/// What trains a model on several ranks.
#[derive(Debug, Clone, Copy)]
enum How {
    Whole,
    Trained,
    DividedOptimizer,
    DividedParameters,
}

/// Makes steps until one fails, with one shard for each rank.
fn steps(how: How, model: &mut Sequential, comm: &Arc<dyn Communicator>) -> Result<()> {
    let device = model.parameters()[0].device().clone();
    let x = inputs(&device)?;
    let parallel = DataParallel::with_shards(comm.clone(), comm.size())?.bucket_bytes(1);
    let sgd = |parameters| Sgd::new(parameters, SgdConfig::default());
    let loss = |model: &Sequential, rows: Range<usize>| {
        model.forward(&x.narrow(0, rows.start, rows.len())?)?.square()?.mean_all()
    };
    if let How::Trained = how {
        let loader = DataLoader::new(TensorDataset::new(x, Tensor::zeros([16], DType::I64, &device)?)?, &device);
        let loader = loader.batch_size(4).build()?;
        let mut optimizer = sgd(model.named_parameters())?;
        let task = Classification::default();
        return Trainer::new(1)?
            .ranks(Arc::new(parallel))
            .fit(model, &mut optimizer, &loader, None, &task, &mut [])
            .map(drop);
    }
    let mut whole = sgd(model.named_parameters())?;
    let mut divided = match how {
        How::DividedOptimizer => Some(ShardedOptimizer::new(&parallel, model, sgd)?),
        How::DividedParameters => Some(ShardedOptimizer::fully_sharded(&parallel, model, sgd)?),
        How::Whole | How::Trained => None,
    };
    for _ in 0..=TROUBLE {
        match &mut divided {
            Some(divided) => divided.step(&*model, 16, |rows| loss(model, rows)).map(drop)?,
            None => whole.step(&parallel.backward(&*model, 16, |rows| loss(model, rows))?.1)?,
        }
    }
    Ok(())
}

/// The step in which something happens, the first that the trainer replays. A rank that is late may end it in peace, but not
/// the next one.
const TROUBLE: usize = 3;

/// The kinds of the errors of two ranks, of which one does `then` in the backward passes, when the gradients of the later
/// layers are on their way.
fn trouble(how: How, deadline: u64, then: fn(usize) -> Result<()>) -> Vec<ErrorKind> {
    let options = Options { deadline: Duration::from_secs(deadline) };
    threads(2, options, |comm| {
        let (mut model, events) = (network(&device()?)?, Events::default());
        let _hook = note(&model, &events, if comm.rank() == 1 { then } else { |_| Ok(()) })?;
        let noted: Arc<dyn Communicator> = Noted::of(comm, &events);
        let e = steps(how, &mut model, &noted).unwrap_err();
        let events = events.lock().unwrap();
        let mut firsts = (0..events.len()).filter(|&i| events[i] == FIRST);
        let before = firsts.nth(TROUBLE - 1).map(|first| &events[first - 1]);
        let is_sum = |event: &String| event.starts_with("all_reduce") || event.starts_with("reduce_scatter");
        assert!(before.is_some_and(is_sum), "{how:?}: {e}\n{events:?}");
        Ok(e.kind().clone())
    })
    .unwrap()
}

const HOWS: [How; 4] = [How::Whole, How::Trained, How::DividedOptimizer, How::DividedParameters];

#[test]
fn a_pass_that_fails_while_gradients_are_summed_ends_all_ranks() {
    for how in HOWS {
        let begun = Instant::now();
        let kinds = trouble(how, 20, |step| match step {
            TROUBLE => Err(gradus_tensor::Error::argument("hook", "no")),
            _ => Ok(()),
        });
        assert_eq!(kinds, [ErrorKind::Peer, ErrorKind::InvalidArgument], "{how:?}");
        assert!(begun.elapsed() < Duration::from_secs(20), "{how:?}");
    }
}

#[test]
fn a_rank_that_is_late_while_gradients_are_summed_is_an_error_on_all() {
    for how in HOWS {
        let kinds = trouble(how, 2, |step| {
            std::thread::sleep(Duration::from_secs(if step == TROUBLE { 4 } else { 0 }));
            Ok(())
        });
        assert_eq!(kinds, [ErrorKind::Peer, ErrorKind::Peer], "{how:?}");
    }
}

#[test]
fn the_next_block_is_gathered_while_one_computes() {
    let all = threads(2, Options::default(), |comm| {
        let device = device()?;
        let mut rng = Generator::new(1);
        let mut init = Init::new(DType::F32, &device, &mut rng);
        let [first, second, third] = [(4, 4), (4, 5), (5, 3)].map(|(from, to)| Linear::new(from, to, &mut init));
        let model = vec![first?, second?, third?];
        let (x, events) = (inputs(&device)?, Events::default());
        let noted = Noted::of(comm, &events);
        let sgd = |parameters| Sgd::new(parameters, SgdConfig::default());
        let parallel = DataParallel::with_shards(noted, 2)?;
        let mut optimizer = ShardedOptimizer::fully_sharded(&parallel, &model, sgd)?;
        for _ in 0..2 {
            let _ = optimizer.step(&model, 16, |rows| {
                let mut x = x.narrow(0, rows.start, rows.len())?;
                for (i, layer) in model.iter().enumerate() {
                    x = layer.forward(&x)?;
                    events.lock().unwrap().push(format!("layer {i}"));
                }
                x.square()?.mean_all()
            })?;
            events.lock().unwrap().push("step".into());
        }
        let events = events.lock().unwrap().clone();
        Ok(events)
    });
    // The first step learns the order. Parts are half of 25 and 18 elements, padded to a multiple of the shards. The backward
    // pass does not need the values of the first layer. The sums of gradients are of all elements.
    let [second, third] = ["all_gather of 13", "all_gather of 9"];
    let [sum, of_third] = ["reduce_scatter of 26", "reduce_scatter of 18"];
    let sums = [of_third, sum, "reduce_scatter of 20", "step"];
    let learnt = ["layer 0", "layer 1", "layer 2"];
    let ahead = [second, "layer 0", third, "layer 1", second, "layer 2"];
    for events in all.unwrap() {
        assert_eq!(events, [&learnt[..], &sums, &ahead, &sums].concat());
    }
}

#[test]
fn gradients_of_a_block_are_summed_while_the_block_before_it_computes() {
    // Rank 1 begins to sum those of the last layers, which are a block, only when rank 0 has those of the first.
    let seen = Events::default();
    threads(2, Options::default(), |comm| {
        let device = device()?;
        let (model, x) = (network(&device)?, inputs(&device)?);
        let own = Events::default();
        let awaited = (comm.rank() == 1).then(|| seen.clone());
        let noted = Noted { inner: comm.clone(), events: own.clone(), pause: Duration::ZERO, awaited };
        let parallel = DataParallel::with_shards(Arc::new(noted), 2)?;
        let sgd = |parameters| Sgd::new(parameters, SgdConfig::default());
        let mut optimizer = ShardedOptimizer::fully_sharded(&parallel, &model, sgd)?;
        let loss = |rows: Range<usize>| model.forward(&x.narrow(0, rows.start, rows.len())?)?.square()?.mean_all();
        let _hook = note(&model, if comm.rank() == 0 { &seen } else { &own }, |_| Ok(()))?;
        optimizer.step(&model, 16, loss).map(drop)
    })
    .unwrap();
    assert_eq!(*seen.lock().unwrap(), [FIRST]);
}

#[test]
fn a_step_that_fails_returns_when_the_block_that_it_started_has_come() {
    let started = Events::default();
    let errors = threads(2, Options::default(), |comm| {
        let device = device()?;
        let (model, x) = (network(&device)?, inputs(&device)?);
        // Rank 0 starts late.
        let pause = Duration::from_millis(if comm.rank() == 0 { 300 } else { 0 });
        let events = if comm.rank() == 0 { started.clone() } else { Events::default() };
        let noted = Noted::paused(comm, &events, pause);
        let sgd = |parameters| Sgd::new(parameters, SgdConfig::default());
        let parallel = DataParallel::with_shards(noted, 2)?;
        let mut optimizer = ShardedOptimizer::fully_sharded(&parallel, &model, sgd)?;
        let loss = |rows: Range<usize>| model.forward(&x.narrow(0, rows.start, rows.len())?)?.square()?.mean_all();
        let _ = optimizer.step(&model, 16, loss)?;
        let gathers = || started.lock().unwrap().iter().any(|event| event.starts_with("all_gather"));
        assert!(comm.rank() == 1 || !gathers());
        let parameters = model.parameters();
        let made = optimizer.step(&model, 16, |rows| match comm.rank() {
            0 => loss(rows),
            _ => {
                let _ = parameters[0].mul(2.0)?;
                Err(gradus_tensor::Error::argument("loss", "no"))
            }
        });
        let came = gathers();
        drop((optimizer, parallel));
        Ok((came, made.map(drop).unwrap_err().kind().clone()))
    });
    assert_eq!(errors.unwrap(), [(true, ErrorKind::Peer), (true, ErrorKind::InvalidArgument)]);
}

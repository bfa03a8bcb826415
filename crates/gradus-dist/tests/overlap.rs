//! The order of events: sums of gradients begin before the backward pass has ended, and a block of divided parameters
//! arrives while the one before it computes, on all ranks alike.
#![allow(clippy::unwrap_used)]

use std::ops::Range;
use std::panic::Location;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gradus_cpu::CpuBackend;
use gradus_dist::{Collective, Communicator, DataParallel, Handle, Options, ShardedOptimizer, threads};
use gradus_nn::{Forward, Init, Linear, Module, Relu, Sequential, Sgd, SgdConfig};
use gradus_tensor::{DType, Device, ErrorKind, Generator, Reduction, Result, Tensor};

/// What happened, in this order.
type Events = Arc<Mutex<Vec<String>>>;

/// A communicator that notes the calls that are started, each after a pause.
#[derive(Debug)]
struct Noted {
    inner: Arc<dyn Communicator>,
    events: Events,
    pause: Duration,
}

impl Noted {
    fn of(inner: &Arc<dyn Communicator>, events: &Events) -> Arc<Noted> {
        Arc::new(Noted { inner: inner.clone(), events: events.clone(), pause: Duration::ZERO })
    }
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
        Ok(Arc::new(Noted { inner, events, pause: self.pause }))
    }

    fn share(&self) -> Arc<dyn Communicator> {
        Arc::new(Noted { inner: self.inner.share(), events: self.events.clone(), pause: self.pause })
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
            // Complete last of all, as they belong to the first layer.
            let last = events.clone();
            let _hook = model.parameters()[0].tensor().register_hook(move |_| {
                last.lock().unwrap().push("first layer".into());
                Ok(None)
            })?;
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
    let step = ["first layer", "all_reduce of 19", "first layer", "all_reduce of 20"];
    for (events, _) in &of_layers {
        assert_eq!(*events, [step, step].concat());
    }
    // All in one: nothing is sent before the end, and the bits are the same.
    let at_once = run(1 << 20);
    for (events, all) in &at_once {
        assert_eq!(events[..3], ["first layer", "first layer", "all_reduce of 39"]);
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
fn a_pass_that_fails_after_a_bucket_was_sent_ends_all_ranks() {
    let options = Options { deadline: Duration::from_secs(20) };
    let kinds = threads(2, options, |comm| {
        let device = device()?;
        let (model, x) = (network(&device)?, inputs(&device)?);
        let rank = comm.rank();
        let _hook = model.parameters()[0].tensor().register_hook(move |_| match rank {
            1 => Err(gradus_tensor::Error::argument("hook", "no")),
            _ => Ok(None),
        })?;
        let parallel = DataParallel::with_shards(comm.clone(), 2)?.bucket_bytes(1);
        let made = parallel
            .backward(&model, 16, |rows| model.forward(&x.narrow(0, rows.start, rows.len())?)?.square()?.mean_all());
        drop(parallel);
        Ok(made.map(drop).unwrap_err().kind().clone())
    });
    assert_eq!(kinds.unwrap(), [ErrorKind::Peer, ErrorKind::InvalidArgument]);
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
    // pass does not need the values of the first layer.
    let [second, third] = ["all_gather of 13", "all_gather of 9"];
    let learnt = ["layer 0", "layer 1", "layer 2", "step"];
    let ahead = [second, "layer 0", third, "layer 1", second, "layer 2", "step"];
    for events in all.unwrap() {
        assert_eq!(events, [&learnt[..], &ahead[..]].concat());
    }
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
        let noted = Arc::new(Noted { inner: comm.clone(), events, pause });
        let sgd = |parameters| Sgd::new(parameters, SgdConfig::default());
        let parallel = DataParallel::with_shards(noted, 2)?;
        let mut optimizer = ShardedOptimizer::fully_sharded(&parallel, &model, sgd)?;
        let loss = |rows: Range<usize>| model.forward(&x.narrow(0, rows.start, rows.len())?)?.square()?.mean_all();
        let _ = optimizer.step(&model, 16, loss)?;
        assert!(comm.rank() == 1 || started.lock().unwrap().is_empty());
        let parameters = model.parameters();
        let made = optimizer.step(&model, 16, |rows| match comm.rank() {
            0 => loss(rows),
            _ => {
                let _ = parameters[0].mul(2.0)?;
                Err(gradus_tensor::Error::argument("loss", "no"))
            }
        });
        let came = !started.lock().unwrap().is_empty();
        drop((optimizer, parallel));
        Ok((came, made.map(drop).unwrap_err().kind().clone()))
    });
    assert_eq!(errors.unwrap(), [(true, ErrorKind::Peer), (true, ErrorKind::InvalidArgument)]);
}

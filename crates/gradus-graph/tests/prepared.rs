//! What a backend is told about a list of calls that runs many times.
#![allow(clippy::unwrap_used)]

mod common;

use std::cell::RefCell;
use std::sync::{Arc, Mutex, Weak};

use common::{bits, random};
use gradus_cpu::CpuBackend;
use gradus_graph::capture;
use gradus_nn::{BatchNorm1d, BatchNormConfig, Dropout, Forward, Init, Linear, Module, Optimizer, Sgd, SgdConfig};
use gradus_tensor::backend::{
    Backend, BackendInfo, Kernel, MapOperands, MemoryStats, Prepared, Reclaim, backend_methods,
};
use gradus_tensor::{DType, Device, Generator, Result, Tensor, UpdateFn};

/// The CPU, with a list of what it was told: for each run of a list of calls, how often the list had run before, and
/// whether all was the same.
#[derive(Debug)]
struct Listening {
    cpu: CpuBackend,
    heard: Arc<Mutex<Vec<(usize, bool)>>>,
    /// Whether it says that it prepares lists.
    prepares: bool,
    /// What it may have back.
    offered: Arc<Mutex<Vec<Weak<dyn Reclaim>>>>,
    /// For each call of `map_each`, how many lists it has.
    lists: Arc<Mutex<Vec<usize>>>,
}

macro_rules! pass_on {
    ($($name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
        $(fn $name(&self, $($arg: $type),*) -> $result {
            self.cpu.$name($($arg),*)
        })*
    };
}

#[allow(clippy::too_many_arguments)]
impl Backend for Listening {
    fn info(&self) -> BackendInfo {
        self.cpu.info()
    }

    fn name(&self) -> &str {
        self.cpu.name()
    }

    fn supports(&self, dtype: DType) -> bool {
        self.cpu.supports(dtype)
    }

    fn memory_stats(&self) -> MemoryStats {
        self.cpu.memory_stats()
    }

    fn prepares(&self) -> bool {
        self.prepares
    }

    fn offer(&self, memory: Weak<dyn Reclaim>) {
        self.offered.lock().unwrap().push(memory);
    }

    fn run_prepared(
        &self,
        prepared: &mut Prepared,
        is_same: bool,
        calls: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        let before = prepared.get::<usize>().copied().unwrap_or(0);
        prepared.keep(before + 1);
        self.heard.lock().unwrap().push((before, is_same));
        calls()
    }

    fn map_each(&self, kernel: &Kernel, calls: &mut [MapOperands<'_, '_>]) -> Result<()> {
        self.lists.lock().unwrap().push(calls.len());
        self.cpu.map_each(kernel, calls)
    }

    backend_methods!(memory pass_on);
    backend_methods!(primitives pass_on);
    backend_methods!(composites pass_on);
}

fn listening(prepares: bool) -> (Device, impl Fn() -> Vec<(usize, bool)>) {
    let heard = Arc::new(Mutex::new(vec![]));
    let cpu = CpuBackend::new().unwrap();
    let backend = Listening { cpu, heard: heard.clone(), prepares, offered: Arc::default(), lists: Arc::default() };
    (Device::from_backend(Arc::new(backend)), move || std::mem::take(&mut *heard.lock().unwrap()))
}

#[test]
fn a_backend_is_told_whether_all_is_where_it_was() {
    let (device, heard) = listening(false);
    let mut step = capture(|x| Ok(vec![x[0].exp()?.matmul(&x[0])?.remainder(&x[1])?]));
    let (x, y) = (random(&[4, 4], 1, &device), random(&[4, 4], 2, &device));
    let three = Tensor::full([4, 4], 3.0, DType::F32, &device).unwrap();
    let want = |x: &Tensor| bits(&x.exp().unwrap().matmul(x).unwrap().remainder(&three).unwrap());
    let mut call = |x: &Tensor| {
        let got = step.call(&[x, &three]).unwrap().swap_remove(0);
        assert_eq!(bits(&got), want(x));
        got
    };
    // Two calls are traced, and debug builds run the function beside the first replay.
    [&x, &y, &y, &x].into_iter().for_each(|x| drop(call(x)));
    heard();
    drop(call(&x)); // The result has the memory of the one before.
    assert_eq!(heard().last().map(|h| h.1), Some(true));
    let z = random(&[4, 4], 3, &device);
    drop(call(&z)); // The argument is another tensor.
    assert_eq!(heard().last().map(|h| h.1), Some(false));
    for x in [&z, &x, &z, &x] {
        drop(call(x));
    }
    for x in [&z, &x, &z] {
        drop(call(x)); // Both are known.
        assert_eq!(heard().last().map(|h| h.1), Some(true));
    }
    let kept = [call(&y), call(&y)]; // The second result has other memory than the first.
    assert_eq!(heard().last().map(|h| h.1), Some(false));
    assert_eq!(bits(&kept[0]), bits(&kept[1]));
}

#[test]
fn calls_whose_parameters_are_new_each_time_are_kept_apart() {
    let (device, heard) = listening(false);
    let dropout = Dropout::new(0.5, &mut Generator::new(3)).unwrap();
    let mut step = capture(|x| Ok(vec![dropout.forward(&x[0].exp()?.matmul(&x[0])?)?]));
    let x = random(&[8, 8], 1, &device);
    for _ in 0..6 {
        step.call(&[&x]).unwrap();
    }
    heard();
    for _ in 0..3 {
        step.call(&[&x]).unwrap();
        // What is before the random numbers, and what is after them. Each keeps its own things.
        let heard = heard();
        assert_eq!(heard.len(), 2, "{heard:?}");
        assert!(heard.iter().all(|&(before, is_same)| is_same && before > 0), "{heard:?}");
    }
}

#[test]
fn numbers_of_an_optimizer_that_stay_are_part_of_the_list() {
    let (device, heard) = listening(false);
    let layer = Linear::new(4, 4, &mut Init::new(DType::F32, &device, &mut Generator::new(1))).unwrap();
    let sgd = Sgd::new(layer.named_parameters(), SgdConfig { lr: 0.25, ..Default::default() }).unwrap();
    let optimizer = RefCell::new(sgd);
    let mut step = capture(|x| {
        optimizer.borrow_mut().step(&layer.forward(&x[0])?.square()?.sum_all()?.backward()?)?;
        Ok(())
    });
    let x = random(&[4, 4], 1, &device);
    let mut call = || {
        heard();
        step.call(&[&x]).unwrap();
        heard().into_iter().map(|h| h.1).collect::<Vec<_>>()
    };
    (0..6).for_each(|_| drop(call()));
    assert_eq!(call(), [true]);
    optimizer.borrow_mut().set_lr_factor(0.5).unwrap(); // Once.
    assert_eq!([call(), call()], [[false], [true]]);
    for i in 0..4 {
        optimizer.borrow_mut().set_lr_factor(0.25 / f64::from(i + 1)).unwrap(); // Again and again.
        call();
    }
    assert_eq!(call(), [true], "the updates are no longer among what is prepared");
}

#[test]
fn a_run_that_failed_is_no_run_to_be_repeated() {
    let (device, heard) = listening(false);
    let mut step = capture(|x| Ok(vec![x[0].remainder(&x[1])?]));
    let numbers = |n: i64| Tensor::from_vec(vec![n; 4], [4], &device).unwrap();
    let (nine, divisor) = (numbers(9), numbers(4));
    for _ in 0..5 {
        step.call(&[&nine, &divisor]).unwrap();
    }
    assert_eq!(heard().last().map(|h| h.1), Some(true));
    divisor.fill_(0).unwrap();
    assert!(step.call(&[&nine, &divisor]).is_err());
    divisor.fill_(2).unwrap();
    heard();
    step.call(&[&nine, &divisor]).unwrap();
    assert_eq!(heard().last().map(|h| h.1), Some(false));
}

static MIX: UpdateFn = UpdateFn::new("mix", |x| vec![x[0] * 0.5 + x[1]]);

#[test]
fn updates_of_other_tensors_by_the_same_numbers_are_one_call() {
    let lists = Arc::<Mutex<Vec<usize>>>::default();
    let backend = Listening {
        cpu: CpuBackend::new().unwrap(),
        heard: Arc::default(),
        prepares: false,
        offered: Arc::default(),
        lists: lists.clone(),
    };
    let device = Device::from_backend(Arc::new(backend));
    let [a, b, c, d] = [1, 2, 3, 4].map(|seed| random(&[5], seed, &device));
    let mut step = capture(|x| {
        MIX.apply(&[&a], &[&a, &x[0]], &[])?;
        MIX.apply(&[&b], &[&b, &x[0]], &[])?;
        // This reads what the first one writes, and the next two belong to it.
        MIX.apply(&[&c], &[&c, &a], &[])?;
        MIX.apply(&[&d], &[&d, &x[0]], &[])?;
        MIX.apply(&[&b], &[&b, &x[0]], &[])?;
        // This writes what the third one reads.
        MIX.apply(&[&a], &[&a, &x[0]], &[])?;
        Ok(())
    });
    let [p, q, r, s] = [1, 2, 3, 4].map(|seed| random(&[5], seed, &device));
    for i in 0..6 {
        let x = random(&[5], 10 + i, &device);
        lists.lock().unwrap().clear();
        step.call(&[&x]).unwrap();
        if i > 3 {
            assert_eq!(*lists.lock().unwrap(), [2, 3]);
        }
        let x = [&x, &x, &p, &x, &x, &x];
        for (t, x) in [&p, &q, &r, &s, &q, &p].into_iter().zip(x) {
            MIX.apply(&[t], &[t, x], &[]).unwrap();
        }
        for (found, expected) in [&a, &b, &c, &d].into_iter().zip([&p, &q, &r, &s]) {
            assert_eq!(bits(found), bits(expected), "call {i}");
        }
    }
}

#[test]
fn results_and_states_have_memory_of_their_own_where_lists_are_prepared() {
    let (device, heard) = listening(true);
    let made = || {
        BatchNorm1d::new(4, BatchNormConfig::default(), &mut Init::new(DType::F32, &device, &mut Generator::new(1)))
            .unwrap()
    };
    let (captured, plain) = (made(), made());
    let states = |layer: &BatchNorm1d| layer.named_buffers().into_iter().map(|(_, b)| b.tensor()).collect::<Vec<_>>();
    let mut step = capture(|x| Ok(vec![captured.forward(&x[0])?.exp()?.detach(), x[0].sum_all()?]));
    let x = Tensor::zeros([3, 4], DType::F32, &device).unwrap();
    let (mut kept, mut expected) = (vec![], vec![]);
    for i in 0..9 {
        x.copy_(&random(&[3, 4], i, &device)).unwrap();
        kept.push(step.call(&[&x]).unwrap().into_iter().chain(states(&captured)).collect::<Vec<_>>());
        let now = [plain.forward(&x).unwrap().exp().unwrap(), x.sum_all().unwrap()];
        expected.push(now.iter().chain(&states(&plain)).map(bits).collect::<Vec<_>>());
    }
    for (i, (kept, expected)) in kept.iter().zip(&expected).enumerate() {
        assert_eq!(&kept.iter().map(bits).collect::<Vec<_>>(), expected, "call {i}");
    }
    assert!(step.replays() > 5);
    // The results of a step without states are computed where they were.
    let mut step = capture(|x| Ok(vec![x[0].exp()?, x[0].sum_all()?]));
    let mut kept: Vec<_> = (0..5).map(|_| step.call(&[&x]).unwrap()).collect();
    heard();
    kept.extend((0..3).map(|_| step.call(&[&x]).unwrap()));
    assert!(heard().iter().all(|&(_, is_same)| is_same), "though all results are kept");
    assert!(kept.iter().all(|results| bits(&results[0]) == bits(&x.exp().unwrap())));
}

#[test]
fn a_place_for_results_that_was_taken_back_is_made_again_after_a_while() {
    let offered = Arc::<Mutex<Vec<Weak<dyn Reclaim>>>>::default();
    let heard = Arc::<Mutex<Vec<(usize, bool)>>>::default();
    let backend = Listening {
        cpu: CpuBackend::new().unwrap(),
        heard: heard.clone(),
        prepares: true,
        offered: offered.clone(),
        lists: Arc::default(),
    };
    let device = Device::from_backend(Arc::new(backend));
    let mut step = capture(|x| Ok(vec![x[0].exp()?]));
    let x = random(&[100], 1, &device);
    let want = bits(&x.exp().unwrap());
    let mut call = || {
        let results = step.call(&[&x]).unwrap();
        assert_eq!(bits(&results[0]), want);
        results
    };
    (0..6).for_each(|_| drop(call()));
    let places: Vec<_> = offered.lock().unwrap().iter().filter_map(Weak::upgrade).collect();
    let bytes = || places.iter().map(|place| place.bytes()).sum::<usize>();
    assert_eq!(bytes(), 400);
    let before = device.memory_stats().in_use;
    assert_eq!(places.iter().filter(|place| place.clear()).count(), 1);
    assert_eq!((bytes(), device.memory_stats().in_use), (0, before - 400));
    assert!(!places.iter().any(|place| place.clear()), "there is nothing more");
    drop(call());
    assert_eq!(bytes(), 0);
    (0..100).for_each(|_| drop(call()));
    assert_eq!(bytes(), 400);
    heard.lock().unwrap().clear();
    drop([call(), call()]);
    assert!(heard.lock().unwrap().iter().all(|&(_, is_same)| is_same), "though both results live");
}

//! What a backend is told about a list of calls that runs many times.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::{Arc, Mutex};

use common::{bits, random};
use gradus_cpu::CpuBackend;
use gradus_graph::capture;
use gradus_nn::{Dropout, Forward};
use gradus_tensor::backend::{Backend, BackendInfo, MemoryStats, Prepared, backend_methods};
use gradus_tensor::{DType, Device, Generator, Result, Tensor};

/// The CPU, with a list of what it was told: for each run of a list of calls, how often the list had run before, and
/// whether all was the same.
#[derive(Debug)]
struct Listening {
    cpu: CpuBackend,
    heard: Arc<Mutex<Vec<(usize, bool)>>>,
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

    backend_methods!(memory pass_on);
    backend_methods!(primitives pass_on);
    backend_methods!(composites pass_on);
}

fn listening() -> (Device, impl Fn() -> Vec<(usize, bool)>) {
    let heard = Arc::new(Mutex::new(vec![]));
    let backend = Listening { cpu: CpuBackend::new().unwrap(), heard: heard.clone() };
    (Device::from_backend(Arc::new(backend)), move || std::mem::take(&mut *heard.lock().unwrap()))
}

#[test]
fn a_backend_is_told_whether_all_is_where_it_was() {
    let (device, heard) = listening();
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
    drop(call(&y)); // The argument is another tensor.
    assert_eq!(heard().last().map(|h| h.1), Some(false));
    drop(call(&y));
    assert_eq!(heard().last().map(|h| h.1), Some(true));
    let kept = [call(&y), call(&y)]; // The second result has other memory than the first.
    assert_eq!(heard().last().map(|h| h.1), Some(false));
    assert_eq!(bits(&kept[0]), bits(&kept[1]));
}

#[test]
fn parameters_that_are_renewed_are_another_list() {
    let (device, heard) = listening();
    let dropout = Dropout::new(0.5, &mut Generator::new(3)).unwrap();
    let mut step = capture(|x| Ok(vec![dropout.forward(&x[0])?]));
    let x = random(&[64], 1, &device);
    for _ in 0..6 {
        step.call(&[&x]).unwrap();
    }
    let heard = heard();
    assert!(heard.len() >= 4 && heard.iter().all(|h| !h.1), "{heard:?}");
    // The list keeps what the backend gave it.
    assert_eq!(heard.iter().map(|h| h.0).collect::<Vec<_>>(), (0..heard.len()).collect::<Vec<_>>());
}

#[test]
fn a_run_that_failed_is_no_run_to_be_repeated() {
    let (device, heard) = listening();
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

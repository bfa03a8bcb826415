//! A device whose memory the host cannot reach, and which prepares lists of calls.

use std::sync::{Arc, Mutex};

use gradus_cpu::CpuBackend;
use gradus_dist::{Options, Reduce, threads};
use gradus_graph::capture;
use gradus_tensor::backend::{Backend, BackendInfo, MemoryStats, Prepared, backend_methods};
use gradus_tensor::{DType, Device, Result, Tensor};

use crate::{STEPS, device, run};

/// The CPU without functions of the host. It counts the lists that it is told to prepare.
#[derive(Debug)]
struct Far {
    cpu: CpuBackend,
    lists: Arc<Mutex<usize>>,
}

macro_rules! pass_on {
    ($($name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
        $(fn $name(&self, $($arg: $type),*) -> $result {
            self.cpu.$name($($arg),*)
        })*
    };
}

#[allow(clippy::too_many_arguments)]
impl Backend for Far {
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
        true
    }

    fn run_prepared(&self, _: &mut Prepared, _: bool, calls: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        *self.lists.lock().unwrap() += 1;
        calls()
    }

    backend_methods!(memory pass_on);
    backend_methods!(primitives pass_on);
    backend_methods!(composites pass_on);
}

pub(crate) fn far() -> (Device, Arc<Mutex<usize>>) {
    let lists = Arc::<Mutex<usize>>::default();
    (Device::from_backend(Arc::new(Far { cpu: CpuBackend::new().unwrap(), lists: lists.clone() })), lists)
}

#[test]
fn tensors_beyond_the_host_are_exchanged_too() {
    for (name, step) in STEPS {
        let eager = run(2, &device().unwrap(), |_| false, step);
        assert!(run(2, &far().0, |_| true, step) == eager, "{name}");
    }
}

/// A list that a device runs as a whole, as a CUDA graph, contains no call of the host.
#[test]
fn lists_of_calls_end_at_a_collective() {
    let (device, lists) = far();
    let counts = threads(1, Options::default(), |comm| {
        let mut step = capture(|x| Ok(vec![comm.all_reduce(&x[0].exp()?, Reduce::Sum)?.matmul(&x[0])?]));
        let x = Tensor::ones([2, 2], DType::F32, &device)?;
        for _ in 0..3 {
            step.call::<Vec<Tensor>>(&[&x])?;
        }
        *lists.lock().unwrap() = 0;
        step.call::<Vec<Tensor>>(&[&x])?;
        Ok(*lists.lock().unwrap())
    });
    assert_eq!(counts.unwrap(), [1], "a rank alone makes no call");
    let (device, lists) = far();
    threads(2, Options::default(), |comm| {
        let mut step = capture(|x| {
            let y = comm.all_reduce(&x[0].exp()?, Reduce::Sum)?.matmul(&x[0])?;
            Ok(vec![comm.all_gather(&y)?.matmul(&x[0])?])
        });
        let x = Tensor::ones([2, 2], DType::F32, &device)?;
        for _ in 0..3 {
            step.call::<Vec<Tensor>>(&[&x])?;
        }
        comm.barrier(&device)?;
        if comm.rank() == 0 {
            *lists.lock().unwrap() = 0;
        }
        comm.barrier(&device)?;
        step.call::<Vec<Tensor>>(&[&x])?;
        comm.barrier(&device)?;
        assert_eq!(*lists.lock().unwrap(), 2 * 3, "before, between and after the two calls, on both ranks");
        Ok(())
    })
    .unwrap();
}

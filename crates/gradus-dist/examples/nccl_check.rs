//! Checks NCCL on the GPUs of this machine, one rank each: `nccl_check [RANKS]`. Every collective has the bits of threads on
//! the CPU, training has the same bits on one GPU and on all, ranks that disagree get an error, and an all-reduce of 64 MB
//! is timed. With one GPU, there is one rank. `nccl_check small` leaves the times out.
#![allow(clippy::print_stdout)]

use std::sync::Arc;
use std::time::Instant;

use gradus_cpu::CpuBackend;
use gradus_cuda::CudaBackend;
use gradus_dist::nccl::Reduction;
use gradus_dist::{Communicator, DataParallel, Options, Reduce, nccl, threads};
use gradus_nn::{Forward, Init, Linear, Module, Optimizer, Sgd, SgdConfig};
use gradus_tensor::{DType, Device, Error, ErrorKind, Generator, Result, Tensor};

/// The bytes of the all-reduce that is timed.
const LARGE: usize = 64 << 20;
const REDUCTIONS: [Reduce; 4] = [Reduce::Sum, Reduce::Prod, Reduce::Max, Reduce::Min];

fn main() -> Result<()> {
    let word = std::env::args().nth(1);
    let gpus = gradus_cuda::devices()?.len();
    let ranks = word.as_deref().and_then(|word| word.parse().ok()).unwrap_or(gpus);
    let is_small = word.as_deref() == Some("small");

    let mut same = 0;
    for n in [ranks * 12, ranks * 30_000] {
        let expected = threads(ranks, Options::default(), |comm| calls(comm, &cpu()?, n))?;
        let found = on_gpus(ranks, Reduction::Tree, |comm, device| calls(comm, device, n))?;
        for (rank, (found, expected)) in found.iter().zip(&expected).enumerate() {
            for ((what, found), (_, expected)) in found.iter().zip(expected) {
                if found != expected {
                    return Err(Error::new(ErrorKind::Backend, "nccl_check", format!("rank {rank}: {what} differs")));
                }
                same += 1;
            }
        }
    }
    let alone = threads(1, Options::default(), |comm| trained(comm, &gpu(0)?))?.remove(0);
    let shared = on_gpus(ranks, Reduction::Tree, trained)?;
    if ranks.is_power_of_two() && ranks <= 16 && shared.iter().any(|bits| *bits != alone) {
        return Err(Error::new(ErrorKind::Backend, "nccl_check", "training has other bits on one GPU than on all"));
    }
    disagree(ranks)?;
    let times = if is_small { String::new() } else { times(ranks)? };
    println!("nccl_check: {ranks} ranks, {same} results as on the CPU, training as on one GPU{times}");
    Ok(())
}

fn cpu() -> Result<Device> {
    Ok(Device::from_backend(Arc::new(CpuBackend::new()?)))
}

fn gpu(rank: usize) -> Result<Device> {
    Ok(Device::from_backend(Arc::new(CudaBackend::open(rank)?)))
}

fn on_gpus<R: Send>(
    ranks: usize,
    reduction: Reduction,
    f: impl Fn(&Arc<dyn Communicator>, &Device) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    threads(ranks, Options::default(), |comm| {
        let device = gpu(comm.rank())?;
        f(&nccl::over(comm, &device, reduction)?, &device)
    })
}

/// What all kinds of calls give for `n` elements of each dtype: a name, and the bytes.
fn calls(comm: &Arc<dyn Communicator>, device: &Device, n: usize) -> Result<Vec<(String, Vec<u8>)>> {
    let mut results = vec![];
    for dtype in DType::ALL {
        let values: Vec<f32> = (0..n).map(|i| ((comm.rank() * 7919 + i * 31) % 101) as f32 / 8.0).collect();
        let x = Tensor::from_vec(values, [n], &cpu()?)?.to_dtype(dtype)?.to_device(device)?;
        let mut keep = |what: &str, y: Tensor| {
            results.push((format!("{what} of {n} {dtype}"), y.to_bytes()?));
            Ok::<_, Error>(())
        };
        keep("all_gather", comm.all_gather(&x)?)?;
        keep("all_to_all", comm.all_to_all(&x)?)?;
        keep("broadcast", comm.broadcast(&x, comm.size() - 1)?)?;
        for reduce in REDUCTIONS.into_iter().filter(|_| dtype != DType::Bool) {
            keep(&format!("all_reduce({})", reduce.name()), comm.all_reduce(&x, reduce)?)?;
            keep(&format!("reduce_scatter({})", reduce.name()), comm.reduce_scatter(&x, reduce)?)?;
        }
        if comm.size() > 1 {
            let (me, last) = (comm.rank(), comm.size() - 1);
            match me {
                0 => comm.send(&x, last)?,
                _ if me == last => keep("receive", comm.receive([n], dtype, device, 0)?)?,
                _ => {}
            }
        }
    }
    Ok(results)
}

/// The bits of the weights after some steps.
fn trained(comm: &Arc<dyn Communicator>, device: &Device) -> Result<Vec<u32>> {
    let mut generator = Generator::new(7);
    let x = Tensor::randn([128, 64], DType::F32, device, &mut generator)?;
    let y = x.sum(&[1], true)?;
    let net = Linear::new(64, 1, &mut Init::new(DType::F32, device, &mut generator))?;
    let shards = if comm.size().is_power_of_two() { comm.size().max(16) } else { comm.size() };
    let parallel = DataParallel::with_shards(comm.clone(), shards)?;
    parallel.synchronize(&net)?;
    let mut optimizer = Sgd::new(net.named_parameters(), SgdConfig::default())?;
    for _ in 0..5 {
        let (_, gradients) = parallel.backward(&net, 128, |rows| {
            let (x, y) = (x.narrow(0, rows.start, rows.len())?, y.narrow(0, rows.start, rows.len())?);
            net.forward(&x)?.mse_loss(&y, gradus_tensor::Reduction::Mean)
        })?;
        optimizer.step(&gradients)?;
    }
    Ok(net.weight.to_vec::<f32>()?.into_iter().map(f32::to_bits).collect())
}

/// Ranks that make different calls get an error, and nothing hangs.
fn disagree(ranks: usize) -> Result<()> {
    if ranks == 1 {
        return Ok(());
    }
    let made = on_gpus(ranks, Reduction::Tree, |comm, device| {
        let x = Tensor::ones([ranks], DType::F32, device)?;
        if comm.rank() == 0 { comm.all_gather(&x) } else { comm.all_reduce(&x, Reduce::Sum) }
    });
    match made {
        Err(e) if *e.kind() == ErrorKind::Peer => Ok(()),
        Err(e) => Err(e),
        Ok(_) => Err(Error::new(ErrorKind::Backend, "nccl_check", "ranks that disagree got no error")),
    }
}

/// The time of an all-reduce, by Gradus from parts that NCCL moves, and by NCCL.
fn times(ranks: usize) -> Result<String> {
    let mut text = String::new();
    for (name, reduction) in [("the tree", Reduction::Tree), ("NCCL", Reduction::Nccl)] {
        let all = on_gpus(ranks, reduction, |comm, device| {
            let x = Tensor::ones([LARGE / 4], DType::F32, device)?;
            let mut best = f64::INFINITY;
            for _ in 0..10 {
                comm.barrier(device)?;
                device.backend().synchronize()?;
                let start = Instant::now();
                comm.all_reduce_(&x, Reduce::Max)?;
                device.backend().synchronize()?;
                best = best.min(start.elapsed().as_secs_f64());
            }
            Ok(best)
        })?;
        let slowest = all.into_iter().fold(0.0, f64::max);
        text += &format!("; 64 MB by {name} {:.2} ms, {:.1} GB/s", slowest * 1e3, LARGE as f64 / slowest / 1e9);
    }
    Ok(text)
}

//! Checks NCCL on the GPUs of this machine, one rank each: `nccl_check [RANKS | small | mpi]`. Every collective has the bits of threads on
//! the CPU, training has the same bits on one GPU and on all, ranks that disagree get an error, and an all-reduce of 64 MB
//! is timed. With one GPU, there is one rank. `nccl_check small` leaves the times out. `mpirun -n N nccl_check mpi`
//! does the same with processes, without the times; the feature `mpi` brings it.
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
    let ranks = match word.as_deref() {
        None | Some("small") => gradus_cuda::devices()?.len(),
        Some("mpi") => return processes(),
        Some(number) => {
            let wrong = || Error::argument("nccl_check", format!("{number:?} is no number of ranks"));
            number.parse().ok().filter(|ranks| *ranks > 0).ok_or_else(wrong)?
        }
    };
    let same = on_gpus(ranks, Reduction::Tree, results_as_on_the_cpu)?;
    let trained = on_gpus(ranks, Reduction::Tree, training_as_on_one)?;
    disagree(ranks)?;
    let times = if word.as_deref() == Some("small") { String::new() } else { times(ranks)? };
    report(ranks, same.iter().sum(), trained.iter().all(|compared| *compared), &times);
    Ok(())
}

/// The ranks are the processes of `mpirun`.
#[cfg(feature = "mpi")]
fn processes() -> Result<()> {
    let world = gradus_dist::mpi::world(Options::default())?;
    let device = gpu(world.rank())?;
    let comm = nccl::over(&world, &device, Reduction::Tree)?;
    let (same, compared) = (results_as_on_the_cpu(&comm, &device)?, training_as_on_one(&comm, &device)?);
    let all = Tensor::from_vec(vec![same as i64], [1], &cpu()?)?;
    let all = comm.all_reduce(&all, Reduce::Sum)?.to_vec::<i64>()?[0];
    if comm.rank() == 0 {
        report(comm.size(), all as usize, compared, ", of processes");
    }
    Ok(())
}

#[cfg(not(feature = "mpi"))]
fn processes() -> Result<()> {
    Err(Error::new(ErrorKind::Unsupported, "nccl_check", "this program was built without the feature `mpi`"))
}

fn report(ranks: usize, same: usize, compared: bool, more: &str) {
    let training = if compared { ", training as on one GPU" } else { "" };
    println!("nccl_check: {ranks} ranks, {same} results as on the CPU{training}{more}");
    if ranks == 1 {
        println!("one GPU: transfers between GPUs are not checked");
    }
}

fn differs(m: String) -> Error {
    Error::new(ErrorKind::Backend, "nccl_check", m)
}

/// Compares what each kind of call gives with what threads on the CPU get, and returns the number of results.
fn results_as_on_the_cpu(comm: &Arc<dyn Communicator>, device: &Device) -> Result<usize> {
    let (rank, ranks) = (comm.rank(), comm.size());
    let mut same = 0;
    for n in [ranks * 12, ranks * 30_000] {
        let expected = threads(ranks, Options::default(), |comm| calls(comm, &cpu()?, n))?;
        for ((what, found), (_, expected)) in calls(comm, device, n)?.iter().zip(&expected[rank]) {
            if found != expected {
                return Err(differs(format!("rank {rank}: {what} differs")));
            }
            same += 1;
        }
    }
    Ok(same)
}

/// Compares training on all GPUs with training on one, and returns whether bits are the same for this number of ranks.
fn training_as_on_one(comm: &Arc<dyn Communicator>, device: &Device) -> Result<bool> {
    let shared = trained(comm, device)?;
    let is_compared = comm.size() > 1 && comm.size().is_power_of_two() && comm.size() <= 16;
    if is_compared && threads(1, Options::default(), |alone| trained(alone, device))?[0] != shared {
        return Err(differs("training has other bits on one GPU than on all".into()));
    }
    Ok(is_compared)
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

/// Zeros of both signs, infinities and NaN are among the numbers.
const SPECIAL: [f32; 6] = [-0.0, 0.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1.5];

/// The bytes of a tensor, with one NaN for all, since a GPU may give another than the CPU.
fn bits(x: &Tensor) -> Result<Vec<u8>> {
    if !x.dtype().is_float() {
        return x.to_bytes();
    }
    let values = x.to_device(&cpu()?)?.to_dtype(DType::F64)?.to_vec::<f64>()?;
    Ok(values.into_iter().flat_map(|x| if x.is_nan() { f64::NAN } else { x }.to_bits().to_le_bytes()).collect())
}

/// What all kinds of calls give for `n` elements of each dtype: a name, and the bits.
fn calls(comm: &Arc<dyn Communicator>, device: &Device, n: usize) -> Result<Vec<(String, Vec<u8>)>> {
    let mut results = vec![];
    for dtype in DType::ALL {
        let value = |i: usize| match (comm.rank() * 7919 + i * 31) % 101 {
            // Ranks have different ones in the same place.
            _ if dtype.is_float() && i.is_multiple_of(3) => SPECIAL[(i / 3 + i / 18 * comm.rank()) % SPECIAL.len()],
            number => number as f32 / 8.0,
        };
        let values: Vec<f32> = (0..n).map(value).collect();
        let x = Tensor::from_vec(values, [n], &cpu()?)?.to_dtype(dtype)?.to_device(device)?;
        let mut keep = |what: &str, y: Tensor| {
            results.push((format!("{what} of {n} {dtype}"), bits(&y)?));
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

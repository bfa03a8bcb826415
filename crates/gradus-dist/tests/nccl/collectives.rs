//! What collectives give, beside threads on the CPU.

use std::sync::Arc;

use gradus_cpu::CpuBackend;
use gradus_dist::nccl::Reduction;
use gradus_dist::{Collective, Communicator, Options, Reduce, threads};
use gradus_graph::capture;
use gradus_tensor::{BackwardOptions, DType, Device, Result, Tensor, grad};

use crate::stand_in::{counted, inside, ranks, with_variables};

const REDUCTIONS: [Reduce; 4] = [Reduce::Sum, Reduce::Prod, Reduce::Max, Reduce::Min];

fn cpu() -> Result<Device> {
    Ok(Device::from_backend(Arc::new(CpuBackend::new()?)))
}

/// Numbers that differ from rank to rank and from place to place.
fn numbers(rank: usize, n: usize, dtype: DType, device: &Device) -> Result<Tensor> {
    let values: Vec<f32> = (0..n).map(|i| ((rank * 7919 + i * 31) % 101) as f32 / 8.0).collect();
    Tensor::from_vec(values, [n], &cpu()?)?.to_dtype(dtype)?.to_device(device)
}

/// Numbers with zeros of both signs, infinities and NaN, each of which meets each other on neighbouring ranks.
fn special(rank: usize, n: usize, dtype: DType, device: &Device) -> Result<Tensor> {
    const SPECIAL: [f32; 6] = [-0.0, 0.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1.5];
    let at = |i: usize| if rank.is_multiple_of(2) { i } else { i / SPECIAL.len() + rank / 2 };
    let values: Vec<f32> = (0..n).map(|i| SPECIAL[at(i) % SPECIAL.len()]).collect();
    Tensor::from_vec(values, [n], &cpu()?)?.to_dtype(dtype)?.to_device(device)
}

/// The bytes of a tensor, with one NaN for all, since a device may give another than the host.
fn bits(x: &Tensor) -> Result<Vec<u8>> {
    if !x.dtype().is_float() {
        return x.to_bytes();
    }
    let values = x.to_dtype(DType::F64)?.to_vec::<f64>()?;
    Ok(values.into_iter().flat_map(|x| if x.is_nan() { f64::NAN } else { x }.to_bits().to_le_bytes()).collect())
}

/// The bits that all kinds of calls give for `n` elements of a dtype.
fn calls(comm: &Arc<dyn Communicator>, device: &Device, n: usize, dtype: DType) -> Result<Vec<Vec<u8>>> {
    let mut bits = calls_on(comm, &numbers(comm.rank(), n, dtype, device)?)?;
    if dtype.is_float() {
        bits.extend(calls_on(comm, &special(comm.rank(), 3 * n, dtype, device)?)?);
    }
    Ok(bits)
}

fn calls_on(comm: &Arc<dyn Communicator>, x: &Tensor) -> Result<Vec<Vec<u8>>> {
    let dtype = x.dtype();
    let mut results = vec![comm.all_gather(x)?, comm.all_to_all(x)?];
    for root in 0..comm.size() {
        results.push(comm.broadcast(x, root)?);
    }
    if dtype != DType::Bool {
        for reduce in REDUCTIONS {
            results.push(comm.all_reduce(x, reduce)?);
            results.push(comm.reduce_scatter(x, reduce)?);
        }
        let own = x.copy()?;
        comm.all_reduce_(&own, Reduce::Sum)?;
        results.push(own);
    }
    comm.barrier(x.device())?;
    results.iter().map(bits).collect()
}

#[test]
fn collectives_of_every_dtype_have_the_bits_of_threads_on_the_cpu() {
    inside("collectives::collectives_of_every_dtype_have_the_bits_of_threads_on_the_cpu", || {
        for size in [1, 2, 3, 4] {
            let all = |comm: &Arc<dyn Communicator>, device: &Device| {
                let dtypes = DType::ALL.iter().map(|&dtype| calls(comm, device, 12, dtype));
                dtypes.collect::<Result<Vec<_>>>()
            };
            let expected = threads(size, Options::default(), |comm| all(comm, &cpu()?)).unwrap();
            let found = ranks(size, Reduction::Tree, all).unwrap();
            for (rank, (found, expected)) in found.iter().zip(&expected).enumerate() {
                for (i, dtype) in DType::ALL.iter().enumerate() {
                    assert_eq!(found[i], expected[i], "rank {rank} of {size}, {dtype}");
                }
            }
        }
        assert_eq!(counted("ncclAllReduce") + counted("ncclReduceScatter"), 0);
        assert!(counted("ncclAllGather") > 0 && counted("ncclSend") > 0 && counted("ncclBroadcast") > 0);
    });
}

#[test]
fn large_tensors_are_reduced_by_parts() {
    inside("collectives::large_tensors_are_reduced_by_parts", || {
        // Not a multiple of the number of ranks.
        let sums = |comm: &Arc<dyn Communicator>, device: &Device| {
            let x = numbers(comm.rank(), 20_011, DType::F32, device)?;
            [Reduce::Sum, Reduce::Max].map(|reduce| comm.all_reduce(&x, reduce)?.to_vec::<f32>()).into_iter().collect()
        };
        for size in [2, 3] {
            let expected: Vec<Vec<Vec<f32>>> = threads(size, Options::default(), |comm| sums(comm, &cpu()?)).unwrap();
            assert_eq!(ranks(size, Reduction::Tree, sums).unwrap(), expected, "{size} ranks");
        }
    });
}

#[test]
fn work_that_the_gpu_does_late_comes_first() {
    let variables = [("GRADUS_PTX_LATE", "1")];
    with_variables("collectives::work_that_the_gpu_does_late_comes_first", &variables, || {
        let sums = ranks(3, Reduction::Tree, |comm, device| {
            let x = Tensor::full([9], comm.rank() as f64, DType::F32, device)?.add(1.0)?;
            let y = comm.all_reduce(&x, Reduce::Sum)?;
            // What comes later does not change what was given.
            x.fill_(7.0)?;
            comm.all_gather(&y.mul(2.0)?)?.to_vec::<f32>()
        });
        assert_eq!(sums.unwrap(), vec![vec![12.0; 27]; 3]);
    });
}

#[test]
fn nccl_reduces_in_an_order_of_its_own() {
    inside("collectives::nccl_reduces_in_an_order_of_its_own", || {
        let sums = |reduction| {
            ranks(3, reduction, |comm, device| {
                // 1 is lost beside 2^24, and 2 is not.
                let value = [1.0f32, 1.0, 16_777_216.0][comm.rank()];
                let x = Tensor::from_vec(vec![value; 6], [6], device)?;
                let (all, part) = (comm.all_reduce(&x, Reduce::Sum)?, comm.reduce_scatter(&x, Reduce::Sum)?);
                let integers = x.to_dtype(DType::I32)?;
                let exact = comm.all_reduce(&integers, Reduce::Sum)?.to_vec::<i32>()?;
                assert_eq!(exact, [16_777_218; 6]);
                let short = Tensor::full([4], 3.0, DType::I16, device)?;
                assert_eq!(comm.all_reduce(&short, Reduce::Prod)?.to_vec::<i16>()?, [27; 4]);
                Ok((all.to_vec::<f32>()?, part.to_vec::<f32>()?))
            })
            .unwrap()
        };
        assert_eq!(sums(Reduction::Tree), vec![(vec![16_777_218.0; 6], vec![16_777_218.0; 2]); 3]);
        assert_eq!(counted("ncclAllReduce"), 0);
        assert_eq!(sums(Reduction::Nccl), vec![(vec![16_777_216.0; 6], vec![16_777_216.0; 2]); 3]);
        assert_eq!((counted("ncclAllReduce"), counted("ncclReduceScatter")), (6, 3));
    });
}

#[test]
fn gradients_of_any_order_are_those_of_threads() {
    inside("collectives::gradients_of_any_order_are_those_of_threads", || {
        let second = |comm: &Arc<dyn Communicator>, device: &Device| {
            let mut results = vec![];
            for kind in 0..5 {
                let x = numbers(comm.rank(), 4, DType::F64, device)?.with_grad()?;
                let cube = x.mul(&x)?.mul(&x)?;
                let y = match kind {
                    0 => comm.all_reduce(&cube, Reduce::Sum)?,
                    1 => comm.reduce_scatter(&cube, Reduce::Sum)?,
                    2 => comm.all_gather(&cube)?,
                    3 => comm.all_to_all(&cube)?,
                    _ => comm.broadcast(&cube, 1)?,
                };
                let weights = numbers(kind, y.numel(), DType::F64, device)?;
                let loss = y.mul(&y)?.mul(&weights)?.sum(&[0], false)?;
                let first = grad(&[&loss], &[&x], None, BackwardOptions::new().create_graph())?.remove(0).unwrap();
                let again = first.mul(&first)?.sum(&[0], false)?;
                let second = grad(&[&again], &[&x], None, BackwardOptions::new())?.remove(0).unwrap();
                results.extend([first.to_vec::<f64>()?, second.to_vec::<f64>()?]);
            }
            Ok(results)
        };
        let expected = threads(2, Options::default(), |comm| second(comm, &cpu()?)).unwrap();
        assert_eq!(ranks(2, Reduction::Tree, second).unwrap(), expected);
    });
}

#[test]
fn captured_steps_make_the_same_calls() {
    inside("collectives::captured_steps_make_the_same_calls", || {
        let step = |comm: &dyn Communicator, x: &Tensor| {
            let sum = comm.all_reduce(&x.exp()?, Reduce::Sum)?.sin()?;
            let own = x.square()?;
            comm.all_reduce_(&own, Reduce::Max)?;
            let parts = comm.reduce_scatter(&own.add(&sum)?, Reduce::Prod)?;
            Ok(vec![comm.all_gather(&parts.neg()?)?, comm.all_to_all(&sum)?, comm.broadcast(x, 1)?])
        };
        ranks(2, Reduction::Tree, |comm, device| {
            let mut captured = capture(|x| step(&**comm, &x[0]));
            for call in 0..5 {
                let x = numbers(comm.rank() + call, 6, DType::F32, device)?.div(7.0)?;
                let found: Result<Vec<_>> = captured.call(&[&x])?.iter().map(Tensor::to_vec::<f32>).collect();
                let expected: Result<Vec<_>> = step(&**comm, &x)?.iter().map(Tensor::to_vec::<f32>).collect();
                assert_eq!(found?, expected?, "call {call}");
            }
            assert_eq!(captured.replays(), 3);
            Ok(())
        })
        .unwrap();
    });
}

#[test]
fn messages_go_from_rank_to_rank() {
    inside("collectives::messages_go_from_rank_to_rank", || {
        let received = ranks(3, Reduction::Tree, |comm, device| {
            let (me, n) = (comm.rank(), 100);
            if me == 0 {
                comm.send(&numbers(0, n, DType::BF16, device)?, 2)?;
                return Ok(vec![]);
            }
            if me == 1 {
                return Ok(vec![]);
            }
            comm.receive([n], DType::BF16, device, 0)?.to_bytes()
        });
        let sent = numbers(0, 100, DType::BF16, &cpu().unwrap()).unwrap().to_bytes().unwrap();
        assert_eq!(received.unwrap()[2], sent);
    });
}

#[test]
fn a_call_goes_on_while_the_gpu_computes() {
    inside("collectives::a_call_goes_on_while_the_gpu_computes", || {
        let results = ranks(2, Reduction::Tree, |comm, device| {
            let x = Tensor::full([50_000], comm.rank() as f64 + 1.0, DType::F32, device)?;
            let handles = [Reduce::Sum, Reduce::Prod].map(|r| comm.begin(Collective::AllReduce(r), &x));
            x.fill_(100.0)?;
            let mut found = vec![x.sum(&[0], false)?.to_vec::<f32>()?[0]];
            for handle in handles {
                found.push(handle?.wait()?.to_vec::<f32>()?[49_999]);
            }
            Ok(found)
        });
        assert_eq!(results.unwrap(), vec![vec![5_000_000.0, 3.0, 2.0]; 2]);
    });
}

#[test]
fn parts_of_the_ranks_are_connected_too() {
    inside("collectives::parts_of_the_ranks_are_connected_too", || {
        let sums = ranks(4, Reduction::Nccl, |comm, device| {
            let (me, gathered) = (comm.rank(), counted("ncclAllReduce"));
            comm.barrier(device)?;
            let part = comm.split((me % 2) as u32, -(me as i64))?;
            assert!(part.engine().starts_with("NCCL 2.23.4, threads"), "{}", part.engine());
            let x = Tensor::full([3], me as f64, DType::F32, device)?;
            let mut sums = part.all_reduce(&x, Reduce::Sum)?.to_vec::<f32>()?;
            assert!(counted("ncclAllReduce") > gathered);
            sums.push(part.rank() as f32);
            sums.extend(comm.all_reduce(&x, Reduce::Sum)?.to_vec::<f32>()?);
            Ok(sums)
        });
        let row = |sum: f32, rank: f32| vec![sum, sum, sum, rank, 6.0, 6.0, 6.0];
        assert_eq!(sums.unwrap(), [row(2.0, 1.0), row(4.0, 1.0), row(2.0, 0.0), row(4.0, 0.0)]);
    });
}

#[test]
fn what_is_on_the_host_goes_the_old_way() {
    inside("collectives::what_is_on_the_host_goes_the_old_way", || {
        let sums = ranks(2, Reduction::Nccl, |comm, _| {
            let x = Tensor::full([3], comm.rank() as f64 + 1.0, DType::F32, &cpu()?)?;
            comm.all_reduce(&x, Reduce::Sum)?.to_vec::<f32>()
        });
        assert_eq!(sums.unwrap(), [[3.0; 3]; 2]);
        assert_eq!(counted("ncclAllReduce"), 0);
        assert_eq!((counted("ncclCommFinalize"), counted("ncclCommDestroy"), counted("ncclCommAbort")), (2, 2, 0));
    });
}

//! What goes wrong is an error on all ranks, in time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gradus_cpu::CpuBackend;
use gradus_dist::nccl::Reduction;
use gradus_dist::{Communicator, Options, Reduce, nccl, threads};
use gradus_tensor::{DType, Device, ErrorKind, Result, Tensor};

use crate::stand_in::{counted, errors, fail, gpu, inside, soon, with_variables};

fn sum(comm: &Arc<dyn Communicator>, device: &Device) -> Result<Tensor> {
    let x = Tensor::ones([1000], DType::F32, device)?;
    comm.all_reduce(&x, Reduce::Sum)
}

/// The errors of the ranks whose `sum` meets this plan, and how long the calls took.
fn sums_with(size: usize, plan: &str) -> (Vec<String>, Duration) {
    let longest = std::sync::Mutex::new(Duration::ZERO);
    let found = errors(size, |comm, device| {
        let comm = nccl::over(comm, device, Reduction::Tree)?;
        sum(&comm, device)?.to_vec::<f32>()?;
        comm.barrier(device)?;
        if comm.rank() == 0 {
            fail(plan);
        }
        comm.barrier(device)?;
        let began = Instant::now();
        let made = sum(&comm, device);
        let mut longest = longest.lock().unwrap();
        *longest = began.elapsed().max(*longest);
        drop(longest);
        let again = Instant::now();
        let e = sum(&comm, device).unwrap_err();
        assert!(again.elapsed() < Duration::from_millis(500) && e.to_string().contains("earlier call"), "{e}");
        // What is on the GPU is still there, and nothing waits for NCCL.
        assert_eq!(Tensor::ones([3], DType::F32, device)?.add(1.0)?.to_vec::<f32>()?, [2.0; 3]);
        made
    });
    (found, longest.into_inner().unwrap())
}

/// Waits until the stand-in has been called so often.
#[track_caller]
fn counts(name: &str, number: u64) {
    let until = Instant::now() + Duration::from_secs(10);
    while counted(name) < number && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(counted(name), number, "{name}");
}

#[test]
fn ranks_that_call_something_else_are_named_with_their_lines() {
    inside("trouble::ranks_that_call_something_else_are_named_with_their_lines", || {
        let found = errors(2, |comm, device| {
            let comm = nccl::over(comm, device, Reduction::Tree)?;
            let x = Tensor::ones([8], DType::F32, device)?;
            if comm.rank() == 0 { comm.all_reduce(&x, Reduce::Sum) } else { comm.all_gather(&x) }
        });
        for e in found {
            assert!(e.contains("rank 0: call 5, all_reduce(sum), [8] f32, at"), "{e}");
            assert!(e.contains("rank 1: call 5, all_gather, [8] f32, at") && e.contains("trouble.rs"), "{e}");
        }
        counts("ncclCommAbort", 2);
    });
}

#[test]
fn a_transfer_that_never_ends_is_an_error_at_the_deadline() {
    inside("trouble::a_transfer_that_never_ends_is_an_error_at_the_deadline", || {
        // The sum gathers the tensors of all ranks; one of them never comes.
        let (found, longest) = sums_with(3, "ncclAllGather:1=1000");
        assert!(longest >= soon().deadline && longest < soon().deadline + Duration::from_secs(1), "{longest:?}");
        let texts = found.join("\n");
        assert!(texts.contains("NCCL did not complete this call within 1.5 s, though all ranks are in it"), "{texts}");
        assert!(found.iter().all(|e| e.contains("all_reduce(sum), [1000] f32, at")), "{texts}");
        counts("ncclCommAbort", 3);
    });
}

#[test]
fn an_error_of_nccl_is_one_of_all_ranks_at_once() {
    inside("trouble::an_error_of_nccl_is_one_of_all_ranks_at_once", || {
        let (found, longest) = sums_with(3, "ncclAllGather:1=2006");
        assert!(longest < Duration::from_secs(1), "{longest:?}");
        let texts = found.join("\n");
        assert!(texts.contains("a call fails: remote process exited or there was a network error"), "{texts}");
        assert!(found.iter().filter(|e| e.contains("has given up")).count() >= 2, "{texts}");
        counts("ncclCommAbort", 3);
    });
}

#[test]
fn a_call_that_nccl_refuses_is_an_error_of_all_ranks() {
    inside("trouble::a_call_that_nccl_refuses_is_an_error_of_all_ranks", || {
        let (found, longest) = sums_with(2, "ncclAllGather:1=3");
        assert!(longest < Duration::from_secs(1), "{longest:?}");
        let texts = found.join("\n");
        assert!(texts.contains("ncclAllGather fails: internal error"), "{texts}");
        counts("ncclCommAbort", 2);
    });
}

#[test]
fn a_call_that_takes_its_time_is_waited_for() {
    inside("trouble::a_call_that_takes_its_time_is_waited_for", || {
        let sums = threads(2, soon(), |comm| {
            let device = gpu(comm.rank())?;
            if comm.rank() == 0 {
                fail("ncclCommInitRankConfig:1=1050,ncclAllGather:1=1040");
            }
            comm.barrier(&device)?;
            sum(&nccl::over(comm, &device, Reduction::Tree)?, &device)?.to_vec::<f32>()
        });
        assert_eq!(sums.unwrap(), vec![vec![2.0; 1000]; 2]);
    });
}

#[test]
fn ranks_that_are_never_connected_are_an_error_at_the_deadline() {
    inside("trouble::ranks_that_are_never_connected_are_an_error_at_the_deadline", || {
        fail("ncclCommInitRankConfig:1=1000");
        let began = Instant::now();
        let found = errors(2, |comm, device| nccl::over(comm, device, Reduction::Tree));
        let took = began.elapsed();
        assert!(took >= soon().deadline && took < soon().deadline + Duration::from_secs(2), "{took:?}");
        let texts = found.join("\n");
        assert!(texts.contains("did not complete this call within 1.5 s") || texts.contains("given up"), "{texts}");
        counts("ncclCommAbort", 2);
    });
}

#[test]
fn ranks_with_one_gpu_are_refused() {
    inside("trouble::ranks_with_one_gpu_are_refused", || {
        let made = threads(3, soon(), |comm| {
            let device = gpu(comm.rank() % 2)?;
            let e = nccl::over(comm, &device, Reduction::Tree).unwrap_err();
            assert_eq!(e.kind(), &ErrorKind::Unsupported, "{e}");
            assert_eq!(sum(comm, &device)?.to_vec::<f32>()?, [3.0; 1000]);
            Ok(e.to_string())
        });
        for e in made.unwrap() {
            assert!(e.contains("ranks 0 and 2 have the same GPU, and NCCL needs one for each rank"), "{e}");
            assert!(e.contains("help: give each rank a GPU of its own"), "{e}");
        }
    });
}

#[test]
fn a_rank_that_leaves_or_stalls_is_named() {
    inside("trouble::a_rank_that_leaves_or_stalls_is_named", || {
        for stalls in [false, true] {
            let made = threads(3, soon(), |comm| {
                let device = gpu(comm.rank())?;
                let comm = nccl::over(comm, &device, Reduction::Tree)?;
                assert_eq!(sum(&comm, &device)?.to_vec::<f32>()?, [3.0; 1000]);
                if comm.rank() == 2 {
                    if stalls {
                        std::thread::sleep(Duration::from_secs(4));
                    }
                    return Ok(None);
                }
                let began = Instant::now();
                let e = sum(&comm, &device).unwrap_err();
                let took = began.elapsed();
                assert!(took < soon().deadline + Duration::from_secs(1), "{took:?}");
                Ok(Some(e.to_string()))
            });
            let found: Vec<String> = made.unwrap().into_iter().flatten().collect();
            let what = if stalls { "rank 2 did not come to this call" } else { "rank 2 has left" };
            assert!(found.len() == 2 && found.join("\n").contains(what), "{found:?}");
        }
    });
}

#[test]
fn a_rank_without_memory_tells_the_others() {
    inside("trouble::a_rank_without_memory_tells_the_others", || {
        let kinds = threads(2, soon(), |comm| {
            let device = gpu(comm.rank())?;
            let comm = nccl::over(comm, &device, Reduction::Tree)?;
            let x = Tensor::ones([100_000], DType::F32, &device)?;
            if comm.rank() == 1 {
                let used = device.backend().memory_stats().in_use;
                device.backend().set_memory_budget(Some(used + 1000))?;
            }
            let began = Instant::now();
            let e = comm.all_reduce_(&x, Reduce::Sum).unwrap_err();
            assert!(began.elapsed() < Duration::from_secs(1));
            Ok((e.kind().clone(), e.to_string()))
        });
        let kinds = kinds.unwrap();
        assert!(matches!(kinds[1].0, ErrorKind::OutOfMemory { .. }), "{kinds:?}");
        assert!(kinds[0].0 == ErrorKind::Peer && kinds[0].1.contains("rank 1 of the world has given up"), "{kinds:?}");
    });
}

/// Without NCCL, the error says what is missing, and the communicator goes on to work.
fn is_without(test: &str, variables: &[(&str, &str)], text: &str) {
    with_variables(test, variables, || {
        let made = threads(2, soon(), |comm| {
            let device = gpu(comm.rank())?;
            let e = nccl::over(comm, &device, Reduction::Tree).unwrap_err();
            assert_eq!(e.kind(), &ErrorKind::Unsupported, "{e}");
            assert_eq!(sum(comm, &device)?.to_vec::<f32>()?, [2.0; 1000]);
            Ok(e.to_string())
        });
        for e in made.unwrap() {
            assert!(e.contains(text) && e.contains("nvidia-nccl-cu13"), "{e}");
        }
    });
}

#[test]
fn a_library_that_is_not_there_is_an_error() {
    let variables = [("GRADUS_NCCL", "/nowhere/libnccl.so.2")];
    is_without("trouble::a_library_that_is_not_there_is_an_error", &variables, "names /nowhere/libnccl.so.2, which");
}

#[test]
fn a_library_that_is_not_wanted_is_not_used() {
    is_without("trouble::a_library_that_is_not_wanted_is_not_used", &[("GRADUS_NCCL", "")], "GRADUS_NCCL is empty");
}

#[test]
fn a_library_that_is_too_old_is_refused() {
    let variables = [("GRADUS_PTX_NCCL_VERSION", "21602")];
    is_without(
        "trouble::a_library_that_is_too_old_is_refused",
        &variables,
        "it is version 2.16.2; version 2.18.0 or later is needed",
    );
}

#[test]
fn a_library_without_its_functions_is_refused() {
    let path = ["libm.so.6", "libm.dylib"].iter().find(|name| {
        // SAFETY: the library of mathematics has nothing to initialise.
        unsafe { libloading::Library::new(name) }.is_ok()
    });
    let Some(path) = path else { return };
    let variables = [("GRADUS_NCCL", *path)];
    is_without("trouble::a_library_without_its_functions_is_refused", &variables, "it has no function ncclGetVersion");
}

#[test]
fn only_cuda_devices_are_moved_by_nccl() {
    inside("trouble::only_cuda_devices_are_moved_by_nccl", || {
        let made = threads(2, Options::default(), |comm| {
            // One rank has given the wrong device. The other one is told.
            let device = if comm.rank() == 0 { gpu(0)? } else { Device::from_backend(Arc::new(CpuBackend::new()?)) };
            let e = nccl::over(comm, &device, Reduction::Tree).unwrap_err();
            assert_eq!(e.kind(), &ErrorKind::Unsupported, "{e}");
            Ok(e.to_string())
        });
        let made = made.unwrap();
        assert!(made[0].contains("rank 1 has no NCCL that it can use"), "{}", made[0]);
        assert!(made[0].contains("help: the error of that rank says why"), "{}", made[0]);
        assert!(made[1].contains("NCCL moves what is on CUDA devices, and cpu is none"), "{}", made[1]);
    });
}

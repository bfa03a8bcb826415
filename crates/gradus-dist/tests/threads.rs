//! Collectives between threads: results, gradients, and every kind of trouble.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use gradus_cpu::CpuBackend;
use gradus_dist::{Collective, Communicator, Options, Reduce, threads};
use gradus_tensor::backend::{ComputeModule, Element};
use gradus_tensor::{BackwardOptions, Bound, DType, Device, Error, ErrorKind, Result, Tensor, bf16, grad};

fn device() -> Result<Device> {
    Ok(Device::from_backend(Arc::new(CpuBackend::new()?)))
}

/// Short, for tests in which a rank does not come.
fn soon() -> Options {
    Options { deadline: Duration::from_millis(700) }
}

/// Numbers that differ from rank to rank and from place to place.
fn numbers(rank: usize, n: usize) -> Vec<f32> {
    (0..n).map(|i| ((rank * 7919 + i * 31) % 1013) as f32 / 7.0 - 60.0).collect()
}

/// The sum by the tree over ranks.
fn tree_sum(mut rows: Vec<Vec<f32>>) -> Vec<f32> {
    while rows.len() > 1 {
        rows = rows
            .chunks(2)
            .map(|pair| match pair {
                [a, b] => a.iter().zip(b).map(|(a, b)| a + b).collect(),
                [a, ..] => a.clone(),
                [] => vec![],
            })
            .collect();
    }
    rows.remove(0)
}

#[test]
fn collectives_of_all_sizes_give_what_they_say() {
    for size in [1, 2, 3, 4, 5] {
        for n in [0usize, 1, 60, 4000 * size, if size == 3 { 600_000 } else { 20_000 }] {
            let n = n / size * size;
            let rows: Vec<Vec<f32>> = (0..size).map(|rank| numbers(rank, n)).collect();
            let sum = tree_sum(rows.clone());
            threads(size, Options::default(), |comm| {
                let device = device()?;
                let me = comm.rank();
                let x = Tensor::from_vec(rows[me].clone(), [n], &device)?;
                assert_eq!(comm.all_reduce(&x, Reduce::Sum)?.to_vec::<f32>()?, sum);
                let part = n / size;
                assert_eq!(comm.reduce_scatter(&x, Reduce::Sum)?.to_vec::<f32>()?, sum[me * part..(me + 1) * part]);
                assert_eq!(comm.all_gather(&x)?.to_vec::<f32>()?, rows.concat());
                for (root, row) in rows.iter().enumerate() {
                    assert_eq!(comm.broadcast(&x, root)?.to_vec::<f32>()?, *row);
                }
                let turned: Vec<f32> = rows.iter().flat_map(|row| row[me * part..(me + 1) * part].to_vec()).collect();
                assert_eq!(comm.all_to_all(&x)?.to_vec::<f32>()?, turned);
                comm.barrier(&device)?;
                if size > 1 && me == 0 {
                    comm.send(&x, 1)?;
                } else if me == 1 {
                    assert_eq!(comm.receive([n], DType::F32, &device, 0)?.to_vec::<f32>()?, rows[0]);
                }
                comm.all_reduce_(&x, Reduce::Max)?;
                let most = (0..n).map(|i| rows.iter().map(|row| row[i]).fold(f32::MIN, f32::max));
                assert!(x.to_vec::<f32>()?.into_iter().eq(most));
                Ok(())
            })
            .unwrap();
        }
    }
}

#[test]
fn every_dtype_moves_and_strides_do_not_matter() {
    threads(3, Options::default(), |comm| {
        let device = device()?;
        for dtype in DType::ALL {
            let x = Tensor::full([2, 3], 1.0, dtype, &device)?;
            let gathered = comm.all_gather(&x.t()?)?;
            assert_eq!((gathered.shape(), gathered.dtype()), (&[9, 2][..], dtype));
            assert_eq!(gathered.to_dtype(DType::F64)?.sum_all()?.item()?, 18.0);
            if dtype == DType::Bool {
                assert_eq!(comm.all_reduce(&x, Reduce::Sum).unwrap_err().kind(), &ErrorKind::UnsupportedDType);
            } else {
                assert_eq!(comm.all_reduce(&x, Reduce::Sum)?.to_dtype(DType::F64)?.sum_all()?.item()?, 18.0);
            }
        }
        let third = bf16::from_f32(1.0 / 3.0);
        let x = Tensor::from_vec(vec![third], [], &device)?;
        assert!(comm.all_reduce(&x, Reduce::Sum)?.item()? > 0.99);
        Ok(())
    })
    .unwrap();
}

#[test]
fn wrong_arguments_are_errors_of_this_rank_only() {
    threads(2, soon(), |comm| {
        let device = device()?;
        let x = Tensor::zeros([3], DType::F32, &device)?;
        let kind = |r: Result<Tensor>| r.unwrap_err().kind().clone();
        assert_eq!(kind(comm.reduce_scatter(&x, Reduce::Sum)), ErrorKind::ShapeMismatch);
        assert_eq!(kind(comm.all_to_all(&x)), ErrorKind::ShapeMismatch);
        assert_eq!(kind(comm.all_gather(&Tensor::scalar(1.0f32, &device)?)), ErrorKind::ShapeMismatch);
        assert_eq!(kind(comm.broadcast(&x, 2)), ErrorKind::InvalidArgument);
        assert_eq!(comm.send(&x, comm.rank()).unwrap_err().kind(), &ErrorKind::InvalidArgument);
        // Nothing of it reached the other rank.
        comm.all_reduce_(&x, Reduce::Sum)?;
        Ok(())
    })
    .unwrap();
}

#[test]
fn gradients_go_through_collectives_to_any_order() {
    // The loss is the sum over ranks of `sum(w_r * y_r^3)`; on one rank, it is the same with all pieces at hand.
    let size = 3;
    type Op = fn(&dyn Communicator, &Tensor) -> Result<Tensor>;
    let ops: [(&str, Op); 5] = [
        ("all_reduce", |c, x| c.all_reduce(x, Reduce::Sum)),
        ("reduce_scatter", |c, x| c.reduce_scatter(x, Reduce::Sum)),
        ("all_gather", |c, x| c.all_gather(x)),
        ("all_to_all", |c, x| c.all_to_all(x)),
        ("broadcast", |c, x| c.broadcast(x, 1)),
    ];
    for (name, op) in ops {
        threads(size, Options::default(), |comm| {
            let device = device()?;
            let value: Vec<f64> = (0..6).map(|i| 0.3 + 0.1 * i as f64 + comm.rank() as f64 * 0.05).collect();
            let loss = |x: &Tensor| -> Result<Tensor> {
                let y = op(&**comm, x)?;
                y.pow(3.0)?.mul((comm.rank() + 1) as f64)?.sum_all()
            };
            let x = Tensor::from_vec(value.clone(), [6], &device)?.with_grad()?;
            let first = grad(&[&loss(&x)?], &[&x], None, BackwardOptions::new().create_graph())?[0].clone();
            let first = first.map_or_else(|| x.zeros_like(), Ok)?;
            // The derivative of the sum of all ranks' losses, by differences at each rank's elements in turn.
            for rank in 0..size {
                for i in 0..6 {
                    let at = |step: f64| -> Result<f64> {
                        let mut moved = value.clone();
                        moved[i] += if rank == comm.rank() { step } else { 0.0 };
                        let x = Tensor::from_vec(moved, [6], &device)?;
                        comm.all_reduce(&loss(&x)?.detach(), Reduce::Sum)?.item()
                    };
                    let slope = (at(1e-5)? - at(-1e-5)?) / 2e-5;
                    if rank == comm.rank() {
                        let got = first.to_vec::<f64>()?[i];
                        assert!((got - slope).abs() < 1e-6, "{name} rank {rank} element {i}: {got} {slope}");
                    }
                }
            }
            // The second order: the gradient of the sum of squares of the first, against differences of it.
            let squares = |x: &Tensor| -> Result<f64> {
                let x = x.with_grad()?;
                let g = grad(&[&loss(&x)?], &[&x], None, BackwardOptions::new())?[0].clone();
                let mine = g.map_or_else(|| x.zeros_like(), Ok)?.square()?.sum_all()?;
                comm.all_reduce(&mine, Reduce::Sum)?.item()
            };
            let own = first.square()?.sum_all()?;
            let second =
                if own.requires_grad() { grad(&[&own], &[&x], None, BackwardOptions::new())?[0].clone() } else { None };
            let second = second.map_or_else(|| x.zeros_like(), Ok)?.to_vec::<f64>()?;
            for rank in 0..size {
                let mut moved = [value.clone(), value.clone()];
                if rank == comm.rank() {
                    moved[0][2] += 1e-5;
                    moved[1][2] -= 1e-5;
                }
                let [up, down] = moved.map(|v| Tensor::from_vec(v, [6], &device));
                let slope = (squares(&up?)? - squares(&down?)?) / 2e-5;
                if rank == comm.rank() {
                    assert!((second[2] - slope).abs() < 1e-5 * slope.abs().max(1.0), "{name}: {} {slope}", second[2]);
                }
            }
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn calls_that_were_started_run_in_order() {
    threads(3, Options::default(), |comm| {
        let device = device()?;
        let x = Tensor::full([5000], 1.0, DType::F32, &device)?;
        let first = comm.begin(Collective::AllReduce(Reduce::Sum), &x)?;
        let second = comm.begin(Collective::AllGather, &Tensor::full([2], comm.rank() as f64, DType::F32, &device)?)?;
        let third = comm.all_reduce(&x, Reduce::Max)?;
        assert_eq!(third.to_vec::<f32>()?, [1.0; 5000]);
        assert_eq!(second.wait()?.to_vec::<f32>()?, [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]);
        assert_eq!(first.wait()?.to_vec::<f32>()?, [3.0; 5000]);
        Ok(())
    })
    .unwrap();
}

#[test]
fn parts_of_the_ranks_have_calls_of_their_own() {
    let results = threads(5, Options::default(), |comm| {
        let device = device()?;
        let me = comm.rank();
        // Colours 0 (ranks 4, 2, 0) and 1 (3, 1): the highest rank first.
        let part = comm.split((me % 2) as u32, -(me as i64))?;
        let x = Tensor::full([1], me as f64, DType::F32, &device)?;
        let gathered = part.all_gather(&x)?.to_vec::<f32>()?;
        let again = part.split(0, 0)?;
        assert_eq!(again.all_gather(&x)?.to_vec::<f32>()?, gathered);
        assert_eq!(comm.all_reduce(&x, Reduce::Sum)?.item()?, 10.0);
        Ok(gathered)
    });
    let (even, odd) = (vec![4.0, 2.0, 0.0], vec![3.0, 1.0]);
    assert_eq!(results.unwrap(), [even.clone(), odd.clone(), even.clone(), odd, even]);
}

/// The errors of ranks on which rank 1 does something else than the third of all calls, and how long each took.
fn troubled(
    size: usize,
    else_: impl Fn(&dyn Communicator, &Tensor) -> Result<()> + Sync,
) -> Vec<Option<(Error, Duration)>> {
    threads(size, soon(), |comm| {
        let device = device()?;
        let x = Tensor::full([4], 1.0, DType::F32, &device)?;
        comm.all_reduce_(&x, Reduce::Sum)?;
        comm.barrier(&device)?;
        let begun = Instant::now();
        if comm.rank() == 1 {
            return Ok(else_(&**comm, &x).err().map(|e| (e, begun.elapsed())));
        }
        let e = comm.all_reduce(&x, Reduce::Sum).unwrap_err();
        let took = begun.elapsed();
        let again = comm.all_gather(&x).unwrap_err();
        assert!(*again.kind() == ErrorKind::Peer && again.message().contains("an earlier call has failed"), "{again}");
        Ok(Some((e, took)))
    })
    .unwrap()
}

#[test]
fn ranks_that_make_another_call_are_named_with_both_lines() {
    type Other = fn(&dyn Communicator, &Tensor) -> Result<()>;
    let others: [(&str, Other); 6] = [
        ("call 3, all_reduce(max), [4] f32", |c, x| c.all_reduce(x, Reduce::Max).map(drop)),
        ("call 3, all_reduce(sum), [2] f32", |c, x| c.all_reduce(&x.narrow(0, 0, 2)?, Reduce::Sum).map(drop)),
        ("call 3, all_reduce(sum), [4] f64", |c, x| c.all_reduce(&x.to_dtype(DType::F64)?, Reduce::Sum).map(drop)),
        ("call 3, all_gather, [4] f32", |c, x| c.all_gather(x).map(drop)),
        ("call 3, barrier, at", |c, x| c.barrier(x.device())),
        ("send to 0 after call 2, [4] f32", |c, x| c.send(x, 0)),
    ];
    for (told, other) in others {
        for result in troubled(4, other) {
            let (e, took) = result.unwrap();
            assert_eq!(e.kind(), &ErrorKind::Peer);
            let text = e.to_string();
            assert!(text.contains(told) && text.contains("call 3, all_reduce(sum), [4] f32"), "{text}");
            assert!(text.matches("tests/threads.rs:").count() >= 2, "{text}");
            assert!(took < Duration::from_millis(600), "{took:?} {text}");
        }
    }
}

#[test]
fn a_rank_that_does_not_come_is_named_at_the_deadline() {
    let results = troubled(4, |_, _| {
        std::thread::sleep(Duration::from_millis(1500));
        Ok(())
    });
    for (rank, result) in results.into_iter().enumerate().filter(|(rank, _)| *rank != 1) {
        let (e, took) = result.unwrap();
        let text = e.to_string();
        assert!(text.contains("rank 1 did not come to this call"), "{text}");
        assert!(took > Duration::from_millis(600) && took < Duration::from_millis(1400), "rank {rank}: {took:?}");
    }
}

#[test]
fn a_rank_that_leaves_is_named_before_the_deadline() {
    for result in troubled(3, |_, _| Ok(())).into_iter().flatten() {
        let (e, took) = result;
        assert!(e.to_string().contains("rank 1 has left"), "{e}");
        assert!(took < Duration::from_millis(690), "{took:?}");
    }
}

#[test]
fn trouble_among_some_ranks_is_told_to_the_others_with_their_numbers_in_the_world() {
    let errors = threads(4, soon(), |comm| {
        let x = Tensor::zeros([4], DType::F32, &device()?)?;
        let half = comm.split(comm.rank() as u32 / 2, 0)?;
        let made = match comm.rank() {
            2 => half.all_reduce(&x, Reduce::Sum).map(drop),
            3 => half.barrier(x.device()),
            _ => comm.all_reduce(&x, Reduce::Sum).map(drop),
        };
        Ok(made.unwrap_err().to_string())
    })
    .unwrap();
    for (rank, text) in errors.iter().enumerate() {
        assert!(text.contains("ranks make different calls") && text.contains("rank 0: call 1, all_reduce"), "{text}");
        let told = "in a communicator of the ranks 2, 3 of the world";
        assert_eq!(text.contains(told), rank < 2, "rank {rank}: {text}");
    }
}

#[test]
fn an_error_of_a_rank_itself_comes_first() {
    let e = threads(3, soon(), |comm| {
        let x = Tensor::zeros([4], DType::F32, &device()?)?;
        if comm.rank() == 2 {
            return Err(Error::argument("mine", "no"));
        }
        comm.all_reduce(&x, Reduce::Sum)
    });
    assert_eq!(e.unwrap_err().op(), "mine");
}

/// The module that makes the calls has a name that anyone may dispatch. It moves nothing for them.
#[test]
fn the_module_of_calls_serves_communicators_only() {
    threads(2, Options::default(), |comm| {
        let device = device()?;
        let x = Tensor::ones([5000], DType::F32, &device)?;
        comm.all_reduce_(&x, Reduce::Sum)?;
        if comm.rank() == 1 {
            std::thread::sleep(Duration::from_millis(300));
        }
        let started = comm.begin(Collective::AllReduce(Reduce::Sum), &x)?;
        let y = Tensor::ones([5000], DType::F32, &device)?;
        for number in 0..64u64 {
            let constants = u64::as_bytes(std::slice::from_ref(&number));
            let module = ComputeModule::Native("gradus_dist");
            let e = device.dispatch_compute(module, &[Bound::Write(&y)], constants, [1; 3]).unwrap_err();
            assert!(e.message().contains("makes the calls of communicators only"), "{e}");
        }
        assert_eq!(started.wait()?.to_vec::<f32>()?, [4.0; 5000]);
        assert_eq!(y.to_vec::<f32>()?, [1.0; 5000]);
        Ok(())
    })
    .unwrap();
}

#[test]
fn the_largest_and_the_smallest_are_those_of_the_device() {
    const SPECIAL: [f32; 6] = [-0.0, 0.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1.5];
    let pairs = SPECIAL.iter().flat_map(|&a| SPECIAL.iter().map(move |&b| (a, b)));
    let (first, second): (Vec<f32>, Vec<f32>) = pairs.unzip();
    let bits = |x: Tensor| -> Result<Vec<u64>> {
        let values = x.to_dtype(DType::F64)?.to_vec::<f64>()?;
        Ok(values.into_iter().map(|x| if x.is_nan() { f64::NAN } else { x }.to_bits()).collect())
    };
    for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
        threads(2, Options::default(), |comm| {
            let device = device()?;
            let both = [&first, &second].map(|values| Tensor::from_vec(values.clone(), [36], &device)?.to_dtype(dtype));
            let [first, second] = both;
            let (first, second) = (first?, second?);
            let own = if comm.rank() == 0 { &first } else { &second };
            assert_eq!(bits(comm.all_reduce(own, Reduce::Max)?)?, bits(first.maximum(&second)?)?, "{dtype}");
            assert_eq!(bits(comm.all_reduce(own, Reduce::Min)?)?, bits(first.minimum(&second)?)?, "{dtype}");
            Ok(())
        })
        .unwrap();
    }
}

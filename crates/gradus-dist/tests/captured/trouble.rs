//! Errors of replays, and what a captured step refuses.

use std::sync::Arc;
use std::time::Duration;

use gradus_dist::{Communicator, DataParallel, Options, Reduce, ShardedOptimizer, threads};
use gradus_graph::capture;
use gradus_nn::{AdamConfig, AdamW, Forward, Init, Linear};
use gradus_tensor::{DType, Error, ErrorKind, Generator, Result, Tensor};
use gradus_train::Ranks;

use crate::device;

fn soon() -> Options {
    Options { deadline: Duration::from_millis(700) }
}

/// The errors of four ranks that replay a step, of which rank 1 does something else in its fifth call.
fn troubled(else_: impl Fn(&dyn Communicator, &Tensor) -> Result<()> + Sync) -> Vec<Error> {
    let errors = threads(4, soon(), |comm| {
        let device = device()?;
        let mut step = capture(|x| {
            let y = comm.all_reduce(&x[0].exp()?, Reduce::Sum)?;
            Ok(vec![comm.all_gather(&y.sin()?)?]) // the line that errors name
        });
        let x = Tensor::full([4], 0.5, DType::F32, &device)?;
        let mut before = None;
        for _ in 0..4 {
            let y: Vec<Tensor> = step.call(&[&x])?;
            let y = y[0].to_vec::<f32>()?;
            assert_eq!(*before.get_or_insert_with(|| y.clone()), y);
        }
        assert_eq!(step.replays(), 2);
        if comm.rank() == 1 {
            comm.all_reduce_(&x, Reduce::Sum)?;
            return Ok(else_(&**comm, &x).err());
        }
        let e = step.call::<Vec<Tensor>>(&[&x]).unwrap_err();
        let again = step.call::<Vec<Tensor>>(&[&x]).unwrap_err();
        assert!(*again.kind() == ErrorKind::Peer && again.message().contains("an earlier call has failed"), "{again}");
        Ok(Some(e))
    });
    errors.unwrap().into_iter().flatten().collect()
}

#[test]
fn a_replay_names_the_call_and_the_line_of_each_rank() {
    let line = include_str!("trouble.rs").lines().position(|line| line.ends_with("// the line that errors name"));
    let line = format!("tests/captured/trouble.rs:{}:", line.unwrap() + 1);
    let errors = troubled(|comm, x| comm.all_reduce(&x.narrow(0, 0, 2)?, Reduce::Max).map(drop));
    assert_eq!(errors.len(), 4);
    for e in errors {
        let text = e.to_string();
        assert_eq!(e.kind(), &ErrorKind::Peer);
        assert!(
            text.contains("call 10, all_reduce(max), [2] f32") && text.contains("call 10, all_gather, [4] f32"),
            "{text}"
        );
        assert!(text.contains(&line), "{text}");
    }
    let errors = troubled(|_, _| Ok(()));
    assert_eq!(errors.len(), 3);
    for e in errors {
        assert!(e.to_string().contains("rank 1 has left"), "{e}");
        assert!(e.to_string().contains(&format!("  at crates/gradus-dist/{line}")), "{e}");
    }
    let errors = troubled(|_, _| {
        std::thread::sleep(Duration::from_millis(1500));
        Ok(())
    });
    assert_eq!(errors.len(), 3);
    assert!(errors.iter().all(|e| e.to_string().contains("rank 1 did not come to this call")), "{errors:?}");
}

/// After a call has failed, nothing is written back and no call is made, so that the error says what went wrong.
#[test]
fn a_verified_replay_reports_the_call_that_failed() {
    threads(2, soon(), |comm| {
        let device = device()?;
        let (x, held) = (Tensor::ones([4], DType::F32, &device)?, Tensor::ones([4], DType::F32, &device)?);
        let runs = std::cell::Cell::new(0);
        let mut step = capture(|x| {
            runs.set(runs.get() + 1);
            comm.all_reduce_(&held, Reduce::Max)?;
            held.add(&x[0])
        });
        for _ in 0..3 {
            assert_eq!(step.call::<Tensor>(&[&x])?.to_vec::<f32>()?, [2.0; 4]);
        }
        assert_eq!((step.replays(), runs.get()), (1, 2));
        if comm.rank() == 1 {
            let e = comm.all_gather(&x).unwrap_err();
            assert!(e.message().contains("ranks make different calls"), "{e}");
            return Ok(());
        }
        step.verify(1);
        let e = step.call::<Tensor>(&[&x]).unwrap_err();
        assert!(*e.kind() == ErrorKind::Peer && e.message().contains("ranks make different calls"), "{e}");
        assert_eq!(runs.get(), 2);
        Ok(())
    })
    .unwrap();
}

/// A call that cannot be made leaves the memory of the program to the program.
#[test]
fn calls_after_a_failure_hold_no_memory() {
    threads(2, soon(), |comm| {
        let device = device()?;
        let mut step = capture(|x| Ok(vec![comm.all_reduce(&x[0], Reduce::Sum)?]));
        let x = Tensor::ones([4], DType::F32, &device)?;
        for _ in 0..3 {
            let _ = step.call::<Vec<Tensor>>(&[&x])?;
        }
        if comm.rank() == 1 {
            return comm.all_gather(&x).map(drop).or(Ok(()));
        }
        assert!(step.call::<Vec<Tensor>>(&[&x]).unwrap_err().message().contains("different calls"));
        let owners = Arc::strong_count(x.storage());
        for _ in 0..3 {
            let all = [
                step.call::<Vec<Tensor>>(&[&x]).map(drop).unwrap_err(),
                comm.all_reduce_(&x, Reduce::Sum).unwrap_err(),
                comm.all_gather(&x).map(drop).unwrap_err(),
            ];
            assert!(all.iter().all(|e| e.message().contains("an earlier call has failed")), "{all:?}");
        }
        assert_eq!(Arc::strong_count(x.storage()), owners);
        Ok(())
    })
    .unwrap();
}

/// An error of the function itself has nothing to do with the calls, and leaves them as they are.
#[test]
fn an_error_before_the_first_call_can_be_handled() {
    threads(2, soon(), |comm| {
        let device = device()?;
        let mut step = capture(|x| Ok(vec![comm.all_reduce(&x[0].index_select(0, &x[1])?, Reduce::Sum)?]));
        let x = Tensor::full([2], 3.0, DType::F32, &device)?;
        let [inside, outside] = [1i64, 7].map(|n| Tensor::full([1], n, DType::I64, &device));
        let (inside, outside) = (inside?, outside?);
        for _ in 0..4 {
            assert_eq!(step.call::<Vec<Tensor>>(&[&x, &inside])?[0].to_vec::<f32>()?, [6.0]);
        }
        let e = step.call::<Vec<Tensor>>(&[&x, &outside]).unwrap_err();
        assert!(matches!(e.kind(), ErrorKind::IndexOutOfBounds { .. }), "{e}");
        assert_eq!(step.call::<Vec<Tensor>>(&[&x, &inside])?[0].to_vec::<f32>()?, [6.0]);
        Ok(())
    })
    .unwrap();
}

#[test]
fn what_a_replay_would_not_do_is_refused() {
    threads(2, soon(), |comm: &Arc<dyn Communicator>| {
        let device = device()?;
        let mut rng = Generator::new(1);
        let mut init = Init::new(DType::F32, &device, &mut rng);
        let x = Tensor::ones([32, 2], DType::F32, &device)?;
        let refused = |e: Error, what: &str| assert!(e.message().contains(what), "{e}");
        refused(capture(|_| comm.split(0, 0).map(drop)).call::<()>(&[&x]).unwrap_err(), "a communicator is made");
        let model = Linear::new(2, 2, &mut init)?;
        let parallel = DataParallel::new(comm.clone())?;
        let e = capture(|_| parallel.sum(&mut [1.0])).call::<()>(&[&x]).unwrap_err();
        refused(e, "numbers of the host are exchanged between ranks");
        let adam = |parameters| AdamW::new(parameters, AdamConfig::default());
        let loss = |rows: std::ops::Range<usize>| model.forward(&x.narrow(0, rows.start, rows.len())?)?.mean_all();
        let mut divided = ShardedOptimizer::new(&parallel, &model, adam)?;
        divided.clip_norm(1.0)?;
        let e = capture(|_| divided.step(&model, 32, loss)).call::<Tensor>(&[&x]).unwrap_err();
        refused(e, "the elements of a tensor are read on the host inside a captured step");
        let mut divided = ShardedOptimizer::fully_sharded(&parallel, &model, adam)?;
        // Ranks without rows take part in what the others need, which they agree on before each call.
        let e = capture(|_| divided.step(&model, 2, loss)).call::<Tensor>(&[&x]).unwrap_err();
        refused(e, "ranks agree before each call on the parameters that they need");
        // Nothing has changed, and it steps eagerly.
        assert!(divided.step(&model, 32, loss)?.item()?.is_finite());
        Ok(())
    })
    .unwrap();
}

/// Whether a parameter has a gradient is the same in each call.
#[test]
fn gradients_that_come_and_go_are_an_error_of_the_replay() {
    threads(2, soon(), |comm| {
        let device = device()?;
        let mut init_rng = Generator::new(1);
        let mut init = Init::new(DType::F32, &device, &mut init_rng);
        let model = [Linear::new(2, 2, &mut init)?, Linear::new(2, 2, &mut init)?];
        let both = gradus_nn::Sequential::new().add(model[0].clone()).add(model[1].clone());
        let parallel = DataParallel::new(comm.clone())?;
        let other = std::cell::Cell::new(false);
        let mut step = capture(|x| {
            // Rank 1 uses another layer when it is told to, which its replays do not see: its neighbour does it eagerly.
            let layer = &model[usize::from(other.get())];
            let loss =
                |rows: std::ops::Range<usize>| layer.forward(&x[0].narrow(0, rows.start, rows.len())?)?.mean_all();
            Ok(parallel.backward(&both, 16, loss)?.0)
        });
        let x = Tensor::ones([16, 2], DType::F32, &device)?;
        for _ in 0..3 {
            let _ = step.call::<Tensor>(&[&x])?;
        }
        assert_eq!(step.replays(), 1);
        if comm.rank() == 1 {
            other.set(true);
            let layer = &model[1];
            let loss = |rows: std::ops::Range<usize>| layer.forward(&x.narrow(0, rows.start, rows.len())?)?.mean_all();
            let _ = parallel.backward(&both, 16, loss)?;
            return Ok(());
        }
        let e = step.call::<Tensor>(&[&x]).unwrap_err();
        assert!(e.message().contains("the parameters that have a gradient differ between two calls"), "{e}");
        Ok(())
    })
    .unwrap();
}

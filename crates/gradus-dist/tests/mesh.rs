//! Ranks along several axes, and a model that is trained with data and tensor parallelism at once.
#![allow(clippy::unwrap_used)]

mod common;

use common::{BATCH, DividedGpt, Gpt, Zero, adam, alone, batch, device, near_all, off, on_mesh, tolerance};
use gradus_dist::{DataParallel, Mesh, Options, Reduce, ShardedOptimizer, threads};
use gradus_nn::{
    Lamb, LambConfig, Lbfgs, LbfgsConfig, Module, Muon, MuonConfig, NonFinite, Optimizer, clip_grad_norm, grad_norm,
};
use gradus_tensor::{DType, ErrorKind, Tensor};

#[test]
fn the_last_axis_varies_fastest_and_axes_connect_their_ranks() {
    let places = threads(12, Options::default(), |comm| {
        let mesh = Mesh::new(comm, [("pipe", 2), ("data", 3), ("tensor", 2)])?;
        let mine = Tensor::scalar(comm.rank() as i64, &device()?)?.reshape([1])?;
        let mut ranks = vec![];
        for name in ["pipe", "data", "tensor"] {
            let axis = mesh.axis(name)?;
            assert_eq!(axis.rank(), mesh.coordinate(name)?);
            ranks.push(axis.all_gather(&mine)?.to_vec::<i64>()?);
        }
        Ok((["pipe", "data", "tensor"].map(|name| mesh.coordinate(name).unwrap()), ranks))
    })
    .unwrap();
    for (rank, (place, ranks)) in places.into_iter().enumerate() {
        assert_eq!(place, [rank / 6, rank / 2 % 3, rank % 2]);
        let along = |axis: usize, stride: usize, size: i64| -> Vec<i64> {
            let first = (rank - place[axis] * stride) as i64;
            (0..size).map(|i| first + i * stride as i64).collect()
        };
        assert_eq!(ranks, [along(0, 6, 2), along(1, 2, 3), along(2, 1, 2)], "rank {rank}");
    }
}

#[test]
fn axes_that_make_no_mesh_are_refused_on_all_ranks() {
    threads(4, Options::default(), |comm| {
        let refused = |axes: &[(&str, usize)]| {
            let e = Mesh::new(comm, axes.iter().copied()).unwrap_err();
            assert_eq!(*e.kind(), ErrorKind::InvalidArgument);
            assert!(e.location().unwrap().file().ends_with("mesh.rs"));
            e.to_string()
        };
        let e = refused(&[("data", 2), ("tensor", 3)]);
        assert!(e.contains("the sizes of the axes (data 2, tensor 3) make 6 places for 4 ranks"), "{e}");
        assert!(refused(&[]).contains("(none) make 1 places for 4 ranks"));
        assert!(refused(&[("a", 0), ("b", 4)]).contains("make 0 places"));
        assert!(refused(&[("a", usize::MAX), ("b", 4)]).contains("more than can be counted"));
        assert!(refused(&[("a", 2), ("a", 2)]).contains("axis 1 is called `a`, as one before it is"));
        // Every rank hears of it, also those whose axes are the others'.
        let mine = if comm.rank() == 2 { [("data", 4), ("tensor", 1)] } else { [("data", 2), ("tensor", 2)] };
        assert!(refused(&mine).contains(&format!("those of rank {} are data {}", comm.rank(), mine[0].1)));

        let mesh = Mesh::new(comm, [("data", 2), ("tensor", 2)])?;
        let e = mesh.axis("tenser").unwrap_err().to_string();
        assert!(
            e.contains("no axis `tenser`") && e.contains("did you mean `tensor`? the axes are data, tensor"),
            "{e}"
        );
        let e = mesh.coordinate("x").unwrap_err().to_string();
        assert!(!e.contains("did you mean") && e.contains("the axes are data, tensor"), "{e}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_gpt_on_a_mesh_learns_what_it_learns_in_one_process() {
    for (sizes, sequence) in [([2, 2], false), ([2, 2], true), ([4, 1], true), ([1, 2], true)] {
        for zero in [Zero::Off, Zero::Two, Zero::Three] {
            let bytes = threads(sizes[0] * sizes[1], Options::default(), |comm| {
                let (model, replicated, all) = on_mesh(comm, sizes, DType::F64, sequence, zero, false)?;
                near_all(&model, &alone(DType::F64)?, tolerance);
                Ok((replicated, all))
            })
            .unwrap();
            for (rank, (replicated, all)) in bytes.iter().enumerate() {
                assert!(*replicated == bytes[0].0, "{sizes:?} {sequence} {zero:?}: parameters of rank {rank}");
                let first = rank % sizes[1];
                assert!(*all == bytes[first].1, "{sizes:?} {sequence} {zero:?}: parts of rank {rank} and {first}");
            }
        }
    }
}

#[test]
fn captured_steps_on_a_mesh_have_the_bits_of_eager_ones() {
    for (sequence, zero) in [(false, Zero::Off), (true, Zero::Off), (true, Zero::Two)] {
        threads(4, Options::default(), |comm| {
            let run = |captured: bool| Ok(on_mesh(comm, [2, 2], DType::F32, sequence, zero, captured)?.2);
            assert!(run(true)? == run(false)?, "{sequence} {zero:?}");
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn a_gpt_in_f32_stays_within_rounding_too() {
    // Five steps of 0.01 in f32: 1e-3 of the way that a weight has gone.
    threads(4, Options::default(), |comm| {
        let (model, ..) = on_mesh(comm, [2, 2], DType::F32, true, Zero::Off, false)?;
        let (a, b) = (model.state_dict()?, alone(DType::F32)?.state_dict()?);
        for (name, tensor) in a.iter().filter(|(name, _)| !name.ends_with("in_proj_bias")) {
            let off = off(tensor, b.get(name).unwrap());
            assert!(off < 5e-5, "{name}: {off}");
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn sums_along_one_axis_do_not_meet_those_of_another() {
    let sums = threads(4, Options::default(), |comm| {
        let mesh = Mesh::new(comm, [("data", 2), ("tensor", 2)])?;
        let mine = Tensor::scalar(10f64.powi(comm.rank() as i32), &device()?)?;
        let along = |name: &str| mesh.axis(name)?.all_reduce(&mine, Reduce::Sum)?.item();
        Ok([along("data")?, along("tensor")?])
    });
    assert_eq!(sums.unwrap(), [[101.0, 11.0], [1010.0, 11.0], [101.0, 1100.0], [1010.0, 1100.0]]);
}

#[test]
fn gradients_are_clipped_by_the_norm_of_the_whole_model() {
    for (sequence, max_norm) in [(false, 0.5), (true, 0.5), (false, 1e3)] {
        threads(4, Options::default(), |comm| {
            let device = device()?;
            let (tokens, targets) = batch(BATCH, &device)?;
            let whole = Gpt::new(DType::F64, 0.0, &device)?;
            let mut theirs = whole.loss(&tokens, &targets)?.backward()?;
            let most = grad_norm(&theirs, &whole.parameters(), f64::INFINITY)?;
            let expected = clip_grad_norm(&mut theirs, &whole.parameters(), max_norm)?;
            adam(whole.named_parameters())?.step(&theirs)?;

            let mesh = Mesh::new(comm, [("data", 2), ("tensor", 2)])?;
            let tensor = mesh.axis("tensor")?;
            let model = DividedGpt::of(Gpt::new(DType::F64, 0.0, &device)?, sequence, &tensor)?;
            let loss = |rows: std::ops::Range<usize>| {
                let part = |t: &Tensor| t.narrow(0, rows.start, rows.len());
                model.loss(&part(&tokens)?, &part(&targets)?)
            };
            let parallel = DataParallel::with_shards(mesh.axis("data")?, 2)?;
            let (_, mut ours) = parallel.backward(&model, BATCH, loss)?;
            // A parameter that is given twice counts once, like one that others share.
            let twice = [model.parameters(), model.parameters()].concat();
            let largest = grad_norm(&ours, &twice, f64::INFINITY)?;
            let norm = clip_grad_norm(&mut ours, &twice, max_norm)?;
            assert!((largest - most).abs() < 1e-12, "{largest} {most}");
            assert!((norm - expected).abs() < 1e-12 && norm > 0.6, "{norm} {expected}");
            adam(model.named_parameters())?.step(&ours)?;
            near_all(&model.whole()?, &whole, tolerance);
            let all = comm.all_gather(&Tensor::from_vec(vec![norm], [1], &device)?)?.to_vec::<f64>()?;
            assert!(all.iter().all(|other| other.to_bits() == norm.to_bits()), "{all:?}");
            let e = clip_grad_norm(&mut ours, &twice, 0.0).unwrap_err();
            assert_eq!(*e.kind(), ErrorKind::InvalidArgument);
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn divided_optimisers_clip_by_the_norm_of_the_whole_model() {
    for sizes in [[2, 2], [4, 1], [1, 2]] {
        for full in [false, true] {
            threads(sizes[0] * sizes[1], Options::default(), |comm| {
                let device = device()?;
                let (tokens, targets) = batch(BATCH, &device)?;
                let whole = Gpt::new(DType::F64, 0.0, &device)?;
                let mut theirs = adam(whole.named_parameters())?;
                let mesh = Mesh::new(comm, [("data", sizes[0]), ("tensor", sizes[1])])?;
                let model = DividedGpt::of(Gpt::new(DType::F64, 0.0, &device)?, true, &mesh.axis("tensor")?)?;
                let parallel = DataParallel::with_shards(mesh.axis("data")?, 4)?;
                let mut ours = match full {
                    true => ShardedOptimizer::fully_sharded(&parallel, &model, adam)?,
                    false => ShardedOptimizer::new(&parallel, &model, adam)?,
                };
                ours.clip_norm(0.5)?;
                for _ in 0..3 {
                    let mut gradients = whole.loss(&tokens, &targets)?.backward()?;
                    let expected = clip_grad_norm(&mut gradients, &whole.parameters(), 0.5)?;
                    theirs.step(&gradients)?;
                    let _ = ours.step(&model, BATCH, |rows| {
                        let part = |t: &Tensor| t.narrow(0, rows.start, rows.len());
                        model.loss(&part(&tokens)?, &part(&targets)?)
                    })?;
                    let norm = ours.grad_norm().unwrap();
                    assert!((norm - expected).abs() < 1e-12 && norm > 0.6, "{sizes:?} {full}: {norm} {expected}");
                    let all = comm.all_gather(&Tensor::from_vec(vec![norm], [1], &device)?)?.to_vec::<f64>()?;
                    assert!(all.iter().all(|other| other.to_bits() == norm.to_bits()), "{all:?}");
                }
                ours.gather()?;
                near_all(&model.whole()?, &whole, tolerance);
                Ok(())
            })
            .unwrap();
        }
    }
}

#[test]
fn infinite_gradients_of_one_part_skip_the_step_of_all() {
    for full in [false, true] {
        threads(4, Options::default(), |comm| {
            let device = device()?;
            let (tokens, targets) = batch(BATCH, &device)?;
            let mesh = Mesh::new(comm, [("data", 2), ("tensor", 2)])?;
            let model = DividedGpt::of(Gpt::new(DType::F64, 0.0, &device)?, false, &mesh.axis("tensor")?)?;
            let parallel = DataParallel::with_shards(mesh.axis("data")?, 2)?;
            let skipping = |parameters| Ok(adam(parameters)?.non_finite(NonFinite::Skip));
            let mut optimizer = match full {
                true => ShardedOptimizer::fully_sharded(&parallel, &model, skipping)?,
                false => ShardedOptimizer::new(&parallel, &model, skipping)?,
            };
            optimizer.clip_norm(0.5)?;
            // The gradient of a part of one rank of the tensor axis becomes infinite.
            let weight = model.parameters().into_iter().find(|p| p.division().is_some()).unwrap();
            for (bad, skipped) in [(true, 1), (false, 1)] {
                optimizer.gather()?;
                let before = model.whole()?.tokens.weight.to_vec::<f64>()?;
                let _ = optimizer.step(&model, BATCH, |rows| {
                    let part = |t: &Tensor| t.narrow(0, rows.start, rows.len());
                    let loss = model.loss(&part(&tokens)?, &part(&targets)?)?;
                    if !(bad && mesh.coordinate("tensor")? == 1) {
                        return Ok(loss);
                    }
                    // 0, with a gradient beyond what f64 holds.
                    loss.add(weight.sub(weight.detach())?.sum_all()?.mul(1e200)?.mul(1e200)?)
                })?;
                assert_eq!(optimizer.inner().skipped_steps(), skipped, "{full} {bad}");
                assert_eq!(optimizer.grad_norm().is_none(), bad);
                optimizer.gather()?;
                assert_eq!(before == model.whole()?.tokens.weight.to_vec::<f64>()?, bad, "{full}");
            }
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn what_needs_all_of_a_parameter_refuses_a_part() {
    threads(2, Options::default(), |comm| {
        let device = device()?;
        let (tokens, targets) = batch(2, &device)?;
        let mut model = DividedGpt::of(Gpt::new(DType::F64, 0.0, &device)?, false, comm)?;
        assert!(model.whole()?.parameters().iter().all(|p| p.division().is_none()));
        for cast in [false, true] {
            if cast {
                model.cast_parameters(DType::F32)?;
            }
            let refused = |e: gradus_tensor::Error| {
                assert!(*e.kind() == ErrorKind::Unsupported, "{e}");
                assert!(e.message().contains("has one part of it"), "{e}");
                assert!(e.location().unwrap().file().ends_with("mesh.rs"), "{e}");
            };
            let parameters = model.parameters();
            let mut gradients = model.loss(&tokens, &targets)?.backward()?;
            refused(gradus_nn::clip_grad_norm_on_device(&mut gradients, &parameters, 1.0).unwrap_err());
            refused(Lamb::new(model.named_parameters(), LambConfig::default()).err().unwrap());
            refused(Lbfgs::new(model.named_parameters(), LbfgsConfig::default()).err().unwrap());
            let matrices = model.named_parameters().into_iter().filter(|(name, _)| name.contains("proj_weight"));
            refused(Muon::new(matrices.collect::<Vec<_>>(), MuonConfig::default()).err().unwrap());
        }
        Ok(())
    })
    .unwrap();
}

//! Ranks along several axes, and a model that is trained with data and tensor parallelism at once.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::{DividedGpt, Gpt, batch, device, near_all};
use gradus_dist::{Communicator, DataParallel, Mesh, Options, Reduce, ShardedOptimizer, threads};
use gradus_nn::{AdamConfig, AdamW, Module, Optimizer, Parameter};
use gradus_tensor::{DType, ErrorKind, Result, Tensor};

const BATCH: usize = 8;
const STEPS: usize = 4;

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

fn adam(parameters: Vec<(String, Parameter)>) -> Result<AdamW> {
    AdamW::new(parameters, AdamConfig { lr: 0.01, ..AdamConfig::default() })
}

/// The model after training in one process on whole batches.
fn alone(dtype: DType) -> Result<Gpt> {
    let device = device()?;
    let (tokens, targets) = batch(BATCH, &device)?;
    let model = Gpt::new(dtype, 0.0, &device)?;
    let mut optimizer = adam(model.named_parameters())?;
    for _ in 0..STEPS {
        optimizer.step(&model.loss(&tokens, &targets)?.backward()?)?;
    }
    Ok(model)
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Zero {
    Off,
    Two,
    Three,
}

/// The same model after training on a mesh, the bytes of what all ranks hold as a whole, and of all.
fn on_mesh(
    comm: &Arc<dyn Communicator>,
    sizes: [usize; 2],
    dtype: DType,
    sequence: bool,
    zero: Zero,
) -> Result<(Gpt, Vec<u8>, Vec<u8>)> {
    let device = device()?;
    let (tokens, targets) = batch(BATCH, &device)?;
    let mesh = Mesh::new(comm, [("data", sizes[0]), ("tensor", sizes[1])])?;
    let model = DividedGpt::of(Gpt::new(dtype, 0.0, &device)?, sequence, &mesh.axis("tensor")?)?;
    let parallel = DataParallel::with_shards(mesh.axis("data")?, 4)?;
    let loss = |rows: std::ops::Range<usize>| {
        let part = |t: &Tensor| t.narrow(0, rows.start, rows.len());
        model.loss(&part(&tokens)?, &part(&targets)?)
    };
    match zero {
        Zero::Off => {
            let mut optimizer = adam(model.named_parameters())?;
            for _ in 0..STEPS {
                optimizer.step(&parallel.backward(&model, BATCH, loss)?.1)?;
            }
        }
        Zero::Two => {
            let mut optimizer = ShardedOptimizer::new(&parallel, &model, adam)?;
            for _ in 0..STEPS {
                let _ = optimizer.step(&model, BATCH, loss)?;
            }
        }
        Zero::Three => {
            let mut optimizer = ShardedOptimizer::fully_sharded(&parallel, &model, adam)?;
            for _ in 0..STEPS {
                let _ = optimizer.step(&model, BATCH, loss)?;
            }
            optimizer.gather()?;
        }
    }
    let mut all = vec![];
    for (_, tensor) in model.state_dict()?.iter() {
        all.extend(tensor.to_bytes()?);
    }
    Ok((model.whole()?, model.replicated()?, all))
}

/// Adam divides by the root of a mean of squares plus 1e-8. Where a gradient is mathematically 0, as for the biases of
/// keys, that turns a rounding error of 1e-17 into 1e-9 of a step; elsewhere errors stay near 1e-15.
const TOLERANCE: f64 = 1e-10;

#[test]
fn a_gpt_on_a_mesh_learns_what_it_learns_in_one_process() {
    for (sizes, sequence) in [([2, 2], false), ([2, 2], true), ([4, 1], true), ([1, 2], true)] {
        for zero in [Zero::Off, Zero::Two, Zero::Three] {
            let bytes = threads(sizes[0] * sizes[1], Options::default(), |comm| {
                let (model, replicated, all) = on_mesh(comm, sizes, DType::F64, sequence, zero)?;
                near_all(&model, &alone(DType::F64)?, TOLERANCE);
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
fn a_gpt_in_f32_stays_within_rounding_too() {
    // Four steps of 0.01 in f32: 1e-3 of the way that a weight has gone.
    threads(4, Options::default(), |comm| {
        let (model, ..) = on_mesh(comm, [2, 2], DType::F32, true, Zero::Off)?;
        let (a, b) = (model.state_dict()?, alone(DType::F32)?.state_dict()?);
        for (name, tensor) in a.iter().filter(|(name, _)| !name.ends_with("in_proj_bias")) {
            let off = common::off(tensor, b.get(name).unwrap());
            assert!(off < 4e-5, "{name}: {off}");
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

//! Ranks that do not do the same. In the snippets, ranks are threads; processes that `mpirun` started get the same errors.

use std::ops::Range;

use crate::page::page;
use gradus::nn::{Muon, MuonConfig, Split};
use gradus::prelude::*;
use gradus_dist::{
    DataParallel, Mesh, Options, ParallelAttention, ParallelEmbedding, Pipeline, Reduce, RowLinear, ShardedOptimizer,
    Stage, divide, parallel_cross_entropy, threads,
};

page! {
    "Ranks":
    ranks_make_different_calls,
    a_rank_has_left,
    a_mesh_for_another_number_of_ranks,
    an_axis_that_a_mesh_does_not_have,
    heads_that_do_not_divide,
    a_sequence_that_does_not_divide,
    logits_of_all_classes,
    an_optimiser_that_needs_all_of_a_weight,
    a_plan_that_fits_no_parameter,
    a_communicator_is_made_in_a_captured_step,
    divided_parameters_in_a_captured_step,
    a_stage_of_a_pipeline_fails,
    stages_share_a_parameter,
}

/// Every rank makes the same calls in the same order. Here the last batch of one rank is smaller than that of the other.
/// The error lists who called what, and where.
///
/// Mend: give all ranks tensors of one shape; reduce the gradients, which have it, rather than what comes from a batch.
fn ranks_make_different_calls(device: &Device) -> Result<Error> {
    let error = threads(2, Options::default(), |comm| {
        let batch = Tensor::ones([8 - comm.rank(), 3], DType::F32, device)?;
        comm.all_reduce(&batch, Reduce::Sum)
    })
    .unwrap_err();

    threads(2, Options::default(), |comm| {
        let batch = Tensor::ones([8 - comm.rank(), 3], DType::F32, device)?;
        comm.all_reduce(&batch.sum(&[0], false)?, Reduce::Sum)
    })?;
    Ok(error)
}

/// A rank whose loop is shorter ends, and the others wait for its next call.
///
/// Mend: let all ranks agree whether there is a next batch.
fn a_rank_has_left(device: &Device) -> Result<Error> {
    let mean = Tensor::scalar(1.0f32, device)?;
    let error = threads(2, Options::default(), |comm| {
        for _ in 0..3 - comm.rank() {
            comm.all_reduce(&mean, Reduce::Sum)?;
        }
        Ok(())
    })
    .unwrap_err();

    threads(2, Options::default(), |comm| {
        for step in 0.. {
            let more = Tensor::scalar(i64::from(step < 3 - comm.rank()), device)?;
            if comm.all_reduce(&more, Reduce::Min)?.item()? == 0.0 {
                break;
            }
            comm.all_reduce(&mean, Reduce::Sum)?;
        }
        Ok(())
    })?;
    Ok(error)
}

/// The sizes of the axes of a mesh were chosen for more ranks than there are.
///
/// Mend: start as many ranks as the product of the sizes, or compute one size from the number of ranks.
fn a_mesh_for_another_number_of_ranks(_: &Device) -> Result<Error> {
    let error = threads(4, Options::default(), |comm| {
        Mesh::new(comm, [("data", 4), ("tensor", 2)]) // for 8 ranks
    })
    .unwrap_err();

    threads(4, Options::default(), |comm| Mesh::new(comm, [("data", comm.size() / 2), ("tensor", 2)]))?;
    Ok(error)
}

/// The name of an axis is mistyped.
///
/// Mend: take a name that the mesh was made with.
fn an_axis_that_a_mesh_does_not_have(_: &Device) -> Result<Error> {
    let mesh = |comm: &_| Mesh::new(comm, [("data", 2), ("tensor", 1)]);
    let error = threads(2, Options::default(), |comm| mesh(comm)?.axis("tensors")).unwrap_err();

    threads(2, Options::default(), |comm| mesh(comm)?.axis("tensor"))?;
    Ok(error)
}

/// Each rank computes whole heads of attention, of queries and of keys. Here four query heads share two key heads, so four
/// ranks cannot have a key head each.
///
/// Mend: divide among a number of ranks that divides both; the other ranks can divide the batch.
fn heads_that_do_not_divide(device: &Device) -> Result<Error> {
    let mut rng = Generator::new(0);
    let config = MultiheadAttentionConfig { num_kv_heads: Some(2), ..Default::default() };
    let attention = MultiheadAttention::new(8, 4, config, &mut Init::new(DType::F32, device, &mut rng))?;
    let error = threads(4, Options::default(), |comm| ParallelAttention::of(&attention, comm)).err().unwrap();

    threads(4, Options::default(), |comm| {
        let mesh = Mesh::new(comm, [("data", 2), ("tensor", 2)])?;
        ParallelAttention::of(&attention, &mesh.axis("tensor")?)
    })?;
    Ok(error)
}

/// Every rank holds an equal part of the sequence, so its length must be a multiple of the number of ranks.
///
/// Mend: pad the batch to a length that divides among the ranks.
fn a_sequence_that_does_not_divide(device: &Device) -> Result<Error> {
    let mut rng = Generator::new(0);
    let linear = Linear::new(8, 4, &mut Init::new(DType::F32, device, &mut rng))?;
    let run = |length: usize| {
        threads(2, Options::default(), |comm| {
            let x = Tensor::zeros([3, length, 4], DType::F32, device)?; // this rank's features
            RowLinear::of(&linear, comm)?.sequence(1).forward(&x)
        })
    };
    let error = run(7).unwrap_err();

    run(8)?;
    Ok(error)
}

/// The loss of divided classes takes the logits of this rank's classes, and here gets those of all.
///
/// Mend: let a divided layer compute the logits, such as `ColumnLinear`, or `head()` of a `ParallelEmbedding`.
fn logits_of_all_classes(device: &Device) -> Result<Error> {
    let mut rng = Generator::new(0);
    let table = Embedding::new(6, 4, None, &mut Init::new(DType::F32, device, &mut rng))?;
    let x = Tensor::zeros([3, 4], DType::F32, device)?;
    let targets = Tensor::from_vec(vec![0i64, 5, 2], [3], device)?;
    let options = CrossEntropyLoss::default();
    let error = threads(2, Options::default(), |comm| {
        let logits = x.linear(&table.weight, None)?;
        parallel_cross_entropy(&logits, &targets, 6, comm, &options)
    })
    .unwrap_err();

    threads(2, Options::default(), |comm| {
        let logits = ParallelEmbedding::of(&table, comm)?.head()?.forward(&x)?;
        parallel_cross_entropy(&logits, &targets, 6, comm, &options)
    })?;
    Ok(error)
}

/// Muon mixes all elements of a weight, and a rank has only its part of it.
///
/// Mend: take an optimiser that treats each element by itself, such as `AdamW` or `Sgd`.
fn an_optimiser_that_needs_all_of_a_weight(device: &Device) -> Result<Error> {
    let mut rng = Generator::new(0);
    let linear = Linear::without_bias(4, 8, &mut Init::new(DType::F32, device, &mut rng))?;
    let error = threads(2, Options::default(), |comm| {
        let layer = RowLinear::of(&linear, comm)?;
        Muon::new(layer.named_parameters(), MuonConfig::default()).map(drop)
    })
    .unwrap_err();

    threads(2, Options::default(), |comm| {
        let layer = RowLinear::of(&linear, comm)?;
        AdamW::new(layer.named_parameters(), AdamConfig::default()).map(drop)
    })?;
    Ok(error)
}

/// A plan has the names of parameters as the model has them, or the ends of these after a dot.
///
/// Mend: take names of `model.named_parameters()`.
fn a_plan_that_fits_no_parameter(device: &Device) -> Result<Error> {
    let error = threads(2, Options::default(), |comm| {
        let mut rng = Generator::new(0);
        let mut model = Linear::new(4, 8, &mut Init::new(DType::F32, device, &mut rng))?;
        divide(&mut model, &[("linear.weight", Split::Axis(0))], comm)
    })
    .unwrap_err();

    threads(2, Options::default(), |comm| {
        let mut rng = Generator::new(0);
        let mut model = Linear::new(4, 8, &mut Init::new(DType::F32, device, &mut rng))?;
        divide(&mut model, &[("weight", Split::Axis(0)), ("bias", Split::Axis(0))], comm)
    })?;
    Ok(error)
}

/// A replay of a captured step makes the collectives of tensors again. It makes no communicator, and exchanges no numbers of
/// the host.
///
/// Mend: split before the step; exchange numbers as a tensor.
fn a_communicator_is_made_in_a_captured_step(device: &Device) -> Result<Error> {
    let x = Tensor::ones([2], DType::F32, device)?;
    let error = threads(2, Options::default(), |comm| {
        let mut step = capture(|x| comm.split(0, 0)?.all_reduce(&x[0], Reduce::Sum));
        step.call::<Tensor>(&[&x])
    })
    .unwrap_err();

    threads(2, Options::default(), |comm| {
        let part = comm.split(0, 0)?;
        let mut step = capture(|x| part.all_reduce(&x[0], Reduce::Sum));
        step.call::<Tensor>(&[&x])
    })?;
    Ok(error)
}

/// With `ShardedOptimizer::fully_sharded`, a block of the parameters is there only while it is needed. A replay needs all
/// memory of its tensors from beginning to end.
///
/// Mend: step outside of captured steps, or divide gradients and state only.
fn divided_parameters_in_a_captured_step(device: &Device) -> Result<Error> {
    let x = Tensor::ones([16, 2], DType::F32, device)?;
    let adam = |parameters| AdamW::new(parameters, AdamConfig::default());
    let error = threads(1, Options::default(), |comm| {
        let model = Linear::new(2, 1, &mut Init::new(DType::F32, device, &mut Generator::new(1)))?;
        let mut optimizer = ShardedOptimizer::fully_sharded(&DataParallel::new(comm.clone())?, &model, adam)?;
        let loss = |rows: Range<usize>| model.forward(&x.narrow(0, rows.start, 1)?)?.mean_all();
        let mut step = capture(|_| optimizer.step(&model, 16, loss));
        step.call::<Tensor>(&[&x])
    })
    .unwrap_err();

    threads(1, Options::default(), |comm| {
        let model = Linear::new(2, 1, &mut Init::new(DType::F32, device, &mut Generator::new(1)))?;
        let mut optimizer = ShardedOptimizer::new(&DataParallel::new(comm.clone())?, &model, adam)?;
        let loss = |rows: Range<usize>| model.forward(&x.narrow(0, rows.start, 1)?)?.mean_all();
        let mut step = capture(|_| optimizer.step(&model, 16, loss));
        step.call::<Tensor>(&[&x])
    })?;
    Ok(error)
}

/// The second stage of a pipeline takes another number of features than the first gives. The second stage gets the error of
/// its layer; shown here is the error of the first stage, which waits for a gradient.
///
/// Mend: read the reason in the note, and fix it on the rank that it names.
fn a_stage_of_a_pipeline_fails(device: &Device) -> Result<Error> {
    let x = Tensor::ones([8, 3], DType::F32, device)?;
    let train = |features: [usize; 2]| {
        threads(2, Options::default(), |comm| {
            let mut generator = Generator::new(0);
            let mut init = Init::new(DType::F32, device, &mut generator);
            let stage = Stage::new(comm, &[0..1, 1..2], |i| Linear::new(features[i], 4, &mut init))?;
            let pipeline = Pipeline::new(comm, 1, device)?;
            let input = |rows: Range<usize>| x.narrow(0, rows.start, rows.len());
            Ok(pipeline.backward(&stage, 8, input, |y, _| y.square()?.mean_all()).err())
        })
    };
    let error = train([3, 5])?.remove(0).unwrap();

    assert!(train([3, 4])?.iter().all(Option::is_none));
    Ok(error)
}

/// Layers of two stages have a parameter in common. Each rank would have its own after the cut, and they would drift apart.
///
/// Mend: make them two parameters, and tie these.
fn stages_share_a_parameter(device: &Device) -> Result<Error> {
    let layer = |seed: u64| Linear::new(3, 3, &mut Init::new(DType::F32, device, &mut Generator::new(seed)));
    let error = threads(2, Options::default(), |comm| {
        let shared = layer(0)?;
        Stage::of(comm, Sequential::new().add(shared.clone()).add(shared), &[0..1, 1..2])
    })
    .unwrap_err();

    threads(2, Options::default(), |comm| {
        let stage = Stage::new(comm, &[0..1, 1..2], |_| layer(0))?;
        let mut pipeline = Pipeline::new(comm, 4, device)?;
        pipeline.tie(&stage, ["0.weight", "1.weight"])?;
        pipeline.tie(&stage, ["0.bias", "1.bias"])
    })?;
    Ok(error)
}

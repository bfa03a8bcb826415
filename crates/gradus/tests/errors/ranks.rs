//! Ranks that do not do the same. In the snippets, ranks are threads; processes that `mpirun` started get the same errors.

use std::fs;
use std::ops::Range;
use std::sync::Arc;

use crate::page::page;
use gradus::nn::{Muon, MuonConfig, Split};
use gradus::prelude::*;
use gradus_dist::{
    DataParallel, FullyShardedDataParallel, Mesh, Options, ParallelAttention, ParallelEmbedding, Pipeline, Reduce,
    RowLinear, Stage, cut_evenly, divide, parallel_cross_entropy, threads,
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
    a_stage_of_a_pipeline_fails,
    stages_share_a_parameter,
    a_tensor_that_does_not_divide_among_ranks,
    shards_that_do_not_divide_among_ranks,
    ranks_give_different_numbers_of_rows,
    stages_compute_different_rows,
    stages_with_different_micro_batches,
    a_cut_for_another_number_of_ranks,
    ranks_cut_in_different_places,
    fewer_modules_than_stages,
    a_tie_to_a_parameter_that_no_stage_has,
    a_parameter_is_tied_twice,
    a_part_of_a_checkpoint_is_missing,
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

/// Each rank receives an equal part of the sum along axis 0, and five elements do not divide between two ranks.
///
/// Mend: pad the tensor, or take `all_reduce`, which gives each rank the whole sum.
fn a_tensor_that_does_not_divide_among_ranks(device: &Device) -> Result<Error> {
    let x = Tensor::ones([5], DType::F32, device)?;
    let error = threads(2, Options::default(), |comm| comm.reduce_scatter(&x, Reduce::Sum)).unwrap_err();

    threads(2, Options::default(), |comm| comm.all_reduce(&x, Reduce::Sum))?;
    Ok(error)
}

/// A batch is cut into 16 virtual shards, unless another number is given. Each rank computes equally many.
///
/// Mend: give a number of shards of which each rank gets a power of two: here 24, of which each computes 8.
fn shards_that_do_not_divide_among_ranks(_: &Device) -> Result<Error> {
    let error = threads(3, Options::default(), |comm| DataParallel::new(comm.clone()).map(drop)).unwrap_err();

    threads(3, Options::default(), |comm| DataParallel::with_shards(comm.clone(), 24).map(drop))?;
    Ok(error)
}

/// Every rank gives the whole batch, or at least its number of rows, and computes the rows of its shards. Here one rank gives
/// fewer.
///
/// Mend: load the same batch on all ranks; each computes the rows of its own shards.
fn ranks_give_different_numbers_of_rows(device: &Device) -> Result<Error> {
    let train = |rows: fn(usize) -> usize| {
        threads(2, Options::default(), |comm| {
            let model = Linear::new(3, 1, &mut Init::new(DType::F32, device, &mut Generator::new(1)))?;
            let x = Tensor::ones([rows(comm.rank()), 3], DType::F32, device)?;
            let loss = |rows: Range<usize>| model.forward(&x.narrow(0, rows.start, rows.len())?)?.mean_all();
            DataParallel::new(comm.clone())?.backward(&model, x.shape()[0], loss).map(drop)
        })
    };
    let error = train(|rank| 32 - rank).unwrap_err();

    train(|_| 32)?;
    Ok(error)
}

/// Each stage cuts its micro-batches from the number of rows that it is given. Here the second stage is given fewer; this is its
/// error.
///
/// Mend: give all stages the number of rows of the whole batch.
fn stages_compute_different_rows(device: &Device) -> Result<Error> {
    let train = |rows: fn(usize) -> usize| {
        threads(2, Options::default(), |comm| {
            let mut generator = Generator::new(0);
            let mut init = Init::new(DType::F32, device, &mut generator);
            let stage = Stage::new(comm, &[0..1, 1..2], |_| Linear::new(3, 3, &mut init))?;
            let pipeline = Pipeline::new(comm, 2, device)?;
            let input = |rows: Range<usize>| Tensor::ones([rows.len(), 3], DType::F32, device);
            Ok(pipeline.backward(&stage, rows(comm.rank()), input, |y, _| y.square()?.mean_all()).err())
        })
    };
    let error = train(|rank| 8 - 2 * rank)?.remove(1).unwrap();

    assert!(train(|_| 8)?.iter().all(Option::is_none));
    Ok(error)
}

/// The stages of a pipeline cut the batch into different numbers of micro-batches.
///
/// Mend: give all ranks the same number.
fn stages_with_different_micro_batches(device: &Device) -> Result<Error> {
    let error = threads(2, Options::default(), |comm| {
        let free = [8, 4]; // what each rank has memory for
        Pipeline::new(comm, free[comm.rank()], device).map(drop)
    })
    .unwrap_err();

    threads(2, Options::default(), |comm| Pipeline::new(comm, 8, device).map(drop))?;
    Ok(error)
}

/// A cut has a range of modules for each rank. This one was made for three.
///
/// Mend: let `cut_evenly` make the cut for the number of ranks that there are, or take `Stage::even`.
fn a_cut_for_another_number_of_ranks(device: &Device) -> Result<Error> {
    let layer = |i: usize| Linear::new(3, 3, &mut Init::new(DType::F32, device, &mut Generator::new(i as u64)));
    let error = threads(2, Options::default(), |comm| Stage::new(comm, &[0..1, 1..2, 2..4], layer)).unwrap_err();

    threads(2, Options::default(), |comm| Stage::new(comm, &cut_evenly(&[12; 4], comm.size())?, layer))?;
    Ok(error)
}

/// Each rank has measured how long its modules take, and cuts the model by its own times.
///
/// Mend: cut by numbers that all ranks have, as `Stage::even` does.
fn ranks_cut_in_different_places(device: &Device) -> Result<Error> {
    let layer = |i: usize| Linear::new(3, 3, &mut Init::new(DType::F32, device, &mut Generator::new(i as u64)));
    let error = threads(2, Options::default(), |comm| {
        let times = [[40, 10, 10], [40, 10, 50]][comm.rank()];
        Stage::new(comm, &cut_evenly(&times, comm.size())?, layer)
    })
    .unwrap_err();

    threads(2, Options::default(), |comm| Stage::even(comm, 3, layer))?;
    Ok(error)
}

/// Each stage has at least one module, and there are fewer modules than stages.
///
/// Mend: make modules of smaller parts of the model, such as each block, or take fewer ranks.
fn fewer_modules_than_stages(_: &Device) -> Result<Error> {
    let error = cut_evenly(&[500, 300], 4).unwrap_err();

    cut_evenly(&[250, 250, 150, 150], 4)?;
    Ok(error)
}

/// A name of `tie` is mistyped. Names are those that the parameters have in the whole model.
///
/// Mend: look at `stage.named_parameters()`.
fn a_tie_to_a_parameter_that_no_stage_has(device: &Device) -> Result<Error> {
    let tie = |names: [&'static str; 2]| {
        threads(2, Options::default(), |comm| {
            let mut generator = Generator::new(0);
            let mut init = Init::new(DType::F32, device, &mut generator);
            let stage = Stage::new(comm, &[0..1, 1..2], |_| Linear::new(3, 3, &mut init))?;
            Pipeline::new(comm, 4, device)?.tie(&stage, names)
        })
    };
    let error = tie(["0.weight", "1.weights"]).unwrap_err();

    tie(["0.weight", "1.weight"])?;
    Ok(error)
}

/// Three layers shall have one weight. A tie has two ends, and a parameter is in one tie.
///
/// Mend: tie two of them, and let the layers of one stage share the parameter.
fn a_parameter_is_tied_twice(device: &Device) -> Result<Error> {
    let tie = |ties: &'static [[&'static str; 2]]| {
        threads(2, Options::default(), |comm| {
            let mut generator = Generator::new(0);
            let mut init = Init::new(DType::F32, device, &mut generator);
            let stage = Stage::new(comm, &[0..1, 1..3], |_| Linear::new(3, 3, &mut init))?;
            let mut pipeline = Pipeline::new(comm, 4, device)?;
            ties.iter().try_for_each(|names| pipeline.tie(&stage, *names))
        })
    };
    let error = tie(&[["0.weight", "1.weight"], ["0.weight", "2.weight"]]).unwrap_err();

    tie(&[["0.weight", "1.weight"]])?;
    Ok(error)
}

/// Ranks with divided parameters write a part of each checkpoint. One of the files is gone, and there is no checkpoint before
/// this one.
///
/// Mend: copy the file from a backup, and keep two checkpoints, as `Trainer` does unless told otherwise.
fn a_part_of_a_checkpoint_is_missing(device: &Device) -> Result<Error> {
    let train = |epochs: usize| {
        threads(2, Options::default(), |comm| {
            let (x, y) = (Tensor::ones([32, 3], DType::F32, device)?, Tensor::zeros([32], DType::I64, device)?);
            let loader = DataLoader::new(TensorDataset::new(x, y)?, device).batch_size(16).build()?;
            let mut model = Linear::new(3, 2, &mut Init::new(DType::F32, device, &mut Generator::new(1)))?;
            let mut optimizer = AdamW::new(model.named_parameters(), AdamConfig::default())?;
            let ranks = FullyShardedDataParallel::new(DataParallel::new(comm.clone())?)?;
            let trainer = Trainer::new(epochs)?.ranks(Arc::new(ranks)).resume("checkpoints");
            trainer.fit(&mut model, &mut optimizer, &loader, None, &Classification::default(), &mut [])
        })
    };
    train(1)?;
    let part = "checkpoints/checkpoint-000001.part-1-of-2.safetensors";
    fs::rename(part, "backup").unwrap();
    let error = train(2).unwrap_err();

    fs::rename("backup", part).unwrap();
    train(2)?;
    Ok(error)
}

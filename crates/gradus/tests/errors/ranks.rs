//! Ranks that do not do the same. In the snippets, ranks are threads; processes that `mpirun` started get the same errors.

use crate::page::page;
use gradus::prelude::*;
use gradus_dist::{Options, Reduce, threads};

page! {
    "Ranks":
    ranks_make_different_calls,
    a_rank_has_left,
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

//! Indexing, masks, padding and repetition.

use gradus::ops::{Indexing, PadMode, ScatterReduction, Strided};
use gradus::prelude::*;

use crate::{Cases, one};

/// Takes the sine of each output, so that the gradient is not constant.
fn sines(parts: Vec<Tensor>) -> Result<Vec<Tensor>> {
    parts.iter().map(|part| part.sin()).collect()
}

fn reduced(x: &[Tensor], how: ScatterReduction) -> Result<Vec<Tensor>> {
    Ok(vec![x[0].scatter_reduce(1, &x[1], &x[2], how, true)?.sin()?])
}

const IMAGE: [(isize, isize); 2] = [(2, 1), (1, 2)];

pub(crate) const CASES: Cases = &[
    ("masked_fill", one!(|x| x[0].masked_fill(&x[1], 7.0)?.sin())),
    ("masked_select", one!(|x| x[0].masked_select(&x[1])?.sin())),
    ("nonzero", one!(|x| x[0].nonzero())),
    ("count_nonzero", one!(|x| x[0].count_nonzero(&[1], false))),
    ("scatter", one!(|x| x[0].scatter(1, &x[1], &x[2])?.sin())),
    ("scatter_add", one!(|x| x[0].scatter_add(1, &x[1], &x[2])?.sin())),
    ("scatter_add/scalar", one!(|x| x[0].scatter_add(0, &x[1], &x[2])?.sin())),
    ("scatter_reduce/sum", |x| reduced(x, ScatterReduction::Sum)),
    ("scatter_reduce/prod", |x| reduced(x, ScatterReduction::Prod)),
    ("scatter_reduce/mean", |x| reduced(x, ScatterReduction::Mean)),
    ("scatter_reduce/amax", |x| reduced(x, ScatterReduction::Amax)),
    ("scatter_reduce/amin", |x| reduced(x, ScatterReduction::Amin)),
    ("index_add", one!(|x| x[0].index_add(1, &x[1], &x[2])?.sin())),
    ("index_add/scalar", one!(|x| x[0].index_add(0, &x[1], &x[2])?.sin())),
    ("index_copy", one!(|x| x[0].index_copy(1, &x[1], &x[2])?.sin())),
    ("index_fill", one!(|x| x[0].index_fill(1, &x[1], 3.0)?.sin())),
    ("one_hot", one!(|x| x[0].one_hot(5))),
    ("tril", one!(|x| x[0].tril(1)?.sin())),
    ("triu", one!(|x| x[0].triu(-1)?.cos())),
    ("diag/vector", one!(|x| x[0].diag(1)?.sin())),
    ("diag/matrix", one!(|x| x[0].diag(-1)?.sin())),
    ("diagonal", one!(|x| x[0].diagonal(1, 0, 2)?.sin())),
    ("diag_embed", one!(|x| x[0].diag_embed(1, -2, -1)?.sin())),
    ("trace", one!(|x| x[0].sin()?.trace())),
    ("roll", one!(|x| x[0].roll(&[1, -2], &[0, 2])?.sin())),
    ("repeat", one!(|x| x[0].repeat(&[2, 1, 3])?.sin())),
    ("tile", one!(|x| x[0].tile(&[2])?.sin())),
    ("repeat_interleave", one!(|x| x[0].repeat_interleave(2, 1)?.sin())),
    ("pad/constant", one!(|x| x[0].pad(&[(0, 1), (1, 2)], PadMode::Constant(3.0.into()))?.sin())),
    ("pad/crop", one!(|x| x[0].pad(&[(1, -1), (-1, 2)], PadMode::Constant(0.0.into()))?.sin())),
    ("pad/reflect", one!(|x| x[0].pad(&IMAGE, PadMode::Reflect)?.sin())),
    ("pad/replicate", one!(|x| x[0].pad(&IMAGE, PadMode::Replicate)?.sin())),
    ("pad/circular", one!(|x| x[0].pad(&IMAGE, PadMode::Circular)?.sin())),
    ("unfold_axis", one!(|x| x[0].unfold_axis(1, 3, 2)?.sin())),
    ("rot90", one!(|x| x[0].rot90(1, [0, 1])?.sin())),
    ("unflatten", one!(|x| x[0].unflatten(1, [2, 2])?.sin())),
    ("movedim", one!(|x| x[0].movedim(&[0, 2], &[1, 0])?.sin())),
    ("split", |x| sines(x[0].split(2, 2)?)),
    ("split_with_sizes", |x| sines(x[0].split_with_sizes(&[1, 3], 1)?)),
    ("chunk", |x| sines(x[0].chunk(2, 2)?)),
    ("unbind", |x| sines(x[0].unbind(1)?)),
    ("meshgrid", |x| sines(Tensor::meshgrid(&[&x[0], &x[1]], Indexing::Ij)?)),
    ("broadcast_tensors", |x| sines(Tensor::broadcast_tensors(&[&x[0], &x[1]])?)),
    ("index", one!(|x| x[0].index((Ellipsis, Strided { start: Some(1), end: Some(4), step: 2 }))?.sin())),
    ("index/integer", one!(|x| x[0].index((-1, NewAxis, .., 2))?.sin())),
    ("index/tensors", one!(|x| x[0].index((&x[1], .., &x[2]))?.sin())),
    ("index/adjacent", one!(|x| x[0].index((&x[1], &x[2]))?.sin())),
    ("index/mask", one!(|x| x[0].index(&x[1])?.sin())),
    ("index_put", one!(|x| x[0].index_put(&[&x[1], &x[2]], &x[3], true)?.sin())),
    ("index_assign", one!(|x| x[0].index_assign((1.., .., 0), &x[1])?.sin())),
];

//! Views, movement, lists of tensors, and properties of a tensor.

use std::fmt::Write as _;

use gradus::prelude::*;
use gradus::{Indexing, PadMode, Scalar};

use super::{LONG, Row, SHORT, rows};
use crate::calls::Draw;

/// Usually a shape with the same number of elements as `dims`.
fn regrouped(d: &mut Draw, dims: &[usize]) -> Vec<usize> {
    let mut dims = dims.to_vec();
    for _ in 0..d.below(3) {
        let at = d.below(dims.len() + 1);
        if d.flag() && at + 1 < dims.len() {
            let next = dims.remove(at + 1);
            dims[at] = dims[at].wrapping_mul(next);
        } else {
            dims.insert(at, 1);
        }
    }
    if d.once_in(3) && !dims.is_empty() {
        let at = d.below(dims.len());
        dims[at] = INFER;
    }
    if d.once_in(12) { d.shape() } else { dims }
}

/// A shape that a tensor of shape `dims` broadcasts to.
fn stretched(d: &mut Draw, dims: &[usize]) -> Vec<usize> {
    let mut dims = dims.to_vec();
    for _ in 0..d.below(3) {
        let size = d.size();
        dims.insert(0, size);
    }
    let ones: Vec<usize> = (0..dims.len()).filter(|&i| dims[i] == 1).collect();
    ones.into_iter().for_each(|i| dims[i] = d.size());
    dims
}

fn pad_mode(d: &mut Draw) -> PadMode {
    match d.below(4) {
        0 => PadMode::Constant(d.scalar()),
        1 => PadMode::Constant(Scalar::Int(0)),
        2 => d.of(&[PadMode::Reflect, PadMode::Replicate]),
        _ => PadMode::Circular,
    }
}

/// A writer that discards its input.
struct Nowhere;

impl std::fmt::Write for Nowhere {
    fn write_str(&mut self, _: &str) -> std::fmt::Result {
        Ok(())
    }
}

const VIEWS: &[Row] = rows! { LONG any;
    reshape |x, d| x.reshape(regrouped(d, x.shape()));
    unflatten |x, d| x.unflatten(d.axis(x.rank()), (0..d.below(4)).map(|_| d.size()).collect::<Vec<_>>());
    movedim |x, d| x.movedim(&d.axes(x.rank()), &d.axes(x.rank()));
    flatten |x, d| x.flatten(d.axis(x.rank()), d.axis(x.rank()));
    permute |x, d| x.permute(&d.order(x.rank()));
    transpose |x, d| x.transpose(d.axis(x.rank()), d.axis(x.rank()));
    t |x, _d| x.t();
    expand |x, d| x.expand(stretched(d, x.shape()));
    flip |x, d| x.flip(d.axis(x.rank()));
    squeeze |x, d| x.squeeze(d.axis(x.rank()));
    unsqueeze |x, d| x.unsqueeze(d.axis(x.rank() + 1));
    diagonal |x, d| x.diagonal(d.offset(), d.axis(x.rank()), d.axis(x.rank()));
    diag_embed |x, d| x.diag_embed(d.offset(), d.axis(x.rank() + 1), d.axis(x.rank() + 1));
    diag |x, d| x.diag(d.offset());
    rot90 |x, d| x.rot90(d.offset(), [d.axis(x.rank()), d.axis(x.rank())]);
    slice |x, d| x.slice(d.axis(x.rank()), d.size(), d.size(), d.size());
    narrow |x, d| x.narrow(d.axis(x.rank()), d.size(), d.size());
    select |x, d| x.select(d.axis(x.rank()), d.offset());
    unfold_axis |x, d| x.unfold_axis(d.axis(x.rank()), d.size(), d.size());
    split |x, d| x.split(d.size(), d.axis(x.rank()));
    split_with_sizes |x, d| x.split_with_sizes(&(0..d.below(4)).map(|_| d.size()).collect::<Vec<_>>(), d.axis(x.rank()));
    chunk |x, d| x.chunk(d.size(), d.axis(x.rank()));
    unbind |x, d| x.unbind(d.axis(x.rank()));
    size |x, d| x.size(d.axis(x.rank()));
    detach |x, _d| Ok::<_, Error>(x.detach());
    with_grad |x, _d| x.with_grad();
    itself::facts |x, _d| Ok::<_, Error>(x.is_contiguous() && x.is_leaf() && x.requires_grad() && x.grad_fn().is_none());
};

const MOVED: &[Row] = rows! { LONG any;
    contiguous |x, _d| x.contiguous();
    copy |x, _d| x.copy();
    to_device |x, d| x.to_device(&d.device);
    tril |x, d| x.tril(d.offset());
    triu |x, d| x.triu(d.offset());
    repeat |x, d| x.repeat(&(0..x.rank() + d.below(2)).map(|_| d.size()).collect::<Vec<_>>());
    tile |x, d| x.tile(&(0..d.below(5)).map(|_| d.size()).collect::<Vec<_>>());
    repeat_interleave |x, d| x.repeat_interleave(d.size(), d.axis(x.rank()));
    roll |x, d| x.roll(&[d.offset(), d.offset()][..1 + d.below(2)], &d.axes(x.rank()));
    pad |x, d| x.pad(&(0..d.below(x.rank() + 2)).map(|_| (d.offset(), d.offset())).collect::<Vec<_>>(), pad_mode(d));
    to_vec |x, d| if d.flag() { x.to_vec::<f32>().map(|_| ()) } else { x.to_vec::<bool>().map(|_| ()) };
    to_bytes |x, _d| x.to_bytes();
    to_scalar |x, _d| x.to_scalar::<f64>();
    item |x, _d| x.item();
    Display::fmt |x, d| {
        if d.flag() { write!(Nowhere, "{x}").is_ok() } else { write!(Nowhere, "{x:?}").is_ok() };
        Ok::<_, Error>(())
    };
};

const LISTS: &[Row] = rows! { LONG several;
    cat |x, d| Tensor::cat(&x.iter().collect::<Vec<_>>(), d.axis(x.first().map_or(0, Tensor::rank)));
    stack |x, d| Tensor::stack(&x.iter().collect::<Vec<_>>(), d.axis(x.first().map_or(0, Tensor::rank) + 1));
    broadcast_tensors |x, _d| Tensor::broadcast_tensors(&x.iter().collect::<Vec<_>>());
};

const GRIDS: &[Row] = rows! { SHORT several;
    meshgrid |x, d| {
        let how = d.of(&[Indexing::Ij, Indexing::Xy]);
        let x = if d.once_in(4) { x } else { x.iter().map(|t| t.reshape([INFER])).collect::<Result<_>>()? };
        Tensor::meshgrid(&x.iter().collect::<Vec<_>>(), how)
    };
};

pub(super) const ROWS: &[&[Row]] = &[VIEWS, MOVED, LISTS, GRIDS];

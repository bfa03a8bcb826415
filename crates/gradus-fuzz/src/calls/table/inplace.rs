//! Methods that write in place, half of the time inside `no_grad`.

use gradus::UpdateFn;
use gradus::prelude::*;

use super::index::{along, at, few, index_like, items, tuple};
use super::{LONG, Row, rows};
use crate::calls::Draw;

static AVERAGE: UpdateFn = UpdateFn::new("average", |x| vec![x[0] + x[2] * (x[1] - x[0])]);
static BOTH: UpdateFn = UpdateFn::new("both", |x| vec![x[0] + x[1], x[2] - x[0]]);

/// Calls a method that writes in place, and returns the tensor that was written.
fn write(d: &mut Draw, x: &Tensor, f: impl FnOnce(&mut Draw, &Tensor) -> Result<()>) -> Result<Tensor> {
    let guard = d.flag().then(gradus::no_grad_guard);
    // Usually a tensor that can be written to.
    let x = if d.once_in(4) { x.clone() } else { x.detach() };
    let x = if d.once_in(4) || x.numel() > 1 << 20 { x } else { x.copy()? };
    f(d, &x)?;
    drop(guard);
    Ok(x)
}

const PLAIN: &[Row] = rows! { LONG any;
    copy_ |x, d| write(d, &x, |d, x| x.copy_(&d.like(x)?));
    prepare_write |x, d| write(d, &x, |_, x| x.prepare_write("prepare_write"));
    fill_ |x, d| write(d, &x, |d, x| x.fill_(d.scalar()));
    zero_ |x, d| write(d, &x, |_, x| x.zero_());
    add_ |x, d| write(d, &x, |d, x| if d.flag() { x.add_(d.scalar()) } else { x.add_(&d.like(x)?) });
    sub_ |x, d| write(d, &x, |d, x| x.sub_(&d.like(x)?));
    mul_ |x, d| write(d, &x, |d, x| x.mul_(&d.like(x)?));
    div_ |x, d| write(d, &x, |d, x| x.div_(&d.like(x)?));
    clamp_ |x, d| write(d, &x, |d, x| x.clamp_(d.scalar(), d.scalar()));
    masked_fill_ |x, d| write(d, &x, |d, x| x.masked_fill_(&d.mask(x)?, d.scalar()));
    UpdateFn::apply |x, d| write(d, &x, |d, x| {
        let (g, m) = (d.like(x)?, d.maybe(|d| d.like(x))?);
        let m = m.as_ref().unwrap_or(x);
        if d.flag() { AVERAGE.apply(&[x], &[x, &g], &[d.fraction()]) } else { BOTH.apply(&[x, m], &[m, x, &g], &[]) }
    });
};

const INDEXED: &[Row] = rows! { LONG any;
    index_assign_ |x, d| write(d, &x, |d, x| {
        let held = tuple(d, x)?;
        let items = items(d, x, &held);
        if d.flag() { x.index_assign_(items, d.scalar()) } else { x.index_assign_(items, &d.like(x)?) }
    });
    index_put_ |x, d| write(d, &x, |d, x| {
        let indices = tuple(d, x)?;
        x.index_put_(&indices.iter().collect::<Vec<_>>(), &d.like(x)?, d.flag())
    });
    scatter_ |x, d| write(d, &x, |d, x| {
        let (axis, n) = (d.axis(x.rank()), d.below(4));
        let index = index_like(d, x, axis, n)?;
        if d.flag() { x.scatter_(axis, &index, d.scalar()) } else { x.scatter_(axis, &index, &d.sized(index.shape(), x.dtype())?) }
    });
    scatter_add_ |x, d| write(d, &x, |d, x| {
        let (axis, n) = (d.axis(x.rank()), d.below(4));
        let index = index_like(d, x, axis, n)?;
        x.scatter_add_(axis, &index, &d.sized(index.shape(), x.dtype())?)
    });
    index_add_ |x, d| write(d, &x, |d, x| {
        let axis = d.axis(x.rank());
        let index = few(d, along(x, axis))?;
        x.index_add_(axis, &index, &d.like_but(x, &[(at(x, axis), index.numel())])?)
    });
    index_copy_ |x, d| write(d, &x, |d, x| {
        let axis = d.axis(x.rank());
        let index = few(d, along(x, axis))?;
        x.index_copy_(axis, &index, &d.like_but(x, &[(at(x, axis), index.numel())])?)
    });
    index_fill_ |x, d| write(d, &x, |d, x| {
        let axis = d.axis(x.rank());
        x.index_fill_(axis, &few(d, along(x, axis))?, d.scalar())
    });
};

pub(super) const ROWS: &[&[Row]] = &[PLAIN, INDEXED];

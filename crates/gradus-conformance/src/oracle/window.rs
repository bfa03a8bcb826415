//! Unfold and fold: windows as columns, and their adjoint.

use gradus_backend::host::{converted, wide};
use gradus_backend::{Layout, MAX_RANK, Result, Scalar, Shape, View, ViewMut, Window, check};

use super::OracleBackend;
use super::sum::Sum;

/// For every index `[n, c, kernel.., positions..]` of `columns`, the offset of its element in `image [n, c,
/// spatial..]`, or `None` in the padding.
fn places(window: &Window, columns: &Shape, image: &Shape) -> Vec<Option<usize>> {
    let all = Layout::contiguous(*image);
    let place = |index: [usize; MAX_RANK]| {
        let mut at = index[..2].to_vec();
        for i in 0..window.rank {
            at.push(window.element(i, index[2 + window.rank + i], index[2 + i], image[2 + i])?);
        }
        Some(all.position(&at))
    };
    columns.indices().map(place).collect()
}

pub(super) fn unfold(
    o: &OracleBackend,
    window: &Window,
    x: View<'_>,
    pad: Scalar,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "unfold";
    check::unfold(window, x, pad, out)?;
    let places = places(window, out.layout.shape(), x.layout.shape());
    let pad = converted(pad, x.dtype);
    let values = o.memory.read(OP, x)?;
    let results: Vec<_> = places.iter().map(|p| p.map_or(pad, |p| values[p])).collect();
    o.memory.write(OP, out, &results)
}

pub(super) fn fold(o: &OracleBackend, window: &Window, x: View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
    const OP: &str = "fold";
    check::fold(window, x, out)?;
    let places = places(window, x.layout.shape(), out.layout.shape());
    let values = o.memory.read(OP, x)?;
    let landed = || places.iter().zip(&values).filter_map(|(p, v)| Some(((*p)?, *v)));
    let results: Vec<_> = if x.dtype.is_float() {
        let mut sums = vec![Sum::new(o.precision, x.dtype); out.layout.numel()];
        landed().for_each(|(p, v)| sums[p].add(v.to_f64()));
        sums.into_iter().map(|s| Scalar::Float(s.value())).collect()
    } else {
        let mut sums = vec![0i128; out.layout.numel()];
        landed().for_each(|(p, v)| sums[p] = sums[p].wrapping_add(wide(v, x.dtype)));
        sums.into_iter().map(|s| Scalar::Int(s as i64)).collect()
    };
    o.memory.write(OP, out, &results)
}

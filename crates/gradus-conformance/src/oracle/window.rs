//! Unfold and fold: windows as columns, and their adjoint.

use gradus_backend::{DType, Error, Layout, Result, Scalar, Shape, View, ViewMut, Window};

use super::access::{indices, same};
use super::sum::Sum;
use super::value::converted;
use super::{OracleBackend, wide};

/// For every index `[n, c, kernel.., positions..]`, the place of its element in `[n, c, spatial..]`, or `None` in the
/// padding.
struct Columns {
    shape: Shape,
    places: Vec<Option<usize>>,
}

fn columns(op: &str, window: &Window, spatial: &[usize]) -> Result<Columns> {
    let rank = window.rank;
    let (Some(&[n, c]), Some(sizes)) = (spatial.first_chunk::<2>(), spatial.get(2..)) else {
        return Err(Error::shape(op, "an input has axes [n, c, spatial..]"));
    };
    let positions = window.output(op, sizes)?;
    let shape = Shape::new(&[&[n, c], &window.kernel[..rank], &positions[..rank]].concat())?;
    let image = Layout::contiguous(Shape::new(spatial)?);
    let place = |index: Vec<usize>| {
        let mut at = index[..2].to_vec();
        for i in 0..rank {
            at.push(window.element(i, index[2 + rank + i], index[2 + i], sizes[i])?);
        }
        Some(image.position(&at))
    };
    Ok(Columns { shape, places: indices(shape).map(place).collect() })
}

pub(super) fn unfold(
    o: &OracleBackend,
    window: &Window,
    x: View<'_>,
    pad: Scalar,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "unfold";
    let columns = columns(OP, window, x.layout.dims())?;
    same(OP, "out", &out.as_view(), x.dtype, &columns.shape)?;
    pad.check(x.dtype).map_err(|e| Error::argument(OP, e.message()))?;
    let pad = converted(pad, x.dtype);
    let values = o.read(OP, "x", x)?;
    let results: Vec<_> = columns.places.iter().map(|p| p.map_or(pad, |p| values[p])).collect();
    o.write(OP, "out", out, &results)
}

pub(super) fn fold(o: &OracleBackend, window: &Window, x: View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
    const OP: &str = "fold";
    if x.dtype == DType::Bool {
        return Err(Error::dtype(OP, x.dtype, "numbers"));
    }
    let columns = columns(OP, window, out.layout.dims())?;
    same(OP, "x", &x, x.dtype, &columns.shape)?;
    same(OP, "out", &out.as_view(), x.dtype, out.layout.dims())?;
    let values = o.read(OP, "x", x)?;
    let landed = || columns.places.iter().zip(&values).filter_map(|(p, v)| Some(((*p)?, *v)));
    let results: Vec<_> = if x.dtype.is_float() {
        let mut sums = vec![Sum::new(o.precision, x.dtype); out.layout.numel()];
        landed().for_each(|(p, v)| sums[p].add(v.to_f64()));
        sums.into_iter().map(|s| Scalar::Float(s.value())).collect()
    } else {
        let mut sums = vec![0i128; out.layout.numel()];
        landed().for_each(|(p, v)| sums[p] = sums[p].wrapping_add(wide(v, x.dtype)));
        sums.into_iter().map(|s| Scalar::Int(s as i64)).collect()
    };
    o.write(OP, "out", out, &results)
}

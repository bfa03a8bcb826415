//! Looks up the rows of a table by index, `out[i] = weight[index[i]]`, and computes the gradient
//! `dw[index[i]] += g[i]`.

use super::{Relaid, expect, expect_index, expect_rank, read_as, write_as};
use crate::{Backend, Error, ErrorKind, Result, Scalar, ScatterOp, Shape, View, ViewMut};

/// Checks the operands; returns the shape of the selected rows, flattened to `[number of rows, row size]`.
fn shapes<B: Backend + ?Sized>(
    b: &B,
    op: &'static str,
    (name, weight): (&str, View<'_>),
    index: View<'_>,
    (rows_name, rows): (&str, View<'_>),
) -> Result<Shape> {
    expect_index(op, index)?;
    expect_rank(b, op, name, weight, 2, "[v, d]")?;
    let d = weight.layout.dims()[1];
    expect(b, op, rows_name, rows, weight.dtype, &[index.layout.dims(), &[d]].concat())?;
    Shape::new(&[index.layout.numel(), d])
}

/// `index` repeated for each element of a row, in the shape of the flattened rows.
fn each_element<'a>(index: View<'a>, flat: &Shape) -> Result<Relaid<'a>> {
    Ok(Relaid { x: index, layout: index.layout.unsqueeze(1)?.expand(*flat)? })
}

/// Turns a gather or scatter error about an element into one about its row.
fn about_rows(op: &'static str, d: usize, e: Error) -> Error {
    match *e.kind() {
        ErrorKind::IndexOutOfBounds { pos, index, size } => {
            let pos = pos / d.max(1);
            let m = format!("index {index} at position {pos} is outside a table of {size} rows");
            Error::new(ErrorKind::IndexOutOfBounds { pos, index, size }, op, m)
        }
        _ => e,
    }
}

/// See [`Backend::embedding`].
pub fn forward<B: Backend + ?Sized>(b: &B, weight: View<'_>, index: View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
    const OP: &str = "embedding";
    let flat = shapes(b, OP, ("weight", weight), index, ("out", out.as_view()))?;
    if flat.numel() == 0 {
        return Ok(());
    }
    let index = read_as(b, index, index.dtype, Shape::new(&flat[..1])?)?;
    let index = each_element(index.view(), &flat)?;
    write_as(b, out, weight.dtype, flat, |out| b.gather(weight, 0, index.view(), out))
        .map_err(|e| about_rows(OP, flat[1], e))
}

/// See [`Backend::embedding_backward`].
pub fn backward<B: Backend + ?Sized>(
    b: &B,
    index: View<'_>,
    g: View<'_>,
    padding_index: Option<usize>,
    dw: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "embedding_backward";
    let flat = shapes(b, OP, ("dw", dw.as_view()), index, ("g", g))?;
    let rows = dw.layout.dims()[0];
    if let Some(p) = padding_index.filter(|&p| p >= rows) {
        return Err(Error::argument(OP, format!("padding index {p} is outside a table of {rows} rows")));
    }
    b.fill(dw, Scalar::Int(0))?;
    if flat.numel() == 0 {
        return Ok(());
    }
    let index = read_as(b, index, index.dtype, Shape::new(&flat[..1])?)?;
    let index = each_element(index.view(), &flat)?;
    let g = read_as(b, g, g.dtype, flat)?;
    b.scatter(ScatterOp::Add, 0, index.view(), g.view(), dw).map_err(|e| about_rows(OP, flat[1], e))?;
    match padding_index {
        Some(p) => b.fill(&mut dw.with(&dw.layout.narrow(0, p, 1)?), Scalar::Int(0)),
        None => Ok(()),
    }
}

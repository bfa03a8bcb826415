//! Scaled dot-product attention and its gradient, with the full score matrix in memory.
//!
//! With `s = scale * q k^T + mask`, and along the keys `shift = max s`, `sum = sum e^(s - shift)` and
//! `p = e^(s - shift) / sum`, and `g` the gradient of `out`:
//! * `out = p v`
//! * `dv = p^T g`, `ds = p * (g v^T - sum(p * g v^T))`, `dq = scale * ds k`, `dk = scale * ds^T q`.
//!
//! Query heads that share a key head are stacked: `[b, hk, h/hk * lq, d]` is multiplied by `[b, hk, lk, d]`. In a row
//! without any visible keys, `shift` is -inf, and `sum` and `p` are 0.

use super::{
    Relaid, Source, Temp, expect, expect_float, expect_parameter, expect_rank, read_as, reduced, run, stretched,
    write_as,
};
use crate::{
    AttentionParams, Axes, Backend, DType, Element, Error, ErrorKind, HostVec, MapArg, ReduceOp, Result, Scalar, Shape,
    View, ViewMut,
};

const LK: usize = 3;

/// The sizes of the operands of attention, checked against each other.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// Batch size.
    pub b: usize,
    /// Number of query heads.
    pub h: usize,
    /// Number of key heads.
    pub hk: usize,
    /// Number of queries.
    pub lq: usize,
    /// Number of keys.
    pub lk: usize,
    /// Size of a query and of a key.
    pub d: usize,
    /// Size of a value.
    pub dv: usize,
    /// The dtype of all intermediate results.
    compute: DType,
}

impl Sizes {
    /// Checks the operands of [`Backend::attention`] and returns their sizes.
    pub fn new<B: Backend + ?Sized>(
        b: &B,
        op: &'static str,
        params: &AttentionParams,
        [q, k, v, out, stats]: [View<'_>; 5],
        mask: Option<View<'_>>,
    ) -> Result<Self> {
        expect_parameter(op, "scale", params.scale, params.scale.is_finite(), "finite")?;
        expect_float(op, q)?;
        expect_rank(b, op, "q", q, 4, "[b, h, lq, d]")?;
        expect_rank(b, op, "k", k, 4, "[b, hk, lk, d]")?;
        expect_rank(b, op, "v", v, 4, "[b, hk, lk, dv]")?;
        let [dq, dk, dv] = [q, k, v].map(|v| *v.layout.shape());
        let s = Sizes {
            b: dq[0],
            h: dq[1],
            hk: dk[1],
            lq: dq[2],
            lk: dk[2],
            d: dq[3],
            dv: dv[3],
            compute: q.dtype.compute(),
        };
        if !s.h.is_multiple_of(s.hk) {
            let m = format!("{} query heads are no multiple of {} key heads", s.h, s.hk);
            return Err(Error::shape(op, m).operand("q", &dq, q.dtype, b.name()).operand("k", &dk, k.dtype, b.name()));
        }
        expect(b, op, "k", k, q.dtype, &[s.b, s.hk, s.lk, s.d])?;
        expect(b, op, "v", v, q.dtype, &[s.b, s.hk, s.lk, s.dv])?;
        expect(b, op, "out", out, q.dtype, &[s.b, s.h, s.lq, s.dv])?;
        expect(b, op, "stats", stats, s.compute, &[s.b, s.h, s.lq, 2])?;
        if let Some(mask) = mask {
            if mask.dtype != DType::Bool && !mask.dtype.is_float() {
                let m = "a mask is bool, or a float that is added".to_owned();
                let dims = mask.layout.dims();
                return Err(Error::new(ErrorKind::DTypeMismatch, op, m).operand("mask", dims, mask.dtype, b.name()));
            }
            mask.layout.expand(s.scores()?)?;
        }
        Ok(s)
    }

    /// Checks the operands of [`Backend::attention_backward`] and returns their sizes.
    pub fn of_gradients<B: Backend + ?Sized>(
        b: &B,
        op: &'static str,
        params: &AttentionParams,
        [q, k, v, out, stats]: [View<'_>; 5],
        mask: Option<View<'_>>,
        [g, dq, dk, dv]: [View<'_>; 4],
    ) -> Result<Self> {
        let s = Sizes::new(b, op, params, [q, k, v, out, stats], mask)?;
        expect(b, op, "g", g, q.dtype, out.layout.dims())?;
        expect(b, op, "dq", dq, q.dtype, q.layout.dims())?;
        expect(b, op, "dk", dk, q.dtype, k.layout.dims())?;
        expect(b, op, "dv", dv, q.dtype, v.layout.dims())?;
        Ok(s)
    }

    /// The shape `[b, h, lq, lk]`.
    pub fn scores(&self) -> Result<Shape> {
        Shape::new(&[self.b, self.h, self.lq, self.lk])
    }

    /// The shape of all queries whose heads share a key head, stacked: `[b, hk, h/hk * lq, last]`.
    fn stacked(&self, last: usize) -> Result<Shape> {
        Shape::new(&[self.b, self.hk, self.h.checked_div(self.hk).unwrap_or(0) * self.lq, last])
    }

    /// A query tensor, stacked and widened.
    fn queries<'a, B: Backend + ?Sized>(&self, b: &B, x: View<'a>) -> Result<Source<'a>> {
        read_as(b, x, self.compute, self.stacked(x.layout.dims()[3])?)
    }

    /// `scale * q k^T + mask`, with masked scores set to -inf.
    fn masked_scores<B: Backend + ?Sized>(
        &self,
        b: &B,
        params: &AttentionParams,
        q: View<'_>,
        k: View<'_>,
        mask: Option<View<'_>>,
    ) -> Result<Temp> {
        let mut scores = Temp::new(b, self.compute, self.stacked(self.lk)?)?;
        b.gemm(Scalar::Float(params.scale), q, transposed(k)?.view(), Scalar::Int(0), &mut scores.view_mut())?;
        let shape = self.scores()?;
        let mut scores = Temp { layout: crate::Layout::contiguous(shape), ..scores };
        let mut apply = |mask: View<'_>| {
            let mask = stretched(mask, &shape)?;
            let mask = mask.view();
            let args = [MapArg::Output(0), MapArg::View(mask)];
            let outs = &mut [scores.view_mut()];
            if mask.dtype == DType::Bool {
                run(b, "keep_scores", &args, outs, |v| vec![v[1].select(v[0], f64::NEG_INFINITY)])
            } else {
                run(b, "add_to_scores", &args, outs, |v| vec![v[0] + v[1].cast(v[0].dtype())])
            }
        };
        if let Some(mask) = mask {
            apply(mask)?;
        }
        if params.causal {
            // Query i sees the keys j <= i + lk - lq: the mask is aligned to the bottom right corner.
            let shape = Shape::new(&[self.lq, self.lk])?;
            let sees = |at: usize| at % self.lk + self.lq <= at / self.lk + self.lk;
            let table = HostVec::collect(b, "attention", (0..shape.numel()).map(sees))?;
            let mut keep = Temp::new(b, DType::Bool, shape)?;
            b.upload(&mut keep.buffer, 0, bool::as_bytes(&table))?;
            apply(keep.view())?;
        }
        Ok(scores)
    }
}

/// Swaps the last two axes.
fn transposed(x: View<'_>) -> Result<Relaid<'_>> {
    Ok(Relaid { x, layout: x.layout.transpose(-1, -2)? })
}

/// See [`Backend::attention`].
pub fn forward<B: Backend + ?Sized>(
    b: &B,
    params: &AttentionParams,
    q: View<'_>,
    k: View<'_>,
    v: View<'_>,
    mask: Option<View<'_>>,
    out: &mut ViewMut<'_>,
    stats: &mut ViewMut<'_>,
) -> Result<()> {
    let s = Sizes::new(b, "attention", params, [q, k, v, out.as_view(), stats.as_view()], mask)?;
    if stats.layout.numel() == 0 {
        return Ok(());
    }
    let [shifts, sums] = [stats.layout.narrow(3, 0, 1)?, stats.layout.narrow(3, 1, 1)?];
    if s.lk == 0 {
        b.fill(out, Scalar::Float(0.0))?;
        b.fill(&mut stats.with(&sums), Scalar::Float(0.0))?;
        return b.fill(&mut stats.with(&shifts), Scalar::Float(f64::NEG_INFINITY));
    }
    let [q, k, v] = [s.queries(b, q)?, super::widened(b, k)?, super::widened(b, v)?];
    let mut p = s.masked_scores(b, params, q.view(), k.view(), mask)?;
    let shape = s.scores()?;

    let largest = reduced(b, ReduceOp::Max, p.view(), Axes::one(LK))?;
    let shift = stretched(largest.view(), &shape)?;
    let args = [MapArg::Output(0), MapArg::View(shift.view())];
    run(b, "exp_scores", &args, &mut [p.view_mut()], |v| {
        let shift = v[1].eq(f64::NEG_INFINITY).select(0.0, v[1]);
        vec![(v[0] - shift).exp()]
    })?;
    let sum = reduced(b, ReduceOp::Sum, p.view(), Axes::one(LK))?;
    let total = stretched(sum.view(), &shape)?;
    let args = [MapArg::Output(0), MapArg::View(total.view())];
    run(b, "attention_weights", &args, &mut [p.view_mut()], |v| vec![v[1].eq(0.0).select(0.0, v[0] / v[1])])?;
    b.copy_strided(largest.view(), &mut stats.with(&shifts))?;
    b.copy_strided(sum.view(), &mut stats.with(&sums))?;
    let p = p.shaped(s.stacked(s.lk)?);
    write_as(b, out, s.compute, s.stacked(s.dv)?, |out| b.gemm(Scalar::Int(1), p.view(), v.view(), Scalar::Int(0), out))
}

/// See [`Backend::attention_backward`].
pub fn backward<B: Backend + ?Sized>(
    b: &B,
    params: &AttentionParams,
    q: View<'_>,
    k: View<'_>,
    v: View<'_>,
    mask: Option<View<'_>>,
    out: View<'_>,
    stats: View<'_>,
    g: View<'_>,
    dq: &mut ViewMut<'_>,
    dk: &mut ViewMut<'_>,
    dv: &mut ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "attention_backward";
    let gradients = [g, dq.as_view(), dk.as_view(), dv.as_view()];
    let s = Sizes::of_gradients(b, OP, params, [q, k, v, out, stats], mask, gradients)?;
    let shape = s.scores()?;
    if shape.numel() == 0 {
        b.fill(dq, Scalar::Float(0.0))?;
        b.fill(dk, Scalar::Float(0.0))?;
        return b.fill(dv, Scalar::Float(0.0));
    }
    let [q, k, v] = [s.queries(b, q)?, super::widened(b, k)?, super::widened(b, v)?];
    let g = s.queries(b, g)?;
    let mut p = s.masked_scores(b, params, q.view(), k.view(), mask)?;
    let [shift, sum] = [stats.layout.narrow(3, 0, 1)?, stats.layout.narrow(3, 1, 1)?];
    let [shift, sum] = [stretched(stats.with(&shift), &shape)?, stretched(stats.with(&sum), &shape)?];
    let args = [MapArg::Output(0), MapArg::View(shift.view()), MapArg::View(sum.view())];
    run(b, "attention_weights_again", &args, &mut [p.view_mut()], |v| {
        vec![v[2].eq(0.0).select(0.0, (v[0] - v[1]).exp() / v[2])]
    })?;

    let one = Scalar::Int(1);
    let none = Scalar::Int(0);
    let kv = |last| Shape::new(&[s.b, s.hk, s.lk, last]);
    let stacked = s.stacked(s.lk)?;
    write_as(b, dv, s.compute, kv(s.dv)?, |dv| {
        b.gemm(one, transposed(p.shaped(stacked).view())?.view(), g.view(), none, dv)
    })?;

    let mut dp = Temp::new(b, s.compute, stacked)?;
    b.gemm(one, g.view(), transposed(v.view())?.view(), none, &mut dp.view_mut())?;
    let mut weighted = Temp::new(b, s.compute, shape)?;
    let dp = dp.shaped(shape);
    let args = [MapArg::View(p.view()), MapArg::View(dp.view())];
    run(b, "product", &args, &mut [weighted.view_mut()], |v| vec![v[0] * v[1]])?;
    let delta = reduced(b, ReduceOp::Sum, weighted.view(), Axes::one(LK))?;
    let mut ds = weighted;
    let delta = stretched(delta.view(), &shape)?;
    let args = [args[0], args[1], MapArg::View(delta.view())];
    run(b, "gradient_of_scores", &args, &mut [ds.view_mut()], |v| vec![v[0] * (v[1] - v[2])])?;

    let ds = ds.shaped(stacked);
    let scale = Scalar::Float(params.scale);
    write_as(b, dq, s.compute, s.stacked(s.d)?, |dq| b.gemm(scale, ds.view(), k.view(), none, dq))?;
    write_as(b, dk, s.compute, kv(s.d)?, |dk| b.gemm(scale, transposed(ds.view())?.view(), q.view(), none, dk))
}

//! Entries that draw random numbers. The two libraries draw different numbers, so only shapes, dtypes and refusals are
//! compared.

use gradus::prelude::*;

use crate::sample::{KW, Rows, Sample, rows};

pub(crate) const ROWS: Rows = rows! {
    "randn", |s| Tensor::randn(s.sizes(0, "size")?, dtype(s, DType::F32)?, s.device, &mut Generator::new(0))?;
    "randn_like", |s| drawn_like(s, Tensor::randn)?;
    "rand_like", |s| drawn_like(s, Tensor::rand)?;
    "randint", |s| {
        let (lo, hi, at) = if s.int(1, "", 0).is_ok() { (s.int(0, "low", 0)?, s.int(1, "high", 0)?, 2) } else { (0, s.int(0, "high", 0)?, 1) };
        let dims = s.ints(at, "size")?.unwrap_or_default().into_iter().map(|d| d as usize).collect::<Vec<_>>();
        Tensor::randint(lo as i64, hi as i64, dims, dtype(s, DType::I64)?, s.device, &mut Generator::new(0))?
    };
    "randint_like", |s| {
        let (first, x) = (s.int(1, "", 0)?, s.x()?);
        let (lo, hi) = s.value(2, "").map_or(Ok((0, first)), |_| s.int(2, "", 0).map(|hi| (first, hi)))?;
        Tensor::randint(lo as i64, hi as i64, x.shape(), dtype(s, x.dtype())?, s.device, &mut Generator::new(0))?
    };
    "multinomial", |s| s.x()?.multinomial(s.size(1, "num_samples", 0)?, s.flag(2, "replacement", false)?, &mut Generator::new(0))?;
    "bernoulli", |s| s.x()?.bernoulli_like(&mut Generator::new(0))?;
    "exponential", |s| {
        Tensor::exponential(s.num(1, "lambd", 1.0)?, s.x()?.shape(), s.x()?.dtype(), s.device, &mut Generator::new(0))?
    };
    "uniform", |s| {
        let (x, lo, hi) = (s.x()?, s.num(1, "from", 0.0)?, s.num(2, "to", 1.0)?);
        Tensor::uniform(lo, hi, x.shape(), x.dtype(), s.device, &mut Generator::new(0))?
    };
    "normal/in_place", |s| {
        let (x, mean, std) = (s.x()?, s.num(1, "mean", 0.0)?, s.num(2, "std", 1.0)?);
        Tensor::normal(mean, std, x.shape(), x.dtype(), s.device, &mut Generator::new(0))?
    };
    "nn.functional.dropout", |s| {
        let p = s.num(KW, "p", 0.5)?;
        if s.flag(KW, "training", true)? { s.x()?.dropout(p, &mut Generator::new(0))? } else { s.x()?.clone() }
    };
};

type Draw = fn(Vec<usize>, DType, &Device, &mut Generator) -> Result<Tensor>;

fn drawn_like(s: &Sample<'_>, draw: Draw) -> Result<Tensor> {
    let x = s.x()?;
    draw(x.shape().to_vec(), dtype(s, x.dtype())?, s.device, &mut Generator::new(0))
}

fn dtype(s: &Sample<'_>, default: DType) -> Result<DType> {
    for name in ["device", "requires_grad"] {
        s.value(KW, name);
    }
    Ok(s.dtype(KW, "dtype")?.unwrap_or(default))
}

//! Random tensors. Each function draws from an explicit [`Generator`], which advances by the number of words drawn, or
//! not at all if the function fails.

use gradus_backend::{DType, Distribution, Error, Here, HostVec, Result, Shape};

use crate::{Device, Generator, Tensor};

impl Tensor {
    /// Random floats, uniform in `[lo, hi)`.
    ///
    /// ```
    /// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
    /// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    /// let mut generator = Generator::new(7);
    /// let x = Tensor::uniform(-1.0, 1.0, [2, 3], DType::F32, &device, &mut generator)?;
    /// assert!(x.to_vec::<f32>()?.iter().all(|v| (-1.0..1.0).contains(v)));
    /// // Each element consumes one word of the stream.
    /// assert_eq!(generator.offset(), 6);
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn uniform(
        lo: f64,
        hi: f64,
        shape: impl AsRef<[usize]>,
        dtype: DType,
        device: &Device,
        generator: &mut Generator,
    ) -> Result<Tensor> {
        Tensor::random(Distribution::Uniform { lo, hi }, shape, dtype, device, generator)
    }

    /// Random floats from the normal distribution with this mean and standard deviation.
    #[track_caller]
    pub fn normal(
        mean: f64,
        std: f64,
        shape: impl AsRef<[usize]>,
        dtype: DType,
        device: &Device,
        generator: &mut Generator,
    ) -> Result<Tensor> {
        Tensor::random(Distribution::Normal { mean, std }, shape, dtype, device, generator)
    }

    /// Random elements that are 1 (or true) with probability `p` and 0 (or false) otherwise.
    #[track_caller]
    pub fn bernoulli(
        p: f64,
        shape: impl AsRef<[usize]>,
        dtype: DType,
        device: &Device,
        generator: &mut Generator,
    ) -> Result<Tensor> {
        Tensor::random(Distribution::Bernoulli { p }, shape, dtype, device, generator)
    }

    /// Random floats from the exponential distribution with density `rate e^(-rate x)`.
    #[track_caller]
    pub fn exponential(
        rate: f64,
        shape: impl AsRef<[usize]>,
        dtype: DType,
        device: &Device,
        generator: &mut Generator,
    ) -> Result<Tensor> {
        if !(rate > 0.0 && rate.is_finite()) {
            return Err(Error::argument("exponential", format!("rate is {rate}; it is positive and finite")));
        }
        // The uniform numbers are drawn in a wider dtype, since in half precision they are too coarse at the ends of
        // the range.
        let (unit, mut moved) = (Distribution::Uniform { lo: 0.0, hi: 1.0 }, generator.clone());
        let u = Tensor::random(unit, shape, dtype.compute(), device, &mut moved)?;
        let y = u.neg()?.log1p()?.div(-rate)?.to_dtype(dtype)?;
        *generator = moved;
        Ok(y)
    }

    /// Random floats, uniform in `[0, 1)`, with the shape, dtype and device of this tensor.
    #[track_caller]
    pub fn rand_like(&self, generator: &mut Generator) -> Result<Tensor> {
        Tensor::rand(self.shape(), self.dtype(), self.device(), generator)
    }

    /// Random floats from the normal distribution with mean 0 and standard deviation 1, with the shape, dtype and
    /// device of this tensor.
    #[track_caller]
    pub fn randn_like(&self, generator: &mut Generator) -> Result<Tensor> {
        Tensor::randn(self.shape(), self.dtype(), self.device(), generator)
    }

    /// Draws 1 or 0 for each element, with that element as the probability of 1. The result has the same dtype and no
    /// gradient. Fails unless the elements are floats from 0 to 1.
    #[track_caller]
    pub fn bernoulli_like(&self, generator: &mut Generator) -> Result<Tensor> {
        if !self.dtype().is_float() {
            return Err(self.describe(Error::dtype("bernoulli_like", self.dtype(), "float probabilities"), "self"));
        }
        let p = self.detach();
        let legal = p.ge(0.0)?.logical_and(&p.le(1.0)?)?;
        if !legal.all(&every_axis(&legal), false)?.to_scalar::<bool>()? {
            let e = Error::argument("bernoulli_like", "an element is no probability: they lie between 0 and 1");
            return Err(self.describe(e, "self"));
        }
        let mut moved = generator.clone();
        let u = Tensor::rand(p.shape(), p.dtype().compute(), p.device(), &mut moved)?;
        let y = u.lt(&p.to_dtype(u.dtype())?)?.to_dtype(p.dtype())?;
        *generator = moved;
        Ok(y)
    }

    /// The numbers `0..n` in random order, as i64.
    #[track_caller]
    pub fn randperm(n: usize, device: &Device, generator: &mut Generator) -> Result<Tensor> {
        let shape = Shape::new(&[n])?;
        let mut order = HostVec::collect(device.backend(), "randperm", 0..n as i64)?;
        // The generator advances only after the tensor has been created.
        let mut moved = generator.clone();
        moved.shuffle(&mut order);
        let y = Tensor::from_vec(order, shape, device)?;
        *generator = moved;
        Ok(y)
    }

    /// Draws `n` indices (i64) with probabilities proportional to these weights. The result has shape `[n]` for weights
    /// of shape `[c]`, and `[rows, n]` for `[rows, c]`. Without `replacement`, all indices of a row differ and are in
    /// the order in which they were drawn.
    ///
    /// Weights must be finite and not negative; an index with weight 0 is never drawn. Fails if a row has no positive
    /// weight or, without replacement, fewer than `n` positive weights.
    #[track_caller]
    pub fn multinomial(&self, n: usize, replacement: bool, generator: &mut Generator) -> Result<Tensor> {
        let mut moved = generator.clone();
        let drawn = self.drawn(n, replacement, &mut moved)?;
        *generator = moved;
        Ok(drawn)
    }

    /// Draws the indices of [`multinomial`](Tensor::multinomial).
    #[track_caller]
    fn drawn(&self, n: usize, replacement: bool, generator: &mut Generator) -> Result<Tensor> {
        let fail = |m: String| Err(self.describe(Error::argument("multinomial", m), "self"));
        if !self.dtype().is_float() {
            return Err(self.describe(Error::dtype("multinomial", self.dtype(), "float weights"), "self"));
        }
        if self.rank() == 1 {
            return self.unsqueeze(0)?.drawn(n, replacement, generator)?.squeeze(0);
        }
        if self.rank() != 2 {
            return Err(self.describe(Error::shape("multinomial", "weights are [c] or [rows, c]"), "self"));
        }
        let weights = self.detach().to_dtype(DType::F64)?;
        let legal = weights.isfinite()?.logical_and(&weights.ge(0.0)?)?;
        if !legal.all(&[0, 1], false)?.to_scalar::<bool>()? {
            return fail("a weight is negative, infinite or NaN".into()).here();
        }
        let (rows, classes) = (self.shape()[0], self.shape()[1]);
        let needed = if replacement { n.min(1) } else { n };
        if rows > 0 && needed > 0 {
            let positive = if classes == 0 { 0 } else { fewest_positive(&weights)? };
            if positive < needed {
                return fail(format!("a row has {positive} positive weights; it needs at least {needed}")).here();
            }
        }
        let (u, device) = (DType::F64, self.device());
        if !replacement {
            // Gives each index an exponential arrival time whose rate is its weight: the first `n` arrivals are the
            // draw.
            let times = Tensor::exponential(1.0, [rows, classes], u, device, generator)?;
            // The times are compared by their logarithms, which do not overflow for tiny weights.
            let times = weights.gt(0.0)?.where_(&times.log()?.sub(&weights.log()?)?, f64::INFINITY)?;
            return Ok(times.topk(n, 1, false, true)?.1);
        }
        if n == 0 || rows == 0 {
            return Tensor::zeros([rows, n], DType::I64, device);
        }
        // The weights are scaled so that their sum cannot overflow.
        let edges = weights.div(&weights.max(&[1], true)?)?.cumsum(1)?;
        let total = edges.narrow(1, classes - 1, 1)?;
        let drawn = edges.searchsorted(&Tensor::rand([rows, n], u, device, generator)?.mul(&total)?, true)?;
        // A product that rounds up to the total selects the last positive weight, where the running sum first reached
        // the total.
        drawn.minimum(&edges.searchsorted(&total, false)?)
    }
}

#[track_caller]
fn fewest_positive(weights: &Tensor) -> Result<usize> {
    let fewest = weights.gt(0.0)?.sum(&[1], false)?.min_all()?.to_scalar::<i64>()?;
    Ok(usize::try_from(fewest).unwrap_or(0))
}

fn every_axis(t: &Tensor) -> Vec<isize> {
    (0..t.rank() as isize).collect()
}

//! [`Init`]: dtype, device and initial values of new parameters.
//!
//! The `xavier` methods follow Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural
//! networks" (2010); the `kaiming` methods follow He et al., "Delving deep into rectifiers" (2015). Fans are computed
//! as in PyTorch: for a weight `[out, in, ..]` whose trailing axes have `k` elements in total, `fan_in = in * k` and
//! `fan_out = out * k`.

use gradus_tensor::backend::params::Distribution;
use gradus_tensor::backend::{HostVec, bf16_from_f64, f16_from_f64};
use gradus_tensor::{DType, Device, Error, Generator, Result, Shape, Tensor};

use crate::normal_quantile::{normal_cdf, normal_quantile};

/// The dtype, device and random number generator for new parameters. Constructors of layers with parameters take an
/// `Init`; [`Dropout`](crate::Dropout), which has no parameters, takes a [`Generator`].
///
/// If one of its methods fails, the generator is restored.
///
/// ```
/// # use gradus_nn::{Init, init::{Fan, Gain}}; use gradus_tensor::*;
/// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
/// let mut generator = Generator::new(7);
/// let mut init = Init::new(DType::F32, &device, &mut generator);
/// let weight = init.kaiming_uniform([64, 32], Fan::In, Gain::Relu)?;
/// let bound = (6.0f32 / 32.0).sqrt();
/// assert!(weight.to_vec::<f32>()?.iter().all(|w| w.abs() <= bound));
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug)]
pub struct Init<'a> {
    /// The dtype of new parameters; must be a float dtype.
    pub dtype: DType,
    /// The device of new parameters.
    pub device: &'a Device,
    /// The source of random numbers; each draw advances it.
    pub generator: &'a mut Generator,
    skips: bool,
}

/// The pass in which the variance is preserved: the forward pass (`In`) or the backward pass (`Out`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub enum Fan {
    #[default]
    In,
    Out,
}

/// The factor that compensates for the nonlinearity after the layer.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Gain {
    /// 1, for linear layers and sigmoid.
    #[default]
    Linear,
    /// `sqrt(2)`
    Relu,
    /// `sqrt(2 / (1 + slope^2))`
    LeakyRelu(f64),
    /// `5 / 3`
    Tanh,
    /// A custom factor.
    Factor(f64),
}

impl Gain {
    /// The factor as a number.
    pub fn factor(self) -> f64 {
        match self {
            Gain::Linear => 1.0,
            Gain::Relu => 2f64.sqrt(),
            Gain::LeakyRelu(slope) => (2.0 / (1.0 + slope * slope)).sqrt(),
            Gain::Tanh => 5.0 / 3.0,
            Gain::Factor(f) => f,
        }
    }
}

/// `(fan_in, fan_out)` of a weight `[out, in, ..]`.
#[track_caller]
fn fans(shape: &[usize]) -> Result<(f64, f64)> {
    if shape.len() < 2 {
        let m = format!("a weight of shape {} has no fan: it needs an output and an input axis", Shape::display(shape));
        return Err(Error::shape("init", m).help("use uniform or normal for vectors"));
    }
    let field: f64 = shape[2..].iter().map(|&k| k as f64).product();
    Ok((shape[1] as f64 * field, shape[0] as f64 * field))
}

/// `factor / sqrt(fan)`, or 0 if the fan is 0.
fn over_root(factor: f64, fan: f64) -> f64 {
    if fan > 0.0 { factor / fan.sqrt() } else { 0.0 }
}

impl<'a> Init<'a> {
    /// Creates an `Init` for parameters of `dtype` on `device`, with random values drawn from `generator`.
    pub fn new(dtype: DType, device: &'a Device, generator: &'a mut Generator) -> Self {
        Init { dtype, device, generator, skips: false }
    }

    /// Draws nothing: where values would be random, they are zeros. For a model whose weights are loaded next, which takes
    /// less time then. PyTorch's `skip_init`.
    ///
    /// ```
    /// # use gradus_nn::{Init, Linear}; use gradus_tensor::*;
    /// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
    /// let mut generator = Generator::new(7);
    /// let mut init = Init::new(DType::F32, &device, &mut generator).skip();
    /// assert_eq!(Linear::new(2, 1, &mut init)?.weight.to_vec::<f32>()?, [0.0, 0.0]);
    /// # Ok::<(), Error>(())
    /// ```
    #[must_use]
    pub fn skip(self) -> Self {
        Init { skips: true, ..self }
    }

    /// A tensor filled with `value`.
    #[track_caller]
    pub fn constant(&self, shape: impl AsRef<[usize]>, value: f64) -> Result<Tensor> {
        Tensor::full(shape, value, self.dtype, self.device)
    }

    /// A tensor of zeros.
    #[track_caller]
    pub fn zeros(&self, shape: impl AsRef<[usize]>) -> Result<Tensor> {
        self.constant(shape, 0.0)
    }

    /// A tensor of ones.
    #[track_caller]
    pub fn ones(&self, shape: impl AsRef<[usize]>) -> Result<Tensor> {
        self.constant(shape, 1.0)
    }

    /// Uniform random values in `[lo, hi)`.
    #[track_caller]
    pub fn uniform(&mut self, shape: impl AsRef<[usize]>, lo: f64, hi: f64) -> Result<Tensor> {
        self.draw(Distribution::Uniform { lo, hi }, shape)
    }

    /// Normally distributed random values.
    #[track_caller]
    pub fn normal(&mut self, shape: impl AsRef<[usize]>, mean: f64, std: f64) -> Result<Tensor> {
        self.draw(Distribution::Normal { mean, std }, shape)
    }

    #[track_caller]
    fn draw(&mut self, distribution: Distribution, shape: impl AsRef<[usize]>) -> Result<Tensor> {
        if self.skips {
            return self.zeros(shape);
        }
        Tensor::random(distribution, shape, self.dtype, self.device, self.generator)
    }

    /// Normally distributed random values, truncated to `lo..=hi`. The bounds are absolute values, not multiples of the
    /// standard deviation. Computed in f64 as `mean + std * Q(u)`, where `Q` is the normal quantile function and `u` is
    /// uniform between the cumulative probabilities of `lo` and `hi`.
    #[track_caller]
    pub fn truncated_normal(
        &mut self,
        shape: impl AsRef<[usize]>,
        mean: f64,
        std: f64,
        lo: f64,
        hi: f64,
    ) -> Result<Tensor> {
        let ok = mean.is_finite() && std.is_finite() && std > 0.0 && lo < hi;
        // A window above the mean is mirrored to the lower tail, where the probabilities keep their precision.
        let (mut a, mut b) = ((lo - mean) / std, (hi - mean) / std);
        let mirrored = a > 0.0;
        if mirrored {
            (a, b) = (-b, -a);
        }
        let (pa, pb) = (normal_cdf(a), normal_cdf(b));
        if !ok || pa.is_nan() || pb.is_nan() || pa >= pb {
            let m = format!("mean {mean}, standard deviation {std} and the window {lo}..={hi} are no distribution");
            return Err(Error::argument("truncated_normal", m));
        }
        if self.skips {
            return self.zeros(shape);
        }
        let sign = if mirrored { -1.0 } else { 1.0 };
        let mut moved = self.generator.clone();
        let y = self.place(shape.as_ref(), || {
            (mean + std * sign * normal_quantile(pa + uniform(&mut moved) * (pb - pa))).clamp(lo, hi)
        })?;
        *self.generator = moved;
        Ok(y)
    }

    /// Uniform random values in `±gain * sqrt(6 / (fan_in + fan_out))`.
    #[track_caller]
    pub fn xavier_uniform(&mut self, shape: impl AsRef<[usize]>, gain: Gain) -> Result<Tensor> {
        let (fan_in, fan_out) = fans(shape.as_ref())?;
        let bound = over_root(gain.factor() * 6f64.sqrt(), fan_in + fan_out);
        self.uniform(shape, -bound, bound)
    }

    /// Normally distributed random values with standard deviation `gain * sqrt(2 / (fan_in + fan_out))`.
    #[track_caller]
    pub fn xavier_normal(&mut self, shape: impl AsRef<[usize]>, gain: Gain) -> Result<Tensor> {
        let (fan_in, fan_out) = fans(shape.as_ref())?;
        let std = over_root(gain.factor() * 2f64.sqrt(), fan_in + fan_out);
        self.normal(shape, 0.0, std)
    }

    /// Uniform random values in `±gain * sqrt(3 / fan)`.
    #[track_caller]
    pub fn kaiming_uniform(&mut self, shape: impl AsRef<[usize]>, fan: Fan, gain: Gain) -> Result<Tensor> {
        let (fan_in, fan_out) = fans(shape.as_ref())?;
        let fan = if fan == Fan::In { fan_in } else { fan_out };
        let bound = over_root(gain.factor() * 3f64.sqrt(), fan);
        self.uniform(shape, -bound, bound)
    }

    /// Normally distributed random values with standard deviation `gain / sqrt(fan)`.
    #[track_caller]
    pub fn kaiming_normal(&mut self, shape: impl AsRef<[usize]>, fan: Fan, gain: Gain) -> Result<Tensor> {
        let (fan_in, fan_out) = fans(shape.as_ref())?;
        let std = over_root(gain.factor(), if fan == Fan::In { fan_in } else { fan_out });
        self.normal(shape, 0.0, std)
    }

    /// A random (semi-)orthogonal matrix times `gain` (Saxe et al., 2013). Trailing axes are flattened into the
    /// columns. A tall matrix has orthonormal columns; a wide one has orthonormal rows. Computed in f64 on the host.
    #[track_caller]
    pub fn orthogonal(&mut self, shape: impl AsRef<[usize]>, gain: Gain) -> Result<Tensor> {
        let dims = Shape::new(shape.as_ref())?;
        fans(shape.as_ref())?;
        if self.skips {
            return self.zeros(shape);
        }
        let (rows, columns) = (dims[0], dims.numel().checked_div(dims[0]).unwrap_or(0));
        let (count, length) = (rows.min(columns), rows.max(columns));
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
        let mut basis = HostVec::filled(self.device.backend(), "orthogonal", 0.0, count * length)?;
        let mut moved = self.generator.clone();
        for i in 0..count {
            let (done, rest) = basis.split_at_mut(i * length);
            let v = &mut rest[..length];
            // Draw again if the vector lies in the span of the previous ones.
            let mut norm = 0.0;
            while norm <= 1e-6 {
                v.fill_with(|| normal_quantile(uniform(&mut moved)));
                // Two passes: the second removes the rounding errors of the first.
                for b in done.chunks_exact(length).chain(done.chunks_exact(length)) {
                    let overlap = dot(v, b);
                    v.iter_mut().zip(b).for_each(|(x, y)| *x -= overlap * y);
                }
                norm = dot(v, v).sqrt();
            }
            v.iter_mut().for_each(|x| *x /= norm);
        }
        let at = |r: usize, c: usize| if rows <= columns { basis[r * length + c] } else { basis[c * length + r] };
        let mut next = 0..rows * columns;
        let y =
            self.place(shape.as_ref(), || next.next().map_or(0.0, |i| gain.factor() * at(i / columns, i % columns)))?;
        *self.generator = moved;
        Ok(y)
    }

    /// A tensor of this dtype on this device, whose values `next` computes.
    #[track_caller]
    fn place(&self, shape: &[usize], next: impl FnMut() -> f64) -> Result<Tensor> {
        place("init", shape, self.dtype, self.device, next)
    }
}

/// A tensor whose values `next` computes one after the other on the host, each rounded once.
#[track_caller]
pub(crate) fn place(
    op: &str,
    shape: &[usize],
    dtype: DType,
    device: &Device,
    mut next: impl FnMut() -> f64,
) -> Result<Tensor> {
    if !dtype.is_float() {
        return Err(Error::dtype(op, dtype, "floats"));
    }
    Tensor::from_pieces(shape, dtype, device, |piece| {
        for bytes in piece.chunks_exact_mut(dtype.size()) {
            let value = next();
            match dtype {
                DType::F16 => bytes.copy_from_slice(&f16_from_f64(value).to_ne_bytes()),
                DType::BF16 => bytes.copy_from_slice(&bf16_from_f64(value).to_ne_bytes()),
                DType::F32 => bytes.copy_from_slice(&(value as f32).to_ne_bytes()),
                _ => bytes.copy_from_slice(&value.to_ne_bytes()),
            }
        }
        Ok(())
    })
}

/// A uniform random value in `(0, 1)`.
fn uniform(generator: &mut Generator) -> f64 {
    ((generator.next_u64() >> 11) as f64 + 0.5) / 9_007_199_254_740_992.0
}

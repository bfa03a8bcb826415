//! Positions of tokens: [`RotaryEmbedding`], [`SinusoidalPositions`], [`LearnedPositions`] and [`alibi_bias`].

use std::sync::{Arc, Mutex};

use gradus_tensor::{DType, Device, Error, Here, Result, Tensor};

use crate::init::place;
use crate::{Forward, Init, Module, Parameter};

/// The largest number of sines in a table. It is limited because the host computes them.
const MOST_SINES: usize = 1 << 26;

/// The base of [`SinusoidalPositions`].
const SINUSOIDAL_BASE: f64 = 10_000.0;

/// The requested positions, from `first` on, and the number of pairs of features.
#[derive(Clone, Copy)]
struct Waves {
    first: usize,
    length: usize,
    pairs: usize,
    base: f64,
}

impl Waves {
    /// A table with a row for each position. Its columns are `sin(p * base^(-i / pairs))` or the cosine, for the pair `i`
    /// and the choice that `column` gives: whether it is the sine. Computed in f64 and rounded once.
    #[track_caller]
    fn table(
        self,
        columns: usize,
        column: impl Fn(usize) -> (usize, bool),
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        let Waves { first, length, pairs, base } = self;
        let last = first.checked_add(length);
        if length.checked_mul(pairs).is_none_or(|count| count > MOST_SINES) || last.is_none() {
            return Err(Error::argument("positions", format!("{length} positions of {pairs} pairs are too many")));
        }
        let needed = if length == 0 { 0 } else { pairs };
        // At most `MOST_SINES`.
        let frequencies: Vec<f64> = (0..needed).map(|i| libm::pow(base, -(i as f64) / pairs as f64)).collect();
        let mut at = 0;
        place("positions", &[length, columns], dtype, device, || {
            let (position, (pair, is_sine)) = (first + at / columns.max(1), column(at % columns.max(1)));
            at += 1;
            let angle = position as f64 * frequencies.get(pair).copied().unwrap_or(0.0);
            if is_sine { libm::sin(angle) } else { libm::cos(angle) }
        })
    }
}

/// Tables with a row for each position from 0 on, made when they are first needed. A clone is the same cache.
#[derive(Debug, Clone)]
struct Cache<const N: usize>(Arc<Mutex<Option<[Tensor; N]>>>);

impl<const N: usize> Default for Cache<N> {
    fn default() -> Self {
        Cache(Arc::default())
    }
}

impl<const N: usize> Cache<N> {
    /// The rows of the positions of `waves`. `make` gives the tables `[length, columns]` of other positions.
    #[track_caller]
    fn rows(
        &self,
        waves: Waves,
        columns: usize,
        dtype: DType,
        device: &Device,
        make: impl FnOnce(Waves) -> Result<[Tensor; N]>,
    ) -> Result<[Tensor; N]> {
        let Waves { first, length, pairs, .. } = waves;
        let end = first.checked_add(length);
        let end = end.ok_or_else(|| Error::argument("positions", "the positions overflow")).here()?;
        let cache = || self.0.lock().unwrap_or_else(|e| e.into_inner());
        let wanted =
            |t: &Tensor| t.dtype() == dtype && t.device() == device && t.shape()[0] >= end && t.shape()[1] == columns;
        // Taken in a statement of its own, so that no lock is held while the device works.
        let known = cache().clone().filter(|tables| tables.iter().all(wanted));
        let mut rows = match known {
            Some(known) => known,
            None => {
                // Room for later positions, as far as the limit allows.
                let room = end.checked_next_power_of_two().unwrap_or(end).min(MOST_SINES / pairs.max(1)).max(end);
                let made = make(Waves { first: 0, length: room, ..waves }).here()?;
                *cache() = Some(made.clone());
                made
            }
        };
        for table in &mut rows {
            *table = table.narrow(0, first, length)?;
        }
        Ok(rows)
    }
}

/// Checks the number of features that positions turn or fill, and the base of their angles.
#[track_caller]
fn check(op: &str, dim: usize, base: f64) -> Result<()> {
    if dim == 0 || !dim.is_multiple_of(2) {
        return Err(Error::argument(op, format!("{dim} features are no pairs; the number is even and at least 2")));
    }
    if !(base > 0.0 && base.is_finite()) {
        return Err(Error::argument(op, format!("the base is {base}; it is above 0")));
    }
    Ok(())
}

/// Rotary position embedding (Su et al., 2021): turns pairs of features of queries and keys by angles that grow with
/// the position, so that their products depend on the distance alone.
///
/// Pair `i` of a token at position `p` is turned by `p * base^(-2i / dim)`. A pair is the features `2i` and `2i + 1`
/// (as in RoFormer, GPT-J and torchtune), or `i` and `i + dim / 2` with [`half_split`](RotaryEmbedding::half_split) (as
/// in GPT-NeoX and Llama of Hugging Face). Features from `dim` on stay as they are.
///
/// ```
/// # use gradus_nn::RotaryEmbedding; use gradus_tensor::*;
/// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
/// let rotary = RotaryEmbedding::new(4, 10_000.0)?;
/// let x = Tensor::ones([2, 3, 5, 4], DType::F32, &device)?; // [n, heads, length, size]
/// // The last two of the five tokens alone, at the positions 3 and 4.
/// let last = rotary.apply(&x.narrow(2, 3, 2)?, 3)?;
/// assert_eq!(last.to_vec::<f32>()?, rotary.apply(&x, 0)?.narrow(2, 3, 2)?.to_vec::<f32>()?);
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct RotaryEmbedding {
    dim: usize,
    base: f64,
    half_split: bool,
    /// The sines and the cosines.
    table: Cache<2>,
}

impl RotaryEmbedding {
    /// Turns pairs of neighbouring features among the first `dim`. `base` is 10,000 in most models. Errors if `dim` is
    /// 0 or odd, or if `base` is not above 0.
    #[track_caller]
    pub fn new(dim: usize, base: f64) -> Result<Self> {
        check("rotary", dim, base)?;
        Ok(RotaryEmbedding { dim, base, half_split: false, table: Cache::default() })
    }

    /// Pairs feature `i` with feature `i + dim / 2`.
    #[must_use]
    pub fn half_split(mut self) -> Self {
        self.half_split = true;
        self
    }

    /// Turns `x [.., length, size]`, whose tokens have the positions from `first` on. The angles are computed in f64, half
    /// precision in f32. Errors if `size` is below `dim`.
    #[track_caller]
    pub fn apply(&self, x: &Tensor, first: usize) -> Result<Tensor> {
        let rank = x.rank();
        if rank < 2 || x.shape()[rank - 1] < self.dim {
            let e = Error::shape("rotary", format!("the input is [.., length, at least {}]", self.dim));
            return Err(e.operand("input", x.shape(), x.dtype(), x.device()));
        }
        let [sin, cos] = self.sines(first, x.shape()[rank - 2], x)?;
        let (size, pairs) = (x.shape()[rank - 1], self.dim / 2);
        let turned = x.narrow(-1, 0, self.dim)?;
        let (a, b) = if self.half_split {
            (turned.narrow(-1, 0, pairs)?, turned.narrow(-1, pairs, pairs)?)
        } else {
            (turned.slice(-1, 0, self.dim, 2)?, turned.slice(-1, 1, self.dim, 2)?)
        };
        let new = [a.mul(&cos)?.sub(&b.mul(&sin)?)?, b.mul(&cos)?.add(&a.mul(&sin)?)?];
        let turned = if self.half_split {
            Tensor::cat(&[&new[0], &new[1]], -1)?
        } else {
            Tensor::stack(&[&new[0], &new[1]], -1)?.flatten(-2, -1)?
        };
        let turned = turned.to_dtype(x.dtype().to_float())?;
        if size == self.dim {
            return Ok(turned);
        }
        Tensor::cat(&[&turned, &x.narrow(-1, self.dim, size - self.dim)?], -1)
    }

    /// The sines and cosines `[length, dim / 2]` of the positions from `first` on, of the compute dtype and device of `like`.
    #[track_caller]
    fn sines(&self, first: usize, length: usize, like: &Tensor) -> Result<[Tensor; 2]> {
        let (dtype, device, pairs) = (like.dtype().to_float().compute(), like.device(), self.dim / 2);
        self.table.rows(Waves { first, length, pairs, base: self.base }, pairs, dtype, device, |waves| {
            let [sin, cos] = [true, false].map(|is_sine| waves.table(pairs, |i| (i, is_sine), dtype, device));
            Ok([sin.here()?, cos.here()?])
        })
    }
}

/// Adds the sinusoidal positions of Vaswani et al. (2017) to `x [.., length, dim]`: feature `2i` of position `p` gets
/// `sin(p * 10000^(-2i / dim))`, and feature `2i + 1` the cosine.
///
/// ```
/// # use gradus_nn::{Forward, SinusoidalPositions}; use gradus_tensor::*;
/// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
/// let x = Tensor::zeros([2, 3, 4], DType::F32, &device)?;
/// let y = SinusoidalPositions::new().forward(&x)?;
/// assert_eq!(y.select(1, 0)?.to_vec::<f32>()?, [0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0]);
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Clone, Default, Module)]
pub struct SinusoidalPositions {
    #[module(skip)]
    table: Cache<1>,
}

impl SinusoidalPositions {
    /// Creates a layer for any length and even number of features. It computes its table when it first needs one of this
    /// size.
    pub fn new() -> Self {
        Self::default()
    }

    /// The positions from `first` on as `[length, dim]`. Errors if `dim` is 0 or odd, or if `dtype` is no float.
    #[track_caller]
    pub fn table(first: usize, length: usize, dim: usize, dtype: DType, device: &Device) -> Result<Tensor> {
        check("sinusoidal_positions", dim, SINUSOIDAL_BASE)?;
        let waves = Waves { first, length, pairs: dim / 2, base: SINUSOIDAL_BASE };
        waves.table(dim, |i| (i / 2, i % 2 == 0), dtype, device)
    }
}

impl Forward for SinusoidalPositions {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        let &[.., length, dim] = input.shape() else { return Err(no_sequence("sinusoidal_positions", input)) };
        let (dtype, device) = (input.dtype().to_float(), input.device());
        let waves = Waves { first: 0, length, pairs: dim / 2, base: SINUSOIDAL_BASE };
        let [table] = self.table.rows(waves, dim, dtype, device, |waves| {
            Ok([SinusoidalPositions::table(0, waves.length, dim, dtype, device)?])
        })?;
        input.add(&table)
    }
}

/// Adds a learned vector for each position to `x [.., length, dim]`: the first rows of `weight [max_length, dim]`, which
/// are initialised from a normal distribution with standard deviation 1, as those of an [`Embedding`](crate::Embedding).
#[derive(Clone, Module)]
pub struct LearnedPositions {
    max_length: usize,
    dim: usize,
    /// `[max_length, dim]`
    pub weight: Parameter,
}

impl LearnedPositions {
    /// Creates a table with new rows.
    #[track_caller]
    pub fn new(max_length: usize, dim: usize, init: &mut Init<'_>) -> Result<Self> {
        Ok(LearnedPositions { max_length, dim, weight: Parameter::new(init.normal([max_length, dim], 0.0, 1.0)?)? })
    }
}

impl Forward for LearnedPositions {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        let &[.., length, dim] = input.shape() else { return Err(no_sequence("learned_positions", input)) };
        if length > self.max_length || dim != self.dim {
            let m = format!("the input is not [.., at most {}, {}]", self.max_length, self.dim);
            let e = Error::shape("learned_positions", m);
            return Err(e.operand("input", input.shape(), input.dtype(), input.device()));
        }
        input.add(&self.weight.narrow(0, 0, length)?)
    }
}

#[track_caller]
fn no_sequence(op: &str, input: &Tensor) -> Error {
    let e = Error::shape(op, "the input is [.., length, dim]");
    e.operand("input", input.shape(), input.dtype(), input.device())
}

/// The bias of attention with linear biases (ALiBi; Press et al., 2022): a float mask `[heads, lq, lk]`, which is
/// `-slope * |i + lk - lq - j|` for query `i` and key `j`. For `n` heads, with `n` a power of two, the slopes are
/// `2^(-8 / n)` and its powers. For any other `n`, let `m` be the largest power of two below `n`: the first `m` slopes
/// are those of `m` heads, and the remaining ones are every second slope of `2 m` heads, from the first on.
///
/// ```
/// # use gradus_nn::alibi_bias; use gradus_tensor::*;
/// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
/// let bias = alibi_bias(2, 1, 3, DType::F32, &device)?;
/// assert_eq!(bias.to_vec::<f32>()?, [-2.0 / 16.0, -1.0 / 16.0, 0.0, -2.0 / 256.0, -1.0 / 256.0, 0.0]);
/// # Ok::<(), Error>(())
/// ```
#[track_caller]
pub fn alibi_bias(heads: usize, lq: usize, lk: usize, dtype: DType, device: &Device) -> Result<Tensor> {
    let below = if heads == 0 { 0 } else { 1 << heads.ilog2() };
    let slope = |head: usize| {
        let (number, of) = if head < below { (head + 1, below) } else { (2 * (head - below) + 1, 2 * below) };
        libm::exp2(-8.0 * number as f64 / of as f64)
    };
    let mut head = 0;
    let slopes = place("alibi_bias", &[heads, 1, 1], dtype, device, || {
        head += 1;
        -slope(head - 1)
    })?;
    let [queries, keys] = [lq, lk].map(|n| Tensor::arange(0, n as i64, 1, DType::I64, device));
    let (queries, keys) = (queries.here()?.sub(lq as i64)?.unsqueeze(1)?, keys.here()?.sub(lk as i64)?);
    slopes.mul(&queries.sub(&keys)?.abs()?.to_dtype(dtype)?)
}

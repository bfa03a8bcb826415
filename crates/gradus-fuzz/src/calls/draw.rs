//! [`Draw`]: random arguments, from ordinary to absurd, all determined by a seed and the number of the call.

use std::ops::{Deref, DerefMut};

use gradus::prelude::*;
use gradus::{Scalar, backend::Distribution};

use crate::random::Random;

/// Sizes, including some that exceed any memory.
const ABSURD: [usize; 8] =
    [1 << 20, 1 << 31, (1 << 32) + 1, 1 << 40, 1 << 53, 1 << 60, isize::MAX as usize, usize::MAX];

/// Draws the arguments of one call.
pub struct Draw {
    random: Random,
    /// The device of the tensors.
    pub device: Device,
    /// The generator passed to calls that draw random numbers themselves.
    pub generator: Generator,
    /// Whether broadcast axes may be absurdly long.
    pub huge: bool,
    /// Whether to print the arguments that are drawn.
    pub tell: bool,
}

impl Deref for Draw {
    type Target = Random;

    fn deref(&self) -> &Random {
        &self.random
    }
}

impl DerefMut for Draw {
    fn deref_mut(&mut self) -> &mut Random {
        &mut self.random
    }
}

impl Draw {
    /// Creates the source of the arguments of call number `call` in the run with this seed.
    pub fn new(seed: u64, call: u64, device: &Device) -> Draw {
        let generator = Generator::new(seed).fork(call);
        Draw { random: Random::new(generator.fork(0)), device: device.clone(), generator, huge: false, tell: false }
    }

    /// A random `bool`.
    pub fn flag(&mut self) -> bool {
        self.once_in(2)
    }

    /// The result of `make` or `None`, with equal probability.
    pub fn maybe<T>(&mut self, make: impl FnOnce(&mut Draw) -> Result<T>) -> Result<Option<T>> {
        if self.flag() { make(self).map(Some) } else { Ok(None) }
    }

    fn told<T: std::fmt::Debug>(&self, value: T) -> T {
        if self.tell {
            eprintln!("  {value:?}");
        }
        value
    }

    /// A count or size: usually small, sometimes absurd.
    pub fn size(&mut self) -> usize {
        let n = if self.once_in(24) { self.of(&ABSURD) } else { self.of(&[0, 1, 1, 2, 2, 3, 3, 4, 5, 7, 16, 33]) };
        self.told(n)
    }

    /// A size for each of the `N` axes of a window, rarely absurd.
    pub fn sizes<const N: usize>(&mut self) -> [usize; N] {
        std::array::from_fn(|_| if self.once_in(8) { self.size() } else { 1 + self.below(3) })
    }

    /// A signed integer: usually small, sometimes absurd.
    pub fn int(&mut self) -> i64 {
        let extreme = [i64::MIN, i64::MIN + 1, i64::MAX, 1 << 40, -(1 << 40), 1 << 31, -(1 << 31), 255, -129];
        let n = if self.once_in(16) { self.of(&extreme) } else { self.below(9) as i64 - 4 };
        self.told(n)
    }

    /// Like [`int`](Draw::int), for shifts and offsets.
    pub fn offset(&mut self) -> isize {
        self.int() as isize
    }

    /// A float: ordinary, an extreme, or NaN.
    pub fn number(&mut self) -> f64 {
        let special = [0.0, -0.0, 1.0, -1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MAX, f64::MIN_POSITIVE];
        let more = [5e-324, 1e-8, 1e19, 1e39, -1e300, 0.5, 2.0, 3.0];
        let x = match self.below(8) {
            0 => self.of(&special),
            1 => self.of(&more),
            _ => (self.bits() >> 11) as f64 / (1u64 << 53) as f64 * 4.0 - 2.0,
        };
        self.told(x)
    }

    /// A float, usually from 0 to 1: a rate, a probability, an eps.
    pub fn fraction(&mut self) -> f64 {
        if self.once_in(6) { self.number() } else { self.of(&[0.0, 1e-5, 0.1, 0.25, 0.5, 0.9, 1.0]) }
    }

    /// A scalar of any kind.
    pub fn scalar(&mut self) -> Scalar {
        match self.below(5) {
            0 => Scalar::Bool(self.flag()),
            1 | 2 => Scalar::Int(self.int()),
            _ => Scalar::Float(self.number()),
        }
    }

    /// Any dtype.
    pub fn dtype(&mut self) -> DType {
        if self.flag() { self.of(&[DType::F32, DType::F64]) } else { self.of(DType::ALL.as_slice()) }
    }

    /// A float dtype.
    pub fn float_dtype(&mut self) -> DType {
        self.of(&[DType::F32, DType::F32, DType::F64, DType::F64, DType::F16, DType::BF16])
    }

    /// An axis for a tensor of this rank, usually valid.
    pub fn axis(&mut self, rank: usize) -> isize {
        let axis = match self.below(20) {
            0 => self.of(&[isize::MIN, isize::MAX, 8, -9, 1 << 40]),
            1 => rank as isize,
            2 => -(rank as isize) - 1,
            _ => self.below(2 * rank) as isize - rank as isize,
        };
        self.told(axis)
    }

    /// Several axes for a tensor of this rank, usually distinct.
    pub fn axes(&mut self, rank: usize) -> Vec<isize> {
        match self.below(10) {
            0 => (0..self.below(12)).map(|_| self.axis(rank)).collect(),
            1 => vec![],
            2 => (0..rank as isize).collect(),
            _ => {
                let set = self.bits();
                let axes = (0..rank as isize).filter(|a| set >> a & 1 == 1).collect::<Vec<_>>();
                self.told(axes)
            }
        }
    }

    /// Usually a permutation of the axes of a tensor of this rank.
    pub fn order(&mut self, rank: usize) -> Vec<isize> {
        let mut order: Vec<isize> = (0..rank as isize).collect();
        for i in (1..rank).rev() {
            order.swap(i, self.below(i + 1));
        }
        if self.once_in(10) {
            order.push(self.axis(rank));
        }
        self.told(order)
    }

    /// The shape of a new tensor, usually with a few short axes.
    pub fn dims(&mut self) -> Vec<usize> {
        let rank = if self.once_in(12) { self.below(9) } else { self.below(5) };
        let mut dims: Vec<usize> = (0..rank).map(|_| self.of(&[1, 1, 2, 2, 3, 3, 4, 5])).collect();
        if rank > 0 && self.once_in(16) {
            let at = self.below(rank);
            dims[at] = self.of(&[0, 0, 17, 100, 1000, 70_000]);
        }
        // Usually at most 2048 elements, sometimes up to 2^19.
        let most = if self.once_in(40) { 1 << 19 } else { 1 << 11 };
        while dims.iter().product::<usize>() > most {
            let largest = (0..rank).max_by_key(|&i| dims[i]).unwrap_or(0);
            dims[largest] /= 2;
        }
        dims
    }

    /// A shape as an argument: valid for a tensor, or absurd.
    pub fn shape(&mut self) -> Vec<usize> {
        let mut dims = self.dims();
        if self.once_in(10) {
            let at = self.below(dims.len() + 1);
            let size = self.size();
            dims.insert(at, size);
        }
        self.told(dims)
    }

    /// A tensor of this shape and dtype with random values, including extremes. Its layout is random. A float tensor
    /// may require a gradient.
    pub fn made(&mut self, dims: &[usize], dtype: DType) -> Result<Tensor> {
        let t = self.laid_out(dims, dtype)?;
        let t = match self.below(6) {
            0 | 1 if dtype.is_float() => t.with_grad()?,
            2 if dtype.is_float() && t.numel() < 1 << 20 => t.with_grad()?.mul(1.0)?,
            _ => t,
        };
        if self.tell {
            let (grad, layout) = (t.requires_grad(), t.layout());
            eprintln!("  {layout:?} {dtype}{}", if grad { " tracked" } else { "" });
        }
        Ok(t)
    }

    /// A contiguous tensor of random values.
    fn values(&mut self, dims: &[usize], dtype: DType) -> Result<Tensor> {
        let n: usize = dims.iter().product();
        if n > 1 << 12 {
            let range = if dtype.is_float() {
                Distribution::Normal { mean: 0.0, std: 1.0 }
            } else {
                Distribution::Bernoulli { p: 0.5 }
            };
            return Tensor::random(range, dims, dtype, &self.device, &mut self.generator);
        }
        let special = self.once_in(6);
        let tell = std::mem::take(&mut self.tell);
        let number = |d: &mut Draw| if special { d.number() } else { d.below(9) as f64 / 2.0 - 2.0 };
        let values: Vec<f64> = (0..n).map(|_| number(self)).collect();
        self.tell = tell;
        let t = Tensor::from_vec(values, dims, &self.device)?;
        // Converting a value that the dtype cannot represent is an error, which other calls test. Replace such values
        // here.
        if dtype.is_float() {
            t.to_dtype(dtype)
        } else {
            t.nan_to_num(0.0, Some(1.0), Some(0.0))?.clamp(0.0, 100.0)?.to_dtype(dtype)
        }
    }

    fn laid_out(&mut self, dims: &[usize], dtype: DType) -> Result<Tensor> {
        let rank = dims.len();
        if rank == 0 || self.flag() {
            return self.values(dims, dtype);
        }
        let at = self.below(rank);
        match self.below(6) {
            0 => {
                let order = self.order(rank);
                if order.len() != rank {
                    return self.values(dims, dtype);
                }
                let turned: Vec<usize> = order.iter().map(|&a| dims[a as usize]).collect();
                let mut back = vec![0; rank];
                order.iter().enumerate().for_each(|(i, &a)| back[a as usize] = i as isize);
                self.values(&turned, dtype)?.permute(&back)
            }
            1 => self.values(dims, dtype)?.flip(at as isize),
            2 => {
                let mut wide = dims.to_vec();
                wide[at] = 2 * dims[at] + 1;
                self.values(&wide, dtype)?.slice(at as isize, 1, 1 + 2 * dims[at], 2)
            }
            3 => {
                let mut narrow = dims.to_vec();
                narrow[at] = 1;
                self.values(&narrow, dtype)?.expand(dims)
            }
            // Overlapping windows.
            4 if rank == 1 && dims[0] > 2 => {
                self.values(dims, dtype)?.unfold_axis(0, dims[0] / 2, 1)?.reshape([INFER])?.narrow(0, 0, dims[0])
            }
            _ => {
                let mut more = dims.to_vec();
                more[at] += 2;
                self.values(&more, dtype)?.narrow(at as isize, 1, dims[at])
            }
        }
    }

    /// A tensor of this dtype and a random shape, sometimes with a very long broadcast axis.
    pub fn tensor(&mut self, dtype: DType) -> Result<Tensor> {
        let mut dims = self.dims();
        if !self.once_in(14) || dims.is_empty() {
            return self.made(&dims, dtype);
        }
        let at = self.below(dims.len());
        dims[at] = 1;
        let t = self.made(&dims, dtype)?;
        dims[at] =
            if self.huge { self.of(&[1 << 20, 1 << 31, 1 << 40, 1 << 48]) } else { self.of(&[33, 1 << 10, 1 << 13]) };
        let t = t.expand(self.told(&dims))?;
        Ok(if t.requires_grad() && self.flag() { t.detach().with_grad()? } else { t })
    }

    /// A tensor of any dtype.
    pub fn any(&mut self) -> Result<Tensor> {
        let dtype = self.dtype();
        self.tensor(dtype)
    }

    /// A float tensor, sometimes a tensor of another dtype.
    pub fn float(&mut self) -> Result<Tensor> {
        if self.once_in(16) {
            return self.any();
        }
        let dtype = self.float_dtype();
        self.tensor(dtype)
    }

    /// A float tensor of this shape, sometimes of another shape.
    pub fn floats(&mut self, dims: &[usize]) -> Result<Tensor> {
        if self.once_in(20) {
            return self.float();
        }
        let dtype = self.float_dtype();
        self.made(dims, dtype)
    }

    /// A tensor that usually fits `x`: the same dtype and shape, or one that broadcasts with it.
    pub fn like(&mut self, x: &Tensor) -> Result<Tensor> {
        if self.once_in(10) {
            return self.any();
        }
        let dtype = if self.once_in(8) { self.dtype() } else { x.dtype() };
        if x.numel() > 1 << 16 {
            return if self.flag() { Ok(x.clone()) } else { self.made(&[], dtype) };
        }
        let mut dims = x.shape().to_vec();
        if !dims.is_empty() && self.once_in(4) {
            let at = self.below(dims.len());
            if self.flag() { drop(dims.drain(..at)) } else { dims[at] = 1 }
        }
        self.made(&dims, dtype)
    }

    /// A tensor with the dtype and sizes of `x`, except along these axes.
    pub fn like_but(&mut self, x: &Tensor, sizes: &[(usize, usize)]) -> Result<Tensor> {
        let mut dims = x.shape().to_vec();
        for &(axis, size) in sizes {
            if let Some(d) = dims.get_mut(axis) {
                *d = size;
            }
        }
        self.sized(&dims, x.dtype())
    }

    /// A tensor of this shape and dtype, sometimes of others.
    pub fn sized(&mut self, dims: &[usize], dtype: DType) -> Result<Tensor> {
        let n = dims.iter().try_fold(1usize, |n, &d| n.checked_mul(d)).unwrap_or(usize::MAX);
        let dtype = if self.once_in(16) { self.dtype() } else { dtype };
        if n > 1 << 19 || self.once_in(16) { self.tensor(dtype) } else { self.made(dims, dtype) }
    }

    /// A mask for `x`, usually a bool tensor of a fitting shape.
    pub fn mask(&mut self, x: &Tensor) -> Result<Tensor> {
        if self.once_in(12) { self.like(x) } else { self.like(x)?.detach().to_dtype(DType::Bool) }
    }

    /// An index tensor of this shape, with values usually below `n`.
    pub fn indices(&mut self, dims: &[usize], n: usize) -> Result<Tensor> {
        let dtype = self.of(&[DType::I64, DType::I64, DType::I64, DType::I32, DType::U32, DType::U8]);
        let count = dims.iter().try_fold(1usize, |n, &d| n.checked_mul(d)).unwrap_or(usize::MAX);
        if count > 1 << 12 || self.once_in(20) {
            // The time of a call grows with the number of indices, so an arbitrary tensor replaces a long index tensor.
            let huge = std::mem::take(&mut self.huge);
            let any = self.any();
            self.huge = huge;
            return any;
        }
        let wild = self.once_in(12);
        let tell = std::mem::take(&mut self.tell);
        let values: Vec<i64> =
            (0..count).map(|_| if wild { self.int() } else { self.below(n.min(1 << 40)) as i64 }).collect();
        self.tell = tell;
        let t = Tensor::from_vec(values, dims, &self.device)?.to_dtype(dtype)?;
        let rank = dims.len();
        if rank > 1 && self.once_in(4) { t.transpose(0, 1)?.contiguous()?.transpose(0, 1) } else { Ok(t) }
    }

    /// Several tensors, usually of one shape.
    pub fn several(&mut self) -> Result<Vec<Tensor>> {
        let first = self.any()?;
        let mut all = vec![first];
        for _ in 0..self.below(4) {
            let next = self.like(&all[0])?;
            all.push(next);
        }
        if self.once_in(12) {
            all.clear();
        }
        Ok(all)
    }
}

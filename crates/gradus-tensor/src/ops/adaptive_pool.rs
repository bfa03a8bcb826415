//! Adaptive pooling: the mean or maximum of each of a given number of bins. Bin `i` of an axis of `size` elements
//! covers the indices from `floor(i size / bins)` up to, but not including, `ceil((i + 1) size / bins)`. Bins overlap
//! where their number does not divide `size`.
//!
//! Adaptive pooling is composed of other recorded operations, so it is differentiable to any order. Bins are padded
//! only with their own elements, so an element outside a bin, even NaN, never affects its result.

use gradus_backend::{DType, Error, Here, HostVec, Result, Scalar, Shape};

use super::PoolOptions;
use super::pool::MAX_WINDOW;
use crate::Tensor;

/// The bins of one axis, all padded to the size of the largest bin.
struct Bins {
    size: usize,
    count: usize,
    largest: usize,
}

impl Bins {
    /// Both arguments are sizes from valid shapes; `count` is at least 1.
    fn new(size: usize, count: usize) -> Bins {
        let (whole, rest) = (size / count, size % count);
        // Bin `i` begins at the fraction `((i * rest) mod count) / count` of an element. The numerators are the
        // multiples of gcd(rest, count), and all of them occur; the largest is `count - gcd`. A bin that begins at this
        // largest fraction reaches into one element more than bin 0 does if `rest > gcd`.
        let more = if rest == 0 { 0 } else { 1 + usize::from(rest > gcd(rest, count)) };
        Bins { size, count, largest: whole + more }
    }

    /// The start of bin `i`, and its number of elements.
    fn bin(&self, i: usize) -> (usize, usize) {
        // 128-bit products cannot overflow here, and the quotients are at most `size`.
        let (i, size, count) = (i as u128, self.size as u128, self.count as u128);
        let start = i * size / count;
        (start as usize, (((i + 1) * size).div_ceil(count) - start) as usize)
    }

    /// The number of elements in all bins, including padding.
    fn padded(&self) -> usize {
        self.count.saturating_mul(self.largest)
    }

    /// Element `k` of the padded bins, and whether it is real. A smaller bin is padded with its first element.
    fn element(&self, k: usize) -> (i64, bool) {
        let ((start, size), i) = (self.bin(k / self.largest), k % self.largest);
        (if i < size { start + i } else { start } as i64, i < size)
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

macro_rules! adaptive {
    ($($n:literal $input:literal $output:literal $avg:ident $max:ident $max_with_indices:ident;)*) => {
        impl Tensor {
            $(
                #[doc = concat!("Mean over bins: `[n, c, ", $input, "]` to `[n, c, ", $output, "]`, floats only.")]
                ///
                /// Bin `i` of an axis runs from `floor(i size / bins)` to `ceil((i + 1) size / bins)`, exclusive. Fails
                /// for a tensor of another rank, an empty spatial axis or an output size of 0.
                #[track_caller]
                pub fn $avg(&self, output: [usize; $n]) -> Result<Tensor> {
                    self.adaptive_avg(stringify!($avg), output)
                }

                #[doc = concat!("Largest element of each bin: `[n, c, ", $input, "]` to the values `[n, c, ", $output,
                    "]` and their i64 positions in the flattened spatial axes.")]
                ///
                #[doc = concat!("Bins and errors as [`", stringify!($avg), "`](Tensor::", stringify!($avg),
                    "); any dtype but bool. NaN wins; of equal elements the first, which gets the gradient.")]
                #[track_caller]
                pub fn $max_with_indices(&self, output: [usize; $n]) -> Result<(Tensor, Tensor)> {
                    self.adaptive_max(stringify!($max), output)
                }

                #[doc = concat!("Largest element of each bin, the values of [`", stringify!($max_with_indices),
                    "`](Tensor::", stringify!($max_with_indices), "). Of equal elements the first gets the gradient.")]
                #[track_caller]
                pub fn $max(&self, output: [usize; $n]) -> Result<Tensor> {
                    Ok(self.adaptive_max(stringify!($max), output)?.0)
                }
            )*
        }
    };
}

adaptive! {
    1 "l" "bins" adaptive_avg_pool1d adaptive_max_pool1d adaptive_max_pool1d_with_indices;
    2 "h, w" "oh, ow" adaptive_avg_pool2d adaptive_max_pool2d adaptive_max_pool2d_with_indices;
    3 "d, h, w" "od, oh, ow" adaptive_avg_pool3d adaptive_max_pool3d adaptive_max_pool3d_with_indices;
}

impl Tensor {
    /// Checks the input and returns the shape of the result.
    #[track_caller]
    fn check_adaptive(&self, op: &str, output: &[usize]) -> Result<Shape> {
        let n = output.len();
        let fail = |e: Error| Err(self.describe(e, "self"));
        if self.rank() != n + 2 {
            return fail(Error::shape(op, format!("pooling takes [n, c] and {n} spatial axes"))).here();
        }
        if output.contains(&0) {
            return fail(Error::argument(op, format!("the output size {output:?} has a 0; each is at least 1"))).here();
        }
        if self.shape()[2..].contains(&0) {
            return fail(Error::shape(op, "a spatial axis is empty: its bins have no elements")).here();
        }
        Shape::new(&[&self.shape()[..2], output].concat()).map_err(|e| self.describe(e, "self"))
    }

    #[track_caller]
    fn adaptive_avg<const N: usize>(&self, op: &str, output: [usize; N]) -> Result<Tensor> {
        let shape = self.check_adaptive(op, &output)?;
        if !self.dtype().is_float() {
            return Err(self.describe(Error::dtype(op, self.dtype(), "floats"), "self"));
        }
        if self.numel() == 0 {
            return self.reshape(shape);
        }
        let mut x = self.to_dtype(self.dtype().compute())?;
        for (i, &bins) in output.iter().enumerate() {
            let axis = 2 + i;
            x = x.mean_of_bins(op, axis, bins)?;
        }
        x.to_dtype(self.dtype())
    }

    /// The mean of each bin along an axis.
    #[track_caller]
    fn mean_of_bins(&self, op: &str, axis: usize, count: usize) -> Result<Tensor> {
        let (size, rank) = (self.shape()[axis], self.rank());
        if size == count {
            return Ok(self.clone());
        }
        let split = [&self.shape()[..axis], &[count, size / count], &self.shape()[axis + 1..]].concat();
        let inner = [axis as isize + 1];
        if size.is_multiple_of(count) {
            return self.reshape(&split)?.mean(&inner, false);
        }
        let (bins, device) = (Bins::new(size, count), self.device());
        let elements = 0..bins.padded();
        let index = HostVec::collect(device.backend(), op, elements.clone().map(|k| bins.element(k).0))?;
        let index = Tensor::from_vec(index, [bins.padded()], device)?;
        let mut dims = vec![1; rank + 1];
        (dims[axis], dims[axis + 1]) = (count, bins.largest);
        let inside = HostVec::collect(device.backend(), op, elements.map(|k| bins.element(k).1))?;
        let inside = Tensor::from_vec(inside, &dims, device)?;
        dims.remove(axis + 1);
        let sizes = (0..count).map(|i| Scalar::Float(bins.bin(i).1 as f64));
        let sizes = Tensor::from_scalars(sizes, Shape::new(&dims)?, self.dtype(), device)?;
        let split = [&self.shape()[..axis], &[count, bins.largest], &self.shape()[axis + 1..]].concat();
        let elements = self.index_select(axis as isize, &index)?.reshape(&split)?;
        inside.where_(&elements, 0.0)?.sum(&inner, false)?.div(&sizes)
    }

    #[track_caller]
    fn adaptive_max<const N: usize>(&self, op: &str, output: [usize; N]) -> Result<(Tensor, Tensor)> {
        let shape = self.check_adaptive(op, &output)?;
        if self.dtype() == DType::Bool {
            return Err(self.describe(Error::dtype(op, self.dtype(), "numbers"), "self"));
        }
        if self.numel() == 0 {
            return Ok((self.reshape(shape)?, Tensor::zeros(shape, DType::I64, self.device())?));
        }
        let spatial = self.shape()[2..].to_vec();
        let even = (0..N).all(|i| spatial[i].is_multiple_of(output[i]));
        let kernel: [usize; N] = std::array::from_fn(|i| spatial[i] / output[i]);
        if even && kernel.iter().product::<usize>() <= MAX_WINDOW {
            return self.max_pooled(op, kernel, PoolOptions::new());
        }
        // The position of every element of every bin in the flattened spatial axes, as `[outputs, elements of a bin]`.
        let backend = self.device().backend();
        let (mut table, mut largest) = (HostVec::filled(backend, op, 0i64, 1)?, 1);
        for i in 0..N {
            let bins = Bins::new(spatial[i], output[i]);
            let elements = HostVec::collect(backend, op, (0..bins.padded()).map(|k| bins.element(k).0))?;
            let size = spatial[i] as i64;
            let mut next = HostVec::with_capacity(backend, op, table.len().saturating_mul(bins.padded()))?;
            for bin in table.chunks(largest) {
                for elements in elements.chunks(bins.largest) {
                    next.extend(op, bin.iter().flat_map(|&b| elements.iter().map(move |&e| b * size + e)))?;
                }
            }
            (table, largest) = (next, largest * bins.largest);
        }
        let count = table.len() / largest;
        let table = Tensor::from_vec(table, [count * largest], self.device())?;
        let (n, c) = (self.shape()[0], self.shape()[1]);
        let flat = self.reshape([n, c, spatial.iter().product()])?;
        let elements = flat.detach().index_select(2, &table)?.reshape([n, c, count, largest])?;
        // `argmax` picks the first of the largest elements. Padding repeats an earlier element of its bin, so it is
        // never picked.
        let slot = elements.argmax(3, true)?;
        let table = table.reshape([1, 1, count, largest])?.expand([n, c, count, largest])?;
        let indices = table.gather(3, &slot)?.reshape([n, c, count])?;
        Ok((flat.gather(2, &indices)?.reshape(shape)?, indices.reshape(shape)?))
    }
}

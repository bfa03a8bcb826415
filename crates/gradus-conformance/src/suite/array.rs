//! Tensors on the host: values in row-major order, and the ways to lay them out in memory.

use gradus_backend::host::{converted, load, store};
use gradus_backend::{DType, Layout, Scalar, Shape, philox};

/// Values of one dtype, each in the form that [`load`] returns.
#[derive(Debug, Clone)]
pub(crate) struct Array {
    pub(crate) dtype: DType,
    pub(crate) shape: Shape,
    pub(crate) data: Vec<Scalar>,
}

/// A shape with sizes that the suite itself chooses, so they are valid.
pub(crate) fn shape(dims: &[usize]) -> Shape {
    Shape::new(dims).unwrap_or(Shape::SCALAR)
}

/// A random generator seeded by a name, so that a case draws the same numbers on every run.
#[derive(Debug)]
pub(crate) struct Rng {
    seed: u64,
    next: u64,
}

impl Rng {
    pub(crate) fn new(name: &str) -> Self {
        // The FNV-1a hash.
        let seed = name.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
        Rng { seed, next: 0 }
    }

    /// Uniform in `[-1, 1)`.
    pub(crate) fn unit(&mut self) -> f64 {
        self.next += 1;
        f64::from(philox::unit_f32(philox::word(self.seed, self.next))) * 2.0 - 1.0
    }

    /// Uniform in `lo..=hi`.
    pub(crate) fn int(&mut self, lo: i64, hi: i64) -> i64 {
        lo + ((self.unit() + 1.0) / 2.0 * (hi - lo + 1) as f64) as i64
    }
}

impl Array {
    /// An array that repeats `values` until `shape` is filled.
    pub(crate) fn cycled(dtype: DType, dims: &[usize], values: &[Scalar]) -> Self {
        let shape = shape(dims);
        let data = values.iter().cycle().take(shape.numel()).map(|&v| converted(v, dtype)).collect();
        Array { dtype, shape, data }
    }

    /// An array of floats that repeats `values` until `shape` is filled.
    pub(crate) fn floats(dtype: DType, dims: &[usize], values: &[f64]) -> Self {
        Array::cycled(dtype, dims, &values.iter().map(|&v| Scalar::Float(v)).collect::<Vec<_>>())
    }

    /// An array of integers that repeats `values` until `shape` is filled.
    pub(crate) fn ints(dtype: DType, dims: &[usize], values: &[i64]) -> Self {
        Array::cycled(dtype, dims, &values.iter().map(|&v| Scalar::Int(v)).collect::<Vec<_>>())
    }

    /// Random values: floats uniform in `[-1, 1)`, small integers, or booleans.
    pub(crate) fn random(dtype: DType, dims: &[usize], rng: &mut Rng) -> Self {
        if !dtype.is_float() {
            return Array::small(dtype, dims, rng);
        }
        let shape = shape(dims);
        let data = (0..shape.numel()).map(|_| converted(Scalar::Float(rng.unit()), dtype)).collect();
        Array { dtype, shape, data }
    }

    /// Random integers from -3 (unsigned: 0) to 3, of any dtype. Sums of a few hundred products of them are exact in
    /// every compute dtype.
    pub(crate) fn small(dtype: DType, dims: &[usize], rng: &mut Rng) -> Self {
        let (lo, hi) = match dtype {
            DType::Bool => (0, 1),
            d if d.is_signed() => (-3, 3),
            _ => (0, 3),
        };
        let shape = shape(dims);
        let data = (0..shape.numel()).map(|_| converted(Scalar::Int(rng.int(lo, hi)), dtype)).collect();
        Array { dtype, shape, data }
    }

    /// Random indices in `0..size`.
    pub(crate) fn indices(dtype: DType, dims: &[usize], size: usize, rng: &mut Rng) -> Self {
        let shape = shape(dims);
        let data = (0..shape.numel()).map(|_| Scalar::Int(rng.int(0, size.max(1) as i64 - 1))).collect();
        Array { dtype, shape, data }
    }

    /// This array, made constant along the axis that `placement` broadcasts, if there is one.
    pub(crate) fn fitted(&self, placement: Placement) -> Self {
        let Some(axis) = placement.stretched_axis(&self.shape) else { return self.clone() };
        let Ok(first) = Layout::contiguous(self.shape).narrow(axis, 0, 1).and_then(|l| l.expand(self.shape)) else {
            return self.clone();
        };
        Array { data: first.positions().map(|p| self.data[p]).collect(), ..*self }
    }
}

/// Returns `to` if `dtype` is a narrower float, otherwise `dtype`.
pub(crate) fn widened(dtype: DType, to: DType) -> DType {
    if dtype.is_float() && dtype.size() < to.size() { to } else { dtype }
}

/// The index of element `flat` in row-major order.
pub(crate) fn index_of(shape: &Shape, flat: usize) -> Vec<usize> {
    let mut index = vec![0; shape.rank()];
    let mut rest = flat;
    for axis in (0..shape.rank()).rev() {
        index[axis] = rest % shape[axis];
        rest /= shape[axis];
    }
    index
}

/// A way to lay a tensor out in its buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Placement {
    /// Row-major, at offset 0.
    Contiguous,
    /// Row-major, at a nonzero offset.
    Offset,
    /// The last axis has the largest stride.
    Transposed,
    /// The last axis has a negative stride.
    Flipped,
    /// All strides are negative.
    Reversed,
    /// Every second element of rows that are twice as long.
    Gapped,
    /// A part of longer rows; each begins at a multiple of 4 elements, the first not at 0.
    Part,
    /// Interleaved rows: the strides of the first and last axis are not multiples of each other, so that a row begins
    /// inside another one but shares no element with it.
    Interleaved,
    /// Stride 0 on the first axis; inputs only.
    StretchedFirst,
    /// Stride 0 on the last axis; inputs only.
    StretchedLast,
}

impl Placement {
    pub(crate) const INPUTS: [Placement; 10] = [
        Placement::Contiguous,
        Placement::Offset,
        Placement::Transposed,
        Placement::Flipped,
        Placement::Reversed,
        Placement::Gapped,
        Placement::Part,
        Placement::Interleaved,
        Placement::StretchedFirst,
        Placement::StretchedLast,
    ];
    pub(crate) const OUTPUTS: [Placement; 7] = [
        Placement::Contiguous,
        Placement::Transposed,
        Placement::Gapped,
        Placement::Offset,
        Placement::Reversed,
        Placement::Flipped,
        Placement::Interleaved,
    ];

    /// The axis with stride 0.
    fn stretched_axis(self, shape: &Shape) -> Option<usize> {
        if shape.numel() == 0 {
            return None;
        }
        match self {
            Placement::StretchedFirst => (shape.rank() > 0).then_some(0),
            Placement::StretchedLast => shape.rank().checked_sub(1),
            _ => None,
        }
    }

    /// The layout for a shape, and the number of elements in its buffer.
    fn layout(self, shape: Shape) -> (Layout, usize) {
        let plain = Layout::contiguous(shape);
        let n = shape.numel();
        let (rank, strides) = (shape.rank(), plain.strides());
        let made = match self {
            Placement::Contiguous => return (plain, n),
            Placement::Offset => Layout::from_parts(shape, strides, 3, n + 5).map(|l| (l, n + 5)),
            Placement::Transposed => {
                let reversed: Vec<usize> = shape.iter().rev().copied().collect();
                let axes: Vec<isize> = (0..rank as isize).rev().collect();
                Shape::new(&reversed).and_then(|s| Layout::contiguous(s).permute(&axes)).map(|l| (l, n))
            }
            Placement::Flipped if rank > 0 => return (plain.flip(rank - 1), n),
            Placement::Reversed => {
                let shifted = Layout::from_parts(shape, strides, 2, n + 3);
                shifted.map(|l| ((0..rank).fold(l, |l, axis| l.flip(axis)), n + 3))
            }
            Placement::Gapped if rank > 0 => {
                let size = shape[rank - 1];
                let longer = shape.with(rank - 1, 2 * size + 1);
                longer.and_then(|s| Ok((Layout::contiguous(s).slice(rank - 1, 1, 2 * size + 1, 2)?, s.numel())))
            }
            Placement::Part if rank > 0 => {
                let size = shape[rank - 1];
                let longer = shape.with(rank - 1, size.next_multiple_of(4) + 8);
                longer.and_then(|s| Ok((Layout::contiguous(s).narrow(rank - 1, 4, size)?, s.numel())))
            }
            Placement::Interleaved if rank > 1 && n > 0 => {
                // If the two strides are coprime, their multiples first coincide where both axes are exhausted.
                let (first, last) = (shape[0], shape[rank - 1]);
                let step = (first..).find(|&n| gcd(n, last) == 1).unwrap_or(1);
                let extent = (first - 1) * last + (last - 1) * step + 1;
                let inner: usize = shape.iter().skip(1).rev().skip(1).product();
                let mut all: Vec<isize> = strides.iter().map(|s| s / last as isize * extent as isize).collect();
                (all[0], all[rank - 1]) = (last as isize, step as isize);
                Layout::from_parts(shape, &all, 0, extent * inner).map(|l| (l, extent * inner))
            }
            Placement::StretchedFirst | Placement::StretchedLast if n > 0 && rank > 0 => {
                let axis = if self == Placement::StretchedFirst { 0 } else { rank - 1 };
                let base = shape.with(axis, 1);
                base.and_then(|s| Ok((Layout::contiguous(s).expand(shape)?, s.numel())))
            }
            _ => return (plain, n),
        };
        made.unwrap_or((plain, n))
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The bytes of a buffer that holds a tensor.
#[derive(Debug, Clone)]
pub(crate) struct Placed {
    pub(crate) dtype: DType,
    pub(crate) layout: Layout,
    pub(crate) bytes: Vec<u8>,
}

impl Placed {
    /// A buffer for a tensor of this dtype and shape, filled with `background`.
    pub(crate) fn blank(dtype: DType, shape: Shape, placement: Placement, background: u8) -> Self {
        let (layout, elements) = placement.layout(shape);
        Placed { dtype, layout, bytes: vec![background; elements * dtype.size()] }
    }

    /// A buffer that holds the array, already [fitted](Array::fitted) to the placement. All other bytes are
    /// `background`.
    pub(crate) fn new(array: &Array, placement: Placement, background: u8) -> Self {
        let mut placed = Placed::blank(array.dtype, array.shape, placement, background);
        for (position, &value) in placed.layout.positions().zip(&array.data) {
            store(&mut placed.bytes, array.dtype, position, value);
        }
        placed
    }

    /// The tensor's values in `bytes`, a buffer with the same layout as this one.
    pub(crate) fn values(&self, bytes: &[u8]) -> Vec<Scalar> {
        self.layout.positions().map(|p| load(bytes, self.dtype, p)).collect()
    }

    /// The offset of the first byte outside the elements that differs between this buffer and `bytes`.
    pub(crate) fn stray_write(&self, bytes: &[u8]) -> Option<usize> {
        let size = self.dtype.size();
        let mut mine = vec![false; bytes.len()];
        for p in self.layout.positions() {
            mine[p * size..][..size].fill(true);
        }
        (0..bytes.len()).find(|&i| !mine[i] && bytes[i] != self.bytes[i])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_placement_holds_the_values_that_it_was_given() {
        let mut rng = Rng::new("placements");
        for dims in [&[][..], &[5], &[3, 4], &[2, 1, 3], &[0, 2], &[4, 2, 3, 6]] {
            for placement in Placement::INPUTS {
                let a = Array::random(DType::F32, dims, &mut rng).fitted(placement);
                let placed = Placed::new(&a, placement, 0xFF);
                assert_eq!(placed.values(&placed.bytes), a.data, "{dims:?} {placement:?}");
                assert_eq!(placed.stray_write(&placed.bytes), None);
            }
        }
    }

    #[test]
    fn placements_differ() {
        let layouts = Placement::INPUTS.map(|p| p.layout(shape(&[3, 4])).0);
        for (i, a) in layouts.iter().enumerate() {
            assert!(layouts[..i].iter().all(|b| a != b), "{a:?}");
        }
    }
}

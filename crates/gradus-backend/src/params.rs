//! Parameters of the operations: plain data, checked when an operation is called.

use crate::{Axes, Error, Here, Result};

/// How [`Backend::reduce`](crate::Backend::reduce) combines elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReduceOp {
    /// Sum, added up in the order of a fixed tree; 0 for no elements. Integers and booleans accumulate in 64 bits and
    /// wrap.
    Sum,
    /// Product; 1 for no elements.
    Prod,
    /// Largest element; NaN if any element is NaN. Fails if there are no elements.
    Max,
    /// Smallest element; NaN if any element is NaN. Fails if there are no elements.
    Min,
    /// Whether any element is non-zero; the output is bool.
    Any,
    /// Whether all elements are non-zero; the output is bool.
    All,
}

/// What reads the output of a kernel in [`Backend::map_into`](crate::Backend::map_into).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reader {
    /// [`Backend::reduce`](crate::Backend::reduce).
    Reduce(ReduceOp, Axes),
    /// [`Backend::softmax`](crate::Backend::softmax) along an axis, or its logarithm.
    Softmax {
        /// Whether to compute the logarithm.
        log: bool,
        /// The axis.
        axis: usize,
    },
}

impl Reader {
    /// The operation's name.
    pub const fn name(self) -> &'static str {
        match self {
            Reader::Reduce(op, _) => op.name(),
            Reader::Softmax { log: false, .. } => "softmax",
            Reader::Softmax { log: true, .. } => "log_softmax",
        }
    }
}

impl ReduceOp {
    /// The operation's name.
    pub const fn name(self) -> &'static str {
        match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Prod => "prod",
            ReduceOp::Max => "max",
            ReduceOp::Min => "min",
            ReduceOp::Any => "any",
            ReduceOp::All => "all",
        }
    }
}

/// Which element [`Backend::arg_reduce`](crate::Backend::arg_reduce) looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ArgReduceOp {
    /// The first of the largest elements. NaN counts as largest, and the first NaN wins.
    Max,
    /// The first of the smallest elements. NaN counts as smallest, and the first NaN wins.
    Min,
}

/// What [`Backend::scan`](crate::Backend::scan) accumulates along an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ScanOp {
    /// Running sum.
    Sum,
    /// Running product.
    Prod,
    /// Running maximum; once NaN, it stays NaN.
    Max,
    /// Running minimum; once NaN, it stays NaN.
    Min,
    /// Running logarithm of the sum of exponentials (floats only).
    LogSumExp,
}

/// How [`Backend::scatter`](crate::Backend::scatter) combines a value with its destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ScatterOp {
    /// Replaces the destination. If several values have the same destination, the last one in row-major order of the
    /// indices wins.
    Set,
    /// Adds to the destination, in row-major order of the indices.
    Add,
}

/// A distribution for [`Backend::random`](crate::Backend::random); the `philox` module states the formulas. Equality
/// compares floats by their bits.
#[derive(Debug, Clone, Copy)]
pub enum Distribution {
    /// Floats uniform in `[lo, hi)`.
    Uniform {
        /// Lower bound, inclusive.
        lo: f64,
        /// Upper bound, exclusive.
        hi: f64,
    },
    /// Normal floats (Box-Muller).
    Normal {
        /// Mean.
        mean: f64,
        /// Standard deviation.
        std: f64,
    },
    /// 1 with probability `p`, otherwise 0; any dtype.
    Bernoulli {
        /// Probability of 1.
        p: f64,
    },
    /// Integers uniform in `lo..hi`.
    Int {
        /// Lowest value.
        lo: i64,
        /// One above the highest value.
        hi: i64,
    },
}

impl Distribution {
    fn bits(self) -> (u8, u64, u64) {
        match self {
            Distribution::Uniform { lo, hi } => (0, lo.to_bits(), hi.to_bits()),
            Distribution::Normal { mean, std } => (1, mean.to_bits(), std.to_bits()),
            Distribution::Bernoulli { p } => (2, p.to_bits(), 0),
            Distribution::Int { lo, hi } => (3, lo as u64, hi as u64),
        }
    }
}

impl PartialEq for Distribution {
    fn eq(&self, other: &Self) -> bool {
        self.bits() == other.bits()
    }
}
impl Eq for Distribution {}

impl std::hash::Hash for Distribution {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.bits().hash(state);
    }
}

/// A sliding window over one to three trailing spatial axes: convolution, pooling, unfold and fold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Window {
    /// Number of spatial axes, 1 to 3. Array entries from this index on are unused.
    pub rank: usize,
    /// Size of the window.
    pub kernel: [usize; 3],
    /// Step between neighbouring windows.
    pub stride: [usize; 3],
    /// Step between neighbouring elements of a window.
    pub dilation: [usize; 3],
    /// Padding before the first element.
    pub pad_before: [usize; 3],
    /// Padding after the last element.
    pub pad_after: [usize; 3],
}

impl Window {
    /// A two-dimensional window with stride 1 and neither padding nor dilation.
    pub fn new2d(kernel: [usize; 2]) -> Self {
        let mut k = [1; 3];
        k[..2].copy_from_slice(&kernel);
        Window { rank: 2, kernel: k, stride: [1; 3], dilation: [1; 3], pad_before: [0; 3], pad_after: [0; 3] }
    }

    /// Sets the stride.
    #[must_use]
    pub fn stride2d(mut self, stride: [usize; 2]) -> Self {
        self.stride[..2].copy_from_slice(&stride);
        self
    }

    /// Sets the padding, the same on both sides.
    #[must_use]
    pub fn padding2d(mut self, padding: [usize; 2]) -> Self {
        self.pad_before[..2].copy_from_slice(&padding);
        self.pad_after[..2].copy_from_slice(&padding);
        self
    }

    /// Sets the dilation.
    #[must_use]
    pub fn dilation2d(mut self, dilation: [usize; 2]) -> Self {
        self.dilation[..2].copy_from_slice(&dilation);
        self
    }

    /// Number of elements of the window.
    pub fn numel(&self) -> usize {
        self.kernel[..self.rank].iter().product()
    }

    /// Number of windows along each axis of an input with these spatial sizes:
    /// `(size + pad_before + pad_after - dilation * (kernel - 1) - 1) / stride + 1`, rounded down.
    ///
    /// Returns an error if a kernel size, stride or dilation is 0, or if not even one window fits.
    #[track_caller]
    pub fn output(&self, op: &str, spatial: &[usize]) -> Result<[usize; 3]> {
        if !(1..=3).contains(&self.rank) || spatial.len() != self.rank {
            let m = format!("a window over {} axes does not fit {} spatial axes", self.rank, spatial.len());
            return Err(Error::argument(op, m));
        }
        let mut out = [1; 3];
        for (i, &size) in spatial.iter().enumerate() {
            let (k, s, d) = (self.kernel[i], self.stride[i], self.dilation[i]);
            for (name, v) in [("kernel", k), ("stride", s), ("dilation", d)] {
                if v == 0 {
                    return Err(Error::argument(op, format!("{name} is 0 on spatial axis {i}; it is at least 1")));
                }
            }
            let overflow = || Error::argument(op, format!("the window on spatial axis {i} is too large"));
            let reach = (k - 1).checked_mul(d).and_then(|r| r.checked_add(1)).ok_or_else(overflow).here()?;
            let padded = size
                .checked_add(self.pad_before[i])
                .and_then(|p| p.checked_add(self.pad_after[i]))
                .filter(|&p| p <= isize::MAX as usize)
                .ok_or_else(overflow)
                .here()?;
            if padded < reach {
                let m =
                    format!("the window spans {reach} elements of spatial axis {i}, which has {padded} with padding");
                return Err(Error::shape(op, m).help("use a smaller kernel or dilation, or more padding"));
            }
            out[i] = (padded - reach) / s + 1;
        }
        Ok(out)
    }

    /// The element at `tap` of the window at `position`, as an index along spatial axis `axis` of `size` elements;
    /// `None` if it lies in the padding.
    pub fn element(&self, axis: usize, position: usize, tap: usize, size: usize) -> Option<usize> {
        let padded = position * self.stride[axis] + tap * self.dilation[axis];
        padded.checked_sub(self.pad_before[axis]).filter(|&i| i < size)
    }

    /// Checks the conditions for max pooling beyond those of [`output`](Window::output): the padding on each side is
    /// narrower than the window, and every window covers at least one element.
    #[track_caller]
    pub fn check_pool(&self, op: &str, spatial: &[usize]) -> Result<()> {
        let positions = self.output(op, spatial)?;
        for (i, &size) in spatial.iter().enumerate() {
            let reach = (self.kernel[i] - 1) * self.dilation[i] + 1;
            let pad = self.pad_before[i].max(self.pad_after[i]);
            if pad >= reach {
                let m =
                    format!("padding {pad} on spatial axis {i} is as wide as the window, which spans {reach} elements");
                return Err(Error::argument(op, m).help("use less padding: at most half the window is usual"));
            }
            // A dilated window can step over all elements of a short axis.
            let covers = |at| (0..self.kernel[i]).any(|tap| self.element(i, at, tap, size).is_some());
            if let Some(at) = (0..positions[i]).find(|&at| !covers(at)) {
                let m = format!("window {at} on spatial axis {i} covers padding only");
                return Err(Error::argument(op, m).help("use less padding or dilation"));
            }
        }
        Ok(())
    }
}

/// Implements equality and hashing field by field. Floats are compared by their bits: NaN equals itself, and -0 differs
/// from 0.
#[doc(hidden)]
#[macro_export]
macro_rules! eq_by_bits {
    ($type:ident { $($field:ident),* } floats { $($float:ident),* }) => {
        impl PartialEq for $type {
            fn eq(&self, other: &Self) -> bool {
                // This compiles only if every field is named.
                let $type { $($field),*, $($float),* } = self;
                $(*$field == other.$field &&)* $($float.to_bits() == other.$float.to_bits() &&)* true
            }
        }
        impl Eq for $type {}
        impl std::hash::Hash for $type {
            fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
                $(self.$field.hash(state);)*
                $(self.$float.to_bits().hash(state);)*
            }
        }
    };
}

eq_by_bits!(CrossEntropyParams { ignore_index } floats { label_smoothing });
eq_by_bits!(AttentionParams { causal } floats { scale });

/// Parameters of [`Backend::cross_entropy`](crate::Backend::cross_entropy). Equality compares floats by their bits.
#[derive(Debug, Clone, Copy)]
pub struct CrossEntropyParams {
    /// Rows with this target have loss 0 and no gradient.
    pub ignore_index: Option<i64>,
    /// The fraction of the target's probability, in `[0, 1]`, that is spread evenly over all classes.
    pub label_smoothing: f64,
}

/// Parameters of [`Backend::attention`](crate::Backend::attention). Equality compares floats by their bits.
#[derive(Debug, Clone, Copy)]
pub struct AttentionParams {
    /// Whether query `i` attends only to the keys `j <= i + Lkv - Lq`.
    pub causal: bool,
    /// The factor by which the scores are multiplied; usually `1 / sqrt(D)`.
    pub scale: f64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn windows_count_positions_by_the_formula_and_refuse_what_does_not_fit() {
        let w = Window::new2d([3, 2]).stride2d([2, 1]).padding2d([1, 0]).dilation2d([2, 1]);
        assert_eq!(w.output("conv", &[7, 5]).unwrap(), [3, 4, 1]);
        assert_eq!(w.output("conv", &[2, 5]).unwrap_err().kind(), &ErrorKind::ShapeMismatch);
        assert!(w.output("conv", &[7]).is_err());
        assert!(w.stride2d([0, 1]).output("conv", &[7, 5]).is_err());
        assert!(w.dilation2d([usize::MAX, 1]).output("conv", &[7, 5]).is_err());
        assert!(w.output("conv", &[usize::MAX, 5]).is_err());
    }

    #[test]
    fn elements_lie_where_stride_dilation_and_padding_put_them() {
        let w = Window::new2d([3, 2]).stride2d([2, 1]).padding2d([1, 0]).dilation2d([2, 1]);
        let axis0 = |position| [0, 1, 2].map(|tap| w.element(0, position, tap, 7));
        assert_eq!(axis0(0), [None, Some(1), Some(3)]);
        assert_eq!(axis0(2), [Some(3), Some(5), None]);
    }

    #[test]
    fn a_maximum_needs_an_element_under_every_window() {
        let w = Window::new2d([2, 3]);
        assert!(w.padding2d([1, 2]).check_pool("max_pool", &[4, 4]).is_ok());
        assert!(w.padding2d([2, 0]).check_pool("max_pool", &[4, 4]).is_err());
        // The taps lie at -1 and 2 on an axis with one element.
        let mut over = Window::new2d([1, 2]).dilation2d([1, 3]);
        (over.pad_before[1], over.pad_after[1]) = (1, 2);
        assert!(over.check_pool("max_pool", &[1, 1]).is_err());
    }
}

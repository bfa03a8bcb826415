//! The lanes of a sum: how many there are, how they are combined into one number, and which of them are used.

/// The number of partial sums.
pub(crate) const LANES: usize = 16;
/// The number of narrow rows that are computed together. If the rows are transposed, each has one lane. If they are
/// read in chunks, the lanes of all rows are combined together.
pub(crate) const ROWS: usize = 16;

/// Combines the upper half of the partial results with the lower half until only one is left.
#[inline(always)]
pub(crate) fn halved<T: Copy>(mut lanes: [T; LANES], combine: impl Fn(T, T) -> T) -> T {
    let mut width = LANES / 2;
    while width > 0 {
        for l in 0..width {
            lanes[l] = combine(lanes[l], lanes[l + width]);
        }
        width /= 2;
    }
    lanes[0]
}

/// Returns 1 for the first `count` lanes and 0 for the others. Callers test these values because LLVM vectorises such
/// tests, but not comparisons of the lane's index with `count`.
#[inline(always)]
pub(crate) fn first_lanes(count: usize) -> &'static [u32; LANES] {
    static ALL: [u32; 2 * LANES] = {
        let mut all = [0; 2 * LANES];
        let mut i = 0;
        while i < LANES {
            all[i] = 1;
            i += 1;
        }
        all
    };
    ALL[LANES - count..].first_chunk().unwrap_or(&[0; LANES])
}

/// Returns the larger number, or `a` if either is NaN.
#[inline(always)]
pub(crate) fn larger<T: PartialOrd>(a: T, b: T) -> T {
    if b > a { b } else { a }
}

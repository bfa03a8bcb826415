//! The lanes of a sum: how many there are, how they become one number, and which of them count.

/// Number of partial sums.
pub(crate) const LANES: usize = 16;
/// Number of narrow rows computed together: if transposed, each is a lane; if in chunks, their partial sums are halved
/// together.
pub(crate) const ROWS: usize = 16;

/// The upper half of the partial results into the lower one, until one is left.
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

/// 1 for this many lanes and 0 for the others. Compared with a loaded table, because LLVM vectorises that but not a
/// comparison with the lane's number.
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

/// The larger number; `a` where `b` is NaN.
#[inline(always)]
pub(crate) fn larger<T: PartialOrd>(a: T, b: T) -> T {
    if b > a { b } else { a }
}

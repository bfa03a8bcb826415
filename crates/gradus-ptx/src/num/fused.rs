//! `fma.rn.f32` of all lanes, which is most of what products of matrices do.

use super::{f32_bits, fma_odd};

/// The row of a 32-bit register.
type Row = [u32; 32];

/// `a * b + c`, rounded once.
pub(crate) fn fma_row(a: &Row, b: &Row, c: &Row) -> Row {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("fma") && std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has the features that the function needs.
        return unsafe { fma_fast(a, b, c) };
    }
    std::array::from_fn(|lane| {
        let [x, y, z] = [a, b, c].map(|row| f64::from(f32::from_bits(row[lane])));
        f32_bits::<false>(fma_odd(x, y, z) as f32)
    })
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "fma,avx2")]
fn fma_fast(a: &Row, b: &Row, c: &Row) -> Row {
    std::array::from_fn(|lane| {
        let [x, y, z] = [a, b, c].map(|row| f32::from_bits(row[lane]));
        f32_bits::<false>(x.mul_add(y, z))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both ways give the same bits, NaNs included.
    #[test]
    fn rows_are_what_lanes_are() {
        let mut state = 7u32;
        let mut row = || -> Row {
            std::array::from_fn(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                state ^ state >> 13
            })
        };
        for _ in 0..10_000 {
            let (a, b, c) = (row(), row(), row());
            for (lane, found) in fma_row(&a, &b, &c).into_iter().enumerate() {
                let [x, y, z] = [a, b, c].map(|row| f64::from(f32::from_bits(row[lane])));
                assert_eq!(found, f32_bits::<false>(fma_odd(x, y, z) as f32));
            }
        }
    }
}

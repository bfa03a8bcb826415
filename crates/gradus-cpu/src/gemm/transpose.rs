//! Transposes blocks of 8 by 8 numbers in registers, and of 16 by 16 where these are wide enough.

use crate::isa::{Isa, Level};

/// A number whose blocks can be transposed.
pub(crate) trait Transpose: Copy {
    /// Sets `out[p * ld + r] = rows[r][p]` for `r` and `p` below 8.
    ///
    /// # Safety
    /// Each of `rows` points to 8 readable numbers. For each `p`, `out + p * ld` points to 8 writable numbers that
    /// overlap none of the rows.
    unsafe fn transpose8(isa: Isa, rows: [*const Self; 8], out: *mut Self, ld: usize);
}

/// # Safety
/// As for [`Transpose::transpose8`].
unsafe fn portable<T: Copy>(rows: [*const T; 8], out: *mut T, ld: usize) {
    for p in 0..8 {
        for (r, row) in rows.iter().enumerate() {
            // SAFETY: guaranteed by the caller.
            unsafe { *out.add(p * ld + r) = *row.add(p) };
        }
    }
}

/// # Safety
/// As for [`Transpose::transpose8`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn f32_avx2(rows: [*const f32; 8], out: *mut f32, ld: usize) {
    use std::arch::x86_64::*;
    // These are loops because closures would not be compiled for AVX2.
    let mut r = [_mm256_setzero_ps(); 8];
    for i in 0..8 {
        // SAFETY: guaranteed by the caller.
        r[i] = unsafe { _mm256_loadu_ps(rows[i]) };
    }
    let mut quads = [_mm256_setzero_ps(); 8];
    for h in 0..2 {
        let i = 4 * h;
        let (a, b) = (_mm256_unpacklo_ps(r[i], r[i + 1]), _mm256_unpackhi_ps(r[i], r[i + 1]));
        let (c, d) = (_mm256_unpacklo_ps(r[i + 2], r[i + 3]), _mm256_unpackhi_ps(r[i + 2], r[i + 3]));
        quads[i] = _mm256_shuffle_ps::<0x44>(a, c);
        quads[i + 1] = _mm256_shuffle_ps::<0xee>(a, c);
        quads[i + 2] = _mm256_shuffle_ps::<0x44>(b, d);
        quads[i + 3] = _mm256_shuffle_ps::<0xee>(b, d);
    }
    for i in 0..4 {
        let (x, y) = (quads[i], quads[i + 4]);
        // SAFETY: guaranteed by the caller.
        unsafe { _mm256_storeu_ps(out.add(i * ld), _mm256_permute2f128_ps::<0x20>(x, y)) };
    }
    for i in 0..4 {
        let (x, y) = (quads[i], quads[i + 4]);
        // SAFETY: guaranteed by the caller.
        unsafe { _mm256_storeu_ps(out.add((i + 4) * ld), _mm256_permute2f128_ps::<0x31>(x, y)) };
    }
}

/// # Safety
/// As for [`Transpose::transpose8`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn f64_avx2(rows: [*const f64; 8], out: *mut f64, ld: usize) {
    use std::arch::x86_64::*;
    for p in [0, 4] {
        let mut halves = [[_mm256_setzero_pd(); 4]; 2];
        for (h, half) in halves.iter_mut().enumerate() {
            let mut r = [_mm256_setzero_pd(); 4];
            for i in 0..4 {
                // SAFETY: guaranteed by the caller.
                r[i] = unsafe { _mm256_loadu_pd(rows[4 * h + i].add(p)) };
            }
            let (a, b) = (_mm256_unpacklo_pd(r[0], r[1]), _mm256_unpackhi_pd(r[0], r[1]));
            let (c, d) = (_mm256_unpacklo_pd(r[2], r[3]), _mm256_unpackhi_pd(r[2], r[3]));
            *half = [
                _mm256_permute2f128_pd::<0x20>(a, c),
                _mm256_permute2f128_pd::<0x20>(b, d),
                _mm256_permute2f128_pd::<0x31>(a, c),
                _mm256_permute2f128_pd::<0x31>(b, d),
            ];
        }
        let [left, right] = halves;
        for (i, (&l, &r)) in left.iter().zip(&right).enumerate() {
            // SAFETY: guaranteed by the caller.
            unsafe {
                _mm256_storeu_pd(out.add((p + i) * ld), l);
                _mm256_storeu_pd(out.add((p + i) * ld + 4), r);
            }
        }
    }
}

/// Sets `to[r][p] = from[p * ld + r]` for `r` and `p` below 16.
///
/// # Safety
/// For each `p`, `from + p * ld` points to 16 readable numbers. Each of `to` points to 16 writable numbers that overlap none of
/// those. The processor has AVX-512.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
pub(crate) unsafe fn f32_by_16(from: *const f32, ld: usize, to: [*mut f32; 16]) {
    use std::arch::x86_64::*;
    let mut r = [_mm512_setzero_ps(); 16];
    for (p, r) in r.iter_mut().enumerate() {
        // SAFETY: guaranteed by the caller.
        *r = unsafe { _mm512_loadu_ps(from.add(p * ld)) };
    }
    // Lane `l` of `quads[4 * g + c]` has column `4 * l + c` of the rows from `4 * g` on.
    let mut quads = [_mm512_setzero_ps(); 16];
    for i in [0, 4, 8, 12] {
        let (a, b) = (_mm512_unpacklo_ps(r[i], r[i + 1]), _mm512_unpackhi_ps(r[i], r[i + 1]));
        let (c, d) = (_mm512_unpacklo_ps(r[i + 2], r[i + 3]), _mm512_unpackhi_ps(r[i + 2], r[i + 3]));
        quads[i] = _mm512_shuffle_ps::<0x44>(a, c);
        quads[i + 1] = _mm512_shuffle_ps::<0xee>(a, c);
        quads[i + 2] = _mm512_shuffle_ps::<0x44>(b, d);
        quads[i + 3] = _mm512_shuffle_ps::<0xee>(b, d);
    }
    for c in 0..4 {
        let [x, y] = [(quads[c], quads[4 + c]), (quads[8 + c], quads[12 + c])];
        let (left, below) = (_mm512_shuffle_f32x4::<0x44>(x.0, x.1), _mm512_shuffle_f32x4::<0x44>(y.0, y.1));
        let (right, beside) = (_mm512_shuffle_f32x4::<0xee>(x.0, x.1), _mm512_shuffle_f32x4::<0xee>(y.0, y.1));
        // SAFETY: guaranteed by the caller.
        unsafe {
            _mm512_storeu_ps(to[c], _mm512_shuffle_f32x4::<0x88>(left, below));
            _mm512_storeu_ps(to[4 + c], _mm512_shuffle_f32x4::<0xdd>(left, below));
            _mm512_storeu_ps(to[8 + c], _mm512_shuffle_f32x4::<0x88>(right, beside));
            _mm512_storeu_ps(to[12 + c], _mm512_shuffle_f32x4::<0xdd>(right, beside));
        }
    }
}

macro_rules! transpose {
    ($t:ty, $avx2:ident) => {
        impl Transpose for $t {
            #[inline(always)]
            unsafe fn transpose8(isa: Isa, rows: [*const Self; 8], out: *mut Self, ld: usize) {
                // SAFETY: both levels have AVX2. The rest is guaranteed by the caller.
                unsafe {
                    match isa.level() {
                        #[cfg(target_arch = "x86_64")]
                        Level::Avx512 | Level::Avx2 => $avx2(rows, out, ld),
                        Level::Portable => portable(rows, out, ld),
                    }
                }
            }
        }
    };
}
transpose!(f32, f32_avx2);
transpose!(f64, f64_avx2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn blocks_of_16_are_transposed_in_order() {
        let data: Vec<f32> = (0..16 * 19).map(|i| i as f32).collect();
        for _ in Isa::available().into_iter().filter(|isa| isa.level() == Level::Avx512) {
            let mut rows = [[0.0; 16]; 16];
            // SAFETY: the last load ends at 15 * 19 + 16, inside `data`, and the level has AVX-512.
            unsafe { f32_by_16(data.as_ptr(), 19, rows.each_mut().map(|row| row.as_mut_ptr())) };
            assert!((0..256).all(|i| rows[i / 16][i % 16] == data[i % 16 * 19 + i / 16]));
        }
    }

    #[test]
    fn blocks_are_transposed_in_order() {
        fn check<T: Transpose + PartialEq + std::fmt::Debug + Default>(from: impl Fn(usize) -> T) {
            let data: Vec<T> = (0..8 * 9).map(from).collect();
            for isa in Isa::available() {
                let mut out = vec![T::default(); 8 * 11];
                let rows = std::array::from_fn(|r| data[r * 9..].as_ptr());
                // SAFETY: each row of 9 numbers has 8 readable numbers, and the last store ends at 7 * 11 + 8, inside
                // `out`.
                unsafe { T::transpose8(isa, rows, out.as_mut_ptr(), 11) };
                assert!((0..64).all(|i| out[i / 8 * 11 + i % 8] == data[i % 8 * 9 + i / 8]));
            }
        }
        check(|i| i as f32);
        check(|i| i as f64);
    }
}

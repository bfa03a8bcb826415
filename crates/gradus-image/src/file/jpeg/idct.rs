//! The inverse cosine transform of 8 x 8 coefficients, by the algorithm of Arai, Agui and Nakajima (described in Pennebaker
//! and Mitchell, "JPEG: Still Image Data Compression Standard", section 4.2.2), in f32.

/// The places of the coefficients in zigzag order: `8 * column + row`, since [`pixels`] takes them by columns.
pub(super) const PLACES: [u8; 64] = {
    let mut places = [0; 64];
    let (mut row, mut column, mut k) = (0, 0, 0);
    while k < 64 {
        places[k] = (8 * column + row) as u8;
        // Up on even diagonals, down on odd ones.
        if (row + column) % 2 == 0 {
            if column == 7 {
                row += 1;
            } else {
                column += 1;
                row -= (row > 0) as usize;
            }
        } else if row == 7 {
            column += 1;
        } else {
            row += 1;
            column -= (column > 0) as usize;
        }
        k += 1;
    }
    places
};

/// The factors of a row or column of coefficients before the algorithm, which its multiplications leave out.
const FACTORS: [f64; 8] = [
    1.0,
    1.387_039_845_322_148,
    1.306_562_964_876_377,
    1.175_875_602_419_359,
    1.0,
    0.785_694_958_387_102,
    0.541_196_100_146_197,
    0.275_899_379_282_943,
];

/// The factors by which the coefficients of a file are multiplied, both in zigzag order, for [`pixels`].
pub(super) fn steps(quantization: &[u16; 64]) -> [f32; 64] {
    let mut steps = [0.0; 64];
    for ((step, &number), &place) in steps.iter_mut().zip(quantization).zip(&PLACES) {
        let (row, column) = (usize::from(place % 8), usize::from(place / 8));
        *step = (f64::from(number) * FACTORS[row] * FACTORS[column] / 8.0) as f32;
    }
    steps
}

/// The transform along the first axis. The loop is over what is treated alike, so that it becomes vector instructions.
#[inline(never)]
fn pass(x: &[[f32; 8]; 8], out: &mut [[f32; 8]; 8]) {
    for i in 0..8 {
        let (sum, difference) = (x[0][i] + x[4][i], x[0][i] - x[4][i]);
        let middle = x[2][i] + x[6][i];
        let turned = (x[2][i] - x[6][i]) * std::f32::consts::SQRT_2 - middle;
        let even = [sum + middle, difference + turned, difference - turned, sum - middle];

        let (z13, z10) = (x[5][i] + x[3][i], x[5][i] - x[3][i]);
        let (z11, z12) = (x[1][i] + x[7][i], x[1][i] - x[7][i]);
        let z5 = (z10 + z12) * 1.847_759_1;
        let odd0 = z11 + z13;
        let odd1 = z5 - z10 * 2.613_126 - odd0;
        let odd2 = (z11 - z13) * std::f32::consts::SQRT_2 - odd1;
        let odd3 = z5 - z12 * 1.082_392_2 - odd2;

        out[0][i] = even[0] + odd0;
        out[7][i] = even[0] - odd0;
        out[1][i] = even[1] + odd1;
        out[6][i] = even[1] - odd1;
        out[2][i] = even[2] + odd2;
        out[5][i] = even[2] - odd2;
        out[3][i] = even[3] + odd3;
        out[4][i] = even[3] - odd3;
    }
}

/// The pixels (rows of 8) of coefficients that were multiplied by [`steps`] and stand at [`PLACES`].
pub(super) fn pixels(coefficients: &[[f32; 8]; 8]) -> [[u8; 8]; 8] {
    let (mut across, mut rows) = ([[0.0; 8]; 8], [[0.0; 8]; 8]);
    pass(coefficients, &mut across);
    for (y, row) in rows.iter_mut().enumerate() {
        for (v, column) in row.iter_mut().zip(&across) {
            *v = column[y];
        }
    }
    pass(&rows, &mut across);
    let mut bytes = [[0; 8]; 8];
    for (byte, v) in bytes.as_flattened_mut().iter_mut().zip(across.as_flattened()) {
        *byte = nearest(*v + MIDDLE);
    }
    bytes
}

/// What a sum of waves of 0 stands for.
const MIDDLE: f32 = 128.0;

/// The pixels of a block whose coefficients are 0, but for the first.
pub(super) fn flat(first: f32) -> [[u8; 8]; 8] {
    [[nearest(first + MIDDLE); 8]; 8]
}

/// Rounds to the nearest byte, halves to even.
#[inline(always)]
pub(crate) fn nearest(v: f32) -> u8 {
    // Written so that NaN becomes 0 and that both are single instructions.
    let v = if v > 0.0 { v } else { 0.0 };
    let v = if v < 255.0 { v } else { 255.0 };
    // The unit of floats of this size is 1, so that the sum is rounded and its lowest bits are the number.
    (v + 12_582_912.0).to_bits() as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition: section A.3.3 of <https://www.w3.org/Graphics/JPEG/itu-t81.pdf>.
    fn exact(coefficients: &[[f64; 8]; 8], x: usize, y: usize) -> f64 {
        let mut sum = 0.0;
        for (v, row) in coefficients.iter().enumerate() {
            for (u, c) in row.iter().enumerate() {
                let scale = |k: usize| if k == 0 { std::f64::consts::FRAC_1_SQRT_2 } else { 1.0 };
                let wave = |k: usize, at: usize| ((2 * at + 1) as f64 * k as f64 * std::f64::consts::PI / 16.0).cos();
                sum += scale(u) * scale(v) * c * wave(u, x) * wave(v, y) / 4.0;
            }
        }
        sum + 128.0
    }

    #[test]
    fn pixels_are_those_of_the_definition() {
        let mut seed = 1u32;
        let mut next = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 20) as i32 % 256 - 128
        };
        for round in 0..50 {
            let quantization = std::array::from_fn(|k| 1 + (k as u16 * (round % 5)) / 4);
            let steps = steps(&quantization);
            let (mut plain, mut scaled) = ([[0.0; 8]; 8], [[0.0; 8]; 8]);
            for k in (0..64).filter(|&k| k < 1 + round as usize) {
                let (value, place) = (next() / (1 + k as i32 / 4), usize::from(PLACES[k]));
                plain[place % 8][place / 8] = f64::from(value) * f64::from(quantization[k]);
                scaled[place / 8][place % 8] = value as f32 * steps[k];
            }
            for (y, row) in pixels(&scaled).iter().enumerate() {
                for (x, &found) in row.iter().enumerate() {
                    let wanted = exact(&plain, x, y).clamp(0.0, 255.0);
                    assert!((f64::from(found) - wanted).abs() < 0.501, "{round}: {found} for {wanted}");
                }
            }
        }
        assert_eq!(flat(-3.0), [[125; 8]; 8]);
        let zigzag: Vec<u8> = PLACES[..6].iter().map(|p| p % 8 * 8 + p / 8).collect();
        assert_eq!(zigzag, [0, 1, 8, 16, 9, 2]);
        assert_eq!([nearest(f32::NAN), nearest(-1.0), nearest(300.0), nearest(2.5), nearest(3.5)], [0, 0, 255, 2, 4]);
    }
}

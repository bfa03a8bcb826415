//! Inputs from a formula in which every step is exact or correctly rounded, so that all languages compute the same
//! bits. `harness.py` contains the formula for Python.

/// A well-mixed 32-bit word for each position of each stream.
fn word(stream: u32, place: u32) -> u32 {
    let mut x = place.wrapping_add(stream.wrapping_mul(0x9E37_79B9));
    x = (x ^ (x >> 16)).wrapping_mul(0x85EB_CA6B);
    x = (x ^ (x >> 13)).wrapping_mul(0xC2B2_AE35);
    x ^ (x >> 16)
}

/// The stream of the gradient that a backward pass starts from.
pub const SEED: u32 = 4;

/// The shape of a convolution's result. The sizes are given in the order that the jobs use.
pub fn conv2d_shape(sizes: &[usize]) -> [usize; 4] {
    let side = (sizes[2] + sizes[4] / 2 * 2 - sizes[4]) / sizes[5] + 1;
    [sizes[0], sizes[3], side, side]
}

/// A number in `[-2, 2)` that is a multiple of `2^-22`. The standard deviation is 1.15.
pub(crate) fn unit(stream: u32, place: u32) -> f32 {
    (word(stream, place) >> 8) as f32 * 0.25f32.powi(11) - 2.0
}

/// `n` numbers of a stream, each `unit * scale`.
pub fn values(stream: u32, n: usize, scale: f32) -> Vec<f32> {
    (0..n).map(|i| unit(stream, i as u32) * scale).collect()
}

/// `n` integers of a stream in `0..below`.
pub fn integers(stream: u32, n: usize, below: usize) -> Vec<i64> {
    (0..n).map(|i| ((u64::from(word(stream, i as u32)) * below as u64) >> 32) as i64).collect()
}

/// The parameters of a model. They are created in the order of PyTorch's `named_parameters`, and each uses the next
/// stream. Weights and biases of normalisations are ones and zeros and use no stream.
pub struct Parameters(u32);

impl Parameters {
    /// The first parameter uses stream 10.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Parameters {
        Parameters(10)
    }

    /// The values of the next parameter, uniform within `1 / sqrt(fan_in)` of 0.
    pub fn next(&mut self, n: usize, fan_in: usize) -> Vec<f32> {
        self.0 += 1;
        values(self.0 - 1, n, (0.5 / (fan_in as f64).sqrt()) as f32)
    }
}

/// Converts a weight from `[out, in]` to `[in, out]`, for libraries that store it that way.
pub fn transposed(weight: &[f32], outputs: usize) -> Vec<f32> {
    let inputs = weight.len() / outputs;
    (0..weight.len()).map(|i| weight[i % outputs * inputs + i / outputs]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_formula_gives_what_python_gives() {
        assert_eq!(values(1, 3, 1.0), [0.293_590_3, 0.353_575, 0.816_534_76]);
        assert_eq!(integers(2, 6, 10), [2, 0, 1, 1, 1, 7]);
        assert_eq!(conv2d_shape(&[1, 3, 224, 64, 7, 2]), [1, 64, 112, 112]);
        assert_eq!(conv2d_shape(&[16, 256, 14, 8, 1, 1]), [16, 8, 14, 14]);
        assert_eq!(transposed(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 2), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    }
}

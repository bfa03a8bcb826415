//! [`CudaOptions`]: how a GPU computes, where there is a choice.

use gradus_backend::{Error, Result};

const TF32: &str = "GRADUS_CUDA_TF32";

/// How a GPU computes, where there is a choice. By default, arithmetic is that of each tensor's dtype.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CudaOptions {
    /// Whether products of matrices of f32 run on tensor cores, with both factors rounded to tf32: the nearest number of 11
    /// significant bits, with the exponents of f32. Products of two such numbers are exact, and sums are kept in f32, of
    /// which a GPU may cut bits off. So a result differs from the exact one by at most 2⁻¹⁰ of the sum of the magnitudes of
    /// its products, besides what sums in f32 lose, if the magnitudes of all factors that are not 0 are between 2⁻¹²⁶ and
    /// 3.4·10³⁸; larger ones become infinite. Products with at most 8 rows or columns are not concerned, nor are
    /// convolutions and attention, except for attention whose heads have more than 256 elements.
    pub tf32: bool,
    /// Whether cuBLASLt computes products of matrices of f16 and bf16 where it is on this machine and is faster; true unless
    /// it is chosen otherwise. Sums are those of f32, and results are rounded once, as without it. They have the same bits on
    /// every run with one version of the library on one kind of GPU, as long as there is memory for its workspace and for copies of
    /// matrices that it cannot read as they are, and other bits than those of the backend's own kernels.
    pub cublaslt: bool,
}

impl Default for CudaOptions {
    fn default() -> Self {
        CudaOptions { tf32: false, cublaslt: true }
    }
}

impl CudaOptions {
    /// The options that the environment chooses: [`tf32`](CudaOptions::tf32) if `GRADUS_CUDA_TF32` is 1. `Device::cuda` and
    /// `Device::open` of the crate `gradus` use these when they first open a GPU.
    ///
    /// # Errors
    /// Fails if the variable is anything but 1, 0 or empty.
    pub fn chosen() -> Result<CudaOptions> {
        let tf32 = match std::env::var_os(TF32) {
            None => false,
            Some(value) => match value.to_str().map(str::trim) {
                Some("1") => true,
                Some("" | "0") => false,
                _ => {
                    let m = format!("{TF32} is {value:?}");
                    return Err(Error::argument("cuda", m).help("1 rounds factors of f32 to tf32; 0 does not"));
                }
            },
        };
        Ok(CudaOptions { tf32, ..CudaOptions::default() })
    }
}

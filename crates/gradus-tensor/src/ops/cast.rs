//! `to_dtype(x)`: conversion of dtype. The gradient is cast back; a conversion to or from integers has none.
//!
//! Float to integer truncates and saturates, NaN gives 0; between floats rounds to nearest, ties to even; integers wrap;
//! anything to bool is `!= 0`.

use std::sync::{Arc, OnceLock};

use gradus_backend::{DType, Kernel, KernelBuilder, Result};
use smallvec::smallvec;

use super::apply_one;
use super::map::{Arg, Map};
use crate::Tensor;

/// The kernel of each pair of dtypes.
static KERNELS: [[OnceLock<Arc<Kernel>>; 13]; 13] = [const { [const { OnceLock::new() }; 13] }; 13];

impl Tensor {
    /// The values in another dtype; the tensor itself if it has that dtype already.
    #[track_caller]
    pub fn to_dtype(&self, dtype: DType) -> Result<Tensor> {
        if self.dtype() == dtype {
            return Ok(self.clone());
        }
        let slot = &KERNELS[self.dtype() as usize][dtype as usize];
        let kernel = match slot.get() {
            Some(k) => k.clone(),
            None => {
                let builder = KernelBuilder::new(&[self.dtype()]);
                // Rounds to half precision once: going through f32 would round twice.
                let holds = matches!(self.dtype(), DType::F64 | DType::I64 | DType::I32 | DType::U64 | DType::U32);
                let via = if holds && dtype.compute() != dtype { DType::F64 } else { dtype };
                let y = builder.args()[0].cast(via);
                let kernel = Arc::new(builder.finish("to_dtype", &[(y, dtype)])?);
                slot.get_or_init(|| kernel).clone()
            }
        };
        apply_one(Map { kernel, args: smallvec![Arg::Tensor(0)] }, &[self])
    }
}

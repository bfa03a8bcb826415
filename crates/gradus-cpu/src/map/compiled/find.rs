//! Finds the compiled form of a kernel.

use gradus_backend::kernel::Value;
use gradus_backend::{DType, Kernel};

use super::list::ALL;
use super::{Compiled, MOST_ARGS};

/// Returns the compiled form of `kernel` if there is one whose single-number arguments are exactly those for which
/// `is_number` is true.
pub(in crate::map) fn find(kernel: &Kernel, is_number: impl Fn(usize) -> bool) -> Option<&'static Compiled> {
    let is_f32 = |outs: &[(Value, DType)]| outs.iter().all(|o| o.1 == DType::F32);
    ALL.iter().copied().find(|c| {
        c.insts.len() == kernel.insts().len()
            && c.insts == kernel.insts()
            && c.outs.iter().eq(kernel.outputs().iter().map(|(v, _)| v))
            && is_f32(kernel.outputs())
            && kernel.args().len() <= MOST_ARGS
            && kernel.args().iter().all(|&a| a == DType::F32)
            && (0..kernel.args().len()).all(|k| is_number(k) == (k >= c.elementwise))
    })
}

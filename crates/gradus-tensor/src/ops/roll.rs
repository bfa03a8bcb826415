//! `roll` and `rot90`: elements moved along axes.

use gradus_backend::shape::resolve_axis;
use gradus_backend::{Axes, Error, Result};

use crate::Tensor;

impl Tensor {
    /// Shifts the elements by `shifts[i]` along `axes[i]`. Elements that leave at one end come in at the other. Without
    /// axes, a single shift moves the flattened elements. The gradient is rolled back.
    ///
    /// ```
    /// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
    /// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    /// let x = Tensor::from_vec(vec![1, 2, 3, 4i64], [4], &device)?;
    /// assert_eq!(x.roll(&[1], &[0])?.to_vec::<i64>()?, [4, 1, 2, 3]);
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn roll(&self, shifts: &[isize], axes: &[isize]) -> Result<Tensor> {
        if axes.is_empty() && shifts.len() == 1 {
            return self.reshape([self.numel()])?.roll(shifts, &[0])?.reshape(self.shape())?.apart_from(self);
        }
        if shifts.len() != axes.len() || axes.is_empty() {
            let e = Error::argument("roll", format!("{} shifts for {} axes", shifts.len(), axes.len()));
            return Err(self.describe(e, "self").help("pass one shift an axis"));
        }
        let mut y = self.clone();
        for (&shift, &axis) in shifts.iter().zip(axes) {
            let size = self.shape()[resolve_axis("roll", axis, self.rank())?];
            // A size is at most `isize::MAX`; an empty axis has nothing to move.
            let by = shift.rem_euclid(size.max(1) as isize) as usize;
            if by > 0 {
                y = Tensor::cat(&[&y.narrow(axis, size - by, by)?, &y.narrow(axis, 0, size - by)?], axis)?;
            }
        }
        y.apart_from(self)
    }

    /// Rotates by `k` quarter turns in the plane of two axes, from the first towards the second. A negative `k` rotates
    /// in the opposite direction. The result is a view.
    #[track_caller]
    pub fn rot90(&self, k: isize, axes: [isize; 2]) -> Result<Tensor> {
        Axes::resolve("rot90", &axes, self.rank())?;
        let [a, b] = axes;
        match k.rem_euclid(4) {
            0 => Ok(self.clone()),
            1 => self.flip(b)?.transpose(a, b),
            2 => self.flip(a)?.flip(b),
            _ => self.flip(a)?.transpose(a, b),
        }
    }
}

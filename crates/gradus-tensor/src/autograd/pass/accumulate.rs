//! Arithmetic on the gradients of a pass: sums over several passes, factors, and the search for infinities and NaNs.

use gradus_backend::Result;

use crate::autograd::{no_autocast_guard, no_grad_guard};
use crate::{Device, Gradients, Tensor};

/// A gradient in at least f32.
#[track_caller]
fn wide(gradient: &Tensor) -> Result<Tensor> {
    gradient.detach().to_dtype(gradient.dtype().compute())
}

impl Gradients {
    /// Adds the gradients of another pass: those of the same tensor are summed, and those of other tensors are taken
    /// over. Sums are in at least f32, also those of gradients in half precision. So several small batches give the
    /// gradients of a large one; see [`scale`](Gradients::scale). If it fails, nothing is changed.
    ///
    /// ```
    /// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
    /// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    /// let w = Tensor::from_vec(vec![2.0f64], [1], &device)?.with_grad()?;
    /// let mut total = Gradients::default();
    /// for x in [3.0, 5.0] {
    ///     total.add((&w * x)?.sum_all()?.backward()?)?;
    /// }
    /// total.scale(0.5)?;
    /// assert_eq!(total.get(&w).unwrap().item()?, 4.0);
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn add(&mut self, other: Gradients) -> Result<()> {
        let _guards = (no_grad_guard(), no_autocast_guard());
        let mut sums = Vec::with_capacity(other.len());
        for (edge, gradient) in other.0 {
            let sum = match self.0.get(&edge) {
                Some(old) => wide(old)?.add(&wide(&gradient)?)?,
                None => gradient,
            };
            sums.push((edge, sum));
        }
        self.0.extend(sums);
        Ok(())
    }

    /// Multiplies all gradients by a factor, in at least f32. If it fails, nothing is changed.
    #[track_caller]
    pub fn scale(&mut self, factor: f64) -> Result<()> {
        let _guards = (no_grad_guard(), no_autocast_guard());
        let mut scaled = Vec::with_capacity(self.len());
        for (&edge, gradient) in &self.0 {
            scaled.push((edge, wide(gradient)?.mul(factor)?));
        }
        self.0.extend(scaled);
        Ok(())
    }

    /// Whether no gradient has an element that is infinite or NaN. Reads one truth value from each device.
    #[track_caller]
    pub fn all_finite(&self) -> Result<bool> {
        let _guards = (no_grad_guard(), no_autocast_guard());
        let mut found: Vec<(&Device, Vec<Tensor>)> = Vec::new();
        for gradient in self.0.values() {
            let axes: Vec<isize> = (0..gradient.rank() as isize).collect();
            let flag = gradient.detach().isfinite()?.all(&axes, false)?;
            match found.iter_mut().find(|(device, _)| *device == gradient.device()) {
                Some((_, flags)) => flags.push(flag),
                None => found.push((gradient.device(), vec![flag])),
            }
        }
        for (_, flags) in found {
            let flags = Tensor::stack(&flags.iter().collect::<Vec<_>>(), 0)?;
            if flags.all(&[0], false)?.item()? == 0.0 {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

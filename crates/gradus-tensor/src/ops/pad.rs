//! `pad`: adds a border to a tensor, or crops it where the border is negative.

use gradus_backend::{Backend, DType, Error, Here, Result, Scalar, Shape, View, ViewMut};
use smallvec::SmallVec;

use super::{Context, Flow, Grads, InputSpec, Operation, Outputs, apply_one, grads, one};
use crate::Tensor;

/// The contents of a border.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PadMode {
    /// One value, which the dtype must be able to represent.
    Constant(Scalar),
    /// The elements next to the edge, mirrored at it but without the edge itself: `c b | a b c | b a`. A border must be
    /// shorter than its axis.
    Reflect,
    /// The edge repeated: `a a | a b c | c c`.
    Replicate,
    /// The elements at the other end of the axis: `b c | a b c | a b`. A negative border is cropped before the border
    /// at the other end is filled. A border is at most as long as the cropped axis.
    Circular,
}

/// Adds elements of the same value before and after each axis.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PadConstant {
    /// The numbers of elements before and after each axis.
    pub pads: SmallVec<[(usize, usize); 8]>,
    /// The value.
    pub value: Scalar,
}

impl Operation for PadConstant {
    fn name(&self) -> &str {
        "pad"
    }

    fn input_names(&self) -> &'static [&'static str] {
        &["self"]
    }

    fn infer(&self, inputs: &[InputSpec<'_>]) -> Result<Outputs> {
        let sizes = inputs[0].shape.iter().zip(&self.pads);
        let dims: SmallVec<[usize; 8]> = sizes.map(|(&d, &(lo, hi))| d.saturating_add(lo).saturating_add(hi)).collect();
        Ok(one(Shape::new(&dims)?, inputs[0].dtype))
    }

    fn forward(&self, backend: &dyn Backend, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        backend.fill(&mut outputs[0], self.value)?;
        let mut part = *outputs[0].layout;
        for (axis, &(lo, _)) in self.pads.iter().enumerate() {
            part = part.narrow(axis, lo, inputs[0].layout.dims()[axis])?;
        }
        if part.numel() == 0 {
            return Ok(());
        }
        backend.copy_strided(inputs[0], &mut outputs[0].with(&part))
    }

    fn flow(&self) -> Flow {
        Flow::Moves
    }

    fn vjp(&self, ctx: &Context<'_>, g: &[Option<Tensor>]) -> Result<Grads> {
        let Some(g) = &g[0] else { return Ok(grads([None])) };
        let mut inner = g.clone();
        for (axis, &(lo, _)) in self.pads.iter().enumerate() {
            inner = inner.narrow(axis as isize, lo, ctx.input_spec(0)?.shape[axis])?;
        }
        Ok(grads([Some(inner)]))
    }
}

impl Tensor {
    /// Adds `(before, after)` elements at the ends of the last axes. The last pair is for the last axis, the pair
    /// before it for the axis before, and so on (PyTorch lists the pairs in the opposite order). Negative numbers crop.
    ///
    /// # Errors
    /// Fails if there are more pairs than axes, if more elements are cropped than the axis has, if the mode does not
    /// allow a border, or if the dtype cannot represent the constant.
    ///
    /// ```
    /// # use gradus_cpu::CpuBackend; use gradus_tensor::{*, ops::PadMode}; use std::sync::Arc;
    /// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    /// let x = Tensor::from_vec(vec![1, 2, 3i64], [3], &device)?;
    /// assert_eq!(x.pad(&[(2, 1)], PadMode::Reflect)?.to_vec::<i64>()?, [3, 2, 1, 2, 3, 2]);
    /// assert_eq!(x.pad(&[(1, -1)], PadMode::Constant(9.into()))?.to_vec::<i64>()?, [9, 1, 2]);
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn pad(&self, pads: &[(isize, isize)], mode: PadMode) -> Result<Tensor> {
        if pads.len() > self.rank() {
            let e = Error::argument("pad", format!("{} pairs for {} axes", pads.len(), self.rank()));
            return Err(self.describe(e, "self"));
        }
        let first = self.rank() - pads.len();
        for (i, &(lo, hi)) in pads.iter().enumerate() {
            self.check_border(first + i, lo, hi, mode)?;
        }
        if let PadMode::Constant(value) = mode {
            value.check(self.dtype()).map_err(|e| self.describe(Error::argument("pad", e.message()), "self")).here()?;
            let mut inner = self.clone();
            let mut outer: SmallVec<[(usize, usize); 8]> = SmallVec::from_elem((0, 0), self.rank());
            for (i, &(lo, hi)) in pads.iter().enumerate() {
                let axis = first + i;
                let cropped = |n: isize| if n < 0 { n.unsigned_abs() } else { 0 };
                let len = self.shape()[axis] - cropped(lo) - cropped(hi);
                inner = inner.narrow(axis as isize, cropped(lo), len)?;
                outer[axis] = (lo.max(0) as usize, hi.max(0) as usize);
            }
            return apply_one(PadConstant { pads: outer, value }, &[&inner]);
        }
        let mut y = self.clone();
        for (i, &(lo, hi)) in pads.iter().enumerate().filter(|(_, p)| **p != (0, 0)) {
            let (axis, size) = (first + i, self.shape()[first + i] as i64);
            // `check_border` has bounded both numbers.
            let (lo, hi) = (lo as i64, hi as i64);
            let places = |from: i64, to: i64| Tensor::arange(from, to, 1, DType::I64, self.device());
            let from = match mode {
                PadMode::Reflect => places(-lo, size + hi).here()?.abs()?.sub(size - 1)?.abs()?.neg()?.add(size - 1)?,
                PadMode::Circular => {
                    let left = size + lo.min(0) + hi.min(0);
                    places(-lo.max(0), left + hi.max(0)).here()?.remainder(left.max(1))?.sub(lo.min(0))?
                }
                _ => places(-lo, size + hi).here()?.clamp(0, (size - 1).max(0))?,
            };
            y = y.index_select(axis as isize, &from)?;
        }
        // The result is a copy, as with a constant border, and never a view of the input.
        if pads.iter().all(|&p| p == (0, 0)) { y.copy() } else { Ok(y) }
    }

    /// Checks that the mode can put `lo` and `hi` elements around an axis.
    #[track_caller]
    fn check_border(&self, axis: usize, lo: isize, hi: isize, mode: PadMode) -> Result<()> {
        let size = self.shape()[axis] as i128;
        let (lo, hi) = (lo as i128, hi as i128);
        let refuse = |m: String, help: &str| {
            let m = format!("({lo}, {hi}) around axis {axis} of size {size}: {m}");
            Err(self.describe(Error::argument("pad", m), "self").help(help))
        };
        if lo.min(0) + hi.min(0) + size < 0 {
            return refuse("more is cropped than there is".into(), "crop at most the size of the axis").here();
        }
        if size + lo.max(0) + hi.max(0) > isize::MAX as i128 {
            return refuse("the result is too large".into(), "pad less").here();
        }
        let border = lo.max(hi);
        match mode {
            PadMode::Reflect if border >= size && border > 0 => {
                refuse("a mirrored border is shorter than the axis".into(), "pad less, or use another mode").here()
            }
            PadMode::Circular if border > size + lo.min(0) + hi.min(0) => {
                refuse("a circular border is at most as long as the axis".into(), "pad less, or use another mode")
                    .here()
            }
            PadMode::Replicate if border > 0 && size == 0 => {
                refuse("an empty axis has no edge to repeat".into(), "pad with a constant").here()
            }
            _ => Ok(()),
        }
    }
}

//! `pad`: a border around a tensor, or a negative one cropped off.

use gradus_backend::{Backend, DType, Error, Here, Result, Scalar, Shape, View, ViewMut};
use smallvec::SmallVec;

use super::{Context, Flow, Grads, InputSpec, Operation, Outputs, apply_one, grads, one};
use crate::Tensor;

/// The contents of a border.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PadMode {
    /// One value, which the dtype must be able to represent.
    Constant(Scalar),
    /// The elements next to the edge mirrored at it, without the edge itself: `c b | a b c | b a`. A border is shorter
    /// than its axis.
    Reflect,
    /// The edge repeated: `a a | a b c | c c`.
    Replicate,
    /// The other end of the axis, as it is after a crop: `b c | a b c | a b`. A border is at most as long as that.
    Circular,
}

/// Elements of one value before and after each axis.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PadConstant {
    /// Before and after each axis.
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
    /// `(before, after)` elements at the ends of the last axes: the last pair belongs to the last axis, the one before it
    /// to the axis before (PyTorch's list runs the other way). Negative numbers crop.
    ///
    /// # Errors
    /// More pairs than axes, a crop of more than there is, a border that the mode cannot make, a constant that the dtype
    /// cannot represent.
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
            // check_border has bounded both ends.
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
        // A copy, as with a constant border, never a view of the input.
        if pads.iter().all(|&p| p == (0, 0)) { y.copy() } else { Ok(y) }
    }

    /// Whether the mode can put `lo` and `hi` elements around an axis.
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

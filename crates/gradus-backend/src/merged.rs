//! [`MergedAxes`]: the loops of a kernel over operands of the same shape.

use crate::Layout;

/// Axes that several operands of the same shape have in common.
#[derive(Debug, Clone)]
pub struct MergedAxes {
    /// The sizes of the axes.
    pub dims: Vec<usize>,
    /// The strides along the axes, for each operand.
    pub steps: Vec<Vec<isize>>,
}

impl MergedAxes {
    /// These axes of operands of the same shape. Axes of size 1 are left out, and neighbouring axes are merged where
    /// the strides of all operands allow it.
    pub fn merged(layouts: &[&Layout], axes: impl Iterator<Item = usize>) -> MergedAxes {
        let mut made = MergedAxes { dims: vec![], steps: vec![vec![]; layouts.len()] };
        for axis in axes {
            let size = layouts[0].dims()[axis];
            if size == 1 {
                continue;
            }
            let next: Vec<isize> = layouts.iter().map(|l| l.strides()[axis]).collect();
            let even = |(steps, next): (&Vec<isize>, &isize)| {
                steps.last().is_some_and(|&last| last == next.wrapping_mul(size as isize))
            };
            if !made.dims.is_empty() && made.steps.iter().zip(&next).all(even) {
                let at = made.dims.len() - 1;
                made.dims[at] *= size;
                made.steps.iter_mut().zip(next).for_each(|(steps, next)| steps[at] = next);
            } else {
                made.dims.push(size);
                made.steps.iter_mut().zip(next).for_each(|(steps, next)| steps.push(next));
            }
        }
        made
    }

    /// The number of axes.
    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    /// The number of elements.
    pub fn numel(&self) -> usize {
        self.dims.iter().product()
    }
}

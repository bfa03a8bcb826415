//! Tensors as text: the values, shape, dtype, device and grad node. Large tensors are abridged.

use std::fmt;

use gradus_backend::host_vec::check_room;
use gradus_backend::{Result, Scalar};

use crate::Tensor;

/// The number of elements above which only the ends of each axis are shown.
const THRESHOLD: usize = 1000;
/// The number of elements shown at each end of an abridged axis.
const EDGE: usize = 3;

/// A number with at most four decimals, or in scientific notation if it is very large or very small.
fn number(v: Scalar) -> String {
    match v {
        Scalar::Float(x) if x == 0.0 || !x.is_finite() => format!("{x}"),
        Scalar::Float(x) if x.abs() >= 1e5 || x.abs() < 1e-3 => format!("{x:.4e}"),
        Scalar::Float(x) => {
            let s = format!("{x:.4}");
            let s = s.trim_end_matches('0');
            s.strip_suffix('.').map_or(s.to_owned(), |s| format!("{s}.0"))
        }
        v => v.to_string(),
    }
}

/// The indices of an axis that are shown; `None` stands for the ones left out.
fn shown(size: usize, abridged: bool) -> Vec<Option<usize>> {
    if !abridged || size <= 2 * EDGE {
        // There are at most `THRESHOLD` indices.
        return (0..size).map(Some).collect();
    }
    (0..EDGE).map(Some).chain([None]).chain((size - EDGE..size).map(Some)).collect()
}

fn write_axis(
    f: &mut fmt::Formatter<'_>,
    text: &dyn Fn(&[usize]) -> String,
    shape: &[usize],
    index: &mut Vec<usize>,
    abridged: bool,
) -> fmt::Result {
    let axis = index.len();
    if axis == shape.len() {
        return f.write_str(&text(index));
    }
    let innermost = axis + 1 == shape.len();
    f.write_str("[")?;
    for (k, i) in shown(shape[axis], abridged).into_iter().enumerate() {
        if k > 0 {
            f.write_str(if innermost { ", " } else { "," })?;
            if !innermost {
                f.write_str("\n")?;
                if axis + 2 < shape.len() {
                    f.write_str("\n")?;
                }
                write!(f, "{:width$}", "", width = axis + 1)?;
            }
        }
        match i {
            None => f.write_str("...")?,
            Some(i) => {
                index.push(i);
                write_axis(f, text, shape, index, abridged)?;
                index.pop();
            }
        }
    }
    f.write_str("]")
}

impl Tensor {
    /// Every element as text.
    #[track_caller]
    fn texts(&self) -> Result<Vec<String>> {
        // Each element needs a `String` and about 24 bytes for its digits.
        check_room(self.device().backend(), "display", self.numel(), size_of::<String>() + 24)?;
        Ok(self.scalars()?.iter().map(|&v| number(v)).collect())
    }

    /// Writes the elements: all of them, or only those at the ends of each axis.
    fn write_values(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Empty axes count as 1: an empty tensor still prints brackets, which are abridged if there are many.
        let abridged = self.shape().iter().map(|&d| d.max(1)).product::<usize>() > THRESHOLD;
        let mut corner = self.detach();
        if abridged && self.numel() > 0 {
            // Reads only the ends, so that a large tensor is not copied from its device as a whole.
            for axis in 0..self.rank() {
                let size = corner.shape()[axis];
                if size > 2 * EDGE {
                    let ends = [(0, EDGE), (size - EDGE, EDGE)];
                    let parts: Result<Vec<_>> =
                        ends.iter().map(|&(at, n)| corner.narrow(axis as isize, at, n)).collect();
                    let joined = parts.and_then(|p| Tensor::cat(&p.iter().collect::<Vec<_>>(), axis as isize));
                    let Ok(joined) = joined else { return f.write_str("<the values cannot be read>") };
                    corner = joined;
                }
            }
        }
        let texts = corner.texts();
        let Ok(texts) = texts else { return f.write_str("<the values cannot be read>") };
        let width = texts.iter().map(String::len).max().unwrap_or(0);
        let width = if self.rank() == 0 { 0 } else { width };
        let small = *corner.layout().shape();
        let full = self.shape().to_vec();
        let text = |index: &[usize]| {
            let mut at = 0;
            for (axis, &i) in index.iter().enumerate() {
                // Converts an index of the full axis to an index of the corner.
                let i = if i >= small[axis] { i + small[axis] - full[axis] } else { i };
                at = at * small[axis] + i;
            }
            format!("{:>width$}", texts[at])
        };
        write_axis(f, &text, self.shape(), &mut Vec::new(), abridged)
    }
}

/// Shows only the values.
impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_values(f)
    }
}

/// Shows the values and all properties: `Tensor([1.0, 2.0], shape [2], f32, cpu, grad_fn mul)`.
impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tensor(")?;
        self.write_values(f)?;
        write!(f, ", shape {}, {}, {}", self.layout().shape(), self.dtype(), self.device())?;
        match self.grad_fn() {
            Some(node) => write!(f, ", grad_fn {})", node.name()),
            None if self.requires_grad() => f.write_str(", requires grad)"),
            None => f.write_str(")"),
        }
    }
}

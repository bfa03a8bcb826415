//! Tensors as text: values, shape, dtype, device and grad node; large ones abridged.

use std::fmt;

use gradus_backend::host_vec::check_room;
use gradus_backend::{Result, Scalar};

use crate::Tensor;

/// Above this many elements only the ends of each axis are shown.
const THRESHOLD: usize = 1000;
/// Elements shown at each end of an abridged axis.
const EDGE: usize = 3;

/// A number with at most four decimals, or in scientific notation where those would all be 0.
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
        // At most `THRESHOLD`.
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
        // One for each element, with room for a number.
        check_room(self.device().backend(), "display", self.numel(), size_of::<String>() + 24)?;
        Ok(self.scalars()?.iter().map(|&v| number(v)).collect())
    }

    /// The elements to show as scalars: all of them, or the ends of each axis only.
    fn write_values(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // An empty tensor is printed as brackets.
        let abridged = self.shape().iter().map(|&d| d.max(1)).product::<usize>() > THRESHOLD;
        let mut corner = self.detach();
        if abridged && self.numel() > 0 {
            // Reads the ends only: a large tensor on a device is not copied as a whole.
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
                // An index of the full axis as one of the corner.
                let i = if i >= small[axis] { i + small[axis] - full[axis] } else { i };
                at = at * small[axis] + i;
            }
            format!("{:>width$}", texts[at])
        };
        write_axis(f, &text, self.shape(), &mut Vec::new(), abridged)
    }
}

/// The values alone.
impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_values(f)
    }
}

/// The values and everything about them: `Tensor([1.0, 2.0], shape [2], f32, cpu, grad_fn mul)`.
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

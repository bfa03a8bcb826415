//! [`ValueRange`]: a summary of a tensor's values in one line.

use std::fmt;
use std::rc::Rc;

use gradus_backend::{DType, Element, Result, Shape, bf16, f16};

use crate::Tensor;
use crate::autograd::diagnose::spread::{Mark, Marks, OP, all_finite, index};

/// The shape, dtype and values of a tensor, as reported by [`NonFiniteReport`](crate::autograd::NonFiniteReport).
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ValueRange {
    /// The role of the tensor in its operation, for example `input 0`.
    pub name: String,
    /// The sizes of the axes.
    pub shape: Vec<usize>,
    /// The dtype of the elements.
    pub dtype: DType,
    /// The smallest finite element; `None` if there is none, or if the dtype is not a float.
    pub min: Option<f64>,
    /// The largest finite element; `None` under the same conditions as `min`.
    pub max: Option<f64>,
    /// The number of NaN elements.
    pub nan: usize,
    /// The number of infinite elements.
    pub infinite: usize,
    /// The index of the first element that is not finite.
    pub first: Option<Vec<usize>>,
}

impl ValueRange {
    /// Returns a summary of the elements of `t`, and a mark for each of them.
    #[track_caller]
    pub(in crate::autograd) fn of(name: String, t: &Tensor) -> Result<(Self, Marks)> {
        let (shape, dtype) = (t.shape().to_vec(), t.dtype());
        let mut marks = Marks { shape: shape.clone(), marks: Rc::default() };
        let mut range = ValueRange { name, shape, dtype, min: None, max: None, nan: 0, infinite: 0, first: None };
        match dtype {
            DType::F64 => range.look(&t.host::<f64>(OP)?, &mut marks)?,
            DType::F32 => range.look(&t.host::<f32>(OP)?, &mut marks)?,
            DType::F16 => range.look(&t.host::<f16>(OP)?, &mut marks)?,
            DType::BF16 => range.look(&t.host::<bf16>(OP)?, &mut marks)?,
            _ => {}
        }
        Ok((range, marks))
    }

    #[track_caller]
    fn look<T: Element>(&mut self, values: &[T], marks: &mut Marks) -> Result<()> {
        let (mut min, mut max, mut first, count) = (f64::INFINITY, f64::NEG_INFINITY, None, values.len());
        let mut found = vec![];
        for (i, v) in values.iter().enumerate() {
            let v = v.to_f64();
            match Mark::of(v) {
                Mark::Finite => {
                    min = min.min(v);
                    max = max.max(v);
                    continue;
                }
                Mark::Nan => self.nan += 1,
                Mark::Infinite => self.infinite += 1,
            }
            first = first.or(Some(i));
            if found.is_empty() {
                found = all_finite(count)?;
            }
            found[i] = Mark::of(v);
        }
        marks.marks = Rc::new(found);
        if min <= max {
            (self.min, self.max) = (Some(min), Some(max));
        }
        self.first = first.map(|i| index(&self.shape, i));
        Ok(())
    }

    /// The values as text, for example `0 to 4  1 NaN, the first at [2]`.
    fn values(&self) -> String {
        let mut parts = vec![];
        if let (Some(min), Some(max)) = (self.min, self.max) {
            parts.push(if min == max { short(min) } else { format!("{} to {}", short(min), short(max)) });
        }
        let mut bad = vec![];
        if self.nan > 0 {
            bad.push(format!("{} NaN", self.nan));
        }
        if self.infinite > 0 {
            bad.push(format!("{} infinite", self.infinite));
        }
        if let Some(first) = &self.first {
            parts.push(format!("{}, the first at {first:?}", bad.join(" and ")));
        }
        parts.join("  ")
    }

    /// Writes one line for each range, aligned in columns.
    pub(in crate::autograd) fn fmt_all<'r>(
        all: impl Iterator<Item = &'r ValueRange>,
        f: &mut fmt::Formatter<'_>,
    ) -> fmt::Result {
        let line =
            |r: &ValueRange| [r.name.clone(), Shape::display(&r.shape).to_string(), r.dtype.to_string(), r.values()];
        let lines: Vec<[String; 4]> = all.map(line).collect();
        let width = |i: usize| lines.iter().map(|l| l[i].len()).max().unwrap_or(0);
        let (names, shapes, dtypes) = (width(0), width(1), width(2));
        for [name, shape, dtype, values] in &lines {
            let line = format!("\n  {name:names$}  {shape:shapes$}  {dtype:dtypes$}  {values}");
            f.write_str(line.trim_end())?;
        }
        Ok(())
    }
}

impl fmt::Display for ValueRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}  {}  {}  {}", self.name, Shape::display(&self.shape), self.dtype, self.values())
    }
}

/// Formats a number with about four significant digits.
fn short(v: f64) -> String {
    let size = v.abs();
    if size != 0.0 && !(1e-3..1e6).contains(&size) {
        return format!("{v:.3e}");
    }
    let digits = if size >= 1.0 { 3 - (size.log10() as i32).min(3) } else { 4 };
    let s = format!("{v:.*}", usize::try_from(digits).unwrap_or(0));
    if s.contains('.') { s.trim_end_matches('0').trim_end_matches('.').to_owned() } else { s }
}

//! Operations that move elements, make them or pick them by an index.

use gradus_tensor::backend::{ArgReduceOp, ReduceOp, ScanOp, ScatterOp};
use gradus_tensor::ops::{
    ArgReduce, Cat, Expand, Flip, Gather, Op, PadConstant, Permute, Reduce, Scan, Scatter, Slice, Sort, Split,
};
use gradus_tensor::{Axes, DType, Result};

use super::build::{Builder, Dims};
use super::sizes::{Size, fixed};
use super::trace::Id;
use super::write::Attr;

/// The parameters of an operation in each trace.
macro_rules! in_each_trace {
    ($builder:expr, $at:expr, $variant:ident, |$op:ident| $value:expr) => {
        $builder
            .ops($at)
            .map(|op| if let Op::$variant($op) = op { Some($value) } else { None })
            .collect::<Option<Vec<_>>>()
            .unwrap_or_default()
    };
}
pub(super) use in_each_trace;

/// The axes as an attribute or input.
pub(super) fn numbers(axes: Axes) -> Vec<i64> {
    axes.iter().map(|a| a as i64).collect()
}

impl Builder<'_> {
    pub(super) fn permute(&mut self, x: &str, op: &Permute) -> String {
        self.transpose(x, op.axes.iter().map(|&a| a as i64).collect())
    }

    /// A value whose axis `i` is the axis `axes[i]` of `x`.
    pub(super) fn transpose(&mut self, x: &str, axes: Vec<i64>) -> String {
        // A value that was transposed before is taken from its original.
        if let Some((original, before)) = self.transposed.get(x).cloned() {
            let both = axes.iter().filter_map(|&a| before.get(a as usize).copied()).collect();
            return self.transpose(&original, both);
        }
        if axes.iter().enumerate().all(|(i, &a)| a == i as i64) {
            return x.to_owned();
        }
        let y = self.node("Transpose", &[x], vec![("perm", Attr::Ints(axes.clone()))], 0);
        self.transposed.insert(y.clone(), (x.to_owned(), axes));
        y
    }

    /// A start or end of a slice. One that lies at the same distance from the end of the axis counts from there.
    fn bound(&mut self, at: usize, bounds: &[i64], axis: &[i64], near: &[Id]) -> Result<Size> {
        if let Some(bound) = fixed(bounds) {
            return Ok(Size::Fixed(bound));
        }
        let behind: Vec<i64> = bounds.iter().zip(axis).map(|(b, a)| b - a).collect();
        match fixed(&behind) {
            Some(0) => Ok(Size::Fixed(i64::MAX)),
            Some(behind) if behind < 0 => Ok(Size::Fixed(behind)),
            _ => self.size(at, bounds, near),
        }
    }

    pub(super) fn slice(&mut self, at: usize, input: Id, output: Id, op: &Slice) -> Result<String> {
        let starts = in_each_trace!(self, at, Slice, |op| op.start as i64);
        let ends = in_each_trace!(self, at, Slice, |op| op.end as i64);
        let x = self.name(input)?;
        let (from, to) = (self.dims(input), self.dims(output));
        if from == to && op.step == 1 {
            return Ok(x);
        }
        let near = [input];
        let start = self.bound(at, &starts, &from[op.axis], &near)?;
        let end = self.bound(at, &ends, &from[op.axis], &near)?;
        let (start, end) = (self.shape(vec![start]), self.shape(vec![end]));
        let (axes, steps) = (self.ints(&[op.axis as i64]), self.ints(&[op.step as i64]));
        Ok(self.plain("Slice", &[&x, &start, &end, &axes, &steps]))
    }

    pub(super) fn flip(&mut self, x: &str, op: &Flip) -> String {
        let (start, end) = (self.ints(&[-1]), self.ints(&[i64::MIN]));
        let (axes, steps) = (self.ints(&[op.axis as i64]), self.ints(&[-1]));
        self.plain("Slice", &[x, &start, &end, &axes, &steps])
    }

    pub(super) fn split(&mut self, at: usize, input: Id, outputs: usize, op: &Split) -> Result<Vec<String>> {
        let all = in_each_trace!(self, at, Split, |op| op.sizes.clone());
        let mut sizes = Vec::new();
        for i in 0..outputs {
            let part: Vec<i64> = all.iter().map(|sizes| sizes[i] as i64).collect();
            sizes.push(self.size(at, &part, &[input])?);
        }
        let (x, sizes) = (self.name(input)?, self.shape(sizes));
        Ok(self.nodes("Split", &[&x, &sizes], outputs, vec![("axis", Attr::Int(op.axis as i64))], 0))
    }

    pub(super) fn cat(&mut self, inputs: &[&str], op: &Cat) -> String {
        self.node("Concat", inputs, vec![("axis", Attr::Int(op.axis as i64))], 0)
    }

    pub(super) fn expand(&mut self, at: usize, input: Id, output: Id, _: &Expand) -> Result<String> {
        let x = self.name(input)?;
        let (from, to) = (self.dims(input), self.dims(output));
        self.expanded(at, &x, &from, &to, &[input])
    }

    /// A value, stretched along axes of size 1 and new axes in front.
    pub(super) fn expanded(&mut self, at: usize, x: &str, from: &Dims, to: &Dims, near: &[Id]) -> Result<String> {
        if from == to {
            return Ok(x.to_owned());
        }
        let lead = to.len() - from.len();
        let mut sizes = Vec::new();
        for (i, size) in to.iter().enumerate() {
            let stays = i >= lead && from[i - lead] == *size;
            sizes.push(if stays { Size::Fixed(1) } else { self.size(at, size, near)? });
        }
        let shape = self.shape(sizes);
        Ok(self.plain("Expand", &[x, &shape]))
    }

    /// The integers from `start` on. The sizes of the result say how many.
    pub(super) fn arange(&mut self, at: usize, output: Id) -> Result<String> {
        let starts = in_each_trace!(self, at, Arange, |op| op.start);
        let steps = in_each_trace!(self, at, Arange, |op| op.step);
        let Some(step) = fixed(&steps) else {
            return Err(self.unsupported(at, "its step depends on a dynamic axis"));
        };
        let dims = self.dims(output);
        let count: Vec<i64> = (0..self.traces.len()).map(|t| dims.iter().map(|d| d[t]).product()).collect();
        let ends: Vec<i64> = starts.iter().zip(&count).map(|(start, n)| start + step * n).collect();
        let (start, end) = (self.scalar_size(at, &starts, &[])?, self.scalar_size(at, &ends, &[])?);
        let step = self.scalar(step, DType::I64)?;
        let range = self.plain("Range", &[&start, &end, &step]);
        let shaped = self.reshape(at, &range, &vec![count], &dims, &[])?;
        Ok(self.cast(&shaped, DType::I64, self.dtype(output)))
    }

    /// One number everywhere.
    pub(super) fn fill(&mut self, at: usize, output: Id) -> Result<String> {
        let values = in_each_trace!(self, at, Fill, |op| op.value);
        if values.iter().any(|v| v != &values[0]) {
            return Err(self.unsupported(at, format!("its number depends on a dynamic axis: {values:?}")));
        }
        let value = self.scalar(values[0], self.dtype(output))?;
        let dims = self.dims(output);
        self.expanded(at, &value, &Vec::new(), &dims, &[])
    }

    pub(super) fn pad(&mut self, at: usize, input: Id, op: &PadConstant) -> Result<String> {
        let all = in_each_trace!(self, at, PadConstant, |op| op.pads.clone());
        let mut sizes = Vec::new();
        for end in [false, true] {
            for i in 0..op.pads.len() {
                let side: Vec<i64> = all.iter().map(|p| if end { p[i].1 } else { p[i].0 } as i64).collect();
                sizes.push(self.size(at, &side, &[input])?);
            }
        }
        let (x, pads) = (self.name(input)?, self.shape(sizes));
        let value = self.scalar(op.value, self.dtype(input))?;
        Ok(self.plain("Pad", &[&x, &pads, &value]))
    }

    /// An index in one of the dtypes that ONNX allows.
    fn index(&mut self, index: Id) -> Result<String> {
        let name = self.name(index)?;
        Ok(match self.dtype(index) {
            DType::I64 | DType::I32 => name,
            other => self.cast(&name, other, DType::I64),
        })
    }

    /// Rows of a table.
    pub(super) fn embedding(&mut self, table: Id, index: Id) -> Result<String> {
        let (table, index) = (self.name(table)?, self.index(index)?);
        Ok(self.node("Gather", &[&table, &index], vec![("axis", Attr::Int(0))], 0))
    }

    pub(super) fn gather(&mut self, x: Id, index: Id, op: &Gather) -> Result<String> {
        let (x, index) = (self.name(x)?, self.index(index)?);
        Ok(self.node("GatherElements", &[&x, &index], vec![("axis", Attr::Int(op.axis as i64))], 0))
    }

    pub(super) fn scatter(&mut self, inputs: &[Id], op: &Scatter) -> Result<String> {
        let (x, index, values) = (self.name(inputs[0])?, self.index(inputs[1])?, self.name(inputs[2])?);
        let mut attributes = vec![("axis", Attr::Int(op.axis as i64))];
        let since = match op.op {
            ScatterOp::Set => 0,
            ScatterOp::Add => {
                attributes.push(("reduction", Attr::Text("add")));
                16
            }
        };
        Ok(self.node("ScatterElements", &[&x, &index, &values], attributes, since))
    }

    pub(super) fn arg_reduce(&mut self, x: &str, op: &ArgReduce) -> String {
        let name = match op.op {
            ArgReduceOp::Max => "ArgMax",
            ArgReduceOp::Min => "ArgMin",
        };
        self.node(name, &[x], vec![("axis", Attr::Int(op.axis as i64)), ("keepdims", Attr::Int(1))], 0)
    }

    pub(super) fn sort(&mut self, at: usize, input: Id, op: &Sort) -> Result<Vec<String>> {
        let x = self.name(input)?;
        let along = self.dims(input)[op.axis].clone();
        let size = self.size(at, &along, &[input])?;
        let count = self.shape(vec![size]);
        let largest = ("largest", Attr::Int(i64::from(op.descending)));
        Ok(self.nodes("TopK", &[&x, &count], 2, vec![("axis", Attr::Int(op.axis as i64)), largest], 0))
    }

    pub(super) fn reduce(&mut self, input: Id, output: Id, op: &Reduce) -> Result<String> {
        let (mut x, axes) = (self.name(input)?, numbers(op.axes));
        let (from, to) = (self.dtype(input), self.dtype(output));
        if axes.is_empty() {
            return Ok(self.cast(&x, from, to));
        }
        if op.op == ReduceOp::Sum {
            x = self.cast(&x, from, to);
            let axes = self.ints(&axes);
            return Ok(self.node("ReduceSum", &[&x, &axes], vec![("keepdims", Attr::Int(1))], 0));
        }
        let (name, within) = match op.op {
            ReduceOp::Prod => ("ReduceProd", to),
            ReduceOp::Max => ("ReduceMax", from),
            ReduceOp::Min => ("ReduceMin", from),
            ReduceOp::Any => ("ReduceMax", DType::I32),
            _ => ("ReduceMin", DType::I32),
        };
        if to == DType::Bool {
            x = self.cast(&x, from, DType::Bool);
            x = self.cast(&x, DType::Bool, within);
        } else {
            x = self.cast(&x, from, within);
        }
        let y = self.reduced(name, &x, axes);
        Ok(self.cast(&y, within, to))
    }

    /// A reduction whose axes are an attribute until opset 18. `finish` makes them an input from there on.
    pub(super) fn reduced(&mut self, name: &'static str, x: &str, axes: Vec<i64>) -> String {
        self.node(name, &[x], vec![("axes", Attr::Ints(axes)), ("keepdims", Attr::Int(1))], 0)
    }

    pub(super) fn scan(&mut self, at: usize, x: &str, op: &Scan) -> Result<String> {
        let name = match op.op {
            ScanOp::Sum => "CumSum",
            ScanOp::Prod if self.most >= 26 => "CumProd",
            _ => return Err(self.unsupported(at, "ONNX has no such running operation")),
        };
        let axis = self.scalar(op.axis as i64, DType::I64)?;
        Ok(self.plain(name, &[x, &axis]))
    }
}

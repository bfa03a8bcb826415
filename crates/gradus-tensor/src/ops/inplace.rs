//! Operations that write into their tensor: `copy_`, `fill_`, `zero_`, `add_`, `sub_`, `mul_`, `div_`, `clamp_`. Those
//! that take an index are in `inplace_index.rs`, and those that take a formula in `update.rs`.
//!
//! Each operation raises the storage's version and logs the write. If the backward pass needs the old value, it fails
//! with an error that names the line of the write. Writes are not recorded: while gradients are enabled, a write is
//! refused if the tensor or an operand requires a gradient. A view shares its bytes with its base, so `x.narrow(0, 2,
//! 3)?.copy_(&y)?` assigns to a slice of `x`.

use gradus_backend::{Error, ErrorKind, Here, Result, Scalar, Shape};
use smallvec::SmallVec;

use super::elementwise::Elementwise;
use super::operand::{AsOperand, Operand};
use super::table::{ADD, CLAMP, DIV, MUL, SUB};
use super::{Arg, Contiguous, Fill, Op, Operation, To, Update, bind, same_device};
use crate::{Tensor, is_grad_enabled};

/// A method that writes in place, as it is shown by errors and by the log of writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InPlace {
    /// `copy_`
    Copy,
    /// `fill_`
    Fill,
    /// `zero_`
    Zero,
    /// A method whose name without the underscore is a method that returns a new tensor.
    Method(&'static str),
    /// An [`UpdateFn`](crate::UpdateFn), by name.
    Update(&'static str),
    /// `gemm`
    Gemm,
    /// `dispatch_compute`
    Dispatch,
}

impl InPlace {
    /// The method's name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            InPlace::Copy => "copy_",
            InPlace::Fill => "fill_",
            InPlace::Zero => "zero_",
            InPlace::Method(name) | InPlace::Update(name) => name,
            InPlace::Gemm => "gemm",
            InPlace::Dispatch => "dispatch_compute",
        }
    }

    /// The alternative that an error suggests to a write that would have to be recorded.
    fn instead(self) -> String {
        match self {
            InPlace::Copy => {
                "use the new values themselves, or x.index_assign(..)? for a part; or write inside no_grad(|| ..)"
                    .into()
            }
            InPlace::Fill | InPlace::Zero => {
                "use x.full_like(value)?, or x.index_assign(..)? for a part; or write inside no_grad(|| ..)".into()
            }
            InPlace::Method(name) => {
                let new = name.trim_end_matches('_');
                format!("use x.{new}(..)?, which makes a new tensor; or write inside no_grad(|| ..)")
            }
            InPlace::Update(_) => "update inside no_grad(|| ..)".into(),
            InPlace::Gemm => "use addmm or matmul; or write inside no_grad(|| ..)".into(),
            InPlace::Dispatch => {
                "make it an operation with a gradient, a CustomOp; or bind x.detach(), or run it inside no_grad(|| ..)"
                    .into()
            }
        }
    }
}

impl Tensor {
    /// Checks that this tensor may be written now.
    #[track_caller]
    pub(crate) fn check_writable(&self, how: InPlace, sources: &[&Tensor]) -> Result<()> {
        if is_grad_enabled()
            && let Some(t) = std::iter::once(&self).chain(sources).find(|t| t.requires_grad())
        {
            return Err(self.refused(how, t));
        }
        if self.layout().overlaps_itself() {
            let e = Error::argument(how.name(), "several elements share one place in memory (an expanded tensor)");
            return Err(self.describe(e, "self").help("write into a copy: x.copy()?"));
        }
        Ok(())
    }

    /// The error for a write that would have to be recorded because `tracked`, this tensor or an operand, requires a
    /// gradient.
    #[cold]
    #[track_caller]
    fn refused(&self, how: InPlace, tracked: &Tensor) -> Error {
        let m = match tracked.grad_fn() {
            _ if !std::ptr::eq(tracked, self) => "a write in place is not recorded, and an operand requires a gradient",
            None => "a write in place is not recorded, and the tensor is a leaf that requires a gradient",
            Some(_) => {
                "a write in place is not recorded, and the tensor was computed from one that requires a gradient"
            }
        };
        let e = self.describe(Error::new(ErrorKind::Autograd, how.name(), m), "self");
        let e = if std::ptr::eq(tracked, self) { e } else { tracked.describe(e, "operand") };
        let e = match tracked.grad_fn() {
            Some(node) => e.note(format!("{} was recorded at {}", node.name(), node.location())),
            None => e,
        };
        e.help(how.instead())
    }

    /// Writes the result of `op` on `sources`, which are all on this device, into this tensor.
    #[track_caller]
    pub(super) fn write<O: Operation + Into<Op>>(&self, how: InPlace, op: O, sources: &[&Tensor]) -> Result<()> {
        bind(op, sources, To::Written(how, self.device(), &[self]))
    }

    /// Replaces the values with those of `source`, which is broadcast to this shape and converted to this dtype.
    #[track_caller]
    pub fn copy_(&self, source: &Tensor) -> Result<()> {
        self.assign_(InPlace::Copy, source)
    }

    /// `copy_` under the name of the method that was called.
    #[track_caller]
    pub(super) fn assign_(&self, how: InPlace, source: &Tensor) -> Result<()> {
        self.check_writable(how, &[source])?;
        same_device(how.name(), &[self, source])?;
        let source = source.detach().to_dtype(self.dtype())?.expand(self.layout().shape())?;
        self.write(how, Contiguous, &[&source])
    }

    /// Sets every element to `value`, which the dtype must be able to represent.
    #[track_caller]
    pub fn fill_(&self, value: impl Into<Scalar>) -> Result<()> {
        self.set_(InPlace::Fill, value.into())
    }

    /// Sets every element to 0.
    #[track_caller]
    pub fn zero_(&self) -> Result<()> {
        self.set_(InPlace::Zero, Scalar::Int(0))
    }

    /// `fill_` under the name of the method that was called.
    #[track_caller]
    pub(super) fn set_(&self, how: InPlace, value: Scalar) -> Result<()> {
        self.check_writable(how, &[])?;
        value
            .check(self.dtype())
            .map_err(|e| self.describe(Error::argument(how.name(), e.message()), "self"))
            .here()?;
        self.write(how, Fill { value, spec: self.spec() }, &[])
    }

    /// Adds `other`, which broadcasts to this shape.
    #[track_caller]
    pub fn add_(&self, other: impl AsOperand) -> Result<()> {
        self.map_("add_", &ADD, &[other.as_operand()?])
    }

    /// Subtracts `other`, which broadcasts to this shape.
    #[track_caller]
    pub fn sub_(&self, other: impl AsOperand) -> Result<()> {
        self.map_("sub_", &SUB, &[other.as_operand()?])
    }

    /// Multiplies by `other`, which broadcasts to this shape.
    #[track_caller]
    pub fn mul_(&self, other: impl AsOperand) -> Result<()> {
        self.map_("mul_", &MUL, &[other.as_operand()?])
    }

    /// Divides by `other`, which broadcasts to this shape. The quotient is a float, so the tensor must have a float
    /// dtype.
    #[track_caller]
    pub fn div_(&self, other: impl AsOperand) -> Result<()> {
        if !self.dtype().is_float() {
            let e = Error::dtype("div_", self.dtype(), "floats, as the quotient is");
            return Err(self.describe(e, "self").help("use div, which makes a new tensor, or floor_div"));
        }
        self.map_("div_", &DIV, &[other.as_operand()?])
    }

    /// Clamps every element to `lo ..= hi`. NaN stays NaN.
    #[track_caller]
    pub fn clamp_(&self, lo: impl Into<Scalar>, hi: impl Into<Scalar>) -> Result<()> {
        self.map_("clamp_", &CLAMP, &[Operand::Scalar(lo.into()), Operand::Scalar(hi.into())])
    }

    /// The error for an operand that would change the dtype of the result.
    #[track_caller]
    pub(super) fn another_dtype(&self, op: &str) -> Error {
        let e = Error::new(ErrorKind::DTypeMismatch, op, "the result does not fit the tensor's dtype");
        self.describe(e, "self").help("convert the operand with to_dtype")
    }

    /// `self = op(self, others..)`. The result keeps this shape and dtype: this tensor is neither broadcast nor
    /// promoted.
    #[track_caller]
    fn map_(&self, name: &'static str, op: &'static Elementwise, others: &[Operand<'_>]) -> Result<()> {
        let mut sources: SmallVec<[Tensor; 2]> = SmallVec::new();
        for o in others {
            match o {
                Operand::Tensor(t) => {
                    let fits =
                        Shape::broadcast(name, self.shape(), t.shape()).is_ok_and(|s| s == *self.layout().shape());
                    if !fits {
                        let e = Error::new(ErrorKind::Broadcast, name, "the operand does not broadcast to the tensor");
                        return Err(t.describe(self.describe(e, "self"), "operand"));
                    }
                    if self.dtype().promote(t.dtype())? != self.dtype() {
                        return Err(t.describe(self.another_dtype(name), "operand"));
                    }
                    sources.push(t.detach().to_dtype(self.dtype())?);
                }
                Operand::Scalar(s) => {
                    s.check(self.dtype())
                        .map_err(|e| self.describe(Error::argument(name, e.message()), "self"))
                        .here()?;
                }
            }
        }
        let tracked: SmallVec<[&Tensor; 2]> =
            others.iter().filter_map(|o| if let Operand::Tensor(t) = o { Some(*t) } else { None }).collect();
        let how = InPlace::Method(name);
        self.check_writable(how, &tracked)?;
        let all: SmallVec<[&Tensor; 3]> = std::iter::once(self).chain(&sources).collect();
        same_device(name, &all)?;
        let scalars =
            (0..others.len()).filter(|&i| matches!(others[i], Operand::Scalar(_))).fold(0, |mask, i| mask | 2 << i);
        let kernel = op.kernel_with(self.dtype(), scalars)?;
        let mut args: SmallVec<[Arg; 3]> = SmallVec::from_elem(Arg::Output(0), 1);
        let mut count = 0;
        for o in others {
            args.push(match o {
                Operand::Scalar(s) => Arg::Scalar(*s),
                Operand::Tensor(_) => {
                    count += 1;
                    Arg::Tensor(count - 1)
                }
            });
        }
        self.write(how, Update { kernel, args }, &all[1..])
    }
}

//! Operations that write into their tensor: `copy_`, `fill_`, `zero_`, `add_`, `sub_`, `mul_`, `div_`, `clamp_`, and the
//! fused steps of optimisers; those that take an index are in `inplace_index.rs`.
//!
//! Each raises the storage's version and logs the write, so that a gradient which needs the old value fails with an error
//! that names this line. They are not recorded: with gradients on, a tensor or an operand that requires one is refused.
//! A view shares its bytes with what it is a view of, so `x.narrow(0, 2, 3)?.copy_(&y)?` assigns to a slice of `x`.

use std::panic::Location;
use std::sync::Arc;

use gradus_backend::{AdamParams, Error, ErrorKind, Here, MapArg, Result, Scalar, SgdParams, Shape, View, ViewMut};
use smallvec::SmallVec;

use super::elementwise::Elementwise;
use super::map::stretched;
use super::operand::{AsOperand, Operand};
use super::same_device;
use super::table::{ADD, CLAMP, DIV, MUL, SUB};
use crate::locks::{Locks, of_device};
use crate::{Tensor, is_grad_enabled};

impl Tensor {
    /// Whether this tensor may be written now.
    #[track_caller]
    pub(crate) fn check_writable(&self, op: &'static str, sources: &[&Tensor]) -> Result<()> {
        if is_grad_enabled()
            && let Some(t) = std::iter::once(&self).chain(sources).find(|t| t.requires_grad())
        {
            return Err(self.refused(op, t));
        }
        if self.layout().overlaps_itself() {
            let e = Error::argument(op, "several elements share one place in memory (an expanded tensor)");
            return Err(self.describe(e, "self").help("write into a copy: x.copy()?"));
        }
        Ok(())
    }

    /// The error of a write that would have to be recorded for the sake of `tracked`: this tensor or an operand.
    #[cold]
    #[track_caller]
    fn refused(&self, op: &'static str, tracked: &Tensor) -> Error {
        let m = match tracked.grad_fn() {
            _ if !std::ptr::eq(tracked, self) => "a write in place is not recorded, and an operand requires a gradient",
            None => "a write in place is not recorded, and the tensor is a leaf that requires a gradient",
            Some(_) => {
                "a write in place is not recorded, and the tensor was computed from one that requires a gradient"
            }
        };
        let e = self.describe(Error::new(ErrorKind::Autograd, op, m), "self");
        let e = if std::ptr::eq(tracked, self) { e } else { tracked.describe(e, "operand") };
        let e = match tracked.grad_fn() {
            Some(node) => e.note(format!("{} was recorded at {}", node.name(), node.location())),
            None => e,
        };
        e.help(match op {
            "copy_" => {
                "use the new values themselves, or x.index_assign(..)? for a part; or write inside no_grad(|| ..)"
                    .into()
            }
            "fill_" | "zero_" => {
                "use x.full_like(value)?, or x.index_assign(..)? for a part; or write inside no_grad(|| ..)".into()
            }
            "gemm" => "use addmm or matmul; or write inside no_grad(|| ..)".into(),
            "dispatch_compute" => {
                "make it an operation with a gradient, a CustomOp; or bind x.detach(), or run it inside no_grad(|| ..)"
                    .into()
            }
            _ if op.ends_with("step_") => "step inside no_grad(|| ..)".into(),
            _ => {
                format!(
                    "use x.{}(..)?, which makes a new tensor; or write inside no_grad(|| ..)",
                    op.trim_end_matches('_')
                )
            }
        })
    }

    /// Runs `f` on this tensor, writable, and on `sources`, which share no storage with it.
    #[track_caller]
    pub(super) fn write_with(
        &self,
        op: &'static str,
        sources: &[&Tensor],
        f: impl FnOnce(&mut ViewMut<'_>, &[View<'_>]) -> Result<()>,
    ) -> Result<()> {
        let location = Location::caller();
        if self.numel() == 0 {
            return Ok(());
        }
        // A source in the same storage is read into a copy first: it may overlap what is written.
        let mut copies: SmallVec<[Tensor; 3]> = SmallVec::new();
        for &t in sources {
            copies.push(if Arc::ptr_eq(t.storage(), self.storage()) { t.detach().copy()? } else { t.clone() });
        }
        let refs: SmallVec<[&Tensor; 3]> = copies.iter().collect();
        let mut locks = Locks::write(&[self], &refs, op, location)?;
        let (mut outs, views) = locks.views(&[self], &refs);
        of_device(f(&mut outs[0], &views))
    }

    /// Replaces the values by those of `source`, which broadcasts to this shape and is converted to this dtype.
    #[track_caller]
    pub fn copy_(&self, source: &Tensor) -> Result<()> {
        self.assign_("copy_", source)
    }

    /// `copy_`, by name.
    #[track_caller]
    pub(super) fn assign_(&self, op: &'static str, source: &Tensor) -> Result<()> {
        self.check_writable(op, &[source])?;
        same_device(op, &[self, source])?;
        let source = source.detach().to_dtype(self.dtype())?.expand(self.layout().shape())?;
        let device = self.device().clone();
        self.write_with(op, &[&source], |out, x| device.backend().copy_strided(x[0], out))
    }

    /// Sets every element to `value`, which the dtype must be able to represent.
    #[track_caller]
    pub fn fill_(&self, value: impl Into<Scalar>) -> Result<()> {
        self.set_("fill_", value.into())
    }

    /// Sets every element to 0.
    #[track_caller]
    pub fn zero_(&self) -> Result<()> {
        self.set_("zero_", Scalar::Int(0))
    }

    /// `fill_`, by name.
    #[track_caller]
    pub(super) fn set_(&self, op: &'static str, value: Scalar) -> Result<()> {
        self.check_writable(op, &[])?;
        value.check(self.dtype()).map_err(|e| self.describe(Error::argument(op, e.message()), "self")).here()?;
        let device = self.device().clone();
        self.write_with(op, &[], |out, _| device.backend().fill(out, value))
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

    /// Divides by `other`, which broadcasts to this shape. The quotient is a float, so the tensor must be.
    #[track_caller]
    pub fn div_(&self, other: impl AsOperand) -> Result<()> {
        if !self.dtype().is_float() {
            let e = Error::dtype("div_", self.dtype(), "floats, as the quotient is");
            return Err(self.describe(e, "self").help("use div, which makes a new tensor, or floor_div"));
        }
        self.map_("div_", &DIV, &[other.as_operand()?])
    }

    /// Clamps to `lo ..= hi`; NaN stays.
    #[track_caller]
    pub fn clamp_(&self, lo: impl Into<Scalar>, hi: impl Into<Scalar>) -> Result<()> {
        self.map_("clamp_", &CLAMP, &[Operand::Scalar(lo.into()), Operand::Scalar(hi.into())])
    }

    /// The error of an operand with which the result would have another dtype.
    #[track_caller]
    pub(super) fn another_dtype(&self, op: &str) -> Error {
        let e = Error::new(ErrorKind::DTypeMismatch, op, "the result does not fit the tensor's dtype");
        self.describe(e, "self").help("convert the operand with to_dtype")
    }

    /// `self = op(self, others..)`. The result has this shape and dtype: nothing is stretched or promoted for it.
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
        self.check_writable(name, &tracked)?;
        let all: SmallVec<[&Tensor; 3]> = std::iter::once(self).chain(&sources).collect();
        same_device(name, &all)?;
        let scalars =
            (0..others.len()).filter(|&i| matches!(others[i], Operand::Scalar(_))).fold(0, |mask, i| mask | 2 << i);
        let kernel = op.kernel_with(self.dtype(), scalars)?;
        let refs: SmallVec<[&Tensor; 2]> = sources.iter().collect();
        let device = self.device().clone();
        self.write_with(name, &refs, |out, views| {
            let layouts = stretched(views, out.layout.shape())?;
            let mut views = views.iter().enumerate();
            let mut args: SmallVec<[MapArg<'_>; 3]> = SmallVec::from_elem(MapArg::Output(0), 1);
            for o in others {
                args.push(match o {
                    Operand::Scalar(s) => MapArg::Scalar(*s),
                    Operand::Tensor(_) => match views.next() {
                        Some((i, v)) => MapArg::View(layouts.get(i).map_or(*v, |l| v.with(l))),
                        None => return Err(Error::argument(name, "an operand is missing")),
                    },
                });
            }
            let out = ViewMut { buffer: out.buffer, dtype: out.dtype, layout: out.layout };
            device.backend().map(&kernel, &args, &mut [out])
        })
    }

    /// One step of stochastic gradient descent on this parameter, one pass. See
    /// [`Backend::sgd_step`](gradus_backend::Backend::sgd_step).
    #[track_caller]
    pub fn sgd_step_(&self, params: &SgdParams, gradient: &Tensor, momentum: Option<&Tensor>) -> Result<()> {
        let state: SmallVec<[&Tensor; 2]> = momentum.into_iter().collect();
        self.check_step("sgd_step_", gradient, &state)?;
        if self.numel() == 0 {
            return Ok(());
        }
        let (device, gradient, location) = (self.device().clone(), gradient.detach(), Location::caller());
        match momentum {
            None => {
                let mut locks = Locks::write(&[self], &[&gradient], "sgd_step_", location)?;
                let (mut outs, views) = locks.views(&[self], &[&gradient]);
                of_device(device.backend().sgd_step(params, &mut outs[0], views[0], None))
            }
            Some(m) => {
                let mut locks = Locks::write(&[self, m], &[&gradient], "sgd_step_", location)?;
                let (mut outs, views) = locks.views(&[self, m], &[&gradient]);
                let (p, m) = outs.split_at_mut(1);
                of_device(device.backend().sgd_step(params, &mut p[0], views[0], Some(&mut m[0])))
            }
        }
    }

    /// One step of Adam or AdamW on this parameter, one pass. See
    /// [`Backend::adam_step`](gradus_backend::Backend::adam_step).
    #[track_caller]
    pub fn adam_step_(&self, params: &AdamParams, gradient: &Tensor, m: &Tensor, v: &Tensor) -> Result<()> {
        self.check_step("adam_step_", gradient, &[m, v])?;
        if self.numel() == 0 {
            return Ok(());
        }
        let (device, gradient, location) = (self.device().clone(), gradient.detach(), Location::caller());
        let mut locks = Locks::write(&[self, m, v], &[&gradient], "adam_step_", location)?;
        let (mut outs, views) = locks.views(&[self, m, v], &[&gradient]);
        let [p, m, v] = &mut outs[..] else { return Err(Error::argument("adam_step_", "three tensors are written")) };
        of_device(device.backend().adam_step(params, p, views[0], m, v))
    }

    /// Parameter, gradient and state have one shape and device.
    #[track_caller]
    fn check_step(&self, op: &'static str, gradient: &Tensor, state: &[&Tensor]) -> Result<()> {
        let sources: SmallVec<[&Tensor; 4]> = std::iter::once(gradient).chain(state.iter().copied()).collect();
        self.check_writable(op, &sources)?;
        state.iter().try_for_each(|t| t.check_writable(op, &[])).here()?;
        let all: SmallVec<[&Tensor; 4]> = [self, gradient].into_iter().chain(state.iter().copied()).collect();
        same_device(op, &all)?;
        for t in &all[1..] {
            if t.shape() != self.shape() || !t.dtype().is_float() {
                let e = Error::shape(op, "gradient and state have the shape of the parameter, and float dtypes");
                return Err(t.describe(self.describe(e, "parameter"), "operand"));
            }
        }
        Ok(())
    }
}

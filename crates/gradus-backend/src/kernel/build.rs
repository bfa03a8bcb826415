//! Builds kernels from expressions that look like ordinary Rust.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops;

use super::op::TypeRule;
use super::{Inst, Kernel, MAX_ARGS, ScalarOp, Value, verify};
use crate::{DType, Error, Here, Result, Scalar};

/// Collects the code of a kernel; an [`Expr`] is a handle to one of its values.
///
/// Identical instructions are stored once, code that no output needs is dropped, and multiplications by 1 are removed.
/// The first type error is kept and reported by [`finish`](KernelBuilder::finish).
#[derive(Debug)]
pub struct KernelBuilder {
    args: Vec<DType>,
    state: RefCell<State>,
}

#[derive(Debug, Default)]
struct State {
    insts: Vec<Inst>,
    /// The value that each instruction defines.
    known: HashMap<Inst, Value>,
    error: Option<Error>,
}

/// A value of a kernel under construction. It is `Copy`; combine values with operators and methods.
#[derive(Debug, Clone, Copy)]
pub struct Expr<'k> {
    builder: &'k KernelBuilder,
    value: Value,
}

impl Kernel {
    /// Builds a kernel with the given argument dtypes, whose outputs are what `body` returns. Each output is stored in
    /// its own dtype, except that an f32 output is stored as f16 or bf16 if all float arguments have that dtype.
    #[track_caller]
    pub fn build(
        name: &str,
        args: &[DType],
        body: impl for<'k> FnOnce(&[Expr<'k>]) -> Vec<Expr<'k>>,
    ) -> Result<Kernel> {
        let mut floats = args.iter().copied().filter(|d| d.is_float());
        let half = floats.next().filter(|&d| d.compute() != d && floats.all(|f| f == d));
        let builder = KernelBuilder::new(args);
        let exprs = builder.args();
        let outputs: Vec<_> = body(&exprs)
            .into_iter()
            .map(|e| {
                let d = e.dtype();
                (e, half.filter(|h| h.compute() == d).unwrap_or(d))
            })
            .collect();
        builder.finish(name, &outputs)
    }
}

impl KernelBuilder {
    /// A kernel without code, whose arguments have these storage dtypes.
    pub fn new(args: &[DType]) -> Self {
        Self::with_at_most(MAX_ARGS, args)
    }

    /// A kernel without code that is built only to find out which arguments are read. It may have more arguments than a
    /// kernel that runs.
    pub(super) fn draft(args: &[DType]) -> Self {
        Self::with_at_most(usize::from(u8::MAX), args)
    }

    fn with_at_most(most: usize, args: &[DType]) -> Self {
        let mut state = State::default();
        if args.len() > most {
            let m = format!("{} arguments; at most {most} are possible", args.len());
            state.error = Some(Error::argument("kernel", m));
        } else {
            let arg =
                |(i, d): (usize, &DType)| Inst { op: ScalarOp::Arg(i as u8), dtype: d.compute(), operands: [0; 3] };
            state.insts.extend(args.iter().enumerate().map(arg));
        }
        KernelBuilder { args: args.to_vec(), state: RefCell::new(state) }
    }

    /// The arguments.
    pub fn args(&self) -> Vec<Expr<'_>> {
        (0..self.args.len()).map(|i| Expr { builder: self, value: i as Value }).collect()
    }

    /// A constant of a compute dtype.
    pub fn constant(&self, dtype: DType, value: impl Into<Scalar>) -> Expr<'_> {
        let value = value.into();
        let value = if dtype.is_float() { Scalar::Float(value.to_f64()) } else { value };
        self.push(ScalarOp::Const(value), dtype, &[])
    }

    /// The handle to an existing value.
    pub(super) fn expr(&self, value: Value) -> Expr<'_> {
        Expr { builder: self, value }
    }

    fn dtype_of(&self, v: Value) -> DType {
        self.state.borrow().insts.get(usize::from(v)).map_or(DType::F32, |i| i.dtype)
    }

    /// Returns `e` if it belongs to this kernel. Otherwise records an error and returns an arbitrary value of this
    /// kernel.
    fn own<'k>(&'k self, e: Expr<'k>) -> Expr<'k> {
        if std::ptr::eq(self, e.builder) {
            return e;
        }
        self.state.borrow_mut().error.get_or_insert_with(foreign);
        self.expr(0)
    }

    /// Adds an instruction, or reuses an identical one.
    pub(super) fn push(&self, op: ScalarOp, dtype: DType, operands: &[Value]) -> Expr<'_> {
        let mut all = [0; 3];
        all[..operands.len()].copy_from_slice(operands);
        let inst = Inst { op, dtype, operands: all };
        let mut state = self.state.borrow_mut();
        if let Some(&v) = state.known.get(&inst) {
            return self.expr(v);
        }
        if state.insts.len() >= usize::from(Value::MAX) {
            state.error.get_or_insert_with(|| Error::argument("kernel", "more than 65535 instructions"));
            return self.expr(0);
        }
        if let Err(e) = verify::inst(&inst, &state.insts, &self.args) {
            state.error.get_or_insert(e);
        }
        let value = state.insts.len() as Value;
        state.known.insert(inst, value);
        state.insts.push(inst);
        self.expr(value)
    }

    /// Builds the kernel with these outputs. Each output comes with its storage dtype: the value's own dtype, or a
    /// half-precision dtype to which an f32 or f64 is rounded once.
    #[track_caller]
    pub fn finish(&self, name: &str, outputs: &[(Expr<'_>, DType)]) -> Result<Kernel> {
        let state = self.state.borrow();
        if let Some(e) = state.error.clone() {
            return Err(e.note(format!("while building the kernel {name:?}")).here());
        }
        if outputs.iter().any(|(e, _)| !std::ptr::eq(self, e.builder)) {
            return Err(foreign().note(format!("while building the kernel {name:?}")));
        }
        let insts = &state.insts;
        let mut used = vec![false; insts.len()];
        for (e, _) in outputs {
            used[usize::from(e.value)] = true;
        }
        for i in (0..insts.len()).rev() {
            if used[i] {
                for &o in insts[i].inputs() {
                    used[usize::from(o)] = true;
                }
            }
        }
        let mut renamed: Vec<Value> = vec![0; insts.len()];
        let mut kept = Vec::new();
        for (i, inst) in insts.iter().enumerate().filter(|&(i, _)| used[i]) {
            renamed[i] = kept.len() as Value;
            let mut inst = *inst;
            for o in inst.operands.iter_mut().take(inst.op.arity()) {
                *o = renamed[usize::from(*o)];
            }
            kept.push(inst);
        }
        let outputs = outputs.iter().map(|(e, d)| (renamed[usize::from(e.value)], *d)).collect();
        Kernel::from_parts(name, &self.args, kept, outputs)
    }
}

#[track_caller]
fn foreign() -> Error {
    Error::argument("kernel", "an expression belongs to another kernel").help("build it from the arguments of this one")
}

impl<'k> Expr<'k> {
    /// The dtype of this value.
    pub fn dtype(self) -> DType {
        self.builder.dtype_of(self.value)
    }

    /// The number of this value.
    pub fn value(self) -> Value {
        self.value
    }

    /// A constant with the dtype of this value.
    pub fn constant(self, value: impl Into<Scalar>) -> Expr<'k> {
        self.builder.constant(self.dtype(), value)
    }

    fn is_const(self, v: f64) -> bool {
        match self.builder.state.borrow().insts.get(usize::from(self.value)).map(|i| i.op) {
            Some(ScalarOp::Const(c)) => c.to_f64() == v,
            _ => false,
        }
    }

    /// An instruction with one operand.
    pub fn unary(self, op: ScalarOp) -> Expr<'k> {
        let dtype = if op.rule() == TypeRule::Test { DType::Bool } else { self.dtype() };
        self.builder.push(op, dtype, &[self.value])
    }

    /// An instruction with two operands.
    pub fn binary(self, op: ScalarOp, other: impl IntoExpr<'k>) -> Expr<'k> {
        let other = self.builder.own(other.into_expr(self));
        if op == ScalarOp::Mul && self.dtype() == other.dtype() && self.dtype() != DType::Bool {
            if other.is_const(1.0) {
                return self;
            }
            if self.is_const(1.0) {
                return other;
            }
        }
        let dtype = if op.rule() == TypeRule::Compare { DType::Bool } else { self.dtype() };
        self.builder.push(op, dtype, &[self.value, other.value])
    }

    /// `a` where this value is true, otherwise `b`.
    pub fn select(self, a: impl IntoExpr<'k>, b: impl IntoExpr<'k>) -> Expr<'k> {
        // In any sensible use, at least one of `a` and `b` is an expression; a constant is converted to the dtype of
        // that expression.
        let like = self.builder.own(a.as_expr().or(b.as_expr()).unwrap_or(self));
        let (a, b) = (self.builder.own(a.into_expr(like)), self.builder.own(b.into_expr(like)));
        self.builder.push(ScalarOp::Select, a.dtype(), &[self.value, a.value, b.value])
    }

    /// This value as `dtype` would store it, in its own dtype: rounded to f16 or bf16, or else unchanged.
    #[must_use]
    pub fn stored_as(self, dtype: DType) -> Expr<'k> {
        match dtype {
            DType::F16 => self.round_f16(),
            DType::BF16 => self.round_bf16(),
            _ => self,
        }
    }

    /// This value converted to the compute dtype of `dtype`.
    pub fn cast(self, dtype: DType) -> Expr<'k> {
        let dtype = dtype.compute();
        if self.dtype() == dtype { self } else { self.builder.push(ScalarOp::Cast, dtype, &[self.value]) }
    }
}

/// An operand that is a number or an expression.
pub trait IntoExpr<'k>: Copy {
    /// This operand as an expression; a number takes the dtype of `like`.
    fn into_expr(self, like: Expr<'k>) -> Expr<'k>;
    /// The expression, if this operand is one.
    fn as_expr(self) -> Option<Expr<'k>>;
}
impl<'k> IntoExpr<'k> for Expr<'k> {
    fn into_expr(self, _: Expr<'k>) -> Expr<'k> {
        self
    }
    fn as_expr(self) -> Option<Expr<'k>> {
        Some(self)
    }
}
macro_rules! into_expr {
    ($($t:ty)*) => {$(
        impl<'k> IntoExpr<'k> for $t {
            fn into_expr(self, like: Expr<'k>) -> Expr<'k> {
                like.constant(self)
            }
            fn as_expr(self) -> Option<Expr<'k>> {
                None
            }
        }
    )*};
}
into_expr!(f64 i64 i32 bool);

macro_rules! operators {
    ($($trait:ident $method:ident $op:ident;)*) => {$(
        impl<'k, R: IntoExpr<'k>> ops::$trait<R> for Expr<'k> {
            type Output = Expr<'k>;
            fn $method(self, other: R) -> Expr<'k> {
                self.binary(ScalarOp::$op, other)
            }
        }
        impl<'k> ops::$trait<Expr<'k>> for f64 {
            type Output = Expr<'k>;
            fn $method(self, other: Expr<'k>) -> Expr<'k> {
                other.constant(self).binary(ScalarOp::$op, other)
            }
        }
    )*};
}
operators! { Add add Add; Sub sub Sub; Mul mul Mul; Div div Div; }

impl<'k> ops::Neg for Expr<'k> {
    type Output = Expr<'k>;
    fn neg(self) -> Expr<'k> {
        self.unary(ScalarOp::Neg)
    }
}

macro_rules! methods {
    (unary: $($u:ident $U:ident),*; binary: $($b:ident $B:ident),*;) => {
        // Each method is documented at its instruction. `not` is a method for symmetry with `and`, `or` and `xor`.
        #[allow(missing_docs, clippy::should_implement_trait)]
        impl<'k> Expr<'k> {
            $(#[must_use] pub fn $u(self) -> Expr<'k> { self.unary(ScalarOp::$U) })*
            $(#[must_use] pub fn $b(self, other: impl IntoExpr<'k>) -> Expr<'k> { self.binary(ScalarOp::$B, other) })*
        }
    };
}
methods! {
    unary: abs Abs, sign Sign, sqrt Sqrt, rsqrt Rsqrt, recip Recip, exp Exp, exp2 Exp2, expm1 Expm1, log Log,
        log2 Log2, log10 Log10, log1p Log1p, sin Sin, cos Cos, tan Tan, asin Asin, acos Acos, atan Atan, sinh Sinh,
        cosh Cosh, tanh Tanh, asinh Asinh, acosh Acosh, atanh Atanh, sigmoid Sigmoid, sigmoid_neg SigmoidNeg, softplus Softplus, erf Erf,
        erfc Erfc, round_f16 RoundF16, round_bf16 RoundBf16, floor Floor, ceil Ceil, round Round, trunc Trunc, isnan IsNan, isfinite IsFinite, not Not;
    binary: floor_div FloorDiv, fmod Fmod, remainder Remainder, pow Pow, max Max, min Min, eq Eq, ne Ne, lt Lt, le Le,
        gt Gt, ge Ge, and And, or Or, xor Xor;
}

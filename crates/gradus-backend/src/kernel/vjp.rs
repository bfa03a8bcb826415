//! Builds the gradient of a kernel as another kernel, with one numerically stable rule for each scalar instruction.

use std::sync::Arc;

use super::activations::SILU_BOUND;
use super::build::{Expr, KernelBuilder};
use super::{Inst, Kernel, ScalarOp, Value, Vjp, VjpArg};
use crate::{DType, Error, ErrorKind, Result};

impl Kernel {
    /// The cached result of [`vjp`](Kernel::vjp), if `wanted` names only the first three arguments and the gradient has
    /// already been built. Takes no lock and does not touch a reference count.
    #[inline]
    pub fn made_vjp(&self, wanted: u32) -> Option<&Vjp> {
        self.vjps.get(wanted as usize)?.get().map(|vjp| &**vjp)
    }

    /// The gradient with respect to the arguments in `wanted` (bit `i` for argument `i`), built once and cached.
    ///
    /// Arguments that are not floats have no gradient and are left out. An argument on which no output depends smoothly
    /// has a gradient of zero. The result is again a kernel, so gradients of any order are possible.
    ///
    /// # Errors
    /// Fails if the gradient of a very long kernel needs more instructions or arguments than a kernel can have.
    #[track_caller]
    pub fn vjp(&self, wanted: u32) -> Result<Arc<Vjp>> {
        if let Some(slot) = self.vjps.get(wanted as usize) {
            if let Some(v) = slot.get() {
                return Ok(v.clone());
            }
            let v = Arc::new(make(self, wanted)?);
            return Ok(slot.get_or_init(|| v).clone());
        }
        let mut more = self.more_vjps.lock().unwrap_or_else(|e| e.into_inner());
        if let Some((_, v)) = more.iter().find(|(m, _)| *m == wanted) {
            return Ok(v.clone());
        }
        let v = Arc::new(make(self, wanted)?);
        more.push((wanted, v.clone()));
        Ok(v)
    }
}

/// The name of a kernel's gradient: `silu` becomes `silu_backward`.
fn gradient_name(name: &str) -> String {
    format!("{name}_backward")
}

/// Builds the gradient of `kernel` with respect to the arguments in `wanted`. See [`Kernel::vjp`].
#[track_caller]
pub(super) fn make(kernel: &Kernel, wanted: u32) -> Result<Vjp> {
    let n = kernel.args().len();
    // The lists below are short: a kernel has at most 32 arguments.
    let wanted: Vec<usize> = (0..n).filter(|&i| wanted >> i & 1 == 1 && kernel.args()[i].is_float()).collect();

    // The draft takes every argument and every output gradient; the unused ones are dropped below.
    let mut all: Vec<(VjpArg, DType)> =
        (0..kernel.args().len()).map(|i| (VjpArg::Input(i), kernel.args()[i])).collect();
    for (k, &(_, d)) in kernel.outputs().iter().enumerate().filter(|(_, (_, d))| d.is_float()) {
        all.push((VjpArg::Grad(k), d));
    }
    let draft = differentiate(KernelBuilder::draft(&dtypes(&all)), kernel, &wanted, &all)?;
    let used: Vec<(VjpArg, DType)> = (0..all.len())
        .filter(|&i| draft.insts().iter().any(|inst| inst.op == ScalarOp::Arg(i as u8)))
        .map(|i| all[i])
        .collect();
    let kernel = differentiate(KernelBuilder::new(&dtypes(&used)), kernel, &wanted, &used)?;
    let args: Vec<VjpArg> = used.iter().map(|u| u.0).collect();
    let passed = |(&i, &(value, dtype)): (&usize, &(Value, DType))| match kernel.insts()[usize::from(value)].op {
        ScalarOp::Arg(a) if kernel.args()[usize::from(a)] == dtype => match args[usize::from(a)] {
            VjpArg::Grad(k) => Some((i, k)),
            VjpArg::Input(_) => None,
        },
        _ => None,
    };
    let passed = wanted.iter().zip(kernel.outputs()).filter_map(passed).collect();
    Ok(Vjp { kernel: Arc::new(kernel), args, wanted, passed })
}

fn dtypes(args: &[(VjpArg, DType)]) -> Vec<DType> {
    args.iter().map(|a| a.1).collect()
}

/// Builds the gradient kernel with the given arguments, which must include all that it reads.
#[track_caller]
fn differentiate(
    builder: KernelBuilder,
    kernel: &Kernel,
    wanted: &[usize],
    args: &[(VjpArg, DType)],
) -> Result<Kernel> {
    let arg = |which: VjpArg| args.iter().position(|a| a.0 == which).map(|i| builder.expr(i as u16));

    // Recompute the forward values; those that no rule reads are dropped when the kernel is finished. A missing
    // argument is one that the draft did not read, so the constant in its place reaches no output.
    let mut values: Vec<Expr<'_>> = Vec::with_capacity(kernel.insts().len());
    for inst in kernel.insts() {
        let v = match inst.op {
            ScalarOp::Arg(i) => {
                arg(VjpArg::Input(usize::from(i))).unwrap_or_else(|| builder.constant(inst.dtype, 0i64))
            }
            op => {
                let operands: Vec<_> = inst.inputs().iter().map(|&o| values[usize::from(o)].value()).collect();
                builder.push(op, inst.dtype, &operands)
            }
        };
        values.push(v);
    }

    let mut grads: Vec<Option<Expr<'_>>> = vec![None; values.len()];
    for (k, &(v, _)) in kernel.outputs().iter().enumerate() {
        if let Some(g) = arg(VjpArg::Grad(k)) {
            accumulate(&mut grads[usize::from(v)], g.cast(values[usize::from(v)].dtype()));
        }
    }
    for (i, inst) in kernel.insts().iter().enumerate().rev() {
        let Some(g) = grads[i] else { continue };
        if let Some((x, gate)) = silu_parts(kernel, inst) {
            let [x_value, gate] = [x, gate].map(|v| values[usize::from(v)]);
            // Where `y` exceeds the bound, `sigmoid(-x)` is 0 in every float type. Clamping `y` keeps the product 0
            // even if `y` is infinite.
            let y = values[i].gt(SILU_BOUND).select(SILU_BOUND, values[i]);
            accumulate(&mut grads[usize::from(x)], g * (gate + y * x_value.sigmoid_neg()));
            continue;
        }
        if let Some(x) = softsign_of(kernel, inst) {
            let size = values[usize::from(inst.operands[1])];
            accumulate(&mut grads[usize::from(x)], g / size / size);
            continue;
        }
        let operand = |k: usize| values[usize::from(inst.operands[k])];
        for (k, d) in rule(inst.op, g, values[i], operand).into_iter().enumerate() {
            if let Some(d) = d {
                accumulate(&mut grads[usize::from(inst.operands[k])], d);
            }
        }
    }

    let outputs: Vec<_> = wanted
        .iter()
        .map(|&i| {
            let dtype = kernel.args()[i];
            let found = kernel.insts().iter().position(|inst| inst.op == ScalarOp::Arg(i as u8));
            let g = found.and_then(|v| grads[v]).unwrap_or_else(|| builder.constant(dtype.compute(), 0i64));
            (g, dtype)
        })
        .collect();
    // A kernel must have an output even if no gradient is wanted. The output that is added in this case reads no
    // argument.
    let none = [(builder.constant(DType::F32, 0i64), DType::F32)];
    let outputs = if outputs.is_empty() { &none[..] } else { &outputs[..] };
    // The rules are well typed for every verified kernel, so only the size can cause a failure.
    builder.finish(&gradient_name(kernel.name()), outputs).map_err(|e| {
        let m = format!("the gradient is too large for one kernel: {}", e.message());
        Error::new(ErrorKind::Autograd, kernel.name(), m).help("split the expression into several operations")
    })
}

/// Returns `x` and `sigmoid(x)` if the instruction is `y = x sigmoid(x)`. Its slope is computed in one piece, as
/// `sigmoid(x) + y sigmoid(-x)`. This takes fewer multiplications than the rules of the two instructions and is 1 at
/// infinity, where those rules would compute `inf * 0`.
fn silu_parts(kernel: &Kernel, inst: &Inst) -> Option<(Value, Value)> {
    let [a, b, _] = inst.operands;
    let is_gate = |gate: Value, x: Value| {
        let gate = &kernel.insts()[usize::from(gate)];
        gate.op == ScalarOp::Sigmoid && gate.operands[0] == x
    };
    let orders = [(a, b), (b, a)].into_iter();
    orders.filter(|_| inst.op == ScalarOp::Mul).find(|&(x, gate)| is_gate(gate, x))
}

/// Returns `x` if the instruction is `x / (|x| + 1)`. Its slope is computed in one piece, as `1 / (|x| + 1)^2`, by
/// dividing twice so that nothing overflows. Adding the slopes of the two operands would cancel for large `x`.
fn softsign_of(kernel: &Kernel, inst: &Inst) -> Option<Value> {
    let at = |v: Value| &kernel.insts()[usize::from(v)];
    let [x, size, _] = inst.operands;
    let sum = (inst.op == ScalarOp::Div).then(|| at(size)).filter(|s| s.op == ScalarOp::Add)?;
    let [magnitude, one, _] = sum.operands.map(at);
    let fits = magnitude.op == ScalarOp::Abs
        && magnitude.operands[0] == x
        && matches!(one.op, ScalarOp::Const(c) if c.to_f64() == 1.0);
    fits.then_some(x)
}

fn accumulate<'k>(slot: &mut Option<Expr<'k>>, g: Expr<'k>) {
    *slot = Some(match *slot {
        Some(sum) => sum + g,
        None => g,
    });
}

/// The gradients of the operands of one instruction, where `g` is the gradient of its value `y`. `None` means that
/// there is no gradient (booleans, integers) or that it is zero.
fn rule<'k>(op: ScalarOp, g: Expr<'k>, y: Expr<'k>, operand: impl Fn(usize) -> Expr<'k>) -> [Option<Expr<'k>>; 3] {
    use ScalarOp::*;
    if !g.dtype().is_float() {
        return [None; 3];
    }
    let a = || operand(0);
    let b = || operand(1);
    let one = |e: Expr<'k>| [Some(e), None, None];
    match op {
        Arg(_) | Const(_) | Sign | Floor | Ceil | Round | Trunc | IsNan | IsFinite | Not => [None; 3],
        Eq | Ne | Lt | Le | Gt | Ge | And | Or | Xor | FloorDiv => [None; 3],
        // As of a conversion to half precision.
        RoundF16 | RoundBf16 => one(g),
        Neg => one(-g),
        Abs => one(g * a().sign()),
        Sqrt => one(g * 0.5 / y),
        Rsqrt => one(g * -0.5 * y / a()),
        Recip => one(-(g * y * y)),
        Exp => one(g * y),
        Exp2 => one(g * y * std::f64::consts::LN_2),
        // Compute e^x anew: y + 1 cancels for x below -1.
        Expm1 => one(g * a().exp()),
        Log => one(g / a()),
        Log2 => one(g / (a() * std::f64::consts::LN_2)),
        Log10 => one(g / (a() * std::f64::consts::LN_10)),
        Log1p => one(g / (a() + 1.0)),
        Sin => one(g * a().cos()),
        Cos => one(-(g * a().sin())),
        Tan => one(g * (y * y + 1.0)),
        Asin => one(g * ((1.0 - a()) * (a() + 1.0)).rsqrt()),
        Acos => one(-(g * ((1.0 - a()) * (a() + 1.0)).rsqrt())),
        Atan => one(g * atan_slope(a())),
        Sinh => one(g * a().cosh()),
        Cosh => one(g * a().sinh()),
        Tanh => one(g * ((1.0 - y) * (y + 1.0))),
        Asinh => one(g * asinh_slope(a())),
        Acosh => one(g * ((a() - 1.0).rsqrt() * (a() + 1.0).rsqrt())),
        Atanh => one(g / ((1.0 - a()) * (a() + 1.0))),
        // Not 1 - y, which cancels for large x.
        Sigmoid => one(g * (y * a().sigmoid_neg())),
        SigmoidNeg => one(-(g * (y * a().sigmoid()))),
        Softplus => one(g * a().sigmoid()),
        Erf => one(g * std::f64::consts::FRAC_2_SQRT_PI * (-(a() * a())).exp()),
        Erfc => one(g * -std::f64::consts::FRAC_2_SQRT_PI * (-(a() * a())).exp()),
        Add => [Some(g), Some(g), None],
        Sub => [Some(g), Some(-g), None],
        Mul => [Some(g * b()), Some(g * a()), None],
        Div => [Some(g / b()), Some(-(g * y / b())), None],
        // The integer part of the exact quotient. The floor of the rounded quotient is one too high where rounding
        // carried the quotient up to an integer.
        Fmod => [Some(g), Some(-(g * (a().abs().floor_div(b().abs()) * a().sign() * b().sign()))), None],
        Remainder => [Some(g), Some(-(g * a().floor_div(b()))), None],
        Pow => {
            // With exponent 0 the value is 1 for every base. If the base is then NaN, 0 or so small that 1 / a
            // overflows, the slope with respect to the base is set to 0, to avoid 0 * inf or NaN. For other bases it is
            // computed from both operands, so that the mixed second derivative is right. With base 0, the slope with
            // respect to the exponent is 0.
            let tiny = if g.dtype() == DType::F64 { 1e-300 } else { 1e-37 };
            let hole = b().eq(0.0).and(a().abs().ge(tiny).not());
            let da = hole.select(0.0, b() * hole.select(1.0, a()).pow(b() - 1.0));
            // With base 0, take the logarithm of 1 instead, so that an infinite slope is never multiplied by 0.
            let zero = a().eq(0.0);
            let db = zero.select(0.0, y * zero.select(1.0, a()).log());
            [Some(g * da), Some(g * db), None]
        }
        // A tie splits the gradient evenly. With a NaN, both operands get the full gradient, as either may have caused
        // it.
        Max => extremum(g, a().lt(b()), a().eq(b()), b().lt(a())),
        Min => extremum(g, b().lt(a()), a().eq(b()), a().lt(b())),
        // The gradient of the branch not taken is exactly zero, even if its own derivative is infinite or NaN.
        Select => [None, Some(a().select(g, 0.0)), Some(a().select(0.0, g))],
        Cast => [a().dtype().is_float().then(|| g.cast(a().dtype())), None, None],
    }
}

/// Returns `|a| > 1`, then `a` where this is false (otherwise 0), then `1 / a` where it is true (otherwise 1). Squaring
/// either number never overflows, and neither has an infinite slope.
fn halves<'k>(a: Expr<'k>) -> (Expr<'k>, Expr<'k>, Expr<'k>) {
    let far = a.abs().gt(1.0);
    (far, far.select(0.0, a), far.select(a, 1.0).recip())
}

/// `1 / sqrt(a^2 + 1)`
fn asinh_slope<'k>(a: Expr<'k>) -> Expr<'k> {
    let (far, near, inverse) = halves(a);
    far.select(inverse.abs() * (inverse * inverse + 1.0).rsqrt(), (near * near + 1.0).rsqrt())
}

/// `1 / (a^2 + 1)`
fn atan_slope<'k>(a: Expr<'k>) -> Expr<'k> {
    let (far, near, inverse) = halves(a);
    let square = inverse * inverse;
    far.select(square / (square + 1.0), (near * near + 1.0).recip())
}

fn extremum<'k>(g: Expr<'k>, loses_a: Expr<'k>, tie: Expr<'k>, loses_b: Expr<'k>) -> [Option<Expr<'k>>; 3] {
    let shared = tie.select(g * 0.5, g);
    [Some(loses_a.select(0.0, shared)), Some(loses_b.select(0.0, shared)), None]
}

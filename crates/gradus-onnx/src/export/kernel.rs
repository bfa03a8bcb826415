//! Elementwise operations. Those that ONNX has leave as themselves, and others as the instructions of their kernels.

use gradus_tensor::backend::kernel::{Inst, ScalarOp};
use gradus_tensor::ops::{Arg, Map, Op, table};
use gradus_tensor::{DType, Elementwise, Result};

use super::build::Builder;
use super::norm::{fits, is};
use super::opset;
use super::trace::Id;
use super::write::Attr;

/// An operation that has an operator of its own: its name, and the attributes made of its scalars.
struct Known {
    op: &'static Elementwise,
    name: &'static str,
    attributes: fn(&[f64]) -> Vec<(&'static str, Attr)>,
}

const fn known(op: &'static Elementwise, name: &'static str) -> Known {
    Known { op, name, attributes: |_| Vec::new() }
}

static KNOWN: &[Known] = &[
    known(&table::RELU, "Relu"),
    known(&table::SIGMOID, "Sigmoid"),
    known(&table::TANH, "Tanh"),
    known(&table::SOFTPLUS, "Softplus"),
    known(&table::SOFTSIGN, "Softsign"),
    known(&table::ERF, "Erf"),
    known(&table::MISH, "Mish"),
    known(&table::HARDSWISH, "HardSwish"),
    known(&table::GELU, "Gelu"),
    Known { op: &table::GELU_TANH, name: "Gelu", attributes: |_| vec![("approximate", Attr::Text("tanh"))] },
    Known { op: &table::ELU, name: "Elu", attributes: |s| vec![("alpha", Attr::Float(s[0] as f32))] },
    Known { op: &table::CELU, name: "Celu", attributes: |s| vec![("alpha", Attr::Float(s[0] as f32))] },
    Known { op: &table::LEAKY_RELU, name: "LeakyRelu", attributes: |s| vec![("alpha", Attr::Float(s[0] as f32))] },
];

/// The input and the bounds, if this limits floats to a range.
fn clipped(map: &Map, scalars: &[f64]) -> Option<(usize, f64, f64)> {
    let Some(&Arg::Tensor(x)) = map.args.first() else { return None };
    match scalars {
        _ if !map.kernel.args()[0].is_float() => None,
        [] if is(map, &table::RELU6) => Some((x, 0.0, 6.0)),
        &[lo, hi] if map.args.len() == 3 && (is(map, &table::CLAMP) || is(map, &table::HARDTANH)) => Some((x, lo, hi)),
        _ => None,
    }
}

impl Builder<'_> {
    pub(super) fn map(&mut self, at: usize, map: &Map, inputs: &[Id], outputs: &[Id]) -> Result<Vec<String>> {
        if let Some(y) = self.mean(at, map, inputs, outputs[0])? {
            return Ok(vec![y]);
        }
        if let Some(y) = self.batch_norm(map, inputs)? {
            return Ok(vec![y]);
        }
        let maps: Vec<&Map> =
            self.ops(at).filter_map(|op| if let Op::Map(map) = op { Some(map) } else { None }).collect();
        if let Some(other) = maps.iter().find(|other| other.args != map.args) {
            let m = format!("a number in it depends on a dynamic axis: {map:?}, then {other:?}");
            return Err(self.unsupported(at, m).help("compute the number with operations of tensors"));
        }
        let scalars: Vec<f64> =
            map.args.iter().filter_map(|a| if let Arg::Scalar(s) = a { Some(s.to_f64()) } else { None }).collect();
        if let (Some(known), Some(Arg::Tensor(x))) = (KNOWN.iter().find(|k| is(map, k.op)), map.args.first())
            && opset::since(known.name, self.dtype(inputs[*x])) <= self.most
            && scalars.iter().all(|&s| fits(s, map.kernel.args()[0]))
        {
            let x = self.name(inputs[*x])?;
            return Ok(vec![self.node(known.name, &[&x], (known.attributes)(&scalars), 0)]);
        }
        if let Some((x, lo, hi)) = clipped(map, &scalars) {
            let dtype = self.dtype(inputs[x]);
            let (x, lo, hi) = (self.name(inputs[x])?, self.scalar(lo, dtype)?, self.scalar(hi, dtype)?);
            return Ok(vec![self.plain("Clip", &[&x, &lo, &hi])]);
        }
        if is(map, &table::GELU) || is(map, &table::GELU_MUL) {
            return self.gelu(at, map, inputs).map(|y| vec![y]);
        }
        self.instructions(at, map, inputs, outputs)
    }

    fn argument(&mut self, at: usize, arg: Arg, inputs: &[Id], dtype: DType) -> Result<String> {
        match arg {
            Arg::Tensor(t) => self.name(inputs[t]),
            Arg::Scalar(s) => self.scalar(s, dtype),
            Arg::Output(_) => Err(self.unsupported(at, "it reads what it writes")),
        }
    }

    /// The exact GELU, as ONNX defines it: `x / 2 (1 + erf(x / sqrt(2)))`, times another value if there is one.
    fn gelu(&mut self, at: usize, map: &Map, inputs: &[Id]) -> Result<String> {
        let dtype = map.kernel.args()[0];
        let wide = dtype.compute();
        let mut values = Vec::new();
        for &arg in &map.args {
            let name = self.argument(at, arg, inputs, dtype)?;
            values.push(self.cast(&name, dtype, wide));
        }
        let x = &values[0];
        let (half, one) = (self.scalar(0.5, wide)?, self.scalar(1.0, wide)?);
        let scale = self.scalar(std::f64::consts::FRAC_1_SQRT_2, wide)?;
        let scaled = self.plain("Mul", &[x, &scale]);
        let erf = self.plain("Erf", &[&scaled]);
        let (sum, half) = (self.plain("Add", &[&erf, &one]), self.plain("Mul", &[x, &half]));
        let mut y = self.plain("Mul", &[&half, &sum]);
        for other in &values[1..] {
            y = self.plain("Mul", &[&y, other]);
        }
        Ok(self.cast(&y, wide, dtype))
    }

    /// The remainder with the sign of the divisor, which is exact.
    fn remainder(&mut self, x: &str, y: &str, dtype: DType) -> Result<String> {
        if !dtype.is_float() {
            return Ok(self.plain("Mod", &[x, y]));
        }
        let rest = self.node("Mod", &[x, y], vec![("fmod", Attr::Int(1))], 0);
        let signs = [self.plain("Sign", &[&rest]), self.plain("Sign", &[y])];
        let (sign, zero) = (self.plain("Mul", &[&signs[0], &signs[1]]), self.scalar(0, dtype)?);
        let (is_other, moved) = (self.plain("Less", &[&sign, &zero]), self.plain("Add", &[&rest, y]));
        Ok(self.plain("Where", &[&is_other, &moved, &rest]))
    }

    /// `1 - erf(x)` to 1.2e-7 of itself, for f32: `erfcc` of Numerical Recipes, section 6.2.
    fn erfc(&mut self, x: &str, dtype: DType) -> Result<String> {
        const TERMS: [f64; 10] = [
            0.170_872_77,
            -0.822_152_23,
            1.488_515_87,
            -1.135_203_98,
            0.278_868_07,
            -0.186_288_06,
            0.096_784_18,
            0.374_091_96,
            1.000_023_68,
            -1.265_512_23,
        ];
        let (zero, half) = (self.scalar(0.0, dtype)?, self.scalar(0.5, dtype)?);
        let (one, two) = (self.scalar(1.0, dtype)?, self.scalar(2.0, dtype)?);
        let size = self.plain("Abs", &[x]);
        let t = self.plain("Mul", &[&size, &half]);
        let t = self.plain("Add", &[&t, &one]);
        let t = self.plain("Reciprocal", &[&t]);
        let mut sum = self.scalar(TERMS[0], dtype)?;
        for term in &TERMS[1..] {
            let (product, term) = (self.plain("Mul", &[&sum, &t]), self.scalar(*term, dtype)?);
            sum = self.plain("Add", &[&product, &term]);
        }
        let square = self.plain("Mul", &[x, x]);
        let exponent = self.plain("Sub", &[&sum, &square]);
        let exp = self.plain("Exp", &[&exponent]);
        let right = self.plain("Mul", &[&t, &exp]);
        let (is_left, left) = (self.plain("Less", &[x, &zero]), self.plain("Sub", &[&two, &right]));
        Ok(self.plain("Where", &[&is_left, &left, &right]))
    }

    /// The instructions of a kernel as nodes.
    fn instructions(&mut self, at: usize, map: &Map, inputs: &[Id], outputs: &[Id]) -> Result<Vec<String>> {
        let kernel = &map.kernel;
        // An operation of one instruction is rounded once, whatever dtype it is computed in.
        let count = kernel.insts().iter().filter(|i| !matches!(i.op, ScalarOp::Arg(_))).count();
        let narrow = kernel.outputs()[0].1;
        let in_half = count == 1
            && kernel.args().iter().all(|&d| d == narrow)
            && kernel.insts().iter().any(|i| {
                use ScalarOp::{Abs, Add, Div, Max, Min, Mul, Neg, Sub};
                matches!(i.op, Abs | Add | Div | Max | Min | Mul | Neg | Sub)
            });
        let mut values: Vec<String> = Vec::with_capacity(kernel.insts().len()); // one for each instruction
        for inst in kernel.insts() {
            let name = match inst.op {
                ScalarOp::Arg(i) => {
                    let i = usize::from(i);
                    let (given, wanted) = (kernel.args()[i], if in_half { narrow } else { inst.dtype });
                    let name = self.argument(at, map.args[i], inputs, given)?;
                    self.cast(&name, given, wanted)
                }
                ScalarOp::Const(s) => self.scalar(s, inst.dtype)?,
                _ => {
                    let of: Vec<&str> = inst.inputs().iter().map(|&v| values[usize::from(v)].as_str()).collect();
                    let from = kernel.insts()[usize::from(inst.operands[0])].dtype;
                    self.instruction(at, inst, from, &of)?
                }
            };
            values.push(name);
        }
        let mut results = Vec::new();
        for (&(value, dtype), &output) in kernel.outputs().iter().zip(outputs) {
            let of = if in_half { narrow } else { kernel.insts()[usize::from(value)].dtype };
            let mut name = self.cast(&values[usize::from(value)], of, dtype);
            // A result that does not depend on all operands may be smaller than the shape of all.
            let used = self.operands_of(map, inputs, usize::from(value));
            let rank = used.iter().map(|&id| self.tensor(id).rank()).max().unwrap_or(0);
            let to = self.dims(output);
            let fills = |axis: usize| {
                used.iter().any(|&id| {
                    let dims = self.dims(id);
                    (axis + dims.len()).checked_sub(to.len()).is_some_and(|i| dims[i] == to[axis])
                })
            };
            if rank < to.len() || !(0..to.len()).all(fills) {
                let mut sizes = Vec::new();
                for size in &to {
                    sizes.push(self.size(at, size, inputs)?);
                }
                let shape = self.shape(sizes);
                name = self.plain("Expand", &[&name, &shape]);
            }
            results.push(name);
        }
        Ok(results)
    }

    /// The tensors on which a value of a kernel depends.
    fn operands_of(&self, map: &Map, inputs: &[Id], value: usize) -> Vec<Id> {
        let insts = map.kernel.insts();
        let (mut open, mut seen, mut ids) = (vec![value], vec![false; insts.len()], Vec::new());
        while let Some(v) = open.pop() {
            if std::mem::replace(&mut seen[v], true) {
                continue;
            }
            if let ScalarOp::Arg(i) = insts[v].op
                && let Arg::Tensor(t) = map.args[usize::from(i)]
            {
                ids.push(inputs[t]);
            }
            open.extend(insts[v].inputs().iter().map(|&v| usize::from(v)));
        }
        ids
    }

    /// One instruction on values of the dtype `from`.
    fn instruction(&mut self, at: usize, inst: &Inst, from: DType, x: &[&str]) -> Result<String> {
        use ScalarOp as S;
        let is_float = from.is_float();
        let number = |b: &mut Self, v: f64| b.scalar(v, from);
        let simple = match inst.op {
            S::Neg => "Neg",
            S::Abs => "Abs",
            S::Sign => "Sign",
            S::Sqrt => "Sqrt",
            S::Recip => "Reciprocal",
            S::Exp => "Exp",
            S::Log => "Log",
            S::Sin => "Sin",
            S::Cos => "Cos",
            S::Tan => "Tan",
            S::Asin => "Asin",
            S::Acos => "Acos",
            S::Atan => "Atan",
            S::Sinh => "Sinh",
            S::Cosh => "Cosh",
            S::Tanh => "Tanh",
            S::Asinh => "Asinh",
            S::Acosh => "Acosh",
            S::Atanh => "Atanh",
            S::Sigmoid => "Sigmoid",
            S::Softplus => "Softplus",
            S::Erf => "Erf",
            S::Floor | S::Ceil | S::Round | S::Trunc if !is_float => return Ok(x[0].to_owned()),
            S::Floor => "Floor",
            S::Ceil => "Ceil",
            S::Round => "Round",
            S::IsNan if is_float => "IsNaN",
            S::Not => "Not",
            S::Add => "Add",
            S::Sub => "Sub",
            S::Mul => "Mul",
            S::Div => "Div",
            S::Pow => "Pow",
            S::Max => "Max",
            S::Min => "Min",
            S::Eq => "Equal",
            S::Lt => "Less",
            S::Le => "LessOrEqual",
            S::Gt => "Greater",
            S::Ge => "GreaterOrEqual",
            S::And => "And",
            S::Or => "Or",
            S::Xor => "Xor",
            S::Select => "Where",
            _ => "",
        };
        if !simple.is_empty() {
            return Ok(self.plain(simple, x));
        }
        Ok(match inst.op {
            S::Cast => self.cast(x[0], from, inst.dtype),
            S::RoundF16 | S::RoundBf16 => {
                let half = if inst.op == S::RoundF16 { DType::F16 } else { DType::BF16 };
                let rounded = self.cast(x[0], from, half);
                self.cast(&rounded, half, from)
            }
            S::Ne => {
                let equal = self.plain("Equal", x);
                self.plain("Not", &[&equal])
            }
            S::Rsqrt => {
                let root = self.plain("Sqrt", x);
                self.plain("Reciprocal", &[&root])
            }
            S::SigmoidNeg => {
                let negative = self.plain("Neg", x);
                self.plain("Sigmoid", &[&negative])
            }
            S::Exp2 => {
                let two = number(self, 2.0)?;
                self.plain("Pow", &[&two, x[0]])
            }
            S::Log2 | S::Log10 => {
                let base: f64 = if inst.op == S::Log2 { 2.0 } else { 10.0 };
                let (log, scale) = (self.plain("Log", x), number(self, base.ln().recip())?);
                self.plain("Mul", &[&log, &scale])
            }
            S::Expm1 => {
                // e^x - 1 = tanh(x / 2) (e^x + 1), which is accurate near 0.
                let (half, one) = (number(self, 0.5)?, number(self, 1.0)?);
                let half = self.plain("Mul", &[x[0], &half]);
                let (tanh, exp) = (self.plain("Tanh", &[&half]), self.plain("Exp", x));
                let sum = self.plain("Add", &[&exp, &one]);
                self.plain("Mul", &[&tanh, &sum])
            }
            S::Log1p => {
                // 2 atanh(x / (x + 2)) is accurate near 0.
                let (one, two) = (number(self, 1.0)?, number(self, 2.0)?);
                let (sum, more) = (self.plain("Add", &[x[0], &one]), self.plain("Add", &[x[0], &two]));
                let (far, ratio) = (self.plain("Log", &[&sum]), self.plain("Div", &[x[0], &more]));
                let near = self.plain("Atanh", &[&ratio]);
                let near = self.plain("Mul", &[&near, &two]);
                let (size, half) = (self.plain("Abs", x), number(self, 0.5)?);
                let is_near = self.plain("Less", &[&size, &half]);
                self.plain("Where", &[&is_near, &near, &far])
            }
            S::Erfc if from == DType::F32 => self.erfc(x[0], from)?,
            S::Trunc => {
                let (sign, size) = (self.plain("Sign", x), self.plain("Abs", x));
                let whole = self.plain("Floor", &[&size]);
                self.plain("Mul", &[&sign, &whole])
            }
            S::IsFinite if is_float => {
                let (infinite, nan) = (self.plain("IsInf", x), self.plain("IsNaN", x));
                let either = self.plain("Or", &[&infinite, &nan]);
                self.plain("Not", &[&either])
            }
            S::Fmod => self.node("Mod", x, vec![("fmod", Attr::Int(1))], 0),
            S::Remainder => self.remainder(x[0], x[1], from)?,
            S::FloorDiv => {
                // The rounded quotient may lie beyond the floor of the exact one, which the remainder is not.
                let rest = self.remainder(x[0], x[1], from)?;
                let whole = self.plain("Sub", &[x[0], &rest]);
                let quotient = self.plain("Div", &[&whole, x[1]]);
                if !is_float {
                    return Ok(quotient);
                }
                let (rounded, zero) = (self.plain("Round", &[&quotient]), number(self, 0.0)?);
                let (by_zero, ratio) = (self.plain("Equal", &[x[1], &zero]), self.plain("Div", x));
                self.plain("Where", &[&by_zero, &ratio, &rounded])
            }
            other => {
                return Err(self.unsupported(at, format!("ONNX has no form of its step `{}` on {from}", other.name())));
            }
        })
    }
}

//! [`Elementwise`]: an elementwise operation defined once, as an expression over scalars.
//!
//! The expression yields the kernels for all dtypes and backends, with broadcasting and promotion, and the gradients of
//! every order: the gradient of a [`Kernel`](gradus_backend::Kernel) is a kernel again. The table of built-in
//! operations is [`table`](super::table).

use std::sync::{Arc, Mutex, OnceLock};

use gradus_backend::{DType, Error, ErrorKind, Expr, Here, Kernel, Result, Scalar};
use smallvec::SmallVec;

use super::apply_one;
use super::autocast::keeps;
use super::map::{Arg, Map};
use super::operand::Operand;
use super::operand_rules::common_dtype;
use crate::Tensor;
use crate::autograd::Nested;

/// The dtypes that an elementwise operation computes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Floats. Integers and booleans become f32.
    Float,
    /// Numbers of any kind, but not booleans.
    Number,
    /// Numbers that can be negative.
    Signed,
    /// Any dtype.
    Any,
    /// Any dtype, compared exactly: an integer is not rounded to the float that it is compared with.
    Compare,
    /// Booleans.
    Bool,
}

/// A rule for those operands of a call that are plain numbers. It receives them in the order of the operands and
/// returns what is wrong with them, if anything.
pub type Numbers = fn(&[f64]) -> Option<&'static str>;

/// An elementwise operation: a name, the class of its dtypes, and the expression.
///
/// ```
/// use gradus_tensor::{Elementwise, Operand, ops::Class, Tensor, Result};
/// # use gradus_cpu::CpuBackend; use gradus_tensor::Device; use std::sync::Arc;
///
/// /// `mish(x) = x * tanh(ln(1 + e^x))`
/// static MISH: Elementwise = Elementwise::new("mish", Class::Float, 1, |x| vec![x[0] * x[0].softplus().tanh()]);
///
/// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
/// let x = Tensor::from_vec(vec![-1.0f32, 0.0, 2.0], [3], &device)?.with_grad()?;
/// let y = MISH.apply(&[Operand::Tensor(&x)])?;
/// let gradients = y.sum_all()?.backward()?;
/// assert!((gradients.get(&x).unwrap().to_vec::<f32>()?[1] - 0.6).abs() < 1e-6);
/// # Ok::<(), gradus_tensor::Error>(())
/// ```
#[derive(Debug)]
pub struct Elementwise {
    name: &'static str,
    class: Class,
    /// Number of operands, at most 8.
    arity: u8,
    /// Bit `i` is set if operand `i` is a bool, regardless of the dtype of the other operands.
    conditions: u8,
    /// The rule that the plain numbers of a call must obey.
    numbers: Option<Numbers>,
    body: for<'k> fn(&[Expr<'k>]) -> Vec<Expr<'k>>,
    kernels: [OnceLock<Arc<Kernel>>; 13],
    /// Half-precision kernels that take scalars, by dtype and mask of scalar operands. These kernels do not round a
    /// scalar to half precision before it is used.
    half_kernels: Mutex<Vec<(DType, u8, Arc<Kernel>)>>,
}

impl Elementwise {
    /// An operation on `arity` operands (1 to 8) of the same dtype, which `body` maps to one output. The expression and
    /// its gradient may have at most 65,535 instructions each. Applying a longer operation, or taking a longer
    /// gradient, fails.
    pub const fn new(
        name: &'static str,
        class: Class,
        arity: u8,
        body: for<'k> fn(&[Expr<'k>]) -> Vec<Expr<'k>>,
    ) -> Self {
        assert!(0 < arity && arity <= 8);
        let kernels = [const { OnceLock::new() }; 13];
        Elementwise {
            name,
            class,
            arity,
            conditions: 0,
            numbers: None,
            body,
            kernels,
            half_kernels: Mutex::new(Vec::new()),
        }
    }

    /// Declares which operands are bool, regardless of the dtype of the others: bit `i` of `mask` stands for operand
    /// `i`.
    pub const fn conditions(mut self, mask: u8) -> Self {
        self.conditions = mask;
        self
    }

    /// Sets a rule for the operands that are plain numbers.
    pub const fn numbers(mut self, rule: Numbers) -> Self {
        self.numbers = Some(rule);
        self
    }

    /// The operation's name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    fn is_condition(&self, i: usize) -> bool {
        self.conditions >> i & 1 == 1
    }

    /// Applies the operation: promotes, broadcasts, computes and records.
    ///
    /// # Errors
    /// Fails if shapes do not broadcast, if the dtypes have no common dtype or it is outside the operation's class, if
    /// the dtype cannot represent a scalar, or if the operands are on different devices.
    #[track_caller]
    pub fn apply(&self, operands: &[Operand<'_>]) -> Result<Tensor> {
        // The common case, in which nothing has to be converted.
        if self.conditions == 0 && operands.len() == usize::from(self.arity) {
            match *operands {
                [Operand::Tensor(a)] if self.takes(a.dtype()) && keeps(self.name, a.dtype()) => {
                    return self.apply_to(&[a]);
                }
                [Operand::Tensor(a), Operand::Tensor(b)]
                    if a.dtype() == b.dtype() && self.takes(a.dtype()) && keeps(self.name, a.dtype()) =>
                {
                    return self.apply_to(&[a, b]);
                }
                _ => {}
            }
        }
        self.apply_converted(operands)
    }

    /// Whether operands of this dtype are computed in it without conversion.
    fn takes(&self, dtype: DType) -> bool {
        match self.class {
            Class::Float => dtype.is_float(),
            Class::Number => dtype != DType::Bool,
            Class::Signed => dtype.is_signed(),
            Class::Any | Class::Compare => true,
            Class::Bool => dtype == DType::Bool,
        }
    }

    /// Applies the operation to tensors that share a dtype which it [`takes`](Elementwise::takes).
    #[track_caller]
    fn apply_to<const N: usize>(&self, inputs: &[&Tensor; N]) -> Result<Tensor> {
        let kernel = self.kernel(inputs[0].dtype())?;
        let args = [Arg::Tensor(0), Arg::Tensor(1), Arg::Tensor(2)];
        apply_one(Map { kernel, args: SmallVec::from_buf_and_len(args, N) }, inputs)
    }

    /// [`apply`](Elementwise::apply) for any operands, which are converted where necessary.
    #[track_caller]
    fn apply_converted(&self, operands: &[Operand<'_>]) -> Result<Tensor> {
        let (mut tensors, mut scalars, mut integers) = (0, 0, false);
        for (i, o) in operands.iter().enumerate() {
            match o {
                Operand::Tensor(t) => {
                    tensors += 1;
                    integers |= t.dtype().is_int();
                }
                Operand::Scalar(_) => scalars |= 1u8.wrapping_shl(i as u32),
            }
        }
        if operands.len() != usize::from(self.arity) || tensors == 0 {
            let m = format!("{} operands, {tensors} of them tensors; it takes {}", operands.len(), self.arity);
            let e = Error::argument(self.name, m);
            return Err(e.help("pass one operand an argument, at least one of them a tensor"));
        }
        let compared: SmallVec<[Operand<'_>; 2]>;
        let operands = if self.class == Class::Compare && integers {
            let exact = operands
                .iter()
                .map(|&o| if let Operand::Scalar(s) = o { Operand::Scalar(integral(s, operands)) } else { o });
            compared = exact.collect();
            &compared[..]
        } else {
            operands
        };
        let numbers =
            || operands.iter().filter_map(|o| if let Operand::Scalar(s) = o { Some(s.to_f64()) } else { None });
        if let Some(wanted) = self.numbers.and_then(|rule| rule(&numbers().collect::<SmallVec<[f64; 4]>>())) {
            let given: SmallVec<[String; 2]> = numbers().map(|v| v.to_string()).collect();
            let numbers = if given.len() == 1 { "number is" } else { "numbers are" };
            return Err(Error::argument(self.name, format!("the {numbers} {}; {wanted}", given.join(" and "))));
        }
        let common = self.common_dtype(operands)?;
        let kernel = self.kernel_with(common, scalars)?;
        let wanted = |i: usize| if self.is_condition(i) { DType::Bool } else { common };
        let mut casts: SmallVec<[Tensor; 2]> = SmallVec::new();
        for (i, operand) in operands.iter().enumerate() {
            match *operand {
                Operand::Tensor(t) if t.dtype() != wanted(i) => casts.push(t.to_dtype(wanted(i))?),
                Operand::Scalar(s) if wanted(i) != DType::Bool => {
                    s.check(common).map_err(|e| Error::argument(self.name, e.message())).here()?;
                }
                _ => {}
            }
        }
        let mut casts = casts.iter();
        let mut inputs: SmallVec<[&Tensor; 4]> = SmallVec::new();
        let mut args: SmallVec<[Arg; 3]> = SmallVec::new();
        for (i, operand) in operands.iter().enumerate() {
            match *operand {
                Operand::Tensor(t) => {
                    args.push(Arg::Tensor(inputs.len()));
                    let cast = if t.dtype() == wanted(i) { None } else { casts.next() };
                    inputs.push(cast.unwrap_or(t));
                }
                Operand::Scalar(s) => args.push(Arg::Scalar(s)),
            }
        }
        apply_one(Map { kernel, args }, &inputs)
    }

    /// The dtype that the operands share.
    #[track_caller]
    fn common_dtype(&self, operands: &[Operand<'_>]) -> Result<DType> {
        if self.class == Class::Compare
            && let Some(dtype) = comparison_dtype(self.name, operands)?
        {
            return Ok(dtype);
        }
        let (mut tensors, mut scalars) = (SmallVec::<[&Tensor; 4]>::new(), SmallVec::<[Scalar; 3]>::new());
        for (_, operand) in operands.iter().enumerate().filter(|&(i, _)| !self.is_condition(i)) {
            match *operand {
                Operand::Tensor(t) => tensors.push(t),
                Operand::Scalar(s) => scalars.push(s),
            }
        }
        let mut common = if tensors.is_empty() { DType::F32 } else { common_dtype(self.name, &tensors, &[])? };
        for s in scalars {
            common = match s {
                Scalar::Float(_) => common.to_float(),
                Scalar::Int(_) if common == DType::Bool => DType::I64,
                _ => common,
            };
        }
        let refuse = |wanted: &str| {
            let e = Error::dtype(self.name, common, wanted);
            Err(operands.iter().fold(e, |e, o| if let Operand::Tensor(t) = o { t.describe(e, "operand") } else { e }))
        };
        match self.class {
            Class::Float => Ok(common.to_float()),
            _ if self.takes(common) => Ok(common),
            Class::Number => refuse("numbers; cast the booleans, for example to_dtype(DType::I64)?").here(),
            Class::Signed => refuse("numbers that can be negative; cast first").here(),
            _ => refuse("booleans; compare first, for example x.ne(0)?").here(),
        }
    }

    /// The kernel for operands of dtype `dtype`, built on first use.
    #[track_caller]
    pub fn kernel(&self, dtype: DType) -> Result<Arc<Kernel>> {
        self.kernel_with(dtype, 0)
    }

    /// [`kernel`](Elementwise::kernel) for calls in which the operands set in `mask` are scalars.
    #[track_caller]
    pub(super) fn kernel_with(&self, dtype: DType, mask: u8) -> Result<Arc<Kernel>> {
        if dtype.compute() != dtype && mask != 0 {
            let kernels = || self.half_kernels.lock().unwrap_or_else(|e| e.into_inner());
            if let Some((.., k)) = kernels().iter().find(|k| k.0 == dtype && k.1 == mask) {
                return Ok(k.clone());
            }
            // The kernel is built without holding the lock, since the formula is user code.
            let kernel = Arc::new(self.build(dtype, mask)?);
            kernels().push((dtype, mask, kernel.clone()));
            return Ok(kernel);
        }
        let slot = &self.kernels[dtype as usize];
        if let Some(k) = slot.get() {
            return Ok(k.clone());
        }
        let kernel = Arc::new(self.build(dtype, 0)?);
        Ok(slot.get_or_init(|| kernel).clone())
    }

    #[track_caller]
    fn build(&self, dtype: DType, scalars: u8) -> Result<Kernel> {
        let _nested = Nested::enter(self.name)?;
        let arg = |i: usize| match () {
            () if self.is_condition(i) => DType::Bool,
            () if scalars >> i & 1 == 1 => dtype.compute(),
            () => dtype,
        };
        // There are at most 8 operands.
        let args: SmallVec<[DType; 4]> = (0..usize::from(self.arity)).map(arg).collect();
        // The output of a half-precision kernel is stored in half precision, even if some operands are bool.
        let builder = gradus_backend::KernelBuilder::new(&args);
        let outputs: Vec<_> = (self.body)(&builder.args())
            .into_iter()
            .map(|e| (e, if e.dtype() == dtype.compute() { dtype } else { e.dtype() }))
            .collect();
        builder.finish(self.name, &outputs)
    }
}

/// The dtype in which to compare operands exactly if integers and floats are mixed: f64, which holds every float and
/// every integer of up to 32 bits. `None` if nothing is mixed.
///
/// No dtype holds both 64-bit integers and floats, so comparing tensors of the two fails.
#[track_caller]
fn comparison_dtype(name: &str, operands: &[Operand<'_>]) -> Result<Option<DType>> {
    let tensors = || operands.iter().filter_map(|o| if let Operand::Tensor(t) = o { Some(*t) } else { None });
    let (floats, integers) = (tensors().any(|t| t.dtype().is_float()), tensors().any(|t| t.dtype().is_int()));
    let long = tensors().find(|t| matches!(t.dtype(), DType::I64 | DType::U64));
    let mut mixed = floats && integers;
    let mut beyond_i64 = false;
    for o in operands {
        match *o {
            // The integer would be rounded to the dtype of a float tensor.
            Operand::Scalar(Scalar::Int(v)) if floats => mixed |= tensors().any(|t| !holds(t.dtype(), v)),
            Operand::Scalar(s @ Scalar::Float(_))
                if tensors().all(|t| t.dtype() == DType::U64 && s.check(DType::U64).is_ok()) =>
            {
                beyond_i64 = true
            }
            // No integer equals a float that is infinite or not whole, and f64 orders such a float correctly.
            Operand::Scalar(Scalar::Float(_)) if integers => mixed = true,
            Operand::Scalar(Scalar::Int(v)) if tensors().any(|t| Scalar::Int(v).check(t.dtype()).is_err()) => {
                mixed = true
            }
            _ => {}
        }
    }
    match long {
        Some(t) if mixed && floats => {
            let m = format!("no dtype compares {} with floats exactly", t.dtype());
            let e = Error::new(ErrorKind::DTypeMismatch, name, m)
                .help("convert one operand with to_dtype, where you know the range");
            Err(tensors().enumerate().fold(e, |e, (i, t)| t.describe(e, &format!("operand {i}"))))
        }
        _ if mixed => Ok(Some(DType::F64)),
        _ => Ok(beyond_i64.then_some(DType::U64)),
    }
}

/// Whether a float dtype holds an integer exactly.
fn holds(dtype: DType, v: i64) -> bool {
    let bits = match dtype {
        DType::F64 => 53,
        DType::F32 => 24,
        DType::F16 => 11,
        DType::BF16 => 8,
        _ => return true,
    };
    v.unsigned_abs() <= 1 << bits
}

/// Converts a float scalar that is compared with integers to an integer if it is whole. Other scalars stay as they are.
/// A whole number that no operand's dtype can represent becomes an infinity, since in f64 a large integer could round
/// to that number and seem equal.
fn integral(s: Scalar, operands: &[Operand<'_>]) -> Scalar {
    let Scalar::Float(v) = s else { return s };
    let tensors = || operands.iter().filter_map(|o| if let Operand::Tensor(t) = o { Some(t.dtype()) } else { None });
    let whole = v.trunc() == v;
    if whole && tensors().all(|d| !d.is_float() && s.check(d).is_err()) {
        return Scalar::Float(f64::INFINITY.copysign(v));
    }
    // A u64 that i64 cannot hold stays a float, since no other scalar holds it.
    if whole && s.check(DType::I64).is_ok() { Scalar::Int(v as i64) } else { s }
}

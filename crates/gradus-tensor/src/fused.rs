//! [`fused!`](crate::fused): turns an expression over tensors into one kernel.

/// Compiles an expression of tensors and numbers into one kernel, which passes over memory once.
///
/// `fused!(|a, b, c| expression)` is a function of 1 to 8 operands, each a `&Tensor` or a number, that returns a
/// `Result<Tensor>`. The operands broadcast and promote as in any elementwise operation, and plain numbers do not widen
/// the dtype. Integers and booleans become f32, so a condition is written `m.ne(0.0).select(a, b)`. The gradient is
/// derived from the expression. It is a single kernel as well and can be differentiated to any order. Only the operands
/// that the gradient reads are saved; there are no intermediate results.
///
/// In the expression the names stand for scalars of type [`Expr`](crate::Expr). It supports the operators, the
/// comparisons (`a.lt(b).select(x, y)`), the functions in the table of operations and the activations. The expression
/// is compiled once for each dtype, when it is first used. It captures nothing, so pass a number from outside as an
/// operand.
///
/// ```
/// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
/// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
/// let x = Tensor::from_vec([-1.0f32, 0.0, 2.0], [3], &device)?.with_grad()?;
/// let scale = Tensor::from_vec([1.0f32, 0.5], [2, 1], &device)?;
/// let shift = 0.25;
/// let y = fused!(|x, scale, shift| (x * scale + shift).silu() * 2.0)(&x, &scale, shift)?;
///
/// let step_by_step = x.mul(&scale)?.add(shift)?.silu()?.mul(2.0)?;
/// assert_eq!(y.shape(), [2, 3]);
/// assert!(y.sub(&step_by_step)?.abs()?.max_all()?.item()? < 1e-6);
/// assert!(y.sum_all()?.backward()?.get(&x).is_some());
/// # Ok::<(), Error>(())
/// ```
#[macro_export]
macro_rules! fused {
    (|$($operand:ident),+ $(,)?| $expression:expr) => {{
        #[track_caller]
        fn fused($($operand: impl $crate::AsOperand),+) -> $crate::Result<$crate::Tensor> {
            const ARITY: u8 = [$(stringify!($operand)),+].len() as u8;
            static KERNEL: $crate::Elementwise = $crate::Elementwise::new(
                concat!("fused (", file!(), ":", line!(), ")"),
                $crate::ops::Class::Float,
                ARITY,
                |operands| match *operands {
                    [$($operand),+] => vec![$expression],
                    // Unreachable, since there are exactly ARITY operands. A kernel without outputs would be refused.
                    _ => Vec::new(),
                },
            );
            KERNEL.apply(&[$($crate::AsOperand::as_operand(&$operand)?),+])
        }
        fused
    }};
}

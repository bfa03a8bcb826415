//! [`fused!`](crate::fused): one kernel of an expression over tensors.

/// Makes one kernel of an expression: a function of tensors and numbers that passes over memory once.
///
/// `fused!(|a, b, c| expression)` is a function of 1 to 8 operands, each a `&Tensor` or a number, that returns a
/// `Result<Tensor>`. The operands broadcast and promote as in any elementwise operation, integers and booleans become
/// f32 (a condition is `m.ne(0.0).select(a, b)`), and numbers are weak. The gradient is derived from the expression, is
/// one kernel too, and is exact to any order; only the operands that it reads are kept, and nothing in between.
///
/// In the expression the names are scalars, [`Expr`](crate::Expr): it has the operators, comparisons
/// (`a.lt(b).select(x, y)`), the functions of the table of operations and the activations. It is compiled once for each
/// dtype, at its first use. It captures nothing: a number from outside is an operand.
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
                    // One output for each of ARITY: a kernel without outputs would be refused.
                    _ => Vec::new(),
                },
            );
            KERNEL.apply(&[$($crate::AsOperand::as_operand(&$operand)?),+])
        }
        fused
    }};
}

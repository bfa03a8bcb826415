//! The statements that random programs are made of.

use crate::program::Name;

#[rustfmt::skip]
pub(crate) const UNARY: &[Name] = &[
    Name::Neg, Name::Sin, Name::Cos, Name::Tanh, Name::Exp, Name::Sigmoid, Name::Square, Name::Silu, Name::Softplus,
    Name::Relu, Name::Abs, Name::Sqrt, Name::Log, Name::Recip, Name::Cube, Name::Scale, Name::Shift, Name::Clamp,
    Name::MaskedFill, Name::Fused1, Name::Custom1, Name::Copy, Name::Dropout, Name::Dropout,
];
#[rustfmt::skip]
pub(crate) const BINARY: &[Name] = &[
    Name::Add, Name::Sub, Name::Mul, Name::Mul, Name::Mul, Name::Div, Name::Maximum, Name::Minimum, Name::Pow,
    Name::SiluMul, Name::Fused2, Name::Custom2, Name::Matmul, Name::Matmul, Name::Cat, Name::Stack, Name::ScatterAdd, Name::IndexAdd,
];
/// Switches for saved tensors.
pub(crate) const MODES: &[Name] =
    &[Name::Packed, Name::AllowMutation, Name::AllowMutation, Name::StrictInplace, Name::Strict];
/// Nonlinear functions, whose gradients depend on the input.
pub(crate) const CURVES: &[Name] = &[
    Name::Square,
    Name::Mul,
    Name::Cube,
    Name::Sin,
    Name::Tanh,
    Name::Exp,
    Name::Sigmoid,
    Name::Silu,
    Name::Fused1,
    Name::Custom1,
];
pub(crate) const REDUCE: &[Name] =
    &[Name::Sum, Name::Mean, Name::Prod, Name::Max, Name::Min, Name::LogSumExp, Name::Var];
#[rustfmt::skip]
pub(crate) const ROWS: &[Name] = &[
    Name::Softmax, Name::LogSoftmax, Name::Cumsum, Name::Cumprod, Name::LayerNorm, Name::RmsNorm, Name::Gather,
    Name::IndexSelect, Name::CrossEntropy,
];
#[rustfmt::skip]
pub(crate) const VIEWS: &[Name] = &[
    Name::Slice, Name::Slice, Name::Select, Name::Transpose, Name::Reshape, Name::Expand, Name::Flip, Name::Diagonal,
    Name::Squeeze, Name::Unsqueeze, Name::Windows,
];
#[rustfmt::skip]
pub(crate) const WRITES: &[Name] = &[
    Name::FillIn, Name::FillIn, Name::ScaleIn, Name::ScaleIn, Name::AddIn, Name::SubIn, Name::MulIn, Name::CopyIn,
    Name::ClampIn, Name::ZeroIn, Name::DivIn, Name::AssignIn, Name::IndexPutIn, Name::IndexAddIn, Name::IndexCopyIn,
    Name::IndexFillIn, Name::ScatterIn, Name::ScatterAddIn, Name::MaskedFillIn,
];
#[rustfmt::skip]
pub(crate) const SHAPES: &[&[i64]] = &[
    &[], &[1], &[2], &[3], &[4], &[2, 2], &[2, 3], &[3, 2], &[1, 3], &[3, 1], &[3, 3], &[2, 1, 2], &[1, 2, 3], &[2, 2, 2], &[2, 0],
];
/// Values of scalars, in eighths.
pub(crate) const SCALARS: &[i64] = &[-12, -9, -4, 3, 4, 6, 7, 10, 12];

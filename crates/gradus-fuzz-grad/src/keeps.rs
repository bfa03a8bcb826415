//! Determines which values the gradient of an operation reads. A backward pass may fail only if one of these was
//! overwritten.

use crate::model::Handle;
use crate::program::Name;

/// Whether the gradient of an operation reads input `i`.
pub(crate) fn keeps_input(name: Name, handles: &[&Handle], i: usize) -> bool {
    use Name::*;
    let tracked = |k: usize| handles.get(k).is_some_and(|h| h.tracked);
    match name {
        // These are linear or, from `Softmax` on, have a gradient computed from the result or from intermediate values.
        Neg | Scale | Shift | Add | Sub | Sum | Mean | Cumsum | MaskedFill | Cat | Stack | Gather | IndexSelect
        | ScatterAdd | IndexAdd | Copy | Reshape | Dropout | Softmax | LogSoftmax | LogSumExp | Var => false,
        Mul | Matmul => tracked(1 - i.min(1)),
        Div => i == 1 || tracked(1),
        SiluMul => i == 0 || tracked(0),
        LayerNorm | RmsNorm => i < 2 && (tracked(0) || tracked(1)),
        Sin | Cos | Tanh | Exp | Sigmoid | Square | Silu | Softplus | Relu | Abs | Sqrt | Log | Recip | Cube
        | Clamp | Fused1 | Custom1 | Custom2 | Maximum | Minimum | Pow | Fused2 | Fused3 | Prod | Max | Min
        | Cumprod | Attention | CrossEntropy => true,
        _ => false,
    }
}

/// Whether the last step of an operation may be a view, such as a reshape after a copy. The input of that step then
/// shares memory with the output, so a strict node checks the output as well.
pub(crate) fn ends_in_a_view(name: Name) -> bool {
    use Name::*;
    matches!(
        name,
        Sum | Mean
            | Prod
            | Max
            | Min
            | LogSumExp
            | Var
            | Matmul
            | Attention
            | CrossEntropy
            | Stack
            | LayerNorm
            | RmsNorm
            | Reshape
    )
}

/// Whether the gradient of an operation reads its output.
pub(crate) fn keeps_output(name: Name) -> bool {
    use Name::*;
    matches!(name, Softmax | LogSoftmax | Max | Min | LogSumExp | Attention)
}

//! The opsets and dtypes of operators. `cargo xtask onnx` compares them with `onnx.checker`.

use gradus_tensor::DType;

/// The lowest opset that is written. Earlier ones have other forms of `Softmax`, `ReduceSum`, `Squeeze` and `Unsqueeze`.
pub(super) const LEAST_OPSET: i64 = 13;

/// The opset of what no opset has.
pub(super) const NEVER: i64 = i64::MAX;

const ALL: &[DType] = &[
    DType::F64,
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::I64,
    DType::I32,
    DType::I16,
    DType::I8,
    DType::U64,
    DType::U32,
    DType::U16,
    DType::U8,
    DType::Bool,
];
const BF16: &[DType] = &[DType::BF16];
const HALVES: &[DType] = &[DType::F16, DType::BF16];
const SMALL_INTEGERS: &[DType] = &[DType::I16, DType::I8, DType::U16, DType::U8];

/// Operators that take dtypes only from an opset after 13 on. Of several rows, the highest opset holds.
static LATER: &[(&[&str], &[DType], i64)] = &[
    (&["HardSwish"], ALL, 14),
    (&["LayerNormalization"], ALL, 17),
    (&["Mish"], ALL, 18),
    (&["Gelu"], ALL, 20),
    (&["GroupNormalization"], ALL, 21),
    (&["Attention", "RMSNormalization"], ALL, 23),
    (&["CumProd"], ALL, 26),
    (&["Add", "Sub", "Mul", "Div"], SMALL_INTEGERS, 14),
    (&["Relu"], &[DType::I64, DType::I32, DType::I16, DType::I8], 14),
    (&["Relu"], &[DType::U64, DType::U32, DType::U16, DType::U8], NEVER),
    (&["CumSum"], HALVES, 14),
    (&["IsInf"], HALVES, 20),
    (&["Celu"], &[DType::F64, DType::F16, DType::BF16], 28),
    (&["BatchNormalization"], BF16, 14),
    (&["LeakyRelu", "LessOrEqual", "GreaterOrEqual", "Where"], BF16, 16),
    (&["Clip"], BF16, 16), // It is defined by `Where`, as which ONNX Runtime computes it.
    (&["TopK"], BF16, 24),
    (&["Softplus", "Softsign", "Mish", "HardSwish", "Elu", "Round"], BF16, 22),
    (&["Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh"], BF16, 22),
    (&["InstanceNormalization", "Conv", "ConvTranspose", "MaxPool", "AveragePool", "LSTM", "GRU", "RNN"], BF16, 22),
    (&["MaxPool"], &[DType::I64, DType::I32, DType::I16, DType::U64, DType::U32, DType::U16], NEVER),
    (&["Pow", "ReduceSum", "ReduceMean", "ReduceProd", "CumSum", "CumProd", "Gemm", "MatMul"], SMALL_INTEGERS, NEVER),
    (&["Pow"], &[DType::U64, DType::U32], NEVER),
    (&["ReduceMax", "ReduceMin"], &[DType::I16, DType::U16], NEVER),
    (&["Neg"], &[DType::U64, DType::U32, DType::U16, DType::U8], NEVER),
];

/// The first opset, from 13 on, that has an operator for values of this dtype.
pub(super) fn since(op: &str, dtype: DType) -> i64 {
    let rows = LATER.iter().filter(|(ops, dtypes, _)| ops.contains(&op) && dtypes.contains(&dtype));
    rows.map(|(.., since)| *since).max().unwrap_or(LEAST_OPSET)
}

/// The input that has the dtype of which [`since`] speaks.
pub(super) fn data_input(op: &str) -> usize {
    usize::from(op == "Where")
}

/// The dtype of an output of an operator on values of this dtype. `Cast` gives what its attribute says.
pub(super) fn result(op: &str, dtype: DType, output: usize) -> DType {
    match op {
        "Equal" | "Less" | "LessOrEqual" | "Greater" | "GreaterOrEqual" | "IsNaN" | "IsInf" => DType::Bool,
        "Shape" | "ArgMax" | "ArgMin" => DType::I64,
        "TopK" if output == 1 => DType::I64,
        _ => dtype,
    }
}

/// A dtype that has all values of this one, and that more operators take.
pub(super) fn wider(dtype: DType) -> Option<DType> {
    match dtype {
        DType::F16 | DType::BF16 => Some(DType::F32),
        DType::I16 | DType::I8 | DType::U16 | DType::U8 => Some(DType::I32),
        DType::U32 => Some(DType::I64),
        _ => None,
    }
}

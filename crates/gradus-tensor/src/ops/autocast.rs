//! Which operations compute in which dtype inside [`autocast`](crate::autocast). An operation asks here, by its name,
//! when it has found the dtype that its operands share.

use gradus_backend::DType;

use crate::autocast_dtype;

/// Operations that compute in the dtype of autocast, sorted.
const LOWER: &[&str] = &[
    "addmm",
    "baddbmm",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "einsum",
    "linear",
    "matmul",
    "scaled_dot_product_attention",
];

/// Operations that compute in f32, sorted.
const WIDE: &[&str] = &[
    "acos",
    "asin",
    "bce_with_logits",
    "binary_cross_entropy",
    "cdist",
    "cosh",
    "cosine_embedding_loss",
    "cosine_similarity",
    "cross_entropy",
    "cumprod",
    "cumsum",
    "exp",
    "expm1",
    "gaussian_nll_loss",
    "group_norm",
    "hinge_embedding_loss",
    "huber_loss",
    "kl_div",
    "kl_div_batch_mean",
    "l1_loss",
    "layer_norm",
    "log",
    "log10",
    "log1p",
    "log2",
    "log_softmax",
    "margin_ranking_loss",
    "mse_loss",
    "nll_loss",
    "norm",
    "normalize",
    "pairwise_distance",
    "poisson_nll_loss",
    "pow",
    "prod",
    "recip",
    "rms_norm",
    "rsqrt",
    "sinh",
    "smooth_l1_loss",
    "soft_margin_loss",
    "softmax",
    "softplus",
    "sum",
    "tan",
    "triplet_margin_loss",
];

/// The dtype in which the operation `op` computes operands that share the dtype `common`.
#[inline]
pub(super) fn computed(op: &str, common: DType) -> DType {
    match autocast_dtype() {
        None => common,
        Some(lower) => inside(op, common, lower),
    }
}

/// Whether an elementwise operation computes operands that share the dtype `common` in it. This is called for every
/// operation, so it reads no state for dtypes that are never cast.
#[inline]
pub(super) fn keeps(op: &str, common: DType) -> bool {
    !matches!(common, DType::F16 | DType::BF16) || half_stays(op, common)
}

#[cold]
fn half_stays(op: &str, common: DType) -> bool {
    computed(op, common) == common
}

#[cold]
fn inside(op: &str, common: DType, lower: DType) -> DType {
    match common {
        DType::F32 | DType::F16 | DType::BF16 if LOWER.binary_search(&op).is_ok() => lower,
        DType::F16 | DType::BF16 if WIDE.binary_search(&op).is_ok() => DType::F32,
        _ => common,
    }
}

#[cfg(test)]
mod tests {
    use super::{LOWER, WIDE};

    #[test]
    fn the_lists_are_sorted_and_have_nothing_in_common() {
        assert!(LOWER.is_sorted() && WIDE.is_sorted());
        assert!(LOWER.iter().all(|op| !WIDE.contains(op)));
    }
}

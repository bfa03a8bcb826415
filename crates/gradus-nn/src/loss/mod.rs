//! Losses: as structs with PyTorch's names and defaults ([`CrossEntropyLoss`]), which keep their settings, and as
//! functions.
//!
//! Most functions are methods of [`Tensor`], such as [`Tensor::cross_entropy_with`]; the structs call them. The
//! functions here are those that are composed of other operations. No loss broadcasts its operands.

mod class;
mod element;
mod embedding;
mod multi;

use gradus_tensor::Tensor;

pub use class::{CrossEntropyLoss, CtcLoss, NllLoss};
pub use element::{
    BceLoss, BceWithLogitsLoss, GaussianNllLoss, HuberLoss, KlDivLoss, KlDivReduction, L1Loss, MseLoss, PoissonNllLoss,
    SmoothL1Loss, SoftMarginLoss,
};
pub use embedding::{
    CosineEmbeddingLoss, HingeEmbeddingLoss, MarginRankingLoss, TripletMarginLoss, TripletMarginWithDistanceLoss,
    triplet_margin_with_distance,
};
pub use multi::{
    MultiLabelMarginLoss, MultiLabelSoftMarginLoss, MultiMarginLoss, multi_margin, multilabel_margin,
    multilabel_soft_margin,
};

/// Losses with settings: a struct with public fields and PyTorch's defaults, and `forward`.
macro_rules! losses {
    ($(
        $(#[doc = $doc:literal])*
        $name:ident { $($(#[doc = $of:literal])* $field:ident: $type:ty = $default:expr,)* }:
        |$it:ident, $($arg:ident),*| $value:expr;
    )*) => {$(
        $(#[doc = $doc])*
        #[derive(Debug, Clone, $crate::Module)]
        pub struct $name {
            $($(#[doc = $of])* pub $field: $type,)*
            /// How the losses are combined. Default mean.
            pub reduction: gradus_tensor::Reduction,
        }

        impl Default for $name {
            fn default() -> Self {
                $name { $($field: $default,)* reduction: gradus_tensor::Reduction::Mean }
            }
        }

        impl $name {
            /// Computes the loss.
            #[track_caller]
            pub fn forward(&self, $($arg: &gradus_tensor::Tensor),*) -> gradus_tensor::Result<gradus_tensor::Tensor> {
                let $it = self;
                $value
            }
        }
    )*};
}
use losses;

/// The values of an optional buffer.
fn tensor_of(buffer: &Option<crate::Buffer>) -> Option<Tensor> {
    buffer.as_ref().map(crate::Buffer::tensor)
}

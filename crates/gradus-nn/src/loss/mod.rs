//! Losses: as structs with PyTorch's names and defaults ([`CrossEntropyLoss`]), which keep their settings, and as
//! functions.
//!
//! Most functions are methods of [`Tensor`], such as [`Tensor::cross_entropy_with`]; the structs call them. The
//! functions here are those that are composed of other operations, and shorter forms of some methods for code that
//! selects a loss by value. No loss broadcasts its operands.

mod class;
mod element;
mod embedding;
mod multi;

use gradus_tensor::ops::{Reduction, Target};
use gradus_tensor::{Result, Tensor};

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

/// Binary cross-entropy between logits and target probabilities: see [`Tensor::bce_with_logits`].
///
/// ```
/// # use gradus_nn::loss; use gradus_tensor::{*, ops::Reduction};
/// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
/// let logits = Tensor::from_vec([0.0f32, 100.0], [2], &device)?;
/// let target = Tensor::from_vec([1.0f32, 1.0], [2], &device)?;
/// let losses = loss::bce_with_logits(&logits, &target, Reduction::None)?.to_vec::<f32>()?;
/// assert!((losses[0] - 2f32.ln()).abs() < 1e-6 && losses[1] < 1e-40);
/// # Ok::<(), Error>(())
/// ```
#[track_caller]
pub fn bce_with_logits(logits: &Tensor, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
    logits.bce_with_logits(target, None, None, reduction)
}

/// `|input - target|`: see [`Tensor::l1_loss`].
#[track_caller]
pub fn l1(input: &Tensor, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
    input.l1_loss(target, reduction)
}

/// Quadratic where the error is at most `delta`, linear beyond: see [`Tensor::huber_loss`].
#[track_caller]
pub fn huber(input: &Tensor, target: &Tensor, delta: f64, reduction: Reduction) -> Result<Tensor> {
    input.huber_loss(target, delta, reduction)
}

/// Cross-entropy between logits `[n, c, ..]` and target probabilities of the same shape: see
/// [`Tensor::cross_entropy_with`].
#[track_caller]
pub fn soft_cross_entropy(logits: &Tensor, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
    logits.cross_entropy_with(Target::Probabilities(target), None, None, 0.0, reduction)
}

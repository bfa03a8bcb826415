//! The [`LoraLinear`] layer.

use gradus_tensor::{Error, Result, Tensor, no_grad_guard};

use super::{Dropout, Linear};
use crate::{Forward, Init, Module};

/// A [`Linear`] layer with a low-rank update (LoRA; Hu et al., 2021): `y = W x + b + alpha / rank * B A dropout(x)`. The
/// base layer is frozen; `A [rank, in]` and `B [out, rank]` are trained.
///
/// `A` is initialised as the weight of a [`Linear`], and `B` is 0, so that the layer begins as its base. Parameters have
/// the names of PEFT: `base_layer.weight`, `base_layer.bias`, `lora_A.weight` and `lora_B.weight`. The output has the
/// dtype of the base layer's, whatever the dtype of `A` and `B`.
///
/// ```
/// # use gradus_nn::{Forward, Init, Linear, LoraConfig, LoraLinear, Module}; use gradus_tensor::*;
/// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
/// # let mut generator = Generator::new(0);
/// # let mut init = Init::new(DType::F32, &device, &mut generator);
/// let base = Linear::new(4, 3, &mut init)?;
/// let layer = LoraLinear::new(base, 2, LoraConfig::default(), &mut init)?;
/// let names: Vec<String> = layer.named_parameters().into_iter().map(|p| p.0).collect();
/// assert_eq!(names, ["base_layer.weight", "base_layer.bias", "lora_A.weight", "lora_B.weight"]);
/// let x = Tensor::ones([1, 4], DType::F32, &device)?;
/// let gradients = layer.forward(&x)?.sum_all()?.backward()?;
/// assert_eq!(gradients.len(), 2);
/// let plain: Linear = layer.merge_and_unload()?;
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Module)]
pub struct LoraLinear {
    rank: usize,
    alpha: f64,
    /// The frozen layer.
    pub base_layer: Linear,
    /// From the input to `rank` features.
    #[module(rename = "lora_A")]
    pub lora_a: Linear,
    /// From `rank` features to the output.
    #[module(rename = "lora_B")]
    pub lora_b: Linear,
    dropout: Dropout,
}

/// Options of [`LoraLinear`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LoraConfig {
    /// The update is multiplied by `alpha / rank`. Default 8.
    pub alpha: f64,
    /// Probability of dropping a feature before `A` in training, 0 to 1. Default 0.
    pub dropout: f64,
}

impl Default for LoraConfig {
    fn default() -> Self {
        LoraConfig { alpha: 8.0, dropout: 0.0 }
    }
}

impl LoraLinear {
    /// Wraps `base`, whose parameters it freezes, also for other layers that share them. Errors if the rank is 0, if
    /// `alpha` is not finite, or if the dropout probability is outside 0 to 1.
    #[track_caller]
    pub fn new(mut base: Linear, rank: usize, config: LoraConfig, init: &mut Init<'_>) -> Result<Self> {
        let LoraConfig { alpha, dropout } = config;
        if rank == 0 {
            return Err(Error::argument("lora", "the rank is 0"));
        }
        if !alpha.is_finite() {
            return Err(Error::argument("lora", format!("alpha is {alpha}; it is a finite number")));
        }
        let &[out_features, in_features] = base.weight.shape() else {
            return Err(Error::shape("lora", "the weight of the base layer is no matrix"));
        };
        base.weight.check_whole("lora").map_err(|e| e.help("leave the weight of the layer out of the plan"))?;
        let dropout = Dropout::new(dropout, init.generator)?;
        let lora_a = Linear::without_bias(in_features, rank, init)?;
        let lora_b = Linear::without_bias(rank, out_features, init)?;
        lora_b.weight.set(&lora_b.weight.values().zeros_like()?)?;
        base.freeze();
        Ok(LoraLinear { rank, alpha, base_layer: base, lora_a, lora_b, dropout })
    }

    /// `alpha / rank * B A`, of the shape of the base weight.
    #[track_caller]
    pub fn update(&self) -> Result<Tensor> {
        self.lora_b.weight.matmul(&self.lora_a.weight)?.mul(self.alpha / self.rank as f64)
    }

    /// A plain layer that computes what this one does in evaluation, at the cost of its base: its weight is the sum of
    /// base weight and update, in the dtype of the base weight. The weight is new and frozen like that of the base, and
    /// the bias is the base's. This layer and its base stay as they are.
    #[track_caller]
    pub fn merge_and_unload(&self) -> Result<Linear> {
        let _guard = no_grad_guard();
        let base = self.base_layer.weight.values();
        let weight = self.base_layer.weight.with_values(base.add(&self.update()?)?.to_dtype(base.dtype())?)?;
        Linear::from_parameters(weight, self.base_layer.bias.clone())
    }
}

impl Forward for LoraLinear {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        let y = self.base_layer.forward(input)?;
        let low = self.lora_a.forward(&self.dropout.forward(input)?)?;
        let update = self.lora_b.forward(&low)?.mul(self.alpha / self.rank as f64)?;
        y.add(&update)?.to_dtype(y.dtype())
    }
}

//! [`Group`]: parameters that share hyper-parameters.

use crate::Parameter;

/// Parameters that may have their own learning rate and weight decay.
///
/// ```
/// # use gradus_nn::{AdamConfig, AdamW, Group, Init, Linear, Module, Optimizer}; use gradus_tensor::*;
/// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
/// # let mut generator = Generator::new(0);
/// # let model = Linear::new(2, 2, &mut Init::new(DType::F32, &device, &mut generator))?;
/// // Biases do not decay.
/// let (biases, weights): (Vec<_>, Vec<_>) =
///     model.named_parameters().into_iter().partition(|(name, _)| name.ends_with("bias"));
/// let config = AdamConfig { lr: 1e-3, weight_decay: 0.1, ..Default::default() };
/// let optimizer = AdamW::with_groups([Group::new(weights), Group::new(biases).weight_decay(0.0).lr(1e-2)], config)?;
/// assert_eq!(optimizer.lr(), [1e-3, 1e-2]);
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Group {
    pub(super) parameters: Vec<(String, Parameter)>,
    pub(super) lr: Option<f64>,
    pub(super) weight_decay: Option<f64>,
}

impl Group {
    /// Creates a group that uses the hyper-parameters of the optimiser.
    pub fn new(parameters: impl IntoIterator<Item = (String, Parameter)>) -> Self {
        Group { parameters: parameters.into_iter().collect(), lr: None, weight_decay: None }
    }

    /// Sets a learning rate for this group.
    #[must_use]
    pub fn lr(mut self, lr: f64) -> Self {
        self.lr = Some(lr);
        self
    }

    /// Sets a weight decay for this group.
    #[must_use]
    pub fn weight_decay(mut self, weight_decay: f64) -> Self {
        self.weight_decay = Some(weight_decay);
        self
    }
}

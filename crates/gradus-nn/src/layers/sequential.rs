//! [`Sequential`].

use gradus_tensor::{Result, Tensor};

use crate::{Forward, Module, Visitor, VisitorMut};

/// Layers one after the other, named `0`, `1`, `2`, ..
///
/// ```
/// # use gradus_nn::{Forward, Init, Linear, Module, Relu, Sequential}; use gradus_tensor::*;
/// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
/// # let mut generator = Generator::new(0);
/// # let mut init = Init::new(DType::F32, &device, &mut generator);
/// let model = Sequential::new().add(Linear::new(4, 8, &mut init)?).add(Relu).add(Linear::new(8, 2, &mut init)?);
/// assert_eq!(model.forward(&Tensor::ones([3, 4], DType::F32, &device)?)?.shape(), [3, 2]);
/// assert_eq!(model.named_parameters()[2].0, "2.weight");
/// # Ok::<(), Error>(())
/// ```
#[derive(Default)]
pub struct Sequential {
    layers: Vec<Box<dyn Forward>>,
}

impl Sequential {
    /// No layers: the identity.
    pub fn new() -> Self {
        Self::default()
    }

    /// With this layer at the end.
    #[must_use]
    #[allow(clippy::should_implement_trait)] // a layer is appended, nothing is summed
    pub fn add(mut self, layer: impl Forward + 'static) -> Self {
        self.layers.push(Box::new(layer));
        self
    }

    /// Number of layers.
    pub fn len(&self) -> usize {
        self.layers.len()
    }

    /// Whether there are no layers.
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }
}

impl Module for Sequential {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.kind("Sequential");
        self.layers.visit(visitor);
    }
    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
        self.layers.visit_mut(visitor);
    }
}

impl std::fmt::Display for Sequential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.tree().fmt(f)
    }
}

impl Forward for Sequential {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let mut x = input.clone();
        for layer in &self.layers {
            x = layer.forward(&x)?;
        }
        Ok(x)
    }
}

//! The [`Sequential`] layer.

use gradus_tensor::{Here, Result, Tensor};

use crate::failed_layer::out_of;
use crate::{Forward, ItemMut, Module, Visitor, VisitorMut};

/// Applies layers one after the other. They are named `0`, `1`, `2`, ..
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
    /// Creates a `Sequential` without layers, which is the identity.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a layer.
    #[must_use]
    #[allow(clippy::should_implement_trait)] // appends a layer; has nothing to do with addition
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
    fn visit<'m>(&'m self, visitor: &mut Visitor<'m>) {
        visitor.kind("Sequential");
        self.layers.visit(visitor);
    }
    fn visit_mut<'m>(&'m mut self, visitor: &mut VisitorMut<'m>) {
        visitor.item(ItemMut::Layers(&mut self.layers));
        self.layers.visit_mut(visitor);
    }
}

impl Drop for Sequential {
    /// Uses a loop instead of recursion, so that any depth can be dropped: the layers of nested `Sequential`s are moved
    /// out first.
    fn drop(&mut self) {
        let mut layers = std::mem::take(&mut self.layers);
        while let Some(mut layer) = layers.pop() {
            VisitorMut::walk(&mut layer, &mut |_, item| {
                if let ItemMut::Layers(inner) = item {
                    layers.append(inner);
                }
            });
        }
    }
}

impl std::fmt::Display for Sequential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.tree().fmt(f)
    }
}

impl Forward for Sequential {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        let mut x = input.clone();
        // The `Sequential`s that are running, from this one to the innermost, each with the index of its next layer.
        let mut open = vec![(0, &self.layers[..])];
        while let Some((next, layers)) = open.last_mut() {
            let Some(layer) = layers.get(*next) else {
                open.pop();
                continue;
            };
            *next += 1;
            match layer.sequential_layers() {
                Some(inner) => open.push((0, inner)),
                None => match layer.forward(&x) {
                    Ok(y) => x = y,
                    Err(e) => {
                        let names: Vec<String> = open.iter().map(|(next, _)| (next - 1).to_string()).collect();
                        return Err(out_of(self.place(), layer.place(), &names.join("."), e.here()));
                    }
                },
            }
        }
        Ok(x)
    }

    fn sequential_layers(&self) -> Option<&[Box<dyn Forward>]> {
        Some(&self.layers)
    }
}

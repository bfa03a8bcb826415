//! The [`Sequential`] layer.

use std::borrow::Cow;

use gradus_tensor::{Error, Here, Result, Tensor};

use crate::failed_layer::out_of;
use crate::module::Sequence;
use crate::watch::Pass;
use crate::{Forward, ItemMut, Module, Visitor, VisitorMut};

/// Applies layers one after the other. They are named `0`, `1`, `2`, .., unless they are added under a name.
///
/// ```
/// # use gradus_nn::{Forward, Init, Linear, Module, Relu, Sequential}; use gradus_tensor::*;
/// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
/// # let mut generator = Generator::new(0);
/// # let mut init = Init::new(DType::F32, &device, &mut generator);
/// let model = Sequential::new().add(Linear::new(4, 8, &mut init)?).add(Relu).add(Linear::new(8, 2, &mut init)?);
/// assert_eq!(model.forward(&Tensor::ones([3, 4], DType::F32, &device)?)?.shape(), [3, 2]);
/// assert_eq!(model.named_parameters()[2].0, "2.weight");
/// assert_eq!(model.get(2).unwrap().num_parameters(), 8 * 2 + 2);
/// for layer in &model {
///     println!("{}", layer.tree());
/// }
///
/// let named = Sequential::new().add_named("hidden", Linear::new(4, 8, &mut init)?)?.add(Relu);
/// assert_eq!(named.named_parameters()[0].0, "hidden.weight");
/// assert!(named.get_named("hidden").is_some() && named.get_named("1").is_some());
/// # Ok::<(), Error>(())
/// ```
#[derive(Default)]
pub struct Sequential {
    layers: Vec<Box<dyn Forward>>,
    /// The names of the first layers. A layer without one is called by its number.
    names: Vec<Option<String>>,
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
        self.push(layer);
        self
    }

    /// Appends a layer under a name. Errors if the name is empty, contains a dot, is a number, or is that of another
    /// layer.
    #[track_caller]
    pub fn add_named(mut self, name: &str, layer: impl Forward + 'static) -> Result<Self> {
        if name.is_empty() || name.contains('.') {
            let e = Error::argument("sequential", format!("{name:?} is no name of a layer"));
            return Err(e.help("a name is not empty and contains no dot"));
        }
        // Layers without a name are called by their numbers, and get others as layers are inserted or removed.
        if name.bytes().all(|b| b.is_ascii_digit()) {
            let e = Error::argument("sequential", format!("{name:?} is a number, not a name"));
            return Err(e.help("append it with `add`, which numbers it"));
        }
        if self.get_named(name).is_some() {
            return Err(Error::argument("sequential", format!("there is a layer called {name:?} already")));
        }
        self.names.resize(self.layers.len(), None);
        self.names.push(Some(name.to_owned()));
        self.layers.push(Box::new(layer));
        Ok(self)
    }

    /// Appends a layer.
    pub fn push(&mut self, layer: impl Forward + 'static) {
        self.layers.push(Box::new(layer));
    }

    /// Inserts a layer before the one at `index`, or at the end. The numbers of later layers rise by 1. Errors if
    /// `index` is above the number of layers.
    #[track_caller]
    pub fn insert(&mut self, index: usize, layer: impl Forward + 'static) -> Result<()> {
        if index > self.layers.len() {
            return Err(self.outside(index));
        }
        if index < self.names.len() {
            self.names.insert(index, None);
        }
        self.layers.insert(index, Box::new(layer));
        Ok(())
    }

    /// Removes the layer at `index` and returns it. The numbers of later layers fall by 1. Errors if there is none.
    #[track_caller]
    pub fn remove(&mut self, index: usize) -> Result<Box<dyn Forward>> {
        if index >= self.layers.len() {
            return Err(self.outside(index));
        }
        if index < self.names.len() {
            self.names.remove(index);
        }
        Ok(self.layers.remove(index))
    }

    #[track_caller]
    fn outside(&self, index: usize) -> Error {
        Error::argument("sequential", format!("layer {index} of {}", self.layers.len()))
    }

    /// The layer at `index`, or `None` if there are not so many.
    pub fn get(&self, index: usize) -> Option<&dyn Forward> {
        self.layers.get(index).map(|layer| &**layer)
    }

    /// The layer at `index`, with mutable access.
    pub fn get_mut(&mut self, index: usize) -> Option<&mut Box<dyn Forward>> {
        self.layers.get_mut(index)
    }

    /// The layer with this name or number.
    pub fn get_named(&self, name: &str) -> Option<&dyn Forward> {
        self.children().find(|(called, _)| called == name).map(|(_, layer)| layer)
    }

    /// The layers in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Box<dyn Forward>> {
        self.layers.iter()
    }

    /// The layers in order, with mutable access.
    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, Box<dyn Forward>> {
        self.layers.iter_mut()
    }

    /// The layers in order, each with its name or number.
    pub fn children(&self) -> impl Iterator<Item = (Cow<'_, str>, &dyn Forward)> {
        self.layers.iter().enumerate().map(|(i, layer)| (called(&self.names, i), &**layer))
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

/// The name or number of the layer at an index.
fn called(names: &[Option<String>], index: usize) -> Cow<'_, str> {
    match names.get(index) {
        Some(Some(name)) => Cow::Borrowed(name),
        _ => Cow::Owned(index.to_string()),
    }
}

impl<'a> IntoIterator for &'a Sequential {
    type Item = &'a Box<dyn Forward>;
    type IntoIter = std::slice::Iter<'a, Box<dyn Forward>>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'a> IntoIterator for &'a mut Sequential {
    type Item = &'a mut Box<dyn Forward>;
    type IntoIter = std::slice::IterMut<'a, Box<dyn Forward>>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}

impl Extend<Box<dyn Forward>> for Sequential {
    fn extend<I: IntoIterator<Item = Box<dyn Forward>>>(&mut self, layers: I) {
        self.layers.extend(layers);
    }
}

impl FromIterator<Box<dyn Forward>> for Sequential {
    fn from_iter<I: IntoIterator<Item = Box<dyn Forward>>>(layers: I) -> Self {
        Sequential { layers: layers.into_iter().collect(), names: Vec::new() }
    }
}

impl Module for Sequential {
    fn visit<'m>(&'m self, visitor: &mut Visitor<'m>) {
        visitor.kind("Sequential");
        for (i, layer) in self.layers.iter().enumerate() {
            visitor.child(called(&self.names, i), layer);
        }
    }
    fn visit_mut<'m>(&'m mut self, visitor: &mut VisitorMut<'m>) {
        visitor.item(ItemMut::Layers(&mut self.layers));
        for (i, layer) in self.layers.iter_mut().enumerate() {
            visitor.child(called(&self.names, i), layer);
        }
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
        // The `Sequential`s that are running, from this one to the innermost, each with the index of its next
        // layer, and its pass unless that is the caller's.
        let mut open = vec![(0, (&self.layers[..], &self.names[..]), None::<Pass>)];
        while let Some((next, (layers, _), _)) = open.last_mut() {
            let Some(layer) = layers.get(*next) else {
                if let Some(pass) = open.pop().and_then(|(.., pass)| pass) {
                    pass.end(&x);
                }
                continue;
            };
            *next += 1;
            match layer.sequential_layers() {
                Some(inner) => open.push((0, inner, Some(Pass::begin(|| layer.place())))),
                None => match layer.forward(&x) {
                    Ok(y) => x = y,
                    Err(e) => {
                        let names: Vec<_> = open.iter().map(|(next, (_, names), _)| called(names, next - 1)).collect();
                        return Err(out_of(self.place(), layer.place(), &names.join("."), e.here()));
                    }
                },
            }
        }
        Ok(x)
    }

    fn sequential_layers(&self) -> Option<Sequence<'_>> {
        Some((&self.layers, &self.names))
    }
}

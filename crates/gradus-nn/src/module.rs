//! [`Module`]: named parameters, buffers and submodules; [`Forward`]: what computes.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use gradus_tensor::{Attempt, DType, Device, Error, Here, Result, Tensor};

use crate::failed_layer::{Found, Place, on_the_way_out};
use crate::item::Sink;
use crate::route::Route;
use crate::{Buffer, Item, LoadReport, Mode, Parameter, RandomState, StateDict, Strict, Tree};

/// Anything with parameters and other state at named places.
///
/// Derive it: `#[derive(Module)]` visits each field under its name, and the field's type says what it is. Layers,
/// [`Parameter`], [`Buffer`], [`RandomState`], [`Mode`] and structs that derive it are modules; so are `Vec`, arrays,
/// tuples, `Option`, `Box` and `BTreeMap<String, _>` of modules; numbers, strings and the like are modules without state,
/// which are only printed. A field of another type is left out with `#[module(skip)]`.
///
/// Names are joined with dots as in PyTorch: `conv1.weight`, `layers.0.bias`. `Option` and `Box` add no name; a single
/// unnamed field adds none either. An enum visits the fields of its current variant, without the variant's name.
///
/// ```
/// use gradus_nn::{Forward, Init, Linear, Module};
/// # use gradus_tensor::*;
///
/// #[derive(Module)]
/// struct Tower<A> {
///     layers: Vec<Linear>,
///     activation: A,
///     scale: f64,
/// }
/// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
/// # let mut generator = Generator::new(0);
/// let mut init = Init::new(DType::F32, &device, &mut generator);
/// let layers = vec![Linear::new(2, 3, &mut init)?, Linear::without_bias(3, 1, &mut init)?];
/// let mut tower = Tower { layers, activation: gradus_nn::Gelu, scale: 0.5 };
///
/// let names: Vec<String> = tower.named_parameters().into_iter().map(|(name, _)| name).collect();
/// assert_eq!(names, ["layers.0.weight", "layers.0.bias", "layers.1.weight"]);
/// assert_eq!(tower.num_parameters(), 2 * 3 + 3 + 3);
/// tower.eval();
/// let saved = tower.state_dict()?;
/// tower.load_state_dict(&saved, gradus_nn::Strict::Yes)?;
/// println!("{tower}");
/// # Ok::<(), Error>(())
/// ```
///
/// A field that is none of these does not compile:
/// ```compile_fail
/// #[derive(gradus_nn::Module)]
/// struct Wrong {
///     log: std::fs::File, // needs #[module(skip)]
/// }
/// ```
///
/// Methods that change the model take `&mut self`, though parameters are shared handles: a clone of a model is the same
/// model, not a copy.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a module",
    label = "not a module",
    note = "a field of a module is a layer, a `Parameter`, a `Buffer`, a container of these, or a plain value",
    note = "derive `Module` for your own type; wrap a tensor in `Parameter` (trained) or `Buffer` (kept)",
    note = "leave out a field of any other type with `#[module(skip)]`"
)]
pub trait Module: Send + Sync {
    /// Registers each field with `visitor` under its name, by [`Visitor::child`].
    fn visit<'m>(&'m self, visitor: &mut Visitor<'m>);

    /// Like [`visit`](Module::visit), for change: the same fields under the same names.
    fn visit_mut<'m>(&'m mut self, visitor: &mut VisitorMut<'m>);

    /// The parameters with their names, in the order of the fields. A shared parameter comes once, under its first name.
    fn named_parameters(&self) -> Vec<(String, Parameter)> {
        let mut seen = HashSet::new();
        collected(self, |path, item| match item {
            Item::Parameter(p) if seen.insert(p.id()) => Some((path.to_owned(), p.clone())),
            _ => None,
        })
    }

    /// The parameters in the order of the fields; a shared parameter comes once.
    fn parameters(&self) -> Vec<Parameter> {
        let mut seen = HashSet::new();
        collected(self, |_, item| match item {
            Item::Parameter(p) if seen.insert(p.id()) => Some(p.clone()),
            _ => None,
        })
    }

    /// The buffers with their names, in the order of the fields.
    fn named_buffers(&self) -> Vec<(String, Buffer)> {
        collected(self, |path, item| if let Item::Buffer(b) = item { Some((path.to_owned(), b.clone())) } else { None })
    }

    /// The random states with their names: what a checkpoint of a training run stores besides the state dict, so that a
    /// resumed run draws the same numbers.
    fn named_random_states(&self) -> Vec<(String, RandomState)> {
        collected(self, |path, item| if let Item::Random(r) = item { Some((path.to_owned(), r.clone())) } else { None })
    }

    /// Number of elements of all parameters; shared ones count once.
    fn num_parameters(&self) -> usize {
        self.parameters().iter().map(|p| p.numel()).sum()
    }

    /// Sets [`Mode::Train`] everywhere.
    fn train(&mut self) {
        set_mode(self, Mode::Train);
    }

    /// Sets [`Mode::Eval`] everywhere.
    fn eval(&mut self) {
        set_mode(self, Mode::Eval);
    }

    /// Freezes every parameter: it gets no gradient, and no optimiser steps it.
    fn freeze(&mut self) {
        self.parameters().iter().for_each(Parameter::freeze);
    }

    /// Unfreezes every parameter.
    fn unfreeze(&mut self) {
        self.parameters().iter().for_each(Parameter::unfreeze);
    }

    /// Freezes the parameters at and below a name: `"encoder"` for `encoder.weight` and `encoder.layers.0.bias`, not for
    /// `encoder2.weight`. Errors if there are none.
    #[track_caller]
    fn freeze_under(&mut self, name: &str) -> Result<()> {
        under(self, name)?.iter().for_each(Parameter::freeze);
        Ok(())
    }

    /// Unfreezes the parameters at and below a name. Errors if there are none.
    #[track_caller]
    fn unfreeze_under(&mut self, name: &str) -> Result<()> {
        under(self, name)?.iter().for_each(Parameter::unfreeze);
        Ok(())
    }

    /// A copy of every parameter and buffer under each of its names. Further training does not change it.
    ///
    /// # Errors
    /// Two tensors with the same name. That happens only if a field is renamed to a name with a dot, or a map key contains
    /// one.
    #[track_caller]
    fn state_dict(&self) -> Result<StateDict> {
        StateDict::view_of(&items(self), "state_dict")?.copied()
    }

    /// Replaces parameters and buffers by those of `state`. Float values are converted to the module's float dtype.
    ///
    /// Everything is checked before the first write: after an error nothing has changed, unless a device failed in the
    /// middle; the error says so. A shared parameter needs only one of its names; if several are given, their values must
    /// agree.
    ///
    /// # Errors
    /// With [`Strict::Yes`]: names that are missing, unexpected, or of another shape or dtype. One error counts all kinds
    /// and lists the first 20 names of each. [`Strict::No`] loads what fits; its report has every name. With either: two
    /// tensors of the module with the same name.
    #[track_caller]
    fn load_state_dict(&mut self, state: &StateDict, strict: Strict) -> Result<LoadReport> {
        state.load_into(&items(self), strict)
    }

    /// Writes the state to a safetensors file, which PyTorch reads too. The file appears when it is complete: it is
    /// written beside `path` and renamed.
    #[track_caller]
    fn save_safetensors(&self, path: impl AsRef<Path>) -> Result<()>
    where
        Self: Sized,
    {
        StateDict::view_of(&items(self), "save_safetensors")?.save_safetensors(path)
    }

    /// Loads a safetensors file as [`load_state_dict`](Module::load_state_dict) does. `device` is the device of the module;
    /// the file is read onto it.
    #[track_caller]
    fn load_safetensors(&mut self, path: impl AsRef<Path>, device: &Device, strict: Strict) -> Result<LoadReport>
    where
        Self: Sized,
    {
        let path = path.as_ref();
        let state = StateDict::load_safetensors(path, device)?;
        state.load_into(&items(self), strict).map_err(|e| e.note(format!("file: {}", path.display())))
    }

    /// Replaces each float parameter and buffer by one of another float dtype. Shared ones stay shared. An optimiser that
    /// was made before still steps the old ones; call its [`rebind`](crate::Optimizer::rebind).
    #[track_caller]
    fn cast_parameters(&mut self, dtype: DType) -> Result<()> {
        if !dtype.is_float() {
            return Err(Error::dtype("cast_parameters", dtype, "floats"));
        }
        replace(self, &|t| if t.dtype().is_float() { t.to_dtype(dtype) } else { Ok(t.clone()) })
    }

    /// Replaces each parameter and buffer by one on `device`; after an error, none is replaced. Shared ones stay shared,
    /// frozen ones frozen. An optimiser that was made before still steps the old ones; call its
    /// [`rebind`](crate::Optimizer::rebind):
    ///
    /// ```
    /// # use gradus_nn::{Adam, AdamConfig, Init, Linear, Module, Optimizer}; use gradus_tensor::*;
    /// # let open = || gradus_cpu::CpuBackend::new().map(|b| Device::from_backend(std::sync::Arc::new(b)));
    /// # let (here, there) = (open()?, open()?);
    /// # let mut generator = Generator::new(0);
    /// let mut model = Linear::new(2, 2, &mut Init::new(DType::F32, &here, &mut generator))?;
    /// let mut optimizer = Adam::new(model.named_parameters(), AdamConfig::default())?;
    /// model.to_device(&there)?;
    /// optimizer.rebind(model.named_parameters())?;
    /// # assert!(optimizer.parameters().iter().all(|p| *p.device() == there));
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    fn to_device(&mut self, device: &Device) -> Result<()> {
        replace(self, &|t| t.to_device(device))
    }

    /// The tree of modules, for printing.
    fn tree(&self) -> Tree {
        Tree::of(&items(self))
    }

    /// Identifies this module as long as it is not moved: errors of forward passes look up its name by it.
    #[doc(hidden)]
    fn place(&self) -> Place {
        (std::ptr::from_ref(self).addr(), std::any::type_name::<Self>())
    }
}

/// A module that maps one tensor to another. Implement [`compute`](Forward::compute) and call [`forward`](Forward::forward),
/// as in PyTorch you implement `forward` and call the module:
///
/// ```
/// # use gradus_nn::{Dropout, Forward, Linear, Module}; use gradus_tensor::*;
/// #[derive(Module)]
/// struct Head {
///     drop: Dropout,
///     linear: Linear,
/// }
///
/// impl Forward for Head {
///     fn compute(&self, x: &Tensor) -> Result<Tensor> {
///         self.linear.forward(&self.drop.forward(x)?)
///     }
/// }
/// ```
///
/// # A pass that fails changes nothing
/// If `forward` fails, in any layer and for any reason, all buffers (running statistics) and generators (the random numbers
/// of dropout) inside are restored. The same holds after a panic.
///
/// To make a function of your own over several modules such a unit, run it in
/// [`all_or_nothing`](gradus_tensor::all_or_nothing), which can also include what follows the pass: loss, backward pass and
/// step. A `Trainer` does that for each step, and [`Optimizer::step`](crate::Optimizer::step) is all or nothing by itself.
/// `all_or_nothing` lists what is not restored: tensors that the model writes in place, what it does on other threads, and
/// layers that another thread used at the same time.
pub trait Forward: Module {
    /// What the module computes. Call [`forward`](Forward::forward) instead: it restores the state if this fails.
    // No `#[track_caller]`, which would hide the lines inside of a user's module; layers of Gradus have it.
    fn compute(&self, input: &Tensor) -> Result<Tensor>;

    /// Computes the output.
    ///
    /// # Errors
    /// Those of [`compute`](Forward::compute), and one for modules whose calls are nested more than 128 deep; buffers and
    /// generators are restored. The error says [which layer](Error::layer) failed, by its path in this module.
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let attempt = Attempt::forward()?;
        match attempt.end(self.compute(input)) {
            Err(e) => Err(out_of_forward(self, e.here())),
            done => done,
        }
    }

    /// The layers, if this is a [`Sequential`](crate::Sequential): nested ones are computed in one loop.
    #[doc(hidden)]
    fn sequential_layers(&self) -> Option<&[Box<dyn Forward>]> {
        None
    }
}

impl<F: Forward + ?Sized> Forward for Box<F> {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        (**self).compute(input).here()
    }
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        (**self).forward(input).here()
    }
    fn sequential_layers(&self) -> Option<&[Box<dyn Forward>]> {
        (**self).sequential_layers()
    }
}

/// An error on its way out of the forward pass of `module`.
#[cold]
pub(crate) fn out_of_forward<M: Module + ?Sized>(module: &M, e: Error) -> Error {
    on_the_way_out(module.place(), e, |place| find(module, place))
}

/// The walk over the items of a module.
fn items<M: Module + ?Sized>(module: &M) -> impl Fn(&mut Sink<'_>) {
    move |sink| Visitor::walk(module, sink)
}

/// The results of `pick` for the items of a module, without `None`.
fn collected<M: Module + ?Sized, T>(module: &M, mut pick: impl FnMut(&str, Item<'_>) -> Option<T>) -> Vec<T> {
    let mut found = Vec::new();
    Visitor::walk(module, &mut |path, item| found.extend(pick(path, item)));
    found
}

fn set_mode<M: Module + ?Sized>(module: &mut M, mode: Mode) {
    VisitorMut::walk(module, &mut |_, item| {
        if let ItemMut::Mode(m) = item {
            *m = mode;
        }
    });
}

/// The parameters at and below a name.
#[track_caller]
fn under<M: Module + ?Sized>(module: &M, name: &str) -> Result<Vec<Parameter>> {
    let mut found = Vec::new();
    let (mut tops, mut seen) = (Vec::new(), HashSet::new());
    Visitor::walk(module, &mut |path, item| {
        let Item::Parameter(p) = item else { return };
        if path.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.')) {
            found.push(p.clone());
        }
        let top = path.split('.').next().unwrap_or(path);
        if seen.insert(top.to_owned()) {
            tops.push(top.to_owned());
        }
    });
    if found.is_empty() {
        let e = Error::argument("freeze", format!("there is no parameter at or below {name:?}"));
        tops.truncate(20);
        return Err(e.help(format!("names start with: {}", tops.join(", "))));
    }
    Ok(found)
}

/// Replaces every parameter and buffer by what `f` makes of its values; all are made before the first is replaced.
#[track_caller]
fn replace<M: Module + ?Sized>(module: &mut M, f: &dyn Fn(&Tensor) -> Result<Tensor>) -> Result<()> {
    let mut parameters: HashMap<usize, Parameter> = HashMap::new();
    let mut buffers: HashMap<usize, Buffer> = HashMap::new();
    let mut failure = None;
    Visitor::walk(module, &mut |_, item| {
        let outcome = match item {
            Item::Parameter(p) if !parameters.contains_key(&p.id()) => f(p.values()).and_then(|t| {
                if Arc::ptr_eq(t.storage(), p.values().storage()) {
                    return Ok(());
                }
                let new = Parameter::new(t)?;
                if p.is_frozen() {
                    new.freeze();
                }
                parameters.insert(p.id(), new);
                Ok(())
            }),
            Item::Buffer(b) if !buffers.contains_key(&b.id()) => f(&b.tensor()).and_then(|t| {
                if Arc::ptr_eq(t.storage(), b.tensor().storage()) {
                    return Ok(());
                }
                buffers.insert(b.id(), Buffer::new(t)?);
                Ok(())
            }),
            _ => Ok(()),
        };
        if let Err(e) = outcome {
            failure.get_or_insert(e);
        }
    });
    if let Some(e) = failure {
        return Err(e.here());
    }
    VisitorMut::walk(module, &mut |_, item| match item {
        ItemMut::Parameter(p) => {
            if let Some(new) = parameters.get(&p.id()) {
                *p = new.clone();
            }
        }
        ItemMut::Buffer(b) => {
            if let Some(new) = buffers.get(&b.id()) {
                *b = new.clone();
            }
        }
        _ => {}
    });
    Ok(())
}

/// What a walk for change meets.
#[non_exhaustive]
pub enum ItemMut<'a> {
    /// A parameter.
    Parameter(&'a mut Parameter),
    /// A buffer.
    Buffer(&'a mut Buffer),
    /// A random state.
    Random(&'a mut RandomState),
    /// Training or evaluation.
    Mode(&'a mut Mode),
    /// The layers of a [`Sequential`](crate::Sequential). Those that the sink leaves in it are visited next.
    Layers(&'a mut Vec<Box<dyn Forward>>),
}

/// A walk over a module: keeps the name of the current place and hands each item to a function.
pub struct Visitor<'m> {
    route: Route<'m, &'m dyn Module>,
    sink: &'m mut dyn FnMut(&str, Item<'_>),
}

/// A walk over a module for change.
pub struct VisitorMut<'m> {
    route: Route<'m, &'m mut dyn Module>,
    sink: &'m mut dyn FnMut(&str, ItemMut<'_>),
}

impl<'m> Visitor<'m> {
    /// Hands the name and value of each item in `module` to `sink`, in the order of the fields.
    pub fn walk<M: Module + ?Sized>(module: &'m M, sink: &'m mut dyn FnMut(&str, Item<'_>)) {
        let mut visitor = Visitor { route: Route::new(), sink };
        module.visit(&mut visitor);
        while let Some(module) = visitor.route.next() {
            module.visit(&mut visitor);
        }
    }

    /// Registers a field under its name. It is visited after the module that registers it, and before the fields registered
    /// later.
    pub fn child(&mut self, name: impl Into<Cow<'m, str>>, module: &'m dyn Module) {
        self.route.show(Some(name.into()), module);
    }

    /// Registers a field without a name of its own: what a wrapper wraps.
    pub fn wrapped(&mut self, module: &'m dyn Module) {
        self.route.show(None, module);
    }

    /// Says what type of module the fields that follow belong to.
    pub fn kind(&mut self, kind: &str) {
        self.item(Item::Kind(kind));
    }

    /// Hands an item at the current path to the sink.
    pub fn item(&mut self, item: Item<'_>) {
        (self.sink)(&self.route.path, item);
    }
}

/// Looks for the module at `place` inside of `module`.
fn find<M: Module + ?Sized>(module: &M, place: Place) -> Found {
    let mut visitor = Visitor { route: Route::new(), sink: &mut |_, _| {} };
    module.visit(&mut visitor);
    let mut found = Found::None;
    while let Some(module) = visitor.route.next() {
        if module.place() == place {
            found = match found {
                Found::None => Found::One(visitor.route.path.clone()),
                // What a wrapper wraps has the wrapper's path.
                Found::One(path) if path == visitor.route.path => Found::One(path),
                _ => return Found::Several,
            };
        }
        module.visit(&mut visitor);
    }
    found
}

impl<'m> VisitorMut<'m> {
    /// Hands the name and value of each item in `module` to `sink`, in the order of the fields.
    pub fn walk<M: Module + ?Sized>(module: &'m mut M, sink: &'m mut dyn FnMut(&str, ItemMut<'_>)) {
        let mut visitor = VisitorMut { route: Route::new(), sink };
        module.visit_mut(&mut visitor);
        while let Some(module) = visitor.route.next() {
            module.visit_mut(&mut visitor);
        }
    }

    /// Registers a field under its name. It is visited after the module that registers it, and before the fields registered
    /// later.
    pub fn child(&mut self, name: impl Into<Cow<'m, str>>, module: &'m mut dyn Module) {
        self.route.show(Some(name.into()), module);
    }

    /// Registers a field without a name of its own: what a wrapper wraps.
    pub fn wrapped(&mut self, module: &'m mut dyn Module) {
        self.route.show(None, module);
    }

    /// Hands an item at the current path to the sink.
    pub fn item(&mut self, item: ItemMut<'_>) {
        (self.sink)(&self.route.path, item);
    }
}

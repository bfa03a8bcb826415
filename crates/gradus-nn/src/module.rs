//! [`Module`]: a tree of named parameters, buffers and submodules; [`Forward`]: a module that computes an output.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use gradus_tensor::{Attempt, DType, Device, Error, Here, Result, Tensor};

use crate::failed_layer::{Found, Place, on_the_way_out};
use crate::item::Sink;
use crate::route::Route;
use crate::watch::Pass;
use crate::{Buffer, Item, LoadReport, Mode, Parameter, RandomState, StateDict, Strict, Tree};

/// A type that holds parameters, buffers and other state, each under a name.
///
/// Implement it with `#[derive(Module)]`, which visits each field under the field's name. Every field must itself be a
/// module. Layers, [`Parameter`], [`Buffer`], [`RandomState`], [`Mode`] and structs that derive `Module` are modules,
/// and so are `Vec`, arrays, tuples, `Option`, `Box` and `BTreeMap<String, _>` of modules. Numbers, strings and other
/// plain values are modules without state, which are only printed. Leave out a field of any other type with
/// `#[module(skip)]`.
///
/// Names are joined with dots as in PyTorch: `conv1.weight`, `layers.0.bias`. `Option` and `Box` add nothing to the
/// name; neither does the only field of a tuple struct or tuple variant. An enum visits the fields of its current
/// variant, without the variant's name.
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
/// A field whose type is not a module does not compile:
/// ```compile_fail
/// #[derive(gradus_nn::Module)]
/// struct Wrong {
///     log: std::fs::File, // needs #[module(skip)]
/// }
/// ```
///
/// Methods that change the model take `&mut self`, although parameters are shared handles: a clone of a model shares
/// its parameters, so it is the same model and not a copy.
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

    /// Like [`visit`](Module::visit), but with mutable access: the same fields under the same names.
    fn visit_mut<'m>(&'m mut self, visitor: &mut VisitorMut<'m>);

    /// The parameters with their names, in field order. A shared parameter appears once, under its first name.
    fn named_parameters(&self) -> Vec<(String, Parameter)> {
        let mut seen = HashSet::new();
        collected(self, |path, item| match item {
            Item::Parameter(p) if seen.insert(p.id()) => Some((path.to_owned(), p.clone())),
            _ => None,
        })
    }

    /// The parameters in field order. A shared parameter appears once.
    fn parameters(&self) -> Vec<Parameter> {
        let mut seen = HashSet::new();
        collected(self, |_, item| match item {
            Item::Parameter(p) if seen.insert(p.id()) => Some(p.clone()),
            _ => None,
        })
    }

    /// The buffers with their names, in field order.
    fn named_buffers(&self) -> Vec<(String, Buffer)> {
        collected(self, |path, item| if let Item::Buffer(b) = item { Some((path.to_owned(), b.clone())) } else { None })
    }

    /// The random states with their names. A checkpoint of a training run stores them along with the state dict, so
    /// that a resumed run draws the same numbers.
    fn named_random_states(&self) -> Vec<(String, RandomState)> {
        collected(self, |path, item| if let Item::Random(r) = item { Some((path.to_owned(), r.clone())) } else { None })
    }

    /// Total number of elements of all parameters. A shared parameter counts once.
    fn num_parameters(&self) -> usize {
        self.parameters().iter().map(|p| p.numel()).sum()
    }

    /// Sets every [`Mode`] in the module to [`Mode::Train`].
    fn train(&mut self) {
        set_mode(self, Mode::Train);
    }

    /// Sets every [`Mode`] in the module to [`Mode::Eval`].
    fn eval(&mut self) {
        set_mode(self, Mode::Eval);
    }

    /// Freezes every parameter: no gradient is computed for it, and no optimiser updates it.
    fn freeze(&mut self) {
        self.parameters().iter().for_each(Parameter::freeze);
    }

    /// Unfreezes every parameter.
    fn unfreeze(&mut self) {
        self.parameters().iter().for_each(Parameter::unfreeze);
    }

    /// Freezes the parameter called `name` and all parameters below that name: `"encoder"` freezes `encoder.weight` and
    /// `encoder.layers.0.bias`, but not `encoder2.weight`. Errors if there are none.
    #[track_caller]
    fn freeze_under(&mut self, name: &str) -> Result<()> {
        under(self, name)?.iter().for_each(Parameter::freeze);
        Ok(())
    }

    /// Unfreezes the parameter called `name` and all parameters below that name. Errors if there are none.
    #[track_caller]
    fn unfreeze_under(&mut self, name: &str) -> Result<()> {
        under(self, name)?.iter().for_each(Parameter::unfreeze);
        Ok(())
    }

    /// Returns a copy of every parameter and buffer under each of its names. Later training does not change the copy.
    ///
    /// # Errors
    /// Fails if two tensors have the same name. That happens only if a field is renamed to a name that contains a dot,
    /// or if a map key contains one.
    #[track_caller]
    fn state_dict(&self) -> Result<StateDict> {
        StateDict::view_of(&items(self), "state_dict")?.copied()
    }

    /// Overwrites parameters and buffers with the values in `state`. Float values are converted to the module's float
    /// dtype.
    ///
    /// Everything is checked before the first write, so that an error leaves the module unchanged. The one exception is
    /// a device that fails halfway through; the error then says so. A shared parameter needs only one of its names in
    /// `state`; if `state` contains several of them, their values must agree.
    ///
    /// # Errors
    /// With [`Strict::Yes`], fails if names are missing or unexpected, or if a tensor has the wrong shape or dtype. A
    /// single error counts the problems of each kind and lists the first 20 names of each. With [`Strict::No`],
    /// whatever fits is loaded, and the report lists every name. In both modes, two tensors of the module with the same
    /// name are an error.
    #[track_caller]
    fn load_state_dict(&mut self, state: &StateDict, strict: Strict) -> Result<LoadReport> {
        state.load_into(&items(self), strict)
    }

    /// Writes the state to a safetensors file, which PyTorch can read. The data is written to a temporary file beside
    /// `path` and then renamed, so that an incomplete file never appears.
    #[track_caller]
    fn save_safetensors(&self, path: impl AsRef<Path>) -> Result<()>
    where
        Self: Sized,
    {
        StateDict::view_of(&items(self), "save_safetensors")?.save_safetensors(path)
    }

    /// Loads a safetensors file as [`load_state_dict`](Module::load_state_dict) does. The file is read onto `device`,
    /// which should be the module's own device.
    #[track_caller]
    fn load_safetensors(&mut self, path: impl AsRef<Path>, device: &Device, strict: Strict) -> Result<LoadReport>
    where
        Self: Sized,
    {
        let path = path.as_ref();
        let state = StateDict::load_safetensors(path, device)?;
        state.load_into(&items(self), strict).map_err(|e| e.note(format!("file: {}", path.display())))
    }

    /// Converts every float parameter and buffer to another float dtype by replacing it. Shared ones stay shared. An
    /// optimiser made earlier still updates the old parameters; call its [`rebind`](crate::Optimizer::rebind).
    #[track_caller]
    fn cast_parameters(&mut self, dtype: DType) -> Result<()> {
        if !dtype.is_float() {
            return Err(Error::dtype("cast_parameters", dtype, "floats"));
        }
        replace(self, &|t| if t.dtype().is_float() { t.to_dtype(dtype) } else { Ok(t.clone()) })
    }

    /// Moves every parameter and buffer to `device` by replacing it. After an error, none is replaced. Shared ones stay
    /// shared, and frozen ones stay frozen. An optimiser made earlier still updates the old parameters; call its
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

    /// The tree of submodules, for printing.
    fn tree(&self) -> Tree {
        Tree::of(&items(self))
    }

    /// Identifies this module for as long as it is not moved. An error from a forward pass is matched to the module's
    /// name by it.
    #[doc(hidden)]
    fn place(&self) -> Place {
        (std::ptr::from_ref(self).addr(), std::any::type_name::<Self>())
    }
}

/// The layers of a [`Sequential`](crate::Sequential), and the names of the first of them.
pub(crate) type Sequence<'a> = (&'a [Box<dyn Forward>], &'a [Option<String>]);

/// A module that maps one tensor to another. Implement [`compute`](Forward::compute) and call
/// [`forward`](Forward::forward), just as in PyTorch you implement `forward` and call the module:
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
/// If `forward` fails, in any layer and for any reason, every buffer (running statistics) and every generator (the
/// random numbers of dropout) inside it is restored. The same holds after a panic.
///
/// To get the same guarantee for your own function over several modules, run it in
/// [`all_or_nothing`](gradus_tensor::all_or_nothing). It can also cover what follows the forward pass: loss, backward
/// pass and optimiser step. A `Trainer` does that for each step, and [`Optimizer::step`](crate::Optimizer::step) is all
/// or nothing by itself. The documentation of `all_or_nothing` lists what is not restored: tensors that the model
/// writes in place, what it does on other threads, and layers that another thread used at the same time.
pub trait Forward: Module {
    /// Computes the output of the module. Call [`forward`](Forward::forward) instead, which restores the state if this
    /// fails.
    // Not `#[track_caller]`, which would hide the lines inside a user's module. The layers of Gradus do have it.
    fn compute(&self, input: &Tensor) -> Result<Tensor>;

    /// Computes the output.
    ///
    /// # Errors
    /// Every error of [`compute`](Forward::compute), and an error if calls of modules are nested more than 128 deep. In
    /// each case buffers and generators are restored. The error says [which layer](Error::layer) failed, by its path in
    /// this module.
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let attempt = Attempt::forward()?;
        let pass = Pass::begin(|| self.place());
        match attempt.end(self.compute(input)) {
            Err(e) => Err(out_of_forward(self, e.here())),
            Ok(y) => {
                pass.end(&y);
                Ok(y)
            }
        }
    }

    /// The layers, if this is a [`Sequential`](crate::Sequential). With them, nested `Sequential`s run in one loop.
    #[doc(hidden)]
    fn sequential_layers(&self) -> Option<Sequence<'_>> {
        None
    }
}

impl fmt::Debug for dyn Forward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.tree(), f)
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
    fn sequential_layers(&self) -> Option<Sequence<'_>> {
        (**self).sequential_layers()
    }
}

/// A computation of a module that [`Forward`] does not cover, because it takes or returns more than one tensor. It does
/// what [`Forward::forward`] does around `compute`: if the computation fails, buffers and generators are restored, and the
/// error says which layer failed, by its path in the module.
///
/// ```
/// # use gradus_nn::{Forward, ForwardPass, Linear, Module}; use gradus_tensor::*;
/// #[derive(Module)]
/// struct Matcher {
///     query: Linear,
///     key: Linear,
/// }
///
/// impl Matcher {
///     fn scores(&self, queries: &Tensor, keys: &Tensor) -> Result<Tensor> {
///         let pass = ForwardPass::begin()?;
///         pass.end(self, self.products(queries, keys))
///     }
///
///     fn products(&self, queries: &Tensor, keys: &Tensor) -> Result<Tensor> {
///         self.query.forward(queries)?.matmul(&self.key.forward(keys)?.t()?)
///     }
/// }
/// ```
#[must_use = "what runs before `end` is restored if it fails"]
pub struct ForwardPass(Attempt);

impl ForwardPass {
    /// Begins a computation. Errors if calls of modules are nested more than 128 deep.
    #[track_caller]
    pub fn begin() -> Result<Self> {
        Ok(ForwardPass(Attempt::forward()?))
    }

    /// Ends the computation of `module`, and returns its result.
    #[track_caller]
    pub fn end<M: Module + ?Sized, R>(self, module: &M, result: Result<R>) -> Result<R> {
        self.0.end(result).map_err(|e| out_of_forward(module, e)).here()
    }
}

/// Adds the path of the failed layer to an error that leaves the forward pass of `module`.
#[cold]
pub(crate) fn out_of_forward<M: Module + ?Sized>(module: &M, e: Error) -> Error {
    on_the_way_out(module.place(), e, |place| find(module, place))
}

/// A function that walks over the items of a module.
fn items<M: Module + ?Sized>(module: &M) -> impl Fn(&mut Sink<'_>) {
    move |sink| Visitor::walk(module, sink)
}

/// Calls `pick` for every item of a module and collects the values that are not `None`.
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

/// The parameter called `name` and all parameters below that name.
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

/// Replaces every parameter and buffer by the result of `f` on its values. All results are computed before the first
/// one is replaced.
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
                parameters.insert(p.id(), p.with_values(t)?);
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

/// An item that a mutable walk passes to its sink.
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
    /// The layers of a [`Sequential`](crate::Sequential). The walk then visits whichever layers the sink leaves in the
    /// vector.
    Layers(&'a mut Vec<Box<dyn Forward>>),
}

/// A field name, and the name that takes its place.
type Renamed = (&'static str, &'static str);

/// The name of a field, or the one that takes its place.
fn name_of<'m>(name: Cow<'m, str>, renamed: Option<Renamed>) -> Cow<'m, str> {
    match renamed {
        Some((from, to)) if name == from => Cow::Borrowed(to),
        _ => name,
    }
}

/// A walk over a module. It keeps track of the current name and passes each item to a function.
pub struct Visitor<'m> {
    route: Route<'m, &'m dyn Module>,
    renamed: Option<Renamed>,
    sink: &'m mut dyn FnMut(&str, Item<'_>),
}

/// A mutable walk over a module.
pub struct VisitorMut<'m> {
    route: Route<'m, &'m mut dyn Module>,
    renamed: Option<Renamed>,
    sink: &'m mut dyn FnMut(&str, ItemMut<'_>),
}

impl<'m> Visitor<'m> {
    /// Passes the name and value of each item in `module` to `sink`, in field order.
    pub fn walk<M: Module + ?Sized>(module: &'m M, sink: &'m mut dyn FnMut(&str, Item<'_>)) {
        let mut visitor = Visitor { route: Route::new(), renamed: None, sink };
        module.visit(&mut visitor);
        while let Some(module) = visitor.route.next() {
            module.visit(&mut visitor);
        }
    }

    /// Registers a field under its name. The walk visits it after the module that registers it, and before any field
    /// registered later.
    pub fn child(&mut self, name: impl Into<Cow<'m, str>>, module: &'m dyn Module) {
        self.route.show(Some(name_of(name.into(), self.renamed)), module);
    }

    /// Registers the inner module of a wrapper, which has no name of its own.
    pub fn wrapped(&mut self, module: &'m dyn Module) {
        self.route.show(None, module);
    }

    /// Registers the fields of `module` as fields of the module that is being visited, the one called `from` under the
    /// name `to`.
    pub(crate) fn fields_of(&mut self, module: &'m dyn Module, from: &'static str, to: &'static str) {
        let outer = self.renamed.replace((from, to));
        module.visit(self);
        self.renamed = outer;
    }

    /// Sets the type name of the module to which the following fields belong.
    pub fn kind(&mut self, kind: &str) {
        self.item(Item::Kind(kind));
    }

    /// Passes an item at the current path to the sink.
    pub fn item(&mut self, item: Item<'_>) {
        (self.sink)(&self.route.path, item);
    }
}

/// Looks for the module at `place` inside `module`.
fn find<M: Module + ?Sized>(module: &M, place: Place) -> Found {
    let mut visitor = Visitor { route: Route::new(), renamed: None, sink: &mut |_, _| {} };
    module.visit(&mut visitor);
    let mut found = Found::None;
    while let Some(module) = visitor.route.next() {
        if module.place() == place {
            found = match found {
                Found::None => Found::One(visitor.route.path.clone()),
                // A wrapper and the module inside it have the same path.
                Found::One(path) if path == visitor.route.path => Found::One(path),
                _ => return Found::Several,
            };
        }
        module.visit(&mut visitor);
    }
    found
}

/// The modules inside `module`, itself first, each with its place and path. Modules without fields may share a place.
pub(crate) fn places<M: Module + ?Sized>(module: &M) -> Vec<(Place, String)> {
    let mut visitor = Visitor { route: Route::new(), renamed: None, sink: &mut |_, _| {} };
    let mut all = vec![(module.place(), String::new())];
    module.visit(&mut visitor);
    while let Some(module) = visitor.route.next() {
        all.push((module.place(), visitor.route.path.clone()));
        module.visit(&mut visitor);
    }
    all
}

impl<'m> VisitorMut<'m> {
    /// Passes the name and value of each item in `module` to `sink`, in field order.
    pub fn walk<M: Module + ?Sized>(module: &'m mut M, sink: &'m mut dyn FnMut(&str, ItemMut<'_>)) {
        let mut visitor = VisitorMut { route: Route::new(), renamed: None, sink };
        module.visit_mut(&mut visitor);
        while let Some(module) = visitor.route.next() {
            module.visit_mut(&mut visitor);
        }
    }

    /// Registers a field under its name. The walk visits it after the module that registers it, and before any field
    /// registered later.
    pub fn child(&mut self, name: impl Into<Cow<'m, str>>, module: &'m mut dyn Module) {
        self.route.show(Some(name_of(name.into(), self.renamed)), module);
    }

    /// Registers the inner module of a wrapper, which has no name of its own.
    pub fn wrapped(&mut self, module: &'m mut dyn Module) {
        self.route.show(None, module);
    }

    /// Registers the fields of `module` as fields of the module that is being visited, the one called `from` under the
    /// name `to`.
    pub(crate) fn fields_of(&mut self, module: &'m mut dyn Module, from: &'static str, to: &'static str) {
        let outer = self.renamed.replace((from, to));
        module.visit_mut(self);
        self.renamed = outer;
    }

    /// Passes an item at the current path to the sink.
    pub fn item(&mut self, item: ItemMut<'_>) {
        (self.sink)(&self.route.path, item);
    }
}

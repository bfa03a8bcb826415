//! [`Visitor`] and [`VisitorMut`]: walks over a module and all that it contains.
//!
//! A module shows its fields, and the walk visits each when the module is done with showing. So a walk is a loop, and a nest
//! of modules may be as deep as memory allows.

use std::borrow::Cow;
use std::fmt;

use crate::failed_layer::Place;
use crate::{Buffer, Forward, Mode, Module, Parameter, RandomState};

/// What a visit meets.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub enum Item<'a> {
    /// A module of this type, whose fields follow.
    Kind(&'a str),
    /// A parameter.
    Parameter(&'a Parameter),
    /// A buffer.
    Buffer(&'a Buffer),
    /// A random state.
    Random(&'a RandomState),
    /// Training or evaluation.
    Mode(Mode),
    /// A plain value.
    Setting(&'a dyn fmt::Debug),
}

/// What a visit for change meets.
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
    /// The layers of a [`Sequential`](crate::Sequential), which are visited next: those that are left in it.
    Layers(&'a mut Vec<Box<dyn Forward>>),
}

/// Where a walk is, and the modules that it has still to visit.
struct Route<'m, M> {
    path: String,
    /// Length of the path of the parent, name and module; the next one last.
    waiting: Vec<(usize, Option<Cow<'m, str>>, M)>,
    /// Those from here on were shown by the module visited last, the first one first.
    shown: usize,
}

impl<'m, M> Route<'m, M> {
    fn new() -> Self {
        Route { path: String::new(), waiting: Vec::new(), shown: 0 }
    }

    fn show(&mut self, name: Option<Cow<'m, str>>, module: M) {
        self.waiting.push((self.path.len(), name, module));
    }

    /// Goes to the next module: the first field before the second, with all that is in it.
    fn next(&mut self) -> Option<M> {
        self.waiting[self.shown..].reverse();
        let (parent, name, module) = self.waiting.pop()?;
        self.shown = self.waiting.len();
        self.path.truncate(parent);
        if let Some(name) = name {
            if parent > 0 {
                self.path.push('.');
            }
            self.path.push_str(&name);
        }
        Some(module)
    }
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

    /// Shows a field under its name. It is visited after the module that shows it, and before what that shows next.
    pub fn child(&mut self, name: impl Into<Cow<'m, str>>, module: &'m dyn Module) {
        self.route.show(Some(name.into()), module);
    }

    /// Shows a field that has no name of its own: what a wrapper wraps.
    pub fn wrapped(&mut self, module: &'m dyn Module) {
        self.route.show(None, module);
    }

    /// Says what type of module the fields that follow belong to.
    pub fn kind(&mut self, kind: &str) {
        self.item(Item::Kind(kind));
    }

    /// Hands over an item at the current place.
    pub fn item(&mut self, item: Item<'_>) {
        (self.sink)(&self.route.path, item);
    }
}

/// The modules inside of another that lie at one place.
pub(crate) enum Found {
    None,
    /// By the path that all of them have.
    One(String),
    Several,
}

/// Looks for the module at `place` inside of `module`.
pub(crate) fn find<M: Module + ?Sized>(module: &M, place: Place) -> Found {
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

    /// Shows a field under its name. It is visited after the module that shows it, and before what that shows next.
    pub fn child(&mut self, name: impl Into<Cow<'m, str>>, module: &'m mut dyn Module) {
        self.route.show(Some(name.into()), module);
    }

    /// Shows a field that has no name of its own: what a wrapper wraps.
    pub fn wrapped(&mut self, module: &'m mut dyn Module) {
        self.route.show(None, module);
    }

    /// Hands over an item at the current place.
    pub fn item(&mut self, item: ItemMut<'_>) {
        (self.sink)(&self.route.path, item);
    }
}

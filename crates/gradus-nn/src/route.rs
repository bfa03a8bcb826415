//! [`Route`]: the way of a walk over a module.
//!
//! A module shows its fields, and the walk visits each when the module is done with showing. So a walk is a loop, and a nest
//! of modules may be as deep as memory allows.

use std::borrow::Cow;

/// Where a walk is, and the modules that it has still to visit.
pub(crate) struct Route<'m, M> {
    pub(crate) path: String,
    /// Length of the path of the parent, name and module; the next one last.
    waiting: Vec<(usize, Option<Cow<'m, str>>, M)>,
    /// Those from here on were shown by the module visited last, the first one first.
    shown: usize,
}

impl<'m, M> Route<'m, M> {
    pub(crate) fn new() -> Self {
        Route { path: String::new(), waiting: Vec::new(), shown: 0 }
    }

    pub(crate) fn show(&mut self, name: Option<Cow<'m, str>>, module: M) {
        self.waiting.push((self.path.len(), name, module));
    }

    /// Goes to the next module: the first field before the second, with all that is in it.
    pub(crate) fn next(&mut self) -> Option<M> {
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

//! [`Route`]: the modules that a walk still has to visit.
//!
//! A module only registers its fields; the walk visits them after the module has returned. The walk is therefore a
//! loop, not a recursion, and modules may be nested as deep as memory allows.

use std::borrow::Cow;

/// The current path of a walk, and the modules that it still has to visit.
pub(crate) struct Route<'m, M> {
    pub(crate) path: String,
    /// For each waiting module: the length of its parent's path, its name, and the module. The next one to visit is
    /// last.
    waiting: Vec<(usize, Option<Cow<'m, str>>, M)>,
    /// The entries from this index on are the fields of the module visited last, in field order.
    shown: usize,
}

impl<'m, M> Route<'m, M> {
    pub(crate) fn new() -> Self {
        Route { path: String::new(), waiting: Vec::new(), shown: 0 }
    }

    pub(crate) fn show(&mut self, name: Option<Cow<'m, str>>, module: M) {
        self.waiting.push((self.path.len(), name, module));
    }

    /// Moves on to the next module, depth first: everything inside the first field comes before the second field.
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

//! [`Tree`]: a module printed as its tree of submodules.

use std::fmt;

use crate::item::{Item, Walk};
use crate::parameter::Mode;

/// The tree of a module's submodules with their settings, at most 64 levels deep. It prints in PyTorch's style:
/// ```text
/// Mlp(
///   (fc1): Linear(in_features=784, out_features=128)
///   (fc2): Linear(in_features=128, out_features=10, bias=None)
/// )
/// ```
#[derive(Debug, Default)]
pub struct Tree {
    kind: Option<String>,
    /// The plain values at exactly this path.
    values: Vec<String>,
    children: Vec<(String, Tree)>,
    /// Whether modules below this one were left out because they are too deep.
    deeper: bool,
}

/// Number of values of a list that are printed.
const SHOWN: usize = 8;

/// Number of levels that are printed.
const DEPTH: usize = 64;

impl Tree {
    /// Builds the tree of the module that `walk` visits.
    pub(crate) fn of(walk: Walk<'_>) -> Tree {
        let mut root = Tree::default();
        walk(&mut |path, item| {
            match item {
                // A wrapper adds no name, so the kind of the module inside it overwrites the wrapper's.
                Item::Kind(kind) => root.at(path, |node| node.kind = Some(kind.to_owned())),
                Item::Setting(value) => root.at(path, |node| node.values.push(format!("{value:?}"))),
                Item::Mode(Mode::Train | Mode::Eval) | Item::Parameter(_) | Item::Buffer(_) | Item::Random(_) => {}
            }
        });
        root
    }

    /// Applies `f` to the node at `path`, unless that is too deep. Paths arrive in field order, so a node is either the
    /// last child of its parent or a new one.
    fn at(&mut self, path: &str, f: impl FnOnce(&mut Tree)) {
        let mut node = self;
        for (depth, name) in path.split('.').filter(|n| !n.is_empty()).enumerate() {
            if depth == DEPTH {
                node.deeper = true;
                return;
            }
            if node.children.last().is_none_or(|(last, _)| last != name) {
                node.children.push((name.to_owned(), Tree::default()));
            }
            let last = node.children.len() - 1;
            node = &mut node.children[last].1;
        }
        f(node);
    }

    /// Whether this node is or contains a module. Modules are printed on lines of their own.
    fn is_module(&self) -> bool {
        self.kind.is_some() || self.children.iter().any(|(_, c)| c.is_module())
    }

    /// Writes a plain value or a list of plain values.
    fn write_value(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.children.is_empty() {
            return f.write_str(self.values.first().map_or("()", String::as_str));
        }
        for (i, (_, child)) in self.children.iter().take(SHOWN).enumerate() {
            f.write_str(if i == 0 { "(" } else { ", " })?;
            child.write_value(f)?;
        }
        f.write_str(if self.children.len() > SHOWN { ", ..)" } else { ")" })
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, indent: usize) -> fmt::Result {
        let (open, close) = if self.kind.is_some() { ("(", ")") } else { ("[", "]") };
        write!(f, "{}{open}", self.kind.as_deref().unwrap_or(""))?;
        let settings: Vec<_> = self.children.iter().filter(|(_, c)| !c.is_module()).collect();
        for (i, (name, child)) in settings.iter().enumerate() {
            write!(f, "{}{name}=", if i == 0 { "" } else { ", " })?;
            child.write_value(f)?;
        }
        let modules: Vec<_> = self.children.iter().filter(|(_, c)| c.is_module()).collect();
        for (name, child) in &modules {
            write!(f, "\n{:1$}({name}): ", "", indent + 2)?;
            child.write(f, indent + 2)?;
        }
        if self.deeper {
            write!(f, "\n{:1$}..", "", indent + 2)?;
        }
        if self.deeper || !modules.is_empty() {
            write!(f, "\n{:indent$}", "")?;
        }
        f.write_str(close)
    }
}

impl fmt::Display for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_module() { self.write(f, 0) } else { self.write_value(f) }
    }
}

//! Reads the public operations from the source: the methods of `impl Tensor`, with their documentation.

use std::collections::BTreeMap;
use std::path::Path;

use gradus::ops::table::{Entry, TABLE};

/// The methods that the files of operations define, directly or through macros, and the entries of the table of
/// elementwise operations, with their doc comments.
pub(crate) fn methods() -> BTreeMap<String, String> {
    methods_in("ops")
}

/// The methods defined in a folder of the crate `gradus-tensor`.
pub(crate) fn methods_in(folder: &str) -> BTreeMap<String, String> {
    let doc =
        |entry: &Entry| entry.doc.iter().flat_map(|l| l.split_whitespace()).map(|word| format!("{word} ")).collect();
    let mut found: BTreeMap<String, String> = TABLE.iter().map(|e| (e.op.name().to_owned(), doc(e))).collect();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("../gradus-tensor/src").join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                File::default().read(&std::fs::read_to_string(&path).unwrap_or_default(), &mut found);
            }
        }
    }
    assert!(found.len() > 250, "the sources of the operations name only {} methods", found.len());
    found
}

/// A macro defined in a file.
#[derive(Default)]
struct Macro {
    name: String,
    /// The parts of one row of an invocation, in order.
    parts: Vec<String>,
    /// The methods that it defines. Each has a name, which may be one of the parts, and a doc comment.
    methods: Vec<(String, String)>,
}

impl Macro {
    /// Whether every row of an invocation names the methods that the macro defines. The macro of the elementwise table
    /// does not: its entries are read directly.
    fn has_rows(&self) -> bool {
        self.methods.iter().all(|(name, _)| !name.starts_with('$') || self.parts.contains(name))
    }
}

/// The state of the parser within a file.
#[derive(Default)]
struct File {
    doc: String,
    /// Whether the current line is inside `impl Tensor`.
    inside: bool,
    /// The macro whose definition is being read.
    open: Option<Macro>,
    macros: Vec<Macro>,
    /// The macro whose invocation is being read, and its text so far.
    call: Option<(usize, String)>,
}

impl File {
    fn read(&mut self, text: &str, found: &mut BTreeMap<String, String>) {
        for line in text.lines() {
            if line == "}" {
                self.end(found);
                continue;
            }
            let top = line.strip_suffix(" {").filter(|l| !l.starts_with(' '));
            if let Some(name) = top.and_then(|l| l.strip_prefix("macro_rules! ")) {
                self.open = Some(Macro { name: name.to_owned(), ..Macro::default() });
            } else if let Some(name) = top.and_then(|l| l.strip_suffix('!')) {
                let at = self.macros.iter().position(|m| m.name == name && m.has_rows());
                self.call = at.map(|at| (at, String::new()));
            } else if let Some((_, call)) = &mut self.call {
                *call += line;
            } else {
                self.line(line.trim_start(), found);
            }
        }
    }

    fn line(&mut self, line: &str, found: &mut BTreeMap<String, String>) {
        self.inside |= line == "impl Tensor {";
        if let Some(open) = self.open.as_mut().filter(|m| m.parts.is_empty() && is_plain(line)) {
            let parts = line.split('$').filter_map(|p| p.split_once(':')).map(|(name, _)| format!("${name}"));
            open.parts = parts.collect();
        }
        if let Some(method) = line.strip_prefix("pub fn ").filter(|_| self.inside) {
            let name: String = method.chars().take_while(|c| c.is_alphanumeric() || "_$".contains(*c)).collect();
            let doc = std::mem::take(&mut self.doc);
            match &mut self.open {
                Some(open) => open.methods.push((name, doc)),
                None => drop(found.insert(name, doc)),
            }
        } else if line.starts_with("///") || line.starts_with("#[") || line.starts_with('"') {
            // Replaces every run of white space with a single space.
            for word in line.trim_start_matches('/').split_whitespace() {
                self.doc += word;
                self.doc.push(' ');
            }
        } else {
            self.doc.clear();
        }
    }

    /// Ends an item at a closing brace without indentation.
    fn end(&mut self, found: &mut BTreeMap<String, String>) {
        self.inside = false;
        self.macros.extend(self.open.take());
        let Some((at, call)) = self.call.take() else { return };
        let made = &self.macros[at];
        for row in call.split(';') {
            let given = words(row);
            for (name, doc) in &made.methods {
                let part = made.parts.iter().position(|p| p == name);
                let name = part.map_or(Some(name), |part| given.get(part));
                found.extend(name.map(|name| (name.clone(), doc.clone())));
            }
        }
    }
}

/// Whether a line is a pattern for rows without optional parts.
fn is_plain(line: &str) -> bool {
    line.ends_with("=> {") && line.starts_with("($(") && line.matches("$(").count() == 1
}

/// Splits a line into words at white space outside string literals.
fn words(row: &str) -> Vec<String> {
    let (mut found, mut quoted, mut word) = (vec![], false, String::new());
    for c in row.chars() {
        quoted ^= c == '"';
        if c.is_whitespace() && !quoted {
            found.extend(Some(std::mem::take(&mut word)).filter(|w| !w.is_empty()));
        } else {
            word.push(c);
        }
    }
    found.extend(Some(word).filter(|w| !w.is_empty()));
    found
}

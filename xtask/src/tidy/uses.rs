//! Finds out which files of a crate use items of which others.
//!
//! Paths in `use` and in code count. A re-exported name leads to the file that defines it. The re-export itself counts
//! only if its file uses the name as well. Methods have no paths, so a call counts only where the method's type is
//! named.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::slice::from_ref;

use super::source::{Source, bracketed, is_word, parts, token, words};

pub(super) type Path = Vec<String>;

/// A file as a module of its crate.
pub(super) struct File<'a> {
    pub(super) source: &'a Source,
    module: Path,
    /// Modules within the file, each with its range.
    blocks: Vec<(Range<usize>, String)>,
    /// Names that it imports from its own crate, with their paths from the root. A glob is called `*`.
    imports: Vec<(String, Path)>,
    /// Paths that it uses, each with its offset.
    used: Vec<(usize, Path)>,
}

/// The files of a crate, each under the path of its module.
pub(super) type Crate<'a> = BTreeMap<Path, File<'a>>;

/// For each module, the others that it uses, each with the line and the path of one use.
pub(super) type Uses = BTreeMap<Path, BTreeMap<Path, (usize, String)>>;

/// Reads the files of a crate, without their tests.
pub(super) fn read<'a>(sources: Vec<(&'a Source, String)>) -> Crate<'a> {
    let module = |source: &Source| -> Path {
        let path = source.path.split_once("/src/").map_or("", |(_, path)| path).trim_end_matches(".rs");
        path.split('/').filter(|name| !matches!(*name, "mod" | "lib" | "main")).map(String::from).collect()
    };
    let modules: BTreeSet<Path> = sources.iter().map(|(source, _)| module(source)).collect();
    let file = |(source, code)| File::read(source, module(source), code, &modules);
    sources.into_iter().map(file).map(|file| (file.module.clone(), file)).collect()
}

impl<'a> File<'a> {
    fn read(source: &'a Source, module: Path, code: String, modules: &BTreeSet<Path>) -> File<'a> {
        let blocks = words(&code, "mod").filter_map(|at| {
            let (mut name, mut rest) = token(&code[at + 3..]);
            // In a macro, the module's name may be an argument.
            if name == "$" {
                (name, rest) = token(rest);
            }
            let start = code.len() - rest.len();
            rest.trim_start().starts_with('{').then(|| (start..start + bracketed(rest), name.into()))
        });
        let mut file = File { source, module, blocks: blocks.collect(), imports: vec![], used: vec![] };
        let is_own = |name: &String, module: &[String]| {
            matches!(name.as_str(), "crate" | "self" | "super") || modules.contains(&[module, from_ref(name)].concat())
        };
        let (mut body, mut reexports) = (code.clone(), vec![]);
        for at in words(&code, "use").filter(|&at| token(&code[at + 3..]).0 != "<") {
            let end = code[at..].find(';').map_or(code.len(), |length| at + length);
            body.replace_range(at..end, &" ".repeat(end - at));
            for (name, path) in names(&code[at + 3..end]).into_iter().filter(|(_, path)| is_own(&path[0], &file.module))
            {
                let path = file.absolute(at, &path);
                let is_reexport = code[..at].trim_end().ends_with(['b', ')']);
                let to = if is_reexport { &mut reexports } else { &mut file.imports };
                to.push((name, path.clone()));
                file.used.extend((!is_reexport).then_some((at, path)));
            }
        }
        for (name, path) in &reexports {
            let used = words(&body, name).find(|&at| !body[..at].trim_end().ends_with("mod"));
            file.used.extend(used.filter(|_| name != "*").map(|at| (at, path.clone())));
        }
        file.imports.extend(reexports);
        for (at, _) in body.match_indices("::") {
            let start = at - body[..at].bytes().rev().take_while(|&byte| is_word(byte)).count();
            let length = body[start..].bytes().take_while(|&byte| is_word(byte) || byte == b':').count();
            let path: Path = body[start..start + length].trim_end_matches(':').split("::").map(String::from).collect();
            match file.imports.iter().find(|(name, _)| *name == path[0]) {
                _ if body[..start].ends_with(':') => {}
                Some((_, import)) => file.used.push((start, [import, &path[1..]].concat())),
                None if is_own(&path[0], &file.module) => file.used.push((start, file.absolute(start, &path))),
                None => {}
            }
        }
        file
    }

    /// A path that occurs at an offset, as a path from the root of the crate.
    fn absolute(&self, at: usize, path: &[String]) -> Path {
        let around = self.blocks.iter().filter(|(block, _)| block.contains(&at)).map(|(_, name)| name.clone());
        let mut base: Path = self.module.iter().cloned().chain(around).collect();
        for name in path {
            match name.as_str() {
                "crate" => base.clear(),
                "super" => drop(base.pop()),
                "self" => {}
                _ => base.push(name.clone()),
            }
        }
        base
    }

    /// Whether an item or an import has this name.
    fn knows(&self, name: &str) -> bool {
        let is_item = |at: usize| {
            let before = self.source.code[..at].trim_end();
            ["fn", "struct", "enum", "trait", "type", "const", "static"].iter().any(|word| before.ends_with(word))
        };
        self.imports.iter().any(|(import, _)| import == name) || words(&self.source.code, name).any(is_item)
    }
}

/// The names that a `use` tree brings into scope, each with its path.
fn names(tree: &str) -> Vec<(String, Path)> {
    let (path, group) = tree.split_once('{').map_or((tree, ""), |(path, group)| (path, group));
    let (path, alias) = path.split_once(" as ").unwrap_or((path, ""));
    let path: Path = path.split("::").map(str::trim).filter(|name| !name.is_empty()).map(String::from).collect();
    if let Some((group, _)) = group.rsplit_once('}') {
        let inner = parts(group, ',').into_iter().flat_map(names);
        let own = |name: String| if name == "self" { path.last().cloned().unwrap_or(name) } else { name };
        return inner.map(|(name, rest)| (own(name), [&path[..], &rest].concat())).collect();
    }
    let name = if alias.is_empty() { path.last().cloned() } else { Some(alias.trim().to_string()) };
    name.map(|name| (name, path)).into_iter().collect()
}

/// The module whose file defines the item that a path leads to; `None` if the path leads to a module.
fn definer(files: &Crate<'_>, path: &[String], hops: usize) -> Option<Path> {
    let depth = (0..=path.len()).rev().find(|&depth| files.contains_key(&path[..depth]))?;
    let (module, rest) = path.split_at(depth);
    let name = rest.first()?;
    let follow = |target: &[String]| definer(files, &[target, &rest[1..]].concat(), hops.checked_sub(1)?);
    for (imported, target) in files[module].imports.iter().filter(|_| hops > 0 && name != "*") {
        if imported == name {
            return follow(target);
        }
        let glob = target.split_last().filter(|_| imported == "*").and_then(|(_, glob)| files.get(glob));
        if let Some(glob) = glob.filter(|glob| glob.knows(name)) {
            return follow(&[&glob.module[..], from_ref(name)].concat());
        }
    }
    Some(module.to_vec())
}

/// Which items the files of a crate use of each other.
pub(super) fn uses(files: &Crate<'_>) -> Uses {
    let mut uses = Uses::new();
    for (module, file) in files {
        for (at, path) in &file.used {
            let Some(other) = definer(files, path, 8).filter(|other| other != module) else { continue };
            let what = || (file.source.line(*at), path.join("::"));
            uses.entry(module.clone()).or_default().entry(other).or_insert_with(what);
        }
    }
    uses
}

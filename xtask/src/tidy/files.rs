//! The files that tidy looks at: everything below the root except what git ignores.
//!
//! The tree is walked rather than asked of git, so that an unpacked archive can be checked too. Of `.gitignore` the
//! simple patterns count (`name`, `/name`, `name/`, `*.ext`); any other pattern ignores nothing here.

use std::fs;
use std::path::Path;

/// One simple line of a `.gitignore`.
#[derive(Debug, Clone, PartialEq)]
enum Pattern {
    /// Any file or folder of this name, at any depth.
    Name(String),
    /// A file or folder of this name beside the `.gitignore`.
    Here(String),
    /// Any name that ends so.
    Suffix(String),
}

impl Pattern {
    /// `here` says whether the name stands in the folder of the `.gitignore`.
    fn matches(&self, name: &str, here: bool) -> bool {
        match self {
            Pattern::Name(wanted) => name == wanted,
            Pattern::Here(wanted) => here && name == wanted,
            Pattern::Suffix(end) => name.ends_with(end.as_str()),
        }
    }
}

/// The simple patterns of a `.gitignore`.
fn patterns(text: &str) -> Vec<Pattern> {
    let simple = |name: &str| !name.is_empty() && !name.contains(['*', '?', '[', '/', '\\']);
    text.lines()
        .map(str::trim)
        .filter(|line| !line.starts_with(['#', '!']))
        .filter_map(|line| {
            let line = line.strip_suffix('/').unwrap_or(line);
            match (line.strip_prefix('/'), line.strip_prefix('*')) {
                (Some(name), _) if simple(name) => Some(Pattern::Here(name.into())),
                (_, Some(end)) if simple(end) => Some(Pattern::Suffix(end.into())),
                (None, None) if simple(line) => Some(Pattern::Name(line.into())),
                _ => None,
            }
        })
        .collect()
}

/// The paths of all files, relative to `root`, with `/`, sorted. Hidden folders and links are left out.
pub(super) fn list(root: &Path) -> Result<Vec<String>, String> {
    let mut paths = Vec::new();
    walk(root, "", &[], &mut paths)?;
    paths.sort();
    Ok(paths)
}

fn walk(root: &Path, folder: &str, inherited: &[Pattern], paths: &mut Vec<String>) -> Result<(), String> {
    let here = match fs::read_to_string(root.join(folder).join(".gitignore")) {
        Ok(text) => patterns(&text),
        Err(_) => Vec::new(),
    };
    let below: Vec<Pattern> = inherited.iter().chain(&here).cloned().collect();
    let failed = |error: std::io::Error| format!("cannot list `{}`: {error}", root.join(folder).display());
    for entry in fs::read_dir(root.join(folder)).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let kind = entry.file_type().map_err(failed)?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let ignored = inherited.iter().any(|pattern| pattern.matches(&name, false))
            || here.iter().any(|pattern| pattern.matches(&name, true));
        if ignored {
            continue;
        }
        let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
        if kind.is_file() {
            paths.push(path);
        } else if kind.is_dir() && !name.starts_with('.') {
            walk(root, &path, &below, paths)?;
        }
    }
    Ok(())
}

/// The text of a file; an error names it.
pub(super) fn read(root: &Path, path: &str) -> Result<String, String> {
    fs::read_to_string(root.join(path)).map_err(|error| format!("cannot read `{path}`: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simple_ignore_patterns_match_as_git_does() {
        let patterns = patterns("# built\n/target\nnode\nout/\n*.profraw\na/**/b\n!keep\n\n");
        let ignored = |name: &str, here: bool| patterns.iter().any(|pattern| pattern.matches(name, here));
        assert_eq!(patterns.len(), 4);
        assert!(ignored("target", true) && !ignored("target", false));
        assert!(ignored("node", true) && ignored("node", false) && ignored("out", false));
        assert!(ignored("x.profraw", false) && !ignored("x.rs", true) && !ignored("keep", true));
    }

    #[test]
    fn the_walk_leaves_out_what_is_ignored_or_hidden() {
        let root = std::env::temp_dir().join(format!("xtask-files-{}", std::process::id()));
        for folder in ["target", "src", ".hidden", "src/target"] {
            fs::create_dir_all(root.join(folder)).unwrap();
            fs::write(root.join(folder).join("a.rs"), "").unwrap();
        }
        fs::write(root.join(".gitignore"), "/target\n").unwrap();
        let paths = list(&root);
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(paths.unwrap(), [".gitignore", "src/a.rs", "src/target/a.rs"]);
    }
}

//! The documentation of operations, read from their source.

use std::collections::BTreeMap;
use std::path::Path;

/// The doc comments of every method, and of every entry of the table of elementwise operations, by name; those of a
/// method that a macro makes by `file $name`.
pub(crate) fn methods(folder: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let stem = path.file_stem().unwrap_or_default().to_string_lossy();
                read(&stem, &std::fs::read_to_string(&path).unwrap_or_default(), &mut found);
            }
        }
    }
    found
}

fn read(file: &str, text: &str, found: &mut BTreeMap<String, String>) {
    let mut doc = String::new();
    for line in text.lines().map(str::trim_start) {
        // An entry of the table is `RELU relu(;) ..`.
        let (first, rest) = line.split_once(' ').unwrap_or_default();
        let entry = first.len() > 1 && first.chars().all(|c| c.is_ascii_uppercase() || c.is_numeric() || c == '_');
        let method = line.strip_prefix("pub fn ").or(Some(rest).filter(|r| entry && r.contains("(")));
        if let Some(method) = method {
            let name: String = method.chars().take_while(|c| c.is_alphanumeric() || "_$".contains(*c)).collect();
            let name = if name.starts_with('$') { format!("{file} {name}") } else { name };
            found.insert(name, std::mem::take(&mut doc));
        } else if line.starts_with("///") || line.starts_with("#[") || line.starts_with('"') {
            // One space between words, whatever the lines.
            for word in line.trim_start_matches('/').split_whitespace() {
                doc += word;
                doc.push(' ');
            }
        } else {
            doc.clear();
        }
    }
}

//! Finds test code: items, modules and files that are compiled only for tests.

use super::source::{Source, bracketed, token, words};

/// The wanted sources that are not tests, each with its code outside of tests. All sources are needed together, because
/// only the way another file includes it may make a file a test.
pub(super) fn outside_tests(sources: &[Source], wanted: impl Fn(&str) -> bool) -> Vec<(&Source, String)> {
    let wanted: Vec<&Source> = sources.iter().filter(|source| wanted(&source.path)).collect();
    let test_modules: Vec<String> = wanted.iter().flat_map(|source| test_modules(source)).collect();
    let is_test = |path: &str| {
        let is_below =
            |module: &String| path.strip_prefix(module.as_str()).is_some_and(|rest| rest.starts_with(['.', '/']));
        path.ends_with("_tests.rs") || test_modules.iter().any(is_below)
    };
    let product = wanted.into_iter().filter(|source| !is_test(&source.path));
    product.map(|source| (source, split_tests(&source.code).0)).collect()
}

/// Splits code into what is outside and what is inside of items under `#[cfg(test)]` or `#[cfg(all(test, ..))]`. Each
/// part is blank where the other is not.
fn split_tests(code: &str) -> (String, String) {
    let mut is_test = vec![false; code.len()];
    for (at, _) in code.match_indices("#[cfg(").chain(code.match_indices("#![cfg(")) {
        let bracket = at + code[at..].find('[').unwrap_or(0);
        let length = bracketed(&code[bracket..]);
        let attribute: String = code[bracket..bracket + length].split_whitespace().collect();
        if !(attribute == "[cfg(test)]" || attribute.starts_with("[cfg(all(test,")) {
            continue;
        }
        let end = if code[at..].starts_with("#!") { code.len() } else { item_end(code, bracket + length) };
        is_test[at..end].fill(true);
    }
    let part = |wanted: bool| {
        let keep = |(at, byte): (usize, u8)| if byte == b'\n' || is_test[at] == wanted { byte } else { b' ' };
        String::from_utf8_lossy(&code.bytes().enumerate().map(keep).collect::<Vec<u8>>()).into_owned()
    };
    (part(false), part(true))
}

/// The end of the item that begins at `start`: its `;`, or the `}` of its first block.
fn item_end(code: &str, start: usize) -> usize {
    let mut at = start;
    while let Some(byte) = code.as_bytes().get(at) {
        match byte {
            b';' => return at + 1,
            b'{' => return at + bracketed(&code[at..]),
            b'}' => return at,
            b'(' | b'[' => at += bracketed(&code[at..]),
            _ => at += 1,
        }
    }
    code.len()
}

/// The paths, without `.rs`, of the modules that this file includes only for tests.
fn test_modules(source: &Source) -> Vec<String> {
    let path = source.path.strip_suffix(".rs").unwrap_or(&source.path);
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    let folder = if matches!(name, "lib" | "main" | "mod") { folder } else { path };
    let tests = split_tests(&source.code).1;
    words(&tests, "mod")
        .filter_map(|at| {
            let (name, rest) = token(&tests[at + 3..]);
            rest.trim_start().starts_with(';').then(|| format!("{folder}/{name}"))
        })
        .collect()
}

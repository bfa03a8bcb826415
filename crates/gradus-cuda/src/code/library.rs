//! Adds to a kernel's text the library functions that it calls.

use super::{functions, functions64, pairs};

/// The declarations and definitions of the functions that `text` calls, directly or indirectly.
pub(super) fn used_by(text: &str) -> String {
    let library = [functions::LIBRARY, pairs::LIBRARY, functions64::LIBRARY].concat();
    let mut used = vec![false; library.len()];
    let mut queue = vec![text];
    while let Some(caller) = queue.pop() {
        for (i, (name, body)) in library.iter().enumerate() {
            if !used[i] && calls(caller, name) {
                used[i] = true;
                queue.push(body);
            }
        }
    }
    let used: Vec<&str> = library.iter().zip(used).filter(|(_, used)| *used).map(|((_, body), _)| *body).collect();
    let declared = used.iter().map(|body| format!("{};\n", body.split(" {").next().unwrap_or_default()));
    declared.chain(used.iter().map(|body| (*body).to_owned())).collect()
}

/// Whether `text` contains `name` as a whole word followed by a parenthesis.
fn calls(text: &str, name: &str) -> bool {
    text.match_indices(name).any(|(at, _)| {
        let before = text[..at].bytes().next_back().unwrap_or(b' ');
        text[at + name.len()..].starts_with('(') && !before.is_ascii_alphanumeric() && before != b'_'
    })
}

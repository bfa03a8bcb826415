//! Adds to a kernel's text the library functions that it calls.

use super::{functions, functions64, pairs, words};

/// `text`, preceded by the functions that it calls, directly or indirectly.
pub(super) fn with_used(text: &str) -> String {
    let parts = [functions::LIBRARY, pairs::LIBRARY, words::LIBRARY, functions64::LIBRARY];
    let library = parts.concat();
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
    let used = library.iter().zip(used).filter(|(_, used)| *used).map(|((_, body), _)| *body);
    used.collect::<String>() + text
}

/// Whether `text` contains `name` as a whole word followed by a parenthesis.
fn calls(text: &str, name: &str) -> bool {
    text.match_indices(name).any(|(at, _)| {
        let before = text[..at].bytes().next_back().unwrap_or(b' ');
        text[at + name.len()..].starts_with('(') && !before.is_ascii_alphanumeric() && before != b'_'
    })
}

//! Checks the book in `docs/book`: every chapter is in `SUMMARY.md` once, and links to files outside of the book are
//! addresses, because a built book has no such files. Links to a heading, in all pages, name one that exists.
//!
//! That links lead to existing files is checked by [`links`], for `SUMMARY.md` too.

use super::finding::Finding;
use super::links;

/// The folder of the chapters.
const CHAPTERS: &str = "docs/book/src/";

const SUMMARY: &str = "docs/book/src/SUMMARY.md";

/// Checks the pages among `files`, which are paths with their texts.
pub(super) fn check(files: &[(String, String)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let chapters = files.iter().filter(|(path, _)| path.starts_with(CHAPTERS));
    let summary = files.iter().find(|(path, _)| path == SUMMARY).map_or("", |(_, text)| text);
    let listed: Vec<String> =
        links::targets(summary).into_iter().filter_map(|(_, target)| links::resolve(CHAPTERS, &target)).collect();
    for (path, text) in chapters {
        if path != SUMMARY {
            match listed.iter().filter(|target| *target == path).count() {
                1 => {}
                0 => findings.push(Finding::new(path, 1, "the chapter is not in SUMMARY.md")),
                n => findings.push(Finding::new(path, 1, format!("the chapter is in SUMMARY.md {n} times"))),
            }
        }
        for (line, target) in links::targets(text) {
            let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
            let file = links::relative(&target).and_then(|file| links::resolve(folder, &file));
            if file.is_some_and(|file| !file.starts_with(CHAPTERS)) {
                let message = format!(
                    "`{target}` leads out of the book: write `{}..`, which a built book can follow",
                    links::OWN
                );
                findings.push(Finding::new(path, line, message));
            }
        }
    }
    findings.extend(headings(files));
    findings
}

/// Links with a `#` that name no heading of their page.
fn headings(files: &[(String, String)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in files {
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        for (line, target) in links::targets(text) {
            let Some((file, heading)) = target.split_once('#') else { continue };
            let own = file.strip_prefix(links::OWN);
            let page = match own.or_else(|| links::relative(&target).map(|_| file)) {
                _ if file.is_empty() => Some(path.clone()),
                Some(file) => links::resolve(if own.is_some() { "" } else { folder }, file),
                None => continue,
            };
            let Some((_, text)) = files.iter().find(|(path, _)| Some(path) == page.as_ref()) else { continue };
            if !text.lines().filter_map(|line| line.strip_prefix('#')).any(|title| anchor(title) == heading) {
                findings.push(Finding::new(path, line, format!("`{target}` names no heading of its page")));
            }
        }
    }
    findings
}

/// The name of a heading in links: small letters, digits, `_` and `-`, with `-` for spaces.
fn anchor(title: &str) -> String {
    let letters = title.trim_start_matches('#').trim().to_lowercase();
    let kept = letters.chars().filter(|&c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(files: &[(&str, &str)]) -> Vec<(String, usize)> {
        let files: Vec<_> =
            files.iter().map(|(path, text)| (format!("{CHAPTERS}{path}"), (*text).to_owned())).collect();
        check(&files).into_iter().map(|found| (found.path[CHAPTERS.len()..].to_owned(), found.line)).collect()
    }

    #[test]
    fn each_chapter_is_in_the_summary_once() {
        let summary = "- [A](a.md)\n  - [B](deep/b.md)\n- [A again](./a.md)\n";
        let found = findings(&[("SUMMARY.md", summary), ("a.md", ""), ("deep/b.md", ""), ("c.md", "")]);
        assert_eq!(found, [("a.md".to_owned(), 1), ("c.md".to_owned(), 1)]);
    }

    #[test]
    fn links_to_headings_name_one() {
        let summary = ("SUMMARY.md", "[A](a.md)\n[B](b.md)");
        let a = ("a.md", "# Title\n[1](#title) [2](b.md#what-item-does-2)\n[3](#titel)\n[4](b.md#what)\n");
        let b = ("b.md", "## What `item` does (2)\n");
        assert_eq!(findings(&[summary, a, b]), [("a.md".to_owned(), 3), ("a.md".to_owned(), 4)]);
    }

    #[test]
    fn links_stay_in_the_book_or_are_addresses() {
        let text = "[a](a.md) [b](deep/b.md#part)\n[c](https://x.y)\n[d](../../spec.md)\n";
        let found = findings(&[
            ("SUMMARY.md", "[A](a.md)\n[B](deep/b.md)"),
            ("a.md", text),
            ("deep/b.md", "## Part\n[a](../a.md)"),
        ]);
        assert_eq!(found, [("a.md".to_owned(), 3)]);
    }
}

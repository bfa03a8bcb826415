//! Checks that links in `README.md` and in `docs/` lead to existing files: relative ones, and addresses of files of this
//! repository.

use super::finding::Finding;

/// How the address of a file of this repository begins.
pub(super) const OWN: &str = "https://github.com/gradus-rs/gradus/blob/main/";

/// `true` for the pages whose links are checked.
pub(super) fn is_checked(path: &str) -> bool {
    path == "README.md" || (path.starts_with("docs/") && path.ends_with(".md"))
}

/// Checks the links of one page. `exists` is called with paths relative to the root.
pub(super) fn check(path: &str, text: &str, exists: impl Fn(&str) -> bool) -> Vec<Finding> {
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut findings = Vec::new();
    for (line, target) in targets(text) {
        let own = target.strip_prefix(OWN).and_then(relative).map(|file| resolve("", &file));
        let Some(file) = own.or_else(|| relative(&target).map(|file| resolve(folder, &file))) else { continue };
        let found = file.is_some_and(|file| exists(&file));
        if !found {
            findings.push(Finding::new(path, line, format!("the link `{target}` leads nowhere")));
        }
    }
    findings
}

/// The targets of all links outside of code, with their lines: `[a](b)`, `![a](b)`, `[a]: b`, `href="b"`, `src="b"`.
pub(super) fn targets(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut fence: Option<&str> = None;
    for (index, line) in text.lines().enumerate() {
        let trimmed = line.trim_start();
        let mark = ["```", "~~~"].into_iter().find(|mark| trimmed.starts_with(mark));
        match (fence, mark) {
            (None, Some(_)) => fence = mark,
            (Some(open), Some(close)) if open == close => fence = None,
            (Some(_), _) => {}
            (None, None) => {
                found.extend(line_targets(&without_code(line)).into_iter().map(|target| (index + 1, target)))
            }
        }
    }
    found
}

fn line_targets(line: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, _) in line.match_indices("](") {
        let link = &line[at + 1..];
        let link = &link[1..super::source::bracketed(link).max(2) - 1];
        found.push(destination(link));
    }
    if let Some((label, target)) = line.trim_start().split_once("]:")
        && label.starts_with('[')
        && !label.starts_with("[^")
        && is_definition(target)
    {
        found.push(destination(target));
    }
    for name in ["href=\"", "src=\""] {
        for (at, _) in line.match_indices(name) {
            found.extend(line[at + name.len()..].split('"').next().map(str::to_string));
        }
    }
    found
}

/// `true` for one word with or without a quoted title, as in `[label]: target "title"`. Prose has more words.
fn is_definition(target: &str) -> bool {
    let title = target.trim().split_once(char::is_whitespace).map(|(_, title)| title.trim_start());
    title.is_none_or(|title| title.starts_with(['"', '\'', '(']))
}

/// A link's target without its title and without `<>`.
fn destination(link: &str) -> String {
    let link = link.trim();
    match link.strip_prefix('<') {
        Some(link) => link.split('>').next().unwrap_or_default().into(),
        None => link.split_whitespace().next().unwrap_or_default().into(),
    }
}

/// Removes `code spans`. Text after a backtick without a partner stays.
fn without_code(line: &str) -> String {
    let parts: Vec<&str> = line.split('`').collect();
    let last = parts.len() - 1;
    parts.into_iter().enumerate().filter(|(index, _)| index % 2 == 0 || *index == last).map(|(_, part)| part).collect()
}

/// The file part of a relative target; `None` for addresses elsewhere and for anchors on the same page.
pub(super) fn relative(target: &str) -> Option<String> {
    let file = target.split(['#', '?']).next().unwrap_or_default();
    let scheme = file.split_once(':').map(|(scheme, _)| scheme);
    let is_address =
        scheme.is_some_and(|scheme| scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'+'));
    let same_page = file.is_empty() && !target.is_empty();
    (!is_address && !same_page && !file.starts_with("//")).then(|| file.replace("%20", " "))
}

/// Resolves `file` against `folder`, or against the root if it begins with `/`; `None` if it is empty or leads out of
/// the root.
pub(super) fn resolve(folder: &str, file: &str) -> Option<String> {
    let start = if file.starts_with('/') { "" } else { folder };
    let mut parts: Vec<&str> = Vec::new();
    for part in start.split('/').chain(file.split('/')) {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    (!file.is_empty()).then(|| parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILES: &[&str] = &["README.md", "docs/guide.md", "docs/a b.md", "docs/img/x.png", "docs"];

    fn broken(path: &str, text: &str) -> Vec<(usize, String)> {
        let exists = |file: &str| FILES.contains(&file);
        check(path, text, exists).into_iter().map(|found| (found.line, found.message)).collect()
    }

    #[test]
    fn links_to_files_that_exist_pass() {
        let text = "[a](docs/guide.md) [b](./docs/guide.md#part \"title\") ![c](docs/img/x.png) [d](docs/)\n\
                    [ref]: /docs/guide.md\n<img src=\"docs/img/x.png\"> [e](<docs/a b.md>) [f](docs/a%20b.md)\n";
        assert_eq!(broken("README.md", text), []);
        assert_eq!(broken("docs/guide.md", "[up](../README.md) [beside](img/x.png)"), []);
    }

    #[test]
    fn links_that_lead_nowhere_fail() {
        for text in ["[a](docs/none.md)", "![a](none.png)", "[a]: none.md", "<a href=\"none\">", "[a]()", "[a](../x)"] {
            assert_eq!(broken("README.md", &format!("ok\n{text}\n")).len(), 1, "{text}");
        }
        let found = broken("docs/guide.md", "\n[a](guide.md) and [b](docs/guide.md#x)");
        assert_eq!(found, [(2, "the link `docs/guide.md#x` leads nowhere".to_string())]);
    }

    #[test]
    fn addresses_anchors_and_code_are_no_relative_links() {
        let text = "[a](https://x.y/z) [b](mailto:a@b.c) [c](#part) `[d](none)` `x`\n```text\n[e](none)\n```\n\
                    [^1]: A note.\n[Note]: a colon in prose\n";
        assert_eq!(broken("README.md", text), []);
    }

    #[test]
    fn addresses_of_this_repository_lead_to_existing_files() {
        assert_eq!(broken("docs/guide.md", &format!("[a]({OWN}docs/img/x.png) [b]({OWN}README.md#part)")), []);
        assert_eq!(broken("docs/guide.md", &format!("[a]({OWN}img/x.png)")).len(), 1);
    }

    #[test]
    fn readme_and_docs_are_checked() {
        assert!(is_checked("README.md") && is_checked("docs/guide.md") && is_checked("docs/deep/a.md"));
        assert!(!is_checked("CHANGELOG.md") && !is_checked("docs/a.txt"));
    }
}

//! Pages of entries: runs the functions of a module, and quotes their source and their errors.

use std::fmt::Write;
use std::panic::catch_unwind;
use std::path::Path;

use gradus::prelude::*;

/// An entry: a function that makes a mistake, and returns the error.
pub(crate) type Mistake = fn(&Device) -> Result<Error>;

/// A file of entries, which becomes a page. The comment at its top introduces the page.
pub(crate) struct Module {
    pub(crate) title: &'static str,
    /// The path of the source, relative to the root.
    pub(crate) source: &'static str,
    pub(crate) entries: &'static [(&'static str, Mistake)],
}

/// An entry that was run.
pub(crate) struct Section {
    name: &'static str,
    /// What leads to the error, and what to do about it.
    cause: String,
    mend: String,
    code: String,
    printed: String,
    pub(crate) error: Error,
}

/// Makes the function `page` of a module: `page! { "Title": function, .. }`, in the order of the file.
macro_rules! page {
    ($title:literal: $($name:ident),* $(,)?) => {
        pub(crate) fn page() -> crate::page::Module {
            crate::page::Module {
                title: $title,
                source: file!(),
                entries: &[$((stringify!($name), $name as crate::page::Mistake)),*],
            }
        }
    };
}
pub(crate) use page;

/// A sentence that begins with a capital letter.
fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

impl Section {
    /// `inner_dimensions_differ` is called `Inner dimensions differ`.
    pub(crate) fn title(&self) -> String {
        capitalized(&self.name.replace('_', " "))
    }

    /// The name of the heading in a link.
    pub(crate) fn anchor(&self) -> String {
        self.name.replace('_', "-")
    }
}

/// The text of an error without the number of this process and its folder.
fn portable(error: &Error) -> String {
    let (process, folder) = (format!("process {}", std::process::id()), std::env::current_dir().unwrap());
    // A build of the whole workspace has WebGPU too.
    let text = error.to_string().replace("has: cpu, wgpu or wgpu:NUMBER", "has: cpu");
    text.replace(&process, "process 4242").replace(&folder.display().to_string(), "/home/you")
}

impl Module {
    pub(crate) fn name(&self) -> &str {
        self.source.rsplit('/').next().unwrap().trim_end_matches(".rs")
    }

    pub(crate) fn file(&self) -> String {
        format!("{}.md", self.name().replace('_', "-"))
    }

    /// Runs all entries in the current folder. Also returns what failed.
    pub(crate) fn run(&self, root: &Path) -> (Vec<Section>, Vec<String>) {
        let source = std::fs::read_to_string(root.join(self.source)).unwrap();
        let mut rest: &str = &source;
        let (mut sections, mut failures) = (Vec::new(), Vec::new());
        for &(name, mistake) in self.entries {
            let (before, after) = rest
                .split_once(&format!("\nfn {name}("))
                .unwrap_or_else(|| panic!("{name} is not in the order of {}", self.source));
            let doc: Vec<&str> = before.lines().rev().map_while(|line| line.strip_prefix("///")).collect();
            let doc: String = doc.iter().rev().map(|line| format!("{}\n", line.trim_start())).collect();
            let (cause, mend) =
                doc.split_once("\n\nMend: ").unwrap_or_else(|| panic!("{name} says no cause, or no mend: {doc:?}"));
            let (_, body) = after.split_once("{\n").unwrap();
            let (body, left) = body.split_once("\n}\n").unwrap();
            rest = left;
            // The line of the file on which the body begins.
            let at = source.len() - left.len() - "\n}\n".len() - body.len();
            let first = 1 + source[..at].matches('\n').count();
            let code: Vec<&str> = body.lines().map(|line| line.strip_prefix("    ").unwrap_or(line)).collect();
            let (last, code) = code.split_last().unwrap();
            assert_eq!(*last, "Ok(error)", "{name} ends with its error");

            let error = match catch_unwind(|| mistake(&Device::cpu()?)) {
                Ok(Ok(error)) => error,
                Ok(Err(mend)) => {
                    failures.push(format!("{name}: the mend fails: {mend}"));
                    continue;
                }
                // The panic has printed its message.
                Err(_) => {
                    failures.push(format!("{name} panics"));
                    continue;
                }
            };
            // Only code that calls a backend itself meets errors of this kind, and those have no line of a user.
            if error.location().is_none() && *error.kind() != ErrorKind::NotContiguous {
                failures.push(format!("{name}: no line of the call in {error}"));
            }
            match self.localized(&portable(&error), first, code.len()) {
                Ok(printed) => sections.push(Section {
                    name,
                    cause: cause.trim().to_owned(),
                    mend: capitalized(mend.trim()),
                    code: code.join("\n").trim_end().to_owned(),
                    printed,
                    error,
                }),
                Err(why) => failures.push(format!("{name}: {why}")),
            }
        }
        (sections, failures)
    }

    /// The text with lines of the source turned into lines of the snippet, which is `lines` long and begins at the line
    /// `first` of the source. The error is a place outside of the snippet, which a reader would not find.
    fn localized(&self, text: &str, first: usize, lines: usize) -> Result<String, String> {
        let (mut out, mut rest) = (String::new(), text);
        while let Some((before, after)) = rest.split_once(&format!("{}:", self.source)) {
            let (line, after) = after.split_once(':').ok_or(text)?;
            let digits = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
            let (column, after) = after.split_at(digits);
            let place = (line.parse::<usize>().ok(), column.parse::<usize>().ok());
            let (Some(line), Some(column @ 5..)) = place else { return Err(format!("an odd place in {text}")) };
            let line = (line + 1).checked_sub(first).filter(|line| (1..=lines).contains(line));
            let line = line.ok_or_else(|| format!("a place outside of the snippet in {text}"))?;
            let _ = write!(out, "{before}src/main.rs:{line}:{}", column - 4);
            rest = after;
        }
        Ok(out + rest)
    }

    /// The page.
    pub(crate) fn text(&self, root: &Path, sections: &[Section]) -> String {
        let source = std::fs::read_to_string(root.join(self.source)).unwrap();
        let intro: Vec<&str> = source.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim_start).collect();
        let mut page = format!("# {}\n\n{}\n", self.title, intro.join("\n").trim());
        for section in sections {
            let Section { cause, mend, code, printed, error, .. } = section;
            let _ = write!(
                page,
                "\n## {}\n{cause}\n\n```rust,ignore\n{code}\n```\n```text\n{printed}\n```\n**What to do.** {mend}\n\n\
                 Kind: [`{kind}`](kinds.md#{})\n",
                section.title(),
                crate::name(error.kind()).to_lowercase(),
                kind = crate::name(error.kind()),
            );
        }
        page
    }
}

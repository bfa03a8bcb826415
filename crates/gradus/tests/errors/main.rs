//! The gallery of errors in the book: `docs/book/src/errors`. Each entry is a function of this program that makes a
//! mistake, returns the error, and shows the mend; the pages quote the function and what its error prints.
//!
//! `cargo test -p gradus --test errors` compares the pages with the code; with `GRADUS_WRITE=1` it writes them instead.
#![cfg(all(feature = "cpu", feature = "plugin", target_os = "linux"))]
#![allow(clippy::unwrap_used)]
// What a mend computes is not needed: it must not fail.
#![allow(unused_must_use)]

mod page;

mod autograd;
mod captured;
mod devices;
mod dtypes;
mod indices;
mod layers;
mod models;
mod onnx;
mod operations;
mod pictures;
mod plugins;
mod ranks;
mod runs;
mod shapes;
mod tables;
mod tasks;
mod tensors_in_files;
mod training;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use gradus::prelude::*;
use page::{Module, Section};

/// The pages, in the order of the book.
fn modules() -> Vec<Module> {
    vec![
        shapes::page(),
        dtypes::page(),
        indices::page(),
        operations::page(),
        devices::page(),
        plugins::page(),
        autograd::page(),
        captured::page(),
        layers::page(),
        models::page(),
        training::page(),
        runs::page(),
        tables::page(),
        tasks::page(),
        tensors_in_files::page(),
        pictures::page(),
        onnx::page(),
        ranks::page(),
    ]
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The variants of `ErrorKind` with their documentation, from its source: a kind that is added there has no entry here
/// until someone writes one.
fn kinds() -> Vec<(String, String)> {
    let source = std::fs::read_to_string(root().join("crates/gradus-backend/src/error.rs")).unwrap();
    let (_, list) = source.split_once("pub enum ErrorKind {\n").unwrap();
    let (list, _) = list.split_once("\n}").unwrap();
    let (mut found, mut doc) = (Vec::new(), Vec::new());
    // The fields of a variant are indented further.
    for line in list.lines().filter_map(|line| line.strip_prefix("    ").filter(|line| !line.starts_with([' ', '}']))) {
        match line.strip_prefix("/// ") {
            Some(text) => doc.push(text),
            None => {
                let name = line.split([',', ' ', '{']).next().unwrap();
                found.push((name.to_owned(), std::mem::take(&mut doc).join(" ")));
            }
        }
    }
    assert!(found.len() >= 16, "{found:?}");
    found
}

/// The name of a kind, as `kinds` lists it.
fn name(kind: &ErrorKind) -> String {
    format!("{kind:?}").split([' ', '{']).next().unwrap().to_owned()
}

/// The page that lists the entries by kind.
fn by_kind(pages: &[(Module, Vec<Section>)]) -> String {
    let mut entries: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (module, sections) in pages {
        for section in sections {
            let link = format!("[{}]({}#{})", section.title(), module.file(), section.anchor());
            entries.entry(name(section.error.kind())).or_default().push(link);
        }
    }
    let mut page = String::from(
        "# Errors by kind\n\nA program that reacts to an error matches on its `ErrorKind`. These are all kinds, each with its \
         entries in the gallery.\n",
    );
    for (kind, doc) in kinds() {
        let links = entries.remove(&kind).unwrap_or_default();
        assert!(!links.is_empty(), "no entry shows an error of the kind {kind}");
        let _ = write!(page, "\n## {kind}\n{doc}\n\n");
        links.iter().for_each(|link| {
            let _ = writeln!(page, "- {link}");
        });
    }
    assert!(entries.is_empty(), "{:?} are no kinds of errors", entries.keys());
    page
}

#[test]
fn the_pages_say_what_the_errors_say() {
    let folder = std::env::temp_dir().join(format!("gradus-errors-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let back = std::env::current_dir().unwrap();
    let mut failures = Vec::new();
    let pages: Vec<(Module, Vec<Section>)> = modules()
        .into_iter()
        .map(|module| {
            // Entries name files by relative paths, and each module has a folder to itself.
            let own = folder.join(module.name());
            std::fs::create_dir(&own).unwrap();
            std::env::set_current_dir(&own).unwrap();
            let (sections, failed) = module.run(&root());
            failures.extend(failed);
            (module, sections)
        })
        .collect();
    std::env::set_current_dir(back).unwrap();
    std::fs::remove_dir_all(folder).unwrap();
    assert!(failures.is_empty(), "{}", failures.join("\n"));

    let mut texts: Vec<(String, String)> =
        pages.iter().map(|(module, sections)| (module.file(), module.text(&root(), sections))).collect();
    texts.push(("kinds.md".to_owned(), by_kind(&pages)));
    let count: usize = pages.iter().map(|(_, sections)| sections.len()).sum();
    assert!(count >= 80, "{count} entries");
    let place = root().join("docs/book/src/errors");
    for (file, text) in texts {
        let path = place.join(&file);
        if std::env::var_os("GRADUS_WRITE").is_some() {
            std::fs::create_dir_all(&place).unwrap();
            std::fs::write(path, text).unwrap();
            continue;
        }
        let old = std::fs::read_to_string(path).unwrap_or_default();
        let differs = old.lines().zip(text.lines()).find(|(a, b)| a != b);
        assert!(
            old == text,
            "docs/book/src/errors/{file} and the code differ: {differs:#?}; if the code is right, `cargo xtask errors`"
        );
    }
}

//! `gradus new`: writes a small project that trains a network and tests itself.

use std::fs;
use std::path::{Path, PathBuf};

use gradus::{Error, ErrorKind, Result};

use crate::args::NewArgs;
use crate::output::say;

/// The program. A test of this crate compiles and runs it.
const MAIN: &str = include_str!("../../template/main.rs");

/// Where Gradus comes from, unless the user names a folder.
const SOURCE: &str = "git = \"https://github.com/gradus-rs/gradus\"";

/// Runs the command.
pub(crate) fn run(args: &NewArgs) -> Result<()> {
    let folder = &args.folder;
    let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    check(name)?;
    if folder.symlink_metadata().is_ok() {
        let m = format!("{} is there already", folder.display());
        return Err(Error::new(ErrorKind::Io, "new", m).help("give another name"));
    }
    let source = match &args.gradus {
        None => SOURCE.to_owned(),
        Some(path) => {
            let path = path.canonicalize().map_err(|e| failed(path, e))?;
            format!("path = {}", toml::Value::from(path.display().to_string()))
        }
    };
    write(folder, &manifest(name, &source, is_in_a_package(folder)))?;
    say(&format!("wrote the project {name}; next:"))?;
    say(&format!("  cd {}", folder.display()))?;
    say("  cargo run --release   trains a network on handwritten digits")?;
    say("  cargo test            tests that it learns")?;
    say("src/main.rs is the whole program.")?;
    if args.json {
        say(&serde_json::json!({ "project": folder.display().to_string(), "name": name }).to_string())?;
    }
    Ok(())
}

/// Errors unless cargo accepts the name for a package.
fn check(name: &str) -> Result<()> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let is_plain = name.starts_with(|c: char| c.is_ascii_alphabetic()) && name.chars().all(allowed);
    // The last four are folders that cargo makes in `target`.
    let taken = "gradus test core std alloc proc-macro proc_macro build deps examples incremental";
    let is_taken = taken.split(' ').any(|word| word == name);
    if is_plain && !is_taken && name.len() <= 64 && !is_keyword(name) {
        return Ok(());
    }
    let e = Error::argument("new", format!("{name:?} cannot be the name of a project"));
    Err(e.help("use letters, digits, - and _, with a letter first, and no word of Rust; such as my-project"))
}

fn is_keyword(name: &str) -> bool {
    let words = "abstract as async await become box break const continue crate do dyn else enum extern false final fn for \
                 gen if impl in let loop macro match mod move mut override priv pub ref return self static struct super \
                 trait true try type typeof unsafe unsized use virtual where while yield";
    words.split_whitespace().any(|word| word == name)
}

/// Whether a folder above has a manifest. Cargo would take the project for a member of its workspace.
fn is_in_a_package(folder: &Path) -> bool {
    let above = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    above.ancestors().skip(1).any(|folder| folder.join("Cargo.toml").exists())
}

fn manifest(name: &str, source: &str, is_in_a_package: bool) -> String {
    let workspace = "\n# A workspace of its own: there is another package in a folder above.\n[workspace]\n";
    format!(
        r#"[package]
name = "{name}"
version = "0.1.0"
edition = "2024"
rust-version = "1.95"

[dependencies]
gradus = {{ {source} }}

# Compiles Gradus with optimisation in `cargo test` and `cargo run` too: without it, it is a hundred times slower.
[profile.dev.package."*"]
opt-level = 3
{}"#,
        if is_in_a_package { workspace } else { "" }
    )
}

/// Writes the project: whole, or not at all.
fn write(folder: &Path, manifest: &str) -> Result<()> {
    let name = folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let aside: PathBuf = folder.with_file_name(format!(".{name}-{}", std::process::id()));
    let written = || -> std::io::Result<()> {
        fs::create_dir_all(aside.join("src"))?;
        fs::write(aside.join("Cargo.toml"), manifest)?;
        fs::write(aside.join("src/main.rs"), MAIN)?;
        fs::write(aside.join(".gitignore"), "/target\n*.safetensors\n")?;
        fs::rename(&aside, folder)
    };
    written().map_err(|e| {
        // What was written so far is of no use.
        let _ = fs::remove_dir_all(&aside);
        failed(folder, e)
    })
}

fn failed(path: &Path, e: std::io::Error) -> Error {
    Error::io("new", path.display(), e).help("name a folder that can be made")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_cargo_refuses_are_refused() {
        for name in [
            "",
            "9lives",
            "a b",
            "fn",
            "test",
            "gradus",
            "build",
            "deps",
            "examples",
            "incremental",
            "é",
            "-a",
            "a/b",
            "a.b",
        ] {
            assert!(check(name).is_err(), "{name:?}");
        }
        for name in ["a", "my-project", "Net_2"] {
            check(name).unwrap();
        }
    }

    #[test]
    fn the_profile_is_the_one_that_the_readme_recommends() {
        let readme = include_str!("../../../../README.md");
        let lines = "[profile.dev.package.\"*\"]\nopt-level = 3\n";
        assert!(readme.contains(lines) && manifest("a", SOURCE, false).contains(lines));
        assert!(readme.contains(SOURCE));
        let parsed: toml::Table = manifest("a", SOURCE, true).parse().unwrap();
        assert!(parsed["workspace"].is_table() && parsed["package"]["name"].as_str() == Some("a"));
    }
}

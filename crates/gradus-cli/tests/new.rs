//! `gradus new`: the project that it writes is accepted by cargo, trains and tests itself.
#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;

use support::{gradus, last_json, snapshot, succeed, text};

/// The program of the project. Its tests run with those of this file.
#[path = "../template/main.rs"]
#[allow(dead_code, clippy::print_stdout)]
mod project;

#[test]
fn a_new_project_is_one_that_cargo_checks() {
    let dir = tempfile::tempdir().unwrap();
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let mut new = gradus();
    new.current_dir(dir.path()).args(["new", "my-project", "--json", "--gradus"]).arg(workspace.join("crates/gradus"));
    let out = succeed(&mut new);
    assert_eq!(last_json(&out)["name"].as_str(), Some("my-project"));
    assert!(out.contains("cargo run --release"), "{out}");
    let project = dir.path().join("my-project");
    let names: Vec<_> = snapshot(&project).into_keys().map(|p| p.strip_prefix(&project).unwrap().to_owned()).collect();
    assert_eq!(names, [".gitignore", "Cargo.toml", "src", "src/main.rs"].map(Path::new));

    // The versions of the workspace are at hand, so nothing is downloaded; the target folder is kept between runs.
    fs::copy(workspace.join("Cargo.lock"), project.join("Cargo.lock")).unwrap();
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("new-project");
    let mut check = Command::new(env!("CARGO"));
    check.args(["check", "--offline", "--all-targets", "--quiet", "--target-dir"]).arg(target).current_dir(&project);
    // Procedural macros need no optimisation to check a program.
    check.args(["--config", "profile.dev.package.'*'.opt-level=0", "--config", "profile.dev.debug=false"]);
    check.env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
    succeed(&mut check);
}

#[test]
fn a_project_is_written_whole_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("used")).unwrap();
    fs::write(dir.path().join("file"), "x").unwrap();
    let before = snapshot(dir.path());
    for (name, says) in [
        ("used", "used is there already"),
        ("file", "file is there already"),
        ("file/new", "file/new"),
        ("fn", "\"fn\""),
        ("9lives", "\"9lives\""),
        ("..", "project"),
    ] {
        let output = gradus().current_dir(dir.path()).args(["new", name]).output().unwrap();
        let (out, err) = text(&output);
        assert_eq!(output.status.code(), Some(1), "{name}: {out}{err}");
        assert!(err.contains(says) && out.is_empty(), "{name}: {err}");
        assert_eq!(snapshot(dir.path()), before, "{name}");
    }
}

#[test]
fn a_project_below_another_package_is_a_workspace_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("Cargo.toml"), "[workspace]\n").unwrap();
    succeed(gradus().current_dir(dir.path()).args(["new", "inner"]));
    let manifest = fs::read_to_string(dir.path().join("inner/Cargo.toml")).unwrap();
    assert!(manifest.contains("[workspace]"), "{manifest}");
    let mut metadata = Command::new(env!("CARGO"));
    let arguments = ["metadata", "--no-deps", "--format-version", "1", "--offline"];
    let found = last_json(&succeed(metadata.args(arguments).current_dir(dir.path().join("inner"))));
    assert_eq!(found["packages"][0]["name"].as_str(), Some("inner"));
}

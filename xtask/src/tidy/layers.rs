//! Checks which crate depends on which, using the manifests as cargo reads them.

use std::path::Path;

use super::Finding;

/// Each crate, and the project's crates that it may depend on. Dev-dependencies are unrestricted.
const ALLOWED: &[(&str, &[&str])] = &[
    ("gradus-backend", &[]),
    ("gradus-file", &["gradus-backend"]),
    ("gradus-cpu", &["gradus-backend"]),
    ("gradus-cuda", &["gradus-backend"]),
    ("gradus-wgpu", &["gradus-backend"]),
    ("gradus-tensor", &["gradus-backend"]),
    ("gradus-conformance", &["gradus-backend"]),
    ("gradus-plugin", &["gradus-backend", "gradus-tensor"]),
    ("gradus-nn-derive", &[]),
    ("gradus-nn", &["gradus-file", "gradus-tensor", "gradus-backend", "gradus-nn-derive"]),
    ("gradus-data", &["gradus-file", "gradus-image", "gradus-tensor", "gradus-backend", "gradus-nn-derive"]),
    ("gradus-image", &["gradus-file", "gradus-tensor", "gradus-backend"]),
    ("gradus-graph", &["gradus-nn-derive", "gradus-tensor", "gradus-backend"]),
    ("gradus-onnx", &["gradus-file", "gradus-graph", "gradus-nn", "gradus-tensor"]),
    ("gradus-train", &["gradus-file", "gradus-graph", "gradus-nn", "gradus-data", "gradus-tensor", "gradus-backend"]),
    ("gradus-models", &["gradus-nn", "gradus-tensor"]),
    ("gradus-dist", &["gradus-cuda", "gradus-nn", "gradus-tensor", "gradus-train"]),
    ("gradus-tasks", &["gradus-data", "gradus-image", "gradus-models", "gradus-nn", "gradus-tensor", "gradus-train"]),
    (
        "gradus",
        &[
            "gradus-backend",
            "gradus-cpu",
            "gradus-cuda",
            "gradus-wgpu",
            "gradus-tensor",
            "gradus-conformance",
            "gradus-dist",
            "gradus-nn-derive",
            "gradus-nn",
            "gradus-data",
            "gradus-graph",
            "gradus-image",
            "gradus-models",
            "gradus-onnx",
            "gradus-plugin",
            "gradus-tasks",
            "gradus-train",
        ],
    ),
    ("gradus-cli", &["gradus"]),
    ("gradus-ptx", &[]),
    ("gradus-fuzz", &["gradus"]),
    ("gradus-fuzz-grad", &["gradus-cpu", "gradus-graph", "gradus-tensor"]),
];

/// Asks cargo for the packages of the workspace.
pub(super) fn metadata(root: &Path) -> Result<String, String> {
    let mut command = crate::workspace::cargo();
    let output = command.args(["metadata", "--no-deps", "--format-version", "1"]).current_dir(root).output();
    let output = output.map_err(|error| format!("cargo metadata did not start: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata failed:\n{}", String::from_utf8_lossy(&output.stderr)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Checks every crate below `crates/` against the table.
pub(super) fn check(metadata: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for Package { name, in_crates, dependencies } in packages(metadata) {
        let path = format!("crates/{name}/Cargo.toml");
        let Some((_, allowed)) = ALLOWED.iter().find(|(known, _)| *known == name) else {
            if is_ours(name) || in_crates {
                let message = format!("`{name}` is not in the table of layers; add it to xtask/src/tidy/layers.rs");
                findings.push(Finding::new(&path, 1, message));
            }
            continue;
        };
        for dependency in dependencies.into_iter().filter(|other| is_ours(other) && !allowed.contains(other)) {
            let allowed = if allowed.is_empty() { "none of the project's crates".into() } else { allowed.join(", ") };
            let message = format!("`{name}` must not depend on `{dependency}`; it may use {allowed}");
            findings.push(Finding::new(&path, 1, message));
        }
    }
    findings
}

fn is_ours(name: &str) -> bool {
    name == "gradus" || name.starts_with("gradus-")
}

/// A package of the workspace.
struct Package<'a> {
    name: &'a str,
    /// Whether it lies below `crates/`.
    in_crates: bool,
    /// Without dev-dependencies.
    dependencies: Vec<&'a str>,
}

/// Reads the packages from cargo's JSON.
fn packages(metadata: &str) -> Vec<Package<'_>> {
    let name = |object: &'_ str| object.split('"').next().unwrap_or_default().len();
    let mut packages = Vec::new();
    for (at, start) in metadata.match_indices("\"dependencies\":[") {
        let Some((_, package)) = metadata[..at].rsplit_once("{\"name\":\"") else { continue };
        let rest = &metadata[at + start.len()..];
        let all = &rest[..super::source::bracketed(&format!("[{rest}")) - 1];
        let normal = all.split("{\"name\":\"").skip(1).filter(|one| !one.contains("\"kind\":\"dev\""));
        let manifest = rest.split("\"manifest_path\":\"").nth(1).and_then(|path| path.split('"').next());
        let in_crates = manifest.is_some_and(|path| path.split(['/', '\\']).rev().nth(2) == Some("crates"));
        let dependencies = normal.map(|one| &one[..name(one)]).collect();
        packages.push(Package { name: &package[..name(package)], in_crates, dependencies });
    }
    packages
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The findings for a package with one dependency.
    fn found(package: &str, dependency: &str, kind: &str) -> Vec<String> {
        let dependency =
            format!(r#"{{"name":"{dependency}","source":null,"kind":{kind},"rename":"fast","features":[]}}"#);
        let other = r#"{"name":"half","kind":null,"target":"cfg([unix])","features":["a"]}"#;
        let folder = if package == "xtask" { "crates/w" } else { "crates" };
        let path = format!("/{folder}/{package}/Cargo.toml");
        let package = format!(
            r#"{{"name":"{package}","version":"1","dependencies":[{other},{dependency}],"manifest_path":"{path}"}}"#
        );
        let tests = r#"{"name":"gradus-cpu","dependencies":[],"targets":[{"name":"gradus-cpu"}]}"#;
        check(&format!(r#"{{"packages":[{tests},{package}]}}"#)).into_iter().map(|found| found.message).collect()
    }

    #[test]
    fn arrows_along_the_layers_and_those_of_tests_pass() {
        assert_eq!(found("gradus-cpu", "gradus-backend", "null"), [""; 0]);
        assert_eq!(found("gradus-backend", "gradus-cpu", "\"dev\""), [""; 0]);
        assert_eq!(found("xtask", "gradus-cpu", "null"), [""; 0]);
    }

    #[test]
    fn an_arrow_against_the_layers_fails() {
        for kind in ["null", "\"build\""] {
            let message = "`gradus-tensor` must not depend on `gradus-cpu`; it may use gradus-backend";
            assert_eq!(found("gradus-tensor", "gradus-cpu", kind), [message]);
        }
        assert_eq!(found("gradus-cli", "gradus-tensor", "null").len(), 1);
    }

    #[test]
    fn a_crate_outside_the_table_fails() {
        for name in ["gradus-extra", "extra"] {
            assert!(found(name, "half", "null")[0].contains(&format!("`{name}` is not in the table")));
        }
    }

    /// If a crate were missing from that list, its errors would point to a line of Gradus instead of the user's.
    #[test]
    fn errors_know_every_crate_that_users_reach() {
        let here = include_str!("../../../crates/gradus-backend/src/error/user.rs");
        let inner = ["gradus-conformance", "gradus-fuzz", "gradus-fuzz-grad", "gradus-ptx"];
        for (name, _) in ALLOWED.iter().filter(|(name, _)| !inner.contains(name)) {
            assert!(here.contains(&format!("    \"{name}\",\n")), "{name} is not in OURS");
        }
    }
}

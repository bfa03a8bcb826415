//! Which crate may depend on which: the arrows of the architecture, read from the manifests.

use super::Finding;

/// Each crate and the project's crates that it may name in its manifest. Dev-dependencies are free.
const ALLOWED: &[(&str, &[&str])] = &[
    ("gradus-backend", &[]),
    ("gradus-file", &["gradus-backend"]),
    ("gradus-cpu", &["gradus-backend"]),
    ("gradus-wgpu", &["gradus-backend"]),
    ("gradus-tensor", &["gradus-backend"]),
    ("gradus-conformance", &["gradus-backend"]),
    ("gradus-plugin", &["gradus-backend", "gradus-tensor"]),
    ("gradus-nn-derive", &[]),
    ("gradus-nn", &["gradus-file", "gradus-tensor", "gradus-backend", "gradus-nn-derive"]),
    ("gradus-data", &["gradus-file", "gradus-tensor", "gradus-backend"]),
    ("gradus-image", &["gradus-file", "gradus-tensor", "gradus-backend"]),
    ("gradus-train", &["gradus-file", "gradus-nn", "gradus-data", "gradus-tensor", "gradus-backend"]),
    (
        "gradus",
        &[
            "gradus-backend",
            "gradus-cpu",
            "gradus-wgpu",
            "gradus-tensor",
            "gradus-conformance",
            "gradus-nn-derive",
            "gradus-nn",
            "gradus-data",
            "gradus-image",
            "gradus-plugin",
            "gradus-train",
        ],
    ),
    ("gradus-cli", &["gradus"]),
    ("gradus-fuzz", &["gradus"]),
    ("gradus-fuzz-grad", &["gradus-cpu", "gradus-tensor"]),
];

/// `true` for `crates/<name>/Cargo.toml`.
pub(super) fn is_crate_manifest(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    matches!(parts[..], ["crates", _, "Cargo.toml"])
}

/// Checks one crate's manifest against the table.
pub(super) fn check(path: &str, manifest: &str) -> Vec<Finding> {
    let manifest = read(manifest);
    let Some((line, name)) = manifest.name else {
        return vec![Finding::new(path, 1, "the manifest has no [package] name")];
    };
    let Some((_, allowed)) = ALLOWED.iter().find(|(known, _)| *known == name) else {
        let message = format!("`{name}` is not in the table of layers; add it to xtask/src/tidy/layers.rs");
        return vec![Finding::new(path, line, message)];
    };
    let is_ours = |dependency: &str| dependency == "gradus" || dependency.starts_with("gradus-");
    manifest
        .dependencies
        .into_iter()
        .filter(|(_, dependency)| is_ours(dependency) && !allowed.contains(&dependency.as_str()))
        .map(|(line, dependency)| {
            let allowed = if allowed.is_empty() { "none of the project's crates".into() } else { allowed.join(", ") };
            Finding::new(path, line, format!("`{name}` must not depend on `{dependency}`; it may use {allowed}"))
        })
        .collect()
}

/// What the layers need of a manifest; each part with its line.
#[derive(Default)]
struct Manifest {
    name: Option<(usize, String)>,
    dependencies: Vec<(usize, String)>,
}

/// Reads the `[package]` name and the names in all normal and build dependency tables, also those of a target.
fn read(text: &str) -> Manifest {
    let mut manifest = Manifest::default();
    let mut section = String::new();
    for (index, line) in text.lines().enumerate() {
        let (number, line) = (index + 1, line.trim());
        if line.starts_with('#') {
            continue;
        }
        if let Some(header) = line.strip_prefix('[') {
            section = header.split(']').next().unwrap_or_default().trim().to_string();
            if let Some(name) = dependency_header(&section) {
                manifest.dependencies.push((number, name.to_string()));
            }
            continue;
        }
        let Some((key, value)) = line.split_once('=') else { continue };
        let key = key.trim();
        if section == "package" && key == "name" {
            manifest.name = Some((number, unquote(value)));
        } else if is_dependency_table(&section) {
            let name = key.split('.').next().unwrap_or(key);
            manifest.dependencies.push((number, renamed(value).unwrap_or_else(|| unquote(name))));
        } else if key == "package" && dependency_header(&section).is_some() {
            manifest.dependencies.push((number, unquote(value)));
        }
    }
    manifest
}

/// `dependencies`, `build-dependencies`, or either below `target.<condition>`.
fn is_dependency_table(section: &str) -> bool {
    let last = section.rsplit('.').next().unwrap_or(section);
    let of_target = section.starts_with("target.") || section == last;
    of_target && matches!(last, "dependencies" | "build-dependencies")
}

/// The dependency's name in a header such as `dependencies.half`.
fn dependency_header(section: &str) -> Option<&str> {
    let (table, name) = section.rsplit_once('.')?;
    is_dependency_table(table).then_some(name.trim_matches(['"', '\'']))
}

/// The real name in `{ package = "name", .. }`.
fn renamed(value: &str) -> Option<String> {
    let fields = value.trim().strip_prefix('{')?.split([',', '}']);
    fields
        .filter_map(|field| field.split_once('='))
        .find(|(key, _)| key.trim() == "package")
        .map(|(_, name)| unquote(name))
}

fn unquote(value: &str) -> String {
    let value = value.split('#').next().unwrap_or(value);
    value.trim().trim_matches(['"', '\'']).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(name: &str, rest: &str) -> Vec<(usize, String)> {
        let manifest = format!("[package]\nname = \"{name}\"\n{rest}");
        check("crates/x/Cargo.toml", &manifest).into_iter().map(|found| (found.line, found.message)).collect()
    }

    #[test]
    fn arrows_along_the_layers_pass() {
        assert_eq!(findings("gradus-cpu", "[dependencies]\ngradus-backend.workspace = true\nhalf = \"2\"\n"), []);
        assert_eq!(findings("gradus-cli", "[dependencies]\ngradus = { workspace = true }\n"), []);
        assert_eq!(findings("gradus-backend", "[dependencies]\n[[bin]]\nname = \"gradus-cli\"\n"), []);
    }

    #[test]
    fn dev_dependencies_are_free() {
        assert_eq!(findings("gradus-nn", "[dev-dependencies]\ngradus-cpu.workspace = true\n"), []);
    }

    #[test]
    fn an_arrow_against_the_layers_fails_however_it_is_written() {
        for rest in [
            "[dependencies]\ngradus-cpu.workspace = true",
            "[dependencies]\ngradus-cpu = { path = \"../gradus-cpu\" }",
            "[dependencies]\n\"gradus-cpu\" = \"0.1\"",
            "[dependencies]\nfast = { package = \"gradus-cpu\", version = \"0.1\" }",
            "[build-dependencies]\ngradus-cpu.workspace = true",
            "[target.'cfg(unix)'.dependencies]\ngradus-cpu.workspace = true",
        ] {
            let found = findings("gradus-tensor", rest);
            assert_eq!(found.len(), 1, "{rest}");
            assert_eq!(found[0].0, 4, "{rest}");
            assert!(found[0].1.contains("must not depend on `gradus-cpu`"), "{}", found[0].1);
        }
        assert_eq!(findings("gradus-tensor", "[dependencies.gradus-cpu]\nworkspace = true").len(), 1);
        assert_eq!(findings("gradus-tensor", "[dependencies.fast]\npackage = \"gradus-cpu\"").len(), 1);
        assert_eq!(findings("gradus-cli", "[dependencies]\ngradus-tensor.workspace = true").len(), 1);
    }

    #[test]
    fn a_crate_outside_the_table_fails() {
        let found = findings("gradus-extra", "");
        assert!(found[0].1.contains("`gradus-extra` is not in the table"), "{}", found[0].1);
        assert_eq!(check("crates/x/Cargo.toml", "[dependencies]\n").len(), 1);
    }

    #[test]
    fn the_table_has_no_circle() {
        // Every crate may only use crates whose own arrows end before it: repeated removal must empty the table.
        let mut left: Vec<_> = ALLOWED.to_vec();
        while !left.is_empty() {
            let names: Vec<&str> = left.iter().map(|(name, _)| *name).collect();
            let before = left.len();
            left.retain(|(_, allowed)| allowed.iter().any(|used| names.contains(used)));
            assert!(left.len() < before, "circle among {names:?}");
        }
    }

    /// An error made in a crate that is missing there would have a line of Gradus instead of the user's.
    #[test]
    fn errors_know_every_crate_that_users_reach() {
        let here = include_str!("../../../crates/gradus-backend/src/error/user.rs");
        let inner = ["gradus-conformance", "gradus-fuzz", "gradus-fuzz-grad"];
        for (name, _) in ALLOWED.iter().filter(|(name, _)| !inner.contains(name)) {
            assert!(here.contains(&format!("    \"{name}\",\n")), "{name} is not in OURS");
        }
    }

    #[test]
    fn only_crate_manifests_are_checked() {
        assert!(is_crate_manifest("crates/gradus/Cargo.toml"));
        assert!(!is_crate_manifest("Cargo.toml") && !is_crate_manifest("benches/peers/Cargo.toml"));
    }
}

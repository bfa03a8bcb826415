//! Finds the path to the crate of a trait as seen from the crate being compiled: `::gradus_nn` for `Module`, or
//! `::gradus::nn` if that crate depends on the facade `gradus`. `Sample` is in `::gradus_data` in the same way.

use proc_macro2::{Ident, Span, TokenStream};
use quote::quote;

/// The path of the crate `gradus-PART`, which the facade calls `part`.
pub(crate) fn root(part: &str) -> TokenStream {
    let package = format!("gradus-{part}");
    match std::env::var("CARGO_PKG_NAME").as_deref() {
        Ok(name) if name == package => return path(&name.replace('-', "_"), None),
        Ok("gradus") => return path("gradus", Some(part)),
        _ => {}
    }
    let manifest = std::env::var("CARGO_MANIFEST_DIR").ok();
    let text = manifest.and_then(|dir| std::fs::read_to_string(format!("{dir}/Cargo.toml")).ok()).unwrap_or_default();
    let (name, facade) = choose(&text, &package);
    path(&name, facade.then_some(part))
}

fn path(name: &str, part: Option<&str>) -> TokenStream {
    let ident = |name: &str| Ident::new(name, Span::call_site());
    let name = ident(name);
    match part.map(ident) {
        Some(part) => quote!(::#name::#part),
        None => quote!(::#name),
    }
}

/// The name under which the manifest lists the crate that provides the trait, and whether that crate is the facade.
fn choose(manifest: &str, wanted: &str) -> (String, bool) {
    let found = dependencies(manifest);
    for development in [false, true] {
        for (package, facade) in [(wanted, false), ("gradus", true)] {
            if let Some(d) = found.iter().find(|d| d.development == development && d.package == package) {
                return (d.name.replace('-', "_"), facade);
            }
        }
    }
    ("gradus".into(), true)
}

/// One dependency of a manifest.
struct Dependency {
    /// Its name in the manifest.
    name: String,
    /// The name of its package.
    package: String,
    /// Whether it is a dev-dependency.
    development: bool,
}

/// The dependencies of a manifest. It is parsed line by line, which suffices for the forms that Cargo's tools write.
fn dependencies(manifest: &str) -> Vec<Dependency> {
    let mut found: Vec<Dependency> = Vec::new();
    // The table that the current line belongs to: a list of normal or dev-dependencies, or a single dependency.
    let (mut listing, mut describing) = (None, false);
    for line in manifest.lines().map(str::trim) {
        if let Some(header) = line.strip_prefix('[') {
            let keys: Vec<&str> = header.split(']').next().unwrap_or("").split('.').map(bare).collect();
            let table = |key: &&str| matches!(*key, "dependencies" | "dev-dependencies");
            let at = keys.iter().position(table);
            let development = at.map(|i| keys[i] == "dev-dependencies");
            listing = development.filter(|_| at == Some(keys.len() - 1));
            describing = at.is_some_and(|i| i + 2 == keys.len());
            if let (true, Some(development), Some(name)) = (describing, development, keys.last()) {
                found.push(Dependency { name: (*name).into(), package: (*name).into(), development });
            }
            continue;
        }
        let Some((key, value)) = line.split_once('=') else { continue };
        let key = bare(key);
        if describing {
            if let ("package", Some(last)) = (key, found.last_mut()) {
                last.package = bare(value).into();
            }
        } else if let Some(development) = listing {
            let (name, field) = key.split_once('.').unwrap_or((key, ""));
            let renamed = match field {
                "package" => Some(bare(value)),
                _ => value.split_once("package").and_then(|(_, rest)| rest.split('"').nth(1)),
            };
            found.push(Dependency {
                name: bare(name).into(),
                package: renamed.unwrap_or(bare(name)).into(),
                development,
            });
        }
    }
    found
}

/// A key or string without surrounding spaces and quotes.
fn bare(text: &str) -> &str {
    text.trim().trim_matches(['"', '\''])
}

#[cfg(test)]
mod tests {
    use super::choose;

    #[test]
    fn direct_dependency_wins_over_the_facade() {
        for (manifest, name, facade) in [
            ("[dependencies]\ngradus-nn = \"0.1\"\ngradus = \"0.1\"", "gradus_nn", false),
            ("[dependencies]\ngradus = { version = \"0.1\", features = [\"cpu\"] }", "gradus", true),
            ("[dependencies]\ngradus-nn.workspace = true", "gradus_nn", false),
            ("[dependencies]\ngradus.workspace = true\n[dev-dependencies]\ngradus-nn = \"0.1\"", "gradus", true),
            ("[dependencies.gradus-nn]\nversion = \"0.1\"", "gradus_nn", false),
            ("[dependencies.dl]\nversion = \"0.1\"\npackage = \"gradus\"", "dl", true),
            ("[dependencies]\ndeep-nn = { package = \"gradus-nn\", path = \"..\" }", "deep_nn", false),
            ("[target.'cfg(unix)'.dependencies]\ngradus = \"1\"", "gradus", true),
            ("[package]\nname = \"gradus-nn\"", "gradus", true),
            ("not a manifest", "gradus", true),
        ] {
            assert_eq!(choose(manifest, "gradus-nn"), (name.to_owned(), facade), "{manifest}");
        }
        let both = "[dependencies]\ngradus-nn = \"0.1\"\ngradus-data = \"0.1\"";
        assert_eq!(choose(both, "gradus-data"), ("gradus_data".to_owned(), false));
    }
}

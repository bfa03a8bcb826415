//! Decides which lines of code belong to the user.

use std::panic::Location;

/// The crates of Gradus, whose lines are not shown to users.
const OURS: [&str; 19] = [
    "gradus",
    "gradus-backend",
    "gradus-cli",
    "gradus-cpu",
    "gradus-cuda",
    "gradus-data",
    "gradus-dist",
    "gradus-file",
    "gradus-graph",
    "gradus-image",
    "gradus-models",
    "gradus-nn",
    "gradus-nn-derive",
    "gradus-onnx",
    "gradus-plugin",
    "gradus-tasks",
    "gradus-tensor",
    "gradus-train",
    "gradus-wgpu",
];

/// Whether this line belongs to the user, that is, neither to Gradus nor to the standard library.
pub fn is_of_user(location: &Location<'_>) -> bool {
    is_users_file(location.file(), file!())
}

/// Whether `file` belongs to the user. `this` is the path under which the compiler knows this source file.
fn is_users_file(file: &str, this: &str) -> bool {
    // The standard library is built under `/rustc/`, and rustup installs its sources in a folder `rustlib`.
    if file.starts_with("/rustc/") || file.contains("rustlib") {
        return false;
    }
    let (file, this) = (file.replace('\\', "/"), this.replace('\\', "/"));
    // The folder that holds the crates: `crates/` in the workspace, or a folder of the registry if Gradus is a
    // dependency.
    let Some(own) = this.strip_suffix("/src/error/user.rs") else { return true };
    let crates = &own[..own.rfind('/').map_or(0, |slash| slash + 1)];
    let Some((folder, inside)) = file.strip_prefix(crates).and_then(|rest| rest.split_once('/')) else { return true };
    !(OURS.contains(&without_version(folder)) && inside.starts_with("src/"))
}

/// The name of a crate, given its folder: removes the version that a registry appends.
fn without_version(folder: &str) -> &str {
    let is_version = |&(at, _): &(usize, &str)| folder[at + 1..].starts_with(|c: char| c.is_ascii_digit());
    folder.match_indices('-').find(is_version).map_or(folder, |(at, _)| &folder[..at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_gradus_and_of_the_standard_library_are_no_users() {
        let here = "crates/gradus-backend/src/error/user.rs";
        let users = |file| is_users_file(file, here);
        assert!(!users("crates/gradus-tensor/src/ops/mod.rs"));
        assert!(!users("/rustc/0123/library/core/src/ops/function.rs"));
        assert!(!users("/home/u/.rustup/toolchains/stable/lib/rustlib/src/rust/library/core/src/option.rs"));
        assert!(users("crates/gradus-tensor/tests/locations.rs"));
        assert!(users("crates/gradus-fuzz/src/calls/run.rs"));
        assert!(users("src/main.rs"));
        assert!(users("/home/u/gradus-tensor/src/main.rs"));
    }

    #[test]
    fn so_it_is_where_gradus_is_a_dependency() {
        let registry = "/home/u/.cargo/registry/src/index.crates.io-1/";
        let here = format!("{registry}gradus-backend-0.1.0/src/error/user.rs");
        assert!(!is_users_file(&format!("{registry}gradus-tensor-0.1.0/src/tensor.rs"), &here));
        assert!(!is_users_file(&format!("{registry}gradus-nn-0.1.1-rc.2/src/linear.rs"), &here));
        assert!(!is_users_file(&format!("{registry}gradus-0.1.0/src/lib.rs"), &here));
        assert!(is_users_file(&format!("{registry}other-0.1.0/src/lib.rs"), &here));
        assert!(is_users_file("src/main.rs", &here));
        let windows = "C:\\g\\crates\\gradus-backend\\src\\error\\user.rs";
        assert!(!is_users_file("C:\\g\\crates\\gradus-nn\\src\\module.rs", windows));
        assert!(is_users_file("src\\main.rs", windows));
    }
}

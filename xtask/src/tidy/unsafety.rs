//! Checks that unsafe code occurs only where it may, and that it says why it is sound where clippy does not demand it.
//! Clippy's `undocumented_unsafe_blocks` sees blocks and implementations, but not foreign functions and attributes. Its
//! `missing_safety_doc` sees public functions; with `check-private-items`, it would also report safe functions under
//! `#[target_feature]`.

use super::finding::Finding;
use super::source::{Source, token, words};

/// The crates that contain unsafe code and so cannot forbid it as a whole.
const CRATES_WITH_UNSAFE: &[&str] = &[
    "gradus-backend",
    "gradus-cpu",
    "gradus-cuda",
    "gradus-dist",
    "gradus-fuzz",
    "gradus-plugin",
    "gradus-ptx",
    "gradus-tensor",
    "gradus-wgpu",
];

/// The prefixes of the paths that may contain unsafe code.
const PLACES: &[&str] = &[
    "crates/gradus/tests/errors/plugins.rs",
    "crates/gradus-backend/",
    "crates/gradus-cpu/",
    "crates/gradus-cuda/examples/launch_cost.rs",
    "crates/gradus-cuda/src/driver/",
    "crates/gradus-cuda/src/memory.rs",
    "crates/gradus-cuda/src/queue.rs",
    "crates/gradus-cuda/tests/injected/",
    "crates/gradus-dist/src/",
    "crates/gradus-dist/tests/nccl/",
    "crates/gradus-fuzz/src/limited.rs",
    "crates/gradus-plugin/",
    "crates/gradus-ptx/src/driver",
    "crates/gradus-ptx/src/num/fused.rs",
    "crates/gradus-ptx/tests/driver/",
    "examples/tiny-plugin/tests/",
    "crates/gradus-tensor/src/storage.rs",
    "crates/gradus-tensor/src/storage/",
    "crates/gradus-wgpu/src/pool.rs",
];

pub(super) fn check(source: &Source) -> Vec<Finding> {
    let mut findings: Vec<Finding> = forbids(source).into_iter().collect();
    let allowed = PLACES.iter().any(|place| source.path.starts_with(place));
    for at in words(&source.code, "unsafe") {
        let message = if !allowed {
            format!("unsafe code may only stand in {}", PLACES.join(", "))
        } else {
            match undocumented(source, at) {
                Some(message) => message.into(),
                None => continue,
            }
        };
        findings.push(Finding::new(&source.path, source.line(at), message));
    }
    findings
}

/// A finding if a crate's root must forbid unsafe code and does not.
fn forbids(source: &Source) -> Option<Finding> {
    let parts: Vec<&str> = source.path.split('/').collect();
    let must = match parts[..] {
        ["crates", name, "src", "lib.rs" | "main.rs"] | ["crates", name, "src", "bin", _] => {
            !CRATES_WITH_UNSAFE.contains(&name)
        }
        ["xtask", "src", "main.rs"] => true,
        _ => false,
    };
    let missing = must && !source.code.contains("#![forbid(unsafe_code)]");
    missing.then(|| Finding::new(&source.path, 1, "the crate's root must contain `#![forbid(unsafe_code)]`"))
}

/// What the `unsafe` at this offset lacks, if anything.
fn undocumented(source: &Source, at: usize) -> Option<&'static str> {
    let (mut word, mut rest) = token(&source.code[at + "unsafe".len()..]);
    let is_extern = word == "extern";
    while word == "extern" || word == "\"" {
        (word, rest) = token(rest);
    }
    let lines: Vec<&str> = source.text.lines().take(source.line(at)).collect();
    let (own, above) = lines.split_last()?;
    let above = above.iter().rev().copied();
    let mut notes = above.clone().map(str::trim).take_while(|line| line.starts_with("//") || line.starts_with("#["));
    let is_attribute = word == "(" && own.trim_start().starts_with("#[");
    match word {
        "fn" if token(rest).0 == "(" || is_in_trait_impl(own, above) => None,
        "fn" | "trait" if !notes.any(|line| line.starts_with("///") && line.ends_with("# Safety")) => {
            Some("its doc comment needs a `# Safety` section that says what the caller must ensure")
        }
        "{" | "(" if (is_extern || is_attribute) && !notes.any(|line| line.contains("SAFETY:")) => {
            Some("a `// SAFETY:` comment directly above must say why this is sound")
        }
        _ => None,
    }
}

/// Whether a line is inside `impl Trait for Type { .. }`, judged by rustfmt's indentation. There, the trait's docs
/// state the contract.
fn is_in_trait_impl<'a>(line: &str, mut above: impl Iterator<Item = &'a str>) -> bool {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let header = above.find(|other| !other.trim().is_empty() && indent(other) < indent(line));
    header.is_some_and(|header| header.contains("impl") && header.replace("for<", "").contains(" for "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &str, text: &str) -> usize {
        check(&Source::new(path, text)).len()
    }

    const CPU: &str = "crates/gradus-cpu/src/a.rs";

    #[test]
    fn foreign_functions_and_attributes_need_a_safety_comment() {
        for claim in ["unsafe extern \"C\" {}", "#[unsafe(no_mangle)]\npub fn f() {}"] {
            let all = [("", 1), ("// SAFETY: fine,\n// as here.\n", 0), ("// SAFETY: of another.\n\n", 1)];
            for (comment, findings) in all {
                assert_eq!(count(CPU, &format!("f();\n{comment}{claim}")), findings, "{claim}");
            }
        }
        for clippys in ["unsafe { g() }", "f(unsafe { g() })", "unsafe impl A for B {}", "// #[unsafe(a)]"] {
            assert_eq!(count(CPU, clippys), 0, "{clippys}");
        }
    }

    #[test]
    fn a_function_or_trait_needs_a_safety_section() {
        let documented = "fn g() {}\n/// Adds.\n///\n/// # Safety\n/// AVX2.\n#[inline]\n";
        for item in ["unsafe fn f() {}", "pub(crate) const unsafe fn f() {}", "pub unsafe trait T {}"] {
            assert_eq!(count(CPU, &format!("{documented}{item}")), 0, "{item}");
            assert_eq!(count(CPU, &format!("{documented}fn h() {{}}\n/// Adds.\n// # Safety\n{item}")), 1, "{item}");
        }
        assert_eq!(count(CPU, "impl A for [u8; 4] {\n    fn g() {}\n\n    unsafe fn f(&self) {}\n}"), 0);
        assert_eq!(count(CPU, "impl<F: for<'a> Fn(&'a u8)> X<F> {\n    unsafe fn f(&self) {}\n}"), 1);
        assert_eq!(count(CPU, "trait A {\n    unsafe extern \"C\" fn f(&self);\n}"), 1);
        assert_eq!(count(CPU, "type F = unsafe extern \"C\" fn(*const f32);"), 0);
    }

    #[test]
    fn unsafe_code_stands_in_its_places_only() {
        for path in ["gradus-cpu/src/a.rs", "gradus-tensor/src/storage.rs", "gradus-tensor/src/storage/a.rs"] {
            assert_eq!(count(&format!("crates/{path}"), "unsafe { g() }"), 0, "{path}");
        }
        for path in ["crates/gradus-tensor/src/ops/a.rs", "crates/gradus-nn/tests/a.rs", "examples/a.rs"] {
            assert_eq!(count(path, "unsafe { g() }"), 1, "{path}");
            assert_eq!(count(path, "// unsafe { g() }\nf(\"unsafe\");"), 0, "{path}");
        }
    }

    #[test]
    fn roots_of_safe_crates_forbid_unsafe_code() {
        for path in ["crates/gradus-nn/src/lib.rs", "xtask/src/main.rs", "crates/a/src/bin/b.rs"] {
            assert_eq!(count(path, "#![forbid(unsafe_code)]\n"), 0, "{path}");
            assert_eq!(count(path, "// #![forbid(unsafe_code)]\n"), 1, "{path}");
        }
        assert_eq!(count("crates/gradus-cpu/src/lib.rs", ""), 0);
        assert_eq!(count("crates/gradus-nn/src/layers.rs", ""), 0);
    }
}

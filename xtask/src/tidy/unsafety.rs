//! Unsafe code stands where it may, and says why it is sound.

use super::finding::Finding;
use super::source::{Source, token, words};

/// The crates that contain unsafe code and so cannot forbid it as a whole.
const CRATES_WITH_UNSAFE: &[&str] =
    &["gradus-backend", "gradus-cpu", "gradus-fuzz", "gradus-plugin", "gradus-tensor", "gradus-wgpu"];

/// The paths, by their beginning, that may contain unsafe code.
const PLACES: &[&str] = &[
    "crates/gradus-backend/",
    "crates/gradus-cpu/",
    "crates/gradus-fuzz/src/limited.rs",
    "crates/gradus-plugin/",
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
            Some(
                "unsafe code may only stand in gradus-backend, gradus-cpu, gradus-plugin, the storage of gradus-tensor, the \
                 pool of gradus-wgpu and the allocator of gradus-fuzz",
            )
        } else {
            undocumented(source, at)
        };
        findings.extend(message.map(|message| Finding::new(&source.path, source.line(at), message)));
    }
    findings
}

/// A crate's root that must forbid unsafe code and does not.
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

/// What the `unsafe` at this offset lacks.
fn undocumented(source: &Source, at: usize) -> Option<&'static str> {
    match kind(&source.code, at) {
        Kind::Type => None,
        Kind::Contract if has_safety_section(source, at) || is_in_trait_impl(&source.code, at) => None,
        Kind::Contract => Some("its doc comment needs a `# Safety` section that says what the caller must ensure"),
        Kind::Claim if has_safety_comment(source, at) => None,
        Kind::Claim => Some("a `// SAFETY:` comment directly above must say why this is sound"),
    }
}

/// What an `unsafe` means.
enum Kind {
    /// The author claims soundness: a block, an `impl`, an attribute.
    Claim,
    /// The user must ensure something: a function or a trait.
    Contract,
    /// The type of a function pointer.
    Type,
}

fn kind(code: &str, at: usize) -> Kind {
    let (mut word, mut rest) = token(&code[at + "unsafe".len()..]);
    while word == "extern" || word == "\"" {
        (word, rest) = token(rest);
    }
    match word {
        "fn" if token(rest).0 == "(" => Kind::Type,
        "fn" | "trait" => Kind::Contract,
        _ => Kind::Claim,
    }
}

/// `true` if a `SAFETY:` comment is on the line of `at`, or above the statement that it belongs to, with nothing but
/// comments and attributes between.
fn has_safety_comment(source: &Source, at: usize) -> bool {
    let code: Vec<&str> = source.code.lines().map(str::trim).collect();
    let comments: Vec<&str> = source.comments.lines().map(str::trim).collect();
    let has = |line: usize| comments[line].contains("SAFETY:");
    let own = source.line(at) - 1;
    if has(own) {
        return true;
    }
    for line in (0..own).rev() {
        let is_attribute = code[line].starts_with("#[");
        let ends_before = code[line].is_empty() && comments[line].is_empty();
        if ends_before || (!is_attribute && code[line].ends_with([';', '{', '}', ','])) {
            return false;
        }
        if has(line) {
            return true;
        }
    }
    false
}

/// `true` if the doc comment of the item at `at` has a `# Safety` heading.
fn has_safety_section(source: &Source, at: usize) -> bool {
    let comments = &source.comments[previous_item_end(&source.code, at)..at];
    comments.lines().filter_map(|line| line.trim().strip_prefix("///")).any(|line| {
        let line = line.trim_start();
        line.starts_with('#') && line.trim_start_matches('#').trim() == "Safety"
    })
}

/// Where the code before the item at `at` ends: back over its qualifiers and attributes.
fn previous_item_end(code: &str, at: usize) -> usize {
    let mut before = code[..at].trim_end();
    loop {
        let shorter = match before.as_bytes().last() {
            // An attribute, or the brackets of `pub(crate)`.
            Some(b']' | b')') => match opening(before) {
                Some(open) if before[..open].ends_with('#') => &before[..open - 1],
                Some(open) if before[..open].ends_with("pub") => &before[..open],
                _ => return before.len(),
            },
            _ => match ["pub", "const", "async", "$vis"].iter().find_map(|word| before.strip_suffix(word)) {
                Some(shorter) => shorter,
                None => return before.len(),
            },
        };
        before = shorter.trim_end();
    }
}

/// The offset of the bracket that the last byte of `code` closes.
fn opening(code: &str) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, byte) in code.bytes().enumerate().rev() {
        match byte {
            b')' | b']' | b'}' => depth += 1,
            b'(' | b'[' | b'{' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
    }
    None
}

/// `true` inside `impl Trait for Type { .. }`, where the trait's docs hold the contract.
fn is_in_trait_impl(code: &str, at: usize) -> bool {
    let mut blocks = Vec::new();
    for (offset, byte) in code[..at].bytes().enumerate() {
        match byte {
            b'{' => blocks.push(offset),
            b'}' => {
                blocks.pop();
            }
            _ => {}
        }
    }
    let Some(&open) = blocks.last() else { return false };
    let header = header(&code[..open]);
    let implements = words(header, "for").any(|at| token(&header[at + 3..]).0 != "<");
    implements && words(header, "impl").next().is_some()
}

/// The end of `code` from the last `;`, `{` or `}` that stands in no inner brackets.
fn header(code: &str) -> &str {
    let mut depth = 0_usize;
    for (at, byte) in code.bytes().enumerate().rev() {
        match byte {
            b')' | b']' => depth += 1,
            b'(' | b'[' => depth = depth.saturating_sub(1),
            b';' | b'{' | b'}' if depth == 0 => return &code[at + 1..],
            _ => {}
        }
    }
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines of the findings in a file that may contain unsafe code.
    fn lines(text: &str) -> Vec<usize> {
        check(&Source::new("crates/gradus-cpu/src/simd.rs", text)).into_iter().map(|found| found.line).collect()
    }

    fn count(path: &str, text: &str) -> usize {
        check(&Source::new(path, text)).len()
    }

    #[test]
    fn a_block_needs_a_safety_comment() {
        assert_eq!(lines("fn f() {\n    unsafe { g() }\n}"), [2]);
        assert_eq!(lines("// SAFETY: for another line.\n\nunsafe { g() }"), [3]);
        assert_eq!(lines("a(); // SAFETY: for this line.\nunsafe { g() }"), [2]);
        assert_eq!(lines("f(\"SAFETY:\");\nlet x = unsafe { g() };"), [2]);
        assert_eq!(
            lines("match isa {\n    // SAFETY: checked.\n    A => unsafe { a() },\n    B => unsafe { b() },\n}"),
            [4]
        );
    }

    #[test]
    fn a_safety_comment_above_the_statement_is_enough() {
        assert_eq!(lines("// SAFETY: `g` is fine\n// because of that.\nunsafe { g() }"), []);
        assert_eq!(lines("unsafe { g() } // SAFETY: fine."), []);
        assert_eq!(lines("// SAFETY: fine.\n#[allow(x)]\nlet x =\n    unsafe { g() };"), []);
        assert_eq!(lines("// SAFETY: fine.\nlet x = f(\n    unsafe { g() },\n);"), []);
    }

    #[test]
    fn an_impl_or_attribute_needs_a_safety_comment() {
        assert_eq!(lines("unsafe impl Send for X {}"), [1]);
        assert_eq!(lines("// SAFETY: no shared state.\nunsafe impl Send for X {}\nunsafe impl Sync for X {}"), [3]);
        assert_eq!(lines("#[unsafe(no_mangle)]\npub fn f() {}"), [1]);
        assert_eq!(lines("unsafe extern \"C\" {}"), [1]);
    }

    #[test]
    fn a_function_or_trait_needs_a_safety_section() {
        assert_eq!(lines("/// Adds.\npub unsafe fn f() {}"), [2]);
        assert_eq!(lines("// # Safety\nfn g() {}\nunsafe extern \"C\" fn f() {}"), [3]);
        assert_eq!(lines("// # Safety\nunsafe fn f() {}"), [2]);
        assert_eq!(lines("pub unsafe trait T {}"), [1]);
        let documented =
            "fn g() {}\n/// Adds.\n///\n/// # Safety\n/// AVX2.\n#[inline]\n#[target_feature(enable = \"avx2\")]\n";
        for item in ["unsafe fn f() {}", "pub(crate) const unsafe fn f() {}", "pub unsafe extern \"C\" fn f() {}"] {
            assert_eq!(lines(&format!("{documented}{item}")), [], "{item}");
        }
        assert_eq!(lines("/// # Safety\n/// Sound.\npub unsafe trait T {}"), []);
    }

    #[test]
    fn a_trait_holds_the_contract_of_its_implementations() {
        assert_eq!(lines("impl Vector for [u8; 4] {\n    unsafe fn load(&self) {}\n}"), []);
        assert_eq!(lines("impl<F: for<'a> Fn(&'a u8)> X<F> {\n    unsafe fn load(&self) {}\n}"), [2]);
        assert_eq!(lines("trait Vector {\n    unsafe fn load(&self);\n}"), [2]);
    }

    #[test]
    fn prose_and_function_types_need_nothing() {
        assert_eq!(lines("type F = unsafe extern \"C\" fn(*const f32);\n// unsafe { }\nf(\"unsafe {}\");"), []);
    }

    #[test]
    fn unsafe_code_stands_in_its_places_only() {
        let text = "// SAFETY: fine.\nunsafe { g() }";
        for path in [
            "gradus-cpu/src/a.rs",
            "gradus-backend/src/a.rs",
            "gradus-tensor/src/storage.rs",
            "gradus-tensor/src/storage/a.rs",
        ] {
            assert_eq!(count(&format!("crates/{path}"), text), 0, "{path}");
        }
        for path in [
            "crates/gradus-tensor/src/ops/a.rs",
            "crates/gradus-nn/src/a.rs",
            "crates/gradus-nn/tests/a.rs",
            "examples/a.rs",
        ] {
            assert_eq!(count(path, text), 1, "{path}");
        }
    }

    #[test]
    fn roots_of_safe_crates_forbid_unsafe_code() {
        for path in [
            "crates/gradus-nn/src/lib.rs",
            "crates/gradus-cli/src/main.rs",
            "xtask/src/main.rs",
            "crates/a/src/bin/b.rs",
        ] {
            assert_eq!(count(path, "//! Doc.\n#![forbid(unsafe_code)]\n"), 0, "{path}");
            assert_eq!(count(path, "//! Doc.\n// #![forbid(unsafe_code)]\n"), 1, "{path}");
        }
        assert_eq!(count("crates/gradus-cpu/src/lib.rs", "//! Doc.\n"), 0);
        assert_eq!(count("crates/gradus-nn/src/layers.rs", "//! Doc.\n"), 0);
    }
}

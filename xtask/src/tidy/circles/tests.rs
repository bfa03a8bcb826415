//! Tests with small crates, with and without a dependency cycle.

use super::*;

/// The messages for a crate with these files, each given as a path below `src` and its text.
fn found(files: &[(&str, &str)], known: &[(&[&str], &str)]) -> Vec<String> {
    let source = |(path, text): &(&str, &str)| Source::new(&format!("crates/a/src/{path}"), text);
    let sources: Vec<Source> = files.iter().map(source).collect();
    check_with(&sources, known).into_iter().map(|found| found.message).collect()
}

/// Whether a crate has a dependency cycle if `b.rs` uses an item of `a.rs`, and `a.rs` consists of this code.
fn is_circle(a: &str) -> bool {
    let files =
        [("lib.rs", "mod a; mod b; pub use b::B;"), ("a.rs", a), ("b.rs", "use crate::a::A;\npub struct B(A);")];
    !found(&files, &[]).is_empty()
}

#[test]
fn paths_in_use_and_in_code_count() {
    for a in [
        "use crate::b::B;",
        "use super::{b::{B as C}};",
        "use crate::b::*;",
        "use crate::B;",
        "fn f() -> super::b::B {}",
        "use crate::b; fn f() { b::f(1) }",
        "use crate::b::{self}; fn f() { b::f(1) }",
        "mod inner { use super::super::b::B; }",
        "pub use crate::b::B; fn f(b: B) {}",
    ] {
        assert!(is_circle(a), "{a}");
    }
}

#[test]
fn tests_prose_reexports_and_others_do_not_count() {
    for a in [
        "//! [`B`](crate::b::B)\nfn f() { g(\"crate::b::B\") }",
        "#[cfg(test)]\nmod tests { use crate::b::B; }",
        "pub use crate::b::B;",
        "use std::b::B; use other::b::C; fn f(x: impl Sized + use<'_>) { x.b() }",
        "use crate::b::{self}; fn f() { self::g() }",
        "mod inner { use super::A; }",
        "use crate::b;",
        "use",
    ] {
        assert!(!is_circle(a), "{a}");
    }
}

#[test]
fn a_circle_through_others_is_one_finding_that_says_why() {
    let files = [
        ("x/mod.rs", "mod a;\npub use a::A;\nstruct X;"),
        ("x/a.rs", "\nuse crate::y::Y;"),
        ("y.rs", "use crate::z::Z;"),
        ("z.rs", "use crate::x::A;"),
        ("w.rs", "use crate::x::A;"),
    ];
    let message = "a circle of 3 files: crates/a/src/x/a.rs, crates/a/src/y.rs, crates/a/src/z.rs; \
                   crates/a/src/x/a.rs:2 uses y::Y; crates/a/src/y.rs:1 uses z::Z; crates/a/src/z.rs:1 uses x::A";
    assert_eq!(found(&files, &[]), [message]);
}

#[test]
fn a_module_and_its_children_may_be_a_circle() {
    let parent = "mod child;\npub struct P;\n";
    let child = ("p/child.rs", "use super::P;\npub fn f(p: P) {}");
    assert!(found(&[("p/mod.rs", parent), child], &[]).is_empty());
    assert!(found(&[("p.rs", &format!("{parent}pub use child::f;")), child], &[]).is_empty());
    assert_eq!(found(&[("p.rs", &format!("{parent}fn g() {{ child::f(P) }}")), child], &[]).len(), 1);
    let macros = ("p/child.rs", "macro_rules! m { ($n:ident) => { mod $n { use super::*; } }; }");
    assert!(found(&[("p.rs", "mod child;\nfn g() { child::f() }"), macros], &[]).is_empty());
}

#[test]
fn an_exception_covers_all_files_of_its_circle_and_ends_with_it() {
    let files = [("a.rs", "use crate::b::B;"), ("b.rs", "use crate::a::A;")];
    assert!(found(&files, &[(&["a/src/a.rs", "a/src/b.rs"], "why")]).is_empty());
    let part = found(&files, &[(&["a/src/a.rs"], "why")]);
    assert!(part.len() == 2 && part[1].contains("no circle in a/src/a.rs any more"), "{part:?}");
    assert_eq!(found(&files[..1], &[(&["a/src/"], "why")]).len(), 1);
}

//! The slopes at kinks, and the page that says them: `docs/kinks.md` is made from what the operations do.
//!
//! `cargo test -p gradus --test kinks` compares the page; with `GRADUS_WRITE=1` it writes it. `pytorch.py` makes
//! `pytorch.txt`.
#![cfg(feature = "cpu")]
#![allow(clippy::unwrap_used)]

#[path = "../golden/rows.rs"]
mod rows;
mod said;
#[path = "../golden/sources.rs"]
mod sources;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

use gradus::prelude::*;
use said::SAID;
use table::{Kink, SECTIONS, SMOOTH};

static PYTORCH: &str = include_str!("pytorch.txt");

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn all() -> impl Iterator<Item = &'static Kink> {
    SECTIONS.iter().flat_map(|s| s.1)
}

/// The operation of a row.
fn operation(name: &str) -> &str {
    name.split('/').next().unwrap_or(name)
}

/// What is differentiated, and the slopes for each operand.
type Slopes = Vec<Vec<f64>>;

fn leaves(kink: &Kink) -> Vec<Tensor> {
    let device = Device::cpu().unwrap();
    let leaf = |v: &&[f64]| Tensor::from_vec(*v, [v.len()], &device)?.with_grad();
    kink.inputs.iter().map(leaf).collect::<Result<_>>().unwrap()
}

fn slopes(kink: &Kink, options: BackwardOptions) -> Result<Slopes> {
    let points = leaves(kink);
    let y = (kink.call)(&points)?.sum_all()?;
    let refs: Vec<&Tensor> = points.iter().collect();
    let found = if y.requires_grad() { grad(&[&y], &refs, None, options)? } else { vec![None; refs.len()] };
    let values = |(g, p): (Option<Tensor>, &Tensor)| g.map_or_else(|| p.zeros_like(), Ok)?.to_vec::<f64>();
    found.into_iter().zip(&points).map(values).collect()
}

/// The operands and slopes of `pytorch.txt`; no slopes where PyTorch has none.
fn pytorch() -> BTreeMap<&'static str, (Slopes, Option<Slopes>)> {
    let lists = |text: &str| -> Slopes {
        text.split(';').map(|l| l.split_whitespace().map(|v| v.parse().unwrap()).collect()).collect()
    };
    let line = |l: &'static str| {
        let [name, inputs, slopes] = l.split('|').map(str::trim).collect::<Vec<_>>()[..] else { panic!("{l}") };
        (name, (lists(inputs), (slopes != "-").then(|| lists(slopes))))
    };
    PYTORCH.lines().skip(1).map(line).collect()
}

fn close(a: f64, b: f64) -> bool {
    a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= 1e-6 * a.abs()
}

fn same(a: &Slopes, b: &Slopes) -> bool {
    let (a, b) = (a.concat(), b.concat());
    a.len() == b.len() && a.iter().zip(&b).all(|(&a, &b)| close(a, b))
}

/// Numbers to four places, lists after each other.
fn text(slopes: &Slopes) -> String {
    let number = |v: &f64| match v {
        v if v.abs() >= 1e6 && v.is_finite() => format!("{v:.1e}"),
        v => format!("{}", (v * 1e4).round() / 1e4 + 0.0),
    };
    let list = |l: &Vec<f64>| l.iter().map(number).collect::<Vec<_>>().join(", ");
    slopes.iter().map(list).collect::<Vec<_>>().join("; ")
}

/// The page, from what the operations do now.
fn page() -> String {
    let pytorch = pytorch();
    let version = PYTORCH.lines().next().unwrap_or_default().trim_start_matches("# ");
    let mut page = format!(
        "# Slopes at kinks\n\n\
         Where a function has a corner, a step or an infinite slope, a gradient is a choice. This page says which Gradus makes. \
         It is made by `GRADUS_WRITE=1 cargo test -p gradus --test kinks` from what the operations do, and the same test without \
         the variable fails if the page and the code differ, if an operation of [op-matrix.md](op-matrix.md) is neither here \
         nor known to be smooth, or if the documentation of an operation of this page does not have the sentence on its slope that `tests/kinks/said.rs` gives, or the slopes are not those that stand there beside it.\n\n\
         Slopes are those of the sum of the outputs, in f64, for each operand after the other (`;`). *{version}* is what PyTorch gives \
         there (`tests/kinks/pytorch.py`); an empty cell is the same, a dash says that it has no such gradient. \
         Where a slope here is finite, the second derivatives there are numbers too.\n"
    );
    for (title, kinks) in SECTIONS {
        let _ =
            write!(page, "\n## {title}\n\n| operation | where | slope | {version} | why |\n|---|---|---|---|---|\n");
        for kink in *kinks {
            let ours = slopes(kink, BackwardOptions::new()).unwrap();
            let theirs = match pytorch.get(kink.name) {
                Some((_, Some(s))) if same(&ours, s) => String::new(),
                Some((_, Some(s))) => text(s),
                _ => "-".to_owned(),
            };
            let name = operation(kink.name);
            let _ = writeln!(page, "| `{name}` | {} | {} | {theirs} | {} |", kink.place, text(&ours), kink.why);
        }
    }
    page
}

#[test]
fn the_page_says_what_the_operations_do() {
    let path = root().join("docs/kinks.md");
    let page = page();
    let points: BTreeSet<(&str, &str)> = all().map(|k| (operation(k.name), k.place)).collect();
    assert_eq!(points.len(), all().count(), "two rows of one operation name the same place");
    if std::env::var_os("GRADUS_WRITE").is_some() {
        std::fs::write(&path, page).unwrap();
        return;
    }
    let old = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = old.lines().zip(page.lines()).find(|(a, b)| a != b);
    assert!(old == page, "docs/kinks.md and the code differ: {differs:?}; look which is right, then GRADUS_WRITE=1");
}

#[test]
fn the_rows_of_pytorch_are_of_the_same_points() {
    let pytorch = pytorch();
    let (ours, theirs): (BTreeSet<&str>, BTreeSet<&str>) =
        (all().map(|k| k.name).collect(), pytorch.keys().copied().collect());
    assert_eq!(ours, theirs);
    for kink in all() {
        let inputs: Slopes = kink.inputs.iter().map(|v| v.to_vec()).collect();
        assert!(same(&inputs, &pytorch[kink.name].0), "{}: {inputs:?}", kink.name);
    }
}

#[test]
fn slopes_at_kinks_are_the_same_recorded_and_through_checkpoint() {
    for kink in all() {
        let plain = slopes(kink, BackwardOptions::new()).unwrap();
        let recorded = slopes(kink, BackwardOptions::new().create_graph()).unwrap();
        assert!(same(&plain, &recorded), "{}: {plain:?}, recorded {recorded:?}", kink.name);
        let call = kink.call;
        let again = move |x: &[Tensor]| checkpoint(call, &x.iter().collect::<Vec<_>>());
        let points = leaves(kink);
        let y = again(&points).unwrap().sum_all().unwrap();
        let refs: Vec<&Tensor> = points.iter().collect();
        if y.requires_grad() {
            let found = grad(&[&y], &refs, None, BackwardOptions::new()).unwrap();
            let zeros = |(g, p): (Option<Tensor>, &Tensor)| g.unwrap_or(p.zeros_like().unwrap()).to_vec().unwrap();
            let found: Slopes = found.into_iter().zip(&points).map(zeros).collect();
            assert!(same(&plain, &found), "{}: {plain:?}, through checkpoint {found:?}", kink.name);
        }
    }
}

/// Second derivatives at kinks whose slope is finite: NaN would poison every gradient penalty.
#[test]
fn second_derivatives_at_kinks_are_numbers() {
    let mut wrong = vec![];
    for kink in all() {
        let finite = slopes(kink, BackwardOptions::new()).unwrap().concat().iter().all(|v| v.is_finite());
        if !finite {
            continue;
        }
        let points = leaves(kink);
        let refs: Vec<&Tensor> = points.iter().collect();
        let y = (kink.call)(&points).unwrap().sum_all().unwrap();
        if !y.requires_grad() {
            continue;
        }
        let first = grad(&[&y], &refs, None, BackwardOptions::new().create_graph()).unwrap();
        let first: Vec<Tensor> = first.into_iter().flatten().filter(Tensor::requires_grad).collect();
        let seeds: Vec<Tensor> = first.iter().map(|g| g.detach().ones_like().unwrap()).collect();
        let (first, seeds): (Vec<&Tensor>, Vec<&Tensor>) = (first.iter().collect(), seeds.iter().collect());
        let second = grad(&first, &refs, Some(&seeds), BackwardOptions::new()).unwrap();
        for g in second.into_iter().flatten() {
            let g = g.to_vec::<f64>().unwrap();
            if g.iter().any(|v| v.is_nan()) {
                wrong.push(format!("{}: {g:?}", kink.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_differentiable_operation_has_a_row_or_is_smooth() {
    let rows = rows::differentiable();
    let kinked: BTreeSet<String> = all().map(|k| operation(k.name).to_owned()).collect();
    let smooth: BTreeSet<String> = SMOOTH.split_whitespace().map(str::to_owned).collect();
    let both: Vec<_> = kinked.intersection(&smooth).collect();
    let missing: Vec<_> = rows.iter().filter(|r| !kinked.contains(*r) && !smooth.contains(*r)).collect();
    let gone: Vec<_> = smooth.iter().filter(|r| !rows.contains(*r)).collect();
    assert!(
        both.is_empty() && missing.is_empty() && gone.is_empty(),
        "both {both:?}, neither {missing:?}, gone {gone:?}"
    );
}

#[test]
fn the_documentation_of_an_operation_with_a_kink_says_its_slope() {
    let docs = sources::methods();
    let rows = || {
        let groups = SAID.iter().flat_map(|(text, groups)| groups.iter().map(move |g| (*text, g.0, g.1)));
        groups.flat_map(|(text, rows, slopes)| rows.split(' ').map(move |row| (row, text, slopes)))
    };
    let silent = |row: &str, sentence: &str| docs.get(operation(row)).is_none_or(|d| !d.contains(sentence));
    let wrong: Vec<_> = rows().filter(|(row, sentence, _)| silent(row, sentence)).map(|r| (r.0, r.1)).collect();
    assert!(wrong.is_empty(), "the documentation does not say (row, sentence) {wrong:?}");
    let said: BTreeMap<&str, &str> = rows().map(|(row, _, slopes)| (row, slopes)).collect();
    let kinked: BTreeSet<&str> = all().map(|k| k.name).collect();
    assert_eq!(kinked, said.keys().copied().collect(), "rows of the table, and those in said.rs");
    assert_eq!(rows().count(), kinked.len(), "a row stands twice in said.rs");
    for kink in all() {
        let slopes = text(&slopes(kink, BackwardOptions::new()).unwrap());
        assert_eq!(slopes, said[kink.name], "{}: the slopes, and those that its documentation means", kink.name);
    }
}

//! The slopes at kinks, and the page that says them: `docs/kinks.md` is made from what the operations do.
//!
//! `cargo test -p gradus --test kinks` compares the page; with `GRADUS_WRITE=1` it writes it. `pytorch.py` makes
//! `pytorch.txt`.
#![cfg(feature = "cpu")]
#![allow(clippy::unwrap_used)]

#[path = "../golden/rows.rs"]
mod rows;
#[allow(dead_code)] // two programs include this file
#[path = "../golden/samples.rs"]
mod samples;
#[path = "../golden/sources.rs"]
mod sources;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gradus::ops::table::{Kink, TABLE};
use gradus::prelude::*;
use table::{SECTIONS, SMOOTH};

static PYTORCH: &str = include_str!("pytorch.txt");

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

type Call = Arc<dyn Fn(&[Tensor]) -> Result<Tensor> + Send + Sync>;

/// A row of the page.
#[derive(Clone)]
struct Point {
    of: &'static str,
    kink: &'static Kink,
    call: Call,
    /// What the documentation must say.
    says: &'static str,
    /// What `pytorch.py` evaluates, with scalars by name.
    torch: &'static str,
    scalars: &'static [(&'static str, f64)],
}

impl Point {
    fn name(&self) -> String {
        format!("{} at {}", self.of, self.kink.at)
    }
}

/// The sections of the page: samples, of which the documentation has to speak of the slope or the gradient, and rows.
fn sections() -> Vec<(&'static str, Vec<Point>)> {
    let mut points = vec![];
    for sample in samples::all() {
        for kink in sample.kinks {
            let call = Arc::new(move |x: &[Tensor]| Ok((sample.call)(x)?.remove(0)));
            let (torch, scalars) = (sample.torch, sample.scalars);
            points.push(Point { of: sample.name, kink, call, says: "", torch, scalars });
        }
    }
    let mut sections = vec![("Elementwise operations", points)];
    for (title, rows) in SECTIONS {
        let point = |r: &'static table::Row| Point {
            of: r.of,
            kink: &r.kink,
            call: Arc::new(r.call),
            says: r.says,
            torch: r.torch,
            scalars: &[],
        };
        sections.push((title, rows.iter().map(point).collect()));
    }
    sections
}

fn all() -> Vec<Point> {
    sections().into_iter().flat_map(|s| s.1).collect()
}

/// What is differentiated, and the slopes for each operand.
type Slopes = Vec<Vec<f64>>;

fn leaves(point: &Point) -> Vec<Tensor> {
    let device = Device::cpu().unwrap();
    let leaf = |v: &&[f64]| Tensor::from_vec(*v, [v.len()], &device)?.with_grad();
    point.kink.inputs.iter().map(leaf).collect::<Result<_>>().unwrap()
}

fn slopes(point: &Point, options: BackwardOptions) -> Result<Slopes> {
    let points = leaves(point);
    let y = (point.call)(&points)?.sum_all()?;
    let refs: Vec<&Tensor> = points.iter().collect();
    let found = if y.requires_grad() { grad(&[&y], &refs, None, options)? } else { vec![None; refs.len()] };
    let values = |(g, p): (Option<Tensor>, &Tensor)| g.map_or_else(|| p.zeros_like(), Ok)?.to_vec::<f64>();
    found.into_iter().zip(&points).map(values).collect()
}

/// The operands and slopes of `pytorch.txt`; no slopes where PyTorch has none.
fn pytorch() -> BTreeMap<String, (Slopes, Option<Slopes>)> {
    let lists = |text: &str| -> Slopes {
        text.split(';').map(|l| l.split_whitespace().map(|v| v.parse().unwrap()).collect()).collect()
    };
    let line = |l: &'static str| {
        let [name, inputs, slopes] = l.split(" | ").collect::<Vec<_>>()[..] else { panic!("{l}") };
        (name.to_owned(), (lists(inputs), (slopes != "-").then(|| lists(slopes))))
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
         `cargo xtask kinks` makes it from what the operations do. A test fails if the page and the code differ, if an operation \
         of [op-matrix.md](op-matrix.md) is neither here nor known to be smooth, if the slopes are not those written beside \
         the operation, or if its documentation does not speak of them.\n\n\
         Slopes are those of the sum of the outputs, in f64, for each operand after the other (`;`). *{version}* is what PyTorch gives \
         there (`tests/kinks/pytorch.py`); an empty cell is the same, a dash says that it has no such gradient. \
         Where a slope here is finite, the second derivatives there are numbers too.\n"
    );
    for (title, points) in sections() {
        let _ =
            write!(page, "\n## {title}\n\n| operation | where | slope | {version} | why |\n|---|---|---|---|---|\n");
        for point in &points {
            let ours = slopes(point, BackwardOptions::new()).unwrap();
            let theirs = match pytorch.get(&point.name()) {
                Some((_, Some(s))) if same(&ours, s) => String::new(),
                Some((_, Some(s))) => text(s),
                _ => "-".to_owned(),
            };
            let Point { of, kink, .. } = point;
            let _ = writeln!(page, "| `{of}` | {} | {} | {theirs} | {} |", kink.at, text(&ours), kink.why);
        }
    }
    page
}

#[test]
fn the_page_says_what_the_operations_do() {
    let path = root().join("docs/kinks.md");
    let page = page();
    let names: BTreeSet<String> = all().iter().map(Point::name).collect();
    assert_eq!(names.len(), all().len(), "two rows of one operation name the same place");
    if std::env::var_os("GRADUS_WRITE").is_some() {
        std::fs::write(&path, page).unwrap();
        return;
    }
    let old = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = old.lines().zip(page.lines()).find(|(a, b)| a != b);
    assert!(old == page, "docs/kinks.md and the code differ: {differs:?}; if the code is right, `cargo xtask kinks`");
}

/// Writes the points for `pytorch.py`, too.
#[test]
fn the_rows_of_pytorch_are_of_the_same_points() {
    let number = |v: &f64| format!("{v:?}").replace("inf", "Infinity");
    let list = |v: &&[f64]| format!("[{}]", v.iter().map(number).collect::<Vec<_>>().join(", "));
    let line =
        |p: &Point| format!("{:?}: {}", p.name(), samples::json(p.torch, p.kink.inputs.iter().map(list), p.scalars));
    let lines: Vec<String> = all().iter().map(line).collect();
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kinks.json");
    std::fs::write(path, format!("{{{}}}", lines.join(",\n"))).unwrap();

    let pytorch = pytorch();
    let same_points = |p: &Point| {
        let inputs: Slopes = p.kink.inputs.iter().map(|v| v.to_vec()).collect();
        pytorch.get(&p.name()).map_or(p.torch.is_empty(), |theirs| same(&inputs, &theirs.0))
    };
    let stale: Vec<String> = all().iter().filter(|p| !same_points(p)).map(Point::name).collect();
    let names: BTreeSet<String> = all().iter().map(Point::name).collect();
    let gone: Vec<&String> = pytorch.keys().filter(|n| !names.contains(*n)).collect();
    let help = "`cargo xtask bless --python PATH` makes pytorch.txt";
    assert!(stale.is_empty() && gone.is_empty(), "{help}: new or changed {stale:?}, gone {gone:?}");
}

#[test]
fn slopes_at_kinks_are_the_same_recorded_and_through_checkpoint() {
    for kink in &all() {
        let plain = slopes(kink, BackwardOptions::new()).unwrap();
        let recorded = slopes(kink, BackwardOptions::new().create_graph()).unwrap();
        assert!(same(&plain, &recorded), "{}: {plain:?}, recorded {recorded:?}", kink.name());
        let call = kink.call.clone();
        let again = move |x: &[Tensor]| checkpoint(move |x: &[Tensor]| call(x), &x.iter().collect::<Vec<_>>());
        let points = leaves(kink);
        let y = again(&points).unwrap().sum_all().unwrap();
        let refs: Vec<&Tensor> = points.iter().collect();
        if y.requires_grad() {
            let found = grad(&[&y], &refs, None, BackwardOptions::new()).unwrap();
            let zeros = |(g, p): (Option<Tensor>, &Tensor)| g.unwrap_or(p.zeros_like().unwrap()).to_vec().unwrap();
            let found: Slopes = found.into_iter().zip(&points).map(zeros).collect();
            assert!(same(&plain, &found), "{}: {plain:?}, through checkpoint {found:?}", kink.name());
        }
    }
}

/// Second derivatives at kinks whose slope is finite: NaN would poison every gradient penalty.
#[test]
fn second_derivatives_at_kinks_are_numbers() {
    let mut wrong = vec![];
    for kink in &all() {
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
                wrong.push(format!("{}: {g:?}", kink.name()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_differentiable_operation_has_a_row_or_is_smooth() {
    let rows = rows::differentiable();
    let known: BTreeSet<String> = all().iter().map(|p| p.of.to_owned()).collect();
    let samples: BTreeSet<String> = samples::all().iter().map(|s| s.name.to_owned()).collect();
    let smooth: BTreeSet<String> = SMOOTH.split_whitespace().map(str::to_owned).collect();
    let twice: Vec<_> = smooth.iter().filter(|r| known.contains(*r) || samples.contains(*r)).collect();
    let is_known = |r: &&String| known.contains(*r) || samples.contains(*r) || smooth.contains(*r);
    let missing: Vec<_> = rows.iter().filter(|r| !is_known(r)).collect();
    let gone: Vec<_> = smooth.iter().filter(|r| !rows.contains(*r)).collect();
    assert!(
        twice.is_empty() && missing.is_empty() && gone.is_empty(),
        "both {twice:?}, neither {missing:?}, gone {gone:?}"
    );
}

/// An entry of the table without kinks has the same slope from the left and from the right, at numbers where formulas like
/// to change and at its scalars.
#[test]
fn entries_without_kinks_have_no_corners() {
    let device = Device::cpu().unwrap();
    let mut checked = 0;
    let rows = rows::differentiable();
    for entry in TABLE.iter().filter(|e| e.kinks.is_empty() && rows.contains(e.op.name())) {
        let sample = samples::of_entry(entry);
        let mut numbers = vec![-6.0, -3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0, 6.0];
        numbers.extend(sample.scalars.iter().map(|s| s.1));
        let inputs = sample.draw(&device).unwrap();
        let floats: Vec<usize> = (0..inputs.len()).filter(|&i| inputs[i].dtype().is_float()).collect();
        let n = numbers.len();
        // Every number against every other.
        let at = |shift: usize| (0..n * n).map(|k| numbers[if shift == 0 { k / n } else { k % n }]).collect::<Vec<_>>();
        let points: Vec<Tensor> = (0..inputs.len())
            .map(|i| match inputs[i].dtype() {
                DType::Bool => Tensor::full([n * n], true, DType::Bool, &device),
                _ => Tensor::from_vec(at(floats.iter().position(|&f| f == i).unwrap()), [n * n], &device),
            })
            .collect::<Result<_>>()
            .unwrap();
        let value = |i: usize, by: f64| -> Vec<f64> {
            let mut x = points.clone();
            x[i] = x[i].add(by).unwrap();
            (sample.call)(&x).unwrap()[0].to_dtype(DType::F64).unwrap().to_vec().unwrap()
        };
        const STEP: f64 = 1e-6;
        for &i in &floats {
            let (left, middle, right) = (value(i, -STEP), value(i, 0.0), value(i, STEP));
            for k in 0..n * n {
                let (before, after) = ((middle[k] - left[k]) / STEP, (right[k] - middle[k]) / STEP);
                let smooth = !(before - after).is_finite() || (before - after).abs() <= 1e-2 * (1.0 + before.abs());
                let point: Vec<f64> = floats.iter().enumerate().map(|(place, _)| at(place)[k]).collect();
                assert!(smooth, "{} has slopes {before} and {after} at {point:?}, and no kink there", sample.name);
                checked += 1;
            }
        }
    }
    assert!(checked > 1000, "{checked}");
}

#[test]
fn the_documentation_of_an_operation_with_a_kink_says_its_slope() {
    let docs = sources::methods();
    let mut wrong = vec![];
    for point in all() {
        let doc = docs.get(point.of).map_or("", |d| d.as_str());
        let said = match point.says {
            "" => ["slope", "Slope", "gradient"].iter().any(|word| doc.contains(word)),
            sentence => doc.contains(sentence),
        };
        if !said {
            wrong.push(format!("{}: the documentation does not say its slope: {}", point.name(), point.says));
        }
        let slopes = text(&slopes(&point, BackwardOptions::new()).unwrap());
        if slopes != point.kink.slopes {
            wrong.push(format!("{}: the slopes are {slopes}, said are {}", point.name(), point.kink.slopes));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

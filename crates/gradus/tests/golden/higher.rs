//! `docs/higher-order.md`: second derivatives by each combination of forward and reverse mode, compared with PyTorch's.
//!
//! The cases are those of `values.safetensors`. A row of `docs/op-matrix.md` without a case is a failure. `higher.py`
//! computes the same losses, directions and errors with PyTorch, and writes `higher.txt`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use gradus::prelude::*;
use gradus::{jvp, vjp};

use crate::derivatives::{AROUND, Function, Lay, STEPS, central, curved, irregular, weight};
use crate::orders::{Case, cases};
use crate::{Call, calls, file, matrix, rows, values, words};

/// The path of the page, relative to the root.
const PAGE: &str = "docs/higher-order.md";

/// The output of `higher.py`.
static PYTORCH: &str = include_str!("higher.txt");

const MODES: [&str; 4] =
    ["reverse over reverse", "forward over reverse", "reverse over forward", "forward over forward"];

/// The largest permitted error of a product compared with finite differences, relative to their largest element. The
/// scale is at least a thousandth of the gradient's largest element, because smaller differences are inaccurate.
const TOLERANCE: f64 = 1e-6;
const FLOOR: f64 = 1e-3;

/// Cases with random numbers. PyTorch draws different numbers.
const RANDOM: [&str; 2] = ["dropout/half", "scaled_dot_product_attention/dropout"];

#[derive(Debug, Clone, Copy, PartialEq)]
enum Verdict {
    Right,
    Refused,
    /// The relative error.
    Wrong(f64),
}

impl Verdict {
    fn of(error: f64) -> Verdict {
        if error <= TOLERANCE { Verdict::Right } else { Verdict::Wrong(error) }
    }

    fn read(word: &str) -> Verdict {
        match word {
            "right" => Verdict::Right,
            "refused" => Verdict::Refused,
            error => Verdict::Wrong(error.parse().unwrap()),
        }
    }

    fn rank(self) -> f64 {
        match self {
            Verdict::Right => -2.0,
            Verdict::Refused => -1.0,
            Verdict::Wrong(error) => {
                if error.is_nan() {
                    f64::INFINITY
                } else {
                    error
                }
            }
        }
    }

    fn worse(self, other: Verdict) -> Verdict {
        if self.rank() < other.rank() { other } else { self }
    }

    fn cell(self) -> String {
        match self {
            Verdict::Right => "●".into(),
            Verdict::Refused => "·".into(),
            Verdict::Wrong(error) if !error.is_finite() => error.to_string(),
            Verdict::Wrong(error) if error < 0.01 => format!("{error:.0e}"),
            Verdict::Wrong(error) => format!("{:.0} %", 100.0 * error),
        }
    }
}

type Verdicts = [Verdict; 4];

/// A case with the results of both libraries; a case with random numbers has none from PyTorch.
struct Sample<'a> {
    name: &'a str,
    ours: Verdicts,
    theirs: Option<Verdicts>,
}

fn worst(a: Verdicts, b: Verdicts) -> Verdicts {
    [0, 1, 2, 3].map(|n| a[n].worse(b[n]))
}

fn cells(verdicts: Verdicts) -> String {
    verdicts.map(|v| format!(" {} |", v.cell())).concat()
}

fn refs(tensors: &[Tensor]) -> Vec<&Tensor> {
    tensors.iter().collect()
}

/// `sum(weights * outputs)` of a call, as a function of some of its inputs.
fn loss(call: Function<'_>, inputs: &[Tensor], leaves: &[usize], points: &[Tensor]) -> Result<Tensor> {
    let mut x = inputs.to_vec();
    for (&i, p) in leaves.iter().zip(points) {
        x[i] = p.clone();
    }
    let mut total = Tensor::scalar(0.0, x[0].device())?;
    for (i, y) in call(&x)?.iter().enumerate().filter(|(_, y)| y.dtype().is_float()) {
        total = total.add(&y.mul(&weight(y, i)?)?.sum_all()?)?;
    }
    Ok(total)
}

/// All elements of several tensors, one tensor after another.
fn flat(tensors: &[Tensor]) -> Vec<f64> {
    tensors.iter().flat_map(values).collect()
}

fn largest(numbers: &[f64]) -> f64 {
    numbers.iter().fold(0.0, |m: f64, v| m.max(v.abs()))
}

/// The largest difference; NaN if any difference is NaN.
fn farthest(got: &[f64], want: &[f64]) -> f64 {
    let far = got.iter().zip(want).map(|(g, w)| (g - w).abs());
    far.fold(0.0, |m: f64, d| if m.is_nan() || d.is_nan() { f64::NAN } else { m.max(d) })
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn relative(off: f64, scale: f64) -> f64 {
    if off == 0.0 { 0.0 } else { off / scale }
}

/// The errors of the four modes against finite differences of the gradient along `u`. Each is the smallest error over
/// the step sizes. `None` if an operand, the value or the gradient is not finite, or if no output is a float.
fn errors(call: Function<'_>, inputs: &[Tensor], leaves: &[usize]) -> Result<Option<[Result<f64>; 4]>> {
    let x: Vec<Tensor> = leaves.iter().map(|&i| inputs[i].clone()).collect();
    let direction = |salt| leaves.iter().map(|&i| irregular(&inputs[i], i + salt)).collect::<Result<Vec<_>>>();
    let (u, v, one) = (direction(3)?, direction(5)?, Tensor::scalar(1.0, inputs[0].device())?);
    let phi = |p: &[Tensor]| loss(call, inputs, leaves, p);
    let gradient = |p: &[Tensor]| vjp(phi, &refs(p), &[&one]).map(|found| found.1);
    let along = |p: &[Tensor]| jvp(phi, &refs(p), &refs(&u)).map(|found| found.1);
    let products = [
        vjp(gradient, &refs(&x), &refs(&u)).map(|found| flat(&found.1)),
        jvp(gradient, &refs(&x), &refs(&u)).map(|found| flat(&found.1)),
        vjp(along, &refs(&x), &[&one]).map(|found| flat(&found.1)),
        jvp(along, &refs(&x), &refs(&v)).map(|found| flat(&[found.1])),
    ];
    let (g, across) = (flat(&gradient(&x)?), flat(&v));
    let mut all = flat(&x).into_iter().chain(g.iter().copied()).chain([phi(&x)?.item()?]);
    if all.any(|number| !number.is_finite()) || call(inputs)?.iter().all(|y| !y.dtype().is_float()) {
        return Ok(None);
    }
    let mut wants = vec![];
    for h in STEPS {
        let at = |k: f64| {
            let moved = x.iter().zip(&u).map(|(x, u)| x.add(&u.mul(k * h)?)).collect::<Result<Vec<_>>>()?;
            Ok(flat(&gradient(&moved)?))
        };
        let around = AROUND.map(at).into_iter().collect::<Result<Vec<_>>>()?;
        wants.push((0..g.len()).map(|e| central([0, 1, 2, 3].map(|i| around[i][e]), h)).collect::<Vec<f64>>());
    }
    let sizes = |numbers: &[f64]| numbers.iter().zip(&across).map(|(n, v)| (n * v).abs()).sum::<f64>();
    let least = |error: &dyn Fn(&[f64]) -> f64| wants.iter().map(|want| error(want)).fold(f64::NAN, f64::min);
    let whole = |got: Vec<f64>| least(&|want| relative(farthest(&got, want), largest(want).max(FLOOR * largest(&g))));
    let between = |got: Vec<f64>| {
        least(&|want| relative((got[0] - dot(want, &across)).abs(), sizes(want).max(FLOOR * sizes(&g))))
    };
    let [rr, fr, rf, ff] = products;
    Ok(Some([rr.map(whole), fr.map(whole), rf.map(whole), ff.map(between)]))
}

/// The verdicts for Gradus in a case: for the call itself, and for the sine of its outputs, which is nonlinear even if
/// the call is linear.
fn ours(case: &Case<'_>, said: &mut Vec<String>) -> Option<Verdicts> {
    let leaves: Vec<usize> = case.floats().into_iter().filter(|i| case.leaves.contains(i)).collect();
    let mut all = [Verdict::Right; 4];
    for call in [&case.call as Function<'_>, &curved(case.call, Lay::Plain)] {
        match errors(call, &case.inputs, &leaves) {
            Ok(Some(found)) => {
                for (n, error) in found.into_iter().enumerate() {
                    let verdict = error.as_ref().map_or(Verdict::Refused, |&e| Verdict::of(e));
                    if verdict != Verdict::Right {
                        said.push(format!("{}, {}: {error:?}", case.name, MODES[n]));
                    }
                    all[n] = all[n].worse(verdict);
                }
            }
            Ok(None) => return None,
            Err(e) => {
                said.push(format!("{}: {e}", case.name));
                all = [Verdict::Refused; 4];
            }
        }
    }
    Some(all)
}

/// Generates the page. Also returns descriptions of everything that is wrong.
fn page() -> (String, Vec<String>) {
    let (file, metadata, calls, mut wrong) = (file(), words(), calls(), vec![]);
    let version = PYTORCH.lines().next().unwrap_or_default().trim_start_matches("# ");
    let theirs: BTreeMap<&str, Verdicts> = PYTORCH
        .lines()
        .skip(1)
        .map(|line| {
            let (name, words) = line.split_once(" | ").unwrap();
            let all: Vec<Verdict> = words.split(' ').map(Verdict::read).collect();
            (name, all.try_into().unwrap())
        })
        .collect();
    let rows: BTreeSet<String> = rows::differentiable();
    let mut found: BTreeMap<&str, Vec<Sample<'_>>> = BTreeMap::new();
    let all = cases(&file, &metadata, &calls);
    for case in all.iter().filter(|c| rows.contains(c.row) && c.is_smooth()) {
        if let Some(ours) = ours(case, &mut wrong) {
            let theirs = theirs.get(case.name).copied();
            found.entry(case.row).or_default().push(Sample { name: case.name, ours, theirs });
        }
    }
    let other = |name: &&&str| all.iter().all(|c| c.name != **name);
    wrong.extend(theirs.keys().filter(other).map(|n| format!("higher.txt has `{n}`, which is no case: run higher.py")));
    let own: BTreeSet<&str> = crate::samples::all().iter().filter(|s| s.torch.is_empty()).map(|s| s.name).collect();
    let without = |name: &str| RANDOM.contains(&name) || own.contains(name);
    let alone = found.values().flatten().filter(|s| s.theirs.is_none() != without(s.name));
    wrong.extend(alone.map(|s| format!("higher.txt and `{}`: run higher.py", s.name)));
    wrong.extend(rows.iter().filter(|r| !found.contains_key(r.as_str())).map(|r| format!("`{r}` has no case")));
    let samples = || found.values().flatten();
    let count = |of: &dyn Fn(&Sample<'_>) -> Option<Verdict>| {
        let all: Vec<Verdict> = samples().filter_map(of).collect();
        let number = |what: fn(&Verdict) -> bool| all.iter().filter(|v| what(v)).count();
        format!(
            " {} of {} | {} | {} |",
            number(|v| *v == Verdict::Right),
            all.len(),
            number(|v| matches!(v, Verdict::Wrong(_))),
            number(|v| *v == Verdict::Refused)
        )
    };
    let mut text = format!("# Second derivatives in every mode\n\n{}\n\n", introduction(version));
    let _ = write!(
        text,
        "| samples | Gradus: right | wrong | refused | {version}: right | wrong | refused |\n|---|---|---|---|---|---|---|\n"
    );
    for (n, mode) in MODES.iter().enumerate() {
        let _ = writeln!(text, "| {mode} |{}{}", count(&|s| Some(s.ours[n])), count(&|s| s.theirs.map(|t| t[n])));
    }
    let _ = write!(
        text,
        "\n## Samples that PyTorch gets wrong\n\n| sample |{}\n|---|{}\n",
        heads("PyTorch"),
        "---|".repeat(4)
    );
    for Sample { name, theirs, .. } in samples() {
        if let Some(theirs) = theirs.filter(|t| t.iter().any(|v| matches!(v, Verdict::Wrong(_)))) {
            let _ = writeln!(text, "| `{name}` |{}", cells(theirs));
        }
    }
    text += "\n## Operations\n\nThe worst of the samples of each.\n\n";
    let _ =
        write!(text, "| operation | samples |{}{}\n|---|---|{}\n", heads("Gradus"), heads("PyTorch"), "---|".repeat(8));
    for (row, samples) in &found {
        let ours = samples.iter().map(|s| s.ours).fold([Verdict::Right; 4], worst);
        let theirs = samples.iter().filter_map(|s| s.theirs).reduce(worst);
        let theirs = theirs.map_or_else(|| " |".repeat(4), cells);
        let _ = writeln!(text, "| `{row}` | {} |{}{theirs}", samples.len(), cells(ours));
    }
    (text, wrong)
}

fn heads(of: &str) -> String {
    ["RR", "FR", "RF", "FF"].map(|mode| format!(" {of} {mode} |")).concat()
}

fn introduction(version: &str) -> String {
    format!(
        "Made by `cargo xtask higher-order`, which differentiates every operation of [op-matrix.md](op-matrix.md) that has \
         a gradient twice, in each combination of modes, in f64, on the samples of the tests; with `--check` it fails if this \
         page is stale. It always fails if an operation has no sample, or Gradus is not right in one.\n\n\
         What is differentiated is a weighted sum of the outputs, and, so that what is linear bends too, a weighted sum of \
         their sines. *RR* is reverse over reverse, `vjp` of `vjp`; *FR* forward over reverse, `jvp` of `vjp`; *RF* reverse \
         over forward, `vjp` of `jvp`: each gives the Hessian times a vector. *FF* is forward over forward, `jvp` of `jvp`: \
         the Hessian between two vectors. Gradus has no formulas of its own for forward mode: its `jvp` is the derivative \
         of `vjp` for the cotangents, so that all four rest on the gradients of the operations and on theirs.\n\n\
         Each product is compared with central differences (of fourth order, steps 1e-3 to 1e-5) of the same library's \
         gradient. ● differs by at most {TOLERANCE:e} of its largest element (FF: of the sum of the magnitudes of its terms), \
         or of a thousandth of the gradient's where that is more. · is an error. A number is the relative error, the larger \
         of the two sums'. Samples at kinks ([kinks.md](kinks.md)), at infinities and at NaN are left out.\n\n\
         {version} is run by `tests/golden/higher.py`, which makes `higher.txt`: RR by `torch.autograd`, the others by \
         `torch.func`. It has {} samples less: those that draw random numbers.",
        RANDOM.len()
    )
}

#[test]
fn second_derivatives_are_right_in_every_mode() {
    let (text, mut wrong) = page();
    wrong.extend(matrix::compare(PAGE, "higher-order", &text));
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn a_wrong_second_derivative_is_found_in_every_mode() {
    let x = Tensor::from_vec(vec![0.7f64], [1], &Device::cpu().unwrap()).unwrap();
    let half: Call = |x| Ok(vec![x[0].square()?.mul(x[0].detach())?]); // its gradient's gradient is 2 x, not 4 x
    let errors_of = |call: Call| errors(&call, std::slice::from_ref(&x), &[0]).unwrap().unwrap().map(Result::unwrap);
    for error in errors_of(half) {
        assert!((error - 0.5).abs() < 1e-6, "{error}");
    }
    for error in errors_of(|x| Ok(vec![x[0].square()?.mul(&x[0])?])) {
        assert!(error < TOLERANCE, "{error}");
    }
}

#[test]
fn a_product_that_is_no_number_is_wrong() {
    for product in [[f64::NAN, 1.0], [1.0, f64::NAN]] {
        let verdict = Verdict::of(farthest(&product, &[1.0, 1.0]));
        assert_eq!(verdict.cell(), "NaN", "{product:?}");
        assert_eq!(verdict.worse(Verdict::Refused).cell(), "NaN");
    }
}

//! Differentiates every differentiable row of `docs/op-matrix.md` up to the third order: in other layouts, through
//! `checkpoint`, with broadcast inputs and with empty inputs.
//!
//! The calls and inputs are those of `values.safetensors`. A row fails if a check does not reach the third order,
//! unless [`FLAT`] or [`EXCEPTIONS`] names the row with a reason. An unnecessary exception fails too.
//!
//! Most operations are linear, or nearly so: their own second derivative is 0 and cannot reveal an error in the
//! gradient of their gradient. So each call is checked in two forms. In its original form, its gradients are compared
//! with PyTorch's. It is also composed with a sine ([`curved`]), so that no derivative is constant, and each derivative
//! is compared with finite differences of the previous one.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

use gradus::prelude::*;

use crate::derivatives::{
    EVERY, Found, Function, IRREGULAR, LAYOUTS, Lay, Line, Weights, along, bits, checkpointed, curved, derivatives,
    differences, second_differences,
};
use crate::{Call, File, calls, difference, file, one, rows, word, words};

/// The checks of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Check {
    /// The first, second and third derivative along a line, and every element of the second gradient, match finite
    /// differences.
    Third,
    /// With strided inputs and strided incoming gradients, the first and second gradients match those of PyTorch (or,
    /// if it has none, those of contiguous inputs). The three derivatives along the line match those of contiguous
    /// inputs.
    Layouts,
    /// Through `checkpoint`, in every layout, the first gradient has the same bits. So has the second, if the gradient
    /// that enters the region is a constant. If that gradient depends on the inputs too, the parts of the second
    /// gradient are added in another order; it and the derivatives along the line then agree up to rounding.
    Checkpoint,
    /// With an axis broadcast from size 1, gradients are sums over the axis, derivatives along a line match finite
    /// differences, and `checkpoint` gives the same results.
    Broadcast,
    /// With an empty input, three derivatives can be recorded in every layout and through `checkpoint`, or the call
    /// returns a typed error.
    Empty,
}

/// The outcome of a check.
enum Outcome {
    /// The check does not apply to the case.
    Nothing,
    Wrong(String),
    /// The check passed. The number is the highest order whose derivative was recorded and nonzero.
    Reached(usize),
}

impl From<(Option<String>, usize)> for Outcome {
    fn from((wrong, reached): (Option<String>, usize)) -> Outcome {
        wrong.map_or(Outcome::Reached(reached), Outcome::Wrong)
    }
}

/// Rows whose slope is 0 wherever it exists, so there is no higher derivative to record.
const FLAT: &[&str] =
    &["ceil", "floor", "floor_div", "round", "round_decimals", "round_half_away", "sign", "trunc", "trunc_div"];

/// Rows that cannot pass a check, each with the reason.
const EXCEPTIONS: &[(&str, Check, &str)] =
    &[("batch_norm", Check::Empty, "training on fewer than two values a channel is an error: there is no variance")];

/// Cases that cannot be compared with finite differences, each with its reason; other cases cover their rows. Cases
/// named `special` are excluded too: their points are infinities, corners, and numbers so large that no step changes
/// them.
const NOT_SMOOTH: &[(&str, &str)] = &[
    ("maximum/ties", "ties"),
    ("minimum/ties", "ties"),
    ("max/ties", "ties"),
    ("min/ties", "ties"),
    ("max/nan", "ties of NaN"),
    ("sort/ties", "ties"),
    ("sort/descending", "ties"),
    ("unique/ties", "ties"),
    ("matmul/nan", "not finite"),
    ("norm/at_zero", "a kink at 0"),
    ("xlogy/zero", "the logarithm of 0"),
    ("round_half_away/half", "jumps at halves"),
    ("floor_div/python", "jumps at whole quotients"),
    ("embedding/padding", "the padding row has no gradient by definition, though the result depends on it"),
    ("cast/f32", "f32 is too coarse for differences"),
];

/// Float inputs that are labels, which cannot be perturbed: (case, input).
const LABELS: &[(&str, usize)] =
    &[("cosine_embedding_loss", 2), ("hinge_embedding_loss", 1), ("pow/integer_exponents", 1)];

/// Calls in addition to those of the file, each on the inputs of an existing case: (row and name, case, call).
const MORE: &[(&str, &str, Call)] = &[
    ("dropout/half", "abs", one!(|x| x[0].dropout(0.5, &mut Generator::new(7))?.sin())),
    ("cast/f64", "abs", one!(|x| x[0].to_dtype(DType::F64)?.sin())),
    ("cast/f32", "abs", one!(|x| x[0].to_dtype(DType::F32)?.to_dtype(DType::F64)?.sin())),
    ("nan_to_num/numbers", "abs", one!(|x| x[0].nan_to_num(0.0, None, None))),
    ("unique/float", "abs", one!(|x| x[0].unique(true, false, false)?.values.sin())),
    ("unique/ties", "max/ties", one!(|x| x[0].unique(true, false, false)?.values.sin())),
    ("bincount/weights", "diag/vector", |x| {
        let places = Tensor::from_vec(vec![2i64, 0, 2, 1], [4], x[0].device())?.narrow(0, 0, x[0].numel())?;
        Ok(vec![places.bincount(Some(&x[0]), 0)?.sin()?])
    }),
    ("reshape/inferred", "sum", one!(|x| x[0].reshape([x[0].numel()])?.sin())),
    ("expand/leading", "sum", |x| {
        let shape = [&[2], x[0].shape()].concat();
        Ok(vec![x[0].expand(shape)?.sin()?])
    }),
    ("ctc_loss/lengths", "ctc_loss/mean", |x| {
        let (n, s, targets) = (x[1].shape()[0], x[1].shape()[1], x[1].maximum(1)?);
        let log = x[0].log_softmax(2)?;
        Ok(vec![log.ctc_loss(&targets, &vec![x[0].shape()[0]; n], &vec![s; n], 0, true, Reduction::Sum)?])
    }),
    ("scaled_dot_product_attention/dropout", "scaled_dot_product_attention", |x| {
        let mut generator = Generator::new(3);
        let options = AttentionOptions::new().dropout(0.4, &mut generator);
        Ok(vec![x[0].scaled_dot_product_attention(&x[1], &x[2], options)?])
    }),
    ("cdist/inf", "cdist/one", one!(|x| x[0].cdist(&x[1], f64::INFINITY))),
    ("normalize/one", "normalize", one!(|x| x[0].normalize(1.0, 1, 1e-12))),
    ("normalize/inf", "normalize", one!(|x| x[0].normalize(f64::INFINITY, 1, 1e-12))),
    ("var/nothing", "var", one!(|x| x[0].var(&[], 0, false))),
    ("layer_norm/no_bias", "layer_norm", one!(|x| x[0].layer_norm(&[4, 5], x.get(1), None, 1e-5))),
];

/// The calls of [`MORE`] for a row, with their inputs.
pub(crate) fn more(file: &File<'_>, row: &str) -> Vec<(Call, Vec<Tensor>)> {
    let of_row = MORE.iter().filter(|m| m.0.split('/').next() == Some(row));
    of_row.map(|&(_, of, call)| (call, file.inputs(of))).collect()
}

/// One case to check.
pub(crate) struct Case<'a> {
    pub(crate) row: &'a str,
    pub(crate) name: &'a str,
    pub(crate) call: Call,
    pub(crate) inputs: Vec<Tensor>,
    /// The inputs for which the file has gradients.
    pub(crate) leaves: Vec<usize>,
    /// The name in the file, if the file has the gradients of this call.
    golden: Option<&'a str>,
    tolerance: f64,
}

impl Case<'_> {
    fn weights<R>(&self, file: &File<'_>, f: impl FnOnce(&Weights<'_>) -> R) -> R {
        let get = |kind: &str, i: usize| file.get(self.golden?, kind, i);
        f(&Weights { of_output: &|i| get("v", i), of_gradient: &|i| get("u", i) })
    }

    fn run(&self, file: &File<'_>, call: Function<'_>, lay: Lay) -> Result<Found> {
        self.weights(file, |w| derivatives(call, &self.inputs, &self.leaves, w, lay))
    }

    /// Compares the gradients with those of the file, where the file has them.
    fn like_pytorch(&self, file: &File<'_>, found: &Found) -> Option<String> {
        let name = self.golden?;
        let compare = |what: &str, kind: &str, all: &[Tensor]| {
            self.leaves.iter().zip(all).find_map(|(&i, g)| {
                difference(&format!("{what} of input {i}"), g, &file.get(name, kind, i)?, self.tolerance, false)
            })
        };
        compare("the gradient", "g", &found.plain)
            .or_else(|| compare("the recorded gradient", "g", &found.first))
            .or_else(|| compare("the second gradient", "gg", &found.second))
    }

    /// The derivatives of the curved call, with the inputs in a layout.
    fn bent(&self, call: Function<'_>, lay: Lay) -> Result<Found> {
        derivatives(&curved(call, lay), &self.inputs, &self.leaves, &IRREGULAR, lay)
    }

    /// The float inputs that are not labels.
    pub(crate) fn floats(&self) -> Vec<usize> {
        let label = |i: usize| LABELS.contains(&(self.name, i));
        (0..self.inputs.len()).filter(|&i| self.inputs[i].dtype().is_float() && !label(i)).collect()
    }

    fn line(&self, call: Function<'_>, lay: Lay) -> Result<Line> {
        along(&curved(call, lay), &self.inputs, &self.floats(), lay, 0.0, 3)
    }

    fn third(&self) -> Result<Outcome> {
        let call = curved(self.call, Lay::Plain);
        let (wrong, line) = differences(&call, &self.inputs, &self.floats(), 3)?;
        let leaves: Vec<usize> = self.floats().into_iter().filter(|i| self.leaves.contains(i)).collect();
        let wrong = wrong.map_or_else(|| second_differences(&call, &self.inputs, &leaves), |w| Ok(Some(w)))?;
        Ok((wrong, line.reached()).into())
    }

    fn layouts(&self, file: &File<'_>) -> Result<Outcome> {
        let (plain, bent) = (self.run(file, &self.call, Lay::Plain)?, self.bent(&self.call, Lay::Plain)?);
        let line = self.line(&self.call, Lay::Plain)?;
        for lay in LAYOUTS {
            let found = self.run(file, &self.call, lay)?;
            let mut wrong = self.like_pytorch(file, &found).or_else(|| same(&plain, &found, self.tolerance));
            wrong = wrong.or(same(&bent, &self.bent(&self.call, lay)?, self.tolerance));
            if let Some(wrong) = wrong.or(line.difference(&self.line(&self.call, lay)?, self.tolerance)) {
                return Ok(Outcome::Wrong(format!("{lay:?}: {wrong}")));
            }
        }
        Ok(Outcome::Reached(line.reached()))
    }

    fn checkpoint(&self, file: &File<'_>) -> Result<Outcome> {
        let through = checkpointed(self.call);
        let mut reached = 3;
        for lay in EVERY {
            let as_is = identical(&self.run(file, &self.call, lay)?, &self.run(file, &through, lay)?);
            let bent = alike(&self.bent(&self.call, lay)?, &self.bent(&through, lay)?, self.tolerance);
            let (line, again) = (self.line(&self.call, lay)?, self.line(&through, lay)?);
            if let Some(wrong) = as_is.or(bent).or(line.difference(&again, self.tolerance)) {
                return Ok(Outcome::Wrong(format!("{lay:?}: {wrong}")));
            }
            reached = again.reached().min(reached);
        }
        Ok(Outcome::Reached(reached))
    }

    fn broadcast(&self) -> Result<Outcome> {
        let mut reached = None;
        for &leaf in &self.leaves {
            for axis in 0..self.inputs[leaf].rank() {
                if self.inputs[leaf].shape()[axis] > 1 {
                    match self.stretched(leaf, axis)? {
                        Outcome::Reached(order) => reached = reached.max(Some(order)),
                        outcome => return Ok(outcome),
                    }
                }
            }
        }
        Ok(reached.map_or(Outcome::Nothing, Outcome::Reached))
    }

    /// Checks that the gradient of a broadcast input is the sum of the gradients over its copies.
    fn stretched(&self, leaf: usize, axis: usize) -> Result<Outcome> {
        let shape = self.inputs[leaf].shape().to_vec();
        let small = self.inputs[leaf].narrow(axis as isize, 0, 1)?.copy()?;
        let wide = small.expand(&shape)?;
        let seed = crate::derivatives::irregular(&small, 2)?;
        let of_gradient = |i: usize| (i == leaf).then(|| seed.expand(&shape).unwrap());
        let weights = Weights { of_gradient: &of_gradient, ..IRREGULAR };
        let call = curved(self.call, Lay::Plain);
        let mut inputs = self.inputs.clone();
        inputs[leaf] = wide.copy()?;
        let dense = derivatives(&call, &inputs, &self.leaves, &weights, Lay::Plain)?;
        inputs[leaf] = wide;
        let strided = derivatives(&call, &inputs, &self.leaves, &weights, Lay::Plain)?;
        if let Some(wrong) = same(&dense, &strided, self.tolerance) {
            return Ok(Outcome::Wrong(format!("input {leaf} with stride 0 along axis {axis}: {wrong}")));
        }
        inputs[leaf] = small.clone();
        let (raw, wide) = (self.call, shape.clone());
        let stretch = move |x: &[Tensor]| {
            let mut x = x.to_vec();
            x[leaf] = x[leaf].expand(&wide)?;
            raw(&x)
        };
        let (eager, through) = (curved(stretch.clone(), Lay::Plain), curved(checkpointed(stretch), Lay::Plain));
        let of_gradient = |i: usize| (i == leaf).then(|| seed.clone());
        let weights = Weights { of_gradient: &of_gradient, ..IRREGULAR };
        let found = derivatives(&eager, &inputs, &self.leaves, &weights, Lay::Plain)?;
        let again = derivatives(&through, &inputs, &self.leaves, &weights, Lay::Plain)?;
        let summed = |all: &[Tensor]| -> Result<Vec<Tensor>> {
            let sum =
                |(&i, g): (&usize, &Tensor)| if i == leaf { g.sum(&[axis as isize], true) } else { Ok(g.clone()) };
            self.leaves.iter().zip(all).map(sum).collect()
        };
        let want = Found {
            outputs: dense.outputs,
            plain: summed(&dense.plain)?,
            first: summed(&dense.first)?,
            second: summed(&dense.second)?,
        };
        let mut wrong = same(&want, &found, self.tolerance);
        wrong = wrong.or_else(|| alike(&found, &again, self.tolerance).map(|w| format!("checkpoint: {w}")));
        let mut reached = 0;
        if wrong.is_none() && self.is_smooth() {
            let (differs, line) = differences(&eager, &inputs, &self.floats(), 3)?;
            let again = along(&through, &inputs, &self.floats(), Lay::Plain, 0.0, 3)?;
            reached = again.reached();
            wrong = differs.or(line.difference(&again, self.tolerance));
        }
        let wrong = wrong.map(|wrong| format!("input {leaf} stretched along axis {axis}: {wrong}"));
        Ok((wrong, reached).into())
    }

    /// Variants of the inputs with axes of size 0: a single axis of one input, all axes of one size, or the first axis
    /// of every input.
    fn emptied(&self) -> Vec<Vec<Tensor>> {
        let sizes: BTreeSet<usize> = self.inputs.iter().flat_map(|t| t.shape()).copied().filter(|&s| s > 0).collect();
        let axes = || self.inputs.iter().enumerate().flat_map(|(i, t)| (0..t.rank()).map(move |a| (i, a)));
        let mut choices: BTreeSet<Vec<(usize, usize)>> = axes().map(|at| vec![at]).collect();
        choices.extend(sizes.iter().map(|&s| axes().filter(|&(i, a)| self.inputs[i].shape()[a] == s).collect()));
        choices.insert(axes().filter(|&(_, a)| a == 0).collect());
        let empty = |i: usize, t: &Tensor, choice: &[(usize, usize)]| {
            let axes = choice.iter().filter(|c| c.0 == i).map(|c| c.1 as isize);
            axes.fold(t.clone(), |t, a| t.narrow(a, 0, 0).unwrap()).copy().unwrap()
        };
        let all = choices.iter().map(|c| self.inputs.iter().enumerate().map(|(i, t)| empty(i, t, c)).collect());
        all.filter(|x: &Vec<Tensor>| self.leaves.iter().any(|&i| x[i].numel() == 0)).collect()
    }

    fn empty(&self) -> Result<Outcome> {
        let mut reached = None;
        for inputs in self.emptied() {
            let shapes: Vec<&[usize]> = inputs.iter().map(|t| t.shape()).collect();
            if let Err(e) = (self.call)(&inputs) {
                use ErrorKind::*;
                let typed = matches!(
                    e.kind(),
                    ShapeMismatch | Broadcast | InvalidAxis | InvalidArgument | IndexOutOfBounds { .. }
                );
                if !typed {
                    return Ok(Outcome::Wrong(format!("{shapes:?}: {e}")));
                }
                continue;
            }
            match self.emptied_to(&inputs).map_err(|e| e.note(format!("the inputs have shapes {shapes:?}")))? {
                Outcome::Reached(order) => reached = reached.max(Some(order)),
                Outcome::Wrong(wrong) => return Ok(Outcome::Wrong(format!("{shapes:?}: {wrong}"))),
                Outcome::Nothing => {}
            }
        }
        Ok(reached.map_or(Outcome::Nothing, Outcome::Reached))
    }

    /// Checks an empty point. Derivatives have no elements there, so only whether they were recorded is checked.
    fn emptied_to(&self, inputs: &[Tensor]) -> Result<Outcome> {
        let through = checkpointed(self.call);
        let at = |call: Function<'_>, lay| derivatives(&curved(call, lay), inputs, &self.leaves, &IRREGULAR, lay);
        let plain = at(&self.call, Lay::Plain)?;
        for lay in EVERY {
            let found = at(&self.call, lay)?;
            let wrong = same(&plain, &found, self.tolerance).or(alike(&found, &at(&through, lay)?, 0.0));
            if let Some(wrong) = wrong {
                return Ok(Outcome::Wrong(format!("{lay:?}: {wrong}")));
            }
        }
        let (wrong, line) = differences(&curved(self.call, Lay::Plain), inputs, &self.leaves, 3)?;
        Ok((wrong, line.recorded).into())
    }

    pub(crate) fn is_smooth(&self) -> bool {
        !self.name.ends_with("/special") && NOT_SMOOTH.iter().all(|c| c.0 != self.name)
    }

    fn check(&self, check: Check, file: &File<'_>) -> Result<Outcome> {
        match check {
            Check::Third if !self.is_smooth() => Ok(Outcome::Nothing),
            Check::Third => self.third(),
            Check::Layouts => self.layouts(file),
            Check::Checkpoint => self.checkpoint(file),
            Check::Broadcast => self.broadcast(),
            Check::Empty => self.empty(),
        }
    }
}

/// Describes how two runs differ if any bit differs.
fn identical(want: &Found, got: &Found) -> Option<String> {
    let other = bits_of(&want.second) != bits_of(&got.second);
    alike(want, got, 0.0).or_else(|| other.then(|| "the second gradient has other bits".to_owned()))
}

/// Describes how two runs differ. Outputs and first gradients must have the same bits; second gradients must agree
/// within the tolerance.
fn alike(want: &Found, got: &Found, tolerance: f64) -> Option<String> {
    let all = |f: &Found| [&f.outputs, &f.plain, &f.first].map(|all| bits_of(all));
    let other = all(want) != all(got);
    same(want, got, tolerance).or_else(|| other.then(|| "other bits".to_owned()))
}

fn bits_of(all: &[Tensor]) -> Vec<Vec<u64>> {
    all.iter().map(bits).collect()
}

/// Describes how two runs differ.
fn same(want: &Found, got: &Found, tolerance: f64) -> Option<String> {
    let compare = |what: &str, want: &[Tensor], got: &[Tensor]| {
        let all = want.iter().zip(got).enumerate();
        all.filter_map(|(i, (w, g))| difference(&format!("{what} {i}"), g, w, tolerance, false)).next()
    };
    compare("output", &want.outputs, &got.outputs)
        .or_else(|| compare("gradient", &want.plain, &got.plain))
        .or_else(|| compare("recorded gradient", &want.first, &got.first))
        .or_else(|| compare("second gradient", &want.second, &got.second))
}

/// The cases of the file with a float input, and those of [`MORE`].
pub(crate) fn cases<'a>(
    file: &File<'_>,
    metadata: &'a BTreeMap<String, String>,
    calls: &BTreeMap<&'static str, Call>,
) -> Vec<Case<'a>> {
    let mut found = vec![];
    for (name, text) in metadata.iter().filter(|(_, v)| v.starts_with("order=")) {
        let row = name.split('/').next().unwrap();
        let Some(&call) = calls.get(name.as_str()).or_else(|| calls.get(row)) else { continue };
        let inputs = file.inputs(name);
        let golden = word(text, "order=") != "0";
        let leaves: Vec<usize> = match golden {
            true => word(text, "leaves=").split(',').filter_map(|i| i.parse().ok()).collect(),
            false => (0..inputs.len()).filter(|&i| inputs[i].dtype().is_float()).collect(),
        };
        let tolerance = 1e-12 * 10f64.powi(word(text, "loose=").parse().unwrap());
        if !leaves.is_empty() {
            found.push(Case { row, name, call, inputs, leaves, golden: golden.then_some(name), tolerance });
        }
    }
    for &(name, of, call) in MORE {
        let inputs = file.inputs(of);
        let leaves = (0..inputs.len()).filter(|&i| inputs[i].dtype().is_float()).collect();
        let row = name.split('/').next().unwrap();
        let tolerance = if name == "cast/f32" { 1e-6 } else { 1e-12 };
        found.push(Case { row, name, call, inputs, leaves, golden: None, tolerance });
    }
    found
}

/// Runs one check on every case, and fails for every row that does not pass.
fn every_row(check: Check) {
    let (file, metadata, calls) = (file(), words(), calls());
    let cases = cases(&file, &metadata, &calls);
    let mut rows: BTreeSet<String> = rows::differentiable();
    rows.extend(MORE.iter().map(|m| m.0.split('/').next().unwrap().to_owned()));
    let (mut wrong, mut covered) = (vec![], BTreeMap::<&str, usize>::new());
    for case in cases.iter().filter(|c| rows.contains(c.row)) {
        match catch_unwind(AssertUnwindSafe(|| case.check(check, &file))) {
            Err(_) => wrong.push(format!("{}: a panic", case.name)),
            Ok(Err(e)) => wrong.push(format!("{}: {e}", case.name)),
            Ok(Ok(Outcome::Wrong(e))) => wrong.push(format!("{}: {e}", case.name)),
            Ok(Ok(Outcome::Nothing)) => {}
            Ok(Ok(Outcome::Reached(order))) => {
                let best = covered.entry(case.row).or_default();
                *best = order.max(*best);
            }
        }
    }
    for row in &rows {
        let flat = FLAT.contains(&row.as_str());
        let excepted = EXCEPTIONS.iter().any(|e| e.0 == row && e.1 == check);
        match (covered.get(row.as_str()), excepted) {
            (None, false) => wrong.push(format!("`{row}`: no case, and no exception with a reason")),
            (Some(_), true) => wrong.push(format!("`{row}`: is covered and needs no exception")),
            // With empty inputs, a derivative of 0 cannot be distinguished from a missing one, so flat rows are exempt
            // there.
            (Some(&order), _) if order < 3 && !flat || order > 0 && flat && check != Check::Empty => {
                wrong.push(format!("`{row}`: no case beyond order {order}"));
            }
            _ => {}
        }
    }
    let third = covered.values().filter(|&&order| order >= 3).count();
    println!("{check:?}: {third} of {} rows to the third order; {} have slope 0", rows.len(), FLAT.len());
    assert!(wrong.is_empty(), "{check:?}: {} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn every_row_agrees_with_finite_differences_to_the_third_order() {
    every_row(Check::Third);
}

#[test]
fn every_row_is_the_same_in_other_layouts_to_the_third_order() {
    every_row(Check::Layouts);
}

#[test]
fn every_row_is_the_same_through_checkpoint_to_the_third_order() {
    every_row(Check::Checkpoint);
}

#[test]
fn every_row_sums_the_gradients_of_a_stretched_axis_to_the_third_order() {
    every_row(Check::Broadcast);
}

#[test]
fn every_row_takes_inputs_without_elements_to_the_third_order() {
    every_row(Check::Empty);
}

#[test]
fn the_lists_name_what_there_is() {
    let (file, metadata, calls) = (file(), words(), calls());
    let (cases, rows) = (cases(&file, &metadata, &calls), rows::differentiable());
    let named = NOT_SMOOTH.iter().map(|c| c.0).chain(LABELS.iter().map(|l| l.0));
    let gone: Vec<&str> = named.filter(|n| cases.iter().all(|c| c.name != *n)).collect();
    let no_rows: Vec<&str> =
        EXCEPTIONS.iter().map(|e| e.0).chain(FLAT.iter().copied()).filter(|r| !rows.contains(*r)).collect();
    assert!(gone.is_empty() && no_rows.is_empty(), "no such cases {gone:?}, no such rows {no_rows:?}");
}

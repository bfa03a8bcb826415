//! Every differentiable row of `docs/op-matrix.md`, to the third order: in other layouts, through `checkpoint`, with
//! stretched and with empty inputs.
//!
//! The calls and inputs are those of the file. A row that a check does not reach, and that [`EXCEPTIONS`] does not name
//! with a reason, fails; so does an exception that is none.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

use gradus::prelude::*;
use gradus::{ErrorKind, Reduction};

use crate::derivatives::{
    Found, Function, LAYOUTS, Lay, Weights, bits, checkpointed, derivatives, differences, same_along,
};
use crate::{Call, File, calls, difference, file, matrix, one, word, words};

/// What a row is checked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Check {
    /// First and second gradients with strided inputs and strided incoming gradients are those of PyTorch, or, where it
    /// has none, those of contiguous inputs.
    Layouts,
    /// Through `checkpoint` the gradients have the same bits, and the third derivative is the same.
    Checkpoint,
    /// First, second and third derivative along a line, against finite differences.
    Third,
    /// An axis stretched from size 1: gradients are the sums.
    Broadcast,
    /// An input without elements: gradients to the second order, or a typed error.
    Empty,
}

const CHECKS: [Check; 5] = [Check::Layouts, Check::Checkpoint, Check::Third, Check::Broadcast, Check::Empty];

/// Rows that a check does not reach, and why.
const EXCEPTIONS: &[(&str, Check, &str)] =
    &[("batch_norm", Check::Empty, "training on fewer than two values a channel is an error: there is no variance")];

/// Cases without finite differences, and why. Their rows have others.
const NOT_SMOOTH: &[(&str, &str)] = &[
    ("abs/special", "not finite"),
    ("leaky_relu/special", "a kink at 0"),
    ("relu/special", "a kink at 0"),
    ("sign/special", "a jump at 0"),
    ("fmax/special", "ties"),
    ("fmin/special", "ties"),
    ("maximum/special", "ties"),
    ("minimum/special", "ties"),
    ("maximum/ties", "ties"),
    ("minimum/ties", "ties"),
    ("max/ties", "ties"),
    ("min/ties", "ties"),
    ("max/nan", "ties of NaN"),
    ("sort/ties", "ties"),
    ("sort/descending", "ties"),
    ("unique/ties", "ties"),
    ("nan_to_num/special", "jumps at infinities"),
    ("matmul/nan", "not finite"),
    ("norm/at_zero", "a kink at 0"),
    ("round_half_away", "jumps at halves"),
    ("floor_div/python", "jumps at whole quotients"),
    ("embedding/padding", "the padding row has no gradient by definition, though the result depends on it"),
    ("cast/f32", "f32 is too coarse for differences"),
];

/// Float inputs that are labels, which have no neighbours: (case, input).
const LABELS: &[(&str, usize)] =
    &[("cosine_embedding_loss", 2), ("hinge_embedding_loss", 1), ("pow/integer_exponents", 1)];

/// Calls beside those of the file, on the inputs of a case: (row and name, case, call).
const MORE: &[(&str, &str, Call)] = &[
    ("dropout/half", "abs", one!(|x| x[0].dropout(0.5, &mut Generator::new(7))?.sin())),
    ("round_half_away/smooth", "abs", one!(|x| x[0].round_half_away())),
    ("cast/f64", "abs", one!(|x| x[0].to_dtype(DType::F64)?.sin())),
    ("cast/f32", "abs", one!(|x| x[0].to_dtype(DType::F32)?.to_dtype(DType::F64)?.sin())),
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

/// One case to check.
struct Case<'a> {
    row: &'a str,
    name: &'a str,
    call: Call,
    inputs: Vec<Tensor>,
    /// The leaves of the file's gradients.
    leaves: Vec<usize>,
    /// The name in the file, if it has this call's gradients.
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

    /// Whether the values are those of the file, where it has them.
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

    fn layouts(&self, file: &File<'_>, plain: &Found) -> Result<Option<String>> {
        for lay in LAYOUTS {
            let found = self.run(file, &self.call, lay)?;
            let wrong = self.like_pytorch(file, &found).or_else(|| same(plain, &found, self.tolerance));
            if let Some(wrong) = wrong {
                return Ok(Some(format!("{lay:?}: {wrong}")));
            }
        }
        Ok(None)
    }

    fn checkpoint(&self, file: &File<'_>, plain: &Found) -> Result<Option<String>> {
        let through = checkpointed(self.call);
        let found = self.run(file, &through, Lay::Plain)?;
        let all =
            |f: &Found| [&f.outputs[..], &f.plain, &f.first, &f.second].concat().iter().map(bits).collect::<Vec<_>>();
        if all(plain) != all(&found) {
            return Ok(Some(same(plain, &found, 0.0).unwrap_or_else(|| "other bits".to_owned())));
        }
        same_along(&self.call, &through, &self.inputs, &self.leaves)
    }

    fn third(&self) -> Result<Option<String>> {
        let label = |i: usize| LABELS.contains(&(self.name, i));
        let floats = (0..self.inputs.len()).filter(|&i| self.inputs[i].dtype().is_float() && !label(i));
        differences(&self.call, &self.inputs, &floats.collect::<Vec<_>>(), 3)
    }

    /// For each axis of each leaf: the gradient of what is stretched is the sum of the gradients of what it is stretched to.
    fn broadcast(&self) -> Result<Option<Option<String>>> {
        let mut any = false;
        for &leaf in &self.leaves {
            let shape = self.inputs[leaf].shape().to_vec();
            for axis in (0..shape.len()).filter(|&a| shape[a] > 1) {
                any = true;
                let small = self.inputs[leaf].narrow(axis as isize, 0, 1)?.copy()?;
                let wide = small.expand(&shape)?;
                let seed = crate::derivatives::irregular(&small, 2)?;
                let none = |_| None;
                let of_gradient = |i: usize| (i == leaf).then(|| seed.expand(&shape).unwrap());
                let weights = Weights { of_output: &none, of_gradient: &of_gradient };
                let mut inputs = self.inputs.clone();
                inputs[leaf] = wide.copy()?;
                let dense = derivatives(&self.call, &inputs, &self.leaves, &weights, Lay::Plain)?;
                inputs[leaf] = wide;
                let strided = derivatives(&self.call, &inputs, &self.leaves, &weights, Lay::Plain)?;
                if let Some(wrong) = same(&dense, &strided, self.tolerance) {
                    return Ok(Some(Some(format!("input {leaf} with stride 0 along axis {axis}: {wrong}"))));
                }
                inputs[leaf] = small.clone();
                let stretch = |x: &[Tensor]| {
                    let mut x = x.to_vec();
                    x[leaf] = x[leaf].expand(&shape)?;
                    (self.call)(&x)
                };
                let of_gradient = |i: usize| (i == leaf).then(|| seed.clone());
                let weights = Weights { of_output: &none, of_gradient: &of_gradient };
                let found = derivatives(&stretch, &inputs, &self.leaves, &weights, Lay::Plain)?;
                let summed = |all: &[Tensor]| -> Result<Vec<Tensor>> {
                    let sum = |(&i, g): (&usize, &Tensor)| {
                        if i == leaf { g.sum(&[axis as isize], true) } else { Ok(g.clone()) }
                    };
                    self.leaves.iter().zip(all).map(sum).collect()
                };
                let want = Found {
                    outputs: dense.outputs,
                    plain: summed(&dense.plain)?,
                    first: summed(&dense.first)?,
                    second: summed(&dense.second)?,
                };
                if let Some(wrong) = same(&want, &found, self.tolerance) {
                    return Ok(Some(Some(format!("input {leaf} stretched along axis {axis}: {wrong}"))));
                }
            }
        }
        Ok(any.then_some(None))
    }

    /// The inputs with axes of size 0: all axes of one size, and each axis of each input alone.
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

    /// `Some(None)` if at least one empty input was taken and differentiated twice.
    fn empty(&self) -> Result<Option<Option<String>>> {
        let mut any = false;
        for inputs in self.emptied() {
            let shapes: Vec<&[usize]> = inputs.iter().map(|t| t.shape()).collect();
            let none = |_| None;
            let weights = Weights { of_output: &none, of_gradient: &none };
            if let Err(e) = (self.call)(&inputs) {
                use ErrorKind::*;
                let typed = matches!(
                    e.kind(),
                    ShapeMismatch | Broadcast | InvalidAxis | InvalidArgument | IndexOutOfBounds { .. }
                );
                if !typed {
                    return Ok(Some(Some(format!("{shapes:?}: {e}"))));
                }
                continue;
            }
            let found = derivatives(&self.call, &inputs, &self.leaves, &weights, Lay::Plain);
            let found = found.map_err(|e| e.note(format!("the inputs have shapes {shapes:?}")))?;
            let through = derivatives(&checkpointed(self.call), &inputs, &self.leaves, &weights, Lay::Plain)?;
            let wrong = same(&found, &through, self.tolerance).map_or_else(
                || differences(&self.call, &inputs, &self.leaves, 2),
                |wrong| Ok(Some(format!("checkpoint: {wrong}"))),
            );
            if let Some(wrong) = wrong? {
                return Ok(Some(Some(format!("{shapes:?}: {wrong}"))));
            }
            any = true;
        }
        Ok(any.then_some(None))
    }

    /// `None` where the check does not apply to this case, else in words what is wrong.
    fn check(&self, check: Check, file: &File<'_>) -> Result<Option<Option<String>>> {
        match check {
            Check::Layouts => self.layouts(file, &self.run(file, &self.call, Lay::Plain)?).map(Some),
            Check::Checkpoint => self.checkpoint(file, &self.run(file, &self.call, Lay::Plain)?).map(Some),
            Check::Third if NOT_SMOOTH.iter().any(|c| c.0 == self.name) => Ok(None),
            Check::Third => self.third().map(Some),
            Check::Broadcast => self.broadcast(),
            Check::Empty => self.empty(),
        }
    }
}

/// What differs between two runs, in words.
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
fn cases<'a>(
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
        found.push(Case { row, name, call, inputs, leaves, golden: None, tolerance: 1e-12 });
    }
    found
}

#[test]
fn every_differentiable_row_holds_to_the_third_order() {
    let (file, metadata, calls) = (file(), words(), calls());
    let cases = cases(&file, &metadata, &calls);
    let mut rows: BTreeSet<String> = matrix::differentiable();
    rows.extend(MORE.iter().map(|m| m.0.split('/').next().unwrap().to_owned()));
    let (mut wrong, mut covered) = (vec![], BTreeSet::new());
    for case in cases.iter().filter(|c| rows.contains(c.row)) {
        for check in CHECKS {
            let found = catch_unwind(AssertUnwindSafe(|| case.check(check, &file)));
            match found {
                Err(_) => wrong.push(format!("{}: {check:?}: a panic", case.name)),
                Ok(Err(e)) => wrong.push(format!("{}: {check:?}: {e}", case.name)),
                Ok(Ok(Some(Some(e)))) => wrong.push(format!("{}: {check:?}: {e}", case.name)),
                Ok(Ok(Some(None))) => _ = covered.insert((case.row, check)),
                Ok(Ok(None)) => {}
            }
        }
    }
    for row in &rows {
        for check in CHECKS {
            let excepted = EXCEPTIONS.iter().any(|e| e.0 == row && e.1 == check);
            match (covered.contains(&(row.as_str(), check)), excepted) {
                (false, false) => wrong.push(format!("`{row}`: no case for {check:?}, and no exception with a reason")),
                (true, true) => wrong.push(format!("`{row}`: {check:?} is covered and needs no exception")),
                _ => {}
            }
        }
    }
    let known = |name: &str| cases.iter().any(|c| c.name == name);
    let listed = NOT_SMOOTH.iter().map(|c| c.0).chain(LABELS.iter().map(|l| l.0));
    wrong.extend(listed.filter(|n| !known(n)).map(|n| format!("a list names `{n}`, which is no case")));
    let unknown = EXCEPTIONS.iter().map(|e| e.0).filter(|r| !rows.contains(*r));
    wrong.extend(unknown.map(|r| format!("an exception for `{r}`, which is no differentiable row")));
    for check in CHECKS {
        let n = covered.iter().filter(|c| c.1 == check).count();
        println!("{check:?}: {n} of {} rows", rows.len());
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

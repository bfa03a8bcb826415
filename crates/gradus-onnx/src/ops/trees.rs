//! `TreeEnsemble` of the domain `ai.onnx.ml`: decision trees, which the host walks.

use std::collections::HashSet;

use gradus_tensor::{Error, Result};

use crate::graph::{Call, Row, one, row, size, unsupported};
use crate::value::{OnnxValue, device_floats, host_floats};

type Values = Result<Vec<OnnxValue>>;

pub(super) const ROWS: &[Row] = &[row("TreeEnsemble", &[5], trees)];

/// The attribute's integers, none if it is missing.
fn ints<'c>(c: &'c Call<'_>, name: &str) -> Result<&'c [i64]> {
    Ok(c.ints(name)?.unwrap_or_default())
}

/// The attribute's tensor of numbers, as f64.
fn numbers(c: &Call<'_>, name: &str) -> Result<Vec<f64>> {
    match c.value(name)? {
        None => Ok(Vec::new()),
        Some(OnnxValue::Tensor(array)) => array.to_f64(c.device),
        Some(other) => Err(Error::argument("onnx", format!("`{name}` is {}", other.describe()))),
    }
}

fn trees(c: &Call<'_>) -> Values {
    let x = c.tensor(0)?;
    let &[rows, features] = x.shape() else { return Err(Error::shape("onnx", "a matrix of features belongs here")) };
    let (splits, weights) = (numbers(c, "nodes_splits")?, numbers(c, "leaf_weights")?);
    let modes: Vec<f64> = numbers(c, "nodes_modes")?;
    let feature_of = ints(c, "nodes_featureids")?;
    let (on_true, on_false) = (ints(c, "nodes_truenodeids")?, ints(c, "nodes_falsenodeids")?);
    let (true_leaf, false_leaf) = (ints(c, "nodes_trueleafs")?, ints(c, "nodes_falseleafs")?);
    let (targets, roots) = (ints(c, "leaf_targetids")?, ints(c, "tree_roots")?);
    let missing = ints(c, "nodes_missing_value_tracks_true")?;
    let (outputs, how) = (size(c.int("n_targets", 1)?)?, c.int("aggregate_function", 1)?);
    c.skip(&["nodes_hitrates"]);
    if c.int("post_transform", 0)? != 0 {
        return Err(unsupported("TreeEnsemble with a transform after the trees"));
    }
    if rows.saturating_mul(outputs) > 1 << 24 || !(0..=3).contains(&how) {
        return Err(unsupported(format!("{rows} rows of {outputs} targets, aggregated by function {how}")));
    }
    // For each node that tests for membership in a set, the members of its set. NaN separates the sets in the list.
    let mut members: Vec<HashSet<u64>> = Vec::new();
    let values = numbers(c, "membership_values")?;
    let mut sets = values.split(|v| v.is_nan());
    for &mode in &modes {
        let set = if mode == 6.0 { sets.next().unwrap_or_default() } else { &[] };
        members.push(set.iter().map(|v| v.to_bits()).collect());
    }
    let broken = || Error::argument("onnx", "the nodes of a tree do not fit together");
    let leaf = |input: &[f64], root: usize| -> Result<usize> {
        let mut node = root;
        // A path with more steps than there are nodes is a cycle.
        for _ in 0..=modes.len() {
            let at = |list: &[i64]| list.get(node).copied().ok_or_else(broken);
            let value = usize::try_from(at(feature_of)?).ok().and_then(|f| input.get(f)).copied().ok_or_else(broken)?;
            let (split, mode) =
                (splits.get(node).copied().ok_or_else(broken)?, modes.get(node).copied().unwrap_or(-1.0));
            let yes = match mode as i64 {
                0 => value <= split,
                1 => value < split,
                2 => value >= split,
                3 => value > split,
                4 => value == split,
                5 => value != split,
                6 => members.get(node).is_some_and(|set| set.contains(&value.to_bits())),
                other => return Err(Error::argument("onnx", format!("the mode {other} of a node"))),
            };
            let yes = yes || (value.is_nan() && missing.get(node).is_some_and(|&m| m != 0));
            let (next, is_leaf) = if yes { (at(on_true)?, at(true_leaf)?) } else { (at(on_false)?, at(false_leaf)?) };
            node = usize::try_from(next).map_err(|_| broken())?;
            if is_leaf != 0 {
                return Ok(node);
            }
        }
        Err(broken())
    };
    let values = host_floats(&x)?;
    let mut results: Vec<Option<f64>> = Vec::new();
    // At most 2^24.
    results.resize(rows * outputs, None);
    for row in 0..rows {
        let input = values.get(row * features..(row + 1) * features).unwrap_or_default();
        for &root in roots {
            let leaf = leaf(input, size(root)?)?;
            let (target, weight) = (targets.get(leaf).ok_or_else(broken)?, weights.get(leaf).ok_or_else(broken)?);
            let target = size(*target)?;
            if target >= outputs {
                return Err(broken());
            }
            let to = &mut results[row * outputs + target];
            *to = Some(match (*to, how) {
                (None, _) => *weight,
                (Some(old), 2) => old.min(*weight),
                (Some(old), 3) => old.max(*weight),
                (Some(old), _) => old + weight,
            });
        }
    }
    let n = if how == 0 { roots.len().max(1) as f64 } else { 1.0 };
    let results: Vec<f64> = results.into_iter().map(|r| r.unwrap_or(0.0) / n).collect();
    Ok(one(device_floats(&results, &[rows, outputs], x.dtype(), c.device)?))
}

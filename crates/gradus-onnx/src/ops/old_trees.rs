//! `TreeEnsembleRegressor` and `TreeEnsembleClassifier` of `ai.onnx.ml`, which name the nodes of each tree. The host walks
//! the trees.

use std::collections::HashMap;

use gradus_tensor::{DType, Error, Result};

use super::classify::{Features, Labels, Transform, classified, floats, largest, logistic};
use crate::graph::{Call, Row, one, row, size, unsupported};
use crate::value::{OnnxValue, device_floats};

type Values = Result<Vec<OnnxValue>>;

pub(super) const ROWS: &[Row] =
    &[row("TreeEnsembleRegressor", &[1, 3], regressor), row("TreeEnsembleClassifier", &[1, 3], classifier)];

/// A node of a tree.
struct Node<'c> {
    mode: &'c str,
    feature: usize,
    split: f64,
    yes: usize,
    no: usize,
    missing_is_yes: bool,
    /// What a leaf adds to its targets.
    weights: Vec<(usize, f64)>,
}

/// Trees by their nodes.
struct Forest<'c> {
    nodes: Vec<Node<'c>>,
    roots: Vec<usize>,
}

/// The numbers of an attribute, which is a list of floats or a tensor of doubles.
fn numbers(c: &Call<'_>, name: &str) -> Result<Vec<f64>> {
    match c.value(&format!("{name}_as_tensor"))? {
        Some(OnnxValue::Tensor(array)) => array.to_f64(c.device),
        Some(other) => Err(Error::argument("onnx", format!("`{name}_as_tensor` is {}", other.describe()))),
        None => floats(c, name),
    }
}

impl<'c> Forest<'c> {
    /// The trees of a node. The leaves are described by attributes that begin with `of`.
    fn of(c: &Call<'c>, of: &str) -> Result<Forest<'c>> {
        c.skip(&["nodes_hitrates", "nodes_hitrates_as_tensor"]);
        let ints = |name: &str| -> Result<&'c [i64]> { Ok(c.ints(name)?.unwrap_or_default()) };
        let (trees, ids, features) = (ints("nodes_treeids")?, ints("nodes_nodeids")?, ints("nodes_featureids")?);
        let (yes, no) = (ints("nodes_truenodeids")?, ints("nodes_falsenodeids")?);
        let missing = ints("nodes_missing_value_tracks_true")?;
        let (modes, splits) = (c.texts("nodes_modes")?.unwrap_or_default(), numbers(c, "nodes_values")?);
        let n = ids.len();
        if [trees.len(), features.len(), yes.len(), no.len(), modes.len(), splits.len()].iter().any(|&len| len != n) {
            return Err(Error::argument("onnx", format!("the lists of the {n} nodes have other lengths")));
        }
        let places: HashMap<(i64, i64), usize> = (0..n).map(|i| ((trees[i], ids[i]), i)).collect();
        let place = |tree: i64, id: i64| {
            let e = || Error::argument("onnx", format!("tree {tree} has no node {id}"));
            places.get(&(tree, id)).copied().ok_or_else(e)
        };
        let (mut nodes, mut is_child) = (Vec::new(), vec![false; n]);
        for i in 0..n {
            let leaf = modes[i] == "LEAF";
            let (yes, no) = if leaf { (i, i) } else { (place(trees[i], yes[i])?, place(trees[i], no[i])?) };
            if !leaf {
                (is_child[yes], is_child[no]) = (true, true);
            }
            let missing_is_yes = missing.get(i).is_some_and(|&m| m != 0);
            let feature = if leaf { 0 } else { size(features[i])? };
            nodes.push(Node {
                mode: &modes[i],
                feature,
                split: splits[i],
                yes,
                no,
                missing_is_yes,
                weights: Vec::new(),
            });
        }
        let (trees, ids) = (ints(&format!("{of}_treeids"))?, ints(&format!("{of}_nodeids"))?);
        let (targets, weights) = (ints(&format!("{of}_ids"))?, numbers(c, &format!("{of}_weights"))?);
        if ids.len() != trees.len() || targets.len() != trees.len() || weights.len() != trees.len() {
            return Err(Error::argument("onnx", format!("the lists of the {} leaves have other lengths", trees.len())));
        }
        for i in 0..trees.len() {
            nodes[place(trees[i], ids[i])?].weights.push((size(targets[i])?, weights[i]));
        }
        let roots = (0..n).filter(|&i| !is_child[i]).collect();
        Ok(Forest { nodes, roots })
    }

    /// The weights of the leaf that a row of features reaches.
    fn leaf(&self, root: usize, row: &[f64]) -> Result<&[(usize, f64)]> {
        let mut at = root;
        // A path with more steps than there are nodes is a cycle.
        for _ in 0..=self.nodes.len() {
            let node = &self.nodes[at];
            if node.mode == "LEAF" {
                return Ok(&node.weights);
            }
            let missing = || Error::shape("onnx", format!("feature {} of {}", node.feature, row.len()));
            let x = *row.get(node.feature).ok_or_else(missing)?;
            let yes = match node.mode {
                "BRANCH_LEQ" => x <= node.split,
                "BRANCH_LT" => x < node.split,
                "BRANCH_GTE" => x >= node.split,
                "BRANCH_GT" => x > node.split,
                "BRANCH_EQ" => x == node.split,
                "BRANCH_NEQ" => x != node.split,
                other => return Err(Error::argument("onnx", format!("the mode `{other}` of a node"))),
            };
            at = if yes || (x.is_nan() && node.missing_is_yes) { node.yes } else { node.no };
        }
        Err(Error::argument("onnx", "the nodes of a tree form a circle"))
    }

    /// The weights that a row gets for each of `count` targets, aggregated by `f`. `None` where no leaf has a weight.
    fn weights(&self, row: &[f64], count: usize, f: fn(f64, f64) -> f64) -> Result<Vec<Option<f64>>> {
        // At most 2^24, as the callers check.
        let mut sums = vec![None; count];
        for &root in &self.roots {
            for &(target, weight) in self.leaf(root, row)? {
                let wrong = || Error::argument("onnx", format!("target {target} of {count}"));
                let sum = sums.get_mut(target).ok_or_else(wrong)?;
                *sum = Some(sum.map_or(weight, |sum| f(sum, weight)));
            }
        }
        Ok(sums)
    }
}

/// Fails if there are too many scores for lists on the host.
fn check_size(rows: usize, count: usize) -> Result<()> {
    match rows.saturating_mul(count) {
        0..=0x100_0000 => Ok(()),
        _ => Err(unsupported(format!("{rows} rows of {count} scores"))),
    }
}

/// The sum of two weights, rounded to f32 as ONNX Runtime does.
fn sum(a: f64, b: f64) -> f64 {
    f64::from(a as f32 + b as f32)
}

fn regressor(c: &Call<'_>) -> Values {
    let (x, forest, count) = (Features::of(c)?, Forest::of(c, "target")?, size(c.int("n_targets", 1)?)?);
    let (base, transform) = (numbers(c, "base_values")?, Transform::of(c)?);
    check_size(x.rows, count.max(1))?;
    let how = c.text("aggregate_function", "SUM")?;
    let f: fn(f64, f64) -> f64 = match how {
        "SUM" | "AVERAGE" => sum,
        "MIN" => f64::min,
        "MAX" => f64::max,
        other => return Err(Error::argument("onnx", format!("aggregate_function = `{other}`"))),
    };
    let n = if how == "AVERAGE" { forest.roots.len().max(1) as f64 } else { 1.0 };
    let mut values = Vec::new();
    for i in 0..x.rows {
        let sums = forest.weights(x.row(i), count, f)?;
        // Of several targets, those that no leaf has a weight for stay 0.
        let score = |(k, sum): (usize, Option<f64>)| match sum.or((count == 1).then_some(0.0)) {
            Some(sum) => sum / n + base.get(k).copied().unwrap_or(0.0),
            None => 0.0,
        };
        let mut scores: Vec<f64> = sums.into_iter().enumerate().map(score).collect();
        transform.apply(&mut scores);
        values.extend(scores);
    }
    Ok(one(device_floats(&values, &[x.rows, count], DType::F32, c.device)?))
}

fn classifier(c: &Call<'_>) -> Values {
    let labels = Labels::of(c, "classlabels_int64s", "classlabels_strings")?;
    let (x, forest, transform) = (Features::of(c)?, Forest::of(c, "class")?, Transform::of(c)?);
    let (base, count) = (numbers(c, "base_values")?, labels.len());
    check_size(x.rows, count.max(1))?;
    let all = || forest.nodes.iter().flat_map(|n| &n.weights);
    let first = all().next().map(|w| w.0);
    let single = all().all(|w| Some(w.0) == first);
    let two = Two { positive: single && all().all(|w| w.1 >= 0.0), transform };
    let add_to_first = count == 2 && base.len() == 1 && single && first == Some(0);
    if !base.is_empty() && !add_to_first && (count <= 2 || base.len() != count) {
        return Err(unsupported(format!("{} base_values for {count} classes", base.len())));
    }
    let (mut picked, mut scores) = (Vec::new(), Vec::new());
    for i in 0..x.rows {
        let mut sums = forest.weights(x.row(i), count, sum)?;
        for (score, base) in sums.iter_mut().zip(&base) {
            *score = Some(sum(score.unwrap_or(0.0), *base));
        }
        if let [a, b] = sums[..] {
            let (label, row) = two.scores(a, b);
            picked.push(label);
            scores.push(row);
            continue;
        }
        // A class without a score is never the label.
        let least: Vec<f64> = sums.iter().map(|sum| sum.unwrap_or(f64::NEG_INFINITY)).collect();
        picked.push(largest(&least));
        let mut row: Vec<f64> = sums.into_iter().map(|sum| sum.unwrap_or(0.0)).collect();
        transform.apply(&mut row);
        scores.push(row);
    }
    classified(c, &labels, &picked, &scores)
}

/// A classifier of two classes. If only the first has a score, it is the score of the second, as in ONNX Runtime.
struct Two {
    /// Whether all weights are of one class, and none is negative: then scores are probabilities.
    positive: bool,
    transform: Transform,
}

impl Two {
    /// The label, and the scores of both classes.
    fn scores(&self, first: Option<f64>, second: Option<f64>) -> (usize, Vec<f64>) {
        let score = second.or(first).unwrap_or(0.0);
        let label = usize::from(score > if self.positive { 0.5 } else { 0.0 });
        let mut row = match (second, self.transform) {
            (Some(_), _) => vec![first.unwrap_or(0.0), score],
            (None, Transform::Logistic) => return (label, vec![logistic(-score), logistic(score)]),
            (None, _) if self.positive => return (label, vec![1.0 - score, score]),
            (None, _) => return (label, vec![-score, score]),
        };
        self.transform.apply(&mut row);
        (label, row)
    }
}

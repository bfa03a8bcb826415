//! `--cv K`: models that are each trained without one fold of the rows, and tested on it.

use gradus::data::UnknownCategory;
use gradus::data::folds::{k_fold, stratified_k_fold};
use gradus::data::split::Split;
use gradus::prelude::*;
use gradus::tasks::tabular::{Goal, Options, Spec, measure};
use gradus::train::ConfusionMatrix;

use super::held_out::testable;
use super::job::{Metric, Settings};
use super::session::Session;
use super::table_fit::fit;
use crate::output::{complain, say};

/// The results of all folds.
pub(super) struct Folds {
    pub(super) count: usize,
    /// The mean of each metric over the folds, and its standard deviation.
    pub(super) metrics: Vec<(Metric, Metric)>,
    /// The predictions of all rows.
    pub(super) confusion: Option<ConfusionMatrix>,
}

/// Divides the rows into `k` folds with the same share of every class. Rows that could not be predicted from the other
/// folds are tested in none.
pub(super) fn split(table: &Table, spec: &Spec, unknown: UnknownCategory, k: usize, seed: u64) -> Result<Vec<Split>> {
    let splits = folds(table, spec, k, seed)?;
    let splits = splits.into_iter().map(|split| testable(table, spec, unknown, split));
    let splits = splits.collect::<Result<Vec<Split>>>()?;
    let untested = table.len() - splits.iter().map(|split| split.test.len()).sum::<usize>();
    if splits.iter().any(|split| split.test.is_empty()) {
        let m = format!("{}: {} rows leave a fold of {k} without a row to test", table.file(), table.len());
        return Err(Error::argument("train", m).help("use fewer folds (--cv), or --unknown-category none"));
    }
    if untested > 0 {
        complain(&format!(
            "note: {untested} rows are tested in no fold: a value of theirs occurs in no other fold (see \
             --unknown-category)"
        ));
    }
    Ok(splits)
}

fn folds(table: &Table, spec: &Spec, k: usize, seed: u64) -> Result<Vec<Split>> {
    let Goal::Classification { classes } = &spec.goal else {
        return k_fold(table.len(), k, Some(seed)).map_err(|e| e.note(format!("in {}", table.file())));
    };
    let labels = table.column(&spec.target)?.labels(classes)?;
    for (class, name) in classes.iter().enumerate() {
        let count = labels.iter().filter(|&&label| label == class as i64).count();
        if count < k {
            let m = format!(
                "{}: column {:?}: the class {name:?} has {count} rows for {k} folds",
                table.file(),
                spec.target
            );
            return Err(Error::argument("train", m).help("use fewer folds (--cv), or leave out the rows of this class"));
        }
    }
    stratified_k_fold(&labels, k, Some(seed))
}

/// Trains and tests the model of each fold.
pub(super) fn run(
    session: &Session<'_>,
    table: &Table,
    options: &Options,
    target: &str,
    splits: Vec<Split>,
    settings: &Settings,
) -> Result<Folds> {
    let count = splits.len();
    say(&format!("cross-validating with {count} folds of {} rows", table.len()))?;
    let mut measured = Vec::with_capacity(count);
    let mut confusion: Option<ConfusionMatrix> = None;
    for (fold, split) in splits.into_iter().enumerate() {
        let (train, test) = (table.rows(&split.train)?, table.rows(&split.test)?);
        let spec = Spec::fit(&train, target, options.clone())?;
        let seed = Generator::new(settings.seed).fork(100 + fold as u64).next_u64();
        let mut it = fit(&spec, &train, settings, &session.device, seed)?;
        it.trainer = session.team.share(it.trainer);
        if let Some(stop) = &session.stop {
            it.trainer = it.trainer.stop_when(stop.clone());
        }
        let run = it.trainer.fit(&mut it.network, &mut it.optimizer, &it.loader, None, &it.task, &mut [])?;
        if run.stopped {
            return Err(Error::argument("train", "stopped during the cross-validation; nothing is saved"));
        }
        it.network.eval();
        let found = measure(&spec, &it.network, &test, &session.device)?;
        let shown: Vec<String> = found.metrics.iter().map(|m| format!("{} {}", m.name, m.shown())).collect();
        complain(&format!("fold {}/{count}  {}  {:.1} s", fold + 1, shown.join("  "), run.seconds));
        if let Some(own) = &found.confusion {
            let all = match &mut confusion {
                Some(all) => all,
                none => none.insert(ConfusionMatrix::new(own.classes())?),
            };
            for ((truth, predicted), times) in own.pairs() {
                (0..times).try_for_each(|_| all.add(truth as i64, predicted as i64))?;
            }
        }
        measured.push(found.metrics);
    }
    // A metric that a fold does not have is left out.
    let first = measured.first().cloned().unwrap_or_default();
    let metrics = first.iter().filter_map(|metric| {
        let of = |all: &Vec<Metric>| all.iter().find(|other| other.key == metric.key).map(|other| other.value);
        let values: Vec<f64> = measured.iter().map(of).collect::<Option<_>>()?;
        let mean = values.iter().sum::<f64>() / count as f64;
        let spread = (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / count as f64).sqrt();
        let name = format!("{} (spread over folds)", metric.name);
        Some((
            Metric { value: mean, ..metric.clone() },
            Metric { key: format!("{}_std", metric.key), name, value: spread, ..metric.clone() },
        ))
    });
    Ok(Folds { count, metrics: metrics.collect(), confusion })
}

//! The rows of a table that are tested and not trained on.

use std::collections::BTreeSet;

use gradus::data::split::{self, Split};
use gradus::data::{Kind, UnknownCategory};
use gradus::prelude::*;
use gradus::tasks::tabular::{Goal, Spec};

/// The share of the rows that is held out for testing.
const HELD_OUT: f64 = 0.2;

/// The key with which the generator of the split is forked from the seed.
const SPLIT: u64 = 3;

/// The rows to train on, and those to test with.
pub(super) fn held_out(table: &Table, spec: &Spec, unknown: UnknownCategory, seed: u64) -> Result<(Table, Table)> {
    let seed = Generator::new(seed).fork(SPLIT).next_u64();
    let split = match &spec.goal {
        Goal::Classification { classes } => {
            split::stratified(&table.column(&spec.target)?.labels(classes)?, HELD_OUT, seed)?
        }
        Goal::Regression { .. } => split::random(table.len(), HELD_OUT, seed)?,
    };
    let split = testable(table, spec, unknown, split)?;
    if split.train.is_empty() || split.test.is_empty() {
        let m = format!("{}: {} rows are too few to hold 20 % out for the test", table.file(), table.len());
        return Err(Error::argument("train", m).help("give more rows"));
    }
    Ok((table.rows(&split.train)?, table.rows(&split.test)?))
}

/// A split without test rows that could not be predicted, which become training rows: those with a class or, if unknown
/// categories are refused, with a category that no training row has, and those with a value in a column that has none
/// in the training rows.
pub(super) fn testable(table: &Table, spec: &Spec, unknown: UnknownCategory, split: Split) -> Result<Split> {
    let Split { mut train, mut test } = split;
    let is_class = matches!(spec.goal, Goal::Classification { .. });
    let columns = spec.preprocessor.kinds().into_iter().map(|(name, kind)| {
        let is_checked = kind != Kind::Number && unknown == UnknownCategory::Refuse;
        (name, is_checked)
    });
    for (name, is_checked) in columns.chain([(spec.target.clone(), is_class)]) {
        let column = table.column(&name)?;
        let is_known: Box<dyn Fn(String) -> bool> = if is_checked {
            let known: BTreeSet<String> = train.iter().filter_map(|&row| column.text(row)).collect();
            Box::new(move |text| known.contains(&text))
        } else {
            let has_values = train.iter().any(|&row| column.text(row).is_some());
            Box::new(move |_| has_values)
        };
        let (kept, moved): (Vec<usize>, Vec<usize>) =
            test.into_iter().partition(|&row| column.text(row).is_none_or(&is_known));
        test = kept;
        train.extend(moved);
    }
    train.sort_unstable();
    Ok(Split { train, test })
}

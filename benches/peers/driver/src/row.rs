//! What the peers made of one job, and how we stand in it.

use peer_harness::{Goal, Job};

use crate::patience::is_quiet;
use crate::peers::{OURS, Slice};

/// One peer's part of a row.
#[derive(Debug)]
pub enum Cell {
    /// One slice a round.
    Measured(Vec<Slice>),
    /// It has no way to do the job.
    Absent(String),
    /// Its result is not the reference's.
    Wrong(String),
    /// It does not build, or stopped.
    Failed(String),
}

/// The middle of some numbers, the upper one of an even count.
pub fn median(numbers: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = numbers.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

impl Cell {
    /// The median of the rounds.
    pub fn value(&self) -> Option<f64> {
        if let Cell::Measured(slices) = self { median(slices.iter().map(|slice| slice.value)) } else { None }
    }

    pub fn slices(&self) -> &[Slice] {
        if let Cell::Measured(slices) = self { slices } else { &[] }
    }

    /// Why there is no number: a word and the reason.
    pub fn why_not(&self) -> Option<(&'static str, &str)> {
        match self {
            Cell::Measured(_) => None,
            Cell::Absent(reason) => Some(("absent", reason)),
            Cell::Wrong(reason) => Some(("wrong", reason)),
            Cell::Failed(reason) => Some(("failed", reason)),
        }
    }
}

/// One job's cells, one a peer.
#[derive(Debug)]
pub struct Row {
    pub job: Job,
    pub cells: Vec<(&'static str, Cell)>,
}

impl Row {
    pub fn cell(&self, name: &str) -> Option<&Cell> {
        self.cells.iter().find(|(peer, _)| *peer == name).map(|(_, cell)| cell)
    }

    pub fn value_of(&self, name: &str) -> Option<f64> {
        self.cell(name)?.value()
    }

    pub fn ours(&self) -> Option<f64> {
        self.value_of(OURS)
    }

    /// The name and number of the best of the others.
    pub fn fastest(&self) -> Option<(&'static str, f64)> {
        let others = self.cells.iter().filter(|(name, _)| *name != OURS);
        others.filter_map(|(name, cell)| Some((*name, cell.value()?))).min_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// The best other's number by ours.
    pub fn ratio(&self) -> Option<f64> {
        Some(self.fastest()?.1 / self.ours()?)
    }

    /// The median of another's number by ours in each quiet round, or in each round if none was quiet, and whether any was.
    /// Processes that did differently many jobs are not compared.
    pub fn ratio_of_rounds(&self, name: &str) -> Option<(f64, bool)> {
        let rounds = self.cell(name)?.slices().iter().zip(self.cell(OURS)?.slices());
        let alike: Vec<_> = rounds.filter(|(theirs, ours)| theirs.done == ours.done).collect();
        let is_quiet = |(theirs, ours): &&(&Slice, &Slice)| is_quiet(theirs) && is_quiet(ours);
        let any = alike.iter().any(|round| is_quiet(&round));
        let counted = alike.iter().filter(|round| !any || is_quiet(round));
        Some((median(counted.map(|(theirs, ours)| theirs.value / ours.value))?, any))
    }

    /// How much of the goal we reach: 1 and more is all of it.
    pub fn part_of_goal(&self) -> Option<f64> {
        match self.job.goal {
            Goal::Ratio(goal) => Some(self.ratio()? / goal),
            Goal::Milliseconds(goal) => Some(goal * 1e-3 / self.ours()?),
            Goal::Mebibytes(goal) => Some(goal / self.ours()?),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn measured(values: &[f64]) -> Cell {
        let slice = |value: &f64| Slice {
            value: *value,
            least: Some(*value),
            cores: Some(2.0),
            others: Some(0.01),
            ..Slice::default()
        };
        Cell::Measured(values.iter().map(slice).collect())
    }

    /// A row of the first job with this goal.
    pub(crate) fn row(goal: Goal, cells: Vec<(&'static str, Cell)>) -> Row {
        let job = peer_harness::jobs().unwrap().swap_remove(0);
        Row { job: Job { goal, ..job }, cells }
    }

    #[test]
    fn the_fastest_of_the_others_counts() {
        let cells = vec![
            (OURS, measured(&[3.0, 2.0, 9.0])),
            ("torch", measured(&[4.0])),
            ("jax", Cell::Wrong("off".into())),
            ("numr", measured(&[2.4, 2.5])),
        ];
        let row = row(Goal::Ratio(1.25), cells);
        assert_eq!((row.ours(), row.fastest(), row.value_of("jax")), (Some(3.0), Some(("numr", 2.5)), None));
        assert!((row.part_of_goal().unwrap() - 2.5 / 3.0 / 1.25).abs() < 1e-12);
    }

    #[test]
    fn a_limit_needs_no_peer_and_a_ratio_does() {
        let ours = |value| vec![(OURS, measured(&[value])), ("torch", Cell::Absent("no".into()))];
        assert_eq!(row(Goal::Milliseconds(10.0), ours(0.02)).part_of_goal(), Some(0.5));
        assert_eq!(row(Goal::Mebibytes(400.0), ours(200.0)).part_of_goal(), Some(2.0));
        assert_eq!(row(Goal::Ratio(1.0), ours(1.0)).part_of_goal(), None);
        assert_eq!(row(Goal::Ratio(1.0), vec![(OURS, Cell::Failed("x".into()))]).ratio(), None);
    }
}

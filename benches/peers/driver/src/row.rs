//! The results of the peers in one job, and how Gradus compares with them.

use peer_harness::{Goal, Job, median};

use crate::patience::is_quiet;
use crate::peers::{OURS, Slice};

/// One peer's results in a row.
#[derive(Debug)]
pub enum Cell {
    /// One slice per round.
    Measured(Vec<Slice>),
    /// The peer has no way to do the job.
    Absent(String),
    /// The peer's result differs from the reference.
    Wrong(String),
    /// The peer does not build, or it crashed.
    Failed(String),
}

impl Cell {
    /// The median of the rounds.
    pub fn value(&self) -> Option<f64> {
        if let Cell::Measured(slices) = self { median(slices.iter().map(|slice| slice.value)) } else { None }
    }

    pub fn slices(&self) -> &[Slice] {
        if let Cell::Measured(slices) = self { slices } else { &[] }
    }

    /// The number of jobs that a process for all jobs did.
    pub fn done(&self) -> Option<u64> {
        self.slices().first()?.done
    }

    /// Whether other programs used the machine in at least half of the slices, so that the number is unreliable.
    pub fn is_disturbed(&self) -> bool {
        let disturbed = self.slices().iter().filter(|slice| !is_quiet(slice)).count();
        disturbed > 0 && disturbed * 2 >= self.slices().len()
    }

    /// Why there is no number: a keyword and the reason.
    pub fn why_not(&self) -> Option<(&'static str, &str)> {
        match self {
            Cell::Measured(_) => None,
            Cell::Absent(reason) => Some(("absent", reason)),
            Cell::Wrong(reason) => Some(("wrong", reason)),
            Cell::Failed(reason) => Some(("failed", reason)),
        }
    }
}

/// A comparison of our rounds with those of another peer, round by round.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Compared {
    /// The median ratio of the other peer's number to ours. It is taken over the quiet rounds or, if there are none,
    /// over all.
    pub ratio: f64,
    rounds: usize,
    quiet: usize,
}

impl Compared {
    /// Whether enough rounds were quiet to rely on the ratio.
    pub fn is_sure(self) -> bool {
        self.quiet >= self.rounds.min(3)
    }
}

/// The cells of one job, one per peer.
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

    /// The name and number of the best other peer that did as many jobs as ours.
    pub fn fastest(&self) -> Option<(&'static str, f64)> {
        let done = self.cell(OURS).and_then(Cell::done);
        let others = self.cells.iter().filter(|(name, cell)| *name != OURS && (done.is_none() || cell.done() == done));
        others.filter_map(|(name, cell)| Some((*name, cell.value()?))).min_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// The ratio of the best other peer's number to ours.
    pub fn ratio(&self) -> Option<f64> {
        Some(self.fastest()?.1 / self.ours()?)
    }

    /// Compares our rounds with another peer's, leaving out rounds in which the two did different numbers of jobs.
    pub fn compared(&self, name: &str) -> Option<Compared> {
        let rounds = self.cell(name)?.slices().iter().zip(self.cell(OURS)?.slices());
        let alike: Vec<(&Slice, &Slice)> = rounds.filter(|(theirs, ours)| theirs.done == ours.done).collect();
        let is_quiet = |(theirs, ours): &(&Slice, &Slice)| is_quiet(theirs) && is_quiet(ours);
        let quiet = alike.iter().filter(|round| is_quiet(round)).count();
        let counted = alike.iter().filter(|round| quiet == 0 || is_quiet(round));
        let ratio = median(counted.map(|(theirs, ours)| theirs.value / ours.value))?;
        Some(Compared { ratio, rounds: alike.len(), quiet })
    }

    /// The fraction of the goal that we reach. The goal is met if it is at least 1.
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
            ("numr", measured(&[2.4, 2.6])),
        ];
        let row = row(Goal::Ratio(1.25), cells);
        assert_eq!((row.ours(), row.fastest(), row.value_of("jax")), (Some(3.0), Some(("numr", 2.5)), None));
        assert!((row.part_of_goal().unwrap() - 2.5 / 3.0 / 1.25).abs() < 1e-12);
    }

    #[test]
    fn the_memory_of_fewer_jobs_is_not_the_best() {
        let held = |done, value| Cell::Measured(vec![Slice { value, done: Some(done), ..Slice::default() }]);
        let cells = |ours| vec![(OURS, ours), ("burn", held(20, 100.0)), ("torch", held(37, 900.0))];
        assert_eq!(row(Goal::Mebibytes(400.0), cells(held(37, 300.0))).fastest(), Some(("torch", 900.0)));
        assert_eq!(row(Goal::Mebibytes(400.0), cells(held(36, 300.0))).fastest(), None);
    }

    #[test]
    fn a_cell_with_half_its_slices_disturbed_is_marked() {
        let cell = |others: &[f64]| {
            let slice = |others: &f64| Slice { others: Some(*others), ..Slice::default() };
            Cell::Measured(others.iter().map(slice).collect()).is_disturbed()
        };
        assert!(cell(&[0.5, 0.0]) && cell(&[0.5, 0.5, 0.0]));
        assert!(!cell(&[0.5, 0.0, 0.0]) && !cell(&[]));
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

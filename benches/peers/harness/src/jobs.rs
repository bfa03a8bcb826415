//! The jobs and the classes, read from `jobs.txt` and `classes.txt`, which the Python peers read too.

const JOBS: &str = include_str!("../../jobs.txt");
const CLASSES: &str = include_str!("../../classes.txt");

/// What is measured of a job, and the goal.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Goal {
    /// The time of a call; the goal is the least ratio of the fastest peer's time to ours.
    Ratio(f64),
    /// The time from the start of a process to its result; the goal is our longest time.
    Milliseconds(f64),
    /// Memory; the goal is the most that our process may hold.
    Mebibytes(f64),
}

/// One row of the comparison.
#[derive(Debug, Clone)]
pub struct Job {
    pub name: &'static str,
    /// The kind of job, on which a peer matches.
    pub kind: &'static str,
    pub sizes: Vec<usize>,
    pub goal: Goal,
    /// Largest distance of a result from the reference, relative to its norm.
    pub tolerance: f64,
}

impl Job {
    /// How many operations one call does, if the time of one operation is measured.
    pub fn repeats(&self) -> usize {
        if self.kind.starts_with("chain") { self.sizes[1] } else { 1 }
    }

    /// Whether this stands for all jobs in one process.
    pub fn is_all(&self) -> bool {
        self.kind == "all"
    }
}

/// All jobs in the order of the table. A line that is wrong is an error that quotes it.
pub fn jobs() -> Result<Vec<Job>, String> {
    table("jobs.txt", JOBS)
}

/// Classes of shapes beside the jobs, in the order of their table; errors as for [`jobs`].
pub fn classes() -> Result<Vec<Job>, String> {
    table("classes.txt", CLASSES)
}

fn table(name: &str, text: &'static str) -> Result<Vec<Job>, String> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| read(line).ok_or(format!("{name}: {line}"))).collect()
}

fn read(line: &'static str) -> Option<Job> {
    let cells: Vec<&str> = line.split('|').map(str::trim).collect();
    let [name, kind, sizes, goal, tolerance, _] = cells[..] else { return None };
    let sizes = sizes.split(' ').map(str::parse).collect::<Result<_, _>>().ok()?;
    let goal = match goal.split_once(' ') {
        None => Goal::Ratio(goal.parse().ok()?),
        Some((number, "ms")) => Goal::Milliseconds(number.parse().ok()?),
        Some((number, "MiB")) => Goal::Mebibytes(number.parse().ok()?),
        Some(_) => return None,
    };
    Some(Job { name, kind, sizes, goal, tolerance: tolerance.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_reads_and_names_are_unique() {
        let jobs = jobs().unwrap();
        let names: std::collections::BTreeSet<_> = jobs.iter().map(|job| job.name).collect();
        let timed = jobs.iter().filter(|job| matches!(job.goal, Goal::Ratio(_))).count();
        assert_eq!((timed, jobs.len(), names.len()), (36, 38, 38));
        assert_eq!(jobs[0].sizes, [64]);
        assert_eq!(jobs.iter().find(|job| job.kind == "chain").map(Job::repeats), Some(1000));
        assert_eq!(jobs.iter().filter(|job| job.is_all()).count(), 1);
        let classes = classes().unwrap();
        let more: std::collections::BTreeSet<_> = classes.iter().map(|job| job.name).collect();
        assert_eq!((more.len(), more.intersection(&names).count()), (classes.len(), 0));
        assert!(classes.iter().all(|job| job.goal == Goal::Ratio(1.0)));
    }

    #[test]
    fn a_goal_has_a_known_unit() {
        let goal = |line| read(line).map(|job| job.goal);
        assert_eq!(goal("a | k | 1 2 | 10 ms | 1e-4 | w"), Some(Goal::Milliseconds(10.0)));
        assert_eq!(goal("a | k | 1 2 | 400 MiB | 1e-4 | w"), Some(Goal::Mebibytes(400.0)));
        assert_eq!(goal("a | k | 1 2 | 10 s | 1e-4 | w"), None);
        assert_eq!(goal("a | k | x | 1 | 1e-4 | w"), None);
    }
}

//! The jobs and the classes, read from `jobs.txt` and `classes.txt`. The Python peers read these files too.

const JOBS: &str = include_str!("../../jobs.txt");
const CLASSES: &str = include_str!("../../classes.txt");

/// What a job measures, and its goal.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Goal {
    /// The time of a call. The goal is the minimum ratio of the fastest peer's time to ours.
    Ratio(f64),
    /// The time from the start of a process to its result. The goal is our maximum time.
    Milliseconds(f64),
    /// The peak memory of a process. The goal is the maximum for ours.
    Mebibytes(f64),
}

/// One row of the comparison.
#[derive(Debug, Clone)]
pub struct Job {
    pub name: &'static str,
    /// The kind of job, by which a peer decides what to run.
    pub kind: &'static str,
    pub sizes: Vec<usize>,
    pub goal: Goal,
    /// The largest permitted distance of a result from the reference, relative to the norm of the reference.
    pub tolerance: f64,
}

impl Job {
    /// The number of operations in one call, for jobs that report the time of a single operation.
    pub fn repeats(&self) -> usize {
        if self.kind.starts_with("chain") { self.sizes[1] } else { 1 }
    }

    /// Whether this job stands for all jobs in one process.
    pub fn is_all(&self) -> bool {
        self.kind == "all"
    }
}

/// All jobs in the order of the table. If a line is invalid, the error quotes it.
pub fn jobs() -> Result<Vec<Job>, String> {
    table("jobs.txt", JOBS)
}

/// The classes of shapes, which are measured in addition to the jobs, in the order of their table. Errors are those of
/// [`jobs`].
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
        assert_eq!((timed, jobs.len(), names.len()), (44, 46, 46));
        assert_eq!(jobs[0].sizes, [64]);
        assert_eq!(jobs.iter().find(|job| job.kind == "chain").map(Job::repeats), Some(1000));
        assert_eq!(jobs.iter().filter(|job| job.is_all()).count(), 1);
        let classes = classes().unwrap();
        let more: std::collections::BTreeSet<_> = classes.iter().map(|job| job.name).collect();
        assert_eq!((more.len(), more.intersection(&names).count()), (classes.len(), 0));
        let at_least_even = |goal| matches!(goal, Goal::Ratio(ratio) if ratio >= 1.0);
        assert!(classes.iter().all(|job| at_least_even(job.goal)));
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

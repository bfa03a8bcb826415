//! The jobs, read from `jobs.txt`, which the Python peers read too.

const TABLE: &str = include_str!("../../jobs.txt");

/// One row of the comparison.
#[derive(Debug, Clone)]
pub struct Job {
    pub name: &'static str,
    /// What is run; a peer matches on this.
    pub kind: &'static str,
    pub sizes: Vec<usize>,
    /// The least ratio of the fastest peer's time to ours.
    pub goal: f64,
    /// How far a result may lie from the reference, relative to its length.
    pub tolerance: f64,
    pub words: &'static str,
}

impl Job {
    /// How many operations one call does, where the time of one operation is asked for.
    pub fn repeats(&self) -> usize {
        if self.kind.starts_with("chain") { self.sizes[1] } else { 1 }
    }
}

/// All jobs in the order of the table. A line that is wrong is an error that quotes it.
pub fn jobs() -> Result<Vec<Job>, String> {
    TABLE
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| read(line).ok_or(format!("jobs.txt: {line}")))
        .collect()
}

fn read(line: &'static str) -> Option<Job> {
    let cells: Vec<&str> = line.split('|').map(str::trim).collect();
    let [name, kind, sizes, goal, tolerance, words] = cells[..] else { return None };
    let sizes = sizes.split(' ').map(str::parse).collect::<Result<_, _>>().ok()?;
    Some(Job { name, kind, sizes, goal: goal.parse().ok()?, tolerance: tolerance.parse().ok()?, words })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_reads_and_names_are_unique() {
        let jobs = jobs().unwrap();
        let names: std::collections::BTreeSet<_> = jobs.iter().map(|job| job.name).collect();
        assert_eq!((jobs.len(), names.len()), (36, 36));
        assert_eq!(jobs[0].sizes, [64]);
        assert_eq!(jobs.iter().find(|job| job.kind == "chain").map(Job::repeats), Some(1000));
    }
}

//! What a run writes: JSON for programs, a table for people.

use std::fmt::Write;
use std::path::Path;

use peer_harness::Job;
use serde_json::{Map, Value, json};

use crate::peers::{OURS, Program, Slice};

/// Where the table stands in `docs/performance.md`.
const MARKS: [&str; 2] = ["<!-- peers: begin -->\n", "<!-- peers: end -->"];

/// One peer's part of a row.
pub enum Cell {
    /// The median in seconds, those of the rounds, and the most memory held.
    Time { median: f64, rounds: Vec<f64>, peak_kb: u64 },
    /// It has no way to do the job.
    Absent(String),
    /// Its result is not the reference's.
    Wrong(String),
    /// It does not build, or stopped.
    Failed(String),
}

impl Cell {
    pub fn time(slices: &[Slice]) -> Cell {
        let rounds: Vec<f64> = slices.iter().map(|slice| slice.median).collect();
        let mut sorted = rounds.clone();
        sorted.sort_by(f64::total_cmp);
        let median = sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN);
        Cell::Time { median, rounds, peak_kb: slices.iter().map(|slice| slice.peak_kb).max().unwrap_or(0) }
    }

    fn seconds(&self) -> Option<f64> {
        if let Cell::Time { median, .. } = self { Some(*median) } else { None }
    }

    fn text(&self) -> String {
        match self {
            Cell::Time { median, .. } => microseconds(*median),
            Cell::Absent(_) => "-".into(),
            Cell::Wrong(_) => "wrong".into(),
            Cell::Failed(_) => "failed".into(),
        }
    }

    /// What is worth saying below the table.
    fn remark(&self) -> Option<&str> {
        match self {
            Cell::Wrong(reason) | Cell::Failed(reason) => Some(reason),
            _ => None,
        }
    }
}

/// One job's cells in the order of the programs.
pub struct Row {
    pub job: Job,
    pub cells: Vec<Cell>,
}

impl Row {
    fn ours(&self, programs: &[Program]) -> Option<f64> {
        programs.iter().position(|p| p.name == OURS).and_then(|i| self.cells[i].seconds())
    }

    /// The place and time of the fastest of the others.
    fn fastest(&self, programs: &[Program]) -> Option<(usize, f64)> {
        let times = self.cells.iter().enumerate().filter_map(|(i, cell)| Some((i, cell.seconds()?)));
        times.filter(|(i, _)| programs[*i].name != OURS).min_by(|a, b| a.1.total_cmp(&b.1))
    }

    fn ratio(&self, programs: &[Program]) -> Option<f64> {
        Some(self.fastest(programs)?.1 / self.ours(programs)?)
    }
}

fn microseconds(seconds: f64) -> String {
    let t = seconds * 1e6;
    if t < 10.0 { format!("{t:.2}") } else { format!("{t:.0}") }
}

/// One job, for the screen.
pub fn line(programs: &[Program], row: &Row) -> String {
    let mut line = format!("{:45}", row.job.name);
    for (program, cell) in programs.iter().zip(&row.cells) {
        // Writing to a string does not fail.
        let _ = write!(line, " {} {}", program.name, cell.text());
    }
    if let Some(ratio) = row.ratio(programs) {
        let _ = write!(line, "  ratio {ratio:.2}, goal {}", row.job.goal);
    }
    line
}

/// The table and what is said around it.
pub fn markdown(about: &str, programs: &[Program], rows: &[Row]) -> String {
    let names: Vec<&str> = programs.iter().map(|program| program.name).collect();
    let mut text = format!("{about} Microseconds, the fastest peer in bold.\n\n");
    let _ = writeln!(text, "| job | {} | fastest peer / gradus | goal | met |", names.join(" | "));
    let _ = writeln!(text, "|---|{}---|---|---|", "---:|".repeat(names.len()));
    for row in rows {
        let fastest = row.fastest(programs).map(|(i, _)| i);
        let bold =
            |(i, cell): (usize, &Cell)| if Some(i) == fastest { format!("**{}**", cell.text()) } else { cell.text() };
        let cells: Vec<String> = row.cells.iter().enumerate().map(bold).collect();
        let (ratio, met) = match row.ratio(programs) {
            Some(ratio) => (format!("{ratio:.2}"), if ratio >= row.job.goal { "yes" } else { "no" }),
            None => ("-".into(), "-"),
        };
        let _ = writeln!(text, "| {} | {} | {ratio} | {} | {met} |", row.job.name, cells.join(" | "), row.job.goal);
    }
    let ratios: Vec<(f64, f64)> = rows.iter().filter_map(|r| Some((r.ratio(programs)?, r.job.goal))).collect();
    let met = ratios.iter().filter(|(ratio, goal)| ratio >= goal).count();
    let _ = writeln!(text, "\n{met} of {} goals are met.", ratios.len());
    let _ = writeln!(text, "{}", memory(programs, rows));
    let remarks = rows.iter().flat_map(|row| {
        let of = |(p, cell): (&Program, &Cell)| Some(format!("* {}, {}: {}", row.job.name, p.name, cell.remark()?));
        programs.iter().zip(&row.cells).filter_map(of).collect::<Vec<_>>()
    });
    let remarks: Vec<String> = remarks.collect();
    if !remarks.is_empty() {
        let _ = writeln!(text, "\n{}", remarks.join("\n"));
    }
    text
}

/// The most that each peer held in the process of a single job.
fn memory(programs: &[Program], rows: &[Row]) -> String {
    let peak = |i: usize| {
        let of = |row: &Row| {
            if let Cell::Time { peak_kb, .. } = &row.cells[i] { Some((*peak_kb, row.job.name)) } else { None }
        };
        rows.iter().filter_map(of).max()
    };
    let peaks: Vec<String> = programs
        .iter()
        .enumerate()
        .filter_map(|(i, p)| peak(i).map(|(kb, job)| format!("{} {} ({job})", p.name, kb / 1024)))
        .collect();
    format!("Most memory held by a job's process, in MiB: {}.", peaks.join(", "))
}

/// `{job: {peer: seconds, .., "fastest", "ratio_torch", "ratio_fastest", "goal", "rounds"}}`, and `"_run"` about the run.
fn to_json(about: &str, programs: &[Program], rows: &[Row]) -> Value {
    let mut all = Map::from_iter([("_run".to_owned(), json!(about))]);
    for row in rows {
        let mut entry = Map::new();
        let mut rounds_of = Map::new();
        for (program, cell) in programs.iter().zip(&row.cells) {
            let value = match cell {
                Cell::Time { median, rounds, .. } => {
                    rounds_of.insert(program.name.into(), json!(rounds));
                    json!(median)
                }
                Cell::Absent(reason) => json!({ "absent": reason }),
                Cell::Wrong(reason) => json!({ "wrong": reason }),
                Cell::Failed(reason) => json!({ "failed": reason }),
            };
            entry.insert(program.name.into(), value);
        }
        let torch = programs.iter().position(|p| p.name == "torch").and_then(|i| row.cells[i].seconds());
        let ratio_torch = torch.zip(row.ours(programs)).map(|(theirs, ours)| theirs / ours);
        entry.insert("fastest".into(), json!(row.fastest(programs).map(|(i, _)| programs[i].name)));
        entry.insert("ratio_torch".into(), json!(ratio_torch));
        entry.insert("ratio_fastest".into(), json!(row.ratio(programs)));
        entry.insert("goal".into(), json!(row.job.goal));
        entry.insert("rounds".into(), rounds_of.into());
        all.insert(row.job.name.into(), entry.into());
    }
    all.into()
}

fn put(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
}

/// Writes the two files below `target`.
pub fn write(root: &Path, about: &str, programs: &[Program], rows: &[Row]) -> Result<(), String> {
    let target = root.join("target");
    std::fs::create_dir_all(&target).map_err(|e| format!("{}: {e}", target.display()))?;
    put(&target.join("peers.json"), &format!("{:#}\n", to_json(about, programs, rows)))?;
    put(&target.join("peers.md"), &markdown(about, programs, rows))
}

/// Puts the table into the page.
pub fn write_page(root: &Path, table: &str) -> Result<(), String> {
    let path = root.join("docs/performance.md");
    let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let page = between_marks(&text, table).ok_or(format!("{} has no place for the table", path.display()))?;
    put(&path, &page)
}

/// The page with another table between the marks.
fn between_marks(page: &str, table: &str) -> Option<String> {
    let (before, rest) = page.split_once(MARKS[0])?;
    let (_, after) = rest.split_once(MARKS[1])?;
    Some(format!("{before}{}{table}{}{after}", MARKS[0], MARKS[1]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_stands_between_the_marks_changes() {
        let page = format!("a\n{}old\n{}\nb\n", MARKS[0], MARKS[1]);
        assert_eq!(between_marks(&page, "new\n"), Some(format!("a\n{}new\n{}\nb\n", MARKS[0], MARKS[1])));
        assert_eq!(between_marks("no marks", "new"), None);
    }
}

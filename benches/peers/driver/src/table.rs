//! The table for people, on the screen and in `docs/performance.md`.

use std::fmt::Write;
use std::path::Path;

use peer_harness::Goal;

use crate::row::{Cell, Row, median};

/// Where the table stands in `docs/performance.md`.
const MARKS: [&str; 2] = ["<!-- peers: begin -->\n", "<!-- peers: end -->"];
/// The part of all cores' time that others may use in the middle slice of a run that is worth keeping.
const QUIET: f64 = 0.03;

/// Microseconds of a call, milliseconds of a start, MiB of memory.
fn number(goal: Goal, value: f64) -> String {
    let value = match goal {
        Goal::Ratio(_) => value * 1e6,
        Goal::Milliseconds(_) => value * 1e3,
        Goal::Mebibytes(_) => value,
    };
    if value < 10.0 { format!("{value:.2}") } else { format!("{value:.0}") }
}

fn goal(goal: Goal) -> String {
    match goal {
        Goal::Ratio(goal) => format!("{goal}"),
        Goal::Milliseconds(goal) => format!("at most {goal} ms"),
        Goal::Mebibytes(goal) => format!("at most {goal} MiB"),
    }
}

/// A cell's number without its unit, or why there is none.
fn text(row: &Row, cell: &Cell) -> String {
    match (cell.value(), cell.why_not()) {
        (Some(value), _) => number(row.job.goal, value),
        (None, Some(("absent", _)) | None) => "-".into(),
        (None, Some((word, _))) => word.into(),
    }
}

/// A cell with its unit.
pub fn quantity(row: &Row, cell: &Cell) -> String {
    let unit = match row.job.goal {
        Goal::Ratio(_) => " us",
        Goal::Milliseconds(_) => " ms",
        Goal::Mebibytes(_) => " MiB",
    };
    text(row, cell) + if cell.value().is_some() { unit } else { "" }
}

pub fn two_digits(number: Option<f64>) -> String {
    number.map_or("-".into(), |number| format!("{number:.2}"))
}

/// One job, for the screen.
pub fn line(row: &Row) -> String {
    let cells: Vec<String> = row.cells.iter().map(|(name, cell)| format!("{name} {}", text(row, cell))).collect();
    let (ratio, goal) = (two_digits(row.ratio()), goal(row.job.goal));
    format!("{:45} {}  ratio {ratio}, goal {goal}: {}", row.job.name, cells.join(" "), two_digits(row.part_of_goal()))
}

/// Rows of one unit, under a head.
fn block(rows: &[&Row]) -> String {
    let Some(first) = rows.first() else { return String::new() };
    let names: Vec<&str> = first.cells.iter().map(|(name, _)| *name).collect();
    let mut text_of = format!("| job | {} | best peer / gradus | goal | part of the goal |\n", names.join(" | "));
    let _ = writeln!(text_of, "|---|{}---:|---|---:|", "---:|".repeat(names.len()));
    for row in rows {
        let fastest = row.fastest().map(|(name, _)| name);
        let bold = |(name, cell): &(&str, Cell)| {
            if Some(*name) == fastest { format!("**{}**", text(row, cell)) } else { text(row, cell) }
        };
        let cells: Vec<String> = row.cells.iter().map(bold).collect();
        let (ratio, part) = (two_digits(row.ratio()), two_digits(row.part_of_goal()));
        // Writing to a string does not fail.
        let _ = writeln!(
            text_of,
            "| {} | {} | {ratio} | {} | {part} |",
            row.job.name,
            cells.join(" | "),
            goal(row.job.goal)
        );
    }
    text_of
}

/// The tables and what is said around them.
pub fn markdown(about: &str, rows: &[Row]) -> String {
    let (calls, others): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(|row| matches!(row.job.goal, Goal::Ratio(_)));
    let mut text = format!("{about} Microseconds, the fastest peer in bold.\n\n");
    text += &block(&calls);
    if !others.is_empty() {
        let _ = writeln!(text, "\nMilliseconds and MiB, the best peer in bold.\n\n{}", block(&others).trim_end());
    }
    let _ = write!(text, "\n{}\n{}", standing(rows), around(rows));
    text
}

/// What a table is to be read with: who else used the machine, and what went wrong.
pub fn around(rows: &[Row]) -> String {
    let (text, remarks) = (busyness(rows) + &jobs_done(rows), remarks(rows));
    if remarks.is_empty() { text } else { format!("{text}\nWho failed or gave something else:\n{remarks}") }
}

/// How many goals are met, and which are not, the furthest first.
fn standing(rows: &[Row]) -> String {
    let mut parts: Vec<(f64, &str)> = rows.iter().filter_map(|row| Some((row.part_of_goal()?, row.job.name))).collect();
    parts.sort_by(|a, b| a.0.total_cmp(&b.0));
    let missed: Vec<String> =
        parts.iter().filter(|(part, _)| *part < 1.0).map(|(part, name)| format!("{name} {part:.2}")).collect();
    let mut text = format!("{} of {} goals are met.", parts.len() - missed.len(), parts.len());
    if !missed.is_empty() {
        let _ = write!(text, " The others, furthest first: {}.", missed.join(", "));
    }
    text + "\n"
}

fn others(rows: &[Row]) -> Vec<f64> {
    rows.iter()
        .flat_map(|row| &row.cells)
        .flat_map(|(_, cell)| cell.slices())
        .filter_map(|slice| slice.others)
        .collect()
}

/// Whether the machine was quiet enough to keep the numbers.
pub fn is_quiet(rows: &[Row]) -> bool {
    median(others(rows)).is_some_and(|others| others <= QUIET)
}

fn busyness(rows: &[Row]) -> String {
    let others = others(rows);
    let most = others.iter().copied().max_by(f64::total_cmp);
    match median(others).zip(most) {
        Some((median, most)) => format!(
            "While a slice ran, others used {:.0} % of the machine's cores in the middle slice and {:.0} % in the worst.\n",
            median * 100.0,
            most * 100.0
        ),
        None => "The system does not tell whether others used the machine.\n".into(),
    }
}

/// How many jobs the processes did whose memory is compared.
fn jobs_done(rows: &[Row]) -> String {
    let of = |(name, cell): &(&str, Cell)| Some(format!("{name} {}", cell.slices().first()?.done?));
    let done: Vec<String> = rows.iter().flat_map(|row| &row.cells).filter_map(of).collect();
    if done.is_empty() {
        String::new()
    } else {
        format!("Jobs done in the processes of the memory row: {}.\n", done.join(", "))
    }
}

/// What went wrong, one line for a peer and reason however many jobs it was.
fn remarks(rows: &[Row]) -> String {
    let mut all: Vec<(&str, &str, Vec<&str>)> = Vec::new();
    for row in rows {
        for (name, cell) in &row.cells {
            let Some(("wrong" | "failed", reason)) = cell.why_not() else { continue };
            match all.iter_mut().find(|(peer, why, _)| peer == name && *why == reason) {
                Some((_, _, jobs)) => jobs.push(row.job.name),
                None => all.push((name, reason, vec![row.job.name])),
            }
        }
    }
    all.iter().map(|(peer, reason, jobs)| format!("* {peer}, {}: {reason}\n", jobs.join(", "))).collect()
}

/// Puts the table into the page.
pub fn write_page(root: &Path, table: &str) -> Result<(), String> {
    let path = root.join("docs/performance.md");
    let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let page = between_marks(&text, table).ok_or(format!("{} has no place for the table", path.display()))?;
    std::fs::write(&path, page).map_err(|e| format!("{}: {e}", path.display()))
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
    use crate::peers::OURS;
    use crate::row::tests::{measured, row};

    #[test]
    fn a_table_shows_losses_failures_and_absences() {
        let rows = [
            row(
                Goal::Ratio(1.0),
                vec![
                    (OURS, measured(&[12e-6])),
                    ("torch", measured(&[9e-6])),
                    ("jax", Cell::Failed("it broke".into())),
                    ("numr", Cell::Absent("no".into())),
                ],
            ),
            row(Goal::Milliseconds(10.0), vec![(OURS, measured(&[5e-3])), ("torch", measured(&[2.0]))]),
        ];
        let text = markdown("A machine.", &rows);
        let expected = "\
A machine. Microseconds, the fastest peer in bold.

| job | gradus | torch | jax | numr | best peer / gradus | goal | part of the goal |
|---|---:|---:|---:|---:|---:|---|---:|
| gemm_f32_64 | 12 | **9.00** | failed | - | 0.75 | 1 | 0.75 |

Milliseconds and MiB, the best peer in bold.

| job | gradus | torch | best peer / gradus | goal | part of the goal |
|---|---:|---:|---:|---|---:|
| gemm_f32_64 | 5.00 | **2000** | 400.00 | at most 10 ms | 2.00 |

1 of 2 goals are met. The others, furthest first: gemm_f32_64 0.75.

While a slice ran, others used 1 % of the machine's cores in the middle slice and 1 % in the worst.

Who failed or gave something else:
* jax, gemm_f32_64: it broke
";
        assert_eq!(text, expected);
        assert!(is_quiet(&rows) && !is_quiet(&[]));
        assert!(line(&rows[0]).ends_with("gradus 12 torch 9.00 jax failed numr -  ratio 0.75, goal 1: 0.75"));
    }

    #[test]
    fn one_reason_is_told_once() {
        let failing = || row(Goal::Ratio(1.0), vec![("jax", Cell::Failed("no Python".into()))]);
        let rows = [failing(), failing()];
        assert_eq!(remarks(&rows), "* jax, gemm_f32_64, gemm_f32_64: no Python\n");
    }

    #[test]
    fn only_what_stands_between_the_marks_changes() {
        let page = format!("a\n{}old\n{}\nb\n", MARKS[0], MARKS[1]);
        assert_eq!(between_marks(&page, "new\n"), Some(format!("a\n{}new\n{}\nb\n", MARKS[0], MARKS[1])));
        assert_eq!(between_marks("no marks", "new"), None);
    }

    #[test]
    fn the_page_has_a_place_for_the_table() {
        let page = std::fs::read_to_string(crate::root().join("docs/performance.md")).unwrap();
        assert!(between_marks(&page, "").is_some());
    }
}

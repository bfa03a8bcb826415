//! The table for human readers, on the screen and in `docs/performance.md`.

use std::fmt::Write;
use std::path::Path;

use peer_harness::{Goal, median};

use crate::patience;
use crate::peers::{OURS, Slice};
use crate::row::{Cell, Row};

/// The markers around the table in `docs/performance.md`.
const MARKS: [&str; 2] = ["<!-- peers: begin -->\n", "<!-- peers: end -->"];
/// The limits for a run that is worth keeping: the share of the cores' time that other programs use in the median
/// slice, and the share of disturbed slices.
const QUIET: f64 = 0.03;
const DISTURBED: f64 = 0.1;

/// A number as text: microseconds of a call, milliseconds of a start, or MiB of memory.
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

/// A cell's number without its unit. It is marked if other programs disturbed it. Without a number, the reason is
/// shown.
fn text(row: &Row, cell: &Cell) -> String {
    match (cell.value(), cell.why_not()) {
        (Some(value), _) => number(row.job.goal, value) + if cell.is_disturbed() { "~" } else { "" },
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

/// The line on the screen for one job.
pub fn line(row: &Row) -> String {
    let cells: Vec<String> = row.cells.iter().map(|(name, cell)| format!("{name} {}", text(row, cell))).collect();
    let (ratio, goal) = (two_digits(row.ratio()), goal(row.job.goal));
    format!("{:45} {}  ratio {ratio}, goal {goal}: {}", row.job.name, cells.join(" "), two_digits(row.part_of_goal()))
}

/// A table with a header, for rows of the same unit.
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

/// The tables and the text around them.
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

/// Notes to a table: how much other programs used the machine, and what went wrong.
pub fn around(rows: &[Row]) -> String {
    let (text, remarks) = (busyness(rows) + &jobs_done(rows), remarks(rows));
    if remarks.is_empty() { text } else { format!("{text}\nWho failed or gave something else:\n{remarks}") }
}

/// How many goals are met, and which are not, the furthest from its goal first. A goal without a number is not met.
fn standing(rows: &[Row]) -> String {
    // NaN does not meet a goal.
    let part = |row: &Row| row.part_of_goal().filter(|part| !part.is_nan()).unwrap_or(0.0);
    let mut missed: Vec<&Row> = rows.iter().filter(|row| part(row) < 1.0).collect();
    missed.sort_by(|a, b| part(a).total_cmp(&part(b)));
    let missed: Vec<String> =
        missed.iter().map(|row| format!("{} {}", row.job.name, two_digits(row.part_of_goal()))).collect();
    let mut text = format!("{} of {} goals are met.", rows.len() - missed.len(), rows.len());
    if !missed.is_empty() {
        let _ = write!(text, " The others, furthest first: {}.", missed.join(", "));
    }
    text + "\n"
}

/// How much other programs used the cores: in the median slice, in the worst slice, and the share of disturbed slices.
fn others(rows: &[Row]) -> Option<[f64; 3]> {
    let known = |slice: &&Slice| slice.others.is_some();
    let slices: Vec<&Slice> =
        rows.iter().flat_map(|row| &row.cells).flat_map(|(_, cell)| cell.slices()).filter(known).collect();
    let all = || slices.iter().filter_map(|slice| slice.others);
    let disturbed = slices.iter().filter(|slice| !patience::is_quiet(slice)).count();
    Some([median(all())?, all().max_by(f64::total_cmp)?, disturbed as f64 / slices.len() as f64])
}

/// Whether the numbers are worth keeping. The error says why not.
pub fn check(rows: &[Row]) -> Result<(), String> {
    match others(rows) {
        Some([middle, _, disturbed]) if middle <= QUIET && disturbed <= DISTURBED => {}
        _ => return Err("others used the machine meanwhile".into()),
    }
    let failed = |row: &&Row| row.cells.iter().any(|(_, cell)| matches!(cell, Cell::Failed(_)));
    match rows.iter().filter(failed).map(|row| row.job.name).collect::<Vec<_>>()[..] {
        [] => Ok(()),
        ref jobs => Err(format!("someone failed at {}", jobs.join(", "))),
    }
}

/// Fails if Gradus is wrong or fails in a job. The error names these jobs.
pub fn check_ours(rows: &[Row]) -> Result<(), String> {
    let is_bad = |row: &&Row| matches!(row.cell(OURS), Some(Cell::Wrong(_) | Cell::Failed(_)));
    match rows.iter().filter(is_bad).map(|row| row.job.name).collect::<Vec<_>>()[..] {
        [] => Ok(()),
        ref jobs => Err(format!("gradus is wrong or fails at {}", jobs.join(", "))),
    }
}

fn busyness(rows: &[Row]) -> String {
    let Some(others) = others(rows) else {
        return "The system does not tell whether others used the machine.\n".into();
    };
    let [middle, worst, disturbed] = others.map(|part| format!("{:.0} %", part * 100.0));
    let marked = if rows.iter().any(|row| row.cells.iter().any(|(_, cell)| cell.is_disturbed())) {
        ", half or more of those marked ~"
    } else {
        ""
    };
    format!(
        "While a slice ran, others used {middle} of the cores in the middle slice and {worst} in the worst, \
        and disturbed {disturbed} of all{marked}.\n"
    )
}

/// The numbers of jobs done by the processes whose memory is compared.
fn jobs_done(rows: &[Row]) -> String {
    let of = |(name, cell): &(&str, Cell)| Some(format!("{name} {}", cell.done()?));
    let done: Vec<String> = rows.iter().flat_map(|row| &row.cells).filter_map(of).collect();
    if done.is_empty() {
        String::new()
    } else {
        format!("Jobs done in the processes of the memory row: {}.\n", done.join(", "))
    }
}

/// What went wrong, with one line per peer and reason, however many jobs are affected.
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

/// Writes the table into the page.
pub fn write_page(root: &Path, table: &str) -> Result<(), String> {
    let path = root.join("docs/performance.md");
    let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let page = between_marks(&text, table).ok_or(format!("{} has no place for the table", path.display()))?;
    std::fs::write(&path, page).map_err(|e| format!("{}: {e}", path.display()))
}

/// The page with the table between the markers replaced.
fn between_marks(page: &str, table: &str) -> Option<String> {
    let (before, rest) = page.split_once(MARKS[0])?;
    let (_, after) = rest.split_once(MARKS[1])?;
    Some(format!("{before}{}{table}{}{after}", MARKS[0], MARKS[1]))
}

#[cfg(test)]
mod tests {
    use super::*;
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

While a slice ran, others used 1 % of the cores in the middle slice and 1 % in the worst, and disturbed 0 % of all.

Who failed or gave something else:
* jax, gemm_f32_64: it broke
";
        assert_eq!(text, expected);
        assert_eq!(check(&rows), Err("someone failed at gemm_f32_64".into()));
        assert_eq!((check(&rows[1..]), check_ours(&rows)), (Ok(()), Ok(())));
        assert!(line(&rows[0]).ends_with("gradus 12 torch 9.00 jax failed numr -  ratio 0.75, goal 1: 0.75"));
    }

    #[test]
    fn a_goal_without_a_number_is_missed() {
        let rows = [
            row(Goal::Ratio(1.0), vec![(OURS, Cell::Wrong("off".into())), ("torch", measured(&[1.0]))]),
            row(Goal::Ratio(1.0), vec![(OURS, measured(&[1.0])), ("torch", measured(&[2.0]))]),
        ];
        assert_eq!(standing(&rows), "1 of 2 goals are met. The others, furthest first: gemm_f32_64 -.\n");
        assert_eq!(check_ours(&rows), Err("gradus is wrong or fails at gemm_f32_64".into()));
    }

    #[test]
    fn a_busy_machine_gives_no_numbers_worth_keeping() {
        let rows = |others: &[f64]| {
            let slice = |others: &f64| Slice { value: 1.0, others: Some(*others), ..Slice::default() };
            [row(Goal::Ratio(1.0), vec![(OURS, Cell::Measured(others.iter().map(slice).collect()))])]
        };
        assert_eq!(check(&rows(&[0.01, 0.01, 0.02])), Ok(()));
        for busy in [&[0.05, 0.05, 0.01][..], &[0.01, 0.01, 0.5], &[]] {
            assert_eq!(check(&rows(busy)), Err("others used the machine meanwhile".into()), "{busy:?}");
        }
        assert!(markdown("", &rows(&[0.5, 0.01])).contains("| 1000000~ |"));
        assert!(
            busyness(&rows(&[0.5, 0.01])).ends_with("and disturbed 50 % of all, half or more of those marked ~.\n")
        );
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

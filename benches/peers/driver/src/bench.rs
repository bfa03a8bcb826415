//! `cargo xtask bench`: compares this build with an earlier one, job by job. No job may lose more than a tenth.
//!
//! The builds take turns at a job, as all peers do. In each round, the earlier build's number is divided by ours. The
//! median of these ratios counts, so that a temporary slowdown of the machine affects both builds. Rounds in which
//! other programs used the machine do not count. A job that seems slower, or has too few quiet rounds, is measured
//! again after all others, in three times as many rounds, and only that measurement counts. The run writes
//! `target/bench.json`.

use std::fmt::Write;
use std::path::Path;

use peer_harness::{Job, Probe};
use serde_json::{Map, Value, json};

use crate::arguments::Arguments;
use crate::baseline::{self, Baseline};
use crate::machine::{self, About};
use crate::patience::Patience;
use crate::peers::{self, BASELINE, OURS};
use crate::row::{Cell, Row};
use crate::{measure, record, table};

/// The smallest ratio that is not a loss. Its inverse is the largest ratio that is not a gain.
const LEAST: f64 = 0.9;

/// The result of a job.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Verdict {
    Kept,
    Gained,
    Lost,
    /// Other programs used the machine in too many rounds.
    Disturbed,
    /// This build fails, or does fewer of the jobs than the baseline.
    Broken,
    /// The baseline cannot do the job.
    NotCompared,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Verdict::Kept => "",
            Verdict::Gained => "gained",
            Verdict::Lost => "lost",
            Verdict::Disturbed => "disturbed",
            Verdict::Broken => "broken",
            Verdict::NotCompared => "not compared",
        }
    }
}

fn ratio(row: &Row) -> Option<f64> {
    row.compared(BASELINE).map(|compared| compared.ratio)
}

fn verdict(row: &Row) -> Verdict {
    match (row.cell(OURS), row.cell(BASELINE)) {
        // This build does fewer of the jobs than the baseline.
        (Some(ours @ Cell::Measured(_)), Some(theirs)) if ours.done() < theirs.done() => Verdict::Broken,
        (Some(Cell::Measured(_)), Some(Cell::Measured(_))) => match row.compared(BASELINE) {
            None => Verdict::NotCompared,
            Some(compared) if !compared.is_sure() => Verdict::Disturbed,
            Some(compared) if compared.ratio > 1.0 / LEAST => Verdict::Gained,
            Some(compared) if compared.ratio >= LEAST => Verdict::Kept,
            // A ratio of NaN counts as a loss.
            Some(_) => Verdict::Lost,
        },
        (Some(Cell::Measured(_)), Some(Cell::Failed(_))) => Verdict::Disturbed,
        (Some(Cell::Measured(_)), _) | (Some(Cell::Absent(_)), Some(Cell::Absent(_))) => Verdict::NotCompared,
        _ => Verdict::Broken,
    }
}

fn is_suspicious(row: &Row) -> bool {
    matches!(verdict(row), Verdict::Lost | Verdict::Disturbed)
}

/// The texts of a row: our number, the baseline's, their ratio, and the verdict.
fn texts(row: &Row) -> [String; 4] {
    let text = |name| row.cell(name).map_or("-".into(), |cell| table::quantity(row, cell));
    [text(OURS), text(BASELINE), table::two_digits(ratio(row)), verdict(row).word().into()]
}

/// The line on the screen for one job.
fn line(row: &Row) -> String {
    let [ours, theirs, ratio, word] = texts(row);
    format!("{:45} this {ours}, baseline {theirs}, ratio {ratio} {word}", row.job.name).trim_end().into()
}

fn markdown(rows: &[Row]) -> String {
    let mut text = String::from("| job | this | baseline | baseline / this | |\n|---|---:|---:|---:|---|\n");
    for row in rows {
        // Writing to a string does not fail.
        let _ = writeln!(text, "| {} | {} |", row.job.name, texts(row).join(" | "));
    }
    let count = |wanted| rows.iter().filter(|row| verdict(row) == wanted).count();
    let (lost, broken) = (count(Verdict::Lost), count(Verdict::Broken));
    let (gained, disturbed) = (count(Verdict::Gained), count(Verdict::Disturbed));
    let all = rows.len();
    let _ =
        writeln!(text, "\nOf {all} jobs {lost} are lost, {broken} broken, {disturbed} disturbed and {gained} gained.");
    text + &table::around(rows)
}

fn to_json(about: &Value, baseline: &Value, rows: &[Row]) -> Value {
    let entry = |row: &Row| {
        let mut entry = record::measured(row);
        entry.insert("ratio".into(), json!(ratio(row)));
        entry.insert("verdict".into(), json!(verdict(row).word()));
        (row.job.name.to_owned(), entry.into())
    };
    json!({ "about": about, "baseline": baseline, "jobs": rows.iter().map(entry).collect::<Map<_, _>>() })
}

/// Whether no job fails the comparison. The error names the jobs that do.
fn judge(revision: &str, rows: &[Row]) -> Result<(), String> {
    let (mut reasons, mut disturbed) = (Vec::new(), Vec::new());
    for row in rows {
        match verdict(row) {
            Verdict::Lost => reasons.push(format!("{} is at {} of it", row.job.name, table::two_digits(ratio(row)))),
            Verdict::Disturbed => disturbed.push(row.job.name),
            Verdict::Broken => reasons.push(format!("{} is broken", row.job.name)),
            _ => {}
        }
    }
    let mut errors = Vec::new();
    if !reasons.is_empty() {
        errors.push(format!("this build is behind {revision}: {}", reasons.join(", ")));
    }
    if !disturbed.is_empty() {
        let jobs = disturbed.join(", ");
        errors.push(format!("nothing can be said of {jobs}: others used the machine, or the baseline failed"));
    }
    if rows.iter().all(|row| verdict(row) == Verdict::NotCompared) {
        errors.push(format!("no job could be compared with {revision}"));
    }
    if errors.is_empty() { Ok(()) } else { Err(errors.join("\n")) }
}

/// Runs the whole comparison.
pub fn run(root: &Path, jobs: &[Job], truths: &[Vec<Probe>], arguments: &Arguments) -> Result<(), String> {
    let Baseline { revision, commit, has_own_jobs, program } = baseline::make(root, arguments.baseline.as_deref())?;
    let mut programs = peers::programs(root, &Err("it was not asked for".into()), |name| name == OURS)?;
    programs.push(program);
    let this = machine::commit(root).unwrap_or("of no known commit".into());
    let how = if has_own_jobs { "with its own code for the jobs" } else { "with the jobs of this tree" };
    let about = About::new(vec![format!("this build {this}"), format!("baseline {revision} {how}")], arguments);
    println!("{}", about.text());
    let baseline = json!({ "revision": revision, "commit": commit, "has_own_jobs": has_own_jobs });
    let (about, file) = (about.to_json(), arguments.file("bench", "json"));
    // The file is written after each job, so that an interrupted run keeps its results.
    let write = |rows: &[Row]| crate::put(root, &file, format!("{:#}\n", to_json(&about, &baseline, rows)));
    let (mut rows, mut patience) = (Vec::new(), Patience::new(arguments.patience));
    for (job, truth) in jobs.iter().zip(truths) {
        let row = measure(job, &programs, truth, arguments, &mut patience);
        println!("{}", line(&row));
        rows.push(row);
        write(&rows)?;
    }
    let longer = arguments.longer();
    for i in (0..rows.len()).filter(|i| is_suspicious(&rows[*i])).collect::<Vec<_>>() {
        rows[i] = measure(&jobs[i], &programs, &truths[i], &longer, &mut patience);
        println!("again: {}", line(&rows[i]));
        write(&rows)?;
    }
    println!("\n{}", markdown(&rows));
    if arguments.check { judge(&revision, &rows) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::Slice;
    use crate::row::tests::{measured, row};
    use peer_harness::Goal;

    fn timed(ours: Cell, baseline: Cell) -> Row {
        row(Goal::Ratio(1.0), vec![(OURS, ours), (BASELINE, baseline)])
    }

    #[test]
    fn a_tenth_more_or_less_is_told() {
        let stands = |ours: &[f64], baseline: &[f64]| verdict(&timed(measured(ours), measured(baseline)));
        assert_eq!(stands(&[1.0], &[1.0]), Verdict::Kept);
        assert_eq!(stands(&[1.0], &[0.91]), Verdict::Kept);
        assert_eq!(stands(&[1.0], &[0.89]), Verdict::Lost);
        assert_eq!(stands(&[1.0], &[1.1]), Verdict::Kept);
        assert_eq!(stands(&[1.0], &[1.12]), Verdict::Gained);
        assert_eq!(stands(&[f64::NAN], &[1.0]), Verdict::Lost);
    }

    #[test]
    fn rounds_are_compared_one_by_one() {
        // The machine slows down during the run, and one round is an outlier.
        let slower = timed(measured(&[1.0, 2.0, 9.0]), measured(&[1.0, 2.0, 3.0]));
        assert_eq!((ratio(&slower), verdict(&slower)), (Some(1.0), Verdict::Kept));
    }

    #[test]
    fn disturbed_rounds_do_not_count_and_three_quiet_ones_are_needed() {
        let slices = |of: &[(f64, f64)]| {
            let slice =
                |(value, others): &(f64, f64)| Slice { value: *value, others: Some(*others), ..Slice::default() };
            Cell::Measured(of.iter().map(slice).collect())
        };
        let (quiet, busy) = ((1.0, 0.0), (9.0, 0.5));
        let beside_quiet = |ours: &[(f64, f64)]| timed(slices(ours), slices(&vec![quiet; ours.len()]));
        let kept = beside_quiet(&[busy, quiet, busy, quiet, quiet]);
        assert_eq!((ratio(&kept), verdict(&kept)), (Some(1.0), Verdict::Kept));
        assert_eq!(verdict(&beside_quiet(&[quiet])), Verdict::Kept);
        for ours in [&[busy, quiet, busy, quiet, busy][..], &[busy; 3], &[(1.0, 0.5); 3], &[(0.1, 0.5)]] {
            let disturbed = beside_quiet(ours);
            assert_eq!(verdict(&disturbed), Verdict::Disturbed);
            assert!(is_suspicious(&disturbed) && !is_suspicious(&kept));
            let error = judge("v1", &[beside_quiet(&[quiet]), disturbed]).unwrap_err();
            assert_eq!(error, "nothing can be said of gemm_f32_64: others used the machine, or the baseline failed");
        }
    }

    #[test]
    fn what_only_one_build_does_is_told_apart() {
        let one = || measured(&[1.0]);
        let (no, off) = (|| Cell::Absent("no".into()), || Cell::Wrong("off".into()));
        assert_eq!(verdict(&timed(one(), no())), Verdict::NotCompared);
        assert_eq!(verdict(&timed(one(), off())), Verdict::NotCompared);
        assert_eq!(verdict(&timed(one(), Cell::Failed("x".into()))), Verdict::Disturbed);
        assert_eq!(verdict(&timed(no(), no())), Verdict::NotCompared);
        assert_eq!(verdict(&timed(no(), one())), Verdict::Broken);
        assert_eq!(verdict(&timed(off(), no())), Verdict::Broken);
        assert_eq!(verdict(&timed(Cell::Failed("x".into()), one())), Verdict::Broken);
    }

    #[test]
    fn memory_is_compared_of_equally_many_jobs() {
        let held = |done, value| Cell::Measured(vec![Slice { value, done: Some(done), ..Slice::default() }]);
        let stands = |ours, baseline| verdict(&row(Goal::Mebibytes(400.0), vec![(OURS, ours), (BASELINE, baseline)]));
        assert_eq!(stands(held(36, 300.0), held(36, 200.0)), Verdict::Lost);
        assert_eq!(stands(held(36, 300.0), held(30, 200.0)), Verdict::NotCompared);
        assert_eq!(stands(held(30, 200.0), held(36, 200.0)), Verdict::Broken);
    }

    #[test]
    fn the_gate_names_what_closes_it() {
        let kept = || timed(measured(&[1.0]), measured(&[1.0]));
        let new = || timed(measured(&[1.0]), Cell::Absent("no".into()));
        assert_eq!(judge("v1", &[kept(), new()]), Ok(()));
        let lost = timed(measured(&[2.0]), measured(&[1.0]));
        let broken = timed(Cell::Wrong("off".into()), measured(&[1.0]));
        let expected = "this build is behind v1: gemm_f32_64 is at 0.50 of it, gemm_f32_64 is broken";
        assert_eq!(judge("v1", &[kept(), lost, broken]), Err(expected.into()));
        assert_eq!(judge("v1", &[new()]), Err("no job could be compared with v1".into()));
    }

    #[test]
    fn the_table_has_units_and_reasons() {
        let rows = [
            timed(measured(&[12e-6]), measured(&[9e-6])),
            timed(measured(&[12e-6]), Cell::Failed("it broke".into())),
            row(Goal::Milliseconds(10.0), vec![(OURS, measured(&[5e-3])), (BASELINE, measured(&[6e-3]))]),
        ];
        let expected = "\
| job | this | baseline | baseline / this | |
|---|---:|---:|---:|---|
| gemm_f32_64 | 12 us | 9.00 us | 0.75 | lost |
| gemm_f32_64 | 12 us | failed | - | disturbed |
| gemm_f32_64 | 5.00 ms | 6.00 ms | 1.20 | gained |

Of 3 jobs 1 are lost, 0 broken, 1 disturbed and 1 gained.
While a slice ran, others used 1 % of the cores in the middle slice and 1 % in the worst, and disturbed 0 % of all.

Who failed or gave something else:
* baseline, gemm_f32_64: it broke
";
        assert_eq!(markdown(&rows), expected);
        assert!(line(&rows[0]).ends_with("this 12 us, baseline 9.00 us, ratio 0.75 lost"));
    }

    #[test]
    fn programs_read_ratios_and_verdicts() {
        let rows = [timed(measured(&[2.0, 4.0]), measured(&[1.0, 2.0]))];
        let all = to_json(&json!({ "full": true }), &json!({ "revision": "v1" }), &rows);
        let job = &all["jobs"]["gemm_f32_64"];
        assert_eq!((&job["ratio"], &job["verdict"], &job["unit"]), (&json!(0.5), &json!("lost"), &json!("s")));
        assert_eq!((&job["rounds"]["baseline"], &all["baseline"]["revision"]), (&json!([1.0, 2.0]), &json!("v1")));
    }
}

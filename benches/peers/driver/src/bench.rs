//! `cargo xtask bench`: this build beside an earlier one, job by job, and the gate: no job may lose more than a tenth.
//!
//! Both do a job in turns as all peers do. In each round the earlier build's number is divided by ours; the median of these
//! ratios counts, so that what slows the machine for a while slows both. A job that seems lost is measured again in three
//! times as many rounds, after all others, and this measurement counts; rounds in which others used the machine do not, where
//! there are quiet ones. The run writes `target/bench.json`.

use std::fmt::Write;
use std::path::Path;

use peer_harness::{Job, Probe};
use serde_json::{Map, Value, json};

use crate::arguments::Arguments;
use crate::baseline::{self, Baseline};
use crate::patience::Patience;
use crate::peers::{self, BASELINE, OURS};
use crate::row::{Cell, Row};
use crate::{machine, measure, record, table};

/// The least ratio that is no loss; the other way round it is the largest that is no gain.
const LEAST: f64 = 0.9;

/// How a job stands.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Verdict {
    Kept,
    Gained,
    Lost,
    /// It seems lost, but others used the machine in every round.
    Disturbed,
    /// This build fails at it, or does not do any more what the baseline does.
    Broken,
    /// The baseline cannot do it.
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
    row.ratio_of_rounds(BASELINE).map(|(ratio, _)| ratio)
}

fn verdict(row: &Row) -> Verdict {
    match (row.cell(OURS), row.cell(BASELINE), row.ratio_of_rounds(BASELINE)) {
        (Some(Cell::Measured(_)), Some(Cell::Measured(_)), Some((ratio, quiet))) => match ratio {
            ratio if ratio > 1.0 / LEAST => Verdict::Gained,
            ratio if ratio >= LEAST => Verdict::Kept,
            // A ratio that is no number is none to be content with.
            _ => {
                if quiet {
                    Verdict::Lost
                } else {
                    Verdict::Disturbed
                }
            }
        },
        (Some(Cell::Measured(_)), ..) | (Some(Cell::Absent(_)), Some(Cell::Absent(_)), _) => Verdict::NotCompared,
        _ => Verdict::Broken,
    }
}

fn is_suspicious(row: &Row) -> bool {
    matches!(verdict(row), Verdict::Lost | Verdict::Disturbed)
}

/// The numbers of a row: ours, the baseline's, their ratio and what is to be said of it.
fn texts(row: &Row) -> [String; 4] {
    let text = |name| row.cell(name).map_or("-".into(), |cell| table::quantity(row, cell));
    [text(OURS), text(BASELINE), table::two_digits(ratio(row)), verdict(row).word().into()]
}

/// One job, for the screen.
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
    let (lost, gained) = (count(Verdict::Lost), count(Verdict::Gained));
    let _ = writeln!(text, "\nOf {} jobs {lost} are lost and {gained} gained.", rows.len());
    text + &table::around(rows)
}

fn to_json(about: &str, baseline: &Value, rows: &[Row]) -> Value {
    let entry = |row: &Row| {
        let mut entry = record::measured(row);
        entry.insert("ratio".into(), json!(ratio(row)));
        entry.insert("verdict".into(), json!(verdict(row).word()));
        (row.job.name.to_owned(), entry.into())
    };
    json!({ "about": about, "baseline": baseline, "jobs": rows.iter().map(entry).collect::<Map<_, _>>() })
}

/// Whether the gate is open: the error names the jobs that close it.
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
    if !disturbed.is_empty() {
        eprintln!("warning: others used the machine, so nothing can be said of {}", disturbed.join(", "));
    }
    if !reasons.is_empty() {
        return Err(format!("this build is behind {revision}: {}", reasons.join(", ")));
    }
    if rows.iter().all(|row| matches!(verdict(row), Verdict::NotCompared | Verdict::Disturbed)) {
        return Err(format!("no job could be compared with {revision}"));
    }
    Ok(())
}

/// The whole run.
pub fn run(root: &Path, jobs: &[Job], truths: &[Vec<Probe>], arguments: &Arguments) -> Result<(), String> {
    let Baseline { revision, commit, has_own_jobs, program } = baseline::make(root, arguments.baseline.as_deref())?;
    let mut programs = peers::programs(root, &Err("it was not asked for".into()), |name| name == OURS)?;
    programs.push(program);
    let this = machine::commit(root).unwrap_or("of no known commit".into());
    let how = if has_own_jobs { "with its own code for the jobs" } else { "with the jobs of this tree" };
    let about = machine::describe(&[format!("this build {this}"), format!("baseline {revision} {how}")], arguments);
    println!("{about}");
    let baseline = json!({ "revision": revision, "commit": commit, "has_own_jobs": has_own_jobs });
    let write = |rows: &[Row]| crate::put(root, "bench.json", format!("{:#}\n", to_json(&about, &baseline, rows)));
    let (mut rows, mut patience) = (Vec::new(), Patience::new(arguments.patience));
    for (job, truth) in jobs.iter().zip(truths) {
        let row = measure(job, &programs, truth, arguments, &mut patience);
        println!("{}", line(&row));
        rows.push(row);
        // Written after each job: a run that is stopped leaves what it has.
        write(&rows)?;
    }
    let (longer, mut patience) = (arguments.longer(), Patience::new(arguments.patience));
    for (row, truth) in rows.iter_mut().zip(truths).filter(|(row, _)| is_suspicious(row)) {
        *row = measure(&row.job, &programs, truth, &longer, &mut patience);
        println!("again: {}", line(row));
    }
    write(&rows)?;
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
        // The machine slows down in the course of the run, and one round is off.
        let slower = timed(measured(&[1.0, 2.0, 9.0]), measured(&[1.0, 2.0, 3.0]));
        assert_eq!((ratio(&slower), verdict(&slower)), (Some(1.0), Verdict::Kept));
    }

    #[test]
    fn disturbed_rounds_count_only_where_none_was_quiet() {
        let slices = |of: [(f64, f64); 3]| {
            Cell::Measured(of.map(|(value, others)| Slice { value, others: Some(others), ..Slice::default() }).to_vec())
        };
        let ours = || slices([(9.0, 0.5), (1.0, 0.0), (9.0, 0.5)]);
        let kept = timed(ours(), slices([(1.0, 0.0); 3]));
        assert_eq!((kept.ratio_of_rounds(BASELINE), verdict(&kept)), (Some((1.0, true)), Verdict::Kept));
        let disturbed = timed(slices([(9.0, 0.5); 3]), slices([(1.0, 0.0); 3]));
        assert_eq!(verdict(&disturbed), Verdict::Disturbed);
        assert!(is_suspicious(&disturbed) && !is_suspicious(&kept));
        assert_eq!(judge("v1", &[kept, disturbed]), Ok(()));
    }

    #[test]
    fn what_only_one_build_does_is_told_apart() {
        let one = || measured(&[1.0]);
        let (no, off) = (|| Cell::Absent("no".into()), || Cell::Wrong("off".into()));
        assert_eq!(verdict(&timed(one(), no())), Verdict::NotCompared);
        assert_eq!(verdict(&timed(one(), off())), Verdict::NotCompared);
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
| gemm_f32_64 | 12 us | failed | - | not compared |
| gemm_f32_64 | 5.00 ms | 6.00 ms | 1.20 | gained |

Of 3 jobs 1 are lost and 1 gained.
While a slice ran, others used 1 % of the machine's cores in the middle slice and 1 % in the worst.

Who failed or gave something else:
* baseline, gemm_f32_64: it broke
";
        assert_eq!(markdown(&rows), expected);
        assert!(line(&rows[0]).ends_with("this 12 us, baseline 9.00 us, ratio 0.75 lost"));
    }

    #[test]
    fn programs_read_ratios_and_verdicts() {
        let all = to_json("a", &json!({ "revision": "v1" }), &[timed(measured(&[2.0, 4.0]), measured(&[1.0, 2.0]))]);
        let job = &all["jobs"]["gemm_f32_64"];
        assert_eq!((&job["ratio"], &job["verdict"], &job["unit"]), (&json!(0.5), &json!("lost"), &json!("s")));
        assert_eq!((&job["rounds"]["baseline"], &all["baseline"]["revision"]), (&json!([1.0, 2.0]), &json!("v1")));
    }
}

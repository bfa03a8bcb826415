//! What `gradus plan` says of a training step, beside the time that it takes.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::launch::optimised_gradus;
use super::process::Running;

/// The network: large enough that its products count.
const TRAIN: &str = "train text story.txt --epochs 1 --layers 4 --heads 4 --width 256 --context 128 --out model";
const BENCH: &str = "bench --model model --batch 32";
/// How long a training or a measurement may take.
const LIMIT: Duration = Duration::from_secs(200);

/// The numbers of ranks that are measured.
const RANKS: [usize; 3] = [1, 2, 4];
/// How often each is measured.
const ROUNDS: usize = 3;

/// How far off a step a plan may be, in percent.
const MOST: f64 = 20.0;

/// Measures each number of ranks, and reports the middle one of its rounds. Also returns the steps that the plan misses.
pub(super) fn run(root: &Path, folder: &Path) -> Result<(String, Vec<String>), String> {
    let gradus = optimised_gradus(root)?;
    let failed = |e: std::io::Error| format!("{}: {e}", folder.display());
    std::fs::create_dir_all(folder).map_err(failed)?;
    let story = "pack my box with five dozen liquor jugs. ".repeat(150);
    std::fs::write(folder.join("story.txt"), story).map_err(failed)?;
    let done = |words: &str, name: &str| -> Result<String, String> {
        let mut command = Command::new(&gradus);
        let ended =
            Running::start(command.args(words.split(' ')).current_dir(folder), &folder.join(name))?.end(LIMIT)?;
        if ended.status.success() { Ok(ended.out) } else { Err(format!("{words}: {}", ended.err)) }
    };
    done(TRAIN, "train")?;
    // In turns, so that all meet the same disturbances.
    let mut steps = RANKS.map(|ranks| (ranks, vec![]));
    for round in 0..ROUNDS {
        for (ranks, lines) in &mut steps {
            let out = done(&format!("launch -n {ranks} -- {BENCH}"), &format!("bench-{ranks}-{round}"))?;
            let Some(step) = out.lines().find(|line| line.starts_with("a step of")) else {
                return Err(format!("bench on {ranks} ranks prints no step: {out}"));
            };
            // Without a number it is as far off as can be.
            lines.push((percent(step).unwrap_or(f64::INFINITY), step.to_string()));
        }
    }
    let (mut each, mut missed) = (vec![], vec![]);
    for (ranks, mut lines) in steps {
        lines.sort_by(|a, b| a.0.abs().total_cmp(&b.0.abs()));
        let (off, line) = &lines[ROUNDS / 2];
        let said = format!("{ranks} ranks: {line}");
        let holds = off.abs() <= MOST;
        if !holds {
            missed.push(format!("the plan is off by more than {MOST} %: {said}"));
        }
        each.push(said);
    }
    Ok((each.join("; "), missed))
}

/// The number in `(+5 %)`.
fn percent(line: &str) -> Option<f64> {
    line.split_once(" %)")?.0.rsplit_once('(')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::percent;

    #[test]
    fn how_far_off_a_plan_is_can_be_read() {
        let line = "a step of model with 32 sequences: 1.20 s, predicted 1.08 s (-10 %): 1.00 s passes, 0.08 s calls";
        assert_eq!(percent(line), Some(-10.0));
        assert_eq!(percent("a step of model with 32 sequences: 1.20 s"), None);
    }
}

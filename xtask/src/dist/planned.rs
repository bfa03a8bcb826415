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

/// Measures 1, 2 and 4 ranks.
pub(super) fn run(root: &Path, folder: &Path) -> Result<String, String> {
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
    let mut each = vec![];
    for ranks in [1, 2, 4] {
        let out = done(&format!("launch -n {ranks} -- {BENCH}"), &format!("bench-{ranks}"))?;
        let Some(step) = out.lines().find(|line| line.starts_with("a step of")) else {
            return Err(format!("bench on {ranks} ranks prints no step: {out}"));
        };
        each.push(format!("{ranks} ranks: {step}"));
    }
    Ok(each.join("; "))
}

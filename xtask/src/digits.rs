//! `cargo xtask digits`: runs the README's first command with several seeds and prints the accuracy and the time.
//! Checks the accuracy, and that one thread and two threads produce the same bits.

use std::path::{Path, PathBuf};

/// The accuracy on the held-out digits that every seed must reach.
const ACCURACY: f64 = 0.98;
/// The seeds to train with.
const SEEDS: std::ops::Range<u32> = 0..5;

/// Trains with each seed and checks the results.
pub(crate) fn run(root: &Path) -> Result<(), String> {
    let folder = std::env::temp_dir().join(format!("gradus-digits-{}", std::process::id()));
    let outcome = check(root, &folder);
    // If the folder cannot be removed, the system cleans it up with its other temporary files.
    let _ = std::fs::remove_dir_all(&folder);
    outcome
}

fn check(root: &Path, folder: &Path) -> Result<(), String> {
    for seed in SEEDS {
        let line = train(root, &folder.join(format!("seed-{seed}")), &["--seed", &seed.to_string()])?;
        let (accuracy, seconds) = (number(&line, "test_accuracy")?, number(&line, "seconds")?);
        println!("seed {seed}: accuracy {:.2} %, {seconds:.1} s", accuracy * 100.0);
        if accuracy < ACCURACY {
            return Err(format!("seed {seed} reaches {accuracy} where {ACCURACY} is needed"));
        }
    }
    let mut models = Vec::new();
    for threads in ["1", "2"] {
        let out = folder.join(format!("threads-{threads}"));
        train(root, &out, &["--seed", "0", "--epochs", "2", "--threads", threads])?;
        let model: PathBuf = out.join("model.safetensors");
        models.push(std::fs::read(&model).map_err(|e| format!("{}: {e}", model.display()))?);
    }
    if models[0] != models[1] {
        return Err("one thread and two give different models".into());
    }
    println!("one thread and two give the same {} bytes", models[0].len());
    Ok(())
}

/// Runs `train digits` in release mode and returns its last line of output.
fn train(root: &Path, out: &Path, arguments: &[&str]) -> Result<String, String> {
    let mut command = crate::workspace::cargo();
    command.args(["run", "--release", "--quiet", "--", "train", "digits", "--json", "--out"]).arg(out).args(arguments);
    let output = command.current_dir(root).output().map_err(|e| format!("cargo did not start: {e}"))?;
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !output.status.success() {
        return Err(format!("train digits {} failed: {}\n{errors}", arguments.join(" "), output.status));
    }
    text.lines().last().map(str::to_owned).ok_or_else(|| "train digits printed nothing".into())
}

/// The number under a key of a JSON line.
pub(crate) fn number(line: &str, name: &str) -> Result<f64, String> {
    let missing = || format!("no number {name:?} in {line:?}");
    let (_, rest) = line.split_once(&format!("\"{name}\":")).ok_or_else(missing)?;
    let end = rest.find([',', '}']).unwrap_or(rest.len());
    rest[..end].trim().parse().map_err(|_| missing())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_from_a_json_line() {
        let line = r#"{"seed":3,"seconds": 1.5,"test_accuracy":0.99}"#;
        assert_eq!(number(line, "seconds"), Ok(1.5));
        assert_eq!(number(line, "test_accuracy"), Ok(0.99));
        assert!(number(line, "loss").is_err());
        assert!(number(r#"{"loss":null}"#, "loss").is_err());
    }
}

//! The files that tidy checks: those that git tracks or would add.

use std::fs;
use std::path::Path;
use std::process::Command;

/// The sorted paths of all files, relative to `root`, with `/`. Hidden folders and links are left out.
pub(super) fn list(root: &Path) -> Result<Vec<String>, String> {
    let list = ["ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate"];
    let output = Command::new("git").args(list).current_dir(root).output();
    let output = output.map_err(|error| format!("git did not start: {error}"))?;
    if !output.status.success() {
        return Err(format!("git ls-files failed:\n{}", String::from_utf8_lossy(&output.stderr)));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let is_hidden = |path: &str| path.rsplit_once('/').is_some_and(|(folder, _)| format!("/{folder}").contains("/."));
    let is_file = |path: &str| fs::symlink_metadata(root.join(path)).is_ok_and(|found| found.is_file());
    let mut paths: Vec<String> =
        text.split('\0').filter(|path| !is_hidden(path) && is_file(path)).map(String::from).collect();
    paths.sort();
    Ok(paths)
}

/// The text of a file. An error names the file.
pub(super) fn read(root: &Path, path: &str) -> Result<String, String> {
    fs::read_to_string(root.join(path)).map_err(|error| format!("cannot read `{path}`: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ignored_or_hidden_is_left_out() {
        let root = std::env::temp_dir().join(format!("xtask-files-{}", std::process::id()));
        for folder in ["target", "src", ".hidden", "src/target"] {
            fs::create_dir_all(root.join(folder)).unwrap();
            fs::write(root.join(folder).join("a.rs"), "").unwrap();
        }
        fs::write(root.join(".gitignore"), "/target\n").unwrap();
        let made = Command::new("git").args(["init", "-q"]).current_dir(&root).status();
        let paths = list(&root);
        fs::remove_dir_all(&root).unwrap();
        assert!(made.unwrap().success());
        assert_eq!(paths.unwrap(), [".gitignore", "src/a.rs", "src/target/a.rs"]);
    }
}

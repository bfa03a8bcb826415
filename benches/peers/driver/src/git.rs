//! Queries to git about a repository.

use std::path::Path;
use std::process::Command;

/// The output of a git command, run in `root` with these variables. The error is the first line of git's error output.
pub fn git(root: &Path, variables: &[(&str, &Path)], arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new("git");
    command.args(arguments).current_dir(root).envs(variables.iter().copied());
    let said = |what: &str| format!("git {}: {what}", arguments.first().unwrap_or(&""));
    let output = command.output().map_err(|e| said(&e.to_string()))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(said(errors.lines().next().unwrap_or(&output.status.to_string())))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::path::PathBuf;

    /// A repository in a new folder, with one commit of these files.
    pub(crate) fn repository(name: &str, files: &[(&str, &str)]) -> PathBuf {
        let root = std::env::temp_dir().join(format!("gradus-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        for (path, text) in files {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        for arguments in ["init --quiet", "add --all", "-c user.name=a -c user.email=a@b commit --quiet -m first"] {
            git(&root, &[], &arguments.split(' ').collect::<Vec<_>>()).unwrap();
        }
        root
    }

    #[test]
    fn answers_and_complaints_are_given() {
        let root = repository("git", &[("a", "1")]);
        assert_eq!(git(&root, &[], &["ls-files"]), Ok("a".into()));
        let error = git(&root, &[], &["rev-parse", "--verify", "nothing"]).unwrap_err();
        assert!(error.starts_with("git rev-parse: "), "{error}");
        std::fs::remove_dir_all(root).unwrap();
    }
}

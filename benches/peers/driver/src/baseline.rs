//! The baseline of `bench`: the crates of an earlier revision, built below `target/baseline`.
//!
//! The baseline uses the jobs, the harness and the dependencies of this tree, even if the earlier revision had other
//! jobs or none. So both builds do the same work with the same clock, and only the crates differ. If this tree's jobs
//! use newer features and do not compile with the earlier crates, the earlier revision's own jobs run in this tree's
//! harness; jobs that it lacks are omitted.

use std::fs;
use std::path::Path;

use crate::git::git;
use crate::peers::{self, Program};

/// `OWN` is the folder of the comparison in any tree. `PUT` is the folder in an earlier tree to which this tree's
/// comparison is copied. Both have the same depth, so that the relative paths to the crates are valid.
const OWN: &str = "benches/peers";
const PUT: &str = "benches/now";

/// An earlier build that can be run.
pub struct Baseline {
    /// The revision as requested, or the name of the release.
    pub revision: String,
    pub commit: String,
    /// Whether it uses the jobs of its own tree.
    pub has_own_jobs: bool,
    pub program: Program,
}

/// Builds a revision, or the last release before this one. An existing build is reused.
pub fn make(root: &Path, revision: Option<&str>) -> Result<Baseline, String> {
    let revision = revision.map_or_else(|| last_release(root), |revision| Ok(revision.to_owned()))?;
    let commit = commit_of(root, &revision)?;
    let tree = root.join("target/baseline").join(&commit);
    check_out(root, &commit, &tree)?;
    let put = tree.join(PUT);
    mirror(&root.join(OWN), &put)?;
    let mut program = peers::baseline(&put);
    let own = tree.join(OWN).join("gradus");
    let reason = program.reason().map(str::to_owned).filter(|_| own.is_dir());
    let has_own_jobs = reason.is_some();
    if let Some(reason) = reason {
        println!("the baseline with the jobs of this tree {reason}\nso they are done as in its own tree");
        mirror(&own, &put.join("gradus"))?;
        program = peers::baseline(&put);
    }
    match program.reason() {
        Some(reason) => Err(format!("the baseline {revision} {reason}")),
        None => Ok(Baseline { revision, commit, has_own_jobs, program }),
    }
}

/// The newest release tag in the history of the checkout, or the one before it if the checkout is exactly the newest
/// release.
fn last_release(root: &Path) -> Result<String, String> {
    let before = |revision| git(root, &[], &["describe", "--tags", "--abbrev=0", "--match", "v*", revision]);
    let found = before("HEAD").and_then(|release| {
        let is_release = commit_of(root, &release)? == commit_of(root, "HEAD")?;
        if is_release && git(root, &[], &["status", "--porcelain"])?.is_empty() { before("HEAD^") } else { Ok(release) }
    });
    found.map_err(|why| {
        format!("there is no release to compare with, a tag v*: name a revision with --baseline REV ({why})")
    })
}

fn commit_of(root: &Path, revision: &str) -> Result<String, String> {
    let commit = git(root, &[], &["rev-parse", "--verify", "--quiet", &format!("{revision}^{{commit}}")]);
    commit.map_err(|_| format!("git knows no revision `{revision}`"))
}

/// Exports the files of a commit to `tree`. They are first written to another folder, so that `tree` is complete or
/// absent. Nothing in the repository changes.
fn check_out(root: &Path, commit: &str, tree: &Path) -> Result<(), String> {
    if tree.is_dir() {
        return Ok(());
    }
    let (aside, index) = (tree.with_extension("part"), tree.with_extension("index"));
    let said = |path: &Path, error| format!("{}: {error}", path.display());
    if aside.exists() {
        fs::remove_dir_all(&aside).map_err(|e| said(&aside, e))?;
    }
    fs::create_dir_all(&aside).map_err(|e| said(&aside, e))?;
    // Leftovers of an interrupted run would make git fail.
    let lock = tree.with_extension("index.lock");
    if lock.exists() {
        fs::remove_file(&lock).map_err(|e| said(&lock, e))?;
    }
    let variables = [("GIT_INDEX_FILE", index.as_path())];
    git(root, &variables, &["read-tree", commit])?;
    git(root, &variables, &["checkout-index", "--all", "--quiet", &format!("--prefix={}/", aside.display())])?;
    fs::remove_file(&index).map_err(|e| said(&index, e))?;
    fs::rename(&aside, tree).map_err(|e| said(tree, e))
}

/// Makes a folder equal to another, except for build output. Equal files are not touched, because cargo compares their
/// times.
fn mirror(from: &Path, to: &Path) -> Result<(), String> {
    let said = |error| format!("{}: {error}", from.display());
    fs::create_dir_all(to).map_err(|e| format!("{}: {e}", to.display()))?;
    for entry in fs::read_dir(from).map_err(said)? {
        let entry = entry.map_err(said)?;
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if !entry.file_type().map_err(said)?.is_dir() {
            let bytes = fs::read(&from).map_err(|e| format!("{}: {e}", from.display()))?;
            if fs::read(&to).ok().as_ref() != Some(&bytes) {
                fs::write(&to, bytes).map_err(|e| format!("{}: {e}", to.display()))?;
            }
        } else if entry.file_name() != "target" {
            mirror(&from, &to)?;
        }
    }
    for entry in fs::read_dir(to).map_err(|e| format!("{}: {e}", to.display()))? {
        let entry = entry.map_err(|e| format!("{}: {e}", to.display()))?;
        let path = entry.path();
        if entry.file_name() != "target" && !from.join(entry.file_name()).exists() {
            let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            removed.map_err(|e| format!("{}: {e}", path.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::git::tests::repository;

    #[test]
    fn without_a_release_the_option_is_named() {
        let root = repository("release", &[("a", "1")]);
        let error = last_release(&root).unwrap_err();
        assert!(error.contains("no release to compare with") && error.contains("--baseline REV"), "{error}");
        for tag in ["v0.1.0", "nightly"] {
            git(&root, &[], &["tag", tag]).unwrap();
        }
        assert_eq!(commit_of(&root, "v0.1.0"), git(&root, &[], &["rev-parse", "HEAD"]));
        // A release is not compared with itself.
        assert!(last_release(&root).is_err());
        let commit = "-c user.name=a -c user.email=a@b commit --quiet --allow-empty -m second";
        git(&root, &[], &commit.split(' ').collect::<Vec<_>>()).unwrap();
        assert_eq!(last_release(&root), Ok("v0.1.0".into()));
        git(&root, &[], &["tag", "v0.2.0"]).unwrap();
        assert_eq!(last_release(&root), Ok("v0.1.0".into()));
        fs::write(root.join("a"), "2").unwrap();
        assert_eq!(last_release(&root), Ok("v0.2.0".into()));
        assert_eq!(commit_of(&root, "v9").unwrap_err(), "git knows no revision `v9`");
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_commit_is_put_aside_whole_and_the_repository_stays() {
        let root = repository("check-out", &[(".gitignore", "/target\n"), ("crates/a.rs", "old")]);
        fs::write(root.join("crates/a.rs"), "new").unwrap();
        git(&root, &[], &["add", "--all"]).unwrap();
        let before = git(&root, &[], &["status", "--porcelain"]).unwrap();
        let tree = root.join("target/baseline/x");
        // Leftovers of an interrupted run.
        fs::create_dir_all(tree.with_extension("part").join("crates/a.rs")).unwrap();
        fs::write(tree.with_extension("index.lock"), "").unwrap();
        check_out(&root, &commit_of(&root, "HEAD").unwrap(), &tree).unwrap();
        assert_eq!(fs::read_to_string(tree.join("crates/a.rs")).unwrap(), "old");
        assert_eq!(fs::read_dir(root.join("target/baseline")).unwrap().count(), 1);
        assert_eq!(git(&root, &[], &["status", "--porcelain"]).unwrap(), before);
        fs::write(tree.join("built"), "").unwrap();
        check_out(&root, "no commit at all", &tree).unwrap();
        assert!(tree.join("built").is_file());
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn files_that_are_the_same_keep_their_times() {
        let root = repository("mirror", &[("from/a", "1"), ("from/b/c", "2"), ("from/target/built", "3")]);
        let (from, to) = (root.join("from"), root.join("to"));
        mirror(&from, &to).unwrap();
        assert_eq!(fs::read_to_string(to.join("b/c")).unwrap(), "2");
        assert!(!to.join("target").exists());
        let long_ago = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1000);
        for name in ["a", "b/c"] {
            fs::File::options().write(true).open(to.join(name)).unwrap().set_modified(long_ago).unwrap();
        }
        fs::write(from.join("b/c"), "4").unwrap();
        for gone in ["gone", "b/gone/d", "target/kept"] {
            fs::create_dir_all(to.join(gone).parent().unwrap()).unwrap();
            fs::write(to.join(gone), "").unwrap();
        }
        mirror(&from, &to).unwrap();
        assert!(!to.join("gone").exists() && !to.join("b/gone").exists() && to.join("target/kept").exists());
        let time = |name: &str| to.join(name).metadata().unwrap().modified().unwrap();
        assert!(time("a") == long_ago && time("b/c") > long_ago);
        assert_eq!(fs::read_to_string(to.join("b/c")).unwrap(), "4");
        fs::remove_dir_all(root).unwrap();
    }
}

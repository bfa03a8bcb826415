//! Checks that the files of a crate form no dependency cycles: if one file uses items of another, the other must not
//! use items of the first, directly or through other files. The files of a cycle can only be understood together. The
//! item that closes the cycle belongs in a file of its own.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::finding::Finding;
use super::source::Source;
use super::test_code::outside_tests;
use super::uses::{Crate, Path, Uses, read, uses};

/// Permitted cycles: the prefixes of their files' paths below `crates/`, and the reason.
const KNOWN: &[(&[&str], &str)] = &[
    (
        &["gradus-backend/src/backend.rs", "gradus-backend/src/composite/", "gradus-backend/src/host_vec.rs"],
        "methods of `Backend` have default bodies, which call other methods of it and claim memory from it",
    ),
    (&["gradus-tensor/src/"], "a tensor has a node of the graph, a node its operation, an operation takes tensors"),
];

pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    check_with(sources, KNOWN)
}

fn check_with(sources: &[Source], known: &[(&[&str], &str)]) -> Vec<Finding> {
    let mut crates: BTreeMap<&str, Vec<(&Source, String)>> = BTreeMap::new();
    let in_workspace = |path: &str| ["crates/", "examples/", "xtask/"].iter().any(|start| path.starts_with(start));
    // Each program in `src/bin` is a crate of a single file.
    let wanted = |path: &str| in_workspace(path) && path.contains("/src/") && !path.contains("/src/bin/");
    for (source, code) in outside_tests(sources, wanted) {
        let folder = source.path.split_once("/src/").map_or("", |(folder, _)| folder);
        crates.entry(folder).or_default().push((source, code));
    }
    let circles: Vec<_> = crates.into_values().flat_map(|files| circles(&read(files))).collect();
    let begins = |file: &str, starts: &[&str]| {
        file.strip_prefix("crates/").is_some_and(|file| starts.iter().any(|start| file.starts_with(start)))
    };
    let stays = |files: &[&str], starts: &[&str]| files.iter().all(|file| begins(file, starts));
    let gone = known.iter().filter(|(starts, _)| !circles.iter().any(|(files, _)| stays(files, starts)));
    let gone = gone.map(|(starts, _)| {
        let message = format!("there is no circle in {} any more: delete its exception", starts.join(", "));
        Finding::new("xtask/src/tidy/circles.rs", 1, message)
    });
    let found = circles.iter().filter(|(files, _)| !known.iter().any(|(starts, _)| stays(files, starts)));
    found.map(|(_, finding)| finding.clone()).chain(gone).collect()
}

/// The modules that a module uses, directly or through others. Each is mapped to the module before it on the shortest
/// path.
fn reached<'a>(uses: &'a Uses, from: &'a Path) -> BTreeMap<&'a Path, &'a Path> {
    let (mut reached, mut queue) = (BTreeMap::new(), VecDeque::from([from]));
    while let Some(at) = queue.pop_front() {
        for next in uses.get(at).into_iter().flat_map(BTreeMap::keys) {
            if !reached.contains_key(next) {
                reached.insert(next, at);
                queue.push_back(next);
            }
        }
    }
    reached
}

/// All dependency cycles, each with its files and the finding about it.
fn circles<'a>(files: &Crate<'a>) -> Vec<(Vec<&'a str>, Finding)> {
    let uses = uses(files);
    let reached: BTreeMap<&Path, _> = files.keys().map(|module| (module, reached(&uses, module))).collect();
    let (mut found, mut done) = (Vec::new(), BTreeSet::new());
    for (&first, before) in reached.iter().filter(|(first, before)| before.contains_key(*first)) {
        let members = files.keys().filter(|other| before.contains_key(other) && reached[other].contains_key(first));
        let members: Vec<&Path> = members.collect();
        if !done.insert(members.clone()) {
            continue;
        }
        let path = |module: &Path| files[module].source.path.as_str();
        let (mut steps, mut next, mut line) = (Vec::new(), first, 1);
        while steps.is_empty() || next != first {
            let user = before[next];
            let what = &uses[user][next];
            (line, next) = (what.0, user);
            steps.push(format!("{}:{line} uses {}", path(user), what.1));
        }
        steps.reverse();
        let names: Vec<&str> = members.into_iter().map(path).collect();
        let message = format!("a circle of {} files: {}; {}", names.len(), names.join(", "), steps.join("; "));
        found.push((names, Finding::new(path(first), line, message)));
    }
    found
}

#[cfg(test)]
mod tests;

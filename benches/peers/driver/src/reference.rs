//! The reference results: `reference.json` holds probes of PyTorch's results in f64, so that peers can be checked
//! without Python.

use std::path::{Path, PathBuf};

use peer_harness::{Job, Probe};
use serde_json::{Map, Value, json};

use crate::peers::{Said, program};

/// The probes of each job's results, stored with the job's kind and sizes.
pub struct Reference(Map<String, Value>);

fn path(root: &Path) -> PathBuf {
    root.join("benches/peers/reference.json")
}

fn title(job: &Job) -> Value {
    json!({ "kind": job.kind, "sizes": job.sizes })
}

impl Reference {
    pub fn read(root: &Path) -> Result<Reference, String> {
        let path = path(root);
        let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let map = serde_json::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(Reference(map))
    }

    /// The probes of a job's results; empty for the job that stands for all jobs.
    pub fn of(&self, job: &Job) -> Result<Vec<Probe>, String> {
        if job.is_all() {
            return Ok(Vec::new());
        }
        let entry = self.0.get(job.name).filter(|entry| entry["of"] == title(job));
        let probes = entry.and_then(|entry| serde_json::from_value(entry["probes"].clone()).ok());
        probes
            .ok_or_else(|| format!("reference.json has no such {}: run `cargo xtask peers --make-reference`", job.name))
    }
}

/// Computes all reference results with PyTorch and writes `reference.json`.
pub fn make(root: &Path, jobs: &[Job], python: Result<PathBuf, String>) -> Result<(), String> {
    let program = program(root, &python, "reference");
    let mut all = Map::new();
    for job in jobs.iter().filter(|job| !job.is_all()) {
        println!("{}", job.name);
        match program.run(job, 0.0)? {
            Said::Slice(slice) => all.insert(job.name.into(), json!({ "of": title(job), "probes": slice.probes })),
            Said::Absent(reason) => return Err(format!("{}: {reason}", job.name)),
        };
    }
    // One line per job.
    let lines: Vec<String> = all.iter().map(|(name, entry)| format!("{}: {entry}", json!(name))).collect();
    let path = path(root);
    std::fs::write(&path, format!("{{\n{}\n}}\n", lines.join(",\n"))).map_err(|e| format!("{}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_job_has_its_reference() {
        let reference = Reference::read(&crate::root()).unwrap();
        for job in peer_harness::jobs().unwrap().into_iter().chain(peer_harness::classes().unwrap()) {
            assert_eq!(reference.of(&job).unwrap().is_empty(), job.is_all(), "{}", job.name);
        }
    }

    #[test]
    fn a_job_that_was_changed_needs_a_new_one() {
        let mut job = peer_harness::jobs().unwrap().swap_remove(0);
        let reference = Reference::read(&crate::root()).unwrap();
        job.sizes = vec![65];
        assert!(reference.of(&job).unwrap_err().contains("--make-reference"));
    }
}

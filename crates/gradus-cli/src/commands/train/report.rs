//! `report.html`: what the pages about runs of all tasks have in common.

use std::path::Path;

use gradus::train::{History, Run, RunReport};

use super::job::Metric;
use crate::output::thousands;

/// The bytes that a page without pictures may take.
pub(super) const MOST_BYTES: usize = 300 << 10;

/// Adds the facts, curves and settings of a run to a task's page, which has a title, a subtitle, a confusion matrix and
/// examples.
pub(super) fn finished(
    mut page: RunReport,
    run: &Run,
    steps: &History,
    metrics: &[Metric],
    config: &str,
    peak_memory: usize,
) -> String {
    let common = RunReport::of("", run);
    page.facts.extend(common.facts);
    page.charts.splice(0..0, common.charts);
    let rate = run.samples as f64 / run.seconds.max(1e-9);
    for (name, value) in &mut page.facts {
        if name == "Samples / s" {
            *value = thousands(rate as usize);
        }
    }
    page.facts.splice(0..0, metrics.iter().map(|metric| (metric.name.clone(), metric.shown())));
    page.facts.push(("Peak memory".into(), format!("{:.1} MiB", peak_memory as f64 / f64::from(1 << 20))));
    page.add_steps(steps);
    page.config = rows(config);
    page.html()
}

/// The last part of a path, for the title of a page.
pub(super) fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

/// The settings of a TOML file as rows, without those of the results, which stand at the top of the page.
fn rows(toml: &str) -> Vec<(String, String)> {
    let (mut rows, mut section) = (Vec::new(), String::new());
    for line in toml.lines() {
        if let Some(name) = line.strip_prefix('[') {
            section = format!("{}.", name.trim_end_matches(']'));
        } else if let Some((name, value)) = line.split_once(" = ")
            && section != "result."
        {
            rows.push((format!("{section}{name}"), value.trim_matches('"').to_owned()));
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    #[test]
    fn settings_are_rows() {
        let rows =
            super::rows("seed = \"0\"\nlr = 0.002\n\n[network]\ninput = [1, 8, 8]\n\n[result]\nepochs_done = 2\n");
        let want = [("seed", "0"), ("lr", "0.002"), ("network.input", "[1, 8, 8]")];
        assert_eq!(rows, want.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }
}

//! Generates `docs/opinfo.md`.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::Tally;
use crate::absent::ABSENT;
use crate::differences::DIFFERENCES;

/// The counts as a table, one line each.
pub(crate) fn counts(t: &Tally) -> String {
    let listed = |accepted: bool| -> usize {
        let all = DIFFERENCES.iter().zip(&t.listed).filter(|(d, _)| d.accepted == accepted);
        all.flat_map(|(_, found)| found.values()).sum()
    };
    format!(
        "| PyTorch {} | |\n|---|---|\n\
         | entries of the database | {} |\n\
         | with a counterpart in Gradus | {} |\n\
         | their samples in f64, i64 and bool | {} |\n\
         | agree in value | {} |\n\
         | in value and first gradient | {} |\n\
         | in value, first and second gradient | {} |\n\
         | draw as many numbers of the same dtype | {} |\n\
         | differ for a reason below | {} |\n\
         | calls that PyTorch refuses | {} |\n\
         | refused by Gradus | {} |\n\
         | not to be written with Gradus's types | {} |\n\
         | accepted for a reason below | {} |\n",
        t.torch,
        t.entries,
        t.called,
        t.samples,
        t.agree[0],
        t.agree[1],
        t.agree[2],
        t.draws,
        listed(false),
        t.errors,
        t.refused,
        t.unwritten,
        listed(true),
    )
}

fn entries(found: &BTreeMap<String, usize>) -> String {
    found.iter().map(|(name, n)| format!("`{name}` {n}")).collect::<Vec<_>>().join(", ")
}

/// The text of the page.
pub(crate) fn page(t: &Tally) -> String {
    let mut text = format!(
        "# PyTorch's samples\n\nMade by `cargo xtask opinfo`, which draws the samples of PyTorch's OpInfo database, runs them on \
         both, and compares values, first gradients (of a fixed random weighting of the outputs) and second ones (of a fixed \
         random weighting of the first). It also makes the calls that the database expects to be refused. A sample that \
         differs without a reason fails it; the example's `--list` prints each that differs with one.\n\n{}",
        counts(t)
    );
    for (accepted, heading) in [
        (false, "## Samples that differ\n\nEach reason, and how many samples of which entries."),
        (true, "## Calls that PyTorch refuses and Gradus accepts"),
    ] {
        let _ = write!(text, "\n{heading}\n\n");
        for (d, found) in DIFFERENCES.iter().zip(&t.listed).filter(|(d, _)| d.accepted == accepted) {
            let _ = writeln!(text, "* {}: {}", d.reason, entries(found));
        }
    }
    let _ = write!(text, "\n## Entries without a counterpart\n\n");
    for (reason, names) in ABSENT {
        let names: Vec<String> = names.split_whitespace().map(|n| format!("`{n}`")).collect();
        let _ = writeln!(text, "* {reason}: {}", names.join(", "));
    }
    let _ = write!(text, "\n## Left out when the samples are drawn\n\n");
    for (reason, n) in &t.left_out {
        let _ = writeln!(text, "* {reason}: {n}");
    }
    text
}

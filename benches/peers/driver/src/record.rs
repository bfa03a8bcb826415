//! The machine-readable record of a run: `{job: {peer: number, .., "fastest", "ratio_torch", "ratio_fastest", ..}}`. A
//! description of the run is stored under `about`.

use peer_harness::Goal;
use serde_json::{Map, Value, json};

use crate::row::Row;

/// The record of a run. Numbers are seconds, or MiB of memory. A peer without a number has its reason under
/// `not_measured`.
pub fn to_json(about: Value, rows: &[Row]) -> Value {
    let rows = rows.iter().map(|row| (row.job.name.to_owned(), entry(row)));
    [("about".to_owned(), about)].into_iter().chain(rows).collect::<Map<_, _>>().into()
}

/// The measurements of all peers.
pub fn measured(row: &Row) -> Map<String, Value> {
    let mut entry = Map::new();
    let (mut rounds, mut missing) = (Map::new(), Map::new());
    let [mut least, mut cores, mut others] = [Map::new(), Map::new(), Map::new()];
    for (name, cell) in &row.cells {
        if let Some(value) = cell.value() {
            entry.insert((*name).into(), json!(value));
            let all = cell.slices();
            rounds.insert((*name).into(), all.iter().map(|slice| slice.value).collect());
            least.insert((*name).into(), json!(all.iter().filter_map(|slice| slice.least).min_by(f64::total_cmp)));
            cores.insert((*name).into(), all.iter().map(|slice| slice.cores).collect());
            others.insert((*name).into(), all.iter().map(|slice| slice.others).collect());
        }
        if let Some((word, reason)) = cell.why_not() {
            missing.insert((*name).into(), json!(format!("{word}: {reason}")));
        }
    }
    let unit = if let Goal::Mebibytes(_) = row.job.goal { "MiB" } else { "s" };
    let more = [("rounds", rounds), ("least", least), ("cores", cores), ("others", others), ("not_measured", missing)];
    entry.extend(more.map(|(name, of_each)| (name.into(), of_each.into())));
    entry.insert("unit".into(), json!(unit));
    entry
}

fn entry(row: &Row) -> Value {
    let mut entry = measured(row);
    let ratio_torch = row.value_of("torch").zip(row.ours()).map(|(theirs, ours)| theirs / ours);
    let goal = match row.job.goal {
        Goal::Milliseconds(goal) => goal * 1e-3,
        Goal::Ratio(goal) | Goal::Mebibytes(goal) => goal,
    };
    let more = json!({
        "fastest": row.fastest().map(|(name, _)| name), "ratio_torch": ratio_torch, "ratio_fastest": row.ratio(),
        "goal": goal, "part_of_goal": row.part_of_goal(),
    });
    entry.extend(more.as_object().cloned().unwrap_or_default());
    entry.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::OURS;
    use crate::row::Cell;
    use crate::row::tests::{measured, row};

    #[test]
    fn numbers_ratios_and_reasons_are_kept() {
        let cells = vec![
            (OURS, measured(&[2.0, 1.0, 4.0])),
            ("torch", measured(&[3.0])),
            ("candle", measured(&[1.0])),
            ("rumus", Cell::Wrong("off".into())),
        ];
        let all = to_json(json!({ "full": true }), &[row(Goal::Ratio(0.5), cells)]);
        assert_eq!(
            all,
            json!({ "about": { "full": true }, "gemm_f32_64": {
                "gradus": 2.0, "torch": 3.0, "candle": 1.0,
                "fastest": "candle", "ratio_torch": 1.5, "ratio_fastest": 0.5,
                "goal": 0.5, "part_of_goal": 1.0, "unit": "s",
                "rounds": { "gradus": [2.0, 1.0, 4.0], "torch": [3.0], "candle": [1.0] },
                "cores": { "gradus": [2.0, 2.0, 2.0], "torch": [2.0], "candle": [2.0] },
                "least": { "gradus": 1.0, "torch": 3.0, "candle": 1.0 },
                "others": { "gradus": [0.01, 0.01, 0.01], "torch": [0.01], "candle": [0.01] },
                "not_measured": { "rumus": "wrong: off" },
            } })
        );
    }

    #[test]
    fn what_is_unknown_is_null() {
        let all = to_json(Value::Null, &[row(Goal::Mebibytes(400.0), vec![(OURS, Cell::Failed("x".into()))])]);
        let entry = &all["gemm_f32_64"];
        assert!(entry["ratio_torch"].is_null() && entry["fastest"].is_null() && entry["part_of_goal"].is_null());
        assert_eq!((entry.get("gradus"), &entry["unit"]), (None, &json!("MiB")));
    }
}

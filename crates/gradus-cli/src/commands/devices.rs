//! `gradus devices`: what this machine can compute on.

use gradus::Result;
use serde::Serialize;

use crate::args::DevicesArgs;
use crate::output::say;

#[derive(Serialize)]
struct Row {
    name: String,
    kind: String,
    hardware: String,
    memory_bytes: Option<u64>,
    features: Vec<String>,
}

/// Lists the devices.
pub(crate) fn run(args: &DevicesArgs) -> Result<()> {
    let rows: Vec<Row> = gradus::devices()?
        .iter()
        .map(|device| {
            let info = device.info();
            Row {
                name: info.name,
                kind: format!("{:?}", info.kind).to_lowercase(),
                hardware: info.hardware,
                memory_bytes: info.memory,
                features: info.features,
            }
        })
        .collect();
    for row in &rows {
        say(&row.name)?;
        say(&format!("  hardware  {}", row.hardware))?;
        match row.memory_bytes {
            Some(bytes) => say(&format!("  memory    {:.1} GiB", bytes as f64 / f64::from(1 << 30)))?,
            None => say("  memory    unknown")?,
        }
        for feature in &row.features {
            match feature.split_once('=') {
                Some((name, value)) => say(&format!("  {name:<8}  {value}"))?,
                None => say(&format!("  feature   {feature}"))?,
            }
        }
    }
    if args.json {
        say(&serde_json::json!({ "devices": rows }).to_string())?;
    }
    Ok(())
}

//! `gradus devices`: lists the devices that this machine can compute on.

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

/// A device that cannot be opened.
#[derive(Serialize)]
struct Closed {
    name: String,
    error: String,
}

/// Lists the devices.
pub(crate) fn run(args: &DevicesArgs) -> Result<()> {
    let (mut rows, mut closed) = (Vec::new(), Vec::new());
    for (name, device) in gradus::devices() {
        match device.map(|d| d.info()) {
            Ok(info) => rows.push(Row {
                name: info.name,
                kind: format!("{:?}", info.kind).to_lowercase(),
                hardware: info.hardware,
                memory_bytes: info.memory,
                features: info.features,
            }),
            // Opening the CPU fails only because of a setting, so this error is an error of the command.
            Err(error) if name == "cpu" => return Err(error),
            Err(error) => closed.push(Closed { name, error: error.to_string() }),
        }
    }
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
    for device in &closed {
        say(&format!("{}\n  does not open: {}", device.name, device.error))?;
    }
    if args.json {
        say(&serde_json::json!({ "devices": rows, "closed": closed }).to_string())?;
    }
    Ok(())
}

//! [`measure`]: how good the predictions for a table are.

use gradus_data::Table;
use gradus_tensor::{Device, Result};

use super::network::Network;
use super::outputs::outputs;
use super::spec::{Goal, Spec};
use crate::Measured;

/// Compares the outputs of a network in evaluation mode with the target column of a table.
///
/// # Errors
/// Fails if the columns are not those of training, if a target is missing or no class of training, or if an output is
/// not finite.
#[track_caller]
pub fn measure(spec: &Spec, network: &Network, table: &Table, device: &Device) -> Result<Measured> {
    let targets = spec.targets(table, device)?;
    let outputs = outputs(spec, network, table, device)?;
    match &spec.goal {
        Goal::Classification { .. } => Measured::of_classes(&outputs, &targets),
        Goal::Regression { .. } => Measured::of_numbers(&outputs, &spec.unscaled(&targets)?),
    }
}

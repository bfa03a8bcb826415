//! [`measure`]: how good the predictions for a table are.

use gradus_data::Table;
use gradus_tensor::{Device, Result};

use super::network::Network;
use super::outputs::{outputs, unscaled};
use super::spec::{Goal, Spec};
use crate::Measured;

/// Compares the outputs of a network in evaluation mode with the target column of a table.
///
/// # Errors
/// Fails if the columns are not those of training, if a target is missing or no class of training, or if an output is
/// not finite.
#[track_caller]
pub fn measure(spec: &Spec, network: &Network, table: &Table, device: &Device) -> Result<Measured> {
    match spec.goal {
        Goal::Classification { .. } => {
            let targets = spec.targets(table, device)?;
            Measured::of_classes(&outputs(spec, network, table, device)?, &targets)
        }
        Goal::Regression { mean, std } => {
            let targets = spec.numbers(table)?;
            Measured::of_numbers(&unscaled(&outputs(spec, network, table, device)?, mean, std)?, targets)
        }
    }
}

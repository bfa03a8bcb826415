//! The outputs of a network for the rows of a table.

use gradus_data::Table;
use gradus_nn::Forward;
use gradus_tensor::{Device, Here, Result, Tensor, no_grad};

use super::network::Network;
use super::spec::Spec;

/// The number of rows that a network is given at once.
const BATCH: usize = 4096;

/// Logits `[n, classes]`, or numbers `[n]` in the unit of the target.
#[track_caller]
pub(super) fn outputs(spec: &Spec, network: &Network, table: &Table, device: &Device) -> Result<Tensor> {
    let inputs = spec.inputs(table, device)?;
    let rows = inputs.size(0)?;
    // At most one part for each `BATCH` rows.
    let mut parts = Vec::new();
    for start in (0..rows.max(1)).step_by(BATCH) {
        let part = inputs.narrow(0, start, BATCH.min(rows - start))?;
        parts.push(no_grad(|| spec.unscaled(&network.forward(&part)?)).here()?);
    }
    Tensor::cat(&parts.iter().collect::<Vec<_>>(), 0)
}

//! The outputs of a network for the rows of a table.

use gradus_data::Table;
use gradus_nn::Forward;
use gradus_tensor::{DType, Device, Here, Result, Tensor, no_grad};

use super::network::Network;
use super::spec::Spec;

/// The number of rows that a network is given at once.
const BATCH: usize = 4096;

/// Logits `[n, classes]`, or standardised numbers `[n, 1]`.
#[track_caller]
pub(super) fn outputs(spec: &Spec, network: &Network, table: &Table, device: &Device) -> Result<Tensor> {
    let inputs = spec.inputs(table, device)?;
    let rows = inputs.size(0)?;
    // At most one part for each `BATCH` rows.
    let mut parts = Vec::new();
    for start in (0..rows.max(1)).step_by(BATCH) {
        let part = inputs.narrow(0, start, BATCH.min(rows - start))?;
        parts.push(no_grad(|| network.forward(&part)).here()?);
    }
    Tensor::cat(&parts.iter().collect::<Vec<_>>(), 0)
}

/// Standardised numbers in the unit of the target. They are f64: f32 is too coarse for numbers that differ little
/// relative to their mean, such as times.
#[track_caller]
pub(super) fn unscaled(outputs: &Tensor, mean: f64, std: f64) -> Result<Vec<f64>> {
    let outputs = outputs.to_dtype(DType::F32)?.to_vec::<f32>()?;
    Ok(outputs.into_iter().map(|x| f64::from(x) * std + mean).collect())
}

//! The last check: the bytes are read as a model, which is run beside the module.

use std::path::Path;

use gradus_tensor::{DType, Error, ErrorKind, Result, Tensor, no_grad};

use super::options::Plan;
use super::trace::OP;
use super::write::Files;
use crate::model::OnnxModel;

/// The largest difference that is accepted, as a part of the largest magnitude: sums in another order, and other formulas of
/// functions, differ by so much.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-10,
        DType::F32 => 1e-4,
        d if d.is_float() => 2e-2,
        _ => 0.0,
    }
}

/// Compares a model with what the module computed with several sizes of the dynamic axes. Returns the largest difference in
/// any output, as a part of the output's largest magnitude.
pub(super) fn check(
    files: &Files,
    beside: &Path,
    inputs: &[(&str, &Tensor)],
    names: &[String],
    plan: &Plan<'_>,
    expected: &[(Vec<usize>, Vec<Tensor>)],
) -> Result<f64> {
    let wrong = |e: Error| e.note("the model that was to be written, as read back").help("please report this model");
    let device = inputs[0].1.device();
    let beside = beside.file_name().unwrap_or_default().to_string_lossy();
    let data = files.data.as_deref().map(|data| (&*beside, data));
    let mut model = OnnxModel::with_data(&files.model, data, device).map_err(wrong)?;
    // What is compared is the file, node by node.
    model.optimise(false);
    let mut largest: f64 = 0.0;
    let mut compare = |sizes: &[usize], expected: &[Tensor]| -> Result<()> {
        let given = plan.inputs(inputs, sizes)?;
        let given: Vec<(&str, Tensor)> = inputs.iter().map(|(name, _)| *name).zip(given).collect();
        let found = no_grad(|| model.run(&given)).map_err(wrong)?;
        for ((x, (_, y)), name) in expected.iter().zip(&found).zip(names) {
            let difference = difference(x, y)?;
            if difference > tolerance(x.dtype()) {
                let m = format!(
                    "the output \"{name}\" of the exported model differs from the module's by {difference:.1e} of its largest value"
                );
                let e = Error::new(ErrorKind::Unsupported, OP, m)
                    .operand("module", x.shape(), x.dtype(), x.device())
                    .operand("model", y.shape(), y.dtype(), y.device());
                let shown: Vec<String> =
                    plan.axes.iter().zip(sizes).map(|(axis, size)| format!("{} = {size}", axis.name)).collect();
                return Err(e.note(format!("with the sizes [{}]", shown.join(", "))));
            }
            largest = largest.max(difference);
        }
        Ok(())
    };
    for (sizes, results) in expected {
        compare(sizes, results)?;
    }
    Ok(largest)
}

/// The largest difference as a part of the largest magnitude; 0 for equal bits, infinity for other shapes or dtypes.
fn difference(x: &Tensor, y: &Tensor) -> Result<f64> {
    if x.shape() != y.shape() || x.dtype() != y.dtype() {
        return Ok(f64::INFINITY);
    }
    if x.to_bytes()? == y.to_bytes()? {
        return Ok(0.0);
    }
    let (x, y) = (crate::value::host_floats(x)?, crate::value::host_floats(y)?);
    let largest = x.iter().filter(|v| v.is_finite()).fold(0.0f64, |m, v| m.max(v.abs()));
    let apart = |(a, b): (&f64, &f64)| match (a - b).abs() {
        _ if a == b || (a.is_nan() && b.is_nan()) => 0.0,
        d if d.is_nan() => f64::INFINITY,
        d => d,
    };
    let most = x.iter().zip(&y).map(apart).fold(0.0f64, f64::max);
    Ok(if most == 0.0 { 0.0 } else { most / largest.max(f64::MIN_POSITIVE) })
}

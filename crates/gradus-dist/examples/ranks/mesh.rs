//! Trains a small GPT with data and tensor parallelism at once, and compares it with the same training in one process.

#[path = "../../tests/common/mod.rs"]
mod common;

use std::sync::Arc;

use gradus_dist::Communicator;
use gradus_nn::Module;
use gradus_tensor::{DType, Device, Error, Result, Tensor};

use super::{EMPTY, hash, line};
use common::{Zero, alone, off, on_mesh, tolerance};

pub(crate) fn run(comm: &Arc<dyn Communicator>, device: &Device) -> Result<String> {
    let mut text = String::new();
    let one = alone(DType::F64)?.state_dict()?;
    for sequence in [false, true] {
        for zero in [Zero::Off, Zero::Two, Zero::Three] {
            let (model, replicated, _) = on_mesh(comm, [comm.size() / 2, 2], DType::F64, sequence, zero, false)?;
            // The largest difference, where 1 is what is permitted.
            let (mut most, model) = (0.0f64, model.state_dict()?);
            for (name, tensor) in one.iter() {
                let mine = model.get(name).ok_or_else(|| Error::argument("ranks", format!("{name} is missing")))?;
                let part = off(mine, tensor) / tolerance(name);
                most = if part > most || part.is_nan() { part } else { most };
            }
            let mine = Tensor::from_vec(vec![hash(EMPTY, &replicated)], [1], device)?;
            let all = comm.all_gather(&mine)?.to_vec::<u64>()?;
            if most.is_nan() || most > 1.0 || all.iter().any(|other| *other != all[0]) {
                let m =
                    format!("ZeRO {zero:?}, parts of the sequence {sequence}: {most:.3} of the tolerance, {all:x?}");
                return Err(Error::argument("ranks", m));
            }
            let how = format_args!("ZeRO {zero:?}, parts of the sequence {sequence}");
            line(&mut text, format_args!("{how}: {most:.3} of the tolerance from one process"));
        }
    }
    Ok(text)
}

//! [`fact`]: numbers of a tensor that a captured step needs on the host.

use std::any::Any;
use std::sync::{Arc, OnceLock};

use gradus_tensor::backend::{Backend, Binding, Element};
use gradus_tensor::ops::{self, HostCall};
use gradus_tensor::{Bound, Error, Result, Tensor};

use crate::group::Line;

/// Numbers that are the same in each call of a captured step. A replay reads them too, and fails if they are not.
#[derive(Debug)]
struct Fact {
    what: &'static str,
    numbers: OnceLock<Vec<f32>>,
}

/// The elements of a tensor of f32. In a captured step they are facts of the step, and `what` says what they are: a replay
/// in which they differ is an error.
pub(crate) fn fact(x: &Tensor, what: &'static str, line: Line) -> Result<Vec<f32>> {
    if !ops::is_captured() {
        return x.to_vec::<f32>();
    }
    let fact = Arc::new(Fact { what, numbers: OnceLock::new() });
    x.device().dispatch_host(fact.clone(), &[Bound::Read(x)], line)?;
    Ok(fact.numbers.get().cloned().unwrap_or_default())
}

impl HostCall for Fact {
    fn name(&self) -> &str {
        "fact"
    }

    fn is_same(&self, other: &dyn HostCall) -> bool {
        let other: Option<&Fact> = (other as &dyn Any).downcast_ref();
        other.is_some_and(|other| self.numbers == other.numbers)
    }

    fn is_seen(&self) -> bool {
        false
    }

    fn call(&self, backend: &dyn Backend, operands: &mut [Binding<'_>]) -> Result<()> {
        let [Binding::Read(x)] = operands else { return Err(Error::argument("fact", "one tensor is read")) };
        let mut numbers = vec![0.0f32; x.layout.numel()];
        if let Some(bytes) = f32::as_bytes_mut(&mut numbers) {
            backend.download(x.buffer, x.layout.offset() * size_of::<f32>(), bytes)?;
        }
        if *self.numbers.get_or_init(|| numbers.clone()) == numbers {
            return Ok(());
        }
        let e = Error::argument("capture", format!("{} differ between two calls of a captured step", self.what));
        Err(e.help("a step does the same in every call; run this one outside of a captured step"))
    }
}

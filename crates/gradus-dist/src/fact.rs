//! [`fact`]: numbers of a tensor that a captured step needs on the host.

use std::any::Any;
use std::sync::{Arc, OnceLock};

use gradus_tensor::backend::{Backend, Binding, Element};
use gradus_tensor::ops::{self, HostCall};
use gradus_tensor::{Bound, Error, Result, Tensor};

use crate::group::Line;

/// Numbers that are the same in each call of a captured step. A replay reads them too, and fails if they are not.
#[derive(Debug)]
struct Fact<T> {
    what: String,
    numbers: OnceLock<Vec<T>>,
}

/// The elements of a tensor. In a captured step they are facts of the step, and `what` says what they are: a replay in which
/// they differ is an error, on all ranks.
pub(crate) fn fact<T: Element>(x: &Tensor, what: &str, line: Line) -> Result<Vec<T>> {
    if !ops::is_captured() {
        return x.to_vec::<T>();
    }
    let fact = Arc::new(Fact { what: what.to_owned(), numbers: OnceLock::<Vec<T>>::new() });
    x.device().dispatch_host(fact.clone(), &[Bound::Read(x)], line)?;
    Ok(fact.numbers.get().cloned().unwrap_or_default())
}

impl<T: Element> HostCall for Fact<T> {
    fn name(&self) -> &str {
        "fact"
    }

    fn is_same(&self, other: &dyn HostCall) -> bool {
        let other: Option<&Fact<T>> = (other as &dyn Any).downcast_ref();
        other.is_some_and(|other| self.numbers == other.numbers)
    }

    fn is_seen(&self) -> bool {
        false
    }

    fn call(&self, backend: &dyn Backend, operands: &mut [Binding<'_>]) -> Result<()> {
        let [Binding::Read(x)] = operands else { return Err(Error::argument("fact", "one tensor is read")) };
        let mut numbers = vec![T::default(); x.layout.numel()];
        if let Some(bytes) = T::as_bytes_mut(&mut numbers) {
            backend.download(x.buffer, x.layout.offset() * size_of::<T>(), bytes)?;
        }
        let known = self.numbers.get_or_init(|| numbers.clone());
        if *known == numbers {
            return Ok(());
        }
        let e = Error::argument("capture", format!("{} differ between two calls of a captured step", self.what));
        let e = e.note(format!("when it was traced: {known:?}")).note(format!("in this replay: {numbers:?}"));
        Err(e.help("a step does the same in every call, on all ranks; run this one outside of a captured step"))
    }
}

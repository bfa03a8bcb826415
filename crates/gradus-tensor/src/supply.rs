//! [`with_supply`]: memory that was given back is filled when an operation needs it.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use gradus_backend::{Here, Result};

use crate::autograd::{beside_in_step, is_supplied, supplying};
use crate::{Storage, Tensor};

/// Fills memory that was given back; see [`with_supply`].
pub type Supply = dyn Fn(&[&Arc<Storage>]) -> Result<()>;

thread_local! {
    /// The supplies of this thread, the innermost last.
    static SUPPLIES: RefCell<Vec<Rc<Supply>>> = const { RefCell::new(vec![]) };
}

/// Removes the innermost supply when it is dropped.
struct Outer;

impl Drop for Outer {
    fn drop(&mut self) {
        drop(SUPPLIES.with_borrow_mut(Vec::pop));
    }
}

/// Runs `f`. Before an operation of this thread accesses memory that was [given back](Storage::give_back), `supply` is
/// called with all storages that the operation accesses, and [fills](Storage::fill) them; it may give back others. Within
/// `supply` there is no supply, and nothing is recorded. Captured steps that are called meanwhile run eagerly. Where the
/// whole call is part of a captured step, a replay repeats the operations of `supply`, not what it does on the host; what was
/// filled is given back before the step ends.
///
/// ```
/// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::{rc::Rc, sync::Arc};
/// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
/// let w = Tensor::from_vec(vec![1.0f32, 2.0], [2], &device)?;
/// w.storage().give_back()?;
/// let supply = move |storages: &[&Arc<Storage>]| {
///     storages.iter().filter(|storage| storage.is_given_back()).try_for_each(|storage| {
///         storage.fill(Tensor::from_vec(vec![1.0f32, 2.0], [2], storage.device())?)
///     })
/// };
/// assert_eq!(with_supply(Rc::new(supply), || w.sum_all()?.item())?, 3.0);
/// # Ok::<(), Error>(())
/// ```
pub fn with_supply<R>(supply: Rc<Supply>, f: impl FnOnce() -> R) -> R {
    SUPPLIES.with_borrow_mut(|supplies| supplies.push(supply));
    let _outer = Outer;
    let _mode = supplying(true);
    f()
}

/// Lets the innermost supply fill what is given back of the tensors that an operation reads and writes.
#[cold]
#[track_caller]
pub(crate) fn supply(read: &[&Tensor], written: &[&Tensor]) -> Result<()> {
    let all = || read.iter().chain(written).map(|t| t.storage());
    if !is_supplied() || !all().any(|storage| storage.is_given_back()) {
        return Ok(());
    }
    let Some(supply) = SUPPLIES.with_borrow(|supplies| supplies.last().cloned()) else { return Ok(()) };
    let _modes = (beside_in_step(), supplying(false));
    supply(&all().collect::<Vec<_>>()).here()
}

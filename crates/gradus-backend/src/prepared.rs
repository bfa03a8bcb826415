//! [`Prepared`]: what a backend keeps of a list of calls that runs many times; and [`Reclaim`]: memory that it may free.

use std::any::Any;
use std::fmt;

/// What a backend keeps between the runs of a list of calls, such as a recording of them; see
/// [`Backend::run_prepared`](crate::Backend::run_prepared). Whoever runs the list owns it, and drops it with the list.
#[derive(Default)]
pub struct Prepared {
    kept: Option<Box<dyn Any + Send + Sync>>,
}

impl Prepared {
    /// What the backend kept, if it is of this type.
    pub fn get<T: Any>(&self) -> Option<&T> {
        self.kept.as_deref()?.downcast_ref()
    }

    /// What the backend kept, if it is of this type, to be changed.
    pub fn get_mut<T: Any>(&mut self) -> Option<&mut T> {
        self.kept.as_deref_mut()?.downcast_mut()
    }

    /// Keeps `value` instead of what was kept before.
    pub fn keep<T: Any + Send + Sync>(&mut self, value: T) {
        self.kept = Some(Box::new(value));
    }

    /// Drops what was kept.
    pub fn forget(&mut self) {
        self.kept = None;
    }
}

impl fmt::Debug for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prepared").field("is_kept", &self.kept.is_some()).finish()
    }
}

/// Memory that its holder can do without between two uses of it, such as a place for results that are copied from there. A
/// backend may take it back when it has no more; see [`Backend::offer`](crate::Backend::offer).
pub trait Reclaim: Send + Sync {
    /// How many bytes [`clear`](Reclaim::clear) would free now. Does not wait.
    fn bytes(&self) -> usize;

    /// Frees the memory, unless it is in use now. Returns whether it did. Does not wait.
    fn clear(&self) -> bool;
}

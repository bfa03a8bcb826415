//! Allocates lists whose length is determined by a file, and returns an error if memory is short.

use gradus_tensor::{Error, ErrorKind, Result};

/// Reserves room for `more` elements. On failure the error names `op` and the file `name`.
#[track_caller]
pub(crate) fn reserve<T>(list: &mut Vec<T>, more: usize, op: &str, name: &str) -> Result<()> {
    list.try_reserve(more).map_err(|e| no_memory::<T>(list.len().saturating_add(more), op, name, e))
}

/// Like [`reserve`], but without spare capacity.
#[track_caller]
pub(crate) fn reserve_exact<T>(list: &mut Vec<T>, more: usize, op: &str, name: &str) -> Result<()> {
    list.try_reserve_exact(more).map_err(|e| no_memory::<T>(list.len().saturating_add(more), op, name, e))
}

#[track_caller]
fn no_memory<T>(count: usize, op: &str, name: &str, source: std::collections::TryReserveError) -> Error {
    let requested = count.saturating_mul(size_of::<T>());
    let e = Error::new(ErrorKind::OutOfMemory { requested }, op, format!("{name}: no memory for {requested} bytes"));
    e.with_source(source).help("give a smaller file, or free memory")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_for_which_there_is_no_memory_is_an_error() {
        let mut list = vec![1u32];
        let e = reserve(&mut list, usize::MAX / 8, "csv", "a.csv").unwrap_err();
        assert!(e.to_string().contains("a.csv: no memory for"), "{e}");
        assert!(matches!(e.kind(), ErrorKind::OutOfMemory { .. }));
        assert!(reserve_exact(&mut list, usize::MAX, "csv", "a.csv").is_err());
        reserve_exact(&mut list, 9, "csv", "a.csv").unwrap();
        assert_eq!((list.len(), list.capacity()), (1, 10));
    }
}

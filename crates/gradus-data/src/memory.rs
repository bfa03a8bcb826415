//! Allocates lists whose length is determined by a file, and returns an error if memory is short.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use gradus_tensor::{Error, ErrorKind, Here, Result};

/// Reserves room for `more` elements. On failure the error names `op` and the file `name`.
#[track_caller]
pub(crate) fn reserve<T>(list: &mut Vec<T>, more: usize, op: &str, name: &str) -> Result<()> {
    list.try_reserve(more).map_err(|e| no_memory::<T>(list.len().saturating_add(more), op, name, e))
}

/// Reserves memory for one more element. If the list must grow, its capacity at least doubles.
#[track_caller]
pub(crate) fn room<T>(list: &mut Vec<T>, op: &str, name: &str) -> Result<()> {
    let more = list.len().max(16);
    if list.len() < list.capacity() { Ok(()) } else { reserve(list, more, op, name) }
}

/// Like [`reserve`], but without spare capacity.
#[track_caller]
pub(crate) fn reserve_exact<T>(list: &mut Vec<T>, more: usize, op: &str, name: &str) -> Result<()> {
    list.try_reserve_exact(more).map_err(|e| no_memory::<T>(list.len().saturating_add(more), op, name, e))
}

/// Reads a regular file whole. Errors name `op` and the expected kind of file, for example `a CSV file`.
#[track_caller]
pub(crate) fn read_file(path: &Path, op: &str, what: &str) -> Result<Vec<u8>> {
    let name = path.display().to_string();
    let failed = |e| Error::io(op, &name, e).help(format!("give the path of {what} that can be read"));
    // The type of the file is checked first: opening a named pipe would block until a writer opens it.
    let found = std::fs::metadata(path).map_err(failed).here()?;
    gradus_file::check_regular(op, path, &found).map_err(|e| e.help(format!("give the path of {what}")))?;
    let mut bytes = Vec::new();
    reserve_exact(&mut bytes, usize::try_from(found.len()).unwrap_or(usize::MAX), op, &name)?;
    File::open(path).map_err(failed).here()?.take(found.len()).read_to_end(&mut bytes).map_err(failed).here()?;
    Ok(bytes)
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

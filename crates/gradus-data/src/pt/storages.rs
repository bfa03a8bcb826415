//! The storages of a file: finds those that tensors need, and reads their elements.

use std::collections::BTreeMap;

use gradus_tensor::{DType, Device, Error, ErrorKind, Here, Result, Tensor};

use super::global::Storage;
use super::value::{Object, Pickled};

pub(super) const OP: &str = "load_pt";

/// The largest pickle that is read, in bytes. A pickle holds names and shapes; the elements are stored separately.
pub(super) const MOST_PICKLE: u64 = 1 << 28;

/// Advice for a file whose pickle cannot be read.
pub(super) const HELP: &str = "save tensors, numbers, texts, lists and dicts of these, such as model.state_dict(); in Python, \
                    torch.load with weights_only=True checks the same";

/// The storages of which tensors are views, each listed once.
pub(super) fn storages_of(pickled: &Pickled) -> std::result::Result<Vec<Storage>, String> {
    let mut found: BTreeMap<&str, &Storage> = BTreeMap::new();
    for object in &pickled.objects {
        let Object::Tensor { storage, .. } = object else { continue };
        let Some(Object::Storage(storage)) = pickled.objects.get(*storage) else { continue };
        if found.insert(&storage.key, storage).is_some_and(|other| other != storage) {
            return Err(format!("the storage {:?} has two dtypes or sizes", storage.key));
        }
    }
    Ok(found.into_values().cloned().collect())
}

/// Reads a storage of `bytes` bytes as a tensor of one axis.
#[track_caller]
pub(super) fn elements(
    storage: &Storage,
    bytes: u64,
    name: &str,
    device: &Device,
    swapped: bool,
    mut fill: impl FnMut(&mut [u8]) -> Result<()>,
) -> Result<Tensor> {
    let bad = |what: String| Error::new(ErrorKind::Format, OP, format!("{name}: the storage {:?} {what}", storage.key));
    let Some(dtype) = storage.dtype else { return Err(bad("has no dtype".into())) };
    if (storage.size as u64).checked_mul(dtype.size() as u64) != Some(bytes) {
        let m = format!("promises {} elements of {dtype} and has {bytes} bytes", storage.size);
        return Err(bad(m).help("is the file whole? Copy it again"));
    }
    let tensor = Tensor::from_pieces([storage.size], dtype, device, |piece| {
        fill(piece)?;
        if swapped {
            piece.chunks_exact_mut(dtype.size()).for_each(<[u8]>::reverse);
        }
        if dtype == DType::Bool && piece.iter().any(|&b| b > 1) {
            return Err(bad("is bool, but has bytes other than 0 and 1".into())).here();
        }
        Ok(())
    });
    tensor.map_err(|e| if e.kind() == &ErrorKind::Format { e } else { e.note(format!("file: {name}")) }).here()
}

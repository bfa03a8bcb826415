//! PyTorch's files: what `torch.save` writes to `.pt` and `.pth`, read without executing any of it.
//!
//! Such a file holds a pickle, which is a program that may call any Python function. This reader accepts only the few
//! names with which tensors, dicts and parameters are saved. Any other name in a file, such as the class of a whole
//! model, is an error that states the name.
//!
//! To read weights into a model, save `model.state_dict()` in PyTorch, and collect the tensors into a `StateDict`:
//!
//! ```no_run
//! # use gradus_cpu::CpuBackend; use gradus_tensor::{Device, Error}; use std::sync::Arc;
//! # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
//! let file = gradus_data::pt::load("resnet18.pt", &device)?;
//! for (name, tensor) in &file.tensors {
//!     println!("{name}: {:?}", tensor.shape());
//! }
//! // let state: StateDict = file.tensors.into_iter().collect();
//! // model.load_state_dict(&state, Strict::Yes)?;
//! # Ok::<(), Error>(())
//! ```

mod contents;
mod flat;
mod global;
mod legacy;
mod pickle;
mod storages;
mod value;
mod view;

use std::collections::BTreeMap;
use std::io::{Read, Seek};
use std::path::Path;

use gradus_tensor::{Device, Error, ErrorKind, Here, Result};

use self::storages::{HELP, MOST_PICKLE, OP, elements, storages_of};
use crate::zip::{Entry, Zip};

pub use self::contents::{Plain, TorchFile};

/// Reads a file of `torch.save`, in the zip format (since PyTorch 1.6) or the older one.
///
/// # Errors
/// [`ErrorKind::Io`] if the file cannot be read. [`ErrorKind::Format`] if it is cut off, damaged or of another format,
/// or if its pickle names a Python function or class that does not belong to tensors; the error names it.
/// [`ErrorKind::OutOfMemory`] if the tensors do not fit into memory.
#[track_caller]
pub fn load(path: impl AsRef<Path>, device: &Device) -> Result<TorchFile> {
    let path = path.as_ref();
    let mut file = crate::npy::open(path, OP, "a file of torch.save")?;
    let name = path.display().to_string();
    let failed = |e| Error::io(OP, &name, e);
    let mut start = Vec::new();
    file.by_ref().take(legacy::MAGIC.len() as u64).read_to_end(&mut start).map_err(failed).here()?;
    file.rewind().map_err(failed).here()?;
    if start == legacy::MAGIC {
        return legacy::load(file, &name, device).here();
    }
    if !start.starts_with(b"PK\x03\x04") {
        let m = format!("{name} is no file of torch.save");
        return Err(
            Error::new(ErrorKind::Format, OP, m).help("a safetensors file is read by StateDict::load_safetensors")
        );
    }
    let mut zip = Zip::open(file, path, OP)?;
    let bad = |what: String| Error::new(ErrorKind::Format, OP, format!("{name}: {what}"));
    let Some(pickle) = zip.entries().iter().find(|e| e.name == "data.pkl" || e.name.ends_with("/data.pkl")).cloned()
    else {
        return Err(bad("this zip archive is no file of torch.save: it has no data.pkl".into())
            .help("TorchScript files and .npz files are other formats"));
    };
    let folder = pickle.name.strip_suffix("data.pkl").unwrap_or_default().to_owned();
    if zip.entries().iter().any(|e| e.name == format!("{folder}constants.pkl")) {
        return Err(bad("this is a TorchScript file".into()).help("save the state_dict of the model with torch.save"));
    }
    // A small compressed file could expand to a vast one, and PyTorch never compresses.
    if let Some(entry) = zip.entries().iter().find(|e| e.deflated) {
        return Err(bad(format!("{:?} is compressed, which torch.save never does", entry.name))
            .help("load the file in PyTorch and save it again"));
    }
    let bytes = zip.read(&pickle, MOST_PICKLE)?;
    let pickled = pickle::run(&bytes).map_err(|e| bad(e).help(HELP)).here()?;
    let entry = |zip: &Zip, key: &str| zip.entries().iter().find(|e| e.name == format!("{folder}{key}")).cloned();
    let swapped = match entry(&zip, "byteorder") {
        Some(order) => (zip.read(&order, 16)? == b"big") != cfg!(target_endian = "big"),
        None => cfg!(target_endian = "big"),
    };
    let mut by_name: BTreeMap<String, Entry> = BTreeMap::new();
    by_name.extend(zip.entries().iter().map(|e| (e.name.clone(), e.clone())));
    let mut storages = BTreeMap::new();
    for storage in storages_of(&pickled).map_err(bad).here()? {
        let found = by_name.get(&format!("{folder}data/{}", storage.key));
        let entry = found.ok_or_else(|| bad(format!("the storage {:?} is not there", storage.key))).here()?;
        let mut contents = zip.contents(entry)?;
        let tensor = elements(&storage, entry.size, &name, device, swapped, |piece| contents.fill(piece))?;
        contents.check()?;
        storages.insert(storage.key, tensor);
    }
    flat::flatten(&pickled, &storages, bytes.len()).map_err(|e| e.note(format!("file: {name}"))).here()
}

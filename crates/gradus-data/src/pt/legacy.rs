//! The format of `torch.save` before PyTorch 1.6: a pickle each of a magic number, a version, facts about the machine,
//! the object, and the keys of its storages, followed by the storages one after another.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};

use gradus_tensor::{Device, Error, ErrorKind, Here, Result};

use super::contents::TorchFile;
use super::flat::flatten;
use super::pickle::run;
use super::storages::{HELP, MOST_PICKLE, OP, elements, storages_of};
use super::value::{Object, Pickled, Value};

/// The pickle of the magic number.
pub(super) const MAGIC: &[u8] = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";

/// The number of bytes that are read first to find the ends of the pickles.
const FIRST: u64 = 1 << 16;

#[track_caller]
pub(super) fn load(mut file: File, name: &str, device: &Device) -> Result<TorchFile> {
    let bad = |what: String| Error::new(ErrorKind::Format, OP, format!("{name}: {what}"));
    let failed = |e| Error::io(OP, name, e);
    let length = file.metadata().map_err(failed).here()?.len();
    // The file does not state the lengths of its pickles, so more of it is read until they are complete.
    let mut most = FIRST;
    let (object, keys, start) = loop {
        let mut bytes = Vec::new();
        file.rewind().map_err(failed).here()?;
        let size = most.min(length);
        crate::memory::reserve_exact(&mut bytes, usize::try_from(size).unwrap_or(usize::MAX), OP, name)?;
        file.by_ref().take(size).read_to_end(&mut bytes).map_err(failed).here()?;
        match pickles(&bytes) {
            Ok(found) => break found,
            Err(what) if size == length || size >= MOST_PICKLE => return Err(bad(what).help(HELP)),
            // Unless the pickle is merely cut off, reading more would not help.
            Err(what) if !what.contains(CUT) => return Err(bad(what).help(HELP)),
            Err(_) => most = most.saturating_mul(8).min(MOST_PICKLE),
        }
    };
    let wanted: BTreeMap<String, _> =
        storages_of(&object).map_err(bad).here()?.into_iter().map(|s| (s.key.clone(), s)).collect();
    let mut source = BufReader::new(file);
    let mut at = start;
    let mut storages = BTreeMap::new();
    for key in keys {
        let storage = wanted.get(&key).ok_or_else(|| bad(format!("the storage {key:?} has no tensor"))).here()?;
        let width = storage.dtype.map_or(1, |d| d.size()) as u64;
        source.seek(SeekFrom::Start(at)).map_err(failed).here()?;
        let early = || bad("it ends too early".into()).help("is the file whole? Copy it again");
        let mut count = [0; 8];
        source.read_exact(&mut count).map_err(|_| early()).here()?;
        let bytes = u64::from_le_bytes(count).saturating_mul(width);
        at = (at + 8).saturating_add(bytes);
        if at > length {
            return Err(early());
        }
        let swapped = cfg!(target_endian = "big");
        let fill = |piece: &mut [u8]| source.read_exact(piece).map_err(failed).here();
        let tensor = elements(storage, bytes, name, device, swapped, fill)?;
        storages.insert(key, tensor);
    }
    if at != length {
        return Err(bad("it goes on after its last storage".into()).help("is the file damaged? Copy it again"));
    }
    flatten(&object, &storages, object.length).map_err(|e| e.note(format!("file: {name}"))).here()
}

/// The end of the error message for a pickle that is cut off.
const CUT: &str = "the pickle ends too early";

/// The object, the keys of its storages, and the offset at which the storages begin.
fn pickles(bytes: &[u8]) -> std::result::Result<(Pickled, Vec<String>, u64), String> {
    let mut at = 0;
    let mut next = || {
        let pickled = run(bytes.get(at..).unwrap_or(&[]))?;
        at += pickled.length;
        Ok::<Pickled, String>(pickled)
    };
    let (_magic, version, _machine) = (next()?, next()?, next()?);
    if version.result != Value::Int(1001) {
        return Err("it is of an unknown version".into());
    }
    let (object, keys) = (next()?, next()?);
    let Value::Object(list) = keys.result else { return Err("it has no list of storages".into()) };
    let Some(Object::List(values)) = keys.objects.get(list) else { return Err("it has no list of storages".into()) };
    let key = |value: &Value| match value {
        Value::Object(at) => match keys.objects.get(*at) {
            Some(Object::Text(text)) => Ok(text.clone()),
            _ => Err("the key of a storage is no text".to_owned()),
        },
        _ => Err("the key of a storage is no text".to_owned()),
    };
    let names = values.iter().map(key).collect::<std::result::Result<_, _>>()?;
    Ok((object, names, at as u64))
}

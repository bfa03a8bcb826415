//! The header of a safetensors file.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io::Read;

use gradus_tensor::backend::BackendKind;
use gradus_tensor::backend::host_vec::{HostVec, check_room};
use gradus_tensor::backend::shape::MAX_RANK;
use gradus_tensor::{Device, Error};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use serde::Deserialize;
use serde::de::{self, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// The operation that errors name.
pub(super) const LOAD: &str = "load_safetensors";

/// The longest header that is accepted, as in the reference implementation.
pub(super) const MAX_HEADER: u64 = 100_000_000;

pub(super) enum HeaderError {
    Io(std::io::Error),
    Format(String),
    Memory(Error),
}

/// Approximate host memory, in bytes, that each byte of the header takes once parsed, because names and lists become
/// many small allocations. Metadata with very short texts takes more.
const PARSED: usize = 8;

/// How many characters of a name an error shows.
const SHOWN: usize = 100;

/// Reads and checks the header of a file of `length` bytes, and checks that the tensors it describes fit into memory if
/// `all` of them are to be read. Nothing is allocated before these checks, because a sparse file may claim to be far
/// longer than its disk.
#[track_caller]
pub(super) fn read_header(
    reader: &mut impl Read,
    length: u64,
    device: &Device,
    all: bool,
) -> Result<Metadata, HeaderError> {
    let backend = device.backend();
    let wrong = |m: String| Err(HeaderError::Format(m));
    if length < 8 {
        return wrong(format!("{length} bytes are too few for a safetensors file, which starts with 8 of its own"));
    }
    let mut size = [0; 8];
    reader.read_exact(&mut size).map_err(HeaderError::Io)?;
    let size = u64::from_le_bytes(size);
    let rest = length - 8;
    if size > rest {
        return wrong(format!("the header says it has {size} bytes, but only {rest} follow"));
    }
    if size > MAX_HEADER {
        return wrong(format!("the header says it has {size} bytes; at most {MAX_HEADER} are allowed"));
    }
    let present = rest - size;
    let size = size as usize;
    check_room(backend, LOAD, size, PARSED).map_err(HeaderError::Memory)?;
    let mut header = HostVec::filled(backend, LOAD, 0, size).map_err(HeaderError::Memory)?;
    reader.read_exact(&mut header).map_err(HeaderError::Io)?;
    let metadata = match serde_json::from_slice(&header) {
        Ok(Header(metadata)) => metadata,
        Err(e) => return wrong(format!("the header is damaged: {e}")),
    };
    let described = metadata.data_len();
    if described as u64 != present {
        return wrong(format!("the header describes {described} bytes of tensors, but {present} follow"));
    }
    // On the CPU the tensors take host memory. Check that all of them fit together, before the first one is allocated.
    if all && backend.info().kind == BackendKind::Cpu {
        check_room(backend, LOAD, described, 1).map_err(HeaderError::Memory)?;
    }
    Ok(metadata)
}

/// The header, parsed entry by entry, whereas the crate `safetensors` buffers all entries first. A duplicate name or a
/// shape with too many axes is rejected before it takes memory.
struct Header(Metadata);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Entries)
    }
}

struct Entries;

impl<'de> Visitor<'de> for Entries {
    type Value = Header;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors by name")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Header, A::Error> {
        let mut metadata: Option<Option<HashMap<String, String>>> = None;
        let mut tensors: BTreeMap<String, TensorInfo> = BTreeMap::new();
        while let Some(name) = entries.next_key::<String>()? {
            let is_metadata = name == "__metadata__";
            let wrong = |what: &str| {
                let start: String = name.chars().take(SHOWN).collect();
                Err(de::Error::custom(format!("{start:?} {what}")))
            };
            if is_metadata && metadata.is_some() || tensors.contains_key(&name) {
                return wrong("is there twice");
            }
            if is_metadata {
                metadata = Some(entries.next_value()?);
                continue;
            }
            let Entry { dtype, shape: Dims(shape), data_offsets } = entries.next_value()?;
            let Some(shape) = shape else {
                return wrong(&format!("has a shape of more than {MAX_RANK} axes"));
            };
            tensors.insert(name, TensorInfo { dtype, shape, data_offsets });
        }
        let mut tensors: Vec<(String, TensorInfo)> = tensors.into_iter().collect();
        tensors.sort_by_key(|(_, info)| info.data_offsets);
        Metadata::new(metadata.flatten(), tensors).map(Header).map_err(de::Error::custom)
    }
}

/// The header's entry for one tensor.
#[derive(Deserialize)]
struct Entry {
    dtype: Dtype,
    shape: Dims,
    data_offsets: (usize, usize),
}

/// A shape, or `None` if it has more than [`MAX_RANK`] axes.
struct Dims(Option<Vec<usize>>);

impl<'de> Deserialize<'de> for Dims {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(Sizes)
    }
}

struct Sizes;

impl<'de> Visitor<'de> for Sizes {
    type Value = Dims;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the sizes of a shape")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sizes: A) -> Result<Dims, A::Error> {
        let mut dims = Vec::new();
        while let Some(size) = sizes.next_element()? {
            if dims.len() == MAX_RANK {
                while sizes.next_element::<IgnoredAny>()?.is_some() {}
                return Ok(Dims(None));
            }
            dims.push(size);
        }
        Ok(Dims(Some(dims)))
    }
}

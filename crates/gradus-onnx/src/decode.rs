//! Converts the messages of a file to values: tensors (including those in other files of the model's folder), sequences
//! and optionals.

use std::borrow::Cow;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Component, Path};
use std::sync::Arc;

use gradus_tensor::{DType, Device, Error, ErrorKind, Result, Tensor};

use crate::elem::{Elem, STRING};
use crate::proto::{self, Proto};
use crate::run::check_empty;
use crate::value::{Array, OnnxValue, Strings};
use crate::wire::{Message, malformed};

/// Integer tensors up to this number of elements are kept on the host, because they usually hold shapes or axes.
const HOST_ELEMENTS: usize = 1024;

/// The destination of tensor data, and the folder from which it may be read.
pub(crate) struct Place<'a> {
    pub(crate) device: &'a Device,
    /// The folder of the model, from which external data may be read.
    pub(crate) folder: Option<&'a Path>,
    /// A file of that folder whose bytes are in memory.
    pub(crate) loaded: Option<(&'a str, &'a [u8])>,
}

/// The shape, and the number of elements.
fn shape_of(dims: &[i64]) -> Result<(Vec<usize>, usize)> {
    let mut count = Some(1usize);
    let mut shape = Vec::new();
    for &dim in dims {
        let dim = usize::try_from(dim).map_err(|_| malformed(format!("an axis of size {dim}")))?;
        count = count.and_then(|n| n.checked_mul(dim));
        shape.push(dim);
    }
    match count {
        Some(count) => Ok((shape, count)),
        None => Err(malformed(format!("a tensor of shape {dims:?} has more elements than memory has addresses"))),
    }
}

impl Place<'_> {
    /// The value of a tensor in the file.
    pub(crate) fn tensor(&self, t: &proto::Tensor<'_>) -> Result<OnnxValue> {
        self.decode(t).map_err(|e| e.note(format!("in the tensor \"{}\"", t.name)))
    }

    fn decode(&self, t: &proto::Tensor<'_>) -> Result<OnnxValue> {
        let (shape, count) = shape_of(&t.dims)?;
        if t.dtype == STRING {
            if t.texts.len() != count {
                return Err(malformed(format!("{} strings, where the shape {shape:?} says {count}", t.texts.len())));
            }
            let values = t.texts.iter().map(|text| String::from_utf8_lossy(text).into_owned()).collect();
            return Ok(OnnxValue::Strings(Arc::new(Strings { shape, values })));
        }
        let elem = Elem::of_number(t.dtype)?;
        // A product that saturates matches no file, so `fits` reports it.
        let bytes_in_file = count.saturating_mul(elem.bits()).div_ceil(8);
        let fits = |n: usize| match n == bytes_in_file {
            true => Ok(()),
            false => {
                Err(malformed(format!("{n} bytes of {}, where the shape {shape:?} takes {bytes_in_file}", elem.name())))
            }
        };
        let bytes: Cow<'_, [u8]> = if t.is_external {
            self.external(&t.external, bytes_in_file)?.into()
        } else if let Some(raw) = t.raw {
            raw.into()
        } else if matches!(elem, Elem::F32 | Elem::F64) {
            (&t.fixed).into()
        } else {
            self.typed(elem, &t.ints).into()
        };
        fits(bytes.len())?;
        let bytes =
            if elem.bits() < 8 { unpack(elem, &bytes, count).into() } else { native_order(bytes, elem.bits() / 8) };
        let dtype = elem.stored();
        let array = if (dtype.is_int() || dtype == DType::Bool) && elem.is_native() && count <= HOST_ELEMENTS {
            Array::host(elem, shape, integers(&bytes, dtype))
        } else {
            Array::stored(elem, Tensor::from_bytes(&bytes, shape, dtype, self.device)?)
        };
        let value = OnnxValue::Tensor(array);
        check_empty(&value)?;
        Ok(value)
    }

    /// The bytes of numbers in `int32_data`, `int64_data` or `uint64_data`.
    fn typed(&self, elem: Elem, ints: &[i64]) -> Vec<u8> {
        let size = elem.bits().div_ceil(8);
        ints.iter().flat_map(|v| v.to_le_bytes().into_iter().take(size)).collect()
    }

    /// Reads the data of a tensor from a file in the model's folder.
    fn external(&self, entries: &[proto::Entry<'_>], want: usize) -> Result<Vec<u8>> {
        let entry = |key: &str| entries.iter().find(|e| e.key == key).map(|e| e.value);
        let number = |key: &str| match entry(key) {
            None => Ok(None),
            Some(text) => {
                text.parse::<u64>().map(Some).map_err(|_| malformed(format!("{key} = `{text}`, not a number")))
            }
        };
        let location = entry("location").ok_or_else(|| malformed("external data without a location"))?;
        if let Some((_, bytes)) = self.loaded.filter(|(name, _)| *name == location) {
            let start = usize::try_from(number("offset")?.unwrap_or(0)).unwrap_or(usize::MAX);
            let part = start.checked_add(want).and_then(|end| bytes.get(start..end));
            return part.map(<[u8]>::to_vec).ok_or_else(|| malformed("external data that is cut"));
        }
        let Some(folder) = self.folder else {
            let e = Error::new(ErrorKind::Unsupported, "onnx", "the data of a tensor is in another file");
            return Err(e.help("load the model from its path: only then is its folder known"));
        };
        let refused = |why: &str| {
            let m = format!("the external data `{location}` {why}");
            Error::new(ErrorKind::Format, "onnx", m).help("external data must be a file in the folder of the model")
        };
        let relative = Path::new(location);
        let mut path = folder.to_path_buf();
        for component in relative.components() {
            match component {
                Component::Normal(name) => path.push(name),
                Component::CurDir => continue,
                _ => return Err(refused("is outside of the model's folder")),
            }
            let meta = fs::symlink_metadata(&path).map_err(|e| Error::io("onnx", path.display(), e))?;
            if meta.file_type().is_symlink() {
                return Err(refused("is a link"));
            }
        }
        let meta = fs::symlink_metadata(&path).map_err(|e| Error::io("onnx", path.display(), e))?;
        if !meta.is_file() {
            return Err(refused("is not a file"));
        }
        let (offset, length) = (number("offset")?.unwrap_or(0), number("length")?);
        if length.is_some_and(|n| n != want as u64) {
            return Err(malformed(format!(
                "{} bytes of external data, where the shape takes {want}",
                length.unwrap_or(0)
            )));
        }
        if offset.checked_add(want as u64).is_none_or(|end| end > meta.len()) {
            return Err(malformed(format!(
                "`{location}` has {} bytes, too few for {want} from byte {offset}",
                meta.len()
            )));
        }
        let io = |e| Error::io("onnx", path.display(), e);
        let mut file = File::open(&path).map_err(io)?;
        file.seek(SeekFrom::Start(offset)).map_err(io)?;
        let mut bytes = Vec::new();
        file.take(want as u64).read_to_end(&mut bytes).map_err(io)?;
        Ok(bytes)
    }

    /// The value of a sequence in the file.
    fn sequence(&self, s: &proto::Sequence<'_>) -> Result<OnnxValue> {
        let mut values = Vec::new();
        for t in &s.tensors {
            values.push(self.tensor(t)?);
        }
        for inner in &s.sequences {
            values.push(self.sequence(inner)?);
        }
        for inner in &s.optionals {
            values.push(self.optional(inner)?);
        }
        Ok(OnnxValue::Sequence(Arc::new(values)))
    }

    fn optional(&self, s: &proto::Sequence<'_>) -> Result<OnnxValue> {
        let inner = match (s.tensors.first(), s.sequences.first()) {
            (Some(t), _) => Some(self.tensor(t)?),
            (None, Some(inner)) => Some(self.sequence(inner)?),
            (None, None) => None,
        };
        Ok(OnnxValue::Optional(inner.map(Arc::new)))
    }

    /// The value in a file that holds nothing else: a `TensorProto`, `SequenceProto` or `OptionalProto`, depending on
    /// `of`.
    pub(crate) fn file(&self, bytes: &[u8], of: &proto::Type<'_>) -> Result<OnnxValue> {
        let message = Message::new(bytes);
        if of.tensor.is_some() {
            self.tensor(&proto::Tensor::read(message)?)
        } else if of.sequence.is_some() {
            self.sequence(&proto::Sequence::read(message)?)
        } else if of.optional.is_some() {
            self.optional(&proto::Sequence::read(message)?)
        } else {
            Err(Error::new(ErrorKind::Unsupported, "onnx", "maps and sparse tensors are not supported"))
        }
    }
}

/// Expands `count` elements of 4 or 2 bits to one byte each. The first element is in the lowest bits.
fn unpack(elem: Elem, bytes: &[u8], count: usize) -> Vec<u8> {
    let bits = elem.bits();
    let signed = matches!(elem, Elem::I4 | Elem::I2);
    let element = |i: usize| {
        let byte = bytes.get(i * bits / 8).copied().unwrap_or(0);
        let value = (byte >> (i * bits % 8)) & ((1 << bits) - 1);
        let negative = signed && value >> (bits - 1) == 1;
        if negative { value | !((1 << bits) - 1) } else { value }
    };
    // At most four times the bytes of the file.
    (0..count).map(element).collect()
}

pub(crate) fn native_order(bytes: Cow<'_, [u8]>, size: usize) -> Cow<'_, [u8]> {
    if cfg!(target_endian = "little") || size == 1 {
        return bytes;
    }
    bytes.chunks(size).flat_map(|element| element.iter().rev().copied()).collect::<Vec<_>>().into()
}

/// Decodes integers from bytes in native order.
fn integers(bytes: &[u8], dtype: DType) -> Vec<i64> {
    let wide = |chunk: &[u8]| {
        let mut raw = [0u8; 8];
        let at = if cfg!(target_endian = "little") { 0 } else { 8 - chunk.len() };
        raw[at..at + chunk.len()].copy_from_slice(chunk);
        let (value, unused) = (i64::from_ne_bytes(raw), 64 - 8 * chunk.len() as u32);
        if dtype.is_signed() { (value << unused) >> unused } else { value }
    };
    bytes.chunks_exact(dtype.size()).map(wide).collect()
}

//! Makes safetensors files. The header is damaged as JSON data and as text.

use super::edit::{edit, rearrange};
use crate::random::Random;

#[derive(Clone)]
struct Entry {
    name: String,
    dtype: &'static str,
    shape: Vec<u64>,
    place: [u64; 2],
}

const DTYPES: [(&str, u64); 13] = [
    ("F64", 8),
    ("F32", 4),
    ("F16", 2),
    ("BF16", 2),
    ("I64", 8),
    ("I32", 4),
    ("I16", 2),
    ("I8", 1),
    ("U64", 8),
    ("U32", 4),
    ("U16", 2),
    ("U8", 1),
    ("BOOL", 1),
];

/// Names of dtypes that Gradus does not support, or that do not exist.
const ODD: [&str; 7] = ["F8_E4M3", "F4", "C64", "F6_E2M3", "float32", "", "f32"];

/// Strings to put into a header.
const TEXTS: [&str; 24] = [
    "{",
    "}",
    "[",
    "]",
    "\"",
    ",",
    ":",
    "null",
    "true",
    "-1",
    "1e400",
    "1.5",
    "18446744073709551616",
    "99999999999999999999",
    "\\u0000",
    "\\ud800",
    "\"shape\":[1],",
    "\"data_offsets\":[0,0]",
    "\"__metadata__\":{\"a\":\"b\"},",
    "\"__metadata__\":{\"gradus.tied\":\"{\\\"x\\\":\\\"a\\\"}\"},",
    "\"__metadata__\":{\"gradus.tied\":\"[\"},",
    "é",
    "\0",
    " ",
];

fn entries(d: &mut Random) -> (Vec<Entry>, Vec<u8>) {
    let (mut entries, mut at) = (Vec::new(), 0);
    for i in 0..d.below(6) {
        let (dtype, size) = d.of(&DTYPES);
        let shape: Vec<u64> = (0..d.below(4)).map(|_| d.below(5) as u64).collect();
        let end = at + size * shape.iter().product::<u64>();
        entries.push(Entry {
            name: format!("{}{i}", d.of(&["a", "layers.0.weight", "ü", ""])),
            dtype,
            shape,
            place: [at, end],
        });
        at = end;
    }
    // All bytes are 0 or 1, so that they are also valid booleans.
    (entries, (0..at).map(|_| d.below(2) as u8).collect())
}

fn text(entries: &[Entry]) -> String {
    let entry = |e: &Entry| {
        let Entry { name, dtype, shape, place } = e;
        format!("\"{name}\":{{\"dtype\":\"{dtype}\",\"shape\":{shape:?},\"data_offsets\":{place:?}}}")
    };
    format!("{{{}}}", entries.iter().map(entry).collect::<Vec<_>>().join(","))
}

fn file(header: &[u8], data: &[u8], length: Option<u64>) -> Vec<u8> {
    let length = length.unwrap_or(header.len() as u64);
    [&length.to_le_bytes(), header, data].concat()
}

fn change(entries: &mut Vec<Entry>, d: &mut Random) {
    let at = d.below(entries.len().max(1));
    let (number, dtype, odd) = (d.extreme(), d.of(&DTYPES).0, d.of(&ODD));
    let Some(entry) = entries.get_mut(at) else { return };
    match d.below(7) {
        0 => rearrange(entries, d),
        1 => entry.dtype = if d.once_in(2) { dtype } else { odd },
        2 => entry.shape.push(number),
        3 => {
            let n = entry.shape.len();
            if let Some(size) = entry.shape.get_mut(d.below(n)) {
                *size = number;
            }
        }
        4 => entry.place[d.below(2)] = number,
        5 => entry.shape = vec![if d.once_in(2) { 0 } else { 1 }; d.length(3000)],
        _ => {
            let length = d.length(5000);
            entry.name = d.of(&["__metadata__", "a0", "\\n", "x"]).repeat(if d.once_in(2) { 1 } else { length });
        }
    }
}

/// A valid file, which must be accepted.
pub(super) fn whole(d: &mut Random) -> Vec<u8> {
    let (entries, data) = entries(d);
    file(text(&entries).as_bytes(), &data, None)
}

/// A truncated file, which must be rejected.
pub(super) fn cut(d: &mut Random) -> Vec<u8> {
    let mut file = whole(d);
    file.truncate(d.below(file.len()));
    file
}

/// The header of a file of `length` bytes that holds one tensor.
pub(super) fn vast(length: u64) -> Vec<u8> {
    let header = |size: u64| text(&[Entry { name: "a".into(), dtype: "U8", shape: vec![size], place: [0, size] }]);
    // Padding gives the header the same length for every size.
    let pad = |size: u64| format!("{:<200}", header(size));
    file(pad(length - 208).as_bytes(), &[], None)
}

/// A damaged file.
pub(super) fn damaged(d: &mut Random) -> Vec<u8> {
    let (mut entries, mut data) = entries(d);
    (0..d.below(3)).for_each(|_| change(&mut entries, d));
    let mut header = text(&entries).into_bytes();
    if d.once_in(3) {
        let at = d.below(header.len() + 1);
        let new = d.of(&TEXTS).repeat(1 + if d.once_in(20) { d.length(100_000) } else { 0 });
        header.splice(at..at, new.into_bytes());
    }
    (0..d.below(2)).for_each(|_| edit(&mut header, d));
    if d.once_in(3) {
        edit(&mut data, d);
    }
    let length = d.once_in(8).then(|| d.extreme());
    let mut file = file(&header, &data, length);
    if d.once_in(6) {
        edit(&mut file, d);
    }
    file
}

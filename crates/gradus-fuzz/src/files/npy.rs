//! Makes `.npy` files and `.npz` archives of them, with headers that are damaged as text.

use super::archive::{archive, change};
use super::edit::edit;
use crate::random::Random;

const CODES: [(&str, usize); 8] =
    [("<f8", 8), (">f4", 4), ("<f2", 2), ("<i8", 8), (">u2", 2), ("|i1", 1), ("|u1", 1), ("<u4", 4)];

/// Dtypes that are not read.
const ODD: [&str; 7] = ["<c8", "<U3", "|O", "|V2", "f4", "", "<f999999999999"];

/// Strings to put into a header.
const TEXTS: [&str; 14] = [
    "{",
    "}",
    "(",
    ")",
    "'",
    ",",
    "-1",
    "99999999999999999999",
    "True",
    "'shape': (1,)",
    "[('a', '<f4')]",
    "\0",
    "é",
    " ",
];

/// An array, and a header that is damaged if `odd`.
fn array(d: &mut Random, odd: bool) -> Vec<u8> {
    let (mut code, size) = d.of(&CODES);
    let mut shape: Vec<u64> = (0..d.below(4)).map(|_| d.below(5) as u64).collect();
    let bytes = shape.iter().product::<u64>() as usize * size;
    if odd && d.once_in(8) {
        code = d.of(&ODD);
    }
    if odd && d.once_in(4) {
        let number = d.extreme();
        shape.push(number);
    }
    let sizes: String = shape.iter().map(|s| format!("{s}, ")).collect();
    let order = d.of(&["False", "True"]);
    let mut text = format!("{{'descr': '{code}', 'fortran_order': {order}, 'shape': ({sizes}), }}\n").into_bytes();
    if odd && d.once_in(4) {
        let (at, new) = (d.below(text.len() + 1), d.of(&TEXTS));
        let count = if d.once_in(9) { 1 + d.length(70_000) } else { 1 };
        text.splice(at..at, new.repeat(count).into_bytes());
    }
    if odd && d.once_in(4) {
        edit(&mut text, d);
    }
    let version = if odd && d.once_in(9) { d.bits() as u8 } else { 1 + d.below(3) as u8 };
    let length = if odd && d.once_in(9) { d.extreme() as usize } else { text.len() };
    let length = &(length as u32).to_le_bytes()[..if version == 1 { 2 } else { 4 }];
    [&b"\x93NUMPY"[..], &[version, 0], length, &text, &d.bytes(bytes)].concat()
}

fn arrays(d: &mut Random, odd: bool) -> Vec<u8> {
    let name = |i: usize, d: &mut Random| if odd && d.once_in(9) { "a.npy".into() } else { format!("a{i}.npy") };
    let files: Vec<(String, Vec<u8>)> = (0..1 + d.below(3)).map(|i| (name(i, d), array(d, odd && i == 0))).collect();
    archive(&files, true, d)
}

/// A valid file, which must be accepted.
pub(super) fn whole(d: &mut Random) -> Vec<u8> {
    array(d, false)
}

/// A truncated file, which must be rejected.
pub(super) fn cut(d: &mut Random) -> Vec<u8> {
    let mut file = whole(d);
    file.truncate(d.below(file.len()));
    file
}

/// A damaged file.
pub(super) fn damaged(d: &mut Random) -> Vec<u8> {
    let mut file = array(d, true);
    (0..d.below(2)).for_each(|_| edit(&mut file, d));
    file
}

/// A valid archive, which must be accepted.
pub(super) fn whole_npz(d: &mut Random) -> Vec<u8> {
    arrays(d, false)
}

/// A truncated archive, which must be rejected.
pub(super) fn cut_npz(d: &mut Random) -> Vec<u8> {
    let mut file = whole_npz(d);
    file.truncate(d.below(file.len()));
    file
}

/// A damaged archive.
pub(super) fn damaged_npz(d: &mut Random) -> Vec<u8> {
    let odd = d.once_in(2);
    let mut file = arrays(d, odd);
    (0..d.below(3)).for_each(|_| change(&mut file, d));
    (0..d.below(2)).for_each(|_| edit(&mut file, d));
    file
}

//! Makes files of `torch.save` from instructions of a pickle, in an order that PyTorch would not choose, and damages them.

use super::archive::{archive, change};
use super::edit::edit;
use crate::random::Random;

/// Instructions of all kinds, most of them with operands.
const STEPS: [&[u8]; 42] = [
    b"N",
    b"\x88",
    b"\x89",
    b"K\x05",
    b"M\x01\x02",
    b"J\xff\xff\xff\xff",
    b"G\x3f\xf0\0\0\0\0\0\0",
    b"\x8a\x01\x05",
    b"\x8a\x09\x01\x01\x01\x01\x01\x01\x01\x01\x01",
    b"X\x01\0\0\0a",
    b"\x8c\x01b",
    b"U\x01c",
    b"C\x01d",
    b"(",
    b"t",
    b"\x85",
    b"\x86",
    b"\x87",
    b")",
    b"]",
    b"l",
    b"a",
    b"e",
    b"}",
    b"d",
    b"s",
    b"u",
    b"q\x01",
    b"h\x01",
    b"\x94",
    b"2",
    b"0",
    b"1",
    b"R",
    b"b",
    b"Q",
    b"\x93",
    b"ccollections\nOrderedDict\n",
    b"ctorch\nSize\n",
    b"cos\nsystem\n",
    b"ctorch._utils\n_rebuild_tensor_v2\n",
    b"\x81",
];

/// A text, as an instruction.
fn text(text: &str) -> Vec<u8> {
    [&b"X"[..], &(text.len() as u32).to_le_bytes(), text.as_bytes()].concat()
}

fn number(n: u64) -> Vec<u8> {
    [&b"\x8a\x08"[..], &n.to_le_bytes()].concat()
}

/// A tensor of the storage `key` of `count` floats, row-major if not `odd`.
fn tensor(key: usize, count: u64, d: &mut Random, odd: bool) -> Vec<u8> {
    let storage =
        [b"(", &text("storage")[..], b"ctorch\nFloatStorage\n", &text(&key.to_string()), &text("cpu")].concat();
    let pick = |fallback: u64, d: &mut Random| if odd && d.once_in(4) { d.extreme() } else { fallback };
    let (size, offset, length, stride) = (pick(count, d), pick(0, d), pick(count, d), pick(1, d));
    let (size, offset, length, stride) = (number(size), number(offset), number(length), number(stride));
    let call =
        [&b"ctorch._utils\n_rebuild_tensor_v2\n("[..], &storage, &size, b"tQ", &offset, &length, b"\x85"].concat();
    [&call[..], &stride, b"\x85\x89ccollections\nOrderedDict\n)RtR"].concat()
}

fn file(d: &mut Random, odd: bool) -> Vec<u8> {
    let mut files = Vec::new();
    let mut pickle = b"\x80\x02}(".to_vec();
    for key in 0..1 + d.below(4) {
        let count = d.below(6) as u64;
        pickle.extend(text(&format!("layer.{key}")));
        if odd && d.once_in(3) {
            (0..d.length(40)).for_each(|_| pickle.extend(d.of(&STEPS)));
        }
        pickle.extend(tensor(key, count, d, odd));
        files.push((format!("x/data/{key}"), d.bytes(4 * count as usize)));
    }
    pickle.extend(b"u.");
    if odd && d.once_in(6) {
        // A long run of one instruction.
        let step = d.of(&STEPS).repeat(1 + d.length(20_000));
        let at = d.below(pickle.len());
        pickle.splice(at..at, step);
    }
    if odd {
        (0..d.below(3)).for_each(|_| edit(&mut pickle, d));
    }
    files.insert(0, ("x/data.pkl".into(), pickle));
    let order = if odd && d.once_in(4) { "big" } else { "little" };
    files.push(("x/byteorder".into(), order.into()));
    archive(&files, false, d)
}

/// A valid file, which must be accepted.
pub(super) fn whole(d: &mut Random) -> Vec<u8> {
    file(d, false)
}

/// A truncated file, which must be rejected.
pub(super) fn cut(d: &mut Random) -> Vec<u8> {
    let mut file = whole(d);
    file.truncate(d.below(file.len()));
    file
}

/// A damaged file.
pub(super) fn damaged(d: &mut Random) -> Vec<u8> {
    if d.once_in(6) {
        // The older format begins with this number.
        let mut file =
            b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02M\xe9\x03.\x80\x02}.\x80\x02".to_vec();
        file.extend(tensor(0, 2, d, true));
        file.extend(b".\x80\x02]");
        file.extend(text("0"));
        file.extend(b"a.\x02\0\0\0\0\0\0\0");
        file.extend(d.bytes(8));
        (0..d.below(3)).for_each(|_| edit(&mut file, d));
        return file;
    }
    let odd = !d.once_in(4);
    let mut file = file(d, odd);
    (0..d.below(2)).for_each(|_| change(&mut file, d));
    (0..d.below(2)).for_each(|_| edit(&mut file, d));
    file
}

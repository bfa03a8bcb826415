//! Makes JPEG files. Segments and entropy-coded data are damaged separately.

use super::edit::{edit, put, rearrange};
use crate::random::Random;

/// Images of all kinds, from the tests of the JPEG reader.
const SEEDS: [&[u8]; 11] = [
    include_bytes!("../../../gradus-image/tests/pictures/baseline.jpg"),
    include_bytes!("../../../gradus-image/tests/pictures/baseline-422.jpg"),
    include_bytes!("../../../gradus-image/tests/pictures/restart.jpg"),
    include_bytes!("../../../gradus-image/tests/pictures/progressive.jpg"),
    include_bytes!("../../../gradus-image/tests/pictures/progressive-restart.jpg"),
    include_bytes!("../../../gradus-image/tests/pictures/separate.jpg"),
    include_bytes!("../../../gradus-image/tests/pictures/cmyk.jpg"),
    include_bytes!("../../../gradus-image/tests/pictures/grey.jpg"),
    include_bytes!("../../../gradus-image/tests/pictures/grey-progressive.jpg"),
    // These two are not supported, so they only serve as material for damage.
    include_bytes!("../../../gradus-image/tests/pictures/separate-420.jpg"),
    include_bytes!("../../../gradus-image/tests/pictures/fine-chroma.jpg"),
];

/// The number of supported images, which come first.
const READ: usize = 9;

/// A marker, its payload, and the entropy-coded data that follows.
#[derive(Clone)]
struct Segment {
    marker: u8,
    contents: Vec<u8>,
    data: Vec<u8>,
}

/// The segments of a file, without the markers at its start and its end.
fn segments(file: &[u8]) -> Vec<Segment> {
    let mut segments = Vec::new();
    let mut at = 2;
    while at + 4 <= file.len() && file[at + 1] != 0xd9 {
        let length = usize::from(file[at + 2]) << 8 | usize::from(file[at + 3]);
        let start = at + 2 + length;
        let is_end = |at: usize| file[at] == 0xff && !matches!(file[at + 1], 0 | 0xd0..=0xd7);
        let end = (start..file.len() - 1).find(|&at| is_end(at)).unwrap_or(file.len());
        let (contents, data) = (file[at + 4..start].to_vec(), file[start..end].to_vec());
        segments.push(Segment { marker: file[at + 1], contents, data });
        at = end;
    }
    segments
}

/// Assembles a file from these segments; with `d`, a length may be wrong.
fn written(segments: &[Segment], mut d: Option<&mut Random>) -> Vec<u8> {
    let mut file = vec![0xff, 0xd8];
    for s in segments {
        let wrong = d.as_mut().and_then(|d| d.once_in(100).then(|| d.extreme()));
        let length = wrong.unwrap_or(s.contents.len() as u64 + 2) as u16;
        file.extend([0xff, s.marker]);
        file.extend(length.to_be_bytes());
        file.extend(&s.contents);
        file.extend(&s.data);
    }
    file.extend([0xff, 0xd9]);
    file
}

/// A segment with one of these markers.
fn some<'a>(segments: &'a mut [Segment], markers: &[u8], d: &mut Random) -> Option<&'a mut Segment> {
    let mut fitting: Vec<&mut Segment> = segments.iter_mut().filter(|s| markers.contains(&s.marker)).collect();
    if fitting.is_empty() { None } else { Some(fitting.swap_remove(d.below(fitting.len()))) }
}

/// Damages one segment, or the list of segments.
fn change(segments: &mut Vec<Segment>, d: &mut Random) {
    match d.below(12) {
        0 => rearrange(segments, d),
        1 => {
            let other = self::segments(d.of(&SEEDS));
            let (from, to) = (d.below(other.len()), d.below(segments.len() + 1));
            segments.insert(to, other[from].clone());
        }
        2 => {
            let marker = d.of(&[
                0x01, 0xc0, 0xc1, 0xc2, 0xc3, 0xc4, 0xcc, 0xd8, 0xda, 0xdc, 0xdd, 0xe0, 0xe1, 0xe2, 0xed, 0xee, 0xfe,
            ]);
            let count = d.length(200);
            let mut contents = d.bytes(count);
            let beginning =
                d.of(&[&b""[..], b"Exif\0\0MM\0\x2a", b"ICC_PROFILE\0\x01\x02", b"Adobe\0\x64\0\0\0\0\x02", b"AVI1\0"]);
            contents.splice(0..0, beginning.iter().copied());
            let to = d.below(segments.len() + 1);
            segments.insert(to, Segment { marker, contents, data: Vec::new() });
        }
        3 | 4 => {
            // Changes the height, the width, a channel's sampling factors or table, or the number of channels.
            let (place, size, number) = match d.below(4) {
                0 | 1 => (d.of(&[1, 3]), 2, if d.once_in(2) { d.extreme() } else { d.length(600) as u64 }),
                2 => (
                    7 + 3 * d.below(4),
                    1,
                    d.of(&[0x11, 0x21, 0x12, 0x22, 0x41, 0x14, 0x44, 0x31, 0x13, 0x42, 0x10, 0x01]),
                ),
                _ => (d.of(&[0, 5, 6, 8, 9]), 1, d.below(9) as u64),
            };
            if let Some(s) = some(segments, &[0xc0, 0xc1, 0xc2], d) {
                put(&mut s.contents, place, size, number, true);
            }
        }
        5 => {
            let marker = d.of(&[0xc0, 0xc1, 0xc2]);
            if let Some(s) = some(segments, &[0xc0, 0xc1, 0xc2], d) {
                s.marker = marker;
            }
        }
        6 => {
            let (number, place) = (d.of(&[0, 1, 2, 5, 63, 64, 0x10, 0x21, 0xff]), d.below(12));
            if let Some(s) = some(segments, &[0xda], d) {
                put(&mut s.contents, place, 1, number, true);
            }
        }
        7 => {
            let marker = d.of(&[0xc4, 0xdb, 0xdd]);
            if let Some(s) = some(segments, &[marker], d) {
                edit(&mut s.contents, d);
            }
        }
        8 => {
            // Ends the entropy-coded data early, or inserts a marker into it.
            let mark = d.of(&[&[][..], &[0xff, 0xd0], &[0xff, 0xd5], &[0xff, 0xd9], &[0xff, 0xff, 0], &[0xff]]);
            let cut = d.once_in(2);
            if let Some(s) = some(segments, &[0xda], d) {
                let at = d.below(s.data.len() + 1);
                let end = if cut { s.data.len() } else { at };
                s.data.splice(at..end, mark.iter().copied());
            }
        }
        9 => {
            let interval = d.of(&[0, 1, 2, 3, 7, 0xffff]) as u8;
            let to = d.below(segments.len() + 1);
            segments.insert(to, Segment { marker: 0xdd, contents: vec![0, interval], data: Vec::new() });
        }
        _ => {
            if let Some(s) = some(segments, &[0xda], d) {
                edit(&mut s.data, d);
            }
        }
    }
}

/// A valid file, which must be accepted.
pub(super) fn whole(d: &mut Random) -> Vec<u8> {
    written(&segments(SEEDS[d.below(READ)]), None)
}

/// A file whose entropy-coded data ends early, although the end marker is present. It must be rejected.
pub(super) fn cut(d: &mut Random) -> Vec<u8> {
    let mut segments = segments(SEEDS[d.below(READ)]);
    let Some(scan) = some(&mut segments, &[0xda], d) else { return Vec::new() };
    // The last byte may be only padding.
    scan.data.truncate(d.below(scan.data.len().saturating_sub(1)));
    written(&segments, None)
}

/// A damaged file.
pub(super) fn damaged(d: &mut Random) -> Vec<u8> {
    let mut segments = segments(d.of(&SEEDS));
    (0..1 + d.below(4)).for_each(|_| change(&mut segments, d));
    let mut file = written(&segments, Some(d));
    (0..d.below(2)).for_each(|_| edit(&mut file, d));
    if d.once_in(4) {
        file.extend([0xff, 0xd9]);
    }
    file
}

//! Makes zip archives, stored or deflated.

use std::io::Write;

use flate2::{Compression, Crc, write::DeflateEncoder};

use super::edit::put;
use crate::random::Random;

/// An archive of these files. `deflate` may be drawn for each.
pub(super) fn archive(files: &[(String, Vec<u8>)], deflate: bool, d: &mut Random) -> Vec<u8> {
    let (mut out, mut directory) = (Vec::new(), Vec::new());
    for (name, bytes) in files {
        let deflated = deflate && d.once_in(2);
        let mut crc = Crc::new();
        crc.update(bytes);
        let stored = if deflated { squeezed(bytes) } else { bytes.clone() };
        let mut common = vec![20, 0, 0, 0, if deflated { 8 } else { 0 }, 0, 0, 0, 0, 0];
        [crc.sum(), stored.len() as u32, bytes.len() as u32].iter().for_each(|n| common.extend(n.to_le_bytes()));
        common.extend((name.len() as u16).to_le_bytes());
        common.extend([0, 0]);
        let at = (out.len() as u32).to_le_bytes();
        directory.extend([&b"PK\x01\x02\x14\0"[..], &common, &[0; 10], &at, name.as_bytes()].concat());
        out.extend([&b"PK\x03\x04"[..], &common, name.as_bytes(), &stored].concat());
    }
    let (count, at) = ((files.len() as u16).to_le_bytes(), (out.len() as u32).to_le_bytes());
    let size = (directory.len() as u32).to_le_bytes();
    [&out[..], &directory, b"PK\x05\x06\0\0\0\0", &count, &count, &size, &at, &[0, 0]].concat()
}

fn squeezed(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
    // Writing to memory cannot fail.
    let _ = encoder.write_all(bytes);
    encoder.finish().unwrap_or_default()
}

/// Puts a number where an archive has one: a size, a place, a method, a checksum.
pub(super) fn change(file: &mut [u8], d: &mut Random) {
    let record: &[u8] = d.of(&[&b"PK\x01\x02"[..], b"PK\x03\x04", b"PK\x05\x06"]);
    let places: Vec<usize> = file.windows(4).enumerate().filter(|(_, w)| *w == record).map(|(at, _)| at).collect();
    let Some(&at) = places.get(d.below(places.len().max(1))) else { return };
    let (place, size, number) = (at + 4 + d.below(42), d.of(&[1, 2, 4]), d.extreme());
    put(file, place, size, number, false);
}

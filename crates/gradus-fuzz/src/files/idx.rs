//! Makes IDX files, plain and gzip-compressed, with wrong sizes, additional gzip members, or contents that expand
//! enormously.

use std::io::Write;
use std::sync::OnceLock;

use flate2::{Compression, write::GzEncoder};

use super::edit::{edit, put};
use crate::random::Random;

fn plain(d: &mut Random) -> Vec<u8> {
    let sizes: Vec<usize> =
        if d.once_in(2) { vec![1 + d.length(500)] } else { (0..3).map(|_| 1 + d.below(9)).collect() };
    let mut file = vec![0, 0, 8, sizes.len() as u8];
    sizes.iter().for_each(|&s| file.extend((s as u32).to_be_bytes()));
    file.extend(d.bytes(sizes.iter().product()));
    file
}

fn gzip(bytes: &[u8], level: u32) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::new(level));
    // Writing to memory cannot fail.
    let _ = encoder.write_all(bytes);
    encoder.finish().unwrap_or_default()
}

/// A header that declares some number of values, followed by 8 MiB of zeros.
fn bomb(d: &mut Random) -> Vec<u8> {
    const ZEROS: usize = 8 << 20;
    static BOMB: OnceLock<Vec<u8>> = OnceLock::new();
    let zeros = BOMB.get_or_init(|| gzip(&vec![0; ZEROS], 6));
    let count = if d.once_in(2) { d.extreme() as u32 } else { (ZEROS + d.below(3)) as u32 - 1 };
    let header = [&[0, 0, 8, 1][..], &count.to_be_bytes()].concat();
    // A gzip file with two members.
    [gzip(&header, 6), zeros.clone()].concat()
}

/// A valid file, which must be accepted.
pub(super) fn whole(d: &mut Random) -> Vec<u8> {
    let file = plain(d);
    if d.once_in(2) { gzip(&file, d.below(10) as u32) } else { file }
}

/// A truncated file, which must be rejected.
pub(super) fn cut(d: &mut Random) -> Vec<u8> {
    let mut file = whole(d);
    file.truncate(d.below(file.len()));
    file
}

/// A damaged file.
pub(super) fn damaged(d: &mut Random) -> Vec<u8> {
    if d.once_in(400) {
        return bomb(d);
    }
    let mut file = plain(d);
    match d.below(3) {
        0 => {
            let (place, number) = (4 * d.below(4), d.extreme());
            put(&mut file, place, 4, number, true);
        }
        1 => edit(&mut file, d),
        _ => {}
    }
    if d.once_in(2) {
        file = gzip(&file, d.below(10) as u32);
        if d.once_in(4) {
            file.extend(gzip(&[7; 100], 1));
        }
        if d.once_in(4) {
            // Random gzip flags announce optional header fields that the file does not contain.
            file[3] = d.bits() as u8;
        }
    }
    (0..d.below(3)).for_each(|_| edit(&mut file, d));
    file
}

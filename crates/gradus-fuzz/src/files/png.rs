//! Makes PNG files. Chunks are damaged and their checksums corrected, so that the damage reaches the decoder.

use std::io::{Read, Write};
use std::sync::OnceLock;

use flate2::{Compression, Crc, read::ZlibDecoder, write::ZlibEncoder};

use super::edit::{edit, put, rearrange};
use crate::random::Random;

#[derive(Clone)]
struct Chunk {
    name: [u8; 4],
    contents: Vec<u8>,
}

/// Colour types, each with the bit depths that it allows and its number of channels.
const KINDS: [(u8, &[u8], usize); 5] =
    [(0, &[1, 2, 4, 8, 16], 1), (2, &[8, 16], 3), (3, &[1, 2, 4, 8], 1), (4, &[8, 16], 2), (6, &[8, 16], 4)];

const NAMES: [&[u8; 4]; 20] = [
    b"iCCP", b"zTXt", b"iTXt", b"tEXt", b"eXIf", b"tRNS", b"PLTE", b"gAMA", b"cHRM", b"sRGB", b"sBIT", b"bKGD",
    b"pHYs", b"tIME", b"acTL", b"fcTL", b"fdAT", b"IDAT", b"IHDR", b"aaAa",
];

/// The bytes, compressed by zlib.
fn deflate(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
    // Writing to memory cannot fail.
    let _ = encoder.write_all(bytes);
    encoder.finish().unwrap_or_default()
}

/// 24 MiB of zeros, compressed to a few kilobytes.
fn bomb() -> &'static [u8] {
    static BOMB: OnceLock<Vec<u8>> = OnceLock::new();
    BOMB.get_or_init(|| deflate(&vec![0; 24 << 20]))
}

/// A random image.
fn picture(d: &mut Random) -> Vec<Chunk> {
    let (color, depths, channels) = d.of(&KINDS);
    let depth = d.of(depths);
    let (width, height, interlaced) = (1 + d.length(40), 1 + d.length(20), d.once_in(2));
    let mut header = vec![0; 8];
    put(&mut header, 0, 4, width as u64, true);
    put(&mut header, 4, 4, height as u64, true);
    header.extend([depth, color, 0, 0, u8::from(interlaced)]);
    let bits = usize::from(depth) * channels;
    let row = |width: usize| if width == 0 { 0 } else { 1 + (width * bits).div_ceil(8) };
    let passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)];
    let across = |size: usize, from: usize, step: usize| size.saturating_sub(from).div_ceil(step);
    let rows: Vec<(usize, usize)> = if interlaced {
        passes.iter().map(|&(x, y, dx, dy)| (row(across(width, x, dx)), across(height, y, dy))).collect()
    } else {
        vec![(row(width), height)]
    };
    let mut data = Vec::new();
    for (bytes, count) in rows {
        for _ in 0..count.min(count * bytes) {
            data.push(d.below(5) as u8);
            data.extend(d.bytes(bytes - 1));
        }
    }
    let mut chunks = vec![Chunk { name: *b"IHDR", contents: header }];
    if color == 3 {
        chunks.push(Chunk { name: *b"PLTE", contents: d.bytes(3 << depth) });
    }
    if d.once_in(4) && color < 4 {
        let count = d.of(&[1, 2, 6]);
        chunks.push(Chunk { name: *b"tRNS", contents: d.bytes(count) });
    }
    let data = deflate(&data);
    let (first, second) = data.split_at(if d.once_in(3) { data.len() / 2 } else { 0 });
    chunks.extend([first, second].map(|part| Chunk { name: *b"IDAT", contents: part.to_vec() }));
    chunks.push(Chunk { name: *b"IEND", contents: Vec::new() });
    chunks
}

/// An ancillary chunk, or a chunk that is out of place.
fn stranger(d: &mut Random) -> Chunk {
    let name = *d.of(&NAMES);
    let compressed: &[u8] = if d.once_in(4) { bomb() } else { &[] };
    let contents = match &name {
        b"iCCP" | b"zTXt" => [&b"name\0\0"[..], compressed].concat(),
        b"iTXt" => [&b"XML:com.adobe.xmp\0\x01\0\0\0"[..], compressed].concat(),
        b"acTL" => [0, 0, 0, d.below(4) as u8, 0, 0, 0, 0].to_vec(),
        b"fcTL" => {
            let mut control = vec![0; 26];
            (0..5).for_each(|i| put(&mut control, 4 * i, 4, if d.once_in(3) { d.extreme() } else { 8 }, true));
            control
        }
        b"eXIf" => b"MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0".to_vec(),
        _ => {
            let count = d.length(800);
            d.bytes(count)
        }
    };
    Chunk { name, contents }
}

/// Damages one chunk, or the list of chunks.
fn change(chunks: &mut Vec<Chunk>, d: &mut Random) {
    let at = d.below(chunks.len().max(1));
    match d.below(8) {
        0 => rearrange(chunks, d),
        1 => {
            let new = stranger(d);
            chunks.insert(at.min(chunks.len()), new);
        }
        2 | 3 => {
            // Damages a size, or a field such as the depth or the colour type.
            if let Some(header) = chunks.iter_mut().find(|c| c.name == *b"IHDR") {
                let (place, number) = (d.of(&[0, 4]), d.extreme());
                if d.once_in(2) {
                    put(&mut header.contents, place, 4, number, true);
                } else {
                    put(&mut header.contents, 8 + d.below(5), 1, d.of(&[0, 1, 2, 3, 4, 6, 8, 16, 255]), true);
                }
            }
        }
        4 | 5 => {
            if let Some(data) = chunks.iter_mut().find(|c| c.name == *b"IDAT") {
                let mut raw = Vec::new();
                // Decompress as much as possible.
                let _ = ZlibDecoder::new(&data.contents[..]).take(1 << 20).read_to_end(&mut raw);
                edit(&mut raw, d);
                data.contents = deflate(&raw);
            }
        }
        6 => {
            if let Some(chunk) = chunks.get_mut(at) {
                edit(&mut chunk.contents, d);
            }
        }
        _ => {
            if let Some(chunk) = chunks.get_mut(at) {
                chunk.name = *d.of(&NAMES);
            }
        }
    }
}

/// Assembles a file from these chunks. With `d`, a length or a checksum may be wrong.
fn written(chunks: &[Chunk], mut d: Option<&mut Random>) -> Vec<u8> {
    let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
    for chunk in chunks {
        let length = d.as_mut().and_then(|d| d.once_in(60).then(|| d.extreme() as u32));
        let length = length.unwrap_or(chunk.contents.len() as u32);
        file.extend(length.to_be_bytes());
        file.extend(chunk.name);
        file.extend(&chunk.contents);
        let mut sum = Crc::new();
        sum.update(&chunk.name);
        sum.update(&chunk.contents);
        let wrong = d.as_mut().is_some_and(|d| d.once_in(100));
        file.extend((sum.sum() ^ u32::from(wrong)).to_be_bytes());
    }
    file
}

/// A valid file, which must be accepted.
pub(super) fn whole(d: &mut Random) -> Vec<u8> {
    written(&picture(d), None)
}

/// A file with complete chunks whose image data ends early. It must be rejected.
pub(super) fn cut(d: &mut Random) -> Vec<u8> {
    let mut chunks = picture(d);
    let data: Vec<u8> = chunks.iter().filter(|c| c.name == *b"IDAT").flat_map(|c| c.contents.clone()).collect();
    let mut raw = Vec::new();
    // The data was compressed above, so decompressing it cannot fail.
    let _ = ZlibDecoder::new(&data[..]).read_to_end(&mut raw);
    raw.truncate(d.below(raw.len()));
    chunks.retain(|c| c.name != *b"IDAT");
    chunks.insert(chunks.len() - 1, Chunk { name: *b"IDAT", contents: deflate(&raw) });
    written(&chunks, None)
}

/// A damaged file.
pub(super) fn damaged(d: &mut Random) -> Vec<u8> {
    let mut chunks = picture(d);
    (0..d.below(4)).for_each(|_| change(&mut chunks, d));
    let mut file = written(&chunks, Some(d));
    (0..d.below(2)).for_each(|_| edit(&mut file, d));
    file
}

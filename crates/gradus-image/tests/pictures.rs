//! Files written by other programs: every variant is decoded correctly or refused with an error that names it,
//! truncated data are detected, and the memory limit for a file counts all bytes.
#![allow(clippy::unwrap_used)]

mod common;

use std::time::{Duration, Instant};

use common::{cpu, floats};
use gradus_image::{LoadOptions, decode};
use gradus_tensor::{DType, Error, ErrorKind, Tensor};

macro_rules! file {
    ($name:literal) => {
        ($name, include_bytes!(concat!("pictures/", $name)).as_slice())
    };
}

/// JPEG files of one picture, in colour and in grey. `make.py` in their folder shows how they were made.
const COLOUR: [(&str, &[u8]); 7] = [
    file!("baseline.jpg"),
    file!("baseline-422.jpg"),
    file!("restart.jpg"),
    file!("progressive.jpg"),
    file!("progressive-restart.jpg"),
    file!("separate.jpg"),
    file!("cmyk.jpg"),
];
const GREY: [(&str, &[u8]); 2] = [file!("grey.jpg"), file!("grey-progressive.jpg")];

fn read(bytes: &[u8], options: LoadOptions) -> Result<Tensor, Error> {
    decode(bytes, "a.file", &cpu(), options)
}

fn error(bytes: &[u8]) -> String {
    let e = read(bytes, LoadOptions::default()).expect_err("it was read");
    assert_eq!(*e.kind(), ErrorKind::Format, "{e}");
    e.to_string()
}

/// The red, green and blue of a pixel of the picture.
fn pixel(x: usize, y: usize) -> [f64; 3] {
    [20.0 + 9.0 * x as f64, 30.0 + 12.0 * y as f64, 240.0 - 4.0 * x as f64 - 6.0 * y as f64]
}

/// The largest difference between the elements of `x` and the values that `want` returns.
fn off(x: &Tensor, want: impl Fn(usize, usize, usize) -> f64) -> f64 {
    let &[_, h, w] = x.shape() else { panic!("{:?}", x.shape()) };
    assert_eq!((h, w), (16, 24));
    let at = |i: usize, v: f64| (v - want(i / (h * w), i / w % h, i % w)).abs();
    floats(x).into_iter().enumerate().map(|(i, v)| at(i, v)).fold(0.0, f64::max)
}

#[test]
fn every_kind_of_jpeg_shows_the_picture() {
    for (name, bytes) in COLOUR {
        let x = read(bytes, LoadOptions::default()).unwrap();
        assert_eq!(x.size(0).unwrap(), 3);
        let off = off(&x, |c, y, x| pixel(x, y)[c]);
        assert!(off < 14.0, "{name} is off by {off}");
    }
    for (name, bytes) in GREY {
        let x = read(bytes, LoadOptions::default()).unwrap();
        let grey = |[r, g, b]: [f64; 3]| 0.299 * r + 0.587 * g + 0.114 * b;
        let off = off(&x, |_, y, x| grey(pixel(x, y)));
        assert!(x.size(0).unwrap() == 1 && off < 8.0, "{name} is off by {off}");
    }
}

#[test]
fn of_an_animation_the_first_picture_is_read() {
    let x = read(file!("animated.png").1, LoadOptions::default()).unwrap();
    assert_eq!(off(&x, |c, y, x| pixel(x, y)[c]), 0.0);
    let palette = read(file!("palette.png").1, LoadOptions::default()).unwrap();
    assert_eq!(palette.shape(), [4, 16, 24]);
}

/// The decoder would silently decode these files to wrong pictures.
#[test]
fn what_would_be_decoded_wrongly_is_refused() {
    assert!(error(file!("separate-420.jpg").1).contains("channels of different sizes that come one after the other"));
    assert!(error(file!("fine-chroma.jpg").1).contains("channels that are finer than the first"));
}

/// The positions at which the data of each scan begin and end.
fn scans(bytes: &[u8]) -> Vec<[usize; 2]> {
    let mut scans = Vec::new();
    let mut at = 2;
    while bytes[at + 1] != 0xd9 {
        let length = usize::from(bytes[at + 2]) << 8 | usize::from(bytes[at + 3]);
        let (is_scan, start) = (bytes[at + 1] == 0xda, at + 2 + length);
        at = start;
        if is_scan {
            while bytes[at] != 0xff || matches!(bytes[at + 1], 0 | 0xd0..=0xd7) {
                at += 1;
            }
            scans.push([start, at]);
        }
    }
    scans
}

#[test]
fn coded_data_that_end_early_are_noticed_behind_an_end_mark_too() {
    for (name, bytes) in COLOUR.into_iter().chain(GREY) {
        let scans = scans(bytes);
        assert!(!scans.is_empty());
        for (number, &[start, end]) in (1..).zip(&scans) {
            // First only the last two bytes of the scan are missing, then more and more.
            for cut in (start..end - 1).rev() {
                let e = error(&[&bytes[..cut], b"\xff\xd9"].concat());
                let says = e.contains(&format!("ends early: scan {number} has ")) || e.contains("is damaged: ");
                assert!(says, "{name} cut at {cut} of {start}..{end}: {e}");
                // The data that follow are not mistaken for the missing data.
                let e = error(&[&bytes[..cut], &bytes[end..]].concat());
                assert!(e.contains("ends early") || e.contains("is damaged"), "{name} without {cut}..{end}: {e}");
            }
        }
    }
    let bytes = file!("baseline.jpg").1;
    let [start, end] = scans(bytes)[0];
    let e = error(&[&bytes[..start + (end - start) / 4], b"\xff\xd9"].concat());
    assert!(e.contains("ends early: scan 1 has 0 of the picture's 2 blocks (0 %)"), "{e}");
}

#[test]
fn a_scan_that_is_missing_is_noticed() {
    let bytes = file!("separate.jpg").1;
    let second = scans(bytes)[1];
    let header = bytes[..second[0]].windows(2).rposition(|w| w == b"\xff\xda").unwrap();
    assert!(error(&[&bytes[..header], b"\xff\xd9"].concat()).contains("ends early: channel 2 of 3 is missing"));
}

#[test]
fn restarts_out_of_order_are_noticed() {
    let bytes = file!("restart.jpg").1;
    let at = bytes.windows(2).position(|w| w == b"\xff\xd0").unwrap();
    let mut wrong = bytes.to_vec();
    wrong[at + 1] = 0xd3;
    assert!(error(&wrong).contains("is damaged: block 2 of 6 in scan 1"), "{}", error(&wrong));
}

/// The checksum of a PNG chunk.
fn crc(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |c, _| if c & 1 == 1 { (c >> 1) ^ 0xedb8_8320 } else { c >> 1 })
    })
}

fn chunk(name: &[u8; 4], contents: &[u8]) -> Vec<u8> {
    let named = [name, contents].concat();
    [&(contents.len() as u32).to_be_bytes(), &named[..], &crc(&named).to_be_bytes()].concat()
}

/// A PNG file with these chunks between the header and the data. The data are compressed zeros.
fn png(width: u32, height: u32, depth: u8, color: u8, chunks: &[u8], data: &[u8]) -> Vec<u8> {
    let header = [&width.to_be_bytes()[..], &height.to_be_bytes(), &[depth, color, 0, 0, 0]].concat();
    [b"\x89PNG\r\n\x1a\n", &chunk(b"IHDR", &header)[..], chunks, &chunk(b"IDAT", data), &chunk(b"IEND", b"")].concat()
}

/// Zeros, compressed by zlib.
fn zeros(count: usize) -> Vec<u8> {
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
    std::io::Write::write_all(&mut encoder, &vec![0; count]).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn a_limit_is_one_of_bytes_and_counts_them_all() {
    let at = |file: &[u8], dtype: DType, max_memory: usize| {
        let start = Instant::now();
        let result = read(file, LoadOptions { dtype: Some(dtype), max_memory });
        // A file over the limit must be refused before it is decoded, which would take longer.
        assert!(result.is_ok() || start.elapsed() < Duration::from_secs(2));
        result.map(|x| x.shape().to_vec()).map_err(|e| e.to_string())
    };
    let grey = png(3000, 1000, 8, 0, &[], &zeros(3001 * 1000));
    // The limit covers the samples and the memory of the decoder, and later the samples and the result.
    assert_eq!(at(&grey, DType::U8, 7_000_000), Ok(vec![1, 1000, 3000]));
    let e = at(&grey, DType::U8, 5_900_000).unwrap_err();
    assert!(e.contains("a.file needs more memory than the 5.6 MiB allowed: 3000 x 1000 pixels take 5.7 MiB"), "{e}");
    assert!(e.contains("LoadOptions::max_memory") && e.contains("--max-memory"), "{e}");
    assert!(at(&grey, DType::F64, 26_000_000).is_err());
    assert_eq!(at(&grey, DType::F64, 28_000_000), Ok(vec![1, 1000, 3000]));
    // The default limit is 1 GiB. This picture of 100 million pixels with 16 bits per channel needs more.
    let bomb = png(10_000, 10_000, 16, 6, &[], &zeros(1 << 20));
    let e = at(&bomb, DType::F32, LoadOptions::default().max_memory).unwrap_err();
    assert!(e.contains("more memory than the 1 GiB allowed: 10000 x 10000 pixels take 2.2 GiB"), "{e}");
    // A progressive JPEG needs all its coefficients at once.
    let name = |name: &str| COLOUR.iter().find(|(n, _)| *n == name).unwrap().1;
    for (bytes, side) in [(name("baseline.jpg"), 20_000u16), (name("progressive.jpg"), 10_000)] {
        let frame = bytes.windows(2).position(|w| matches!(w, b"\xff\xc0" | b"\xff\xc2")).unwrap();
        let mut large = bytes.to_vec();
        large[frame + 5..frame + 9].copy_from_slice(&[side.to_be_bytes(), side.to_be_bytes()].concat());
        let e = at(&large, DType::U8, 300_000_000).unwrap_err();
        assert!(e.contains(&format!("{side} x {side} pixels take ")), "{e}");
    }
}

#[test]
fn what_is_told_beside_a_picture_is_not_decompressed() {
    let profile = [b"icc\0\0", &zeros(64 << 20)[..]].concat();
    let text = [b"note\0\0", &zeros(64 << 20)[..]].concat();
    let chunks = [chunk(b"iCCP", &profile), chunk(b"zTXt", &text)].concat();
    let bomb = png(2, 2, 8, 0, &chunks, &zeros(6));
    let x = read(&bomb, LoadOptions { dtype: None, max_memory: 4 << 20 }).unwrap();
    assert_eq!(x.shape(), [1, 2, 2]);
    assert!(read(&bomb, LoadOptions { dtype: None, max_memory: 1000 }).unwrap_err().to_string().contains("allowed"));
}

/// The decoder panics on such a palette.
#[test]
fn a_palette_that_is_no_list_of_colours_is_refused() {
    let palette = |length: usize| png(2, 1, 8, 3, &chunk(b"PLTE", &vec![7; length]), &zeros(3));
    assert_eq!(read(&palette(6), LoadOptions::default()).unwrap().shape(), [3, 1, 2]);
    for length in [1, 8, 3 * 257] {
        assert!(error(&palette(length)).contains(&format!("its palette has {length} bytes")));
    }
}

#[test]
fn data_that_end_early_in_a_png_are_noticed() {
    let whole = png(100, 100, 8, 2, &[], &zeros(301 * 100));
    assert_eq!(read(&whole, LoadOptions::default()).unwrap().shape(), [3, 100, 100]);
    for rows in [0, 1, 50, 99] {
        assert!(error(&png(100, 100, 8, 2, &[], &zeros(301 * rows))).contains("a.file is damaged"));
    }
}

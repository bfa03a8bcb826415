//! Tests `gradus image`: the effect of filters and chains of filters on files.
#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::path::Path;

use gradus::image::{self, LoadOptions};
use gradus::prelude::*;
use support::{gradus, last_json, png, png_of, snapshot, succeed, text};

/// A colour photograph of 512 x 512 pixels.
const ASTRONAUT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../gradus-image/assets/astronaut.png");

/// Runs `gradus image` in `dir` with arguments split at spaces. Returns what it prints.
fn image(dir: &Path, line: &str) -> String {
    let line = line.replace("ASTRONAUT", ASTRONAUT);
    succeed(gradus().current_dir(dir).arg("image").args(line.split(' ').filter(|word| !word.is_empty())))
}

fn read(dir: &Path, name: &str) -> Tensor {
    image::load(dir.join(name), &Device::cpu().unwrap(), LoadOptions::default()).unwrap()
}

fn values(x: &Tensor) -> Vec<f64> {
    x.to_dtype(DType::F64).unwrap().to_vec().unwrap()
}

#[test]
fn every_filter_makes_a_picture_of_the_right_size() {
    let dir = tempfile::tempdir().unwrap();
    image(dir.path(), "resize --width 40 + crop --width 40 --height 30 ASTRONAUT in.png");
    assert_eq!(read(dir.path(), "in.png").shape(), [3, 30, 40]);
    for (filter, shape) in [
        ("blur --sigma 2", [3, 30, 40]),
        ("blur --sigma 1.5 --radius 2 --border reflect", [3, 30, 40]),
        ("blur --sigma 0 --border zero", [3, 30, 40]),
        ("sobel", [3, 30, 40]),
        ("sobel --threshold 0.5", [3, 30, 40]),
        ("grayscale", [1, 30, 40]),
        ("grayscale --keep-channels", [3, 30, 40]),
        ("threshold", [3, 30, 40]),
        ("threshold --at 0.3", [3, 30, 40]),
        ("brightness --factor 1.5", [3, 30, 40]),
        ("contrast --factor 2", [3, 30, 40]),
        ("contrast --factor 0.5 --about-mean", [3, 30, 40]),
        ("invert", [3, 30, 40]),
        ("sharpen", [3, 30, 40]),
        ("sharpen --amount 0.3", [3, 30, 40]),
        ("resize --width 20", [3, 15, 20]),
        ("resize --height 60 --filter bicubic", [3, 60, 80]),
        ("resize --height 7 --width 9 --filter nearest", [3, 7, 9]),
        ("resize --width 4 --filter area", [3, 3, 4]),
        ("crop --width 10 --height 20", [3, 20, 10]),
        ("crop --width 10 --height 20 --left 30 --top 10", [3, 20, 10]),
        ("flip --horizontal", [3, 30, 40]),
        ("flip --vertical --horizontal", [3, 30, 40]),
        ("rotate --degrees 90 --expand", [3, 40, 30]),
        ("rotate --degrees -30.5", [3, 30, 40]),
        ("rotate --degrees 45 --expand --filter nearest", [3, 50, 50]),
    ] {
        let said = image(dir.path(), &format!("{filter} in.png out.png --force --threads 1"));
        let out = read(dir.path(), "out.png");
        assert_eq!(out.shape(), shape, "{filter}");
        assert_eq!(said, format!("out.png: {} x {} pixels, channels: {}\n", shape[2], shape[1], shape[0]));
        let same = values(&out) == values(&read(dir.path(), "in.png"));
        assert_eq!(same, filter.contains("sigma 0 "), "{filter}");
    }
}

#[test]
fn a_chain_is_its_filters_in_turn() {
    let dir = tempfile::tempdir().unwrap();
    let device = Device::cpu().unwrap();
    let line = "blur --sigma 2 + grayscale + resize --width 100 ASTRONAUT out.png --json";
    let said = last_json(&image(dir.path(), line));
    assert_eq!(said, serde_json::json!({ "image": "out.png", "width": 100, "height": 100, "channels": 1 }));
    let x = image::load(ASTRONAUT, &device, LoadOptions { dtype: Some(DType::F32), ..LoadOptions::default() }).unwrap();
    let x = image::gaussian_blur(&x, 2.0, None, image::Border::Replicate).unwrap();
    let x = image::resize(&image::grayscale(&x, false).unwrap(), 100, 100).unwrap();
    for (got, want) in values(&read(dir.path(), "out.png")).iter().zip(values(&x)) {
        assert!((got - want * 255.0).abs() <= 0.501, "{got} {want}");
    }
    // Values that leave the range 0 to 1 within a chain are not lost: 0.8 * 2 / 2.
    fs::write(dir.path().join("a.png"), png(2, 1, &[204, 10])).unwrap();
    image(dir.path(), "brightness --factor 2 + brightness --factor 0.5 a.png b.png");
    assert_eq!(values(&read(dir.path(), "b.png")), [204.0, 10.0]);
    image(dir.path(), "invert + invert + flip --horizontal a.png c.png");
    assert_eq!(values(&read(dir.path(), "c.png")), [10.0, 204.0]);
}

#[test]
fn every_kind_of_picture_is_taken() {
    use png::{BitDepth, ColorType};
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| fs::write(dir.path().join(name), bytes).unwrap();
    write("pixel.png", &png(1, 1, &[10]));
    for filter in ["blur --sigma 9", "sobel", "sharpen", "rotate --degrees 30", "resize --width 3", "flip --vertical"] {
        image(dir.path(), &format!("{filter} pixel.png out.png --force"));
    }
    // A file with 16 bits per channel keeps them.
    write("deep.png", &png_of(ColorType::Rgb, BitDepth::Sixteen, 1, 1, &[1, 2, 3, 4, 255, 255]));
    image(dir.path(), "invert deep.png deep-out.png");
    let deep = read(dir.path(), "deep-out.png");
    let want = [0xfefd, 0xfcfb, 0].map(|v| f64::from(v) / 65535.0);
    assert_eq!(deep.dtype(), DType::F32);
    assert!(values(&deep).iter().zip(want).all(|(g, w)| (g - w).abs() < 1e-6), "{deep:?}");
    image(dir.path(), "invert deep.png deep.jpg");
    assert_eq!(read(dir.path(), "deep.jpg").dtype(), DType::U8);
    write("palette.png", &png_of(ColorType::Indexed, BitDepth::Eight, 2, 1, &[1, 0]));
    image(dir.path(), "invert palette.png palette-out.png");
    assert_eq!(values(&read(dir.path(), "palette-out.png")), [55.0, 245.0, 155.0, 235.0, 255.0, 225.0]);
    // Alpha does not change.
    write("alpha.png", &png_of(ColorType::Rgba, BitDepth::Eight, 1, 1, &[1, 2, 3, 4]));
    image(dir.path(), "invert alpha.png alpha-out.png");
    assert_eq!(values(&read(dir.path(), "alpha-out.png")), [254.0, 253.0, 252.0, 4.0]);
    // JPEG can be read and written. The format of IN is determined by its contents, not by its name.
    image(dir.path(), "crop --width 32 --height 32 ASTRONAUT small.jpg --quality 70");
    fs::rename(dir.path().join("small.jpg"), dir.path().join("small.dat")).unwrap();
    image(dir.path(), "rotate --degrees 180 small.dat turned.JPEG");
    assert_eq!(read(dir.path(), "turned.JPEG").shape(), [3, 32, 32]);
}

#[test]
fn a_picture_may_replace_itself_if_told_so() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.png"), png(2, 1, &[1, 2])).unwrap();
    let before = snapshot(dir.path());
    let output = gradus().current_dir(dir.path()).args(["image", "invert", "a.png", "a.png"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).1.contains("a.png is there already"), "{output:?}");
    assert!(snapshot(dir.path()) == before);
    image(dir.path(), "invert a.png a.png --force");
    assert_eq!(values(&read(dir.path(), "a.png")), [254.0, 253.0]);
    assert_eq!(snapshot(dir.path()).len(), 1);
}

#[test]
fn help_is_there_for_the_command_and_each_filter() {
    for words in [&["image", "--help"][..], &["image", "blur", "--help"], &["image", "invert", "+", "blur", "--help"]] {
        let said = succeed(gradus().args(words));
        assert!(said.contains("gradus image") && said.contains("IN OUT") || said.contains("in.png out.png"), "{said}");
    }
}

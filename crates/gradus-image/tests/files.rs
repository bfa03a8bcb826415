//! Tests PNG and JPEG files: files that are written can be read again, every kind of PNG can be read, and bad files
//! return errors.
#![allow(clippy::unwrap_used)]

mod common;

use std::fs;

use common::{bytes, cpu, floats, random};
use gradus_image::{Format, LoadOptions, SaveOptions, decode, encode, load, save};
use gradus_tensor::{DType, ErrorKind, Tensor};

/// A PNG file with these samples.
fn png(color: png::ColorType, depth: png::BitDepth, size: [u32; 2], samples: &[u8]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, size[0], size[1]);
    encoder.set_color(color);
    encoder.set_depth(depth);
    if color == png::ColorType::Indexed {
        encoder.set_palette(vec![10, 20, 30, 200, 100, 0]);
    }
    encoder.write_header().unwrap().write_image_data(samples).unwrap();
    file
}

fn read(file: &[u8], dtype: Option<DType>) -> Tensor {
    decode(file, "test", &cpu(), LoadOptions { dtype, ..LoadOptions::default() }).unwrap()
}

#[test]
fn what_is_written_is_read_again() {
    let dir = tempfile::tempdir().unwrap();
    for channels in [1, 3, 4] {
        let values: Vec<u8> = (0..channels * 6).map(|i| (i * 41 % 256) as u8).collect();
        let x = bytes(&values, &[channels, 2, 3]);
        let path = dir.path().join(format!("{channels}.png"));
        save(&path, &x, SaveOptions::default()).unwrap();
        let y = load(&path, &cpu(), LoadOptions::default()).unwrap();
        assert_eq!((y.dtype(), y.shape(), floats(&y)), (DType::U8, x.shape(), floats(&x)));
        // Reads the file as floats, and encodes them again.
        let unit = load(&path, &cpu(), LoadOptions { dtype: Some(DType::F32), ..LoadOptions::default() }).unwrap();
        assert_eq!(encode(&unit, Format::Png, 90).unwrap(), fs::read(&path).unwrap());
        // A flipped view, in which all strides are negative.
        let flipped = x.flip(-1).unwrap().flip(-2).unwrap().flip(0).unwrap();
        assert_eq!(floats(&read(&encode(&flipped, Format::Png, 90).unwrap(), None)), floats(&flipped));
        // The same with 16 bits per channel.
        let deep: Vec<u16> = (0..channels * 6).map(|i| (i * 3001 % 65536) as u16).collect();
        let deep = Tensor::from_vec(deep, [channels, 2, 3], &cpu()).unwrap();
        let file = encode(&deep, Format::Png, 90).unwrap();
        assert_eq!(floats(&read(&file, Some(DType::U16))), floats(&deep));
        let y = read(&file, None);
        assert_eq!(y.dtype(), DType::F32);
        for (g, w) in floats(&y).iter().zip(floats(&deep)) {
            assert!((g - w / 65535.0).abs() < 1e-7);
        }
        for (g, w) in floats(&read(&file, Some(DType::U8))).iter().zip(floats(&deep)) {
            assert!((g - w / 257.0).abs() <= 0.5);
        }
    }
    // Floats are clamped.
    let x = Tensor::from_vec(vec![-3.0f32, 0.5, f32::INFINITY], [1, 1, 3], &cpu()).unwrap();
    assert_eq!(floats(&read(&encode(&x, Format::Png, 90).unwrap(), None)), [0.0, 128.0, 255.0]);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
}

#[test]
fn jpeg_files_are_close_and_quality_counts() {
    let x = gradus_image::resize(&random(&[3, 4, 4], 2), 32, 24).unwrap();
    let (good, poor) = (encode(&x, Format::Jpeg, 95).unwrap(), encode(&x, Format::Jpeg, 10).unwrap());
    assert!(poor.len() < good.len());
    let y = read(&good, Some(DType::F64));
    assert_eq!(y.shape(), x.shape());
    let off = floats(&x).iter().zip(floats(&y)).map(|(a, b)| (a - b).abs()).sum::<f64>() / x.numel() as f64;
    assert!(off < 0.03, "{off}");
    let grey = encode(&bytes(&[7; 64], &[1, 8, 8]), Format::Jpeg, 90).unwrap();
    assert_eq!(floats(&read(&grey, None)), [7.0; 64]);
}

#[test]
fn the_orientation_that_a_camera_noted_is_applied() {
    // The upper half is bright. The metadata say that the top of the picture is at the right.
    let x = bytes(&[[250u8; 64], [0; 64]].concat(), &[1, 8, 16]);
    let file = encode(&x, Format::Jpeg, 95).unwrap();
    let mut note = b"\xff\xe1\x00\x22Exif\0\0MM\0\x2a\0\0\0\x08\0\x01".to_vec();
    note.extend(b"\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0");
    let turned = read(&[&file[..2], &note, &file[2..]].concat(), None);
    assert_eq!(turned.shape(), [1, 16, 8]);
    let values = floats(&turned);
    assert!(values[0] < 50.0 && values[7] > 200.0, "{values:?}");
}

#[test]
fn every_kind_of_png_is_read() {
    use png::{BitDepth, ColorType};
    let at = |color, depth, size, samples: &[u8], dtype| {
        let x = read(&png(color, depth, size, samples), dtype);
        (x.shape().to_vec(), floats(&x))
    };
    assert_eq!(at(ColorType::Grayscale, BitDepth::Eight, [1, 1], &[9], None), (vec![1, 1, 1], vec![9.0]));
    assert_eq!(at(ColorType::Grayscale, BitDepth::One, [3, 1], &[0b0101_0000], None).1, [0.0, 255.0, 0.0]);
    let palette = at(ColorType::Indexed, BitDepth::Eight, [2, 1], &[1, 0], None);
    assert_eq!(palette, (vec![3, 1, 2], vec![200.0, 10.0, 100.0, 20.0, 0.0, 30.0]));
    let small_palette = at(ColorType::Indexed, BitDepth::One, [2, 1], &[0b1000_0000], None);
    assert_eq!(small_palette, palette);
    let alpha = at(ColorType::GrayscaleAlpha, BitDepth::Eight, [2, 1], &[5, 6, 7, 8], None);
    assert_eq!(alpha, (vec![4, 1, 2], vec![5.0, 7.0, 5.0, 7.0, 5.0, 7.0, 6.0, 8.0]));
    let deep = at(ColorType::GrayscaleAlpha, BitDepth::Sixteen, [1, 1], &[1, 2, 3, 4], Some(DType::U16));
    assert_eq!(deep, (vec![4, 1, 1], vec![258.0, 258.0, 258.0, 772.0]));
    let widened = at(ColorType::Grayscale, BitDepth::Eight, [2, 1], &[255, 1], Some(DType::U16));
    assert_eq!(widened.1, [65535.0, 257.0]);
}

#[test]
fn files_that_are_cut_off_or_damaged_are_errors() {
    let x = random(&[3, 9, 9], 4);
    for format in [Format::Png, Format::Jpeg] {
        let file = encode(&x, format, 80).unwrap();
        let error = |file: &[u8]| decode(file, "a.png", &cpu(), LoadOptions::default()).err();
        assert!(error(&file).is_none());
        for end in 0..file.len() {
            let e = error(&file[..end]).unwrap_or_else(|| panic!("{format:?} of {end} bytes was read"));
            assert!(e.to_string().contains("a.png") && *e.kind() == ErrorKind::Format, "{e}");
        }
        // Inverting the bits of any byte gives an error or some picture, but never a panic.
        for i in 0..file.len() {
            let mut broken = file.clone();
            broken[i] ^= 0xff;
            let _ = error(&broken);
        }
    }
    let file = encode(&x, Format::Png, 80).unwrap();
    let mut wrong = file.clone();
    wrong[30] ^= 1;
    assert!(decode(&wrong, "a", &cpu(), LoadOptions::default()).is_err());
    let dtype = LoadOptions { dtype: Some(DType::I64), ..LoadOptions::default() };
    assert!(decode(&file, "a", &cpu(), dtype).unwrap_err().to_string().contains("i64"));
}

#[test]
fn places_that_are_none_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let x = bytes(&[1], &[1, 1, 1]);
    fs::create_dir(path("folder.png")).unwrap();
    fs::write(path("text.png"), "not a picture").unwrap();
    for (name, says) in
        [("none.png", "none.png"), ("folder.png", "is a folder"), ("text.png", "neither a PNG nor a JPEG")]
    {
        let e = load(path(name), &cpu(), LoadOptions::default()).unwrap_err().to_string();
        assert!(e.contains(says), "{e}");
    }
    let keep = SaveOptions { overwrite: false, ..SaveOptions::default() };
    for (name, says) in [
        ("folder.png", "is a folder"),
        ("no/folder/a.png", "a.png"),
        ("a.gif", "the name says no format"),
        ("a", "the name says no format"),
        ("text.png", "is there already"),
    ] {
        let e = save(path(name), &x, keep).unwrap_err().to_string();
        assert!(e.contains(says), "{e}");
    }
    assert_eq!(fs::read(path("text.png")).unwrap(), b"not a picture");
    save(path("new.PNG"), &x, keep).unwrap();
    save(path("text.png"), &x, SaveOptions::default()).unwrap();
    let mut names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["folder.png", "new.PNG", "text.png"]);
}

#[cfg(unix)]
#[test]
fn a_link_stays_one_and_devices_are_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (file, link) = (dir.path().join("a.png"), dir.path().join("link.png"));
    fs::write(&file, "old").unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    let x = bytes(&[1], &[1, 1, 1]);
    save(&link, &x, SaveOptions::default()).unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert!(fs::read(&file).unwrap().starts_with(b"\x89PNG"));
    let null = dir.path().join("null.png");
    std::os::unix::fs::symlink("/dev/null", &null).unwrap();
    assert!(save(&null, &x, SaveOptions::default()).unwrap_err().to_string().contains("is not a regular file"));
    let e = load(&null, &cpu(), LoadOptions::default()).unwrap_err().to_string();
    assert!(e.contains("not a regular file"), "{e}");
}

#[test]
fn images_that_no_file_holds_are_errors() {
    let says = |x: &Tensor, format, quality, words: &str| {
        let e = encode(x, format, quality).unwrap_err().to_string();
        assert!(e.contains(words), "no {words:?} in\n{e}");
    };
    let ones = |shape: &[usize]| Tensor::ones(shape, DType::F32, &cpu()).unwrap();
    says(&ones(&[2, 4, 4]), Format::Png, 90, "no image [c, h, w]");
    says(&ones(&[1, 3, 4, 4]), Format::Png, 90, "one by one");
    says(&ones(&[3, 0, 4]), Format::Png, 90, "no pixels");
    says(&ones(&[4, 2, 2]), Format::Jpeg, 90, "no alpha");
    says(&ones(&[1, 2, 2]).to_dtype(DType::U16).unwrap(), Format::Jpeg, 90, "8 bits");
    says(&ones(&[1, 2, 2]).to_dtype(DType::I64).unwrap(), Format::Png, 90, "i64");
    says(&ones(&[1, 2, 2]), Format::Jpeg, 0, "quality 0");
    says(&ones(&[1, 1, 70_000]), Format::Jpeg, 90, "save image");
    says(&ones(&[1, 2, 2]).mul(f64::NAN).unwrap(), Format::Png, 90, "NaN");
}

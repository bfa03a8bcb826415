//! Photos: what Pillow makes of the same files (`photos/make.py`), what the functions on tensors make of them, and files
//! that are damaged.
#![allow(clippy::unwrap_used)]

mod common;

use common::{cpu, floats};
use gradus_image::augment::{
    RandomErasing, ResizedCrop, random_crop, random_erasing, random_flip_horizontal, random_resized_crop,
};
use gradus_image::{
    Channels, LoadOptions, Photo, center_crop, crop, decode, grayscale, load, normalize, resize, to_float,
};
use gradus_tensor::{DType, Generator, Tensor};

const NAMES: [&str; 7] = ["420", "422", "444", "restarts", "grey", "narrow", "progressive"];

fn path(name: &str) -> String {
    format!("{}/tests/photos/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn bytes_of(name: &str) -> Tensor {
    load(path(name), &cpu(), LoadOptions { dtype: Some(DType::U8), ..Default::default() }).unwrap()
}

/// The bytes of a photo that is not normalised.
fn bytes(photo: &Photo) -> Tensor {
    gradus_image::to_bytes(&photo.to_tensor(&cpu()).unwrap()).unwrap()
}

/// The largest and the mean difference of two images of the same shape.
fn apart(x: &Tensor, y: &Tensor) -> (f64, f64) {
    assert_eq!(x.shape(), y.shape());
    let all: Vec<f64> = floats(x).iter().zip(floats(y)).map(|(x, y)| (x - y).abs()).collect();
    (all.iter().copied().fold(0.0, f64::max), all.iter().sum::<f64>() / all.len() as f64)
}

#[test]
fn pixels_are_those_of_pillow() {
    for name in NAMES {
        let (found, wanted) = (bytes_of(&format!("{name}.jpg")), bytes_of(&format!("{name}.png")));
        let (most, mean) = apart(&found, &wanted);
        // Another rounding of the cosine transform changes samples by 1, and thereby a colour by up to 3.
        // The decoder of progressive files also interpolates chroma in another way.
        let most_mean = if name == "progressive" { 0.5 } else { 0.1 };
        assert!(most <= 3.0 && mean < most_mean, "{name}: {most} {mean}");
        let (h, w) = (found.shape()[1], found.shape()[2]);
        for (rows, columns) in [(12, 9), (50, 61)] {
            let photo = Photo::open(path(&format!("{name}.jpg")), Channels::OfFile).unwrap();
            let photo = photo.crop(h / 5, w / 4, h - 1 - h / 5, w - w / 8 - w / 4).unwrap();
            let photo = photo.resize(rows, columns).unwrap();
            let wanted = bytes_of(&format!("{name}.{rows}x{columns}.png"));
            let (most, mean) = apart(&bytes(&photo), &wanted);
            // Pillow rounds between its two passes.
            assert!(most <= 3.0 && mean < 0.5, "{name} {rows} x {columns}: {most} {mean}");
        }
    }
}

#[test]
fn photos_are_what_the_functions_on_tensors_make() {
    for name in NAMES {
        let file = path(&format!("{name}.jpg"));
        let x = bytes_of(&format!("{name}.jpg"));
        for channels in [Channels::OfFile, Channels::Rgb, Channels::Grey] {
            let x = match channels {
                Channels::Grey => grayscale(&x, false).unwrap(),
                Channels::Rgb if x.shape()[0] == 1 => x.expand([3, x.shape()[1], x.shape()[2]]).unwrap(),
                _ => x.clone(),
            };
            let photo = || Photo::open(&file, channels).unwrap();
            assert_eq!(apart(&bytes(&photo()), &x).0, 0.0);
            let (h, w) = photo().size();
            for seed in 0..6 {
                let mut g = Generator::new(seed);
                let y = random_resized_crop(&x, 14, 19, ResizedCrop::default(), &mut g).unwrap();
                let y = random_flip_horizontal(&y, 0.5, &mut g).unwrap();
                let mut g = Generator::new(seed);
                let found = photo().random_resized_crop(14, 19, ResizedCrop::default(), &mut g).unwrap();
                let found = found.random_flip_horizontal(0.5, &mut g).unwrap();
                // Sums in another order may be rounded to the other side of a half.
                let (most, mean) = apart(&bytes(&found), &y);
                assert!(most <= 1.0 && mean < 0.03, "{name} {channels:?} {seed}: {most} {mean}");

                let mut g = Generator::new(seed);
                let y = random_crop(&x, h, w, 3, &mut g).unwrap();
                let found = photo().random_crop(h, w, 3, &mut Generator::new(seed)).unwrap();
                assert_eq!(apart(&bytes(&found), &y).0, 0.0);
            }
            // A mirrored picture is cut where one sees it.
            let found = photo().flip_horizontal().crop(2, 1, h - 5, 2).unwrap();
            let y = gradus_image::flip_horizontal(&x).unwrap();
            assert_eq!(apart(&bytes(&found), &crop(&y, 2, 1, h - 5, 2).unwrap()).0, 0.0);
            let found = photo().resize_shorter(10).unwrap().center_crop(10, 8).unwrap();
            let long = 10 * h.max(w) / h.min(w);
            let y = if h <= w { resize(&x, 10, long) } else { resize(&x, long, 10) };
            assert!(apart(&bytes(&found), &center_crop(&y.unwrap(), 10, 8).unwrap()).0 <= 1.0);
        }
    }
}

#[test]
fn values_are_normalised_and_transparency_kept_on_demand() {
    let x = Tensor::from_vec((0..64).map(|i| (i * 3) as u8).collect::<Vec<_>>(), [4, 4, 4], &cpu()).unwrap();
    let file = gradus_image::encode(&x, gradus_image::Format::Png, 90).unwrap();
    let photo = |channels| Photo::from_bytes(file.clone(), "x.png", channels).unwrap();
    assert_eq!(apart(&bytes(&photo(Channels::Rgba)), &x).0, 0.0);
    assert_eq!(photo(Channels::OfFile).shape(), [4, 4, 4]);
    let (mean, std) = ([0.1, 0.2, 0.3], [0.5, 0.6, 0.7]);
    let found = photo(Channels::Rgb).normalize(&mean, &std).unwrap().to_tensor(&cpu()).unwrap();
    let rgb = to_float(&x.narrow(0, 0, 3).unwrap(), DType::F32).unwrap();
    assert!(apart(&found, &normalize(&rgb, &mean, &std).unwrap()).0 < 1e-6);
    let e = photo(Channels::Grey).normalize(&mean, &std).unwrap_err().to_string();
    assert!(e.contains("3 means and 3 deviations for 1 channels"), "{e}");
    assert!(photo(Channels::Rgb).fill(&mut [0.0; 5]).is_err());

    let hwc = gradus_image::to_hwc(&x).unwrap().contiguous().unwrap().to_vec::<u8>().unwrap();
    let found = Photo::from_pixels(&hwc, [4, 4, 4], "x", Channels::OfFile).unwrap();
    assert_eq!((apart(&bytes(&found), &x).0, found.channels_of_file()), (0.0, 4));
    for shape in [[4, 4, 3], [4, 16, 0], [0, 4, 4], [8, 4, 2], [usize::MAX, 4, 4]] {
        assert!(Photo::from_pixels(&hwc, shape, "x", Channels::Rgb).is_err(), "{shape:?}");
    }
    let grey = || photo(Channels::Rgb).channels(Channels::Grey).unwrap();
    assert_eq!(apart(&bytes(&grey()), &bytes(&photo(Channels::Grey))).0, 0.0);
    assert!(grey().channels(Channels::Rgb).unwrap_err().to_string().contains("no colours any more"));
    let how = RandomErasing { p: 0.8, value: 7.0, ..Default::default() };
    for seed in 0..20 {
        let y = random_erasing(&rgb, how, &mut Generator::new(seed)).unwrap();
        let found = photo(Channels::Rgb).random_erasing(how, &mut Generator::new(seed)).unwrap();
        assert!(apart(&found.to_tensor(&cpu()).unwrap(), &y).0 < 1e-6);
    }
}

#[test]
fn wrong_files_and_arguments_are_named() {
    let whole = std::fs::read(path("420.jpg")).unwrap();
    let open = |bytes: &[u8]| Photo::from_bytes(bytes.to_vec(), "a.jpg", Channels::Rgb);
    // However early the file ends, its name and what is wrong are told, if not at once then when pixels are needed.
    for end in (0..whole.len() - 2).step_by(7) {
        let e =
            open(&whole[..end]).and_then(|photo| photo.crop(0, 0, 2, 2)?.to_tensor(&cpu())).unwrap_err().to_string();
        assert!(e.contains("a.jpg "), "{e}");
    }
    // Half of the data, and an end mark: a decoder may fill up such a file.
    let half = [&whole[..whole.len() * 3 / 4], b"\xff\xd9"].concat();
    let e = open(&half).unwrap().resize(4, 4).unwrap_err().to_string();
    assert!(e.contains("a.jpg ends early: scan 1 has "), "{e}");
    assert!(decode(&half, "a.jpg", &cpu(), LoadOptions::default()).unwrap_err().to_string().contains("ends early"));
    assert!(open(b"GIF89a").unwrap_err().to_string().contains("a.jpg is neither a PNG nor a JPEG"));

    let photo = || open(&whole).unwrap();
    assert!(photo().crop(0, 0, 46, 1).unwrap_err().to_string().contains("46 x 1 pixels from row 0"));
    assert!(photo().crop(usize::MAX, 0, 2, 1).is_err() && photo().crop(0, 0, 0, 1).is_err());
    assert!(photo().center_crop(100, 1).is_err());
    for size in [(0, 3), (3, 0), (usize::MAX, 2), (1 << 16, 1 << 16)] {
        let e = photo().resize(size.0, size.1).unwrap_err().to_string();
        assert!(e.contains("in the picture a.jpg"), "{e}");
    }
    assert!(photo().resize_shorter(0).is_err());
    let mut g = Generator::new(0);
    for padding in [usize::MAX, 1 << 20] {
        assert!(photo().random_crop(4, 4, padding, &mut g).is_err());
    }
    assert!(photo().random_crop(46, 46, 0, &mut g).unwrap_err().to_string().contains("not within 45 x 61"));
    assert!(photo().random_flip_horizontal(f64::NAN, &mut g).is_err());
    let e = Photo::open_within(path("420.jpg"), Channels::Rgb, 3000).unwrap().resize(2, 2).unwrap_err().to_string();
    assert!(e.contains("420.jpg needs more memory than the 2.9 KiB allowed: 61 x 45 pixels take "), "{e}");
    let e = Photo::open_within(path("420.jpg"), Channels::Rgb, 100).unwrap_err().to_string();
    assert!(e.contains("the file has 1.6 KiB"), "{e}");
}

#[test]
fn photos_are_upright_and_of_8_bits() {
    let file = std::fs::read(path("420.jpg")).unwrap();
    for number in 0..10u8 {
        let mut note = b"\xff\xe1\x00\x22Exif\0\0MM\0\x2a\0\0\0\x08\0\x01".to_vec();
        note.extend([&b"\x01\x12\0\x03\0\0\0\x01\0"[..], &[number], b"\0\0\0\0\0\0"].concat());
        let turned = [&file[..2], &note, &file[2..]].concat();
        let x = decode(&turned, "x.jpg", &cpu(), LoadOptions::default()).unwrap();
        let photo = Photo::from_bytes(turned, "x.jpg", Channels::Rgb).unwrap();
        assert_eq!(photo.size(), if number > 4 && number < 9 { (61, 45) } else { (45, 61) });
        assert_eq!(apart(&bytes(&photo.crop(3, 5, 30, 20).unwrap()), &crop(&x, 3, 5, 30, 20).unwrap()).0, 0.0);
    }
    // 16 bits become 8, and grey with transparency has four channels.
    let deep = Tensor::from_vec(vec![0u16, 128, 129, 257, 40_000, 65_535], [1, 2, 3], &cpu()).unwrap();
    let file = gradus_image::encode(&deep, gradus_image::Format::Png, 90).unwrap();
    let photo = Photo::from_bytes(file, "deep.png", Channels::OfFile).unwrap();
    assert_eq!(floats(&bytes(&photo)), [0.0, 0.0, 1.0, 1.0, 156.0, 255.0]);
}

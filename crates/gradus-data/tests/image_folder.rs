//! Folders of images: their order, channels, and files that are broken.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::sync::Arc;

use gradus_cpu::CpuBackend;
use gradus_data::{Channels, DataLoader, Dataset, ImageFolder};
use gradus_image::augment::random_crop;
use gradus_image::{SaveOptions, save};
use gradus_tensor::{DType, Device, Tensor};

fn device() -> Device {
    Device::from_backend(Arc::new(CpuBackend::new().unwrap()))
}

/// An image of one pixel repeated, with these channels.
fn put(path: &Path, pixel: &[u8], size: usize, d: &Device) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let x = Tensor::from_vec(pixel, [pixel.len(), 1, 1], d).unwrap();
    save(path, &x.expand([pixel.len(), size, size]).unwrap(), SaveOptions::default()).unwrap();
}

#[test]
fn classes_and_files_are_sorted_and_folders_searched() {
    let (d, dir) = (device(), tempfile::tempdir().unwrap());
    for (name, grey) in [("wolf/b.png", 1), ("cat/10.png", 2), ("cat/2.PNG", 3), ("wolf/a/z.png", 4)] {
        let path = dir.path().join(name.to_lowercase());
        put(&path, &[grey], 2, &d);
        fs::rename(&path, dir.path().join(name)).unwrap();
    }
    fs::write(dir.path().join("cat/notes.txt"), "no image").unwrap();
    fs::write(dir.path().join("readme.png"), "in no class").unwrap();
    let folder = ImageFolder::open(dir.path(), Channels::OfFile, &d).unwrap();
    assert_eq!(folder.classes(), ["cat", "wolf"]);
    assert_eq!(folder.labels(), [0, 0, 1, 1]);
    let values: Vec<u8> = (0..4).map(|i| folder.get(i).unwrap().0.to_vec::<u8>().unwrap()[0]).collect();
    assert_eq!(values, [2, 3, 4, 1]);
    assert!(folder.get(4).is_err());
}

#[test]
fn channels_are_converted() {
    let (d, dir) = (device(), tempfile::tempdir().unwrap());
    put(&dir.path().join("a/1.png"), &[100], 1, &d);
    put(&dir.path().join("a/2.png"), &[200, 100, 50], 1, &d);
    put(&dir.path().join("a/3.png"), &[200, 100, 50, 7], 1, &d);
    let read = |channels| {
        let folder = ImageFolder::open(dir.path(), channels, &d).unwrap();
        (0..3).map(|i| folder.get(i).unwrap().0.to_vec::<u8>().unwrap()).collect::<Vec<_>>()
    };
    // PIL.Image.convert("L") of the pixel gives 124 too.
    assert_eq!(read(Channels::Grey), [vec![100], vec![124], vec![124]]);
    assert_eq!(read(Channels::Rgb), [vec![100; 3], vec![200, 100, 50], vec![200, 100, 50]]);
    assert_eq!(read(Channels::Rgba), [vec![100, 100, 100, 255], vec![200, 100, 50, 255], vec![200, 100, 50, 7]]);
    assert_eq!(read(Channels::OfFile), [vec![100], vec![200, 100, 50], vec![200, 100, 50, 7]]);
}

#[test]
fn a_loader_crops_and_batches_and_its_workers_change_nothing() {
    let (d, dir) = (device(), tempfile::tempdir().unwrap());
    for i in 0..6 {
        put(&dir.path().join(format!("{}/{i}.png", i % 2)), &[10 * i, 1, 2], 4 + usize::from(i), &d);
    }
    let batches = |workers: usize| {
        let folder = ImageFolder::open(dir.path(), Channels::Rgb, &d).unwrap();
        let loader = DataLoader::new(folder, &d).batch_size(4).shuffle(1).workers(workers);
        let loader = loader.augment(|(x, label), g| Ok((random_crop(&x, 5, 5, 2, g)?, label))).build().unwrap();
        let batches: Vec<_> = loader.epoch(0).unwrap().map(Result::unwrap).collect();
        batches
            .iter()
            .flat_map(|(x, y)| [x.to_vec::<u8>().unwrap(), y.to_dtype(DType::U8).unwrap().to_vec().unwrap()])
            .collect::<Vec<_>>()
    };
    let alone = batches(0);
    assert_eq!(alone[0].len(), 4 * 3 * 5 * 5);
    assert_eq!(batches(2), alone);
}

#[test]
fn broken_folders_and_files_are_named() {
    let (d, dir) = (device(), tempfile::tempdir().unwrap());
    let open = |path: &Path| ImageFolder::open(path, Channels::Rgb, &d);
    let error = |path: &Path| open(path).unwrap_err().to_string();
    assert!(error(&dir.path().join("none")).contains("none"));
    assert!(error(dir.path()).contains("has no folders"));
    fs::create_dir(dir.path().join("empty")).unwrap();
    assert!(error(dir.path()).contains("empty has no image"));
    put(&dir.path().join("empty/good.png"), &[1, 2, 3], 8, &d);
    assert!(error(&dir.path().join("empty/good.png")).contains("good.png"));
    let good = fs::read(dir.path().join("empty/good.png")).unwrap();
    fs::write(dir.path().join("empty/cut.png"), &good[..good.len() / 2]).unwrap();
    fs::write(dir.path().join("empty/foreign.jpg"), "GIF89a").unwrap();
    let folder = open(dir.path()).unwrap();
    assert!(folder.get(0).unwrap_err().to_string().contains("empty/cut.png"));
    assert!(folder.get(1).unwrap_err().to_string().contains("empty/foreign.jpg is neither a PNG nor a JPEG"));
    assert_eq!(folder.get(2).unwrap().0.shape(), [3, 8, 8]);
    assert!(folder.max_memory(100).get(2).unwrap_err().to_string().contains("more memory"));
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(dir.path().join("empty"), dir.path().join("empty/loop")).unwrap();
        assert!(error(dir.path()).contains("empty/loop leads to a folder that was searched before"));
        use std::os::unix::ffi::OsStrExt;
        let odd = tempfile::tempdir().unwrap();
        put(&odd.path().join(std::ffi::OsStr::from_bytes(b"k\xe4se/1.png")), &[1], 2, &d);
        assert!(error(odd.path()).contains("has a name that is not UTF-8"), "{}", error(odd.path()));
    }
}

#[test]
fn photos_are_batched_and_workers_change_nothing() {
    let (d, dir) = (device(), tempfile::tempdir().unwrap());
    for i in 0..6u8 {
        put(&dir.path().join(format!("{}/{i}.{}", i % 2, ["png", "jpg"][usize::from(i / 4)])), &[10 * i, 1, 2], 9, &d);
    }
    let batches = |workers: usize| {
        let photos = ImageFolder::open(dir.path(), Channels::Rgb, &d).unwrap().photos();
        let loader = DataLoader::new(photos, &d).batch_size(4).shuffle(1).workers(workers).augment(|(x, label), g| {
            Ok((x.random_crop(5, 6, 2, g)?.random_flip_horizontal(0.5, g)?.normalize(&[0.5; 3], &[0.5; 3])?, label))
        });
        let batches = loader.build().unwrap().epoch(0).unwrap().map(Result::unwrap).collect::<Vec<_>>();
        batches.iter().flat_map(|(x, y)| [x.clone(), y.to_dtype(DType::F32).unwrap()]).collect::<Vec<Tensor>>()
    };
    let alone = batches(0);
    assert_eq!(alone[0].shape(), [4, 3, 5, 6]);
    let values = |x: &[Tensor]| x.iter().flat_map(|x| x.to_vec::<f32>().unwrap()).collect::<Vec<_>>();
    assert_eq!(values(&batches(2)), values(&alone));
    fs::write(dir.path().join("1/5.jpg"), "GIF89a").unwrap();
    let photos = ImageFolder::open(dir.path(), Channels::Rgb, &d).unwrap().photos();
    assert_eq!((photos.len(), photos.folder().classes().len()), (6, 2));
    let e = DataLoader::new(photos, &d).build().unwrap().epoch(0).unwrap().next().unwrap().unwrap_err().to_string();
    assert!(e.contains("1/5.jpg is neither a PNG nor a JPEG"), "{e}");
}

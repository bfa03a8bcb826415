//! Tests that a plug-in loads and works like any other backend, and that a file that is not a plug-in of this version
//! is refused with the reason.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use gradus::backend::plugin::{FINGERPRINT, MAGIC, SYMBOL, Table};
use gradus::plugin::{Refusal, load};
use gradus::prelude::*;

/// The library built from this package, which is in the same folder as its tests.
fn library() -> PathBuf {
    let name = format!("{}tiny_plugin{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    std::env::current_exe().unwrap().with_file_name(name)
}

fn open() -> Device {
    // SAFETY: the library is built from this package and contains the backend of tiny-backend.
    unsafe { Device::load_plugin(library()) }.unwrap()
}

/// Returns the error of loading a modified copy of the library. The copy is either still this package's library, or not
/// a library at all.
fn refusal(change: impl FnOnce(&mut Vec<u8>)) -> Error {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(library().file_name().unwrap());
    let mut bytes = std::fs::read(library()).unwrap();
    change(&mut bytes);
    std::fs::write(&path, bytes).unwrap();
    load_error(&path)
}

fn load_error(path: &Path) -> Error {
    // SAFETY: see `refusal`. Its changes affect only bytes that the library's initialisers do not execute.
    unsafe { Device::load_plugin(path) }.unwrap_err()
}

/// The offset of the plug-in's table in the library.
fn table(bytes: &[u8]) -> usize {
    let whole = [&MAGIC[..], &FINGERPRINT.to_ne_bytes()].concat();
    let places: Vec<_> = (0..bytes.len() - 16).filter(|&i| bytes[i..i + 16] == whole[..]).collect();
    assert_eq!(places.len(), 1);
    places[0]
}

#[test]
fn a_plug_in_conforms_to_the_contract() {
    // SAFETY: as in `open`.
    let backend = unsafe { load(&library()) }.unwrap();
    assert_eq!((backend.name(), backend.info().hardware.as_str()), ("tiny", "one element after the other"));
    // tiny-backend itself runs the whole suite.
    let report = gradus_conformance::brief(&*backend);
    assert!(report.passed(), "{report}");
}

#[test]
fn it_trains() {
    let device = open();
    let mut generator = Generator::new(1);
    let mut init = Init::new(DType::F32, &device, &mut generator);
    let model = Linear::new(3, 2, &mut init).unwrap();
    let mut optimizer = AdamW::new(model.named_parameters(), AdamConfig { lr: 0.1, ..Default::default() }).unwrap();
    let x = Tensor::randn([8, 3], DType::F32, &device, &mut generator).unwrap();
    let target = Tensor::from_vec(vec![0i64, 1, 1, 0, 1, 0, 0, 1], [8], &device).unwrap();
    let mut losses = vec![];
    for _ in 0..20 {
        let loss = model.forward(&x).unwrap().cross_entropy(&target).unwrap();
        optimizer.step(&loss.backward().unwrap()).unwrap();
        losses.push(loss.item().unwrap());
    }
    assert!(losses[19] < 0.9 * losses[0], "{losses:?}");
}

#[test]
fn errors_cross_the_border_with_kind_and_words() {
    let device = open();
    let x = Tensor::from_vec(vec![1.0f32, 2.0], [2], &device).unwrap();
    let index = Tensor::from_vec(vec![0i64, 5], [2], &device).unwrap();
    let e = x.gather(0, &index).unwrap_err();
    assert_eq!(e.kind(), &ErrorKind::IndexOutOfBounds { pos: 1, index: 5, size: 2 });
    assert_eq!(e.message(), "index 5 at position 1 is outside an axis of size 2");
    let e = device.backend().alloc(usize::MAX / 2).unwrap_err();
    assert_eq!(e.kind(), &ErrorKind::OutOfMemory { requested: usize::MAX / 2 });
    // A second instance of the library is another device, and its buffers are foreign.
    let other = open();
    assert_ne!(device, other);
    assert_eq!(x.add(Tensor::ones([2], DType::F32, &other).unwrap()).unwrap_err().kind(), &ErrorKind::DeviceMismatch);
    let y = other.backend().alloc(8).unwrap();
    assert_eq!(device.backend().download(&y, 0, &mut [0]).unwrap_err().kind(), &ErrorKind::DeviceMismatch);
}

#[test]
fn several_threads_use_one_plug_in() {
    let device = open();
    let shared = Tensor::from_vec((0..64).map(|i| i as f32).collect::<Vec<_>>(), [8, 8], &device).unwrap();
    let want = shared.matmul(&shared).unwrap().to_vec::<f32>().unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (device, shared, want) = (&device, &shared, &want);
            scope.spawn(move || {
                for round in 0..20 {
                    assert_eq!(&shared.matmul(shared).unwrap().to_vec::<f32>().unwrap(), want);
                    let own = Tensor::full([5], f64::from(thread * 100 + round), DType::F32, device).unwrap();
                    assert_eq!(
                        own.add(&own).unwrap().to_vec::<f32>().unwrap(),
                        [(2 * (thread * 100 + round)) as f32; 5]
                    );
                    // Each thread gets its own errors.
                    let size = 1 + thread as usize;
                    let index = Tensor::from_vec(vec![9i64], [1], device).unwrap();
                    let e = Tensor::zeros([size], DType::F32, device).unwrap().gather(0, &index).unwrap_err();
                    assert_eq!(e.kind(), &ErrorKind::IndexOutOfBounds { pos: 0, index: 9, size });
                }
            });
        }
    });
    assert_eq!(device.memory_stats().buffers, 1, "what the threads allocated was given back");
}

#[test]
fn buffers_outlive_the_device() {
    let x = {
        let device = open();
        Tensor::from_vec(vec![1.0f32, 2.0, 3.0], [3], &device).unwrap()
    };
    assert_eq!(x.add(1.0).unwrap().to_vec::<f32>().unwrap(), [2.0, 3.0, 4.0]);
}

#[test]
fn a_spoiled_fingerprint_is_refused_before_anything_is_called() {
    let e = refusal(|bytes| {
        let at = table(bytes) + 8;
        bytes[at] ^= 1;
    });
    let found = FINGERPRINT ^ if cfg!(target_endian = "little") { 1 } else { 1 << 56 };
    assert_eq!(e.kind(), &ErrorKind::Format);
    assert_eq!(Refusal::of(&e), Some(Refusal::WrongFingerprint { found, expected: FINGERPRINT }));
}

#[test]
fn every_other_library_is_refused_by_reason() {
    let magic = refusal(|bytes| {
        let at = table(bytes);
        bytes[at] = b'?';
    });
    assert_eq!(Refusal::of(&magic), Some(Refusal::WrongMagic));
    let size = refusal(|bytes| {
        let at = table(bytes) + 16;
        bytes[at..at + 8].copy_from_slice(&8u64.to_ne_bytes());
    });
    let expected = size_of::<Table>() as u64;
    assert_eq!(Refusal::of(&size), Some(Refusal::WrongSize { found: 8, expected }));
    // Rename the symbol.
    let symbol = refusal(|bytes| {
        let name = [SYMBOL.as_bytes(), b"\0"].concat();
        let places: Vec<_> = (0..bytes.len() - name.len()).filter(|&i| bytes[i..i + name.len()] == name[..]).collect();
        assert!(!places.is_empty());
        places.iter().for_each(|&at| bytes[at] = b'X');
    });
    assert_eq!(Refusal::of(&symbol), Some(Refusal::NoTable));
    let text = refusal(|bytes| *bytes = b"not a library".to_vec());
    assert_eq!(Refusal::of(&text), Some(Refusal::NotALibrary));
    for e in [magic, size, symbol, text] {
        assert_eq!(e.kind(), &ErrorKind::Format, "{e}");
    }
    let folder = load_error(library().parent().unwrap());
    assert_eq!(Refusal::of(&folder), Some(Refusal::NotALibrary));
    let missing = load_error(Path::new("no/such/plugin.so"));
    assert_eq!((missing.kind(), Refusal::of(&missing)), (&ErrorKind::Io, None));
}

/// The system's loader would read past the end of a truncated library and crash the process.
#[test]
fn a_library_that_is_cut_off_is_refused_wherever_it_is_cut() {
    let length = std::fs::metadata(library()).unwrap().len();
    for share in 1..32 {
        let cut = length * share / 32;
        let e = refusal(|bytes| bytes.truncate(cut as usize));
        assert_eq!(e.kind(), &ErrorKind::Format, "{e}");
        if cfg!(target_os = "linux") {
            assert!(
                matches!(Refusal::of(&e), Some(Refusal::Truncated { found, needed }) if found == cut && needed > cut)
            );
        }
    }
    let e = refusal(|bytes| bytes.truncate(bytes.len() - 1));
    assert!(e.to_string().contains(&format!("{} bytes", length - 1)) || cfg!(not(target_os = "linux")), "{e}");
}

#[cfg(unix)]
#[test]
fn a_pipe_is_refused_and_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("plugin.so");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    assert_eq!(Refusal::of(&load_error(&pipe)), Some(Refusal::NotALibrary));
}

//! Files of NumPy (`reference/files.py` makes them), what is written for NumPy, and broken files.
#![allow(clippy::unwrap_used)]

mod common;

use std::fs;

use common::{check, device, expected, file};
use gradus_data::{Dataset, npy};
use gradus_tensor::{DType, ErrorKind, Tensor};

#[test]
fn arrays_of_numpy_are_read() {
    let d = device();
    for (name, tensors) in expected() {
        if name.ends_with(".npy") {
            check(&name, &npy::load(file(&name), &d).unwrap(), &tensors[""]);
        } else if name.ends_with(".npz") {
            let found = npy::load_npz(file(&name), &d).unwrap();
            assert!(found.keys().eq(tensors.as_object().unwrap().keys()));
            found.iter().for_each(|(key, tensor)| check(key, tensor, &tensors[key]));
        }
    }
}

#[test]
fn rows_that_are_read_one_by_one_are_those_of_numpy() {
    let (d, mut compared) = (device(), 0);
    for (name, tensors) in expected().into_iter().filter(|(name, _)| name.ends_with(".npy")) {
        let whole = npy::load(file(&name), &d).unwrap();
        check(&name, &whole, &tensors[""]);
        let rows = match npy::Rows::open(file(&name), &d) {
            Ok(rows) => rows,
            Err(e) => {
                let refused = name.contains("fortran") || whole.rank() == 0;
                assert!(refused && *e.kind() == ErrorKind::Format, "{name}: {e}");
                continue;
            }
        };
        assert_eq!((rows.len(), rows.shape(), rows.dtype()), (whole.shape()[0], &whole.shape()[1..], whole.dtype()));
        for i in 0..rows.len() {
            let (got, want) = (rows.get(i).unwrap(), whole.select(0, i as isize).unwrap());
            assert_eq!((got.shape(), got.to_bytes().unwrap()), (want.shape(), want.to_bytes().unwrap()), "{name}");
            compared += 1;
        }
        assert!(rows.get(rows.len()).is_err());
    }
    assert!(compared > 20, "{compared}");
}

#[test]
fn rows_of_a_file_that_changes_are_its_new_elements_or_an_error() {
    let (d, dir) = (device(), tempfile::tempdir().unwrap());
    let path = dir.path().join("x.npy");
    npy::save(&path, &Tensor::arange(0, 12, 1, DType::I64, &d).unwrap().reshape([6, 2]).unwrap()).unwrap();
    let rows = npy::Rows::open(&path, &d).unwrap();
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.len() - 8;
    bytes[at] = 77;
    // Written into the same file, not beside it.
    fs::write(&path, &bytes).unwrap();
    assert_eq!(rows.get(5).unwrap().to_vec::<i64>().unwrap(), [10, 77]);
    fs::write(&path, &bytes[..at]).unwrap();
    assert_eq!(rows.get(4).unwrap().to_vec::<i64>().unwrap(), [8, 9]);
    let e = rows.get(5).unwrap_err();
    assert!(*e.kind() == ErrorKind::Io && e.to_string().contains("changed while it was read"), "{e}");
    assert!(npy::Rows::open(&path, &d).unwrap_err().to_string().contains("is the file whole?"));
}

#[test]
fn files_are_those_that_numpy_writes() {
    let (d, dir) = (device(), tempfile::tempdir().unwrap());
    let path = dir.path().join("x.npy");
    for name in ["float32.npy", "bool.npy", "uint64.npy", "scalar.npy", "one_axis.npy", "empty.npy"] {
        npy::save(&path, &npy::load(file(name), &d).unwrap()).unwrap();
        assert_eq!(fs::read(&path).unwrap(), fs::read(file(name)).unwrap(), "{name}");
    }
    // A tensor in another order is written in row-major order.
    let x = npy::load(file("float32.npy"), &d).unwrap();
    npy::save(&path, &x.t().unwrap()).unwrap();
    assert_eq!(npy::load(&path, &d).unwrap().to_vec::<f32>().unwrap(), x.t().unwrap().to_vec::<f32>().unwrap());
}

#[test]
fn archives_survive_a_file() {
    let (d, dir) = (device(), tempfile::tempdir().unwrap());
    let path = dir.path().join("x.npz");
    let x = npy::load(file("float32.npy"), &d).unwrap();
    npy::save_npz(&path, [("a/b", &x), ("ü", &x.t().unwrap())]).unwrap();
    let found = npy::load_npz(&path, &d).unwrap();
    assert_eq!(found["a/b"].to_vec::<f32>().unwrap(), x.to_vec::<f32>().unwrap());
    assert_eq!(found["ü"].shape(), [4, 3]);
    npy::save_npz(&path, Vec::<(&str, &Tensor)>::new()).unwrap();
    assert!(npy::load_npz(&path, &d).unwrap().is_empty());
    let e = npy::save_npz(&path, [("a", &x), ("a", &x)]).unwrap_err().to_string();
    assert!(e.contains("two arrays are written as \"a.npy\""), "{e}");
    let vast = Tensor::zeros([1], DType::F32, &d).unwrap().expand([1 << 31]).unwrap();
    assert!(npy::save_npz(&path, [("a", &vast)]).unwrap_err().to_string().contains("more than 4 GiB"));
    let half = x.to_dtype(DType::BF16).unwrap();
    let e = npy::save_npz(&path, [("half", &half)]).unwrap_err().to_string();
    assert!(e.contains("bf16") && e.contains("half"), "{e}");
    assert!(npy::save(dir.path().join("x.npy"), &half).is_err());
}

#[test]
fn what_gradus_does_not_have_is_named() {
    for (name, want) in [
        ("refused_complex.npy", "dtype <c8, which Gradus does not have"),
        ("refused_text.npy", "holds texts (dtype <U2)"),
        ("refused_object.npy", "holds Python objects"),
        ("refused_struct.npy", "is a structured array"),
        ("state.pt", "is no .npy array"),
    ] {
        let e = npy::load(file(name), &device()).unwrap_err();
        assert!(e.to_string().contains(want) && e.to_string().contains(name), "{e}");
        assert_eq!(e.kind(), &ErrorKind::Format);
    }
    let e = npy::load_npz(file("state.pt"), &device()).unwrap_err().to_string();
    assert!(e.contains("state.pt: \"state/data.pkl\" is no .npy array"), "{e}");
}

#[test]
fn a_header_that_promises_too_much_is_refused() {
    let (d, dir) = (device(), tempfile::tempdir().unwrap());
    let path = dir.path().join("x.npy");
    let good = String::from_utf8_lossy(&fs::read(file("int8.npy")).unwrap()[10..128]).into_owned();
    for (shape, want) in [
        ("(3, 5)", "promises [3, 5] elements of i8 and has 12 bytes behind its header"),
        ("(3, 9999999999999999999999)", "a size is no number"),
        ("(4294967296, 4294967296, 4294967296)", "promises"),
        ("(-3, 4)", "a size is no number"),
        ("(1, 1, 1, 1, 1, 1, 1, 1, 12)", "rank 9 is above the highest rank 8"),
        ("3, 4", "has no shape"),
    ] {
        let text = good.replacen("(3, 4)", shape, 1);
        let start = [&b"\x93NUMPY\x01\0"[..], &(text.len() as u16).to_le_bytes(), text.as_bytes(), &[0; 12]].concat();
        fs::write(&path, start).unwrap();
        let e = npy::load(&path, &d).unwrap_err().to_string();
        assert!(e.contains(want), "{want}: {e}");
    }
    fs::write(&path, b"\x93NUMPY\x02\0\xff\xff\xff\xff").unwrap();
    assert!(npy::load(&path, &d).unwrap_err().to_string().contains("a header of 4294967295 bytes"));
    fs::write(&path, b"\x93NUMPY\x09\0\xff\xff\xff\xff").unwrap();
    assert!(npy::load(&path, &d).unwrap_err().to_string().contains("version 9"));
}

#[test]
fn every_cut_is_refused_and_every_flipped_byte_handled() {
    let (d, dir) = (device(), tempfile::tempdir().unwrap());
    let path = dir.path().join("x");
    for name in ["fortran.npy", "deflated.npz"] {
        let good = fs::read(file(name)).unwrap();
        let read = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            if name.ends_with("npy") { npy::load(&path, &d).map(drop) } else { npy::load_npz(&path, &d).map(drop) }
        };
        for cut in (0..good.len()).step_by(3) {
            assert!(read(&good[..cut]).is_err(), "{name} cut at {cut}");
        }
        for at in (0..good.len()).step_by(3) {
            let mut bytes = good.clone();
            bytes[at] ^= 0xff;
            let _ = read(&bytes);
        }
    }
    // The numbers of an archive have a checksum.
    let mut bytes = fs::read(file("stored.npz")).unwrap();
    let at = bytes.windows(6).position(|w| w == b"\x93NUMPY").unwrap() + 130;
    bytes[at] ^= 1;
    fs::write(&path, bytes).unwrap();
    let e = npy::load_npz(&path, &d).unwrap_err().to_string();
    assert!(e.contains("is damaged: its checksum does not fit"), "{e}");
}

//! Safetensors files: what is written, and the errors for damaged files.
#![allow(clippy::unwrap_used)]

mod common;

use std::path::Path;

use common::{device, values, with_init};
use gradus_nn::{Linear, Module, StateDict, Strict};
use gradus_tensor::{DType, Device, ErrorKind, Result, Tensor, bf16};

/// A file with this header and these data.
fn file(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
}

/// Loads the bytes from a file, and from memory, which must agree.
fn load(bytes: &[u8], device: &Device) -> Result<StateDict> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("odd.safetensors");
    std::fs::write(&path, bytes).unwrap();
    let (from_file, from_bytes) =
        (StateDict::load_safetensors(&path, device), StateDict::from_safetensors(bytes, device));
    match (&from_file, &from_bytes) {
        (Ok(a), Ok(b)) => {
            assert!(a.iter_metadata().eq(b.iter_metadata()));
            let all = |state: &StateDict| -> Vec<(String, DType, Vec<u8>)> {
                state.iter().map(|(name, t)| (name.to_owned(), t.dtype(), t.to_bytes().unwrap())).collect()
            };
            assert_eq!(all(a), all(b));
        }
        (Err(a), Err(b)) => {
            assert_eq!(
                (a.kind(), a.message().replace(&path.display().to_string(), "the bytes")),
                (b.kind(), b.message().into())
            );
        }
        _ => panic!("from a file {from_file:?}, from memory {from_bytes:?}"),
    }
    from_file
}

const HEADER: &str =
    r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"I64","shape":[1],"data_offsets":[8,16]}}"#;

#[test]
fn every_dtype_and_shape_survives_a_file() {
    let device = device();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("all.safetensors");
    let mut state = StateDict::new();
    for dtype in DType::ALL {
        let t = Tensor::from_vec([0i64, 1, 1, 0, 1, 1], [2, 3], &device).unwrap().to_dtype(dtype).unwrap();
        state.insert(format!("{dtype} \"quoted\" ünicode"), t.t().unwrap());
    }
    state.insert("empty", Tensor::zeros([0, 3], DType::F32, &device).unwrap());
    state.insert("scalar", Tensor::scalar(bf16::from_f32(2.5), &device).unwrap());
    state.set_metadata("format", "pt");
    state.set_metadata("note", "line\nbreak");
    state.save_safetensors(&path).unwrap();
    let loaded = StateDict::load_safetensors(&path, &device).unwrap();
    assert_eq!(format!("{loaded:?}"), format!("{state:?}"));
    for (name, t) in state.iter() {
        assert_eq!(loaded.get(name).unwrap().to_bytes().unwrap(), t.to_bytes().unwrap(), "{name}");
    }
    assert_eq!(loaded.metadata("note"), Some("line\nbreak"));
    // The reference implementation reads the same, and the folder contains nothing else.
    let bytes = std::fs::read(&path).unwrap();
    let reference = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(reference.len(), state.len());
    assert_eq!(reference.tensor("scalar").unwrap().data(), 0x4020u16.to_le_bytes());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    // A writer receives the same bytes as a file. A writer that fails is an error.
    let mut written = Vec::new();
    state.write_safetensors(&mut written).unwrap();
    assert_eq!(written, bytes);
    let e = state.write_safetensors(&mut &mut [0; 20][..]).unwrap_err();
    assert_eq!(e.kind(), &ErrorKind::Io);
    // Saving the loaded state writes the same bytes.
    let again = folder.path().join("again.safetensors");
    loaded.save_safetensors(&again).unwrap();
    assert_eq!(std::fs::read(again).unwrap(), bytes);
}

#[test]
fn a_file_of_the_reference_implementation_loads() {
    let device = device();
    let data: Vec<u8> = [1.0f32, 2.0, 3.0, 4.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    let view = |from: usize, shape: &[usize]| {
        let n: usize = shape.iter().product();
        safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.to_vec(), &data[from..from + n * 4])
            .unwrap()
    };
    let entries = [("weight", view(0, &[1, 2])), ("bias", view(8, &[1]))];
    let bytes = safetensors::serialize(entries, None).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("reference.safetensors");
    std::fs::write(&path, bytes).unwrap();
    let mut layer = with_init(&device, |init| Linear::new(2, 1, init).unwrap());
    layer.load_safetensors(&path, &device, Strict::Yes).unwrap();
    assert_eq!(layer.weight.to_vec::<f64>().unwrap(), [1.0, 2.0]);
    assert_eq!(layer.bias.unwrap().to_vec::<f64>().unwrap(), [3.0]);
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let device = device();
    let whole = file(HEADER, &[0; 16]);
    assert_eq!(load(&whole, &device).unwrap().len(), 2);
    for length in 0..whole.len() {
        let error = load(&whole[..length], &device).unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::Format, "{length}: {error}");
        assert!(error.to_string().contains("odd.safetensors"), "{error}");
    }
}

#[test]
fn damaged_and_foreign_files_say_what_is_wrong() {
    let device = device();
    let huge = |n: u64| [&n.to_le_bytes()[..], b"{}"].concat();
    let swap = |from: &str, to: &str| file(&HEADER.replace(from, to), &[0; 16]);
    let table: Vec<(Vec<u8>, &str)> = vec![
        (vec![], "0 bytes are too few"),
        (b"PK\x03\x04 a zip archive, as torch.save writes".to_vec(), "the header says it has"),
        (huge(u64::MAX), "the header says it has"),
        (huge(1 << 40), "the header says it has"),
        (file("not json", &[]), "the header is damaged"),
        (file("[]", &[]), "the header is damaged"),
        (file("{\"a\":\u{0}}", &[]), "the header is damaged"),
        (file(&"[".repeat(100_000), &[]), "the header is damaged"),
        (swap("[8,16]", "[4,12]"), "the header is damaged"),
        (swap("[8,16]", "[16,24]"), "the header is damaged"),
        (swap("[8,16]", "[8,7]"), "the header is damaged"),
        (swap("[0,8]", "[-1,8]"), "the header is damaged"),
        (swap("[2]", "[3]"), "the header is damaged"),
        (swap("[2]", "[18446744073709551615,2]"), "the header is damaged"),
        (swap("F32", "F99"), "the header is damaged"),
        (swap("\"dtype\":\"F32\",", ""), "the header is damaged"),
        (swap("\"F32\",\"shape\":[2]", "\"C64\",\"shape\":[1]"), "dtype C64"),
        (swap("\"F32\",\"shape\":[2]", "\"F8_E4M3\",\"shape\":[8]"), "dtype F8_E4M3"),
        (swap("\"b\":", "\"a\":"), "\"a\" is there twice"),
        (file(r#"{"__metadata__":{},"__metadata__":{}}"#, &[]), "\"__metadata__\" is there twice"),
        (file(HEADER, &[0; 24]), "describes 16 bytes of tensors, but 24 follow"),
        (
            swap("\"F32\",\"shape\":[2]", "\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1,1,1,2]"),
            "\"a\" has a shape of more than 8 axes",
        ),
        (file(r#"{"a":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}}"#, &[1, 2]), "bytes other than 0 and 1"),
        (file(r#"{"__metadata__":{"a":1}}"#, &[]), "the header is damaged"),
    ];
    for (bytes, part) in table {
        let error = load(&bytes, &device).unwrap_err().to_string();
        assert!(error.contains(part) && error.contains("odd.safetensors"), "wanted {part:?} in: {error}");
    }
    for empty in ["{}", r#"{"__metadata__":null}"#] {
        assert!(load(&file(empty, &[]), &device).unwrap().is_empty());
    }
}

#[test]
fn files_that_cannot_be_read_or_written_are_io_errors() {
    let device = device();
    let folder = tempfile::tempdir().unwrap();
    let absent = folder.path().join("absent/model.safetensors");
    let error = StateDict::load_safetensors(&absent, &device).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Io);
    let state: StateDict = [("a", values(&[2], &device))].into_iter().collect();
    assert_eq!(state.save_safetensors(&absent).unwrap_err().kind(), &ErrorKind::Io);
    assert!(state.save_safetensors(Path::new("/")).is_err());
    let reserved: StateDict = [("__metadata__", values(&[2], &device))].into_iter().collect();
    assert!(reserved.save_safetensors(folder.path().join("x")).is_err());
    // If a directory is in the way, the write fails and leaves no temporary file behind.
    let blocked = folder.path().join("blocked");
    std::fs::create_dir(&blocked).unwrap();
    std::fs::write(blocked.join("inside"), "x").unwrap();
    assert!(state.save_safetensors(&blocked).is_err());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_failed_load_names_the_file_and_changes_nothing() {
    let device = device();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("other.safetensors");
    let state: StateDict = [("weight", values(&[2, 2], &device))].into_iter().collect();
    state.save_safetensors(&path).unwrap();
    let mut layer = with_init(&device, |init| Linear::new(2, 2, init).unwrap());
    let before = layer.weight.to_vec::<f64>().unwrap();
    let error = layer.load_safetensors(&path, &device, Strict::Yes).unwrap_err().to_string();
    assert!(error.contains("missing (1): bias") && error.contains("other.safetensors"), "{error}");
    assert_eq!(layer.weight.to_vec::<f64>().unwrap(), before);
}

#[test]
fn metadata_is_text_whatever_it_says() {
    let device = device();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let layer = with_init(&device, |init| Linear::new(2, 2, init).unwrap());
    let mut state = layer.state_dict().unwrap();
    state.set_metadata("best_layer", "weight");
    state.save_safetensors(&path).unwrap();
    let loaded = StateDict::load_safetensors(&path, &device).unwrap();
    assert_eq!((loaded.len(), loaded.metadata("best_layer")), (2, Some("weight")));
    let mut layer = layer;
    layer.load_safetensors(&path, &device, Strict::Yes).unwrap();

    let before = std::fs::read(&path).unwrap();
    for key in ["gradus.tied", "bias"] {
        let mut state = state.clone();
        state.set_metadata(key, "text");
        let error = state.save_safetensors(&path).unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::InvalidArgument);
        assert!(error.to_string().contains(key) && error.to_string().contains("help: "), "{error}");
    }
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

#[test]
fn tied_names_are_checked() {
    let device = device();
    let tie = |text: &str| {
        let text = serde_json::to_string(text).unwrap();
        let header = HEADER.replacen('{', &format!("{{\"__metadata__\":{{\"gradus.tied\":{text}}},"), 1);
        load(&file(&header, &[0; 16]), &device)
    };
    let state = tie(r#"{"c":"a","d":"a"}"#).unwrap();
    assert_eq!((state.len(), state.iter_metadata().count()), (4, 0));
    for (text, part) in [
        ("x", "gradus.tied is damaged"),
        ("[1]", "gradus.tied is damaged"),
        (r#"{"c":"z"}"#, "\"z\", which is not stored"),
        (r#"{"c":"a","d":"c"}"#, "\"c\", which is not stored"),
        (r#"{"b":"a"}"#, "\"b\", which is stored itself"),
    ] {
        let error = tie(text).unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::Format);
        assert!(error.to_string().contains(part), "wanted {part:?} in: {error}");
    }
}

#[test]
fn errors_about_files_name_the_path_and_say_what_to_do() {
    let device = device();
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let state: StateDict = [("a", values(&[2], &device))].into_iter().collect();
    std::fs::write(at("file"), "text").unwrap();
    let load = |name: &str| StateDict::load_safetensors(at(name), &device).unwrap_err();
    let save = |name: &str| state.save_safetensors(at(name)).unwrap_err();
    for (error, kind, parts) in [
        (load("absent"), ErrorKind::Io, ["absent", "is the path spelled right"]),
        (load(""), ErrorKind::Io, ["is a folder", "give the path of a safetensors file"]),
        (load("file/inside"), ErrorKind::Io, ["file/inside", "is a file, not a folder"]),
        (load("file"), ErrorKind::Format, ["/file: 4 bytes", "give a complete safetensors file"]),
        (save(""), ErrorKind::Io, ["is a folder", "give the path of a file"]),
        (save("no/model"), ErrorKind::Io, ["no/model: ", "make the folder "]),
        (save("file/inside"), ErrorKind::Io, ["file/inside: ", "is a file, not a folder"]),
    ] {
        assert_eq!(error.kind(), &kind, "{error}");
        let text = error.to_string();
        assert!(parts.iter().all(|p| text.contains(p)) && text.contains("help: "), "wanted {parts:?} in: {text}");
        assert!(!text.contains(".tmp: "), "the temporary file is not the user's: {text}");
    }
}

#[cfg(unix)]
#[test]
fn pipes_and_devices_are_neither_waited_for_nor_replaced() {
    let device = device();
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    if !std::process::Command::new("mkfifo").arg(&pipe).status().is_ok_and(|s| s.success()) {
        return;
    }
    let state: StateDict = [("a", values(&[2], &device))].into_iter().collect();
    for path in [pipe.as_path(), Path::new("/dev/null")] {
        for error in
            [StateDict::load_safetensors(path, &device).unwrap_err(), state.save_safetensors(path).unwrap_err()]
        {
            assert_eq!(error.kind(), &ErrorKind::Io);
            assert!(error.to_string().contains("is not a regular file"), "{error}");
        }
    }
}

/// A file with this header that claims `claimed` bytes of data, none of which are on disk.
fn sparse(header: &str, claimed: u64) -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sparse.safetensors");
    let bytes = file(header, &[]);
    std::fs::write(&path, &bytes).unwrap();
    let opened = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    opened.set_len(bytes.len() as u64 + claimed).unwrap();
    (folder, path)
}

#[test]
fn a_file_that_claims_more_than_there_is_memory_for_is_an_error() {
    let device = device();
    device.backend().set_memory_budget(Some(1 << 20)).unwrap();
    let refused = |header: &str, claimed: u64, bytes: usize| {
        let (_folder, path) = sparse(header, claimed);
        let before = device.memory_stats().in_use;
        let e = StateDict::load_safetensors(&path, &device).unwrap_err();
        assert_eq!(e.kind(), &ErrorKind::OutOfMemory { requested: bytes }, "{e}");
        assert!(e.to_string().contains("sparse.safetensors"), "{e}");
        assert_eq!(device.memory_stats().in_use, before);
    };
    let one = r#"{"a":{"dtype":"F32","shape":[250000000000],"data_offsets":[0,1000000000000]}}"#;
    refused(one, 1_000_000_000_000, 1_000_000_000_000);
    // Each tensor alone would fit.
    let entry = |i: usize| {
        format!(r#""{i}":{{"dtype":"U8","shape":[500000],"data_offsets":[{},{}]}}"#, i * 500_000, (i + 1) * 500_000)
    };
    let many: Vec<String> = (0..3).map(entry).collect();
    refused(&format!("{{{}}}", many.join(",")), 1_500_000, 1_500_000);
    // A header so long that parsing it could exceed the memory.
    refused(&" ".repeat(1 << 18), 0, 8 << 18);
    device.backend().set_memory_budget(None).unwrap();
}

#[test]
fn loading_takes_the_memory_of_the_tensors_and_little_more() {
    let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::with_threads(1).unwrap()));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.safetensors");
    let bytes = 8 << 20;
    let state: StateDict = [("x", Tensor::ones([bytes / 4], DType::F32, &device).unwrap())].into_iter().collect();
    state.save_safetensors(&path).unwrap();
    drop(state);
    device.backend().set_memory_budget(Some(bytes + (64 << 10))).unwrap();
    let loaded = StateDict::load_safetensors(&path, &device).unwrap();
    assert!(loaded.get("x").unwrap().to_dtype(DType::F32).unwrap().min_all().unwrap().item().unwrap() == 1.0);
    // Writing needs a copy of the largest tensor, for which there is no memory. It fails and leaves no file.
    let again = folder.path().join("again.safetensors");
    let e = loaded.save_safetensors(&again).unwrap_err();
    assert!(matches!(e.kind(), ErrorKind::OutOfMemory { .. }), "{e}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_state_of_many_tensors_is_written_and_read_in_linear_time() {
    let device = device();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("many.safetensors");
    let one = Tensor::ones([40_000, 1], DType::U8, &device).unwrap();
    // Views of different parts of one storage.
    let state: StateDict = (0..40_000).map(|i| (i.to_string(), one.narrow(0, i, 1).unwrap())).collect();
    state.save_safetensors(&path).unwrap();
    assert_eq!(StateDict::load_safetensors(&path, &device).unwrap().len(), 40_000);
}

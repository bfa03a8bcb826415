//! Files of PyTorch (`reference/files.py` makes them), and files that attack their reader.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::fs;

use common::{check, device, expected, file, reference};
use gradus_data::pt::{self, Plain};
use gradus_tensor::{ErrorKind, no_grad};

#[test]
fn files_of_pytorch_are_read_in_both_formats() {
    let d = device();
    let values = reference("values");
    for (name, tensors) in expected().iter().filter(|(name, _)| name.contains(".pt")) {
        if name.contains("views") {
            continue;
        }
        let found = pt::load(file(name), &d).unwrap();
        assert!(found.tensors.keys().eq(tensors.as_object().unwrap().keys()), "{name}: {found:?}");
        found.tensors.iter().for_each(|(key, tensor)| check(&format!("{name}: {key}"), tensor, &tensors[key]));
        let texts: BTreeMap<&String, String> = found.values.iter().map(|(key, v)| (key, v.to_string())).collect();
        let wanted: BTreeMap<&String, String> =
            values[name].as_object().unwrap().iter().map(|(key, v)| (key, v.as_str().unwrap().into())).collect();
        assert_eq!(texts, wanted, "{name}");
    }
    let nested = pt::load(file("nested.pt"), &d).unwrap();
    assert_eq!(nested.values["epoch"], Plain::Int(3));
    assert_eq!(nested.values["loss"], Plain::Float(0.25));
    assert_eq!(nested.values["done"], Plain::Bool(true));
    assert_eq!(nested.values["nothing"], Plain::None);
    assert_eq!(nested.values["note"], Plain::Text("naïve".into()));
}

#[test]
fn views_of_all_kinds_are_read_and_vast_ones_refused() {
    let d = device();
    for name in ["views.pt", "views.old.pth"] {
        let found = pt::load(file(name), &d).unwrap();
        let tensors = expected()[name].clone();
        assert_eq!(found.tensors.len(), 9);
        found.tensors.iter().for_each(|(key, tensor)| check(&format!("{name}: {key}"), tensor, &tensors[key]));
    }
}

#[test]
fn tensors_that_shared_memory_share_it_again() {
    let found = pt::load(file("shared.pt"), &device()).unwrap().tensors;
    no_grad(|| found["a"].fill_(9.0)).unwrap();
    for name in ["b", "part", "parameter"] {
        assert!(found[name].to_vec::<f32>().unwrap().iter().all(|&x| x == 9.0), "{name}");
    }
}

#[test]
fn attacks_are_refused_by_name_and_nothing_is_called() {
    let d = device();
    let wanted = [
        ("system", "it names posix.system, which is not called"),
        ("system_4", "it names posix.system, which is not called"),
        ("eval", "it names __builtin__.eval, which is not called"),
        ("nested", "it names __builtin__.exec, which is not called"),
        ("getattr", "it names __builtin__.getattr, which is not called"),
        ("load", "it names torch.serialization.load, which is not called"),
        ("state", "it names __main__.Stateful, which is not called"),
        ("inst", "it makes an object of os.system"),
        ("object", "it names os.system, which is not called"),
        ("extension", "the instruction 0x82 is not read"),
        ("parts", "it names collections.OrderedDict.system"),
        ("call_text", "it calls what is no function"),
        ("call_storage", "it calls FloatStorage with unusual arguments"),
        ("laughs", "its values are named again and again"),
        ("self", "is nested more than 64 deep"),
        ("self_dict", "is nested more than 64 deep"),
        ("deep", "is nested more than 64 deep"),
        ("tuples", "is nested more than 64 deep"),
        ("marks", "an instruction finds too few values"),
        ("copies", "the same values are copied again and again"),
        ("empty_keys", "its keys are far too many or too long"),
        ("compressed", "\"archive/data.pkl\" is compressed, which torch.save never does"),
        ("negative_view", "`.resolve_neg()`"),
        ("long_text", "the pickle ends too early"),
        ("bytes_8", "the pickle ends too early"),
        ("memo", "a value is recalled that was not kept"),
        ("pops", "an instruction finds too few values"),
        ("no_end", "the pickle ends too early"),
        ("outside", "is not within a storage of 4"),
        ("negative", "a negative size"),
        ("negative_stride", "a negative size"),
        ("overflow", "is not within a storage of 4"),
        ("huge_window", "repeats elements of a storage of 4"),
        ("axes", "a tensor of 60 axes"),
        ("strides", "a tensor of 2 sizes and 1 strides"),
        ("promise", "promises 1099511627776 elements of f32 and has 16 bytes"),
        ("wider", "promises 4 elements of f64 and has 16 bytes"),
    ];
    for (name, want) in wanted {
        let e = pt::load(file(&format!("evil_{name}.pt")), &d).unwrap_err();
        assert!(e.to_string().contains(want) && e.to_string().contains("evil_"), "{name}: {e}");
        assert_eq!(e.kind(), &ErrorKind::Format, "{name}");
    }
    // These are strange, and harmless.
    let vast = pt::load(file("evil_huge_repeat.pt"), &d).unwrap();
    assert_eq!(vast.tensors[""].shape(), [1 << 20, 1 << 20]);
    assert_eq!(pt::load(file("evil_bools.pt"), &d).unwrap().tensors[""].to_vec::<bool>().unwrap(), [false; 4]);
    assert_eq!(pt::load(file("evil_frame.pt"), &d).unwrap().values[""], Plain::None);
    let tried: Vec<&str> = wanted.iter().map(|(name, _)| *name).chain(["huge_repeat", "bools", "frame"]).collect();
    for entry in fs::read_dir(file("")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let evil = name.strip_prefix("evil_").and_then(|n| n.strip_suffix(".pt"));
        assert!(evil.is_none_or(|n| tried.contains(&n)), "{name} is not tried");
    }
}

#[test]
fn other_files_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let error = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        pt::load(path, &device()).unwrap_err().to_string()
    };
    assert!(error("empty.pt", b"").contains("empty.pt is no file of torch.save"));
    assert!(error("a.safetensors", b"\x10\0\0\0\0\0\0\0{}").contains("StateDict::load_safetensors"));
    assert!(error("a.npz", &fs::read(file("stored.npz")).unwrap()).contains("it has no data.pkl"));
    assert!(pt::load(dir.path(), &device()).unwrap_err().to_string().contains("a folder"));
    assert!(pt::load(dir.path().join("none.pt"), &device()).unwrap_err().to_string().contains("none.pt"));
}

#[test]
fn every_cut_is_refused_and_every_flipped_byte_handled() {
    let (d, dir) = (device(), tempfile::tempdir().unwrap());
    let path = dir.path().join("x.pt");
    for name in ["state.pt", "state.old.pth", "nested.old.pth"] {
        let good = fs::read(file(name)).unwrap();
        for cut in (0..good.len()).step_by(31) {
            fs::write(&path, &good[..cut]).unwrap();
            assert!(pt::load(&path, &d).is_err(), "{name} cut at {cut}");
        }
        for at in (0..good.len()).step_by(11) {
            let mut bytes = good.clone();
            bytes[at] ^= 0xff;
            fs::write(&path, bytes).unwrap();
            let _ = pt::load(&path, &d);
        }
    }
}

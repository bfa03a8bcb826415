//! Networks for pictures, and folders of pictures that cannot be trained on.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::sync::Arc;

use gradus_cpu::CpuBackend;
use gradus_data::{Channels, Dataset, Image, Photo};
use gradus_image::{SaveOptions, save};
use gradus_nn::{Forward, Module};
use gradus_tasks::images::{Architecture, Augmentation, Part, Spec, open, survey, thumbnail};
use gradus_tasks::{Answer, Model, load, write};
use gradus_tensor::{DType, Device, Generator, Tensor};

fn device() -> Device {
    Device::from_backend(Arc::new(CpuBackend::new().unwrap()))
}

fn put(path: &Path, pixel: &[u8], [h, w]: [usize; 2], d: &Device) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let x = Tensor::from_vec(pixel, [pixel.len(), 1, 1], d).unwrap();
    save(path, &x.expand([pixel.len(), h, w]).unwrap(), SaveOptions::default()).unwrap();
}

fn spec(network: Architecture, input: [usize; 3]) -> Spec {
    let (mean, std) = (vec![0.5; input[0]], vec![0.25; input[0]]);
    Spec { network, input, mean, std, classes: ["cat", "dog", "hen"].map(String::from).to_vec() }
}

/// Takes some seconds: large networks are made.
#[test]
fn all_networks_take_small_pictures() {
    let d = device();
    for (network, input) in Architecture::ALL.into_iter().zip([[1, 28, 28], [3, 24, 16]].into_iter().cycle()) {
        let mut model = spec(network, input).build(&d, 0).unwrap();
        model.eval();
        let x = Tensor::zeros([2, input[0], input[1], input[2]], DType::F32, &d).unwrap();
        assert_eq!(model.forward(&x).unwrap().shape(), [2, 3], "{network} {input:?}");
        assert_eq!(serde_json::to_value(network).unwrap(), network.name());
        if network == Architecture::Resnet18 {
            let names: Vec<String> = model.named_parameters().into_iter().map(|p| p.0).collect();
            assert_eq!((names[0].as_str(), names.last().unwrap().as_str()), ("conv1.weight", "fc.bias"));
        }
    }
    for (wrong, says) in [
        (Spec { input: [2, 28, 28], ..spec(Architecture::Small, [1, 28, 28]) }, "2 channels"),
        (spec(Architecture::Small, [1, 7, 28]), "7 x 28 pixels"),
        (spec(Architecture::Small, [3, 2000, 2000]), "2000 x 2000"),
        (Spec { classes: vec!["only".into()], ..spec(Architecture::Small, [1, 28, 28]) }, "1 classes"),
        (Spec { std: vec![0.0], ..spec(Architecture::Small, [1, 28, 28]) }, "deviations [0.0]"),
    ] {
        let e = wrong.build(&d, 0).err().unwrap().to_string();
        assert!(e.contains(says), "{e}");
    }
}

#[test]
fn a_saved_model_has_all_that_it_needs() {
    let (d, dir) = (device(), tempfile::tempdir().unwrap());
    let spec = spec(Architecture::Small, [3, 16, 16]);
    let network = spec.build(&d, 3).unwrap();
    let mut file = Vec::new();
    write(&gradus_tasks::Spec::Images(spec.clone()), &network, &mut file).unwrap();
    let path = dir.path().join("m.safetensors");
    fs::write(&path, &file).unwrap();
    let model = load(&path, &d).unwrap();
    assert_eq!(model.task(), "images");
    // Pictures of all modes and sizes; the answers do not depend on what is asked beside them.
    for (name, pixel) in [("a.png", &[9u8][..]), ("b.jpg", &[200, 10, 10]), ("c.png", &[1, 2, 3, 4])] {
        put(&dir.path().join(name), pixel, [21, 35], &d);
    }
    let paths = ["a.png", "b.jpg", "c.png"].map(|name| dir.path().join(name)).to_vec();
    let Model::Images(images) = &model else { panic!() };
    let all = images.predict_files(paths.clone(), None).unwrap();
    for (path, together) in paths.iter().zip(&all) {
        let alone = model.predict(path.as_path()).unwrap();
        let (Answer::Class { probabilities: a, .. }, Answer::Class { probabilities: b, name, .. }) =
            (&alone[0], together)
        else {
            panic!()
        };
        assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-6) && spec.classes.contains(name));
    }
    // A picture in memory is answered like its file.
    let [height, width] = [21, 35];
    let colours = [1u8, 2, 3].into_iter().flat_map(|v| vec![f32::from(v) / 255.0; height * width]);
    let in_memory = Image::new(3, height, width, colours.collect()).unwrap();
    let opaque = dir.path().join("opaque.png");
    put(&opaque, &[1, 2, 3], [height, width], &d);
    assert_eq!(model.predict(&in_memory).unwrap(), model.predict(opaque.as_path()).unwrap());
    assert!(
        images.predict_files(vec![dir.path().join("none.png")], None).unwrap_err().to_string().contains("none.png")
    );
    assert!(images.predict_files(paths, Some(700)).unwrap_err().to_string().contains("more memory"));
    let photo = Photo::from_pixels(&[0; 12], [2, 2, 3], "tiny", Channels::Rgb).unwrap();
    assert!(images.predict(vec![photo]).unwrap_err().to_string().contains("the picture tiny is [3, 2, 2]"));
    // A file of another network is refused with its name.
    let other = spec.build(&d, 3).unwrap();
    let mut wrong = Vec::new();
    let deeper = Spec { input: [3, 64, 64], ..spec };
    write(&gradus_tasks::Spec::Images(deeper), &other, &mut wrong).unwrap();
    fs::write(&path, &wrong).unwrap();
    let e = load(&path, &d).err().unwrap().to_string();
    assert!(e.contains("m.safetensors") && e.contains("gradus train images"), "{e}");
}

fn labels_of(part: &Part) -> Vec<i64> {
    (0..part.len()).map(|at| part.get(at).unwrap().1).collect()
}

#[test]
fn folders_are_found_and_split() {
    let (d, dir) = (device(), tempfile::tempdir().unwrap());
    for i in 0..10u8 {
        put(&dir.path().join(format!("plain/{}/{i}.png", ["b", "a"][usize::from(i % 2)])), &[i], [9, 9], &d);
        let part = if i < 6 { "train" } else { "val" };
        put(&dir.path().join(format!("parts/{part}/{}/{i}.png", i % 2)), &[i, 100, 3], [9, 9], &d);
    }
    let split = open(dir.path().join("plain"), None, 1, &d).unwrap();
    assert_eq!((split.train.len(), split.test.len(), split.classes), (8, 2, vec!["a".to_owned(), "b".to_owned()]));
    let seen = survey(&split.train, [9, 9], 2, &d).unwrap();
    assert_eq!(seen.channels, 1);
    assert!((seen.mean[0] - 4.5 / 255.0).abs() < 0.01);
    let split = open(dir.path().join("parts"), None, 1, &d).unwrap();
    assert_eq!((labels_of(&split.train), labels_of(&split.test)), (vec![0, 0, 0, 1, 1, 1], vec![0, 0, 1, 1]));
    let seen = survey(&split.train, [5, 5], 0, &d).unwrap();
    assert_eq!(seen.channels, 3);
    assert!((seen.mean[1] - 100.0 / 255.0).abs() < 1e-6 && seen.std[1] == 0.01, "{seen:?}");
}

#[test]
fn what_cannot_be_trained_on_is_named() {
    let (d, dir) = (device(), tempfile::tempdir().unwrap());
    let at = |path: &str| dir.path().join(path);
    let error = |path: &str| open(at(path), None, 0, &d).unwrap_err().to_string();
    let put = |path: &str, pixel: &[u8]| put(&at(path), pixel, [8, 8], &d);
    assert!(
        error("none").contains("none") && error("none").contains("a folder of PNG or JPEG pictures for each class")
    );
    fs::write(at("file"), "x").unwrap();
    assert!(error("file").contains("file is a file, not a folder"));
    fs::create_dir_all(at("bare")).unwrap();
    assert!(error("bare").contains("has no folders"));
    put("one/only/1.png", &[1]);
    assert!(error("one").contains("has one class only, \"only\""));
    put("empty/full/1.png", &[1]);
    fs::create_dir_all(at("empty/hollow")).unwrap();
    assert!(error("empty").contains("empty/hollow has no image"));
    put("few/a/1.png", &[1]);
    put("few/a/2.png", &[1]);
    put("few/b/1.png", &[1]);
    assert!(error("few").contains("class \"b\" has only one picture"), "{}", error("few"));
    for name in ["a", "b"] {
        put(&format!("other/train/{name}/1.png"), &[1]);
        put(&format!("fewer/train/{name}/1.png"), &[1]);
        put(&format!("other/val/{}/1.png", if name == "a" { "a" } else { "c" }), &[1]);
    }
    put("fewer/test/a/1.png", &[1]);
    assert!(error("other").contains("the held-out pictures have the class \"c\""));
    assert!(error("fewer").contains("no picture of the class \"b\" is held out"));
    fs::create_dir_all(at("idx")).unwrap();
    fs::write(at("idx/train-images-idx3-ubyte"), [0, 0, 8, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).unwrap();
    assert!(error("idx").contains("holds no train-labels-idx1-ubyte"));

    // Pictures are read by the survey.
    put("damaged/a/1.png", &[1]);
    put("damaged/a/2.png", &[1]);
    put("damaged/b/1.jpg", &[1, 2, 3]);
    let whole = fs::read(at("damaged/b/1.jpg")).unwrap();
    fs::write(at("damaged/b/2.jpg"), &whole[..whole.len() - 20]).unwrap();
    let split = open(at("damaged"), None, 0, &d).unwrap();
    let read = |part: &Part| survey(part, [8, 8], 2, &d).map_err(|e| e.to_string());
    let e = read(&split.train).and(read(&split.test)).unwrap_err();
    assert!(e.contains("b/2.jpg"), "{e}");
    let small = open(at("damaged"), Some(150), 0, &d).unwrap();
    let e = read(&small.train).unwrap_err();
    assert!(e.contains("more memory than the 150 bytes allowed"), "{e}");
}

#[test]
fn augmented_pictures_are_inputs_of_the_network() {
    let (d, mut g) = (device(), Generator::new(0));
    let spec = spec(Architecture::Small, [3, 24, 16]);
    let photo = |h: usize, w: usize| {
        let bytes: Vec<u8> = (0..h * w * 3).map(|i| (i % 251) as u8).collect();
        Photo::from_pixels(&bytes, [h, w, 3], "x", Channels::Rgb).unwrap()
    };
    for (h, w) in [(24, 16), (100, 30), (5, 5), (1, 300), (24, 17)] {
        assert_eq!(spec.prepared(photo(h, w)).unwrap().shape(), [3, 24, 16]);
        for crop in [true, false] {
            let how = Augmentation { crop, flip: 0.5, erase: 0.5 };
            assert_eq!(spec.augmented(photo(h, w), how, &mut g).unwrap().shape(), [3, 24, 16]);
        }
    }
    // Without changes the picture is the prepared one.
    let how = Augmentation { crop: false, flip: 0.0, erase: 0.0 };
    let same = spec.augmented(photo(30, 30), how, &mut g).unwrap().to_tensor(&d).unwrap();
    let prepared = spec.prepared(photo(30, 30)).unwrap().to_tensor(&d).unwrap();
    assert_eq!(same.to_vec::<f32>().unwrap(), prepared.to_vec::<f32>().unwrap());
    let png = thumbnail(photo(300, 30), 96, &d).unwrap();
    let shown = gradus_image::decode(&png, "x", &d, gradus_image::LoadOptions::default()).unwrap();
    assert_eq!(shown.shape(), [3, 96, 9]);
}

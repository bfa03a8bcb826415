//! Bad input to the command. Each case ends with the right exit code and a message that names the input, without a
//! panic, and leaves no files behind.
#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::path::Path;

use gradus::prelude::*;
use support::{folder, gradus, gzip, idx, png, png_of, snapshot, striped_folder, stripes, succeed, text};

/// Exit codes.
const FAILS: i32 = 1;
const USAGE: i32 = 2;

/// The name of a folder, the contents of its image file and its label file, and words that the error must contain.
type Pair<'a> = (&'a str, &'a [u8], &'a [u8], &'a [&'a str]);

/// Runs the command in `dir` with arguments split at spaces (`''` is an empty argument), and checks how it fails.
fn check(dir: &Path, line: &str, code: i32, says: &[&str]) {
    let before = snapshot(dir);
    let (variables, arguments): (Vec<&str>, Vec<&str>) = line.split(' ').partition(|word| word.starts_with("GRADUS_"));
    let arguments = arguments.into_iter().map(|word| if word == "''" { "" } else { word });
    let mut command = gradus();
    command.current_dir(dir).args(arguments).envs(variables.iter().filter_map(|v| v.split_once('=')));
    let output = command.output().unwrap();
    let (out, err) = text(&output);
    assert_eq!(output.status.code(), Some(code), "{line}\n{out}\n{err}");
    assert!(!err.contains("panicked") && !out.contains("panicked"), "{line}\n{err}");
    assert!(out.is_empty(), "{line} printed results:\n{out}");
    for word in says {
        assert!(err.contains(word), "{line}: no `{word}` in\n{err}");
    }
    assert!(code == USAGE || err.starts_with("error: "), "{line}\n{err}");
    assert!(snapshot(dir) == before, "{line} left or changed files: {:?}", snapshot(dir).keys());
}

#[test]
fn command_lines_that_make_no_sense() {
    let dir = tempfile::tempdir().unwrap();
    for (line, says) in [
        ("''", &["''"][..]),
        ("trian digits", &["trian"]),
        ("train", &["digits"]),
        ("train cats", &["cats"]),
        ("train digits --epochs 0", &["--epochs", "'0'", "from 1 to"]),
        ("train digits --epochs -3", &["-3"]),
        ("train digits --epochs 1000000000", &["1000000000", "from 1 to"]),
        ("train digits --epochs abc", &["abc"]),
        ("train digits --epochs 1.5", &["1.5"]),
        ("train digits --epochs", &["--epochs"]),
        ("train digits --epochs 1 --epochs 2", &["--epochs", "multiple"]),
        ("train digits --epoch 1", &["--epoch"]),
        ("train digits --batch-size 0", &["--batch-size", "'0'", "from 1 to"]),
        ("train digits --batch-size 99999999999999999999", &["99999999999999999999"]),
        ("train digits --lr 0", &["--lr", "above 0"]),
        ("train digits --lr -0.1", &["-0.1", "above 0"]),
        ("train digits --lr nan", &["nan", "above 0"]),
        ("train digits --lr inf", &["inf", "above 0"]),
        ("train digits --lr 1e9", &["1e9", "at most"]),
        ("train digits --seed -1", &["-1"]),
        ("train digits --seed 18446744073709551616", &["18446744073709551616", "whole number"]),
        ("train digits --threads 0", &["--threads", "'0'", "from 1 to"]),
        ("train digits --threads 5000", &["5000"]),
        ("train digits extra", &["extra"]),
        ("train digits --out ''", &["--out"]),
        ("train digits --data ''", &["--data"]),
        ("predict a.png", &["--model"]),
        ("predict --model m", &["<INPUT>"]),
        ("evaluate --model m", &["<DATA>"]),
        ("train digits --epochs 1 --config", &["--config"]),
        ("train digits --fast-dev-run --find-lr", &["--find-lr"]),
        ("new", &["<NAME>"]),
        ("predict --model", &["--model"]),
        ("devices extra", &["extra"]),
        ("image", &["Usage"]),
        ("image smear a.png b.png", &["smear"]),
        ("image blur a.png b.png", &["--sigma"]),
        ("image blur --sigma -1 a.png b.png", &["'-1'", "from 0 to 1000"]),
        ("image blur --sigma nan a.png b.png", &["'nan'"]),
        ("image blur --sigma inf a.png b.png", &["'inf'"]),
        ("image blur --sigma 1 --border wrap a.png b.png", &["wrap", "reflect"]),
        ("image blur --sigma 1 --radius 1.5 a.png b.png", &["1.5"]),
        ("image sobel --threshold -2 a.png b.png", &["'-2'"]),
        ("image threshold --at 1.5 a.png b.png", &["'1.5'", "from 0 to 1"]),
        ("image brightness a.png b.png", &["--factor"]),
        ("image brightness --factor x a.png b.png", &["'x'"]),
        ("image resize a.png b.png", &["--width", "--height"]),
        ("image resize --width 0 a.png b.png", &["'0'", "from 1 to"]),
        ("image resize --width 9999999 a.png b.png", &["'9999999'"]),
        ("image resize --width 9 --filter sinc a.png b.png", &["sinc", "bicubic"]),
        ("image crop --width 5 a.png b.png", &["--height"]),
        ("image crop --width 5 --height 5 --left 1 a.png b.png", &["--top"]),
        ("image flip a.png b.png", &["--horizontal", "--vertical"]),
        ("image rotate --degrees 1e9 a.png b.png", &["1e9", "from -360 to 360"]),
        ("image invert", &["two pictures", "given: none"]),
        ("image invert a.png", &["two pictures", "given: 'a.png'"]),
        ("image invert a.png b.png c.png", &["given: 'a.png' 'b.png' 'c.png'"]),
        ("image invert --max-memory 0 a.png b.png", &["'0'", "512MiB"]),
        ("image invert --max-memory lots a.png b.png", &["'lots'"]),
        ("image invert --max-memory 1GiB + sobel a.png b.png", &["--max-memory comes before the last filter"]),
        ("predict --model m --max-memory 1.5GiB a.png", &["'1.5GiB'"]),
        ("image invert --quality 0 a.png b.jpg", &["'0'", "from 1 to 100"]),
        ("image invert a.png + sobel b.png", &["'a.png' comes before the last filter"]),
        ("image invert --device cpu + sobel a.png b.png", &["--device comes before the last filter"]),
        ("image invert + a.png b.png", &["a.png"]),
        ("image + invert a.png b.png", &["missing beside `+`"]),
        ("image invert + + sobel a.png b.png", &["missing beside `+`"]),
        ("image invert + sobel --amount 2 a.png b.png", &["--amount"]),
    ] {
        check(dir.path(), line, USAGE, says);
    }
}

#[test]
fn devices_and_settings_that_do_not_exist() {
    let dir = tempfile::tempdir().unwrap();
    for (line, says) in [
        ("train digits --device abacus", &["abacus", "this build has: cpu"][..]),
        ("train digits --device ''", &["\"\"", "this build has: cpu"]),
        ("train digits --device abacus --threads 2", &["abacus"]),
        ("predict --model m --device abacus a.png", &["abacus"]),
        ("train digits GRADUS_NUM_THREADS=none", &["GRADUS_NUM_THREADS", "none"]),
        ("train digits GRADUS_NUM_THREADS=0", &["GRADUS_NUM_THREADS", "0"]),
        ("devices GRADUS_CPU_ISA=mmx", &["mmx"]),
    ] {
        check(dir.path(), line, FAILS, says);
    }
}

#[test]
fn output_folders_that_cannot_be_used() {
    let dir = tempfile::tempdir().unwrap();
    folder(&dir.path().join("used"), &[("notes.txt", b"mine")]);
    fs::write(dir.path().join("file"), "x").unwrap();
    folder(&dir.path().join("claimed"), &[(".gradus-run", b"process 1")]);
    folder(&dir.path().join("blocked/model.safetensors"), &[]);
    let long = format!("train digits --out {}", "a".repeat(300));
    for (line, says) in [
        ("train digits --out used", &["used is not empty", "--force"][..]),
        ("train digits --out new/../used/.", &["used is not empty"]),
        ("train digits --out claimed", &["claimed", ".gradus-run in it is no folder"]),
        ("train digits --out blocked --force", &["blocked/model.safetensors is a folder"]),
        ("train digits --out file", &["file is a file"]),
        ("train digits --out file --force", &["file is a file"]),
        ("train digits --out file/below", &["file/below"]),
        (&long, &["aaaa"]),
        #[cfg(target_os = "linux")]
        ("train digits --out /proc/gradus/run", &["/proc/gradus/run"]),
        #[cfg(target_os = "linux")]
        ("train digits --out /proc --force", &["/proc"]),
    ] {
        check(dir.path(), line, FAILS, says);
    }
}

#[test]
fn idx_files_that_are_broken_or_do_not_fit() {
    let dir = tempfile::tempdir().unwrap();
    let (pixels, labels) = stripes(20, 4);
    let good_images = idx(&[20, 4, 4], &pixels);
    let good_labels = idx(&[20], &labels);
    let zipped = gzip(&good_images);
    let mut flipped = zipped.clone();
    let last = flipped.len() - 6;
    flipped[last] ^= 0x55;
    let bomb = gzip(&idx(&[u32::MAX, u32::MAX, 28], &[]));
    let large = idx(&[2, 200, 200], &[0; 80_000]);
    let foreign_type = [&[0, 0, 13, 3], &good_images[4..]].concat();
    let trailing = [&good_images[..], b"more"].concat();
    let images = "train-images-idx3-ubyte";
    let pairs: [Pair; 19] = [
        ("mislabelled", &good_images, &idx(&[19], &labels[..19]), &["20 images", "19 labels"]),
        ("swapped", &good_labels, &good_images, &["starts with 00 00 08 01", images]),
        ("floats", &foreign_type, &good_labels, &["starts with 00 00 0d 03"]),
        ("truncated", &good_images[..100], &good_labels, &["20 x 4 x 4 values, more than its 100 bytes", images]),
        ("header-only", &good_images[..16], &good_labels, &["bytes can hold"]),
        ("half-header", &good_images[..9], &good_labels, &["ends too early"]),
        ("empty-file", &[], &good_labels, &["ends too early", images]),
        ("cut-gzip", &zipped[..zipped.len() - 12], &good_labels, &["ends too early"]),
        ("corrupt-gzip", &flipped, &good_labels, &["corrupt gzip"]),
        ("bomb", &bomb, &good_labels, &["4294967295 x 4294967295 x 28", "bytes can hold"]),
        ("trailing", &trailing, &good_labels, &["goes on after"]),
        ("no-images", &idx(&[0, 28, 28], &[]), &idx(&[0], &[]), &["holds no images", "0 x 28 x 28"]),
        ("flat", &idx(&[20, 0, 4], &[]), &good_labels, &["holds no images"]),
        ("picture", &png(2, 2, &[0; 4]), &good_labels, &["starts with 89 50 4e 47"]),
        ("tiny", &idx(&[4, 1, 1], &[0, 1, 2, 3]), &idx(&[4], &[0, 1, 0, 1]), &["1 x 1 x 1", "2 x 2 to 128 x 128"]),
        ("large", &large, &idx(&[2], &[0, 1]), &["1 x 200 x 200", "large"]),
        ("one-class", &good_images, &idx(&[20], &[0; 20]), &["1 classes"]),
        ("two-images", &idx(&[2, 4, 4], &pixels[..32]), &idx(&[2], &[0, 1]), &["2 images are too few"]),
        ("text", b"hello, this is no IDX file", &good_labels, &["starts with 68 65 6c 6c"]),
    ];
    for (name, images_file, labels_file, says) in pairs {
        folder(&dir.path().join(name), &[(images, images_file), ("train-labels-idx1-ubyte", labels_file)]);
        let says = [says, &[name]].concat();
        check(dir.path(), &format!("train digits --out run --data {name}"), FAILS, &says);
    }
    folder(&dir.path().join("empty"), &[]);
    folder(&dir.path().join("images-only"), &[(images, &good_images)]);
    folder(&dir.path().join("folder-for-labels/train-labels-idx1-ubyte"), &[]);
    folder(&dir.path().join("folder-for-labels"), &[(images, &good_images)]);
    for (name, says) in [
        ("none", &["none"][..]),
        ("empty", &["empty holds no train-images-idx3-ubyte"]),
        ("images-only", &["images-only holds no train-labels-idx1-ubyte"]),
        ("folder-for-labels", &["train-labels-idx1-ubyte is a folder"]),
        ("text/train-images-idx3-ubyte", &["is a file, not a folder"]),
    ] {
        check(dir.path(), &format!("train digits --out run --data {name}"), FAILS, says);
    }
    let test_images = "t10k-images-idx3-ubyte";
    let test_labels = "t10k-labels-idx1-ubyte";
    for (name, files, says) in [
        (
            "other-size",
            &[(test_images, &idx(&[1, 2, 2], &[0; 4])[..]), (test_labels, &idx(&[1], &[0]))][..],
            "[1, 2, 2]",
        ),
        ("other-label", &[(test_images, &idx(&[1, 4, 4], &[0; 16])), (test_labels, &idx(&[1], &[9]))], "the label 9"),
        ("half-a-test", &[(test_labels, &idx(&[1], &[0]))], "holds no t10k-images"),
    ] {
        let data = striped_folder(&dir.path().join(name), 20, 4);
        folder(&data, files);
        check(dir.path(), &format!("train digits --out run --data {name}"), FAILS, &[says, name]);
    }
}

/// Trains a model for 4 x 4 images and saves it as `model.safetensors`, with a matching picture in `good.png`.
fn trained(dir: &Path) {
    striped_folder(&dir.join("stripes"), 20, 4);
    succeed(gradus().current_dir(dir).args(["train", "digits", "--epochs", "1", "--data", "stripes", "--out", "run"]));
    fs::rename(dir.join("run/model.safetensors"), dir.join("model.safetensors")).unwrap();
    fs::remove_dir_all(dir.join("run")).unwrap();
    fs::write(dir.join("good.png"), png(4, 4, &[100; 16])).unwrap();
    succeed(gradus().current_dir(dir).args(["predict", "--model", "model.safetensors", "good.png"]));
}

#[test]
fn model_files_that_are_none_of_ours() {
    let dir = tempfile::tempdir().unwrap();
    trained(dir.path());
    let good = fs::read(dir.path().join("model.safetensors")).unwrap();
    let device = Device::cpu().unwrap();
    let save = |name: &str, change: &dyn Fn(&mut StateDict)| {
        let mut state = StateDict::load_safetensors(dir.path().join("model.safetensors"), &device).unwrap();
        change(&mut state);
        state.save_safetensors(dir.path().join(name)).unwrap();
    };
    let ones = |shape: &[usize]| Tensor::ones(shape, DType::F32, &device).unwrap();
    let spec = |task: &str, input: &str, classes: &str| {
        let text = format!("{{\"task\":\"{task}\",\"input\":{input},\"classes\":{classes}}}");
        move |s: &mut StateDict| s.set_metadata("gradus.task", text.clone())
    };
    save("cats", &spec("cats", "[1,4,4]", "2"));
    save("no-json", &|s| s.set_metadata("gradus.task", "digits"));
    save("no-sizes", &spec("digits", "[8,8]", "2"));
    save("huge", &spec("digits", "[1,4000000000,4000000000]", "2"));
    save("overflow", &spec("digits", "[1,8,99999999999999999999]", "2"));
    save("no-classes", &spec("digits", "[1,4,4]", "0"));
    save("many-classes", &spec("digits", "[1,4,4]", "123456789"));
    save("other-size", &spec("digits", "[1,8,8]", "2"));
    save("missing", &|s| drop(s.remove("fc2.weight")));
    save("unexpected", &|s| s.insert("fc9.weight", ones(&[2])));
    save("misshapen", &|s| s.insert("fc2.weight", ones(&[3, 3])));
    save("integers", &|s| s.insert("fc2.bias", Tensor::zeros([2], DType::I64, &device).unwrap()));
    save("nan", &|s| s.insert("fc2.bias", Tensor::full([2], f64::NAN, DType::F32, &device).unwrap()));
    let foreign: StateDict = [("weight", ones(&[2, 2]))].into_iter().collect();
    foreign.save_safetensors(dir.path().join("foreign")).unwrap();
    let endless = [&u64::MAX.to_le_bytes()[..], b"{}"].concat();
    let half_json = [&20u64.to_le_bytes()[..], b"{\"weight\":{\"dtype\":\""].concat();
    folder(&dir.path().join("a-folder"), &[]);
    for (name, contents) in [
        ("empty", &[][..]),
        ("seven-bytes", &good[..7]),
        ("cut-header", &good[..60]),
        ("cut-data", &good[..good.len() - 1]),
        ("trailing", &[&good[..], &[0]].concat()),
        ("picture", &png(4, 4, &[0; 16])),
        ("endless", &endless),
        ("half-json", &half_json),
    ] {
        fs::write(dir.path().join(name), contents).unwrap();
    }
    let ours = "model.safetensors that `gradus train` saved";
    for (name, says) in [
        ("none", &["none"][..]),
        ("a-folder", &["a-folder"]),
        ("empty", &["empty"]),
        ("seven-bytes", &["seven-bytes"]),
        ("cut-header", &["cut-header"]),
        ("cut-data", &["cut-data"]),
        ("trailing", &["trailing"]),
        ("picture", &["picture"]),
        ("endless", &["endless"]),
        ("half-json", &["half-json"]),
        ("foreign", &["foreign", "gradus.task", ours]),
        ("cats", &["unknown variant `cats`", "digits", ours]),
        ("no-json", &["no-json", "gradus.task", ours]),
        ("no-sizes", &["array of length 3", ours]),
        ("huge", &["4000000000", "huge"]),
        ("overflow", &["overflow", "gradus.task", ours]),
        ("no-classes", &["0 classes", "no-classes"]),
        ("many-classes", &["123456789 classes"]),
        ("other-size", &["fc1.weight", "other-size"]),
        ("missing", &["fc2.weight", "missing"]),
        ("unexpected", &["fc9.weight"]),
        ("misshapen", &["fc2.weight", "[3, 3]"]),
        ("integers", &["fc2.bias", "i64"]),
        ("nan", &["not finite", "good.png"]),
    ] {
        check(dir.path(), &format!("predict --model {name} good.png"), FAILS, says);
    }
}

#[test]
fn pictures_that_are_none() {
    let dir = tempfile::tempdir().unwrap();
    trained(dir.path());
    let good = png(4, 4, &[100; 16]);
    let mut wrong_checksum = good.clone();
    wrong_checksum[30] ^= 1;
    let mut huge = good.clone();
    huge[16..24].copy_from_slice(&[0x7f, 0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff]);
    // The sizes are covered by the checksum of the header.
    let sum = crc(&huge[12..29]);
    huge[29..33].copy_from_slice(&sum.to_be_bytes());
    folder(&dir.path().join("folder.png"), &[]);
    for (name, contents) in [
        ("empty.png", &[][..]),
        ("text.png", b"this is a text, not a picture"),
        ("signature.png", &good[..8]),
        ("cut-header.png", &good[..20]),
        ("cut.png", &good[..good.len() - 20]),
        ("checksum.png", &wrong_checksum),
        ("huge.png", &huge),
        ("gif.png", b"GIF89a\x01\x00\x01\x00\x00\x00\x00;"),
        ("jpeg.png", b"\xff\xd8\xff\xe0\x00\x10JFIF\x00\x01"),
        ("idx.png", &idx(&[1, 4, 4], &[0; 16])),
    ] {
        fs::write(dir.path().join(name), contents).unwrap();
    }
    for name in [
        "none.png",
        "folder.png",
        "empty.png",
        "text.png",
        "signature.png",
        "cut-header.png",
        "cut.png",
        "checksum.png",
        "huge.png",
        "gif.png",
        "jpeg.png",
        "idx.png",
        "model.safetensors",
    ] {
        check(dir.path(), &format!("predict --model model.safetensors {name}"), FAILS, &[name, "help: "]);
        // With one bad picture among good ones, nothing is predicted.
        check(dir.path(), &format!("predict --model model.safetensors good.png {name} --json"), FAILS, &[name]);
    }
    // A pipe that nobody writes to. It is in a separate folder, because a snapshot would block on it too.
    #[cfg(unix)]
    {
        let other = tempfile::tempdir().unwrap();
        let pipe = other.path().join("pipe.png");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let line = format!("predict --model model.safetensors {}", pipe.display());
        check(dir.path(), &line, FAILS, &["pipe.png is not a regular file"]);
    }
}

#[test]
fn pictures_that_cannot_be_filtered() {
    use png::{BitDepth, ColorType};
    let dir = tempfile::tempdir().unwrap();
    let good = png(4, 4, &[100; 16]);
    let mut huge = good.clone();
    huge[16..24].copy_from_slice(&[0, 0, 0xff, 0xff, 0, 0, 0xff, 0xff]);
    let sum = crc(&huge[12..29]);
    huge[29..33].copy_from_slice(&sum.to_be_bytes());
    let rgba = png_of(ColorType::Rgba, BitDepth::Eight, 1, 1, &[1, 2, 3, 4]);
    let deep = png_of(ColorType::Grayscale, BitDepth::Sixteen, 2, 2, &[9; 8]);
    // An image whose JPEG file is cut off after its first quarter, followed by an end marker.
    let pixels = Tensor::from_vec(
        (0..4096).map(|i| (i * 37 % 256) as u8).collect::<Vec<_>>(),
        [1, 64, 64],
        &Device::cpu().unwrap(),
    );
    let jpeg = gradus::image::encode(&pixels.unwrap(), gradus::image::Format::Jpeg, 90).unwrap();
    let cut_scan = [&jpeg[..jpeg.len() / 4], b"\xff\xd9"].concat();
    for (name, contents) in [
        ("good.png", &good[..]),
        ("empty.png", b""),
        ("text.png", b"this is a text, not a picture"),
        ("cut.png", &good[..good.len() - 20]),
        ("end.png", &good[..good.len() - 12]),
        ("cut-deep.png", &deep[..deep.len() / 2]),
        ("huge.png", &huge),
        ("gif.png", b"GIF89a\x01\x00\x01\x00\x00\x00\x00;"),
        ("cut.jpg", b"\xff\xd8\xff\xe0\x00\x10JFIF\x00\x01"),
        ("cut-scan.jpg", &cut_scan),
        ("rgba.png", &rgba),
        ("used.png", b"mine"),
    ] {
        fs::write(dir.path().join(name), contents).unwrap();
    }
    folder(&dir.path().join("folder.png"), &[]);
    for (words, says) in [
        ("invert none.png out.png", &["none.png", "help: "][..]),
        ("invert folder.png out.png", &["folder.png is a folder"]),
        ("invert empty.png out.png", &["empty.png is neither a PNG nor a JPEG"]),
        ("invert text.png out.png", &["text.png is neither"]),
        ("invert gif.png out.png", &["gif.png is neither", "convert it"]),
        ("invert cut.png out.png", &["cut.png", "help: "]),
        ("invert end.png out.png", &["end.png is cut off"]),
        ("invert cut-deep.png out.png", &["cut-deep.png", "help: "]),
        ("invert cut.jpg out.png", &["cut.jpg", "help: "]),
        ("invert huge.png out.png", &["huge.png"]),
        ("invert good.png out", &["out: the name says no format", ".png"]),
        ("invert good.png out.gif", &["out.gif: the name says no format"]),
        ("invert good.png used.png", &["used.png is there already", "--force"]),
        ("invert good.png folder.png --force", &["folder.png is a folder"]),
        ("invert good.png no/folder/out.png", &["no/folder/out.png"]),
        ("invert rgba.png out.jpg", &["JPEG has no alpha", "write a .png"]),
        ("invert good.png out.png --device abacus", &["abacus", "this build has: cpu"]),
        ("crop --width 9 --height 2 good.png out.png", &["2 x 9 pixels are not within 4 x 4"]),
        ("crop --width 2 --height 2 --left 3 --top 0 good.png out.png", &["not within 4 x 4"]),
        ("invert good.png out.png --max-memory 1000", &["good.png needs more memory than the 1000 bytes allowed"]),
        ("resize --width 2000 good.png out.png --max-memory 1MiB", &["2000 x 2000 pixels", "--max-memory"]),
        ("invert cut-scan.jpg out.png", &["cut-scan.jpg ends early: scan 1 has ", "help: "]),
        ("resize --width 60000 --height 60000 good.png out.png", &["60000 x 60000 pixels", "--max-memory"]),
        #[cfg(target_os = "linux")]
        ("invert good.png /proc/out.png", &["/proc/out.png"]),
        #[cfg(target_os = "linux")]
        ("invert /dev/null out.png", &["/dev/null is not a regular file"]),
    ] {
        check(dir.path(), &format!("image {words}"), FAILS, says);
    }
}

/// The checksum of a PNG chunk.
fn crc(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |c, _| if c & 1 == 1 { (c >> 1) ^ 0xedb8_8320 } else { c >> 1 })
    })
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_behind_standard_output_is_an_error() {
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = gradus().arg("devices").stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(FAILS));
    assert!(text(&output).1.contains("standard output"), "{output:?}");
}

//! Helpers for the tests of the command: they run it and create the files that it reads.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use flate2::{Compression, write::GzEncoder};

/// The command without arguments. Environment variables that would change its behaviour are removed.
pub(crate) fn gradus() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gradus"));
    command.env_remove("GRADUS_NUM_THREADS").env_remove("GRADUS_CPU_ISA").env_remove("RUST_BACKTRACE");
    command
}

/// Standard output and standard error as text.
pub(crate) fn text(output: &Output) -> (String, String) {
    (String::from_utf8_lossy(&output.stdout).into_owned(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Runs the command, which must succeed. Returns its standard output.
pub(crate) fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let (out, err) = text(&output);
    assert!(output.status.success(), "{command:?}\n{out}\n{err}");
    out
}

/// The JSON object on the last line of the output.
pub(crate) fn last_json(out: &str) -> serde_json::Value {
    serde_json::from_str(out.lines().last().unwrap()).unwrap_or_else(|e| panic!("{e}: {out}"))
}

/// Every file and folder in `folder` and its subfolders, with the contents of the files.
pub(crate) fn snapshot(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(snapshot(&path));
            found.insert(path, Vec::new());
        } else {
            found.insert(path.clone(), fs::read(&path).unwrap());
        }
    }
    found
}

/// Whether a run has saved a state from which it could go on.
pub(crate) fn has_checkpoint(run: &Path) -> bool {
    let is_complete = |name: &str| name.starts_with("checkpoint-") && name.ends_with(".json");
    fs::read_dir(run.join("checkpoints"))
        .is_ok_and(|all| all.flatten().any(|entry| entry.file_name().to_str().is_some_and(is_complete)))
}

/// Runs the command, and kills it as soon as it has saved a state in the folder `run`.
pub(crate) fn kill_after_a_state(command: &mut Command, run: &Path) {
    let mut running = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    while !has_checkpoint(run) {
        assert!(running.try_wait().unwrap().is_none(), "the run ended before a state was saved");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    running.kill().unwrap();
    running.wait().unwrap();
}

/// The contents of an IDX file of bytes.
pub(crate) fn idx(sizes: &[u32], values: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 0, 8, sizes.len() as u8];
    sizes.iter().for_each(|s| bytes.extend(s.to_be_bytes()));
    bytes.extend(values);
    bytes
}

/// Gzip-compressed bytes.
pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Images of `side` x `side` pixels, and their labels, which alternate. The top is bright for label 0, and the bottom
/// for label 1.
pub(crate) fn stripes(count: usize, side: usize) -> (Vec<u8>, Vec<u8>) {
    let (mut pixels, mut labels) = (Vec::new(), Vec::new());
    for image in 0..count {
        let label = image % 2;
        for y in 0..side {
            let bright = (y < side / 2) == (label == 0);
            pixels.extend((0..side).map(|x| if bright { 200 + (image + x) % 50 } else { (image * x) % 40 } as u8));
        }
        labels.push(label as u8);
    }
    (pixels, labels)
}

/// Creates a folder with files of these names and contents.
pub(crate) fn folder(at: &Path, files: &[(&str, &[u8])]) -> PathBuf {
    fs::create_dir_all(at).unwrap();
    for (name, contents) in files {
        fs::write(at.join(name), contents).unwrap();
    }
    at.to_owned()
}

/// Creates a folder of IDX files with `count` striped images of `side` x `side` pixels.
pub(crate) fn striped_folder(at: &Path, count: usize, side: usize) -> PathBuf {
    let (pixels, labels) = stripes(count, side);
    let (n, s) = (count as u32, side as u32);
    let images = gzip(&idx(&[n, s, s], &pixels));
    folder(at, &[("train-images-idx3-ubyte.gz", &images), ("train-labels-idx1-ubyte", &idx(&[n], &labels))])
}

/// A grey PNG picture.
pub(crate) fn png(width: u32, height: u32, pixels: &[u8]) -> Vec<u8> {
    png_of(png::ColorType::Grayscale, png::BitDepth::Eight, width, height, pixels)
}

/// A PNG picture with these samples. An indexed picture has a palette with the colours 10, 20, 30 and 200, 100, 0.
pub(crate) fn png_of(color: png::ColorType, depth: png::BitDepth, width: u32, height: u32, samples: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(color);
    encoder.set_depth(depth);
    if color == png::ColorType::Indexed {
        encoder.set_palette(vec![10, 20, 30, 200, 100, 0]);
    }
    encoder.write_header().unwrap().write_image_data(samples).unwrap();
    bytes
}

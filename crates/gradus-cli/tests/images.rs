//! `gradus train images` from end to end, with its predictions, and what it refuses.
#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::path::Path;

use gradus::image::{SaveOptions, save};
use gradus::prelude::*;
use support::{gradus, idx, kill_after_a_state, last_json, snapshot, stripes, succeed, text};

fn command(dir: &Path, line: &str) -> std::process::Command {
    let mut command = gradus();
    command.current_dir(dir).args(line.split(' '));
    command
}

/// A picture of 12 x 12 pixels or so, of a colour with noise.
fn put(path: &Path, colour: [f32; 3], side: usize, seed: u64) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let d = Device::cpu().unwrap();
    let noise = Tensor::rand([3, side, side], DType::F32, &d, &mut Generator::new(seed)).unwrap();
    let colour = Tensor::from_vec(colour, [3, 1, 1], &d).unwrap();
    save(path, &((noise * 0.3).unwrap() + colour).unwrap(), SaveOptions::default()).unwrap();
}

/// Red and blue pictures, PNG and JPEG, of different sizes.
fn colours(dir: &Path, count: u64) {
    for i in 0..count {
        let end = ["png", "jpg"][(i % 2) as usize];
        put(&dir.join(format!("red ones/{i}.{end}")), [0.7, 0.1, 0.1], 12 + (i % 3) as usize, i);
        put(&dir.join(format!("blue, too/{i}.{end}")), [0.1, 0.1, 0.7], 12, 1000 + i);
    }
}

#[test]
fn classes_are_learnt_predicted_and_evaluated() {
    let dir = tempfile::tempdir().unwrap();
    colours(&dir.path().join("photos"), 20);
    let out = succeed(&mut command(dir.path(), "train images photos --epochs 4 --batch-size 8 --erase 0.1 --json"));
    assert!(
        out.contains("training small on 32 images as 14 x 14, 2 classes") && out.contains("0 blue, too, 1 red ones"),
        "{out}"
    );
    let json = last_json(&out);
    assert_eq!((json["test_accuracy"].as_f64(), json["task"].as_str()), (Some(1.0), Some("images")), "{json}");
    let run = dir.path().join("out/photos");
    let names: Vec<_> = snapshot(&run).into_keys().map(|p| p.file_name().unwrap().to_owned()).collect();
    assert_eq!(names, ["config.toml", "example.png", "metrics.csv", "model.safetensors", "report.html"]);
    let page = fs::read_to_string(run.join("report.html")).unwrap();
    assert!(page.contains("Images in photos") && page.contains("red ones") && page.contains("data:image/png"));
    let config = fs::read_to_string(run.join("config.toml")).unwrap();
    assert!(
        config.contains("dir = \"photos\"") && config.contains("model = \"small\"") && config.contains("size = 14")
    );

    let line = "predict --model out/photos/model.safetensors photos --out p.csv --json";
    let json = last_json(&succeed(&mut command(dir.path(), line)));
    assert_eq!(json["predictions"].as_array().unwrap().len(), 40);
    let table = Table::read_csv(dir.path().join("p.csv"), &CsvOptions::default()).unwrap();
    let names: Vec<&str> = table.columns().iter().map(|c| c.name()).collect();
    assert_eq!(names, ["file", "prediction", "probability", "p_blue, too", "p_red ones"]);
    assert_eq!(fs::read_to_string(dir.path().join("p.csv")).unwrap().lines().count(), 41);
    let line = "evaluate --model out/photos/model.safetensors photos --json";
    assert_eq!(last_json(&succeed(&mut command(dir.path(), line)))["accuracy"].as_f64(), Some(1.0));
    // The same configuration leads to the same bits.
    succeed(&mut command(dir.path(), "train images photos --config out/photos/config.toml --out again --threads 1"));
    let model = |folder: &str| fs::read(dir.path().join(folder).join("model.safetensors")).unwrap();
    assert_eq!(model("again"), model("out/photos"));
    // A class that the model does not know.
    put(&dir.path().join("photos/green/1.png"), [0.1, 0.7, 0.1], 12, 1);
    let line = "evaluate --model out/photos/model.safetensors photos";
    let output = command(dir.path(), line).output().unwrap();
    let (_, err) = text(&output);
    assert!(
        !output.status.success() && err.contains("has the class \"green\", which the model does not know"),
        "{err}"
    );
}

#[test]
fn idx_files_and_other_networks_are_trained() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("idx")).unwrap();
    let (pixels, labels) = stripes(40, 10);
    fs::write(dir.path().join("idx/train-images-idx3-ubyte"), idx(&[40, 10, 10], &pixels)).unwrap();
    fs::write(dir.path().join("idx/train-labels-idx1-ubyte"), idx(&[40], &labels)).unwrap();
    let line = "train images idx --model resnet18 --epochs 1 --batch-size 16 --flip 0 --no-crop --lr 0.0005 --json";
    let out = succeed(&mut command(dir.path(), line));
    assert!(out.contains("training resnet18 on 32 images as 10 x 10, 2 classes"), "{out}");
    let out = succeed(&mut command(dir.path(), "predict --model out/idx/model.safetensors out/idx/example.png"));
    assert!(out.contains("example.png: "), "{out}");
    let out = succeed(&mut command(dir.path(), "train images idx --size 16 --fast-dev-run"));
    assert!(out.contains("as 16 x 16") && out.contains("nothing is saved"), "{out}");
}

#[test]
fn what_cannot_be_trained_on_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    put(&dir.path().join("one/only/1.png"), [0.1; 3], 12, 1);
    colours(&dir.path().join("damaged"), 5);
    fs::write(dir.path().join("damaged/red ones/3.jpg"), "GIF89a").unwrap();
    colours(&dir.path().join("fine"), 5);
    let before = snapshot(dir.path());
    for (line, says) in [
        ("train images none", "none"),
        ("train images one", "has one class only"),
        ("train images damaged", "damaged/red ones/3.jpg is neither a PNG nor a JPEG"),
        ("train images fine --max-memory 300", "more memory than the 300 bytes allowed"),
        ("train images fine --model resnet", "mobilenet_v3_small"),
        ("train images fine --size 7", "from 8 to 1024"),
        ("train images fine --flip 1.5", "from 0 to 1"),
    ] {
        let output = command(dir.path(), line).output().unwrap();
        let (_, err) = text(&output);
        assert!(!output.status.success() && err.contains(says), "{line}: {err}");
    }
    assert_eq!(snapshot(dir.path()), before);
}

#[cfg(unix)]
#[test]
fn a_run_that_is_killed_goes_on_to_the_same_bits_and_only_with_the_same_pictures() {
    let dir = tempfile::tempdir().unwrap();
    colours(&dir.path().join("photos"), 6);
    let line = |out: &str| format!("train images photos --batch-size 4 --epochs 12 --out {out}");
    succeed(&mut command(dir.path(), &line("whole")));
    let resume = format!("{} --resume", line("killed"));
    kill_after_a_state(&mut command(dir.path(), &resume), &dir.path().join("killed"));
    // All but the colours of some pictures is as before.
    let changed: Vec<_> =
        (0..6).map(|i| dir.path().join(format!("photos/red ones/{i}.{}", ["png", "jpg"][i % 2]))).collect();
    let whole: Vec<_> = changed.iter().map(|path| fs::read(path).unwrap()).collect();
    changed.iter().for_each(|path| put(path, [0.6, 0.2, 0.1], 12, 1));
    let output = command(dir.path(), &resume).output().unwrap();
    let (_, err) = text(&output);
    assert!(!output.status.success() && err.contains("fingerprint of the"), "{err}");
    changed.iter().zip(&whole).for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
    let output = command(dir.path(), &resume).output().unwrap();
    assert!(output.status.success() && text(&output).1.contains("going on from step"), "{output:?}");
    let model = |run: &str| fs::read(dir.path().join(run).join("model.safetensors")).unwrap();
    assert!(model("whole") == model("killed"), "other bits after a kill");
}

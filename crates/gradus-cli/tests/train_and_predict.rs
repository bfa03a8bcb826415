//! The command from end to end: trains on the real digits, reads the results, and predicts.
#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::process::Stdio;

use gradus::prelude::*;
use support::{folder, gradus, gzip, idx, last_json, png, snapshot, striped_folder, stripes, succeed, text};

#[test]
fn digits_train_on_every_profile_of_an_adapter_as_on_the_cpu() {
    let listed = last_json(&succeed(gradus().args(["devices", "--json"])));
    let mut names = listed["devices"].as_array().unwrap().iter().map(|d| d["name"].as_str().unwrap());
    let Some(adapter) = names.find(|name| name.starts_with("wgpu:")) else {
        let required = std::env::var_os("GRADUS_REQUIRE_WGPU").is_some_and(|v| v == "1");
        assert!(!required, "GRADUS_REQUIRE_WGPU is 1 and {listed} has no adapter");
        eprintln!("skipped: this build has no WebGPU backend, or this machine no adapter for it");
        return;
    };
    let accuracy = |device: &str, profile: &str| {
        let dir = tempfile::tempdir().unwrap();
        let train = ["train", "digits", "--epochs", "1", "--seed", "3", "--json", "--device", device];
        let mut command = gradus();
        command.args(train).arg("--out").arg(dir.path().join("run")).env("GRADUS_WGPU_PROFILE", profile);
        last_json(&succeed(&mut command))["test_accuracy"].as_f64().unwrap()
    };
    let cpu = accuracy("cpu", "full");
    for profile in ["full", "no64", "core"] {
        // Only rounding differs, so the accuracies are close.
        let found = accuracy(adapter, profile);
        assert!(found > 0.7 && (found - cpu).abs() < 0.02, "{profile}: {found}, and {cpu} on the CPU, after an epoch");
    }
    let (out, _) = text(&gradus().arg("devices").env("GRADUS_WGPU_PROFILE", "tiny").output().unwrap());
    assert!(out.contains("the profiles are full, no64 and core"), "{out}");
}

#[test]
fn digits_train_save_and_predict() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("runs/first");
    let stdout =
        succeed(gradus().args(["train", "digits", "--epochs", "2", "--seed", "3", "--json", "--out"]).arg(&out));
    assert!(stdout.contains("predicted") && stdout.contains("true    9"), "no confusion matrix: {stdout}");
    assert!(stdout.contains("predict --model"), "no next command: {stdout}");
    let json = last_json(&stdout);
    let accuracy = json["test_accuracy"].as_f64().unwrap();
    assert!((0.9..=1.0).contains(&accuracy), "{accuracy} after two epochs");
    assert_eq!((json["epochs"].as_u64(), json["seed"].as_u64()), (Some(2), Some(3)));
    assert!(json["seconds"].as_f64().unwrap() > 0.0 && json["parameters"].as_u64().unwrap() > 1000);
    let model = json["model"].as_str().unwrap().to_owned();

    let names: Vec<_> = snapshot(&out).into_keys().map(|p| p.file_name().unwrap().to_owned()).collect();
    assert_eq!(names, ["config.toml", "example.png", "metrics.csv", "model.safetensors", "report.html"]);
    let metrics = fs::read_to_string(out.join("metrics.csv")).unwrap();
    assert_eq!(metrics.lines().count(), 3);
    let config: toml::Table = fs::read_to_string(out.join("config.toml")).unwrap().parse().unwrap();
    assert_eq!(config["epochs"].as_integer(), Some(2));
    assert_eq!(config["seed"].as_str(), Some("3"));

    // The model file alone is enough. The pictures are an 8x8 digit, and the same digit enlarged four times and drawn
    // dark on bright.
    let alone = dir.path().join("alone.safetensors");
    fs::copy(model, &alone).unwrap();
    let digits = gradus::data::digits::load().unwrap();
    let mut right = 0;
    for index in (0..digits.len()).step_by(150) {
        let (image, label) = digits.get(index).unwrap();
        let bytes: Vec<u8> = image.pixels().iter().map(|p| (p * 255.0).round() as u8).collect();
        let large: Vec<u8> = (0..32 * 32).map(|i| 255 - bytes[i / 32 / 4 * 8 + i % 32 / 4]).collect();
        fs::write(dir.path().join("small.png"), png(8, 8, &bytes)).unwrap();
        fs::write(dir.path().join("large.png"), png(32, 32, &large)).unwrap();
        let predict = |picture: &str, invert: bool| {
            let mut command = gradus();
            command.args(["predict", "--json", "--model"]).arg(&alone).arg(dir.path().join(picture));
            let stdout = succeed(command.args(invert.then_some("--invert")));
            let prediction = last_json(&stdout)["predictions"][0].clone();
            let sum: f64 = prediction["probabilities"].as_array().unwrap().iter().map(|p| p.as_f64().unwrap()).sum();
            assert!((sum - 1.0).abs() < 1e-5, "{prediction}");
            prediction["class"].as_i64().unwrap()
        };
        right += i64::from(predict("small.png", false) == label) + i64::from(predict("large.png", true) == label);
    }
    assert!(right >= 20, "{right} of 24 pictures recognised");

    // A folder with results is refused unless `--force` is given.
    let before = snapshot(dir.path());
    let refused = gradus().args(["train", "digits", "--epochs", "1", "--out"]).arg(&out).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused).1.contains("not empty"));
    assert_eq!(snapshot(dir.path()), before);
    succeed(gradus().args(["train", "digits", "--epochs", "1", "--force", "--out"]).arg(&out));
    assert_eq!(fs::read_to_string(out.join("metrics.csv")).unwrap().lines().count(), 2);
}

#[test]
fn the_same_seed_gives_the_same_bits_on_one_thread_and_two() {
    let dir = tempfile::tempdir().unwrap();
    let train = |name: &str, seed: &str, threads: &str| {
        let out = dir.path().join(name);
        let arguments = ["train", "digits", "--epochs", "1", "--json", "--seed", seed, "--threads", threads, "--out"];
        let json = last_json(&succeed(gradus().args(arguments).arg(&out)));
        (fs::read(out.join("model.safetensors")).unwrap(), json["test_loss"].to_string())
    };
    let one = train("one", "7", "1");
    assert_eq!(train("two", "7", "2"), one);
    assert_ne!(train("other", "8", "2"), one);
}

#[test]
fn idx_files_of_any_size_train_with_test_files_or_without() {
    let dir = tempfile::tempdir().unwrap();
    let data = striped_folder(&dir.path().join("stripes"), 120, 6);
    let run = |seed: &str| {
        let mut command = gradus();
        command.current_dir(dir.path()).args(["train", "digits", "--epochs", "6", "--batch-size", "8", "--json"]);
        last_json(&succeed(command.args(["--data", "stripes", "--seed", seed])))
    };
    let json = run("1");
    assert_eq!(json["test_accuracy"].as_f64(), Some(1.0));
    assert_eq!(json["model"].as_str(), Some("out/stripes/model.safetensors"));
    let (pixels, labels) = stripes(10, 6);
    let test = gzip(&idx(&[10, 6, 6], &pixels));
    folder(&data, &[("t10k-images-idx3-ubyte.gz", &test), ("t10k-labels-idx1-ubyte", &idx(&[10], &labels))]);
    // The default folder already holds the results of the first run, so the next run gets a numbered folder.
    assert_eq!(run("2")["model"].as_str(), Some("out/stripes-2/model.safetensors"));
    let config = fs::read_to_string(dir.path().join("out/stripes-2/config.toml")).unwrap();
    assert!(config.contains("test_samples = 10"), "{config}");
}

#[test]
fn devices_are_listed() {
    let stdout = succeed(gradus().args(["devices", "--json"]));
    for word in ["cpu", "hardware", "memory", "isa", "cores", "threads"] {
        assert!(stdout.contains(word), "{word}: {stdout}");
    }
    assert_eq!(last_json(&stdout)["devices"][0]["name"].as_str(), Some("cpu"));
}

#[test]
fn the_note_on_bright_borders_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    striped_folder(&dir.path().join("stripes"), 20, 4);
    let run = |arguments: &str| {
        let output = gradus().current_dir(dir.path()).args(arguments.split(' ')).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        text(&output).1
    };
    run("train digits --epochs 1 --data stripes --out ./new/../run/.");
    assert!(!dir.path().join("new").exists() && !dir.path().join("run/.gradus-run").exists());
    fs::write(dir.path().join("dark.png"), png(4, 4, &[0; 16])).unwrap();
    fs::write(dir.path().join("bright.png"), png(4, 4, &[255; 16])).unwrap();
    let predict = "predict --model run/model.safetensors";
    assert!(run(&format!("{predict} bright.png")).contains("(see --invert)"));
    assert!(run(&format!("{predict} dark.png --invert")).contains("leave out --invert"));
    assert_eq!(run(&format!("{predict} dark.png")), "");
}

#[cfg(unix)]
#[test]
fn a_reader_that_goes_away_is_no_error() {
    // Mesa's drivers print a warning if `XDG_RUNTIME_DIR` is not set.
    let dir = tempfile::tempdir().unwrap();
    let mut devices = gradus();
    devices.arg("devices").env("XDG_RUNTIME_DIR", dir.path());
    let mut child = devices.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && text(&output).1.is_empty(), "{output:?}");
}

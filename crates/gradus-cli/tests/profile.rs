//! Tests `gradus profile`: the trace and the table that it makes for another command, and invalid uses.
#![allow(clippy::unwrap_used)]

mod support;

use support::{gradus, succeed, text};

#[test]
fn a_training_is_traced_call_by_call() {
    let folder = tempfile::tempdir().unwrap();
    let (trace, out) = (folder.path().join("trace.json"), folder.path().join("out"));
    let printed = succeed(
        gradus()
            .args(["profile", "--out"])
            .arg(&trace)
            .args(["--", "train", "digits", "--epochs", "1", "--threads", "1", "--out"])
            .arg(&out),
    );
    assert!(out.join("model.safetensors").is_file(), "{printed}");
    assert!(printed.contains("conv") && printed.contains("GFLOP/s") && printed.contains("trace.json"), "{printed}");
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(&trace).unwrap()).unwrap();
    let events = json["traceEvents"].as_array().unwrap();
    assert!(events.len() > 500, "{}", events.len());
    let number = |e: &serde_json::Value, key: &str| e[key].as_f64().unwrap();
    assert!(events.iter().all(|e| e["ph"] == "X" && number(e, "dur") >= 0.0 && number(e, "ts") >= 0.0));
    // Only one thread makes calls, so its calls do not overlap.
    let mine: Vec<_> = events.iter().filter(|e| e["tid"] == events[0]["tid"]).collect();
    assert!(mine.windows(2).all(|w| number(w[0], "ts") + number(w[0], "dur") <= number(w[1], "ts") + 0.01));
    // The first convolution: filters of 3 x 3 over batches of 64 pictures.
    let conv = events.iter().find(|e| e["name"] == "conv").unwrap();
    let call = conv["args"]["call"].as_str().unwrap();
    assert!(call.contains("f32[64,1,8,8]"), "{call}");
    let filters: f64 = call.split("f32[").nth(2).unwrap().split(',').next().unwrap().parse().unwrap();
    assert_eq!(number(&conv["args"], "operations"), 2.0 * 64.0 * 8.0 * 8.0 * filters * 9.0);
    // Every step updates every parameter.
    let steps = events.iter().filter(|e| e["name"] == "adamw").count();
    assert!(steps > 0 && steps % 23 == 0, "{steps}");
}

#[test]
fn a_command_that_fails_is_told_and_what_it_did_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.json");
    let output = gradus()
        .args(["profile", "--out"])
        .arg(&trace)
        .args(["--", "predict", "--model", "no-such-model", "no-such-picture.png"])
        .output()
        .unwrap();
    let (_, err) = text(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(err.contains("no-such-model"), "{err}");
    assert!(trace.is_file());
    for wrong in [&["profile"][..], &["profile", "--"], &["profile", "--", "fly"]] {
        assert_eq!(gradus().args(wrong).output().unwrap().status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn gradus_log_prints_a_line_for_each_call() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("a.png"), folder.path().join("b.png"));
    let mut png = png::Encoder::new(std::fs::File::create(&from).unwrap(), 4, 4);
    png.set_color(png::ColorType::Grayscale);
    png.write_header().unwrap().write_image_data(&[7; 16]).unwrap();
    let mut command = gradus();
    command.args(["image", "invert"]).arg(&from).arg(&to);
    let quiet = command.output().unwrap();
    assert!(quiet.status.success() && quiet.stderr.is_empty(), "{}", text(&quiet).1);
    std::fs::remove_file(&to).unwrap();
    let (_, log) = text(&command.env("GRADUS_LOG", "op").output().unwrap());
    assert!(log.lines().count() > 1 && log.lines().all(|l| l.contains(" -> ") && l.contains('%')), "{log}");
}

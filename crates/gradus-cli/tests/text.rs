//! `gradus train text` and `gradus generate` from end to end.
#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::Stdio;

use gradus::models::{GenerateOptions, Sampling};
use gradus::prelude::*;
use gradus::tasks::{self, Model};
use support::{gradus, has_checkpoint, kill_after_a_state, last_json, snapshot, succeed, text};

const VERSE: &str = "pack my box with five jugs; é ";

/// Arguments of a small model, split at spaces.
const SMALL: &str = "train text text.txt --layers 1 --heads 2 --width 32 --context 32 --lr 0.01 --batch-size 8";

fn run(dir: &Path, line: &str) -> String {
    succeed(gradus().current_dir(dir).args(line.split(' ')))
}

/// Runs a command that fails with this exit code, changes no file, and says all of `says`.
#[track_caller]
fn fails(dir: &Path, line: &str, code: i32, says: &[&str]) {
    let before = snapshot(dir);
    let arguments = line.split(' ').map(|word| if word == "''" { "" } else { word });
    let output = gradus().current_dir(dir).args(arguments).output().unwrap();
    let (out, err) = text(&output);
    assert_eq!(output.status.code(), Some(code), "{line}\n{out}\n{err}");
    assert!(out.is_empty() && !err.contains("panicked"), "{line}\n{out}\n{err}");
    for word in says {
        assert!(err.contains(word), "{line}: no `{word}` in\n{err}");
    }
    assert!(snapshot(dir) == before, "{line} left or changed files");
}

#[test]
fn a_text_is_learned_and_written() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::write(dir.join("text.txt"), VERSE.repeat(60)).unwrap();
    for (tokenizer, limit) in [("chars", 0.2), ("bytes", 0.2), ("bpe:262", 0.4)] {
        let out = run(dir, &format!("{SMALL} --epochs 24 --json --out {tokenizer} --tokenizer {tokenizer}"));
        let json = last_json(&out);
        let loss = json["validation_loss"].as_f64().unwrap();
        assert!(loss < limit, "{tokenizer}: {loss}");
        assert!((json["perplexity"].as_f64().unwrap() - loss.exp()).abs() < 1e-9);
        // On the part that was held out, the model is as good as it was in training.
        let text = VERSE.repeat(60);
        fs::write(dir.join("rest.txt"), &text[text.floor_char_boundary(text.len() - text.len() / 10)..]).unwrap();
        let out = run(dir, &format!("evaluate --model {tokenizer}/model.safetensors rest.txt --json"));
        assert!((last_json(&out)["loss"].as_f64().unwrap() - loss).abs() < 1e-4, "{out} and {loss}");
        for metric in ["perplexity", "bits_per_byte"] {
            let relative = last_json(&out)[metric].as_f64().unwrap() / json[metric].as_f64().unwrap();
            assert!((relative - 1.0).abs() < 1e-4, "{metric}: {out}");
        }
        // A text that is shorter than the context is one section.
        fs::write(dir.join("rest.txt"), "box").unwrap();
        let out = run(dir, &format!("evaluate --model {tokenizer}/model.safetensors rest.txt --json"));
        assert_eq!(last_json(&out)["samples"], 1, "{out}");
        let names: Vec<_> =
            snapshot(&dir.join(tokenizer)).into_keys().map(|p| p.file_name().unwrap().to_owned()).collect();
        assert_eq!(names, ["config.toml", "metrics.csv", "model.safetensors", "report.html"]);
        let page = fs::read_to_string(dir.join(tokenizer).join("report.html")).unwrap();
        assert!(page.contains("how the model goes on") && page.contains("<blockquote>"));

        // A folder and its file are the same model, and greedy text does not depend on the seed.
        let greedy = "--prompt pack --max-new-tokens 45 --temperature 0";
        let written = run(dir, &format!("generate --model {tokenizer} {greedy} --seed 5"));
        let file = format!("generate --model {tokenizer}/model.safetensors {greedy} --seed 6");
        assert_eq!(run(dir, &file), written);
        assert!(written.starts_with(&VERSE.repeat(2)[..25]), "{tokenizer}: {written}");

        // The command and the library write the same.
        let device = Device::cpu().unwrap();
        let model = tasks::load(dir.join(tokenizer).join("model.safetensors"), &device).unwrap();
        assert_eq!(model.task(), "text");
        assert!(model.predict("text.txt").unwrap_err().to_string().contains("it writes text"));
        let Model::Text(mut model) = model else { panic!("no language model") };
        let options = GenerateOptions {
            max_new_tokens: 20,
            sampling: Sampling { temperature: 4.0, top_k: Some(9), top_p: 0.95, repetition_penalty: 1.1 },
            seed: 7,
            stop: vec![],
        };
        let pieces = model.write_on("box", options).unwrap().collect::<Result<Vec<String>>>().unwrap();
        let options = "--max-new-tokens 20 --temperature 4 --top-k 9 --top-p 0.95 --repetition-penalty 1.1 --seed 7";
        let line = format!("generate --model {tokenizer} --prompt box {options} --json");
        let out = run(dir, &line);
        assert_eq!(last_json(&out)["text"], pieces.concat());
        assert_eq!(out.lines().next().unwrap(), format!("box{}", pieces.concat()));
        assert_ne!(run(dir, &line.replace("--seed 7", "--seed 8")).lines().next(), out.lines().next());
    }
}

#[test]
fn text_appears_token_by_token_and_a_closed_pipe_ends_it() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::write(dir.join("text.txt"), VERSE.repeat(30)).unwrap();
    run(dir, &format!("{SMALL} --epochs 1 --out run"));
    // A run of a billion tokens prints its first ones at once, and ends when nobody reads any more.
    let line = "generate --model run --max-new-tokens 1000000000";
    let mut child = gradus().current_dir(dir).args(line.split(' ')).stdout(Stdio::piped()).spawn().unwrap();
    let mut first = [0; 40];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_stopped_run_goes_on_to_the_same_bits() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::write(dir.join("text.txt"), VERSE.repeat(30)).unwrap();
    let line = format!("{SMALL} --dropout 0.1 --epochs 40 --seed 4");
    run(dir, &format!("{line} --out whole"));
    // A run that is killed as soon as it has saved a state.
    let stopped = format!("{line} --out parts");
    kill_after_a_state(gradus().current_dir(dir).args(stopped.split(' ')), &dir.join("parts"));
    assert!(!dir.join("parts/model.safetensors").exists(), "the run ended before it was killed");
    // A text of the same characters and length is another text.
    fs::write(dir.join("text.txt"), VERSE.repeat(30).replacen("jugs", "gujs", 1)).unwrap();
    let resumed = gradus().current_dir(dir).args(format!("{line} --out parts --resume").split(' ')).output().unwrap();
    assert!(text(&resumed).1.contains("fingerprint of the data was"), "{resumed:?}");
    fs::write(dir.join("text.txt"), VERSE.repeat(30)).unwrap();
    // A run that replaces another one leaves none of its states.
    fs::create_dir_all(dir.join("forced/checkpoints")).unwrap();
    for entry in fs::read_dir(dir.join("parts/checkpoints")).unwrap().flatten() {
        fs::copy(entry.path(), dir.join("forced/checkpoints").join(entry.file_name())).unwrap();
    }
    assert!(has_checkpoint(&dir.join("forced")));
    run(dir, &format!("{SMALL} --epochs 1 --force --out forced"));
    assert!(!dir.join("forced/checkpoints").exists());
    let resumed = gradus().current_dir(dir).args(format!("{line} --out parts --resume").split(' ')).output().unwrap();
    assert!(resumed.status.success() && text(&resumed).1.contains("going on from step"), "{resumed:?}");
    let weights = |name: &str| fs::read(dir.join(name).join("model.safetensors")).unwrap();
    assert!(weights("whole") == weights("parts"));
    assert!(!dir.join("parts/checkpoints").exists());
}

#[test]
fn bad_texts_models_and_prompts() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::write(dir.join("empty.txt"), "").unwrap();
    fs::write(dir.join("latin.txt"), b"one\ntwo \xe9\n").unwrap();
    fs::write(dir.join("same.txt"), "a".repeat(5000)).unwrap();
    fs::write(dir.join("short.txt"), "a short text").unwrap();
    fs::write(dir.join("zoo.txt"), "zoo").unwrap();
    fs::write(dir.join("one.txt"), "p").unwrap();
    fs::write(dir.join("text.txt"), VERSE.repeat(30)).unwrap();
    for (line, says) in [
        ("train text empty.txt", &["the text is empty", "empty.txt"][..]),
        ("train text latin.txt", &["latin.txt: byte 8, in line 2, is not UTF-8"]),
        ("train text same.txt", &["the character 'a' only", "same.txt"]),
        ("train text short.txt", &["training has 11 tokens, and a context of 128", "short.txt"]),
        ("train text text.txt", &["the last tenth of the text, has 90 tokens, and a context of 128"]),
        ("train text none.txt", &["none.txt"]),
        ("train text .", &["a text file"]),
        ("train text text.txt --context 32 --heads 3", &["--heads 3 does not divide --width 128"]),
        ("generate --model text.txt", &["text.txt"]),
        ("generate --model none", &["none"]),
        ("generate --model .", &["model.safetensors"]),
    ] {
        fails(dir, line, 1, says);
    }
    for (line, says) in [
        ("train text", &["FILE"][..]),
        ("train text text.txt --layers 0", &["--layers", "from 1 to"]),
        ("train text text.txt --width -8", &["-8"]),
        ("train text text.txt --dropout -0.1", &["--dropout", "from 0 to 1"]),
        ("train text text.txt --dropout 1.5", &["--dropout", "from 0 to 1"]),
        ("train text text.txt --tokenizer words", &["words", "bpe:N"]),
        ("train text text.txt --tokenizer bpe:10", &["bpe:10", "from 257"]),
        ("generate", &["--model"]),
        ("generate --model run --temperature -1", &["--temperature", "from 0 to"]),
        ("generate --model run --temperature nan", &["--temperature", "from 0 to"]),
        ("generate --model run --top-k 0", &["--top-k", "from 1 to"]),
        ("generate --model run --top-p 0", &["--top-p", "above 0"]),
        ("generate --model run --top-p -0.5", &["--top-p", "above 0"]),
        ("generate --model run --repetition-penalty -1", &["--repetition-penalty", "above 0"]),
        ("generate --model run --max-new-tokens -5", &["-5"]),
        ("generate --model run --seed -1", &["-1"]),
    ] {
        fails(dir, line, 2, says);
    }
    run(dir, &format!("{SMALL} --epochs 1 --out run"));
    run(dir, "train digits --epochs 1 --out digits");
    let long = "p".repeat(33);
    for (line, says) in [
        ("generate --model run --prompt zoo", &["byte 0: 'z' is none of the", "in the prompt"][..]),
        ("generate --model run --prompt ''", &["the prompt is empty"]),
        (&format!("generate --model run --prompt {long}"), &["the prompt has 33 tokens; the model sees 32 at once"]),
        ("generate --model digits --prompt 1", &["digits", "a model of the task digits", "`gradus train text`"]),
        ("predict --model run text.txt", &["\"text\"", "`gradus generate`"]),
        (
            "evaluate --model run/model.safetensors zoo.txt",
            &["byte 0: 'z' is none of the", "in the text to evaluate on"],
        ),
        ("evaluate --model run/model.safetensors one.txt", &["the text has 1 tokens"]),
        ("evaluate --model run/model.safetensors empty.txt", &["the text has 0 tokens"]),
    ] {
        fails(dir, line, 1, says);
    }
    // Metadata and weights that do not fit together.
    let path = dir.join("run/model.safetensors");
    let device = Device::cpu().unwrap();
    let state = StateDict::load_safetensors(&path, &device).unwrap();
    let spec = state.metadata("gradus.task").unwrap().to_owned();
    for (from, to, says) in [
        ("\"layers\":1", "\"layers\":999999999", "the weights are not those of 999999999 layers"),
        ("\"width\":32", "\"width\":4000000000", "a width of 4000000000"),
        ("\"context\":32", "\"context\":64", "a context of 64"),
        ("\"heads\":2", "\"heads\":0", "n_head is 0"),
        ("\"kind\":\"characters\"", "\"kind\":\"runes\"", "runes"),
        ("\"characters\":\"", "\"characters\":\"Ω", "tokens"),
    ] {
        assert!(spec.contains(from), "{spec}");
        let mut changed = state.clone();
        changed.set_metadata("gradus.task", spec.replacen(from, to, 1));
        changed.save_safetensors(dir.join("changed.safetensors")).unwrap();
        fails(dir, "generate --model changed.safetensors --prompt pack", 1, &[says, "changed.safetensors"]);
    }
}

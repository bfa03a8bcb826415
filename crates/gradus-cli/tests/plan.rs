//! `gradus plan`, with measurements written here. `cargo xtask dist` runs it after `gradus bench`.
#![cfg(all(feature = "mpi", unix))]
#![allow(clippy::unwrap_used)]

mod support;

use std::path::Path;

use serde_json::{Value, json};
use support::{gradus, last_json, succeed, text};

/// Measurements of 1 and of 2 ranks: 10 GFLOP/s, and calls that take 1 ms and 1 ns a byte.
fn measured() -> Value {
    let line = json!({ "latency": 1e-3, "per_byte": 1e-9 });
    let machine = |ranks: usize| {
        json!({
            "ranks": ranks, "device": "cpu", "threads": 1,
            "block": 0.0, "per_flop": 1e-10, "per_element": 0.0, "per_byte": 0.0,
            "calls": if ranks == 1 { Value::Null } else {
                json!({ "all_reduce": line, "reduce_scatter": line, "all_gather": line, "send": line })
            },
        })
    };
    json!({ "machines": [machine(1), machine(2)] })
}

fn plan(dir: &Path, words: &str) -> std::process::Command {
    let mut command = gradus();
    command.current_dir(dir).arg("plan").args(words.split(' '));
    command
}

#[test]
fn the_fastest_plan_that_fits_comes_first() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("gradus-bench.json"), measured().to_string()).unwrap();
    let of = |memory: &str| {
        let words = format!("--model gpt2-124m --gpus 2 --memory {memory} --batch 16 --json");
        last_json(&succeed(&mut plan(dir.path(), &words)))["plans"].as_array().unwrap().clone()
    };
    let wide = of("64GiB");
    let first = &wide[0];
    assert_eq!((&first["data"], &first["tensor"], &first["pipeline"]), (&json!(2), &json!(1), &json!(1)));
    assert_eq!(first["measured"], json!(true));
    // A block has 7,087,872 parameters and 12 * 768 * 768 + 2 * 1024 * 768 products for each token; there are 12 blocks,
    // and a table of 50,257 tokens. Each rank computes 8 sequences, forward and backward, at 10 GFLOP/s.
    let products = 1024.0 * (12.0 * (12.0 * 768.0 * 768.0 + 2.0 * 1024.0 * 768.0) + 50257.0 * 768.0);
    let passes = first["seconds"]["passes"].as_f64().unwrap();
    assert!((passes / (6.0 * 8.0 * products * 1e-10) - 1.0).abs() < 1e-9, "{passes}");
    // All parameters are summed once, or once summed and once gathered.
    let calls = first["seconds"]["calls"].as_f64().unwrap();
    let once = 1e-3 + 124_439_808.0 * 4.0 * 1e-9;
    assert!((calls / once - 1.0).abs() < 1e-9 || (calls / (2.0 * once) - 1.0).abs() < 1e-9, "{calls}");
    let sent = wide.iter().find(|plan| plan["data"] == 2 && plan["zero"] == 0).unwrap();
    assert_eq!(sent["bytes_sent"], json!(124_439_808.0 * 4.0));
    // With less memory, the plans that need more do not come first.
    let least = wide.iter().map(|plan| plan["memory_bytes"]["all"].as_f64().unwrap()).fold(f64::MAX, f64::min);
    let narrow = of(&format!("{}", least as usize + 1));
    assert!(narrow[0]["fits"] == true && narrow[1]["fits"] == false);
    assert_eq!(narrow[0]["memory_bytes"]["all"].as_f64().unwrap(), least);
}

#[test]
fn other_numbers_of_ranks_are_marked() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("gradus-bench.json"), measured().to_string()).unwrap();
    let said = succeed(&mut plan(dir.path(), "--model gpt2-355m --gpus 8 --memory 64GiB"));
    assert!(said.contains("extrapolated") && said.contains("gpt2-355m: 354,823,168 parameters, 24 blocks"), "{said}");
    let said = succeed(&mut plan(dir.path(), "--model gpt2-355m --gpus 2 --memory 64GiB"));
    assert!(!said.contains("extrapolated"), "{said}");
}

#[test]
fn divided_parameters_make_ranks_wait_for_each_other() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("gradus-bench.json"), measured().to_string()).unwrap();
    let words = "--model gpt2-124m --gpus 4 --memory 64GiB --batch 4 --json";
    let plans = last_json(&succeed(&mut plan(dir.path(), words)))["plans"].as_array().unwrap().clone();
    let passes = |zero: u8| {
        let found = plans.iter().find(|plan| plan["data"] == 4 && plan["zero"] == json!(zero)).unwrap();
        found["seconds"]["passes"].as_f64().unwrap()
    };
    // Of 16 parts of the batch 4 have a sequence. Each rank has one, and they are computed one after the other.
    assert!((passes(3) / passes(0) - 4.0).abs() < 1e-9, "{} and {}", passes(3), passes(0));
    // Pipelines divide the state of the optimiser at most.
    assert!(plans.iter().all(|plan| (plan["pipeline"] == 1) == (plan["zero"] != 1) || plan["zero"] == 0));
    let state = |zero: u8| {
        let found = plans.iter().find(|plan| plan["pipeline"] == 2 && plan["data"] == 2 && plan["zero"] == json!(zero));
        found.unwrap()["memory_bytes"]["optimizer"].as_f64().unwrap()
    };
    assert_eq!(state(0), 2.0 * state(1));
}

#[test]
fn a_saved_model_is_trained_again_with_its_sizes() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("gradus-bench.json"), measured().to_string()).unwrap();
    std::fs::write(dir.path().join("story.txt"), "pack my box with five dozen liquor jugs. ".repeat(50)).unwrap();
    let train =
        "train text story.txt --tokenizer bytes --layers 1 --heads 2 --width 32 --context 32 --epochs 1 --out m";
    succeed(gradus().current_dir(dir.path()).args(train.split(' ')));
    let said = succeed(&mut plan(dir.path(), "--model m --gpus 2 --memory 64GiB --batch 8"));
    let next = said.split("next    ").nth(1).unwrap();
    let options = "--layers 1 --heads 2 --width 32 --context 32 --tokenizer bytes --batch-size 8";
    let command = format!("gradus launch -n 2 -- train text FILE {options}");
    assert_eq!(next.lines().next(), Some(&*command), "{said}");
    let named = succeed(&mut plan(dir.path(), "--model gpt2-124m --gpus 2 --memory 64GiB"));
    assert!(named.contains("DataParallel::with_shards(") && !named.contains("train text"), "{named}");
}

#[test]
fn what_cannot_be_planned_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let fail = |words: &str, said: &[&str]| {
        let (out, err) = text(&plan(dir.path(), words).output().unwrap());
        said.iter().for_each(|said| assert!(err.contains(said), "{words}: {out}{err}"));
    };
    let small = "--model gpt2-124m --gpus 2 --memory 16GiB";
    fail(small, &["gradus-bench.json", "measure first: gradus launch -n 4 -- bench"]);
    let file = dir.path().join("gradus-bench.json");
    let line = measured();
    let mut negative = line.clone();
    negative["machines"][0]["per_flop"] = json!(-1.0);
    let mut without = line.clone();
    without["machines"][1]["calls"] = Value::Null;
    for damaged in ["", "{", "[]", r#"{"machines": []}"#, &negative.to_string(), &without.to_string()] {
        std::fs::write(&file, damaged).unwrap();
        fail(small, &["gradus-bench.json", "measure again"]);
    }
    let mut alone = line.clone();
    alone["machines"].as_array_mut().unwrap().truncate(1);
    std::fs::write(&file, alone.to_string()).unwrap();
    fail(small, &["gradus launch -n 2 -- bench"]);
    std::fs::write(&file, line.to_string()).unwrap();
    fail("--model gpt9 --gpus 2 --memory 16GiB", &["there is no model `gpt9`", "gpt2-124m"]);
    fail("--model gpt2-124m --gpus 2 --memory 1GiB", &["a step needs at least", "take more ranks"]);
    fail("--model gpt2-124m --gpus 0 --memory 1GiB", &["from 1 to 65536"]);
    // 13 ranks: neither heads nor sequences divide so, but blocks do not suffice for stages.
    fail("--model gpt2-124m --gpus 13 --batch 1 --memory 16GiB", &["13 ranks"]);
}

#[test]
fn bench_needs_a_launcher() {
    let (out, err) = text(&gradus().args(["bench"]).output().unwrap());
    assert!(out.is_empty() && err.contains("gradus launch -n 4 -- bench"), "{out}{err}");
}

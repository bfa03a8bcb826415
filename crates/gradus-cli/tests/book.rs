//! The commands on the page about training without code, run in order in one folder.
#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::path::Path;

use gradus::image::{SaveOptions, save};
use gradus::prelude::*;
use support::{gradus, succeed};

/// What keeps a run short in a test, where the line does not choose it.
const SHORT: [(&str, &str, &str); 5] = [
    ("train", "--epochs", "2"),
    ("train text", "--layers", "1"),
    ("train text", "--width", "16"),
    ("train text", "--context", "16"),
    ("generate", "--temperature", "1"),
];

/// The contents of the fences of a language.
fn fences<'p>(page: &'p str, language: &str) -> Vec<&'p str> {
    let fence = format!("```{language}\n");
    page.split(&fence).skip(1).map(|rest| rest.split("\n```").next().unwrap()).collect()
}

/// The words of a line, of which those in quotes may have spaces.
fn words(line: &str) -> Vec<String> {
    let part = |(i, part): (usize, &str)| -> Vec<String> {
        if i % 2 == 1 { vec![part.to_owned()] } else { part.split_whitespace().map(str::to_owned).collect() }
    };
    line.split('"').enumerate().flat_map(part).collect()
}

#[test]
fn the_commands_of_the_page_run() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = fs::read_to_string(root.join("docs/book/src/training-without-code.md")).unwrap();
    let data = root.join("crates/gradus-data/tests/data");
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let penguins = fs::read_to_string(data.join("penguins.csv")).unwrap();
    fs::write(dir.join("penguins.csv"), &penguins).unwrap();
    // Without the species, the first column.
    let new: String = penguins.lines().take(5).map(|line| format!("{}\n", line.split_once(',').unwrap().1)).collect();
    fs::write(dir.join("new.csv"), new).unwrap();
    let story = fs::read_to_string(data.join("kjv.txt")).unwrap();
    fs::write(dir.join("story.txt"), story.chars().take(4000).collect::<String>()).unwrap();
    let device = Device::cpu().unwrap();
    for number in 0..10 {
        let picture = Tensor::full([3, 12, 12], number * 20, DType::U8, &device).unwrap();
        let name = if number < 5 { format!("photos/dark/{number}.png") } else { format!("photos/light/{number}.jpg") };
        for name in [name, format!("new-pictures/{number}.png")] {
            fs::create_dir_all(dir.join(&name).parent().unwrap()).unwrap();
            save(dir.join(name), &picture, SaveOptions::default()).unwrap();
        }
    }
    for file in fences(&page, "toml") {
        let name = file.lines().next().unwrap().strip_prefix("# ").unwrap();
        fs::write(dir.join(name), file).unwrap();
    }

    let mut commands = 0;
    for line in fences(&page, "sh").into_iter().flat_map(str::lines) {
        let line = line.strip_prefix("gradus ").unwrap_or_else(|| panic!("`{line}` is no command of gradus"));
        let mut command = gradus();
        command.current_dir(dir).args(words(line));
        for (of, option, value) in SHORT {
            if line.starts_with(of) && !line.contains(option) {
                command.args([option, value]);
            }
        }
        succeed(&mut command);
        commands += 1;
    }
    assert!(commands >= 10, "{commands} commands");
    let there = [
        "predictions.csv",
        "out/penguins/report.html",
        "out/photos/report.html",
        "out/story/model.safetensors",
        "long-run",
        "reader/src/main.rs",
    ];
    for file in there {
        assert!(dir.join(file).exists(), "{file}");
    }
}

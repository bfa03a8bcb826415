//! What the README says of the command holds: each command and option in it exists.
#![allow(clippy::unwrap_used)]

mod support;

use support::{gradus, succeed};

#[test]
fn the_commands_of_the_readme_and_their_options_exist() {
    let readme = include_str!("../../../README.md");
    let section = readme.split("## The command").nth(1).unwrap();
    let lines: Vec<&str> = section.lines().filter(|line| line.starts_with("gradus ")).collect();
    assert!(lines.len() >= 9, "{lines:?}");
    for line in lines {
        // The filters of a chain have options of their own, and `+` begins the next.
        let words: Vec<&str> = line.split_whitespace().skip(1).take_while(|word| *word != "+").collect();
        let is_nested = matches!(words[0], "train" | "image");
        let path = &words[..if is_nested { 2 } else { 1 }];
        let help = succeed(gradus().args(path).arg("--help"));
        for option in words.iter().map(|word| word.trim_matches(['[', ']'])).filter(|word| word.starts_with("--")) {
            assert!(help.contains(&format!("{option} ")) || help.contains(&format!("{option}\n")), "{line}: {option}");
        }
    }
}

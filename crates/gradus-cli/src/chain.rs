//! Chains of filters, joined by `+` on the command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use crate::args::{Args, Command};
use crate::filters::{Files, Filter};

/// A chain of filters from one file to another.
#[derive(Debug)]
pub(crate) struct Chain {
    pub(crate) filters: Vec<Filter>,
    pub(crate) input: PathBuf,
    pub(crate) output: PathBuf,
    pub(crate) files: Files,
}

/// The error for a command line that is not a chain.
fn wrong(message: String) -> clap::Error {
    let mut command = Args::command();
    // Builds the command, so that the usage line of the subcommand includes the name of the program.
    command.build();
    match command.find_subcommand_mut("image") {
        Some(image) => image.error(ErrorKind::ValueValidation, message),
        None => command.error(ErrorKind::ValueValidation, message),
    }
}

/// Parses the words after `gradus image`, in which the word `+` separates filters.
pub(crate) fn parse(words: &[OsString]) -> Result<Chain, clap::Error> {
    let steps: Vec<&[OsString]> = words.split(|word| word == "+").collect();
    let mut filters = Vec::new();
    for step in &steps {
        if step.is_empty() && steps.len() > 1 {
            return Err(wrong("a filter is missing beside `+`: write `FILTER + FILTER IN OUT`".into()));
        }
        let prefix = [OsString::from("gradus"), OsString::from("image")];
        match Args::try_parse_from(prefix.iter().chain(*step))?.command {
            Command::Image { filter } => filters.push(filter),
            _ => return Err(wrong("this is no filter".into())),
        }
    }
    chain(filters)
}

/// Combines the filters into a chain. The last filter names the files, and the other filters must not.
pub(crate) fn chain(filters: Vec<Filter>) -> Result<Chain, clap::Error> {
    let Some((last, others)) = filters.split_last() else { return Err(wrong("there is no filter".into())) };
    if let Some(early) = others.iter().map(Filter::files).find(|files| **files != Files::default()) {
        let what = early.given();
        return Err(wrong(format!("{what} comes before the last filter; pictures and their options come last")));
    }
    let files = last.files().clone();
    match &files.pictures[..] {
        [input, output] => Ok(Chain { input: input.clone(), output: output.clone(), files, filters }),
        given => {
            let given = given.iter().map(|p| format!("'{}'", p.display())).collect::<Vec<_>>().join(" ");
            let given = if given.is_empty() { "none".to_owned() } else { given };
            Err(wrong(format!("two pictures come after the last filter, IN and OUT; given: {given}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Chain, String> {
        let words: Vec<OsString> = line.split(' ').filter(|w| !w.is_empty()).map(OsString::from).collect();
        parse(&words).map_err(|e| e.to_string())
    }

    #[test]
    fn chains_are_taken_apart() {
        let chain = parsed("blur --sigma 2 + grayscale + resize --width 100 in.png out.png --force").unwrap();
        assert!(matches!(
            chain.filters[..],
            [
                Filter::Blur { sigma: 2.0, .. },
                Filter::Grayscale { keep_channels: false, .. },
                Filter::Resize { width: Some(100), height: None, .. }
            ]
        ));
        assert!(chain.files.force && chain.input.ends_with("in.png") && chain.output.ends_with("out.png"));
        assert_eq!(parsed("invert --json a b").unwrap().filters.len(), 1);
        // A word that merely contains a `+` does not join filters.
        assert_eq!(parsed("invert a+b ./+").unwrap().output, PathBuf::from("./+"));
    }

    #[test]
    fn chains_that_make_no_sense_are_refused() {
        for (line, says) in [
            ("invert", "given: none"),
            ("invert a", "given: 'a'"),
            ("invert a b c", "given: 'a' 'b' 'c'"),
            ("invert a b + grayscale c d", "'a' comes before the last filter"),
            ("invert --force + grayscale c d", "--force comes before the last filter"),
            ("invert --quality 3 + grayscale c d", "--quality comes before"),
            ("+ invert a b", "missing beside `+`"),
            ("invert + + invert a b", "missing beside `+`"),
            ("invert a b +", "missing beside `+`"),
            ("invert + a b", "unrecognized subcommand 'a'"),
        ] {
            let e = parsed(line).unwrap_err();
            assert!(e.contains(says), "{line}: no `{says}` in\n{e}");
        }
    }
}

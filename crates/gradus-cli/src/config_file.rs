//! `--config FILE.toml`: options of `gradus train` from a file. Its keys are the long names of the options. The
//! `config.toml` that a run writes is such a file.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Read;
use std::path::Path;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, Command, CommandFactory};
use gradus::{Error, ErrorKind, Result};
use toml::{Table, Value};

use crate::args::Args;

/// The key of a `config.toml` with the version that wrote it, and the tables that describe a run. They are no options.
const VERSION: &str = "gradus";
const DESCRIPTIONS: [&str; 2] = ["network", "result"];

/// The key that holds the command for which the file was written.
const COMMAND: &str = "command";

/// The largest size of a file, in bytes.
const MOST_BYTES: u64 = 1 << 20;

/// The words of a command line, which come after the name of the program. If they are a `train` with `--config`, the
/// options of that file are added, except those that the words give already.
pub(crate) fn with_options(words: &[OsString]) -> Result<Vec<OsString>> {
    let unchanged = Ok(words.to_vec());
    let [train, task, rest @ ..] = words else { return unchanged };
    let mut all = Args::command();
    all.build();
    let command = all.find_subcommand(train).filter(|_| train == "train").and_then(|c| c.find_subcommand(task));
    let Some(command) = command else { return unchanged };
    let Some(path) = named_file(rest) else { return unchanged };
    let lenient = command.clone().mut_args(|arg| arg.required(false));
    let given = lenient.clone().ignore_errors(true).try_get_matches_from(std::iter::once(task).chain(rest));
    let Ok(given) = given else { return unchanged };
    let is_given = |arg: &Arg| given.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);

    let path = Path::new(path);
    let text = read(path)?;
    let keys = parsed(path, &text)?;
    let file = File { path, text: &text, command: &lenient };
    let mut added = Vec::new();
    for (key, value) in &keys {
        if key == COMMAND {
            file.check_command(value, task)?;
        } else if DESCRIPTIONS.contains(&key.as_str()) {
            file.check_description(key, value)?;
        } else if key != VERSION {
            let arg = file.option(key)?;
            let words = file.words(arg, key, value)?;
            file.check(key, &words)?;
            if !is_given(arg) {
                added.extend(words);
            }
        }
    }
    Ok([train, task].into_iter().cloned().chain(added).chain(rest.iter().cloned()).collect())
}

/// The file that `--config` names.
fn named_file(words: &[OsString]) -> Option<&OsStr> {
    let mut words = words.iter().take_while(|word| *word != "--");
    while let Some(word) = words.next() {
        if word == "--config" {
            return words.next().map(OsString::as_os_str);
        }
        if let Some(path) = word.to_str().and_then(|word| word.strip_prefix("--config=")) {
            return Some(OsStr::new(path));
        }
    }
    None
}

fn read(path: &Path) -> Result<String> {
    let failed = |e| Error::io("config", path.display(), e).help("give a TOML file, such as the config.toml of a run");
    let wrong = |what: String| {
        let m = format!("{} {what}", path.display());
        Err(Error::new(ErrorKind::Format, "config", m).help("is it the file that you meant?"))
    };
    if !fs::metadata(path).map_err(failed)?.is_file() {
        return wrong("is no file".into());
    }
    let mut text = String::new();
    let read = fs::File::open(path).and_then(|file| file.take(MOST_BYTES + 1).read_to_string(&mut text));
    if read.map_err(failed)? as u64 > MOST_BYTES {
        return wrong(format!("is larger than {MOST_BYTES} bytes"));
    }
    Ok(text)
}

fn parsed(path: &Path, text: &str) -> Result<Table> {
    text.parse().map_err(|e: toml::de::Error| {
        let line = e.span().map_or(0, |span| 1 + text[..span.start.min(text.len())].matches('\n').count());
        let m = format!("{}: line {line}: {}", path.display(), e.message().trim());
        Error::new(ErrorKind::Format, "config", m).help("write one `key = value` a line, as TOML").with_source(e)
    })
}

/// A file of options for a command.
struct File<'a> {
    path: &'a Path,
    text: &'a str,
    /// The command, with no option required.
    command: &'a Command,
}

impl File<'_> {
    fn fails(&self, key: &str, what: &str) -> Error {
        self.fails_below(0, key, what)
    }

    /// The error for a key that stands below a number of lines.
    fn fails_below(&self, lines: usize, key: &str, what: &str) -> Error {
        let begins = |line: &str| {
            let rest = line.trim_start().trim_start_matches(['"', '\'', '[']).strip_prefix(key);
            rest.is_some_and(|rest| rest.starts_with(['=', ' ', '\t', '"', '\'', ']', '.']))
        };
        let line = self.text.lines().skip(lines).position(begins).map_or(0, |at| lines + at + 1);
        Error::new(ErrorKind::Format, "config", format!("{}: line {line}: {what}", self.path.display()))
    }

    fn check_command(&self, value: &Value, task: &OsStr) -> Result<()> {
        let now = format!("train {}", task.to_string_lossy());
        if value.as_str() == Some(&now) {
            return Ok(());
        }
        let e = self.fails(COMMAND, &format!("the file is for the command {value}, and this is \"{now}\""));
        Err(e.help("give a file of the same command, or remove this line"))
    }

    /// Errors if a table that describes a run has a key that no run writes: an option there would have no effect.
    fn check_description(&self, table: &str, value: &Value) -> Result<()> {
        let Some(keys) = value.as_table() else {
            return Err(self.fails(table, &format!("there is no option `{table}`")).help("remove this line"));
        };
        let Some(key) = keys.keys().find(|key| !crate::commands::train::describes(table, key)) else {
            return Ok(());
        };
        let head = format!("[{table}]");
        let lines = self.text.lines().position(|line| line.trim() == head).unwrap_or(0);
        let e = self.fails_below(lines, key, &format!("`{key}` is in the table [{table}], which holds no options"));
        Err(e.help(format!("move `{key}` above [network] and [result] if it is an option, or remove it")))
    }

    /// The options that a file may set.
    fn options(&self) -> impl Iterator<Item = (&str, &Arg)> {
        let name = |arg: &'_ Arg| matches!(arg.get_id().as_str(), "config" | "help" | "version");
        self.command.get_arguments().filter(move |arg| !name(arg)).map(|arg| {
            let long = if arg.is_positional() { Some(arg.get_id().as_str()) } else { arg.get_long() };
            (long.unwrap_or_default(), arg)
        })
    }

    /// The option whose long name is `key`, or the positional argument of that name.
    fn option(&self, key: &str) -> Result<&Arg> {
        if let Some((_, arg)) = self.options().find(|(name, _)| *name == key) {
            return Ok(arg);
        }
        let e = self.fails(key, &format!("there is no option `{key}`"));
        let nearest = self.options().map(|(name, _)| (distance(name, key), name)).min();
        Err(match nearest {
            Some((far, name)) if far <= 1 + name.len() / 3 => e.help(format!("did you mean `{name}`?")),
            _ => {
                let names: Vec<&str> = self.options().map(|(name, _)| name).collect();
                e.help(format!("the keys are the long names of the options: {}", names.join(", ")))
            }
        })
    }

    /// The value of an option as words of a command line.
    fn words(&self, arg: &Arg, key: &str, value: &Value) -> Result<Vec<OsString>> {
        let is_flag = matches!(arg.get_action(), ArgAction::SetTrue);
        let is_list = matches!(arg.get_action(), ArgAction::Append);
        let word = |value: &Value| {
            let text = match value {
                Value::String(text) => text.clone(),
                Value::Integer(number) => number.to_string(),
                Value::Float(number) => number.to_string(),
                _ => return Err(self.fails(key, &format!("`{key}` is {}", value.type_str())).help("give a value")),
            };
            Ok(OsString::from(if arg.is_positional() { text } else { format!("--{key}={text}") }))
        };
        match value {
            Value::Boolean(on) if is_flag => Ok(on.then(|| format!("--{key}").into()).into_iter().collect()),
            _ if is_flag => Err(self.fails(key, &format!("`{key}` is {value}")).help("give true or false")),
            Value::Array(all) if is_list => all.iter().map(word).collect(),
            one => Ok(vec![word(one)?]),
        }
    }

    /// Errors if the command does not accept the value of an option.
    fn check(&self, key: &str, words: &[OsString]) -> Result<()> {
        let name = OsString::from(self.command.get_name());
        let parsed = self.command.clone().try_get_matches_from(std::iter::once(&name).chain(words));
        parsed.map(drop).map_err(|e| {
            let first = e.to_string();
            let first = first.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned();
            self.fails(key, &first)
        })
    }
}

/// The edit distance (Levenshtein): the number of characters to insert, remove or replace.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_those_of_levenshtein() {
        for (a, b, want) in
            [("", "", 0), ("", "abc", 3), ("kitten", "sitting", 3), ("lr", "rl", 2), ("epoch", "epochs", 1)]
        {
            assert_eq!((distance(a, b), distance(b, a)), (want, want), "{a} {b}");
        }
    }

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn options_of_a_file_come_before_those_of_the_command_line_and_give_way_to_them() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.toml");
        fs::write(
            &path,
            "command = \"train digits\"\nepochs = 3\nlr = 0.5\njson = true\nforce = false\n[result]\ntest_loss = 1\n",
        )
        .unwrap();
        let line = format!("train digits --lr 0.25 --config {}", path.display());
        let got = with_options(&words(&line)).unwrap();
        let want = format!("train digits --epochs=3 --json --lr 0.25 --config {}", path.display());
        assert_eq!(got, words(&want));
        assert_eq!(with_options(&words("train digits --lr 1")).unwrap(), words("train digits --lr 1"));
        assert_eq!(with_options(&words("predict --config x")).unwrap(), words("predict --config x"));
    }

    #[test]
    fn what_a_file_gets_wrong_is_named_with_its_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.toml");
        for (text, says) in [
            ("seed = 1\nepoch = 3\n", &["line 2", "`epoch`", "did you mean `epochs`?"][..]),
            ("zzzzzzzzzzzzzzzz = 3\n", &["line 1", "batch-size"]),
            ("epochs = 0\n", &["line 1", "'0'", "--epochs"]),
            ("epochs = true\n", &["line 1", "boolean"]),
            ("json = 1\n", &["line 1", "true or false"]),
            ("\nepochs = = 3\n", &["line 2"]),
            ("command = \"train images\"\n", &["line 1", "train images", "train digits"]),
            ("config = \"b.toml\"\n", &["line 1", "no option `config`"]),
            (
                "epochs = 3\n[network]\nclasses = 2\n[result]\ncv_r2_std = 1\nepochs = 50\n",
                &["line 6", "move `epochs`"],
            ),
            ("[network]\nepoch = 50\n", &["line 2", "`epoch`", "[network]"]),
            ("network = 1\n", &["line 1", "`network`"]),
            ("[options]\nx = 1\n", &["line 1", "no option `options`"]),
        ] {
            fs::write(&path, text).unwrap();
            let e = with_options(&words(&format!("train digits --config={}", path.display()))).unwrap_err().to_string();
            assert!(says.iter().all(|say| e.contains(say)) && e.contains("a.toml"), "{text}: {e}");
        }
        fs::write(&path, [0xff, 0xfe]).unwrap();
        assert!(with_options(&words(&format!("train digits --config={}", path.display()))).is_err());
        assert!(with_options(&words("train digits --config /none/a.toml")).is_err());
    }
}

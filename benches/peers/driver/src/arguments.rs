//! Parses the command line.

use std::path::PathBuf;

use crate::peers::{NAMES, OURS};

const OF_PEERS: &str = "\
usage: cargo xtask peers [options]

  --only JOB        only jobs whose name contains this; may be repeated
  --classes        the classes of shapes of benches/peers/classes.txt, not the jobs
  --peers A,B       only these peers besides gradus: torch, torch.compile, jax, burn, candle, numr, rumus
  --quick           one round of 0.2 s a job: to see that all works, not for numbers
  --rounds N        turns of each peer (3)
  --seconds S       how long each peer runs a job, all rounds together (1.5)
  --patience S      how much longer the run may take to wait for others to leave the machine alone (300)
  --venv PATH       a Python environment with torch, jax and numpy, not target/peers-venv; or set GRADUS_PEERS_VENV
  --write           puts the table into docs/performance.md; for a run of all jobs on a machine that is otherwise idle
  --make-reference  runs nothing but PyTorch in f64 and writes benches/peers/reference.json, which results are compared
                    with";

const OF_BENCH: &str = "\
usage: cargo xtask bench [options]

  --check           fails if any job loses more than 10 % against the baseline
  --growth          instead, whether the cost of this build's jobs grows as their work does; with at most one --only
  --baseline REV    the revision of git to compare with, not the newest tag v* in the history; HEAD shows the noise
  --only JOB        only jobs whose name contains this; may be repeated
  --quick           one round of 0.2 s a job: to see that all works, not for numbers
  --rounds N        turns of each build (5); a job that seems lost, or is disturbed, gets three times as many
  --seconds S       how long each build runs a job, all rounds together (2)
  --patience S      how much longer the run may take to wait for others to leave the machine alone (300)";

#[derive(Debug, Clone, PartialEq)]
pub struct Arguments {
    /// Whether to run `bench`, where an earlier build is the only peer.
    pub bench: bool,
    pub check: bool,
    /// Whether to measure pairs of growing jobs instead of another build.
    pub growth: bool,
    pub baseline: Option<String>,
    /// Whether to run the classes instead of the jobs.
    pub classes: bool,
    only: Vec<String>,
    peers: Option<Vec<String>>,
    pub rounds: usize,
    pub seconds: f64,
    pub patience: f64,
    pub venv: Option<PathBuf>,
    pub write: bool,
    pub make_reference: bool,
    pub help: bool,
}

impl Arguments {
    /// Parses `peers` or `bench` and their options. `venv` is the environment to use unless an option names another.
    pub fn read(mut words: impl Iterator<Item = String>, venv: Option<PathBuf>) -> Result<Arguments, String> {
        let (bench, rounds, seconds) = match words.next().as_deref() {
            Some("peers") => (false, 3, 1.5),
            Some("bench") => (true, 5, 2.0),
            _ => return Err("the first word is `peers` or `bench`".into()),
        };
        let mut read = Arguments {
            bench,
            check: false,
            growth: false,
            baseline: None,
            classes: false,
            only: Vec::new(),
            peers: None,
            rounds,
            seconds,
            patience: 300.0,
            venv,
            write: false,
            make_reference: false,
            help: false,
        };
        while let Some(word) = words.next() {
            let usage = read.usage();
            let mut value = || words.next().ok_or(format!("{word} needs a value\n\n{usage}"));
            match word.as_str() {
                "--only" => read.only.push(value()?),
                "--classes" if !bench => read.classes = true,
                "--check" if bench => read.check = true,
                "--growth" if bench => read.growth = true,
                "--baseline" if bench => read.baseline = Some(value()?),
                "--peers" if !bench => read.peers = Some(peers(&value()?)?),
                "--quick" => (read.rounds, read.seconds, read.patience) = (1, 0.2, 0.0),
                "--rounds" => read.rounds = number(&value()?, usage)?,
                "--seconds" => read.seconds = number(&value()?, usage)?,
                "--patience" => read.patience = number(&value()?, usage)?,
                "--venv" if !bench => read.venv = Some(value()?.into()),
                "--write" if !bench => read.write = true,
                "--make-reference" if !bench => read.make_reference = true,
                "--help" | "-h" => read.help = true,
                _ => return Err(format!("`{word}` is no option\n\n{usage}")),
            }
        }
        if !((1..1_000_000).contains(&read.rounds) && read.seconds > 0.0 && read.seconds < 1e6) {
            return Err("there is at least one round, and time above 0, and less than a million of either".into());
        }
        if !(0.0..1e9).contains(&read.patience) {
            return Err("patience is a number of seconds from 0 on".into());
        }
        let as_given = read.rounds == rounds && read.seconds == seconds && read.patience == 300.0;
        if read.growth && (read.only.len() > 1 || read.check || read.baseline.is_some() || !as_given) {
            return Err("--growth compares no builds, in rounds of its own: it takes at most one --only".into());
        }
        if read.write && !read.is_full() {
            return Err(
                "docs/performance.md shows all jobs and peers, in three rounds and 1.5 s or more: --write goes \
                without --only, --peers, --classes and --quick"
                    .into(),
            );
        }
        Ok(read)
    }

    pub fn usage(&self) -> &'static str {
        if self.bench { OF_BENCH } else { OF_PEERS }
    }

    /// The text that the names of the growing pairs must contain.
    pub fn part(&self) -> &str {
        self.only.first().map_or("", String::as_str)
    }

    /// Whether this is a full run: all peers, all jobs, and at least the default rounds and seconds of `peers`.
    pub fn is_full(&self) -> bool {
        !self.classes && self.only.is_empty() && self.peers.is_none() && self.rounds >= 3 && self.seconds >= 1.5
    }

    /// The name of the file that a run writes. A partial run does not overwrite the file of a full run.
    pub fn file(&self, name: &str, ending: &str) -> String {
        if self.classes {
            format!("{name}-classes.{ending}")
        } else if self.is_full() {
            format!("{name}.{ending}")
        } else {
            format!("{name}-part.{ending}")
        }
    }

    /// The same arguments with three times as many rounds of the same length.
    pub fn longer(&self) -> Arguments {
        Arguments { rounds: self.rounds * 3, seconds: self.seconds * 3.0, ..self.clone() }
    }

    pub fn wants_job(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| name.contains(part.as_str()))
    }

    /// Whether a peer takes part. Gradus always does.
    pub fn wants_peer(&self, name: &str) -> bool {
        name == OURS || self.peers.as_ref().is_none_or(|peers| peers.iter().any(|peer| peer == name))
    }
}

fn peers(list: &str) -> Result<Vec<String>, String> {
    let known = |name: &&str| NAMES.contains(name);
    match list.split(',').find(|name| !known(name)) {
        Some(unknown) => Err(format!("there is no peer `{unknown}`; there are {}", NAMES.join(", "))),
        None => Ok(list.split(',').map(str::to_owned).collect()),
    }
}

fn number<T: std::str::FromStr>(text: &str, usage: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("`{text}` is no number\n\n{usage}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Result<Arguments, String> {
        Arguments::read(line.split_whitespace().map(str::to_owned), Some("/before".into()))
    }

    fn read(options: &str) -> Result<Arguments, String> {
        words(&format!("peers {options}"))
    }

    #[test]
    fn options_are_read() {
        let all = read("").unwrap();
        assert_eq!((all.rounds, all.seconds, all.write, all.venv), (3, 1.5, false, Some("/before".into())));
        let some = read("--only gemm --only conv --quick --peers torch,numr --venv /v").unwrap();
        assert_eq!((some.rounds, some.seconds, some.patience, some.venv.clone()), (1, 0.2, 0.0, Some("/v".into())));
        assert!(some.wants_job("gemm_f32_64") && !some.wants_job("softmax_4096x1024"));
        assert!(some.wants_peer("gradus") && some.wants_peer("numr") && !some.wants_peer("jax"));
        assert!(read("--write").unwrap().write && read("--help").unwrap().help);
    }

    #[test]
    fn each_command_has_its_options() {
        let all = words("bench").unwrap();
        assert_eq!((all.bench, all.check, all.rounds, all.seconds, all.baseline.clone()), (true, false, 5, 2.0, None));
        assert_eq!((all.longer().rounds, all.longer().seconds), (15, 6.0));
        let some = words("bench --check --baseline v0.1.0 --only gemm --quick").unwrap();
        assert_eq!((some.check, some.baseline.as_deref(), some.rounds), (true, Some("v0.1.0"), 1));
        let growth = words("bench --growth --only GPT").unwrap();
        assert!(growth.growth && growth.part() == "GPT" && !all.growth && all.part().is_empty());
        for more in ["--check", "--quick", "--only a --only b"] {
            assert!(words(&format!("bench --growth {more}")).unwrap_err().contains("compares no builds"), "{more}");
        }
        for (line, option) in
            [("bench --write", "--write"), ("bench --peers jax", "--peers"), ("peers --check", "--check")]
        {
            assert!(words(line).unwrap_err().contains(&format!("`{option}` is no option")), "{line}");
        }
        assert!(words("bench --fast").unwrap_err().contains("cargo xtask bench"));
        assert!(words("--quick").unwrap_err().contains("`peers` or `bench`") && words("").is_err());
    }

    #[test]
    fn wrong_options_are_named_and_a_part_is_told_from_all() {
        assert!(read("--fast").unwrap_err().contains("`--fast` is no option"));
        assert!(read("--only").unwrap_err().contains("--only needs a value"));
        assert!(read("--rounds x").unwrap_err().contains("`x` is no number"));
        assert!(read("--peers torch,tinygrad").unwrap_err().contains("no peer `tinygrad`"));
        for wrong in ["--rounds 0", "--rounds 1000000", "--seconds 0", "--seconds inf", "--seconds -1", "--seconds 1e9"]
        {
            assert!(read(wrong).unwrap_err().contains("at least one round"), "{wrong}");
        }
        assert!(read("--patience -1").unwrap_err().contains("patience"));
        assert_eq!(read("").unwrap().file("peers", "json"), "peers.json");
        assert_eq!(read("--classes").unwrap().file("peers", "json"), "peers-classes.json");
        assert!(read("--write --classes").unwrap_err().contains("--write goes without"));
        for partial in ["--only gemm", "--quick", "--peers torch", "--seconds 1"] {
            assert_eq!(read(partial).unwrap().file("peers", "md"), "peers-part.md");
            let partial = format!("--write {partial}");
            assert!(read(&partial).unwrap_err().contains("--write goes without"), "{partial}");
        }
    }
}

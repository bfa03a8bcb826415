//! The command line.

use std::path::PathBuf;

use crate::peers::{NAMES, OURS};

pub const USAGE: &str = "\
usage: cargo xtask peers [options]

  --only JOB        only jobs whose name contains this; may be repeated
  --peers A,B       only these peers besides gradus: torch, torch.compile, jax, burn, candle, numr, rumus
  --quick           one round of 0.2 s a job: to see that all works, not for numbers
  --rounds N        turns of each peer (3)
  --seconds S       how long each peer runs a job, all rounds together (1.5)
  --patience S      how much longer the run may take to wait for others to leave the machine alone (300)
  --venv PATH       a Python environment with torch, jax and numpy, not target/peers-venv; or set GRADUS_PEERS_VENV
  --write           puts the table into docs/performance.md; for a run of all jobs on a machine that is otherwise idle
  --make-reference  runs nothing but PyTorch in f64 and writes benches/peers/reference.json, which results are compared with";

#[derive(Debug, PartialEq)]
pub struct Arguments {
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
    /// `venv` is the environment to use unless an option names another.
    pub fn read(mut words: impl Iterator<Item = String>, venv: Option<PathBuf>) -> Result<Arguments, String> {
        let mut read = Arguments {
            only: Vec::new(),
            peers: None,
            rounds: 3,
            seconds: 1.5,
            patience: 300.0,
            venv,
            write: false,
            make_reference: false,
            help: false,
        };
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} needs a value\n\n{USAGE}"));
            match word.as_str() {
                "--only" => read.only.push(value()?),
                "--peers" => read.peers = Some(peers(&value()?)?),
                "--quick" => (read.rounds, read.seconds, read.patience) = (1, 0.2, 0.0),
                "--rounds" => read.rounds = number(&value()?)?,
                "--seconds" => read.seconds = number(&value()?)?,
                "--patience" => read.patience = number(&value()?)?,
                "--venv" => read.venv = Some(value()?.into()),
                "--write" => read.write = true,
                "--make-reference" => read.make_reference = true,
                "--help" | "-h" => read.help = true,
                _ => return Err(format!("`{word}` is no option\n\n{USAGE}")),
            }
        }
        if read.rounds == 0 || !(read.seconds > 0.0 && read.seconds.is_finite()) {
            return Err("there is at least one round, and time above 0".into());
        }
        if !(0.0..1e9).contains(&read.patience) {
            return Err("patience is a number of seconds from 0 on".into());
        }
        if read.write && (!read.only.is_empty() || read.peers.is_some() || read.rounds < 3) {
            return Err("docs/performance.md shows all jobs and peers in three rounds: --write goes without --only, \
                --peers and --quick"
                .into());
        }
        Ok(read)
    }

    pub fn wants_job(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| name.contains(part.as_str()))
    }

    /// Gradus always takes part.
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

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("`{text}` is no number\n\n{USAGE}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Arguments, String> {
        Arguments::read(line.split_whitespace().map(str::to_owned), Some("/before".into()))
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
    fn wrong_options_are_named() {
        assert!(read("--fast").unwrap_err().contains("`--fast` is no option"));
        assert!(read("--only").unwrap_err().contains("--only needs a value"));
        assert!(read("--rounds x").unwrap_err().contains("`x` is no number"));
        assert!(read("--peers torch,tinygrad").unwrap_err().contains("no peer `tinygrad`"));
        for wrong in ["--rounds 0", "--seconds 0", "--seconds inf", "--seconds -1"] {
            assert!(read(wrong).unwrap_err().contains("at least one round"), "{wrong}");
        }
        assert!(read("--patience -1").unwrap_err().contains("patience"));
        for partial in ["--write --only gemm", "--write --quick", "--write --peers torch"] {
            assert!(read(partial).unwrap_err().contains("--write goes without"), "{partial}");
        }
    }
}

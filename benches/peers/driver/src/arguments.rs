//! The command line.

use std::path::PathBuf;

pub const USAGE: &str = "\
usage: cargo xtask peers [options]

  --only JOB       only jobs whose name contains this; may be repeated
  --peers A,B      only these peers besides gradus, by the names of the columns
  --quick          one round of 0.2 s a job: to see that all works, not for numbers
  --rounds N       turns of each peer (3)
  --seconds S      how long each peer runs a job, all rounds together (1.5)
  --venv PATH      a Python environment with torch, jax and numpy, not target/peers-venv; or set GRADUS_PEERS_VENV
  --write          puts the table into docs/performance.md; for a run of all jobs";

#[derive(Debug, PartialEq)]
pub struct Arguments {
    only: Vec<String>,
    peers: Option<Vec<String>>,
    pub rounds: usize,
    pub seconds: f64,
    pub venv: Option<PathBuf>,
    pub write: bool,
}

impl Arguments {
    pub fn read(mut words: impl Iterator<Item = String>) -> Result<Arguments, String> {
        let venv = std::env::var_os("GRADUS_PEERS_VENV").map(PathBuf::from);
        let mut read = Arguments { only: Vec::new(), peers: None, rounds: 3, seconds: 1.5, venv, write: false };
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} needs a value\n\n{USAGE}"));
            match word.as_str() {
                "--only" => read.only.push(value()?),
                "--peers" => read.peers = Some(value()?.split(',').map(str::to_owned).collect()),
                "--quick" => (read.rounds, read.seconds) = (1, 0.2),
                "--rounds" => read.rounds = number(&value()?)?,
                "--seconds" => read.seconds = number(&value()?)?,
                "--venv" => read.venv = Some(value()?.into()),
                "--write" => read.write = true,
                "--help" => return Err(USAGE.into()),
                _ => return Err(format!("`{word}` is no option\n\n{USAGE}")),
            }
        }
        if read.rounds == 0 || !(read.seconds > 0.0 && read.seconds.is_finite()) {
            return Err("there is at least one round, and time above 0".into());
        }
        if read.write && (!read.only.is_empty() || read.peers.is_some()) {
            return Err("docs/performance.md shows all jobs and peers: --write goes without --only and --peers".into());
        }
        Ok(read)
    }

    pub fn wants_job(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| name.contains(part.as_str()))
    }

    /// Gradus always takes part.
    pub fn wants_peer(&self, name: &str) -> bool {
        name == crate::peers::OURS || self.peers.as_ref().is_none_or(|peers| peers.iter().any(|peer| peer == name))
    }
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("`{text}` is no number\n\n{USAGE}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Arguments, String> {
        Arguments::read(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn options_are_read_and_wrong_ones_named() {
        let read_all = read("--only gemm --only conv --quick --peers torch,numr --venv /v").unwrap();
        assert_eq!((read_all.rounds, read_all.seconds, read_all.write), (1, 0.2, false));
        assert!(read_all.wants_job("gemm_f32_64") && !read_all.wants_job("softmax_4096x1024"));
        assert!(read_all.wants_peer("gradus") && read_all.wants_peer("numr") && !read_all.wants_peer("jax"));
        assert!(read("--fast").unwrap_err().contains("--fast"));
        assert!(read("--rounds x").unwrap_err().contains("`x` is no number"));
        assert!(read("--rounds 0").is_err());
        assert!(read("--write --only gemm").is_err());
    }
}

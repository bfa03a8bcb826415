//! Runs a peer to its end and reads its output.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

/// The last line that a process printed, and the time since the start of the process.
#[derive(Debug)]
pub struct Answer {
    pub line: String,
    pub after: Duration,
}

/// Prefixes of environment variables that would change what a peer or the compiler does by default.
const SETTINGS: [&str; 24] = [
    "GRADUS_",
    "CANDLE_",
    "BURN_",
    "NUMR_",
    "RUMUS_",
    "RAYON_",
    "OMP_",
    "GOMP_",
    "KMP_",
    "MKL_",
    "OPENBLAS_",
    "DNNL_",
    "ONEDNN_",
    "TORCH",
    "PYTORCH",
    "ATEN_",
    "JAX_",
    "XLA_",
    "PYTHON",
    "MALLOC_",
    "GLIBC_TUNABLES",
    "LD_PRELOAD",
    "RUSTFLAGS",
    "RUSTC_BOOTSTRAP",
];
/// Prefixes of the corresponding variables of cargo.
const OF_CARGO: [&str; 5] =
    ["CARGO_BUILD_", "CARGO_ENCODED_RUSTFLAGS", "CARGO_INCREMENTAL", "CARGO_PROFILE_", "CARGO_TARGET_"];

fn is_setting(name: &str) -> bool {
    SETTINGS.iter().chain(&OF_CARGO).any(|begin| name.starts_with(begin))
}

/// Removes from a command the variables that configure libraries or the compiler.
pub fn without_settings(command: &mut Command) {
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_setting)) {
        command.env_remove(name);
    }
}

/// Runs a command to its end. Fails if the command fails, prints nothing or takes longer than `limit`.
pub fn ask(command: &mut Command, limit: Duration) -> Result<Answer, String> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let start = Instant::now();
    let mut child = command.spawn().map_err(|e| format!("{}: {e}", command.get_program().display()))?;
    let (Some(output), Some(mut errors)) = (child.stdout.take(), child.stderr.take()) else {
        return Err("there are no pipes".into());
    };
    // Both streams are read continuously, because a full pipe would block the process.
    let answer = spawn(move || {
        let lines = BufReader::new(output).lines().map_while(Result::ok);
        lines.map(|line| Answer { line, after: start.elapsed() }).last()
    });
    let errors = spawn(move || {
        let mut bytes = Vec::new();
        let _ = errors.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    });
    let status = loop {
        if let Some(status) = child.try_wait().map_err(|e| e.to_string())? {
            break status;
        }
        if start.elapsed() > limit {
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("took more than {} s", limit.as_secs()));
        }
        sleep(Duration::from_millis(5));
    };
    let (answer, errors) = (answer.join().unwrap_or(None), errors.join().unwrap_or_default());
    if !status.success() {
        return Err(format!("{status}: {}", reason(&errors)));
    }
    answer.ok_or("printed nothing".into())
}

/// The most informative line of a process's error output.
fn reason(errors: &str) -> &str {
    let mut lines = errors.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("note: "));
    lines.next_back().unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: u64) -> Result<Answer, String> {
        ask(Command::new("sh").args(["-c", script]), Duration::from_millis(limit))
    }

    #[test]
    fn settings_of_libraries_are_taken_away() {
        for setting in ["RUSTFLAGS", "CARGO_PROFILE_RELEASE_LTO", "GRADUS_CPU_ISA", "CANDLE_NUM_THREADS"] {
            assert!(is_setting(setting), "{setting}");
        }
        assert!(!is_setting("PATH") && !is_setting("CARGO_HOME") && !is_setting("RUSTUP_TOOLCHAIN"));
    }

    #[test]
    fn the_last_line_counts_and_when_it_came() {
        let answer = shell("echo noise; echo 7; sleep 0.2", 10_000).unwrap();
        assert_eq!(answer.line, "7");
        assert!(answer.after < Duration::from_millis(200), "{answer:?}");
    }

    #[test]
    fn more_than_a_pipe_holds_is_read() {
        let answer = shell("head -c 1000000 /dev/zero | tr '\\0' x >&2; echo done", 10_000).unwrap();
        assert_eq!(answer.line, "done");
    }

    #[test]
    fn what_goes_wrong_is_said() {
        let said = "echo 'thread panicked:' >&2; echo 'it broke' >&2; echo 'note: run with' >&2; exit 3";
        assert_eq!(shell(said, 10_000).unwrap_err(), "exit status: 3: it broke");
        assert_eq!(shell("exec sleep 10", 50).unwrap_err(), "took more than 0 s");
        assert_eq!(shell("true", 10_000).unwrap_err(), "printed nothing");
        assert!(ask(&mut Command::new("/no/such/program"), Duration::ZERO).unwrap_err().contains("/no/such/program"));
    }
}

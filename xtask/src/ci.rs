//! `cargo xtask ci`: runs every check that a change must pass, in order, and stops at the first failure.

use std::path::Path;
use std::time::Instant;

/// One check of the run.
struct Step {
    name: &'static str,
    action: Action,
}

/// What a step does.
enum Action {
    /// Runs cargo with these environment variables and arguments.
    Cargo { environment: &'static [(&'static str, &'static str)], arguments: &'static [&'static str] },
    /// Runs a function of this program.
    Here { command: &'static str, run: fn(&Path) -> Result<(), String> },
}

impl Step {
    const fn cargo(name: &'static str, arguments: &'static [&'static str]) -> Step {
        Step { name, action: Action::Cargo { environment: &[], arguments } }
    }

    /// The command line that runs only this step.
    fn command_line(&self) -> String {
        match &self.action {
            Action::Here { command, .. } => format!("cargo xtask {command}"),
            Action::Cargo { environment, arguments } => {
                let variables: String = environment.iter().map(|(key, value)| format!("{key}=\"{value}\" ")).collect();
                format!("{variables}cargo {}", arguments.join(" "))
            }
        }
    }

    fn run(&self, root: &Path) -> Result<(), String> {
        match &self.action {
            Action::Here { run, .. } => run(root),
            Action::Cargo { environment, arguments } => {
                let mut command = crate::workspace::cargo();
                command.args(*arguments).envs(environment.iter().copied()).current_dir(root);
                match command.status() {
                    Ok(status) if status.success() => Ok(()),
                    Ok(status) => Err(status.to_string()),
                    Err(error) => Err(format!("cargo did not start: {error}")),
                }
            }
        }
    }
}

const FORMAT: Step = Step::cargo("format", &["fmt", "--all", "--check"]);
const CLIPPY: Step = Step::cargo("clippy", &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]);
const TESTS: Step = Step::cargo("tests", &["test", "--workspace"]);
/// What is built with features only: the readers of Parquet and Arrow files, and ONNX for the command.
const FEATURES_CLIPPY: Step = Step::cargo(
    "features clippy",
    &["clippy", "-p=gradus", "-p=gradus-cli", "--features=onnx,parquet", "--all-targets", "--", "-D", "warnings"],
);
const FEATURES_TESTS: Step = Step::cargo(
    "features tests",
    &[
        "test",
        "-p=gradus-data",
        "-p=gradus-cli",
        "--features=gradus-data/parquet,gradus-cli/onnx",
        "--test=columnar",
        "--test=tables",
        "--test=onnx",
    ],
);
const DOCS: Step = Step {
    name: "docs",
    action: Action::Cargo {
        environment: &[("RUSTDOCFLAGS", "-D warnings")],
        arguments: &["doc", "--workspace", "--no-deps"],
    },
};
const TIDY: Step = Step { name: "tidy", action: Action::Here { command: "tidy", run: crate::tidy::run } };
const SOURCES: Step =
    Step { name: "sources", action: Action::Here { command: "sources --check", run: crate::sources::sources } };
const FUZZ_GRAD: Step =
    Step { name: "fuzz-grad", action: Action::Here { command: "fuzz-grad", run: crate::fuzz::default_run } };
const CALLS: Step = Step { name: "calls", action: Action::Here { command: "calls", run: crate::outside::default_run } };
const DIGITS: Step = Step { name: "digits", action: Action::Here { command: "digits", run: crate::digits::run } };

/// The comparison with other libraries is a workspace of its own. `ci` builds only those of its packages that need no
/// other library.
const PEERS: &str = "benches/peers/Cargo.toml";
const PEERS_FORMAT: Step = Step::cargo(
    "peers format",
    &[
        "fmt",
        "--check",
        "--manifest-path",
        PEERS,
        "-p=peer-harness",
        "-p=peer-driver",
        "-p=peer-gradus",
        "-p=peer-candle",
        "-p=peer-burn",
        "-p=peer-numr",
        "-p=peer-rumus",
    ],
);
/// Also fails if the lock file does not match the crates' dependencies. To update it, run `cargo update --workspace` in
/// `benches/peers`.
const PEERS_CLIPPY: Step = Step::cargo(
    "peers clippy",
    &[
        "clippy",
        "--locked",
        "--manifest-path",
        PEERS,
        "-p=peer-harness",
        "-p=peer-driver",
        "-p=peer-gradus",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ],
);
const PEERS_TESTS: Step =
    Step::cargo("peers tests", &["test", "--locked", "--manifest-path", PEERS, "-p=peer-harness", "-p=peer-driver"]);

/// The steps, in order.
fn steps(skip_tests: bool) -> Vec<Step> {
    let mut all = vec![
        FORMAT,
        CLIPPY,
        TESTS,
        FEATURES_CLIPPY,
        FEATURES_TESTS,
        PEERS_FORMAT,
        PEERS_CLIPPY,
        PEERS_TESTS,
        DOCS,
        TIDY,
        SOURCES,
        FUZZ_GRAD,
        CALLS,
        DIGITS,
    ];
    all.retain(|step| !skip_tests || step.name != TESTS.name);
    all
}

/// Runs the steps. `skip_tests` omits the tests of the workspace, for a caller that has just run them.
pub(crate) fn run(root: &Path, skip_tests: bool) -> Result<(), String> {
    let start = Instant::now();
    for step in steps(skip_tests) {
        println!("== {}: {}", step.name, step.command_line());
        let step_start = Instant::now();
        let outcome = step.run(root);
        let seconds = step_start.elapsed().as_secs_f64();
        if let Err(reason) = outcome {
            println!("== {}: FAILED after {seconds:.1} s", step.name);
            return Err(failure(&step, &reason));
        }
        println!("== {}: ok, {seconds:.1} s\n", step.name);
    }
    println!("== ci: all ok, {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}

/// The message for a failed step.
fn failure(step: &Step, reason: &str) -> String {
    format!("the step `{}` failed: {reason}\n  rerun it alone: {}", step.name, step.command_line())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(skip_tests: bool) -> Vec<&'static str> {
        steps(skip_tests).iter().map(|step| step.name).collect()
    }

    #[test]
    fn only_the_tests_of_the_workspace_can_be_skipped() {
        let all = names(false);
        assert_eq!(all[..5], ["format", "clippy", "tests", "features clippy", "features tests"]);
        assert_eq!(all[5..8], ["peers format", "peers clippy", "peers tests"]);
        assert_eq!(all[8..], ["docs", "tidy", "sources", "fuzz-grad", "calls", "digits"]);
        let untested: Vec<_> = all.into_iter().filter(|name| *name != "tests").collect();
        assert_eq!(names(true), untested);
    }

    #[test]
    fn a_failure_says_how_to_rerun_the_step() {
        let message = failure(&DOCS, "exit status: 101");
        assert!(message.contains("`docs` failed: exit status: 101"), "{message}");
        assert!(message.contains("RUSTDOCFLAGS=\"-D warnings\" cargo doc --workspace --no-deps"), "{message}");
        assert!(failure(&TIDY, "2 findings").contains("cargo xtask tidy"));
    }
}

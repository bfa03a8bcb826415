//! `cargo xtask ci`: every check that a change must pass, in order, up to the first failure.

use std::path::Path;
use std::time::Instant;

/// One check of the run.
struct Step {
    name: &'static str,
    action: Action,
}

/// How a step is done.
enum Action {
    /// Runs cargo with these environment variables and arguments.
    Cargo { environment: &'static [(&'static str, &'static str)], arguments: &'static [&'static str] },
    /// Runs a command of this program in this process.
    Here { command: &'static str, run: fn(&Path) -> Result<(), String> },
}

impl Step {
    const fn cargo(name: &'static str, arguments: &'static [&'static str]) -> Step {
        Step { name, action: Action::Cargo { environment: &[], arguments } }
    }

    /// The command line that runs this step alone.
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
                let mut command = crate::cargo();
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
const DOCS: Step = Step {
    name: "docs",
    action: Action::Cargo {
        environment: &[("RUSTDOCFLAGS", "-D warnings")],
        arguments: &["doc", "--workspace", "--no-deps"],
    },
};
const TIDY: Step = Step { name: "tidy", action: Action::Here { command: "tidy", run: crate::tidy::run } };
const SOURCES: Step =
    Step { name: "sources", action: Action::Here { command: "sources --check", run: crate::pages::sources } };
const FUZZ_GRAD: Step =
    Step { name: "fuzz-grad", action: Action::Here { command: "fuzz-grad", run: crate::fuzz::default_run } };
const DIGITS: Step = Step { name: "digits", action: Action::Here { command: "digits", run: crate::digits::run } };

/// The steps in the order in which they run.
fn steps(skip_tests: bool) -> Vec<Step> {
    let tests = if skip_tests { None } else { Some(TESTS) };
    [Some(FORMAT), Some(CLIPPY), tests, Some(DOCS), Some(TIDY), Some(SOURCES), Some(FUZZ_GRAD), Some(DIGITS)]
        .into_iter()
        .flatten()
        .collect()
}

/// Runs the steps; `skip_tests` leaves out the tests, for a caller that has just run them.
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

/// What is said about a failed step.
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
    fn only_the_tests_can_be_skipped() {
        assert_eq!(names(false), ["format", "clippy", "tests", "docs", "tidy", "sources", "fuzz-grad", "digits"]);
        assert_eq!(names(true), ["format", "clippy", "docs", "tidy", "sources", "fuzz-grad", "digits"]);
    }

    #[test]
    fn a_failure_says_how_to_rerun_the_step() {
        let message = failure(&DOCS, "exit status: 101");
        assert!(message.contains("`docs` failed: exit status: 101"), "{message}");
        assert!(message.contains("RUSTDOCFLAGS=\"-D warnings\" cargo doc --workspace --no-deps"), "{message}");
        assert!(failure(&TIDY, "2 findings").contains("cargo xtask tidy"));
    }
}

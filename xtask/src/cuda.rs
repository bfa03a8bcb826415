//! `cargo xtask cuda`: the CUDA backend, without a GPU.
//!
//! `gradus-ptx` stands in for the driver, and for cuBLASLt and NCCL, and runs the kernels that NVRTC makes, with checks of bounds, races and memory that
//! was never written. Every kernel that the tests make is also compiled for real GPUs by `ptxas`, and what it takes of them
//! is compared with a table. NVRTC and ptxas come from PyPI.

mod digits;
mod resources;
mod scope;
mod tools;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::wheels::Failure;
use scope::Scope;

/// The features of what is tested. Everything is built as part of the workspace, so that what it depends on is built once
/// for all of its tests.
const FEATURES: &str = "gradus/cuda,gradus-cli/nccl,gradus-dist/nccl";
const WORKSPACE: [&str; 3] = ["--workspace", "--features", FEATURES];
/// The tests, besides those of `golden`: mistakes that the interpreter finds, what goes wrong, Gradus beside the CPU, and ranks
/// on several GPUs.
const TESTS: [&str; 7] = ["planted", "injected", "modules", "gemm_parts", "tf32", "cuda", "nccl"];

/// The tests and the cases that also run with cuBLASLt, whose products are those of half precision.
const LIBRARY_TESTS: [&str; 3] = ["gemm_takes", "learns_as_on_the_cpu_in_bf16", "parts_of_a_long_inner_axis"];
const LIBRARY_CASES: [&str; 2] = ["gemm/bf16", "gemm/f16"];

/// How many random cases of each operation run with `--all`.
const CASES: u64 = 1000;

/// The options of the command.
#[derive(Debug, PartialEq)]
pub(crate) struct Options {
    /// A Python interpreter with pip.
    python: String,
    /// Whether it is an error that NVRTC or ptxas cannot be had. `GRADUS_REQUIRE_CUDA=1` says so too.
    require: bool,
    scope: Scope,
    /// How many random cases of each operation run.
    cases: u64,
    /// Whether the table of resources, and with `--all` the column of operations, is written rather than compared.
    bless: bool,
}

/// Parses the arguments. The error says which one is invalid.
pub(crate) fn parse(arguments: &[&str]) -> Result<Options, String> {
    let require = std::env::var_os("GRADUS_REQUIRE_CUDA").is_some_and(|value| value == "1");
    let mut options = Options { python: "python3".into(), require, scope: Scope::Usual, cases: 0, bless: false };
    let mut cases = None;
    let mut rest = arguments.iter();
    while let Some(&word) = rest.next() {
        match word {
            "--python" => options.python = rest.next().ok_or("`--python` needs a value")?.to_string(),
            "--require" => options.require = true,
            "--all" | "--quick" if options.scope != Scope::Usual => {
                return Err("`cuda` takes `--quick` or `--all`, once".into());
            }
            "--all" => options.scope = Scope::All,
            "--quick" => options.scope = Scope::Quick,
            "--cases" => {
                let count = rest.next().ok_or("`--cases` needs a number")?;
                cases = Some(count.parse().map_err(|_| format!("`--cases` takes a number, not `{count}`"))?);
            }
            "--bless" => options.bless = true,
            _ => return Err(format!("`cuda` does not take `{word}`")),
        }
    }
    options.cases = cases.unwrap_or(if options.scope == Scope::All { CASES } else { 0 });
    if options.bless && options.scope == Scope::Quick {
        return Err("`cuda --quick` compiles too few kernels to write the table with `--bless`".into());
    }
    Ok(options)
}

/// `cargo xtask deep`'s part: everything, where NVRTC can be had.
pub(crate) fn deep(root: &Path) -> Result<(), String> {
    run(root, &parse(&["--all"])?)
}

/// Runs everything. The last line has the counts.
pub(crate) fn run(root: &Path, options: &Options) -> Result<(), String> {
    let start = Instant::now();
    let folder = root.join("target/cuda");
    let tools = match tools::find(&folder, &options.python) {
        Ok(tools) => tools,
        Err(Failure::Download(reason)) if !options.require => {
            println!("cuda: skipped, because NVRTC or ptxas could not be downloaded: {reason}");
            return Ok(());
        }
        Err(failure) => return Err(failure.into()),
    };
    let stage = Stage::new(root, &folder, &tools, options)?;
    let with_library = Stage { cublaslt: &stage.driver, ..stage.clone() };
    let (extent, all) = (options.scope, options.scope == Scope::All);
    // Most of the time is that of compilers, so programs run side by side.
    let (calls, tests) = std::thread::scope(|scope| {
        let tests = scope.spawn(|| {
            let mut tests = stage.tests(&WORKSPACE, &TESTS.map(|test| ["--test", test]).concat())?;
            let words = [&["--test", "cuda", "--test", "gemm_parts", "--"][..], &LIBRARY_TESTS].concat();
            tests += with_library.tests(&WORKSPACE, &words)?;
            tests += stage.tests(&["-p", "gradus-cuda"], &["--lib", "kernels_compile"])?;
            let made = (extent, options.require);
            digits::run(root, &folder, &options.python, made, &stage.driver, &|| stage.program("gradus"))?;
            let golden: &[&str] = if all { &["on_cuda", "the_matrix_of_operations"] } else { &["on_cuda"] };
            tests += stage.tests(&WORKSPACE, &[&["--test", "golden", "--"][..], golden].concat())?;
            Ok::<_, String>(tests)
        });
        let calls = stage.conform(if all { &[] } else { &["--brief"] }).and_then(|mut calls| {
            for case in LIBRARY_CASES {
                calls += with_library.conform(&[case])?;
            }
            match options.cases {
                0 => Ok([calls, 0]),
                cases => Ok([calls, stage.conform(&["--each", &cases.to_string()])?]),
            }
        });
        (calls, tests.join())
    });
    let tests = tests.map_err(|_| "a thread of `cargo xtask cuda` panicked".to_string())??;
    let [calls, random] = calls?;
    let checked = resources::run(root, &stage.modules, &tools.ptxas, extent, options.bless)?;
    let [launches, instructions, products] = stage.counts()?;
    println!(
        "cuda: {tests} tests, {calls} calls of the conformance suite, {random} random ones, {launches} launches, {products} products of a library, {:.1}e9 instructions of threads; {checked}; {:.0} s",
        instructions as f64 / 1e9,
        start.elapsed().as_secs_f64()
    );
    Ok(())
}

/// Starts programs that find the stand-in in place of the driver.
#[derive(Clone)]
struct Stage<'a> {
    root: &'a Path,
    /// The folder with what cargo builds.
    built: PathBuf,
    driver: PathBuf,
    /// What programs find in place of cuBLASLt; nothing if it is empty.
    cublaslt: &'a Path,
    nvrtc: &'a Path,
    /// The folder that receives the PTX of each kernel.
    modules: PathBuf,
    cache: PathBuf,
    statistics: PathBuf,
    bless: bool,
}

impl Stage<'_> {
    fn new<'a>(root: &'a Path, folder: &Path, tools: &'a tools::Tools, options: &Options) -> Result<Stage<'a>, String> {
        let words = [&["build"][..], &WORKSPACE, &["--bin", "gradus", "--example", "conform_cuda"]].concat();
        let what = format!("`cargo {}`", words.join(" "));
        crate::workspace::done(crate::workspace::cargo().args(words).current_dir(root), &what)?;
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
        let built = target.join("debug");
        // Built with the example, which depends on it.
        let driver = built.join("deps/libgradus_ptx.so");
        if !driver.is_file() {
            return Err(format!("{}: the stand-in for the driver is not there after its build", driver.display()));
        }
        // What an earlier run left is not counted.
        let (modules, statistics) = (folder.join("modules"), folder.join("statistics"));
        for leftover in [&modules, &statistics] {
            let removed =
                if leftover.is_dir() { std::fs::remove_dir_all(leftover) } else { std::fs::remove_file(leftover) };
            match removed {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(format!("{}: {error}", leftover.display()));
                }
                _ => {}
            }
        }
        let (nvrtc, cache) = (&tools.nvrtc, folder.join("cache"));
        let cublaslt = Path::new("");
        Ok(Stage { root, built, driver, cublaslt, nvrtc, modules, cache, statistics, bless: options.bless })
    }

    /// A program that cargo built, with the stand-in as its driver.
    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.built.join(name));
        self.stand_in(&mut command);
        command
    }

    /// Lets a program find the stand-in in place of the driver.
    fn stand_in(&self, command: &mut Command) {
        command
            .current_dir(self.root)
            .env("GRADUS_CUDA_DRIVER", &self.driver)
            .env("GRADUS_CUBLASLT", self.cublaslt)
            .env("GRADUS_NVRTC", self.nvrtc)
            .env("GRADUS_CUDA_CACHE", &self.cache)
            .env("GRADUS_CUDA_EXACT", "1")
            .env("GRADUS_REQUIRE_CUDA", "1")
            .env("GRADUS_PTX_DUMP", &self.modules)
            .env("GRADUS_PTX_STATISTICS", &self.statistics);
        if self.bless {
            command.env("GRADUS_WRITE", "1");
        }
    }

    /// Runs tests of packages, shows what they print, and returns how many passed. It is an error if none ran.
    fn tests(&self, packages: &[&str], arguments: &[&str]) -> Result<usize, String> {
        let words = [&["test"], packages, arguments].concat();
        let shown = format!("cargo {}", words.join(" "));
        println!("== {shown}");
        let mut command = crate::workspace::cargo();
        self.stand_in(command.args(&words));
        let output = command.stderr(Stdio::inherit()).output();
        let output = output.map_err(|error| format!("cargo did not start: {error}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        print!("{text}");
        match (output.status.success(), passed(&text)) {
            (true, 0) => Err(format!("`{shown}` runs no test")),
            (true, count) => Ok(count),
            (false, _) => Err(format!("`{shown}`: {}", output.status)),
        }
    }

    /// Runs the conformance suite, and returns the number of its calls.
    fn conform(&self, arguments: &[&str]) -> Result<u64, String> {
        let shown = format!("conform_cuda {}", arguments.join(" "));
        println!("== {shown}");
        let output = self.program("examples/conform_cuda").args(arguments).stderr(Stdio::inherit()).output();
        let output = output.map_err(|error| format!("{shown}: {error}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        print!("{text}");
        let calls = text.lines().filter_map(|line| line.strip_prefix("0 of ")?.split(' ').next()?.parse().ok()).next();
        match calls {
            Some(calls) if output.status.success() => Ok(calls),
            _ => Err(format!("`{shown}`: {}", output.status)),
        }
    }

    /// The launches, the instructions of threads and the products of a library of all processes.
    fn counts(&self) -> Result<[u64; 3], String> {
        let text = std::fs::read_to_string(&self.statistics);
        let text = text.map_err(|error| format!("{}: {error}", self.statistics.display()))?;
        let lines = text.lines().map(|line| line.split(' ').filter_map(|word| word.parse().ok()).collect());
        let sums = lines.fold([0; 3], |[launches, instructions, products], line: Vec<u64>| match line[..] {
            [more, of_threads, _, by_library] => [launches + more, instructions + of_threads, products + by_library],
            _ => [launches, instructions, products],
        });
        match sums {
            [0, ..] => Err("no kernel was launched".into()),
            [.., 0] => Err("no product was computed by what stands in for cuBLASLt".into()),
            _ => Ok(sums),
        }
    }
}

/// The tests that passed, by the lines that sum up the programs.
fn passed(text: &str) -> usize {
    let lines = text.lines().filter_map(|line| line.strip_prefix("test result: ok. "));
    lines.filter_map(|line| line.split(' ').next()?.parse::<usize>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_says_what_is_tried() {
        let options = parse(&["--all", "--python", "/p"]).unwrap();
        assert_eq!((options.scope, options.bless, options.python.as_str()), (Scope::All, false, "/p"));
        assert_eq!((options.cases, parse(&["--quick"]).unwrap().cases), (CASES, 0));
        assert_eq!(parse(&["--cases", "7", "--all"]).unwrap().cases, 7);
        assert!(parse(&["--cases", "many"]).is_err() && parse(&["--cases"]).is_err());
        assert!(parse(&["--python"]).is_err() && parse(&["fast"]).is_err());
        assert!(parse(&["--bless"]).is_ok() && parse(&["--bless", "--quick"]).is_err());
        assert!(parse(&["--quick", "--all"]).is_err() && parse(&["--all", "--all"]).is_err());
    }

    #[test]
    fn passed_tests_are_summed_over_programs() {
        let text = "test a ... ok\ntest result: ok. 3 passed; 0 failed; 0 ignored\n\ntest result: ok. 0 passed; 0 failed\n\
                    test result: FAILED. 7 passed; 1 failed\ntest result: ok. 40 passed; 0 failed\n";
        assert_eq!(passed(text), 43);
    }
}

//! `gradus launch` and `gradus train` under `mpirun`: each task on several ranks, and ranks that stop or die.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::launch::Mpi;
use super::process::{Ended, Running, SSHD, descendants, signal};
use super::small::Small;

/// How long a training may take.
pub(super) const LIMIT: Duration = Duration::from_secs(200);
/// The files of a run that is complete.
const FILES: [&str; 4] = ["config.toml", "metrics.csv", "model.safetensors", "report.html"];
/// The training that is stopped and killed: of many short epochs, with a state after each.
pub(super) const LONG: [&str; 7] = ["train", "images", PICTURES, "--epochs", "12", "--batch-size", "20"];
/// The folder of its data.
const PICTURES: &str = "pictures";

/// The command under test, and where it works.
pub(super) struct Gradus<'a> {
    pub(super) mpi: &'a Mpi,
    pub(super) program: &'a Path,
    pub(super) folder: &'a Path,
    pub(super) root: &'a Path,
}

/// The checks that ask for less on MPICH, whose launcher kills the other ranks once one has ended. They are
/// counted beside the others.
const LESS_ON_MPICH: [&str; 2] = ["a rank is killed", RECURS];
const RECURS: &str = "an error that would come again, with restarts";

/// A check beside the weights of a training that was left alone.
type OnWhole<'a> = fn(&Gradus<'a>, &[u8]) -> Result<(), String>;

/// What is checked, by name.
type Checks<'a> = Vec<(String, Box<dyn Fn() -> Result<(), String> + 'a>)>;

impl Gradus<'_> {
    /// Runs all checks whose names contain a text, and returns what failed and a line that says how many hold.
    pub(super) fn check(&self, text: &str) -> Result<(Vec<String>, String), String> {
        self.data()?;
        // What the trainings that are disturbed shall end with.
        let whole = self.folder.join("whole");
        let words = with_out(&LONG, &whole);
        done(&self.launch(&["-n", "2"], &words, "whole")?)?;
        let whole = model(&whole)?;
        let mut checks: Checks<'_> = vec![];
        for (name, words) in self.tasks() {
            checks.push((format!("train {name} on 1, 2 and 4 ranks"), Box::new(move || self.same(name, &words))));
        }
        let others: [(&str, OnWhole<'_>); 17] = [
            ("mpirun itself", Self::plain),
            ("SIGTERM to one rank, then another number", Self::one_stops),
            ("SIGTERM to all ranks", Self::all_stop),
            ("SIGTERM to the launcher", Self::launcher_stops),
            ("the launcher is killed", Self::launcher_dies),
            ("a rank is killed", Self::one_dies),
            ("a rank is killed, with a restart", Self::restarts),
            ("ranks with divided weights are killed, with restarts", Self::restarts_divided),
            ("a rank with divided weights is killed, then another number", Self::one_divided_dies),
            ("a host that does not answer", Self::no_host),
            ("the script for SLURM", Self::slurm),
            (RECURS, Self::does_not_restart),
            ("SIGTERM to the launcher, where nothing is saved", Self::trial_stops),
            ("a rank is stopped", Self::one_hangs),
            ("ranks with different options", Self::differ),
            ("ranks of different versions", Self::versions),
            ("a full disk of one rank, with divided weights", Self::full_part),
        ];
        let whole = &whole;
        for (name, check) in others {
            checks.push((name.to_owned(), Box::new(move || check(self, whole))));
        }
        match Path::new(SSHD).is_file() {
            true => checks.push(("two hosts over ssh".into(), Box::new(move || self.two_hosts(whole)))),
            false => println!("no ssh server to test hosts with (Debian: openssh-server)"),
        }
        match Small::mount(self.folder.join("full-disk"))? {
            Some(small) => {
                checks.push(("a full disk of rank 0".into(), Box::new(move || self.full_disk(&small, whole))))
            }
            None => println!("no small disk to fill (it takes root)"),
        }
        checks.push(("a launcher of another MPI".into(), Box::new(|| self.other_mpi())));
        checks.push(("no mpirun, and no library".into(), Box::new(|| self.nothing_there())));
        checks.push(("a measurement and a plan".into(), Box::new(|| self.plan())));
        checks.retain(|(name, _)| name.contains(text));
        let count = checks.len();
        let asks_less = |name: &str| self.mpi.is_mpich && LESS_ON_MPICH.contains(&name);
        let less = checks.iter().filter(|(name, _)| asks_less(name)).count();
        let mut failures = vec![];
        for (name, check) in checks {
            let begun = std::time::Instant::now();
            let outcome = check();
            println!(
                "{name}: {} ({:.1} s)",
                if outcome.is_ok() { "ok" } else { "FAILED" },
                begun.elapsed().as_secs_f64()
            );
            failures.extend(outcome.err().map(|why| format!("{name}: {why}")));
        }
        let held = count - failures.len();
        let more = if less > 0 {
            format!(" ({less} of them as far as MPICH's launcher lets ranks live)")
        } else {
            String::new()
        };
        Ok((failures, format!("{held} of {count} checks of gradus launch hold{more}")))
    }

    /// The tasks, with the words of a short training.
    fn tasks(&self) -> [(&'static str, Vec<String>); 4] {
        let path = |path: PathBuf| path.display().to_string();
        let words = |line: &str, file: Option<String>| {
            let mut words: Vec<String> = line.split(' ').map(String::from).collect();
            if let Some(file) = file {
                words.insert(2, file);
            }
            words
        };
        let table = self.root.join("crates/gradus-data/tests/data/penguins.csv");
        [
            ("digits", words("train digits --epochs 2", None)),
            (
                "images",
                words("train images --epochs 2 --batch-size 20 --erase 0.2", Some(path(self.folder.join(PICTURES)))),
            ),
            ("tabular", words("train tabular --target species --drop year --epochs 4 --cv 2", Some(path(table)))),
            (
                "text",
                words(
                    "train text --epochs 1 --layers 1 --heads 2 --width 32 --context 32 --dropout 0.1",
                    Some(path(self.folder.join("story.txt"))),
                ),
            ),
        ]
    }

    /// Writes the data: IDX files of pictures whose bright half says their class, and a text.
    fn data(&self) -> Result<(), String> {
        const SIDE: usize = 12;
        let pictures = self.folder.join(PICTURES);
        let count = 90;
        let idx = |sizes: &[u32], values: Vec<u8>| {
            let mut bytes = vec![0, 0, 8, sizes.len() as u8];
            sizes.iter().for_each(|size| bytes.extend(size.to_be_bytes()));
            bytes.extend(values);
            bytes
        };
        let pixel = |i: usize| {
            let (image, y, x) = (i / (SIDE * SIDE), i / SIDE % SIDE, i % SIDE);
            if (y < SIDE / 2) == (image % 2 == 0) { (180 + (image * 7 + x) % 70) as u8 } else { (image * x % 50) as u8 }
        };
        let images = (0..count * SIDE * SIDE).map(pixel).collect();
        let labels = (0..count).map(|image| (image % 2) as u8).collect();
        let put = |path: PathBuf, bytes: Vec<u8>| {
            std::fs::write(&path, bytes).map_err(|e| format!("{}: {e}", path.display()))
        };
        std::fs::create_dir_all(&pictures).map_err(|e| format!("{}: {e}", pictures.display()))?;
        put(pictures.join("train-images-idx3-ubyte"), idx(&[count as u32, SIDE as u32, SIDE as u32], images))?;
        put(pictures.join("train-labels-idx1-ubyte"), idx(&[count as u32], labels))?;
        put(self.folder.join("story.txt"), "pack my box with five dozen liquor jugs. ".repeat(150).into_bytes())
    }

    fn start(&self, options: &[&str], words: &[String], name: &str) -> Result<Running, String> {
        let mut command = self.mpi.program(self.program);
        command.arg("launch").args(options).arg("--").args(words).current_dir(self.folder);
        Running::start(&mut command, &self.folder.join(name))
    }

    pub(super) fn launch(&self, options: &[&str], words: &[String], name: &str) -> Result<Ended, String> {
        self.start(options, words, name)?.end(LIMIT)
    }

    /// Starts the long training on 4 ranks, and waits for its first state. Returns it with its folder and its ranks.
    pub(super) fn begun(&self, options: &[&str], name: &str) -> Result<(Running, PathBuf, Vec<u32>), String> {
        self.begun_with(options, &LONG, name)
    }

    fn begun_with(&self, options: &[&str], words: &[&str], name: &str) -> Result<(Running, PathBuf, Vec<u32>), String> {
        let out = self.folder.join(name);
        let mut words = with_out(words, &out);
        words.push("--resume".into());
        let options = [&["-n", "4"], options].concat();
        let mut running = self.start(&options, &words, name)?;
        running.until("a state", || has_state(&out))?;
        let ranks = ranks(running.process());
        if ranks.len() == 4 { Ok((running, out, ranks)) } else { Err(format!("the ranks are {ranks:?}")) }
    }

    /// Goes on with the long training on 2 ranks, which gives the same bits as one that was left alone.
    pub(super) fn goes_on(&self, out: &Path, name: &str, whole: &[u8]) -> Result<(), String> {
        let mut words = with_out(&LONG, out);
        words.push("--resume".into());
        done(&self.launch(&["-n", "2"], &words, &format!("{name}-again"))?)?;
        same(&model(out)?, whole)
    }

    fn same(&self, task: &str, words: &[String]) -> Result<(), String> {
        let mut first: Option<Vec<u8>> = None;
        for ranks in ["1", "2", "4"] {
            let name = format!("{task}-{ranks}");
            let out = self.folder.join(&name);
            let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
            // The trainings with the fewest steps: where weights are divided, a step makes many calls.
            if ranks == "4" && ["images", "text"].contains(&task) {
                words.push("--shard");
            }
            let ended = self.launch(&["-n", ranks], &with_out(&words, &out), &name)?;
            done(&ended)?;
            complete(&out).map_err(|e| format!("on {ranks} ranks {e}"))?;
            for line in ["trained in", "saved in"] {
                let times = ended.out.lines().filter(|text| text.starts_with(line)).count();
                if times != 1 {
                    return Err(format!("on {ranks} ranks `{line}` is printed {times} times"));
                }
            }
            let model = model(&out)?;
            match &first {
                Some(first) => same(&model, first).map_err(|e| format!("{ranks} ranks: {e}"))?,
                None => first = Some(model),
            }
        }
        Ok(())
    }

    fn plain(&self, whole: &[u8]) -> Result<(), String> {
        let out = self.folder.join("plain");
        let mut mpirun = self.mpi.mpirun(4);
        mpirun.arg(self.program).args(with_out(&LONG, &out)).current_dir(self.folder);
        done(&Running::start(&mut mpirun, &self.folder.join("plain"))?.end(LIMIT)?)?;
        same(&model(&out)?, whole)
    }

    fn one_stops(&self, whole: &[u8]) -> Result<(), String> {
        let (running, out, ranks) = self.begun(&[], "one-stops")?;
        signal(ranks[2], "TERM");
        stopped(&running.end(LIMIT)?)?;
        self.goes_on(&out, "one-stops", whole)
    }

    fn all_stop(&self, whole: &[u8]) -> Result<(), String> {
        let (running, out, ranks) = self.begun(&[], "all-stop")?;
        ranks.iter().for_each(|&rank| signal(rank, "TERM"));
        stopped(&running.end(LIMIT)?)?;
        self.goes_on(&out, "all-stop", whole)
    }

    fn launcher_stops(&self, whole: &[u8]) -> Result<(), String> {
        let (running, out, _) = self.begun(&[], "launcher-stops")?;
        signal(running.process(), "TERM");
        stopped(&running.end(LIMIT)?)?;
        self.goes_on(&out, "launcher-stops", whole)
    }

    fn launcher_dies(&self, whole: &[u8]) -> Result<(), String> {
        let (mut running, out, _) = self.begun(&[], "launcher-dies")?;
        let all = descendants(running.process());
        signal(running.process(), "KILL");
        running.ended()?;
        let end = std::time::Instant::now() + Duration::from_secs(30);
        let left =
            || -> Vec<u32> { all.iter().copied().filter(|&process| super::process::is_alive(process)).collect() };
        while !left().is_empty() && std::time::Instant::now() < end {
            std::thread::sleep(Duration::from_millis(50));
        }
        let left = left();
        left.iter().for_each(|&process| signal(process, "KILL"));
        running.end(LIMIT)?;
        if !left.is_empty() {
            return Err(format!("processes {left:?} are left behind"));
        }
        self.goes_on(&out, "launcher-dies", whole)
    }

    fn one_dies(&self, whole: &[u8]) -> Result<(), String> {
        let (running, out, ranks) = self.begun(&[], "one-dies")?;
        signal(ranks[1], "KILL");
        let ended = running.end(LIMIT)?;
        // MPICH kills the others at once.
        failed(&ended, if self.mpi.is_mpich { &["the ranks have failed"] } else { &["rank 1 has died"] })?;
        let names = files(&out);
        if names != ["checkpoints"] {
            return Err(format!("the folder has {names:?}"));
        }
        self.goes_on(&out, "one-dies", whole)
    }

    fn restarts(&self, whole: &[u8]) -> Result<(), String> {
        let (running, out, ranks) = self.begun(&["--restarts", "1"], "restarts")?;
        signal(ranks[3], "KILL");
        let ended = running.end(LIMIT)?;
        done(&ended)?;
        if !ended.err.contains("restart 1 of 1") {
            return Err(format!("there was no restart: {}", ended.err));
        }
        same(&model(&out)?, whole)
    }

    /// Kills ranks while they write a checkpoint, at another time, and before there is a newer checkpoint, after which
    /// fewer ranks go on.
    fn restarts_divided(&self, whole: &[u8]) -> Result<(), String> {
        let words = [&LONG[..], &["--shard"]].concat();
        let (mut running, out, mut ranks) = self.begun_with(&["--restarts", "4"], &words, "divided")?;
        let launcher = running.process();
        let mut before = None;
        for (rank, while_writing) in [(3, true), (0, true), (1, false)] {
            // Without a newer checkpoint, fewer ranks would go on.
            running.until("a checkpoint", || newest(&out, ".json") > before)?;
            if while_writing {
                running.until("the next one is written", || is_writing(&out))?;
            }
            signal(ranks[rank], "KILL");
            let old = ranks.clone();
            let all_new = |now: &[u32]| now.len() == 4 && now.iter().all(|process| !old.contains(process));
            running.until("it starts again", || all_new(&self::ranks(launcher)))?;
            (ranks, before) = (self::ranks(launcher), newest(&out, ".json"));
        }
        // Before they have come any further.
        signal(ranks[2], "KILL");
        let ended = running.end(LIMIT)?;
        done(&ended)?;
        let said = "restart 4 of 4: going on from the newest state on 2 ranks";
        if !ended.err.contains(said) {
            return Err(format!("it does not say `{said}`: {}", ended.err));
        }
        same(&model(&out)?, whole)?;
        complete(&out)
    }

    fn one_divided_dies(&self, whole: &[u8]) -> Result<(), String> {
        let words = [&LONG[..], &["--shard"]].concat();
        let (running, out, ranks) = self.begun_with(&[], &words, "divided-dies")?;
        signal(ranks[2], "KILL");
        failed(&running.end(LIMIT)?, &["the ranks have failed"])?;
        self.goes_on(&out, "divided-dies", whole)
    }

    fn does_not_restart(&self, _: &[u8]) -> Result<(), String> {
        let (running, out, _) = self.begun(&[], "other-seed")?;
        signal(running.process(), "TERM");
        stopped(&running.end(LIMIT)?)?;
        let words = with_out(&[&LONG[..], &["--seed", "1"]].concat(), &out);
        let ended = self.launch(&["-n", "4", "--restarts", "3"], &words, "other-seed-again")?;
        if self.mpi.is_mpich {
            // Its launcher kills the other ranks, and then passes on their signal in place of a code.
            return failed(&ended, &["seed was 0 and is 1 now", "the ranks have failed"]);
        }
        failed(&ended, &["seed was 0 and is 1 now", "another attempt would end like this one"])?;
        if ended.err.contains("restart 1") { Err(format!("it restarts: {}", ended.err)) } else { Ok(()) }
    }

    /// `--find-lr` takes several seconds, and ends at once.
    fn trial_stops(&self, _: &[u8]) -> Result<(), String> {
        let words = ["train", "digits", "--find-lr"].map(String::from);
        let mut running = self.start(&["-n", "2"], &words, "trial")?;
        let launcher = running.process();
        running.until("its ranks begin", || ranks(launcher).len() == 2)?;
        signal(launcher, "TERM");
        let ended = running.end(LIMIT)?;
        failed(&ended, &["the ranks have failed"])?;
        if ended.out.contains("the loss falls fastest") { Err("it was not stopped".into()) } else { Ok(()) }
    }

    fn one_hangs(&self, whole: &[u8]) -> Result<(), String> {
        let (running, out, ranks) = self.begun(&["--deadline", "3"], "one-hangs")?;
        signal(ranks[0], "STOP");
        let ended = running.end(LIMIT)?;
        failed(&ended, &["rank 0 ", " this call within 3."])?;
        self.goes_on(&out, "one-hangs", whole)
    }

    fn plan(&self) -> Result<(), String> {
        let bench = ["bench", "--out", "bench.json", "--threads", "1"].map(String::from);
        done(&self.launch(&["-n", "2"], &bench, "bench")?)?;
        let mut command = Command::new(self.program);
        command.args("plan --bench bench.json --model gpt2-124m --gpus 2 --memory 64GiB".split(' '));
        let ended = Running::start(command.current_dir(self.folder), &self.folder.join("plan"))?.end(LIMIT)?;
        done(&ended)?;
        let measured = ended.out.contains("next ") && !ended.out.contains("extrapolated");
        if measured { Ok(()) } else { Err(format!("the plan is not from the measurement: {}", ended.out)) }
    }
}

/// The ranks that a launcher has started, in the order of their numbers.
pub(super) fn ranks(launcher: u32) -> Vec<u32> {
    let rank = |process: u32| {
        let environment = std::fs::read(format!("/proc/{process}/environ")).ok()?;
        let variables = environment.split(|byte| *byte == 0);
        let named = |text: &'_ [u8]| {
            let number = text.strip_prefix(b"OMPI_COMM_WORLD_RANK=").or_else(|| text.strip_prefix(b"PMI_RANK="));
            number.map(<[u8]>::to_vec)
        };
        let number = variables.into_iter().find_map(named)?;
        Some((String::from_utf8_lossy(&number).parse::<usize>().ok()?, process))
    };
    let mut all: Vec<(usize, u32)> = descendants(launcher).into_iter().filter_map(rank).collect();
    all.sort_unstable();
    all.into_iter().map(|(_, process)| process).collect()
}

pub(super) fn with_out(words: &[&str], out: &Path) -> Vec<String> {
    let mut words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    words.extend(["--out".into(), out.display().to_string()]);
    words
}

pub(super) fn model(out: &Path) -> Result<Vec<u8>, String> {
    let path = out.join("model.safetensors");
    std::fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))
}

pub(super) fn same(model: &[u8], whole: &[u8]) -> Result<(), String> {
    if model == whole { Ok(()) } else { Err("the weights have other bits".into()) }
}

/// The names in a folder that are not hidden.
fn files(folder: &Path) -> Vec<String> {
    let names = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = names.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.retain(|name| !name.starts_with('.'));
    names.sort();
    names
}

/// The largest number of a file of the states of a run, of those that end so.
fn newest(out: &Path, end: &str) -> Option<String> {
    let number =
        |name: &String| name.strip_prefix("checkpoint-")?.strip_suffix(end)?.split('.').next().map(String::from);
    files(&out.join("checkpoints")).iter().filter_map(number).max()
}

/// Whether there are files of a state that has no manifest yet.
fn is_writing(out: &Path) -> bool {
    newest(out, ".safetensors") > newest(out, ".json")
}

pub(super) fn has_state(out: &Path) -> bool {
    files(&out.join("checkpoints")).iter().any(|name| name.ends_with(".json"))
}

pub(super) fn done(ended: &Ended) -> Result<(), String> {
    if ended.status.success() { Ok(()) } else { Err(format!("{}: {} {}", ended.status, ended.out, ended.err)) }
}

/// The folder of a run that is complete has its files, and nothing else.
fn complete(out: &Path) -> Result<(), String> {
    let names: Vec<String> = files(out).into_iter().filter(|name| name != "example.png").collect();
    if names == FILES { Ok(()) } else { Err(format!("the folder has {names:?}")) }
}

/// A training that was asked to stop ends well, and says so.
fn stopped(ended: &Ended) -> Result<(), String> {
    done(ended)?;
    if ended.out.contains("stopped in epoch") { Ok(()) } else { Err(format!("it did not stop: {}", ended.out)) }
}

/// A training that failed says each of these.
pub(super) fn failed(ended: &Ended, said: &[&str]) -> Result<(), String> {
    let missing: Vec<&&str> = said.iter().filter(|text| !ended.err.contains(**text)).collect();
    if ended.status.success() || !missing.is_empty() {
        let Ended { status, out, err, took } = ended;
        return Err(format!("{status} after {took:?}, without {missing:?}: {out} {err}"));
    }
    Ok(())
}

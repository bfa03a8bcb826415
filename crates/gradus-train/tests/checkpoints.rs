//! Tests checkpoints: what they hold, and what becomes of damaged ones.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::sync::Arc;

use gradus_cpu::CpuBackend;
use gradus_nn::{
    AdamConfig, AdamW, Dropout, Forward, Init, Linear, Module, Optimizer, Sequential, Sgd, SgdConfig, StateDict,
};
use gradus_tensor::{DType, Device, ErrorKind, Generator, Tensor};
use gradus_train::{Checkpoint, Checkpoints};

fn device() -> Device {
    Device::from_backend(Arc::new(CpuBackend::new().unwrap()))
}

fn model(device: &Device, seed: u64) -> Sequential {
    let mut rng = Generator::new(seed);
    let dropout = Dropout::new(0.5, &mut rng).unwrap();
    let mut init = Init::new(DType::F32, device, &mut rng);
    Sequential::new().add(Linear::new(2, 4, &mut init).unwrap()).add(dropout).add(Linear::new(4, 1, &mut init).unwrap())
}

fn adam(model: &Sequential) -> AdamW {
    AdamW::new(model.named_parameters(), AdamConfig::default()).unwrap()
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn at_step(step: u64, device: &Device) -> Checkpoint {
    let mut checkpoint = Checkpoint::default();
    checkpoint.step = step;
    checkpoint.model.insert("w", Tensor::full([8], step as f64, DType::F32, device).unwrap());
    checkpoint
}

/// A folder with checkpoints of these steps.
fn filled(folder: &Path, steps: impl IntoIterator<Item = u64>, device: &Device) -> Checkpoints {
    let checkpoints = Checkpoints::open(folder).unwrap().keep(3);
    for step in steps {
        checkpoints.save(at_step(step, device)).unwrap();
        checkpoints.wait().unwrap();
    }
    checkpoints
}

#[test]
fn everything_comes_back() {
    let (dir, device) = (tempfile::tempdir().unwrap(), device());
    let first = model(&device, 1);
    let mut optimizer = adam(&first);
    let x = Tensor::ones([3, 2], DType::F32, &device).unwrap();
    let loss = first.forward(&x).unwrap().square().unwrap().sum_all().unwrap();
    optimizer.step(&loss.backward().unwrap()).unwrap();

    let mut saved = Checkpoint::of(&first, &optimizer).unwrap();
    (saved.step, saved.epoch, saved.batch, saved.best) = (7, 2, 1, true);
    saved.generators.insert("my:noise".into(), Generator::at(u64::MAX, 3));
    saved.texts.insert("note".into(), "a \"text\"\nin two lines".into());
    saved.config.insert("lr".into(), "0.1".into());
    saved.history.push("loss", 1, f64::NAN);
    let mut scaler = StateDict::new();
    scaler.insert("scale", Tensor::scalar(1024.0f32, &device).unwrap());
    scaler.set_metadata("growth", "2000");
    saved.states.insert("scaler".into(), scaler);
    saved.states.insert("empty".into(), StateDict::new());
    let checkpoints = Checkpoints::open(dir.path()).unwrap();
    checkpoints.save(saved.clone()).unwrap();
    // Later steps do not change what is saved.
    first.parameters()[0].set(&Tensor::zeros([4, 2], DType::F32, &device).unwrap()).unwrap();

    let found = checkpoints.newest(&device).unwrap().unwrap();
    assert_eq!((found.step, found.epoch, found.batch, found.best), (7, 2, 1, true));
    assert_eq!(found.generators["my:noise"].seed(), u64::MAX);
    assert_eq!((&found.texts, &found.config), (&saved.texts, &saved.config));
    assert!(found.history.get("loss")[0].1.is_nan());
    assert_eq!(found.states["scaler"].get("scale").unwrap().item().unwrap(), 1024.0);
    assert_eq!(found.states["scaler"].metadata("growth"), Some("2000"));
    assert!(found.states["empty"].is_empty());

    let mut second = model(&device, 99);
    let mut other = adam(&second);
    found.restore(&mut second, &mut other).unwrap();
    let bits = |state: &StateDict| -> Vec<_> {
        let texts = state.iter_metadata().map(|(n, t)| (n.to_owned(), t.as_bytes().to_vec()));
        state.iter().map(|(n, t)| (n.to_owned(), t.to_bytes().unwrap())).chain(texts).collect()
    };
    assert_eq!(bits(&second.state_dict().unwrap()), bits(&saved.model));
    assert_eq!(bits(&other.state_dict().unwrap()), bits(&saved.optimizer));
    let random = |model: &Sequential| format!("{:?}", model.named_random_states());
    assert_eq!(random(&second), random(&first));
}

#[test]
fn another_model_or_optimiser_is_an_error_that_names_what_differs_and_changes_nothing() {
    let device = device();
    let first = model(&device, 1);
    let saved = Checkpoint::of(&first, &adam(&first)).unwrap();
    let bits = |model: &Sequential| model.parameters()[0].to_bytes().unwrap();

    let mut rng = Generator::new(0);
    let mut init = Init::new(DType::F32, &device, &mut rng);
    let mut plain = Sequential::new().add(Linear::new(2, 4, &mut init).unwrap());
    let (mut optimizer, before) = (adam(&plain), bits(&plain));
    let e = saved.restore(&mut plain, &mut optimizer).unwrap_err().to_string();
    assert!(e.contains("the model has no random state 1.") && e.contains("going on from step 0"), "{e}");

    let mut wider = model(&device, 2).add(Linear::new(1, 1, &mut init).unwrap());
    let e = saved.restore(&mut wider, &mut adam(&model(&device, 2))).unwrap_err().to_string();
    assert!(e.contains("3.weight"), "{e}");

    let mut same = model(&device, 2);
    let mut sgd = Sgd::new(same.named_parameters(), SgdConfig::default()).unwrap();
    let before_same = bits(&same);
    let e = saved.restore(&mut same, &mut sgd).unwrap_err().to_string();
    assert!(e.contains("AdamW") || e.contains("adam"), "{e}");
    assert_eq!((bits(&plain), bits(&same)), (before, before_same));
}

#[test]
fn the_newest_and_the_best_are_kept_and_nothing_else() {
    let (dir, device) = (tempfile::tempdir().unwrap(), device());
    let checkpoints = Checkpoints::open(dir.path()).unwrap().keep(2);
    for step in 1..=6 {
        let mut checkpoint = at_step(step, &device);
        checkpoint.best = [1, 3].contains(&step);
        checkpoints.save(checkpoint).unwrap();
        checkpoints.wait().unwrap();
    }
    assert_eq!(checkpoints.newest(&device).unwrap().unwrap().step, 6);
    assert_eq!(checkpoints.best(&device).unwrap().unwrap().step, 3);
    drop(checkpoints);
    let both = |n| [format!("checkpoint-00000{n}.json"), format!("checkpoint-00000{n}.safetensors")];
    assert_eq!(names(dir.path()), [both(3), both(5), both(6)].concat());
    // Numbers go on after a restart.
    let checkpoints = filled(dir.path(), [7], &device);
    assert_eq!(checkpoints.best(&device).unwrap().unwrap().step, 3);
    drop(checkpoints);
    assert_eq!(names(dir.path()), [both(3), both(5), both(6), both(7)].concat());
}

#[test]
fn of_checkpoints_that_come_faster_than_the_disk_the_newest_is_written() {
    let (dir, device) = (tempfile::tempdir().unwrap(), device());
    let checkpoints = Checkpoints::open(dir.path()).unwrap();
    for step in 1..=200 {
        let mut checkpoint = at_step(step, &device);
        checkpoint.best = step == 120;
        checkpoints.save(checkpoint).unwrap();
    }
    assert_eq!(checkpoints.newest(&device).unwrap().unwrap().step, 200);
    assert_eq!(checkpoints.best(&device).unwrap().unwrap().step, 120);
    // Dropping waits.
    checkpoints.save(at_step(201, &device)).unwrap();
    drop(checkpoints);
    assert_eq!(Checkpoints::open(dir.path()).unwrap().newest(&device).unwrap().unwrap().step, 201);
}

#[test]
fn a_damaged_checkpoint_is_named_and_the_one_before_it_is_used() {
    let device = device();
    let data = "checkpoint-000003.safetensors";
    let manifest = "checkpoint-000003.json";
    let flip = |path: &Path, at: usize| {
        let mut bytes = fs::read(path).unwrap();
        let at = at % bytes.len();
        bytes[at] ^= 4;
        fs::write(path, bytes).unwrap();
    };
    type Damage<'a> = Box<dyn Fn(&Path) + 'a>;
    let length = |n: u64| move |path: &Path| fs::File::options().write(true).open(path).unwrap().set_len(n).unwrap();
    let text = |from: &'static str, to: &'static str| {
        move |path: &Path| {
            let text = fs::read_to_string(path).unwrap();
            assert!(text.contains(from));
            fs::write(path, text.replace(from, to)).unwrap();
        }
    };
    let cases: Vec<(&str, Damage<'_>, [&str; 2])> = vec![
        (data, Box::new(|path| flip(path, 3)), [data, "CRC-32"]),
        (data, Box::new(|path| flip(path, usize::MAX)), [data, "CRC-32"]),
        (data, Box::new(length(100)), [data, "has 100 bytes, and its manifest says"]),
        (data, Box::new(length(0)), [data, "has 0 bytes"]),
        (data, Box::new(|path| fs::remove_file(path).unwrap()), [data, "No such file"]),
        (
            data,
            Box::new(|path| {
                fs::remove_file(path).unwrap();
                fs::create_dir(path).unwrap();
            }),
            [data, "is a folder"],
        ),
        (manifest, Box::new(length(0)), [manifest, "EOF"]),
        (manifest, Box::new(length(40)), [manifest, "EOF"]),
        (
            manifest,
            Box::new(text("\"step\": 3", "\"step\": 4")),
            [data, "is of step 3 (epoch 0, batch 0, best false), and its manifest says step 4"],
        ),
        (manifest, Box::new(text("\"best\": false", "\"best\": true")), [data, "best true"]),
        (manifest, Box::new(text("\"format\": 1", "\"format\": 0")), [manifest, "no format"]),
        (manifest, Box::new(text("000003.safe", "000002.safe")), [manifest, "names the file"]),
        (manifest, Box::new(|path| fs::write(path, [0xff; 20]).unwrap()), [manifest, "UTF-8"]),
    ];
    for (file, damage, says) in cases {
        let dir = tempfile::tempdir().unwrap();
        drop(filled(dir.path(), 1..=3, &device));
        damage(&dir.path().join(file));
        let checkpoints = Checkpoints::open(dir.path()).unwrap().keep(2);
        let found = checkpoints.newest(&device).unwrap().unwrap();
        assert_eq!((found.step, found.passed_over.len()), (2, 1));
        let e = found.passed_over[0].to_string();
        assert!(says.iter().all(|text| e.contains(text)), "{says:?} in: {e}");
        // A damaged checkpoint is not counted as one that is kept.
        if file == manifest {
            checkpoints.save(at_step(4, &device)).unwrap();
            checkpoints.wait().unwrap();
            drop(checkpoints);
            let left = names(dir.path());
            assert!(left.iter().all(|name| !name.contains("-000001.") && !name.contains("-000003.")), "{left:?}");
            assert!(left.iter().any(|name| name.contains("-000002.")), "{left:?}");
        }
    }
}

#[test]
fn if_all_are_damaged_the_error_lists_them_and_a_later_format_is_refused() {
    let (dir, device) = (tempfile::tempdir().unwrap(), device());
    drop(filled(dir.path(), 1..=2, &device));
    for n in 1..=2 {
        fs::write(dir.path().join(format!("checkpoint-00000{n}.safetensors")), "x").unwrap();
    }
    let e = Checkpoints::open(dir.path()).unwrap().newest(&device).unwrap_err();
    assert_eq!(e.kind(), &ErrorKind::Format);
    let e = e.to_string();
    assert!(e.contains("no checkpoint") && e.contains("-000001.") && e.contains("-000002."), "{e}");
    let path = dir.path().join("checkpoint-000002.json");
    fs::write(&path, "{\"format\": 3, \"gradus\": \"9.0\"}").unwrap();
    let e = Checkpoints::open(dir.path()).unwrap().newest(&device).unwrap_err();
    assert_eq!(e.kind(), &ErrorKind::Unsupported);
    assert!(e.to_string().contains("has format 3, which Gradus 9.0 wrote"), "{e}");
}

#[test]
fn what_a_killed_run_left_is_removed_before_the_next_checkpoint_and_other_files_stay() {
    let (dir, device) = (tempfile::tempdir().unwrap(), device());
    drop(filled(dir.path(), [1], &device));
    let data = |number: u64| dir.path().join(format!("checkpoint-{number:06}.safetensors"));
    fs::copy(data(1), data(2)).unwrap();
    at_step(1, &device).model.save_safetensors(data(3)).unwrap();
    for name in [".gradus-77-0.tmp", "notes.txt", "checkpoint-2.safetensors", "checkpoint-000004.safetensors"] {
        fs::write(dir.path().join(name), "half").unwrap();
    }
    let before = names(dir.path());
    let checkpoints = Checkpoints::open(dir.path()).unwrap();
    assert!(Checkpoints::open(dir.path()).unwrap_err().to_string().contains("another run saves its checkpoints"));
    assert_eq!(checkpoints.newest(&device).unwrap().unwrap().step, 1);
    let now = names(dir.path());
    assert!(before.iter().all(|name| now.contains(name)), "{now:?}");
    checkpoints.save(at_step(2, &device)).unwrap();
    checkpoints.wait().unwrap();
    drop(checkpoints);
    let want = [
        "checkpoint-000001.json",
        "checkpoint-000001.safetensors",
        "checkpoint-000003.safetensors",
        "checkpoint-000004.safetensors",
        "checkpoint-000005.json",
        "checkpoint-000005.safetensors",
        "checkpoint-2.safetensors",
        "notes.txt",
    ];
    assert_eq!(names(dir.path()), want);
    let empty = tempfile::tempdir().unwrap();
    assert!(Checkpoints::open(empty.path()).unwrap().newest(&device).unwrap().is_none());
    assert!(Checkpoints::open(dir.path().join("notes.txt")).is_err());
}

#[test]
fn a_file_that_has_the_name_of_the_next_checkpoint_stays() {
    let (dir, device) = (tempfile::tempdir().unwrap(), device());
    for name in ["checkpoint-000001.json", "checkpoint-000002.safetensors"] {
        let checkpoints = Checkpoints::open(dir.path()).unwrap();
        fs::write(dir.path().join(name), "mine").unwrap();
        checkpoints.save(at_step(1, &device)).unwrap();
        assert!(checkpoints.wait().unwrap_err().to_string().contains("is there already"));
        assert_eq!(fs::read(dir.path().join(name)).unwrap(), b"mine");
    }
}

#[test]
fn after_the_largest_number_there_is_no_checkpoint() {
    let (dir, device) = (tempfile::tempdir().unwrap(), device());
    fs::write(dir.path().join(format!("checkpoint-{}.safetensors", u64::MAX - 1)), "mine").unwrap();
    let checkpoints = Checkpoints::open(dir.path()).unwrap();
    checkpoints.save(at_step(1, &device)).unwrap();
    assert!(checkpoints.wait().unwrap_err().to_string().contains("the largest there is"));
    drop(checkpoints);
    fs::write(dir.path().join(format!("checkpoint-{}.safetensors", u64::MAX)), "mine").unwrap();
    assert!(Checkpoints::open(dir.path()).unwrap_err().to_string().contains("the largest there is"));
}

#[cfg(unix)]
#[test]
fn what_cannot_be_read_now_is_an_error_and_is_not_removed() {
    use std::os::unix::fs::symlink;
    let (dir, device) = (tempfile::tempdir().unwrap(), device());
    drop(filled(dir.path(), 1..=2, &device));
    // A circle of links stands for an error that passes.
    let (data, aside) = (dir.path().join("checkpoint-000002.safetensors"), dir.path().join("aside"));
    fs::rename(&data, &aside).unwrap();
    symlink("checkpoint-000002.safetensors", &data).unwrap();
    let checkpoints = Checkpoints::open(dir.path()).unwrap();
    assert_eq!(checkpoints.newest(&device).unwrap_err().kind(), &ErrorKind::Io);
    fs::rename(&aside, &data).unwrap();
    checkpoints.save(at_step(3, &device)).unwrap();
    checkpoints.wait().unwrap();
    assert!(names(dir.path()).iter().any(|name| name.contains("-000002.json")), "{:?}", names(dir.path()));
    drop(checkpoints);
    let pipe = dir.path().join("checkpoint-000009.json");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    assert!(Checkpoints::open(dir.path()).unwrap_err().to_string().contains("is not a regular file"));
}

#[test]
fn the_folders_that_are_made_are_flushed() {
    #[derive(Debug, Default)]
    struct Watched(std::sync::Mutex<Vec<std::path::PathBuf>>);
    impl gradus_file::Disk for Watched {
        fn create(&self, path: &Path) -> std::io::Result<Box<dyn gradus_file::DiskFile>> {
            gradus_file::Os.create(path)
        }
        fn rename(&self, from: &Path, to: &Path) -> std::io::Result<()> {
            gradus_file::Os.rename(from, to)
        }
        fn hard_link(&self, from: &Path, to: &Path) -> std::io::Result<()> {
            gradus_file::Os.hard_link(from, to)
        }
        /// Old checkpoints cannot be removed.
        fn remove(&self, path: &Path) -> std::io::Result<()> {
            match path.extension().is_some_and(|kind| kind == "json") {
                true => Err(std::io::ErrorKind::PermissionDenied.into()),
                false => gradus_file::Os.remove(path),
            }
        }
        fn sync_folder(&self, path: &Path) -> std::io::Result<()> {
            self.0.lock().unwrap().push(path.to_owned());
            gradus_file::Os.sync_folder(path)
        }
    }
    let (dir, device) = (tempfile::tempdir().unwrap(), device());
    let disk = Arc::new(Watched::default());
    let checkpoints = Checkpoints::open_on(disk.clone(), dir.path().join("a/b")).unwrap();
    assert_eq!(*disk.0.lock().unwrap(), [dir.path().to_owned(), dir.path().join("a")]);
    // What cannot be removed is no error: the new checkpoint is safe.
    for step in 1..=4 {
        checkpoints.save(at_step(step, &device)).unwrap();
        checkpoints.wait().unwrap();
    }
    assert_eq!(checkpoints.newest(&device).unwrap().unwrap().step, 4);
    assert_eq!(names(checkpoints.path()).len(), 8 + 1, "{:?}", names(checkpoints.path()));
}

#[test]
fn names_of_states_that_could_not_be_told_apart_are_refused() {
    let (dir, device) = (tempfile::tempdir().unwrap(), device());
    let checkpoints = Checkpoints::open(dir.path()).unwrap();
    let mut checkpoint = at_step(1, &device);
    checkpoint.states.insert("a.b".into(), StateDict::new());
    assert!(checkpoints.save(checkpoint).unwrap_err().to_string().contains("a state is called \"a.b\""));
}

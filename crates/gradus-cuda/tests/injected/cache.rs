//! The cache of compiled kernels on disk.

use std::path::{Path, PathBuf};

use crate::stand_in::{computes, fail, is_inside, opened, passed, program, with_variables};

/// An empty folder of this test.
fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("gradus-cuda-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

fn files(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder).expect("the folder").map(|entry| entry.expect("an entry").path()).collect()
}

/// Runs the test itself in processes of their own, `at_once` of them, over a folder.
fn run(test: &str, folder: &Path, at_once: usize) {
    let path = folder.to_str().expect("a path in UTF-8");
    let start = || program(test, &[("GRADUS_CUDA_CACHE", path)]).stdout(std::process::Stdio::piped()).spawn();
    let all: Vec<_> = (0..at_once).map(|_| start().expect("the program starts")).collect();
    for one in all {
        passed(test, &one.wait_with_output().expect("the program ends"));
    }
}

#[test]
fn a_damaged_file_is_compiled_again() {
    let test = "cache::a_damaged_file_is_compiled_again";
    if is_inside(test) {
        if let Some(device) = opened() {
            computes(&device);
        }
        return;
    }
    let folder = folder("damaged");
    run(test, &folder, 1);
    type Damage = fn(Vec<u8>) -> Vec<u8>;
    let damages: [Damage; 4] = [
        |bytes| bytes[..bytes.len() / 2].to_vec(),
        |_| Vec::new(),
        |mut bytes| {
            let at = bytes.len() - 10;
            bytes[at] ^= 1;
            bytes
        },
        |bytes| b"not a kernel".iter().copied().chain(bytes).collect(),
    ];
    for damage in damages {
        for file in files(&folder) {
            let whole = std::fs::read(&file).expect("a file");
            std::fs::write(&file, damage(whole.clone())).expect("a damaged file");
            run(test, &folder, 1);
            assert_eq!(std::fs::read(&file).expect("a file"), whole, "the file is whole again");
        }
    }
    std::fs::remove_dir_all(&folder).expect("the folder");
}

#[test]
fn code_that_the_driver_refuses_is_compiled_again() {
    let test = "cache::code_that_the_driver_refuses_is_compiled_again";
    if is_inside(test) {
        let cached = std::env::var_os("GRADUS_CUDA_CACHE").is_some_and(|folder| !files(Path::new(&folder)).is_empty());
        if let Some(device) = opened() {
            if cached {
                fail("cuModuleLoadDataEx:1=200");
            }
            computes(&device);
            eprintln!("{}", if cached { "compiled again" } else { "compiled" });
        }
        return;
    }
    let folder = folder("refused");
    run(test, &folder, 1);
    let path = folder.to_str().expect("a path in UTF-8");
    let output = program(test, &[("GRADUS_CUDA_CACHE", path)]).output().expect("the program starts");
    let text = passed(test, &output);
    assert!(text.contains("compiled again") || text.contains("skipped"), "{text}");
    std::fs::remove_dir_all(&folder).expect("the folder");
}

#[test]
fn a_cache_that_cannot_be_written_costs_only_time() {
    let test = "cache::a_cache_that_cannot_be_written_costs_only_time";
    with_variables(test, &[("GRADUS_CUDA_CACHE", "/dev/full/cache")], || {
        if let Some(device) = opened() {
            computes(&device);
        }
    });
}

/// A file of this process may have no byte, which is the same for a program as a disk that is full: the file is made, and
/// writing fails.
#[cfg(unix)]
#[test]
fn a_full_disk_costs_only_time_and_leaves_no_damaged_file() {
    let test = "cache::a_full_disk_costs_only_time_and_leaves_no_damaged_file";
    if is_inside(test) {
        if let Some(device) = opened() {
            computes(&device);
        }
        return;
    }
    let folder = folder("full");
    let inside = program(test, &[]);
    let mut limited = std::process::Command::new("sh");
    limited.args(["-c", "trap '' XFSZ && ulimit -f 0 && exec \"$0\" \"$@\""]).arg(inside.get_program());
    limited.args(inside.get_args()).env("GRADUS_CUDA_CACHE", &folder);
    limited.envs(inside.get_envs().filter_map(|(name, value)| Some((name, value?))));
    // The stand-in writes files too where these are set.
    limited.env_remove("GRADUS_PTX_DUMP").env_remove("GRADUS_PTX_STATISTICS");
    passed(test, &limited.output().expect("the shell starts"));
    assert_eq!(files(&folder), <[PathBuf; 0]>::default());
    run(test, &folder, 1);
    std::fs::remove_dir_all(&folder).expect("the folder");
}

#[test]
fn several_processes_share_one_cache() {
    let test = "cache::several_processes_share_one_cache";
    if is_inside(test) {
        if let Some(device) = opened() {
            computes(&device);
        }
        return;
    }
    let folder = folder("shared");
    run(test, &folder, 4);
    let leftover = |file: &PathBuf| file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("new-"));
    assert_eq!(files(&folder).into_iter().filter(leftover).count(), 0);
    run(test, &folder, 1);
    std::fs::remove_dir_all(&folder).expect("the folder");
}

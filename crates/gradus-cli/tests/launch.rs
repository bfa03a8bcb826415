//! What `gradus launch` and `gradus train` under a launcher of MPI refuse. `cargo xtask dist` runs them on ranks.
#![allow(clippy::unwrap_used)]

mod support;

#[cfg(feature = "mpi")]
use std::path::Path;

use support::{gradus, text};

/// Runs a command that must fail, and returns its standard error.
fn fail(line: &str, environment: &[(&str, &str)]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let mut command = gradus();
    command.current_dir(dir.path()).args(line.split(' ')).envs(environment.iter().copied());
    let output = command.output().unwrap();
    let (out, err) = text(&output);
    assert!(!output.status.success() && out.is_empty(), "{line}: {out}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "{line} has left files behind");
    err
}

#[test]
fn numbers_of_ranks_that_a_batch_cannot_be_cut_for_are_refused() {
    for n in ["0", "3", "32", "-1", "x"] {
        let err = fail(&format!("launch -n {n} -- train digits"), &[]);
        assert!(err.contains("1, 2, 4, 8 or 16 ranks") || err.contains("unexpected argument"), "{err}");
    }
    assert!(fail("launch -- train digits", &[]).contains("-n <N>"));
    assert!(fail("launch -n 2", &[]).contains("<COMMAND>"));
}

#[test]
fn a_process_alone_has_nobody_to_divide_its_weights_with() {
    let err = fail("train digits --shard", &[]);
    assert!(err.contains("this process is alone") && err.contains("gradus launch -n 4"), "{err}");
    assert!(fail("train digits --shard --find-lr", &[]).contains("cannot be used with"));
}

#[cfg(not(feature = "mpi"))]
#[test]
fn without_mpi_the_error_says_what_to_build_and_install() {
    let said = "build it with --features mpi, and install Open MPI or MPICH (Debian: openmpi-bin)";
    assert!(fail("launch -n 2 -- train digits", &[]).contains(said));
    for size in ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"] {
        let err = fail("train digits", &[(size, "4")]);
        assert!(err.contains("started 4 processes") && err.contains(said), "{err}");
    }
}

#[cfg(feature = "mpi")]
#[test]
fn commands_that_do_not_train_are_refused_and_restarts_need_a_folder() {
    assert!(fail("launch -n 2 -- devices", &[]).contains("only `train` and `bench` run on several ranks"));
    assert!(fail("launch -n 2 --restarts 1 -- train digits", &[]).contains("--restarts without --out"));
    let config = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(config.path(), "force = true\n").unwrap();
    let line = format!("launch -n 2 --restarts 1 -- train digits --out x --config {}", config.path().display());
    assert!(fail(&line, &[]).contains("`force` in the file of --config"));
    let err = fail("launch -n 2 -- train digits", &[("PATH", "/nowhere")]);
    assert!(err.contains("there is no mpirun") && err.contains("openmpi-bin"), "{err}");
}

/// Writes a program into a folder.
#[cfg(feature = "mpi")]
fn program(dir: &Path, name: &str, text: &str) {
    use std::os::unix::fs::PermissionsExt;

    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// The `PATH` on which a folder comes first.
#[cfg(feature = "mpi")]
fn first(dir: &Path) -> String {
    format!("{}:{}", dir.display(), std::env::var("PATH").unwrap())
}

/// Open MPI 5's `mpirun` passes on to the ranks what comes on its standard input, but not the end of that input.
#[cfg(feature = "mpi")]
#[test]
fn a_line_asks_the_ranks_to_stop_also_if_the_launcher_is_killed() {
    let until = |path: &Path| {
        let begun = std::time::Instant::now();
        while !path.exists() {
            assert!(begun.elapsed().as_secs() < 60, "{} does not come", path.display());
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    };
    for signal in ["-TERM", "-KILL"] {
        let dir = tempfile::tempdir().unwrap();
        let text = "[ \"$1\" = --version ] && echo Open MPI && exit 0\ntouch begun\ncat > part\nmv part came\n";
        program(dir.path(), "mpirun", &format!("#!/bin/sh\n{text}"));
        let mut command = gradus();
        command.current_dir(dir.path()).args("launch -n 2 -- train digits".split(' ')).env("PATH", first(dir.path()));
        let mut launcher = command.stderr(std::process::Stdio::null()).spawn().unwrap();
        until(&dir.path().join("begun"));
        let mut kill = std::process::Command::new("kill");
        assert!(kill.args([signal, &launcher.id().to_string()]).status().unwrap().success());
        launcher.wait().unwrap();
        until(&dir.path().join("came"));
        assert_eq!(std::fs::read(dir.path().join("came")).unwrap(), b"\n", "{signal}");
    }
}

/// The `mpirun` of Open MPI 4.1 can wait for itself for ever after a rank was killed.
#[cfg(all(feature = "mpi", target_os = "linux"))]
#[test]
fn an_mpirun_that_outlives_its_ranks_is_ended() {
    let dir = tempfile::tempdir().unwrap();
    let text = "[ \"$1\" = --version ] && echo Open MPI && exit 0\nsleep 0.5 &\nexec sleep 3600\n";
    program(dir.path(), "mpirun", &format!("#!/bin/sh\n{text}"));
    let mut command = gradus();
    command.current_dir(dir.path()).args("launch -n 2 -- train digits".split(' ')).env("PATH", first(dir.path()));
    let output = command.output().unwrap();
    let (_, err) = support::text(&output);
    assert!(!output.status.success(), "{err}");
    for said in ["all ranks have ended and mpirun has not", "the ranks have failed"] {
        assert!(err.contains(said), "{err}");
    }
}

/// With programs in the place of `mpirun` and `ssh`: the first fails, and the second takes some machines for gone.
#[cfg(feature = "mpi")]
#[test]
fn hosts_are_asked_with_the_options_of_the_user_and_for_a_limited_time() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| program(dir.path(), name, text);
    write("mpirun", "#!/bin/sh\n[ \"$1\" = --version ] && echo Open MPI && exit 0\nexit 1\n");
    write(
        "ssh",
        "#!/bin/sh\n[ \"$1 $2\" = '-p 7' ] || { echo \"port $2\" >&2; exit 255; }\n\
         case $3 in slow) exec sleep 300;; gone) echo no route >&2; exit 255;; esac\n",
    );
    write("hosts", "slow\ngone\nthere\n");
    let mut command = gradus();
    command.current_dir(dir.path()).args("launch -n 2 --hosts hosts -- train digits".split(' '));
    command.env("PATH", first(dir.path())).env("HYDRA_LAUNCHER_EXTRA_ARGS", "-p 7").env_remove("OMPI_MCA_plm_rsh_args");
    let begun = std::time::Instant::now();
    let output = command.env_remove("PRTE_MCA_plm_ssh_args").output().unwrap();
    let err = text(&output).1;
    assert!(!output.status.success() && begun.elapsed().as_secs() < 60, "{err}");
    for said in ["slow does not answer: no answer in time", "gone does not answer: no route"] {
        assert!(err.contains(said), "{err}");
    }
    assert!(!err.contains("there does not answer"), "{err}");
}

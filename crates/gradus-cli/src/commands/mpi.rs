//! What the launcher and its ranks agree on.

use std::process::ExitCode;
use std::time::Duration;

use gradus::{Error, ErrorKind};

/// The variable that tells ranks that `gradus launch` started them: a line on the standard input, or its end, asks them to
/// stop.
pub(crate) const LAUNCHED: &str = "GRADUS_LAUNCHED";

/// The variable with the seconds that a rank waits for the others.
pub(crate) const DEADLINE: &str = "GRADUS_DEADLINE";

/// The exit code of a rank whose error would come again in another attempt. `mpirun` ends with the code of the first rank
/// that failed, or with all codes joined by OR. Neither the code of a panic (101) nor the usual signals have this bit.
const RECURS: u8 = 16;

/// The delay before a rank ends that has printed its error: a launcher ends all ranks once one has ended, and the others
/// need the time to print theirs.
const SOON: Duration = Duration::from_millis(300);

/// The same for an error that only says that another rank has ended, so that `mpirun` sees the code of that one first.
const LATER: Duration = Duration::from_millis(800);

/// The environment variables in which launchers give the number of all processes.
pub(super) const SIZE: [&str; 2] = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"];

/// The exit code of a program that ends with this error, after a delay if it is one of several ranks.
pub(crate) fn exit_code(error: &Error) -> ExitCode {
    let (delay, code) = match error.kind() {
        ErrorKind::Peer => (LATER, ExitCode::FAILURE),
        // The device may have been lost, and fewer ranks on a machine may have enough memory.
        ErrorKind::Backend | ErrorKind::OutOfMemory { .. } => (SOON, ExitCode::FAILURE),
        _ => (SOON, ExitCode::from(RECURS)),
    };
    if announced(&SIZE).is_some_and(|ranks| ranks > 1) {
        std::thread::sleep(delay);
    }
    if std::env::var_os(LAUNCHED).is_some() { code } else { ExitCode::FAILURE }
}

/// Whether ranks that ended with this code would end so again: one of them had an error of its own, or does not know the
/// options (2). Otherwise a rank was lost: it was killed, panicked, did not answer, or its device or machine is gone.
pub(crate) fn recurs(code: Option<i32>) -> bool {
    code.is_some_and(|code| code == 2 || (code & i32::from(RECURS) != 0 && code < 128))
}

/// What a launcher announces in one of these environment variables.
pub(crate) fn announced(names: &[&str]) -> Option<usize> {
    names.iter().find_map(|name| std::env::var(name).ok()?.parse().ok())
}

/// The error of a program that was built without MPI.
pub(crate) fn without_mpi(message: impl Into<String>) -> Error {
    let e = Error::new(ErrorKind::Unsupported, "mpi", message);
    e.help("build it with --features mpi, and install Open MPI or MPICH (Debian: openmpi-bin)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_errors_of_the_ranks_themselves_recur() {
        // The last is of MPICH: one rank had an error, and the others were killed.
        for code in [2, RECURS.into(), i32::from(RECURS) | 1, i32::from(RECURS) | 9] {
            assert!(recurs(Some(code)), "{code}");
        }
        for code in [Some(1), Some(9), Some(101), Some(130), Some(137), Some(143), Some(255), None] {
            assert!(!recurs(code), "{code:?}");
        }
    }
}

//! What the launcher and its ranks agree on.

use gradus::{Error, ErrorKind};

/// The variable that tells ranks that `gradus launch` started them: the end of the standard input asks them to stop.
pub(crate) const LAUNCHED: &str = "GRADUS_LAUNCHED";

/// The variable with the seconds that a rank waits for the others.
pub(crate) const DEADLINE: &str = "GRADUS_DEADLINE";

/// The error of a program that was built without MPI.
pub(crate) fn without_mpi(message: impl Into<String>) -> Error {
    let e = Error::new(ErrorKind::Unsupported, "mpi", message);
    e.help("build it with --features mpi, and install Open MPI or MPICH (Debian: openmpi-bin)")
}

//! What was started wrongly: ranks that differ, another MPI, and none.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use super::command::{Gradus, LIMIT, failed, with_out};
use super::process::Running;

impl Gradus<'_> {
    pub(super) fn differ(&self, _: &[u8]) -> Result<(), String> {
        let mut mpirun = self.mpi.mpirun(1);
        mpirun.arg(self.program).args(with_out(&["train", "digits"], &self.folder.join("differ")));
        mpirun.args([":", "-n", "1"]).arg(self.program).args(["train", "digits", "--seed", "1"]);
        let ended = Running::start(mpirun.current_dir(self.folder), &self.folder.join("differ"))?.end(LIMIT)?;
        failed(&ended, &["seed was 0 and is 1 now", "rank 1: the settings of rank 0 differ"])
    }

    /// One rank is of another build, which says that it speaks another protocol.
    pub(super) fn versions(&self, _: &[u8]) -> Result<(), String> {
        let other = self.other_build()?;
        let mut mpirun = self.mpi.mpirun(1);
        mpirun.arg(self.program).args(with_out(&["train", "digits"], &self.folder.join("versions")));
        mpirun.args([":", "-n", "1"]).arg(&other).args(["train", "digits"]);
        mpirun.args([":", "-n", "2"]).arg(self.program).args(["train", "digits"]);
        let ended =
            Running::start(mpirun.current_dir(self.folder), &self.folder.join("versions-output"))?.end(LIMIT)?;
        failed(&ended, &["ranks run different versions of Gradus", "ranks 0, 2, 3: gradus ", "rank 1: gradus "])?;
        for rank in 0..4 {
            failed(&ended, &[&format!("this is rank {rank} of 4")])?;
        }
        failed(&ended, &[", protocol 1", ", protocol 9"])
    }

    /// A copy of the program with another version of the protocol in its bytes.
    fn other_build(&self) -> Result<PathBuf, String> {
        let path = self.folder.join("other-gradus");
        let broken = |e: std::io::Error| format!("{}: {e}", path.display());
        let mut sed = Command::new("sed");
        sed.arg("s/, protocol 1/, protocol 9/g").arg(self.program).env("LC_ALL", "C");
        crate::workspace::done(sed.stdout(std::fs::File::create(&path).map_err(broken)?), "sed")?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).map_err(broken)?;
        Ok(path)
    }

    /// The library of the other MPI, if there is one, believes to be alone.
    pub(super) fn other_mpi(&self) -> Result<(), String> {
        let other = if self.mpi.is_mpich { "libmpi.so.40" } else { "libmpich.so.12" };
        let mut mpirun = self.mpi.mpirun(2);
        mpirun.arg(self.program).args(["train", "digits"]).env("GRADUS_MPI", other);
        let ended = Running::start(mpirun.current_dir(self.folder), &self.folder.join("other-mpi"))?.end(LIMIT)?;
        if ended.err.contains("there is no MPI library that can be loaded") {
            println!("there is no {other} to test with");
            return failed(&ended, &["GRADUS_MPI"]);
        }
        failed(&ended, &["the launcher started 2 ranks, but", "mpirun belongs to another MPI"])
    }

    pub(super) fn nothing_there(&self) -> Result<(), String> {
        let mut command = Command::new(self.program);
        command.args(["launch", "-n", "2", "--", "train", "digits"]).env("PATH", self.folder.join("nothing"));
        let ended = Running::start(&mut command, &self.folder.join("no-mpirun"))?.end(LIMIT)?;
        failed(&ended, &["there is no mpirun", "install Open MPI or MPICH (Debian: openmpi-bin)"])?;
        let mut mpirun = self.mpi.mpirun(2);
        mpirun.arg(self.program).args(["train", "digits"]).env("GRADUS_MPI", self.folder.join("no.so"));
        let ended = Running::start(mpirun.current_dir(self.folder), &self.folder.join("no-library"))?.end(LIMIT)?;
        failed(&ended, &["there is no MPI library that can be loaded", "GRADUS_MPI"])
    }
}

//! How ranks that divide the parameters find and read the checkpoint of which each has written a part.
//!
//! Files may take longer to read than a rank waits for another. So each reads on a thread of its own, while all tell each
//! other that they are there.

use std::cell::Cell;
use std::path::PathBuf;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use gradus_tensor::{Device, Error, ErrorKind, Here, Result};

use crate::checkpoint::Stored;
use crate::ranks::{Ranks, all_have};
use crate::{Checkpoint, Checkpoints};

const OP: &str = "load_checkpoint";

/// How often ranks that wait for files look whether all have read theirs.
pub(super) const LOOK: Duration = Duration::from_millis(10);

/// The newest checkpoint of rank 0 that is not damaged: its number and its texts, on rank 0 alone. `folder` is that of
/// rank 0. All ranks call it: each compares the checksums of some files.
#[track_caller]
pub(super) fn newest(
    ranks: &dyn Ranks,
    folder: Result<Option<&Checkpoints>>,
    device: &Device,
) -> Result<Option<(u64, Checkpoint)>> {
    // All ranks verify what rank 0 names, until it names none.
    let next = |own: Result<Option<(String, u64)>>| -> Result<Option<(String, u64)>> {
        Ok(all_have(ranks, OP, own)??.into_iter().next().flatten())
    };
    if ranks.rank() > 0 {
        while let Some((folder, number)) = next(Ok(None))? {
            verify(ranks, folder.into(), number)?;
        }
        return Ok(None);
    }
    let all_know = Cell::new(false);
    let damage_of = |folder: &Checkpoints, number: u64| {
        let asked = path_for_all(folder)?;
        let found = next(Ok(Some((asked.clone(), number)))).and_then(|_| verify(ranks, asked.into(), number));
        match found.inspect_err(|_| all_know.set(true))? {
            None => Ok(()),
            Some(m) => Err(Error::new(ErrorKind::Format, OP, m)),
        }
    };
    let find = |folder: &Checkpoints| folder.newest_texts(device, |number| damage_of(folder, number));
    let found = folder.and_then(|folder| folder.map_or(Ok(None), find));
    if all_know.get() {
        return found;
    }
    let (found, told) = match found {
        Ok(found) => (found, Ok(None)),
        Err(e) => (None, Err(e)),
    };
    next(told)?;
    Ok(found)
}

/// Has each rank compare the checksums of some files of a checkpoint. What is damaged, if anything. An error is one of all
/// ranks.
#[track_caller]
fn verify(ranks: &dyn Ranks, folder: PathBuf, number: u64) -> Result<Option<String>> {
    let (rank, size) = (ranks.rank(), ranks.size());
    let damage = match beside(ranks, move || Stored::verify(&folder, number, |file| file % size == rank))? {
        Ok(()) => Ok(None),
        Err(e) if *e.kind() == ErrorKind::Format => Ok(Some(e.message().to_owned())),
        Err(e) => Err(e),
    };
    Ok(all_have(ranks, OP, damage)??.into_iter().flatten().next())
}

/// Runs `f` on a thread of each rank, which all call this. The outer error is one of the ranks; the thread then ends by
/// itself.
#[track_caller]
pub(super) fn beside<R: Send + 'static>(
    ranks: &dyn Ranks,
    f: impl FnOnce() -> Result<R> + Send + 'static,
) -> Result<Result<R>> {
    let thread = Builder::new().name("gradus-checkpoints".into()).spawn(f);
    let thread = thread.map_err(|e| Error::io(OP, "a thread", e)).here();
    loop {
        let is_done = thread.as_ref().map_or(true, JoinHandle::is_finished);
        let mut done = [f64::from(u8::from(is_done))];
        ranks.sum(&mut done)?;
        if done[0] == ranks.size() as f64 {
            break;
        }
        std::thread::sleep(LOOK);
    }
    let panicked = |_| Err(Error::new(ErrorKind::Backend, OP, "the device panicked"));
    Ok(thread.and_then(|thread| thread.join().unwrap_or_else(panicked)))
}

/// The folder as the other ranks are told it. Symbolic links, which may lead elsewhere on another machine, stay.
#[track_caller]
pub(super) fn path_for_all(folder: &Checkpoints) -> Result<String> {
    let failed = |e| Error::io("trainer", folder.path().display(), e);
    let path = std::path::absolute(folder.path()).map_err(failed).here()?;
    path.to_str().map(str::to_owned).ok_or_else(|| {
        let m = format!("{} is no Unicode, and other ranks cannot be told of it", path.display());
        Error::argument("trainer", m).help("name a folder of letters and digits for the checkpoints")
    })
}

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Instant;

    use gradus_nn::Module;
    use gradus_tensor::{Gradients, Tensor};

    use super::*;
    use crate::Pass;

    /// Two ranks, of which the other one is ready after some time.
    struct Two(AtomicUsize, Instant);

    impl Ranks for Two {
        fn rank(&self) -> usize {
            0
        }
        fn size(&self) -> usize {
            2
        }
        fn parts(&self, samples: usize) -> Vec<Range<usize>> {
            std::iter::once(0..samples).collect()
        }
        fn backward(&self, _: &dyn Module, _: usize, _: &mut Pass<'_>) -> Result<(Tensor, Gradients)> {
            Err(Error::argument("backward", "nothing is trained"))
        }
        fn sum(&self, numbers: &mut [f64]) -> Result<()> {
            if self.0.fetch_add(1, Ordering::Relaxed) > 1000 {
                return Err(Error::new(ErrorKind::Peer, "sum", "the other rank has left"));
            }
            numbers[0] += f64::from(u8::from(Instant::now() >= self.1));
            Ok(())
        }
        fn broadcast(&self, _: usize, bytes: Vec<u8>) -> Result<Vec<u8>> {
            Ok(bytes)
        }
        fn give_up(&self, _: &str) {}
    }

    #[test]
    fn ranks_hear_of_each_other_while_files_are_read() {
        let sleeps = |millis: u64| {
            move || {
                std::thread::sleep(Duration::from_millis(millis));
                Ok(())
            }
        };
        for (own, other) in [(200, 0), (0, 200)] {
            let begun = Instant::now();
            let ranks = Two(AtomicUsize::new(0), begun + Duration::from_millis(other));
            beside(&ranks, sleeps(own)).unwrap().unwrap();
            assert!(begun.elapsed() >= Duration::from_millis(200));
            assert!(ranks.0.load(Ordering::Relaxed) > 3, "{} calls", ranks.0.load(Ordering::Relaxed));
        }
        // A panic and an error are this rank's own.
        let ranks = Two(AtomicUsize::new(0), Instant::now());
        let failed = || -> Result<()> { Err(Error::argument("read", "damaged")) };
        assert_eq!(beside(&ranks, failed).unwrap().unwrap_err().message(), "damaged");
        // The other rank leaves while the disk stalls.
        let ranks = Two(AtomicUsize::new(999), Instant::now());
        let begun = Instant::now();
        assert_eq!(*beside(&ranks, sleeps(20_000)).unwrap_err().kind(), ErrorKind::Peer);
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
}

//! What a rank tells all others first: its version, and where it runs.

use gradus_tensor::{Error, ErrorKind, Result};

use super::machine;
use crate::group::names;

/// What all ranks must have in common to understand each other. The number of the protocol grows with each change of the
/// bytes that ranks exchange, or of the calls that layers and trainers make, between two versions of the crate.
const VERSION: &str = concat!("gradus ", env!("CARGO_PKG_VERSION"), ", protocol 1");
/// How the version of any rank begins.
const PROGRAM: &str = "gradus ";
/// Room for a version in the first message of a rank. Like the length of that message, it never changes.
const VERSION_BYTES: usize = 48;
pub(super) const GREETING: usize = VERSION_BYTES + machine::PLACE;
const _: () = assert!(VERSION.len() < VERSION_BYTES);

/// What this rank tells all others first.
pub(super) fn greeting() -> [u8; GREETING] {
    let mut greeting = [0; GREETING];
    greeting[..VERSION.len()].copy_from_slice(VERSION.as_bytes());
    greeting[VERSION_BYTES..].copy_from_slice(&machine::here());
    greeting
}

/// Fails on all ranks alike unless all of them are of one version.
pub(super) fn one_version(greetings: &[[u8; GREETING]], rank: usize) -> Result<()> {
    let mut versions: Vec<(String, Vec<usize>)> = vec![];
    for (rank, greeting) in greetings.iter().enumerate() {
        let text = greeting[..VERSION_BYTES].split(|byte| *byte == 0).next().and_then(|text| str::from_utf8(text).ok());
        let text = text.filter(|text| text.starts_with(PROGRAM)).unwrap_or("another program, or an earlier version");
        match versions.iter_mut().find(|(version, _)| version == text) {
            Some((_, ranks)) => ranks.push(rank),
            None => versions.push((text.to_owned(), vec![rank])),
        }
    }
    if versions.len() < 2 {
        return Ok(());
    }
    let e = Error::new(ErrorKind::Unsupported, "mpi", "ranks run different versions of Gradus");
    let e = versions.iter().fold(e, |e, (version, ranks)| e.note(format!("{}: {version}", names(ranks))));
    let e = e.note(format!("this is rank {rank} of {}", greetings.len()));
    Err(e.help("start the same build of the program on all ranks, and on all machines"))
}

/// The process of the rank with this greeting, if it runs on this machine.
pub(super) fn process(greeting: &[u8; GREETING]) -> Option<u32> {
    machine::process(greeting.last_chunk()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_that_differ_are_named_with_their_ranks() {
        let mut all = [greeting(); 4];
        assert!(one_version(&all, 0).is_ok());
        all[1][..VERSION_BYTES].fill(0);
        all[1][..13].copy_from_slice(b"gradus 99.0.0");
        // One that tells its place only.
        all[3] = [7; GREETING];
        let e = one_version(&all, 2).unwrap_err();
        assert_eq!(*e.kind(), ErrorKind::Unsupported);
        let said =
            [&format!("ranks 0, 2: {VERSION}")[..], "rank 1: gradus 99.0.0", "rank 3: another program", "rank 2 of 4"];
        said.iter().for_each(|said| assert!(e.to_string().contains(said), "{e}"));
    }
}

//! Which ranks run on one machine, and whether their processes are alive.

use std::path::Path;

/// The bytes of [`here`].
pub(super) const PLACE: usize = 16;

/// The machine of this process, as a hash, and the number of the process. On a system without `/proc`, the hash is 0.
pub(super) fn here() -> [u8; PLACE] {
    let mut place = [0; PLACE];
    place[..8].copy_from_slice(&machine().unwrap_or(0).to_le_bytes());
    place[8..12].copy_from_slice(&std::process::id().to_le_bytes());
    place
}

/// The number of the process at another place, if it runs on this machine.
pub(super) fn process(place: &[u8; PLACE]) -> Option<u32> {
    let [machine @ .., a, b, c, d, _, _, _, _] = *place;
    (Some(u64::from_le_bytes(machine)) == self::machine()).then(|| u32::from_le_bytes([a, b, c, d]))
}

/// A hash of what two processes share if one sees the other (FNV-1a): the start of the machine, and the numbering of
/// processes, which a container may have to itself.
fn machine() -> Option<u64> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let numbering = std::fs::read_link("/proc/self/ns/pid").ok()?;
    let bytes = boot.bytes().chain(numbering.to_string_lossy().into_owned().into_bytes());
    Some(bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)))
}

/// Whether a process of this machine runs, or is stopped. What cannot be read counts as alive.
pub(super) fn is_alive(process: u32) -> bool {
    let path = format!("/proc/{process}/stat");
    match std::fs::read_to_string(Path::new(&path)) {
        // The name of the program may hold anything; the state comes after it.
        Ok(stat) => !stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['Z', 'X'])),
        Err(e) => e.kind() != std::io::ErrorKind::NotFound,
    }
}

/// The cores that this process may use.
pub(super) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_of_this_machine_are_known_and_seen_to_end() {
        assert_eq!(process(&here()), Some(std::process::id()));
        assert_eq!(process(&[7; PLACE]), None);
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(is_alive(std::process::id()) && is_alive(child.id()));
        child.kill().unwrap();
        // It has ended, and nobody has asked for its status yet.
        while is_alive(child.id()) {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(!is_alive(child.id()));
    }
}

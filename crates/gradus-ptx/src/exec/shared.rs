//! The memory of a block.

/// The bytes, and what is known of each.
pub(super) struct Shared {
    pub(super) words: Vec<u32>,
    /// For each word, the bytes that belong to a variable, and above them those that were written.
    pub(super) state: Vec<u8>,
    /// For each word, the bytes that an asynchronous copy will write.
    pub(super) pending: Vec<u8>,
    /// For each word, the last write and the last read.
    pub(super) shadow: Vec<[u64; 2]>,
}

impl Shared {
    /// Memory with these variables, each an offset and a size.
    pub(super) fn new(variables: &[(u64, u64)], races: bool) -> Self {
        let end = variables.iter().map(|(offset, size)| offset + size).max().unwrap_or(0);
        let count = end.div_ceil(4) as usize;
        let mut state = vec![0; count];
        mark(&mut state, variables);
        let shadow = if races { vec![[0; 2]; count] } else { Vec::new() };
        Self { words: vec![0; count], state, pending: vec![0; count], shadow }
    }
}

/// Sets a bit for each byte that belongs to a variable.
pub(crate) fn mark(state: &mut [u8], variables: &[(u64, u64)]) {
    for (offset, size) in variables {
        for byte in *offset as usize..(offset + size) as usize {
            state[byte / 4] |= 1 << (byte % 4);
        }
    }
}

//! Small tables that are uploaded again and again, such as the weights of a filter or the positions of a resize. At the
//! second upload of a table, a copy is kept on the device. From then on, an upload of it is a copy between buffers.

use std::collections::HashSet;
use std::hash::BuildHasherDefault;

use gradus_backend::key::{KeyMap, Low, key};

/// The size in bytes of the largest table that is kept.
pub(crate) const LARGEST: usize = 64 << 10;
/// The largest size in bytes of all tables together. If another table would exceed it, all tables are dropped.
const MOST: usize = 4 << 20;
/// The largest number of tables that are remembered by their hashes after one upload. When another one comes, all are
/// forgotten.
const SEEN: usize = 4096;

/// The tables on the device, by the hashes of their bytes.
#[derive(Default)]
pub(crate) struct Kept {
    seen: HashSet<u128, BuildHasherDefault<Low>>,
    tables: KeyMap<wgpu::Buffer>,
    bytes: usize,
}

/// Where the bytes of an upload are.
pub(crate) enum Table {
    /// On the host only, and not worth keeping.
    Host,
    /// On the host only, but uploaded before. A copy on the device should be [kept](Kept::keep) under this key.
    Again(u128),
    Device(wgpu::Buffer),
}

impl Kept {
    /// The number of bytes that the tables take on the device.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn clear(&mut self) {
        *self = Kept::default();
    }

    /// Looks up the table with these bytes, and remembers that it was uploaded.
    pub(crate) fn find(&mut self, bytes: &[u8]) -> Table {
        if bytes.len() > LARGEST {
            return Table::Host;
        }
        let key = key(bytes);
        if let Some(table) = self.tables.get(&key) {
            return Table::Device(table.clone());
        }
        if self.seen.remove(&key) {
            return Table::Again(key);
        }
        if self.seen.len() >= SEEN {
            self.seen.clear();
        }
        self.seen.insert(key);
        Table::Host
    }

    /// Keeps `table`, a buffer that holds the bytes with this key.
    pub(crate) fn keep(&mut self, key: u128, table: wgpu::Buffer) {
        let bytes = table.size() as usize;
        if self.bytes + bytes > MOST {
            self.clear();
        }
        self.bytes += bytes;
        self.tables.insert(key, table);
    }
}

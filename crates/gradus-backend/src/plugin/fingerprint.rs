//! The fingerprint of the contract, which both sides must share.

use super::convert::meanings;
use super::hash::{number, text};
use super::table::{Header, MAGIC, Table, calls, types};
use crate::DType;
use crate::kernel::ScalarOp;

/// Increased when the meaning of a call changes but its types do not.
pub const CONTRACT_VERSION: usize = 2;

/// The value that both sides must share: a hash of the layout of the [`Table`] and of the types in it, of the lists to
/// which codes refer, of the meaning of all other codes, and of the version of the contract.
pub const FINGERPRINT: u64 = {
    let mut hash = number(text(0xcbf2_9ce4_8422_2325, env!("CARGO_PKG_VERSION")), CONTRACT_VERSION);
    hash = meanings(calls(types(hash)));
    let mut i = 0;
    while i < DType::ALL.len() {
        // A dtype crosses the boundary as its number, which must be its position in the list.
        assert!(DType::ALL[i] as usize == i);
        hash = text(hash, DType::ALL[i].name());
        i += 1;
    }
    let mut i = 0;
    while i < ScalarOp::ALL.len() {
        hash = number(text(hash, ScalarOp::ALL[i].name()), ScalarOp::ALL[i].arity());
        i += 1;
    }
    hash
};

impl Header {
    /// The header of this version of the crate.
    pub const OURS: Header = Header { magic: MAGIC, fingerprint: FINGERPRINT, size: size_of::<Table>() as u64 };
}

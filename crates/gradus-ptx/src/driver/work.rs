//! Work of a stream.

use std::sync::Arc;

use super::abi::{
    ASSERT, Code, Handle, Host, ILLEGAL_ADDRESS, ILLEGAL_INSTRUCTION, LAUNCH_FAILED, LAUNCH_TIMEOUT, MISALIGNED_ADDRESS,
};
use super::blas::Product;
use super::kernel::Ready;
use super::nccl::Launch as Ranks;
use crate::{FaultKind, Launch};

#[derive(Clone)]
pub(super) enum Work {
    Launch {
        kernel: Arc<Ready>,
        launch: Arc<Launch>,
    },
    Product(Arc<Product>),
    /// Done once the other ranks have come.
    Collective(Arc<Ranks>),
    /// From the host's memory as it was when the work was given.
    CopyBytes {
        to: u64,
        from: Arc<[u8]>,
    },
    /// From the host's memory as it is when the work is done.
    CopyIn {
        to: u64,
        from: Host,
        bytes: usize,
    },
    CopyOut {
        to: Host,
        from: u64,
        bytes: usize,
    },
    Copy {
        to: u64,
        from: u64,
        bytes: usize,
    },
    /// The lowest `width` bytes of a pattern, `count` times.
    Fill {
        to: u64,
        pattern: u32,
        width: usize,
        count: usize,
    },
    Free {
        address: u64,
    },
    Record {
        event: Handle,
        record: u64,
    },
    Wait {
        event: Handle,
        record: u64,
    },
}

/// The code of a kernel's fault, as a real device would report it or, where that would notice nothing, the most general one.
pub(super) fn code_of(kind: FaultKind) -> Code {
    match kind {
        FaultKind::OutOfBounds | FaultKind::Uninitialised => ILLEGAL_ADDRESS,
        FaultKind::Misaligned => MISALIGNED_ADDRESS,
        FaultKind::Steps => LAUNCH_TIMEOUT,
        FaultKind::Trap => ASSERT,
        FaultKind::BadOperand => ILLEGAL_INSTRUCTION,
        _ => LAUNCH_FAILED,
    }
}

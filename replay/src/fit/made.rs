//! Helpers that build the tests' scripts request by request.

use memctl_model::PoolId;

use super::script::Script;
use crate::request::{Request, Requested};

pub(super) const MIB: u64 = 1 << 20;

/// Requests a block, whose name is also its stack.
pub(super) fn alloc(script: &mut Script, block: u32, mib: u64) {
    let requested = Requested { bytes: mib * MIB, stream: 0, pool: PoolId::DEFAULT };
    script.push(&Request::Alloc { block, requested, hints: &[] }, u64::from(block)).expect("few");
}

/// Frees a block.
pub(super) fn free(script: &mut Script, block: u32) {
    script.push(&Request::FreeRequested { block }, 0).expect("few");
    script.push(&Request::FreeCompleted { block }, 0).expect("few");
}

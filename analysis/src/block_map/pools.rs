//! Reserved memory of private pools (CUDA graphs, MemPools) by the stack that requested it.
//!
//! Guarantees: the rows sum to the segments outside the default pool. The cost of a table depends on the number of
//! rows, not of segments. Beyond [`STACKS_MAX`] stacks, further segments are counted without a stack. The user of a
//! pool is not named, because the recording does not contain it.

use std::collections::BTreeMap;

use memctl_model::{PoolId, PoolRow, StackId};

use super::Segment;

/// Maximum number of stacks: the limit of a table on the wire.
const STACKS_MAX: usize = 4_095;

/// Segments and bytes by stack.
#[derive(Clone, Debug, Default)]
pub(super) struct Pools {
    rows: BTreeMap<StackId, (u64, u64)>,
}

impl Pools {
    /// Adds a segment; returns the stack under which it is counted.
    pub(super) fn enter(&mut self, segment: &Segment) -> StackId {
        if segment.pool == PoolId::DEFAULT {
            return segment.stack;
        }
        let is_known = self.rows.len() < STACKS_MAX || self.rows.contains_key(&segment.stack);
        let stack = if is_known { segment.stack } else { StackId::NONE };
        let (segments, bytes) = self.rows.entry(stack).or_default();
        *segments += 1;
        *bytes += segment.size;
        stack
    }

    /// Removes a segment.
    pub(super) fn leave(&mut self, segment: &Segment) {
        if segment.pool == PoolId::DEFAULT {
            return;
        }
        if let Some((segments, bytes)) = self.rows.get_mut(&segment.stack) {
            *segments -= 1;
            *bytes -= segment.size;
            if *segments == 0 {
                self.rows.remove(&segment.stack);
            }
        }
    }

    pub(super) fn clear(&mut self) {
        self.rows.clear();
    }

    /// The rows, sorted by stack.
    pub(super) fn rows(&self) -> Vec<PoolRow> {
        self.rows.iter().map(|(&stack, &(segments, bytes))| PoolRow { stack, segments, bytes }).collect()
    }
}

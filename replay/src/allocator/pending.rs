//! The blocks whose free waits for a stream, by turn.
//!
//! Guarantees: blocks are taken in the order in which they began to wait. Memory is proportional to the waiting
//! blocks. Most frees complete directly after they were requested, so usually the last block is removed first; this
//! costs one comparison. The caller must know whether a listed block still waits.

use std::collections::VecDeque;

use super::slab::Slot;

/// Maximum number of stale entries before they are removed.
const STALE_MAX: usize = 64;

/// A waiting block and the turn since which it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waiting {
    pub turn: u64,
    pub slot: Slot,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Pending {
    /// Entries by turn. Some no longer wait.
    queue: VecDeque<Waiting>,
    /// Number of waiting blocks.
    count: usize,
}

impl Pending {
    pub fn push(&mut self, waiting: Waiting) {
        self.queue.push_back(waiting);
        self.count += 1;
    }

    /// Removes a block that no longer waits. `waits` returns whether another block still does.
    pub fn complete(&mut self, turn: u64, waits: impl Fn(&Waiting) -> bool) {
        self.count -= 1;
        if self.queue.back().is_some_and(|last| last.turn == turn) {
            self.queue.pop_back();
        }
        if self.queue.len() > 2 * self.count + STALE_MAX {
            self.queue.retain(|waiting| waiting.turn != turn && waits(waiting));
        }
    }

    /// Removes and returns all waiting blocks, by turn.
    pub fn take(&mut self, waits: impl Fn(&Waiting) -> bool) -> Vec<Slot> {
        self.count = 0;
        self.queue.drain(..).filter(waits).map(|waiting| waiting.slot).collect()
    }

    /// The waiting blocks, by turn.
    pub fn slots(&self, waits: impl Fn(&Waiting) -> bool) -> impl Iterator<Item = Slot> {
        self.queue.iter().filter(move |waiting| waits(waiting)).map(|waiting| waiting.slot)
    }
}

//! The blocks whose free waits for a stream, by turn.
//!
//! Guarantees: the first to wait is the first to be taken; memory follows the blocks that wait. Most frees complete right after
//! they were asked for, so that the last to come is the first to go: that costs one comparison.
//! Refuses to know what a block is: who takes one says whether it still waits.

use std::collections::VecDeque;

use super::slab::Slot;

/// Places of blocks that wait no more, beyond which these are swept out.
const STALE_MAX: usize = 64;

/// A block that waits, since a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waiting {
    pub turn: u64,
    pub slot: Slot,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Pending {
    /// By turn; some wait no more.
    queue: VecDeque<Waiting>,
    /// Those that wait.
    count: usize,
}

impl Pending {
    pub fn push(&mut self, waiting: Waiting) {
        self.queue.push_back(waiting);
        self.count += 1;
    }

    /// One waits no more. `waits` says of the others whether they still do.
    pub fn complete(&mut self, turn: u64, waits: impl Fn(&Waiting) -> bool) {
        self.count -= 1;
        if self.queue.back().is_some_and(|last| last.turn == turn) {
            self.queue.pop_back();
        }
        if self.queue.len() > 2 * self.count + STALE_MAX {
            self.queue.retain(|waiting| waiting.turn != turn && waits(waiting));
        }
    }

    /// Takes all that wait, by turn.
    pub fn take(&mut self, waits: impl Fn(&Waiting) -> bool) -> Vec<Slot> {
        self.count = 0;
        self.queue.drain(..).filter(waits).map(|waiting| waiting.slot).collect()
    }

    /// Those that wait, by turn.
    pub fn slots(&self, waits: impl Fn(&Waiting) -> bool) -> impl Iterator<Item = Slot> {
        self.queue.iter().filter(move |waiting| waits(waiting)).map(|waiting| waiting.slot)
    }
}

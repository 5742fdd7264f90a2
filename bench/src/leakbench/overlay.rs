//! The blocks that the benchmark adds to one rank's stream, with the positions at which they are allocated and freed.
//!
//! Guarantees: no block is freed before it is allocated.

use memctl_model::StackId;

/// A block that the benchmark adds to a stream, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Added(pub u32);

/// What happens to an added block.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    /// It is allocated.
    Keep {
        /// Requested bytes.
        size: u64,
        /// The stack that allocates it.
        stack: StackId,
    },
    /// A CUDA graph is captured. It has a private pool of its own, which is never released.
    Capture {
        /// Requested bytes.
        size: u64,
        /// The stack that captures it.
        stack: StackId,
    },
    /// It is freed.
    Drop,
}

/// The blocks that the benchmark adds to one rank's stream.
#[derive(Clone, Debug, Default)]
pub struct Overlay {
    changes: Vec<(usize, Added, Change)>,
    /// The position at which each block is allocated.
    born: Vec<usize>,
}

impl Overlay {
    /// Allocates a block after the moment at a position.
    pub fn keep(&mut self, at: usize, size: u64, stack: StackId) -> Added {
        let block = self.add(at);
        self.changes.push((at, block, Change::Keep { size, stack }));
        block
    }

    /// Captures a graph after the moment at a position.
    pub fn capture(&mut self, at: usize, size: u64, stack: StackId) {
        let block = self.add(at);
        self.changes.push((at, block, Change::Capture { size, stack }));
    }

    fn add(&mut self, at: usize) -> Added {
        self.born.push(at);
        Added(self.born.len() as u32 - 1)
    }

    /// Frees a block after the moment at a position. If this is before its allocation, frees it after the allocation,
    /// because requests overlap.
    pub fn drop(&mut self, at: usize, block: Added) {
        let at = at.max(self.born.get(block.0 as usize).copied().unwrap_or(at));
        self.changes.push((at, block, Change::Drop));
    }

    /// Whether there are no added blocks.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// The changes in the order of the stream. Changes at one position are in the order in which they were added.
    #[must_use]
    pub fn sorted(mut self) -> Vec<(usize, Added, Change)> {
        self.changes.sort_by_key(|&(at, ..)| at);
        self.changes
    }
}

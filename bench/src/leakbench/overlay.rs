//! What the benchmark adds to one rank's stream: blocks, where they come and where they go.
//!
//! Guarantees: no block is given back before it was made.

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
        /// By whom.
        stack: StackId,
    },
    /// A CUDA graph is captured: a private pool of its own, which is never given back.
    Capture {
        /// Bytes that it asks for.
        size: u64,
        /// The stack that captures it.
        stack: StackId,
    },
    /// It is given back.
    Drop,
}

/// What the benchmark adds to one rank's stream.
#[derive(Clone, Debug, Default)]
pub struct Overlay {
    changes: Vec<(usize, Added, Change)>,
    /// Where each block was made.
    born: Vec<usize>,
}

impl Overlay {
    /// Allocates a block behind the moment at a position.
    pub fn keep(&mut self, at: usize, size: u64, stack: StackId) -> Added {
        let block = self.add(at);
        self.changes.push((at, block, Change::Keep { size, stack }));
        block
    }

    /// Captures a graph behind the moment at a position.
    pub fn capture(&mut self, at: usize, size: u64, stack: StackId) {
        let block = self.add(at);
        self.changes.push((at, block, Change::Capture { size, stack }));
    }

    fn add(&mut self, at: usize) -> Added {
        self.born.push(at);
        Added(self.born.len() as u32 - 1)
    }

    /// Gives a block back behind the moment at a position, and never before it was made: requests overlap.
    pub fn drop(&mut self, at: usize, block: Added) {
        let at = at.max(self.born.get(block.0 as usize).copied().unwrap_or(at));
        self.changes.push((at, block, Change::Drop));
    }

    /// Whether nothing is added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// The changes in the order of the stream, those at one place in the order in which they were made.
    #[must_use]
    pub fn sorted(mut self) -> Vec<(usize, Added, Change)> {
        self.changes.sort_by_key(|&(at, ..)| at);
        self.changes
    }
}

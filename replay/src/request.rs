//! What a program requested of its allocator, regardless of what the allocator did.
//!
//! Guarantees: the same under every setting. Refuses to say what was reserved for it.

use memctl_model::PoolId;

use crate::allocator::Hint;
use crate::names::BlockName;

/// A request for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requested {
    /// Bytes, before rounding.
    pub bytes: u64,
    /// The stream.
    pub stream: u64,
    /// The pool.
    pub pool: PoolId,
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// Memory is wanted.
    Alloc {
        /// The block that the recording got.
        block: BlockName,
        /// What was asked.
        requested: Requested,
        /// Where the recording's driver put what it gave for it.
        hints: &'a [Hint],
    },
    /// Memory is wanted, and the recording did not get it.
    Failed {
        /// What was asked, as far as it is known: rounded.
        requested: Requested,
    },
    /// A block is given back.
    FreeRequested {
        /// Which.
        block: BlockName,
    },
    /// No stream uses the block any more.
    FreeCompleted {
        /// Which.
        block: BlockName,
    },
    /// The cache is returned.
    EmptyCache,
    /// Nothing uses a private pool any more.
    PoolReleased(PoolId),
}

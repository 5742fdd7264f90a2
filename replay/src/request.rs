//! The requests of a program to its allocator, regardless of what the allocator did.
//!
//! Guarantees: the requests are the same under every setting. They do not contain the memory that was reserved for
//! them.

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

/// One call of the program to its allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// Memory is requested.
    Alloc {
        /// The name of the block in the recording.
        block: BlockName,
        /// The request.
        requested: Requested,
        /// The addresses that the recording's driver returned for this request.
        hints: &'a [Hint],
    },
    /// Memory is requested, and the request failed in the recording.
    Failed {
        /// The request as far as it is known: its size is rounded.
        requested: Requested,
    },
    /// The program frees a block.
    FreeRequested {
        /// The name of the block.
        block: BlockName,
    },
    /// No stream uses a freed block any more.
    FreeCompleted {
        /// The name of the block.
        block: BlockName,
    },
    /// The program empties the cache.
    EmptyCache,
    /// A private pool is no longer used.
    PoolReleased(PoolId),
}

//! The position of a ring.
//!
//! Notes are sent outside of the ring. A position gives the place of a note among the ring's records.

/// A position; see the module's documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Position {
    /// Number of records pushed.
    pub pushed: u64,
    /// Number of records dropped.
    pub dropped: u64,
}

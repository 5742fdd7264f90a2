//! Where a ring stands.
//!
//! Guarantees: what is told beside a ring finds its place among the records by it.

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Position {
    /// Records pushed.
    pub pushed: u64,
    /// Records dropped.
    pub dropped: u64,
}

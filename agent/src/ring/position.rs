//! A ring's position.
//!
//! Guarantees: the position places notes, which are sent apart from the ring, among the ring's records.

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Position {
    /// Records pushed.
    pub pushed: u64,
    /// Records dropped.
    pub dropped: u64,
}

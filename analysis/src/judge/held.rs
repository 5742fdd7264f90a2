//! What holds growing memory decides whether it will stop.
//!
//! Guarantees: nothing is called bounded or unbounded but by what a process answered.

use memctl_model::FindingHolders;

/// Whether what holds a finding's blocks has a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bound {
    /// Not known.
    Unknown,
    /// It has none, and its length grew with the bytes.
    None,
    /// It stops by itself, at so many bytes where that is known.
    At(Option<u64>),
}

/// What is known of the bound of what holds a finding's blocks.
pub(super) fn bound(_holders: &FindingHolders) -> Bound {
    Bound::Unknown
}

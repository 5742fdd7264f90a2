//! The kinds of times, and the maximum number of their classes.
//!
//! Guarantees: writer, reader and the bounds of a column agree on them.

/// Steps of the mean symbol that are distinguished; steps are finer where means are small.
pub(super) const STEPS: usize = 15;
/// Kinds of time that never share a class. The first four depend on the key: two bits, "is a free" and "follows
/// something other than an allocation".
pub(super) const PLANES: usize = 5;
pub(super) const KEYED_PLANES: usize = 4;
pub(super) const PLANE_OTHER: usize = 4;
/// Classes of one chunk: what the encoder can choose, [`STEPS`] and one more for each keyed plane.
pub(super) const CLASSES_MAX: usize = KEYED_PLANES * (STEPS + 1) + 1;

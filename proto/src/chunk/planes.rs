//! The kinds of times, and the maximum number of their classes.
//!
//! Guarantees: writer, reader and the bounds of a column use the same numbers.

/// Number of steps of the mean symbol that are distinguished. Steps are finer where means are small.
pub(super) const STEPS: usize = 15;
/// Number of kinds of times that never share a class. The first four kinds have a key. Two bits number them: "is a
/// free" and "follows something other than an allocation".
pub(super) const PLANES: usize = 5;
pub(super) const KEYED_PLANES: usize = 4;
pub(super) const PLANE_OTHER: usize = 4;
/// Maximum number of classes of one chunk. The encoder can choose [`STEPS`] and one more for each keyed plane, and one
/// for the other plane.
pub(super) const CLASSES_MAX: usize = KEYED_PLANES * (STEPS + 1) + 1;

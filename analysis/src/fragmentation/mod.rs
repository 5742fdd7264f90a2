//! Fragmentation: which requests the free memory could serve, what keeps it from being released, and whether it
//! matters.
//!
//! - [`space`]: free blocks by size, the unusable-free curve, segments by occupancy.
//! - [`picture`]: one moment of one device: reserved, live, free and stranded bytes, and the blocks that strand them.
//! - [`mod@judge`]: the report on a rank from its picture and its steps: how much is wasted, why, and whether a
//!   request would fail.
//! - [`finding`]: at most one finding from the reports of a job's ranks.
//!
//! A ratio alone never decides. The question is whether a request of the size that this job makes would fail.

pub mod finding;
pub mod judge;
pub mod picture;
pub mod space;

pub use judge::{FragmentationCause, RankFragmentation, judge};
pub use picture::{FreeList, Picture, Pin};
pub use space::{FreeSpace, Occupancy, OccupancyClass};

#[cfg(test)]
mod tests;

//! Fragmentation: which requests the free memory could serve, what keeps it from the driver, and whether it matters.
//!
//! - [`space`]: free blocks by size, the unusable-free curve, segments by occupancy.
//! - [`picture`]: one moment of one device: what is reserved, live, free, stranded, and by which blocks.
//! - [`mod@judge`]: a rank's picture and its steps become a report: how much is wasted, why, whether a request would fail.
//! - [`finding`]: the reports of a job's ranks become at most one sentence.
//!
//! Refuses to judge by a ratio alone: what counts is whether a request of the size this job makes would fail.

pub mod finding;
pub mod judge;
pub mod picture;
pub mod space;

pub use judge::{FragmentationCause, RankFragmentation, judge};
pub use picture::{FreeList, Picture, Pin};
pub use space::{FreeSpace, Occupancy, OccupancyClass};

#[cfg(test)]
mod tests;

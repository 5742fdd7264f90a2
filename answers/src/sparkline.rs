//! The course of a job's memory in a few columns of numbers: what a line of the list of jobs draws.
//!
//! Guarantees: of one process, the first, whose name is there; every column has as many numbers as there are points.

use memctl_proto::v1;
use serde::Serialize;

use super::SCHEMA;

/// The columns.
#[derive(Clone, Debug, Serialize)]
pub struct Sparkline {
    /// See [`SCHEMA`].
    pub schema: u32,
    /// The rank; null where nothing is stored.
    pub rank: Option<u32>,
    /// The process, by its name within the job.
    pub process: Option<String>,
    /// Highest within each stretch of time.
    pub peak_allocated_bytes: Vec<u64>,
    /// Lowest within.
    pub min_allocated_bytes: Vec<u64>,
    /// At its end.
    pub reserved_bytes: Vec<u64>,
}

impl Sparkline {
    /// Of the first process of a timeline.
    #[must_use]
    pub fn new(wire: v1::Timeline) -> Self {
        let first = wire.ranks.into_iter().find(|rank| !rank.points.is_empty());
        let points = first.as_ref().map_or(&[][..], |rank| &rank.points);
        let column = |of: fn(&v1::TimelinePoint) -> u64| points.iter().map(of).collect();
        Self {
            schema: SCHEMA,
            peak_allocated_bytes: column(|point| point.peak_allocated_bytes),
            min_allocated_bytes: column(|point| point.min_allocated_bytes),
            reserved_bytes: column(|point| point.reserved_bytes),
            rank: first.as_ref().map(|rank| rank.rank),
            process: first.map(|rank| rank.process),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_columns_are_of_the_first_process_that_has_points() {
        let point = v1::TimelinePoint {
            allocated_bytes: 2,
            reserved_bytes: 5,
            peak_allocated_bytes: 3,
            min_allocated_bytes: 1,
            ..Default::default()
        };
        let rank =
            |rank, points| v1::RankTimeline { rank, process: format!("rank {rank}"), points, ..Default::default() };
        let ranks = vec![rank(3, vec![]), rank(4, vec![point]), rank(5, vec![point, point])];
        let line = Sparkline::new(v1::Timeline { ranks, ..Default::default() });
        assert_eq!((line.rank, line.process.as_deref()), (Some(4), Some("rank 4")));
        let columns = [line.peak_allocated_bytes, line.min_allocated_bytes, line.reserved_bytes];
        assert_eq!(columns, [[3], [1], [5]]);
        assert_eq!(Sparkline::new(v1::Timeline::default()).rank, None);
    }
}

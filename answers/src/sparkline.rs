//! A job's memory over time in a few columns of numbers, for a line in the list of jobs.
//!
//! Guarantees: the data is of one process, the first, and has its name; every column has one number per point.

use serde::Serialize;

use super::SCHEMA;
use super::timeline::{Point, Timeline};

/// The columns.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
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
    /// Makes the sparkline of a timeline's first process.
    #[must_use]
    pub fn new(timeline: Timeline) -> Self {
        let first = timeline.ranks.into_iter().find(|rank| !rank.points.is_empty());
        let points = first.as_ref().map_or(&[][..], |rank| &rank.points);
        let column = |of: fn(&Point) -> u64| points.iter().map(of).collect();
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
    use crate::timeline::RankTimeline;

    #[test]
    fn the_columns_are_of_the_first_process_that_has_points() {
        let point = Point {
            allocated_bytes: 2,
            reserved_bytes: 5,
            peak_allocated_bytes: 3,
            min_allocated_bytes: 1,
            ..Point::default()
        };
        let rank =
            |rank, points| RankTimeline { rank, process: format!("rank {rank}"), points, ..RankTimeline::default() };
        let ranks = vec![rank(3, vec![]), rank(4, vec![point.clone()]), rank(5, vec![point.clone(), point])];
        let line = Sparkline::new(Timeline { ranks, ..Timeline::default() });
        assert_eq!((line.rank, line.process.as_deref()), (Some(4), Some("rank 4")));
        let columns = [line.peak_allocated_bytes, line.min_allocated_bytes, line.reserved_bytes];
        assert_eq!(columns, [[3], [1], [5]]);
        assert_eq!(Sparkline::new(Timeline::default()).rank, None);
    }
}

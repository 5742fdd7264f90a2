//! A timeline in a bounded number of buckets that keeps every peak and every valley.
//!
//! Guarantees: each bucket's minimum and maximum are exact for single events. A rollup contributes its whole range to
//! each bucket that it touches, so the range is never too narrow. Memory is proportional to the number of buckets.
//! Levels hold until the next event, so a bucket without events shows the level that it inherits. Events before the
//! window only set the level at its begin; events after it are ignored.

use memctl_model::limits::TIMELINE_POINTS_MAX;
use memctl_model::{Levels, Rollup};

/// Maximum number of buckets of a timeline.
pub const BUCKETS_MAX: usize = TIMELINE_POINTS_MAX as usize;

/// One stretch of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Begin, ns since the Unix epoch, inclusive.
    pub start_ns: u64,
    /// End, exclusive.
    pub end_ns: u64,
    /// Number of events; those of a rollup count in the bucket where it begins.
    pub events: u64,
    /// Lowest value of each level by itself.
    pub min: Levels,
    /// Highest value of each level by itself.
    pub max: Levels,
    /// Levels at the end.
    pub last: Levels,
}

/// Receives levels in the order of time and returns buckets.
#[derive(Clone, Debug)]
pub struct Timeline {
    start_ns: u64,
    end_ns: u64,
    buckets: Vec<Option<Bucket>>,
    /// The bucket written last. An event whose time runs backwards is put into it.
    reached: usize,
    /// The level at the window's begin, if an earlier event set it.
    entering: Option<Levels>,
}

impl Timeline {
    /// A timeline of `start_ns..end_ns` in at most `buckets` equal parts (at least one, at most [`BUCKETS_MAX`]).
    #[must_use]
    pub fn new(start_ns: u64, end_ns: u64, buckets: usize) -> Self {
        let end_ns = end_ns.max(start_ns.saturating_add(1)).max(1);
        let start_ns = start_ns.min(end_ns - 1);
        let span = usize::try_from(end_ns - start_ns).unwrap_or(usize::MAX);
        let buckets = buckets.clamp(1, BUCKETS_MAX.min(span));
        Self { start_ns, end_ns, buckets: vec![None; buckets], reached: 0, entering: None }
    }

    /// The levels after one event.
    pub fn push(&mut self, time_ns: u64, after: Levels) {
        if time_ns < self.start_ns {
            self.entering = Some(after);
        } else if time_ns < self.end_ns {
            let position = self.position(time_ns).max(self.reached);
            self.widen(position, after, after, after, 1);
        }
    }

    /// Adds a run of events of which only the rollup is known. Every bucket that it touches gets the rollup's whole
    /// range. Only the levels before and after the run are exact.
    pub fn push_rollup(&mut self, rollup: &Rollup) {
        // `Rollup::events` is not used, because the sum of counts that came over the wire may exceed 64 bits.
        let all_events = rollup.counts.iter().fold(0, |sum: u64, &count| sum.saturating_add(count));
        if all_events == 0 || rollup.first_ns >= self.end_ns {
            return;
        }
        if rollup.last_ns < self.start_ns {
            self.entering = Some(rollup.end);
            return;
        }
        if rollup.first_ns < self.start_ns {
            self.entering = Some(rollup.start);
        }
        let first = self.position(rollup.first_ns.max(self.start_ns)).max(self.reached);
        let last = self.position(rollup.last_ns.max(rollup.first_ns).min(self.end_ns - 1)).max(first);
        for position in first..=last {
            let events = if position == first { all_events } else { 0 };
            self.widen(position, lower(rollup.min, rollup.end), higher(rollup.max, rollup.end), rollup.end, events);
        }
    }

    /// The buckets; empty if no level is known in or before the window. Buckets before the first known level are left
    /// out.
    #[must_use]
    pub fn finish(self) -> Vec<Bucket> {
        let mut level = self.entering;
        let bounds = (0..self.buckets.len()).map(|position| (self.bound(position), self.bound(position + 1)));
        let mut filled = Vec::with_capacity(self.buckets.len());
        for ((start_ns, end_ns), bucket) in bounds.zip(&self.buckets) {
            let known = match (bucket, level) {
                (Some(bucket), Some(inherited)) => {
                    let (min, max) = (lower(bucket.min, inherited), higher(bucket.max, inherited));
                    Bucket { min, max, ..*bucket }
                }
                (Some(bucket), None) => *bucket,
                (None, Some(same)) => Bucket { start_ns, end_ns, events: 0, min: same, max: same, last: same },
                (None, None) => continue,
            };
            level = Some(known.last);
            filled.push(known);
        }
        filled
    }

    fn position(&self, time_ns: u64) -> usize {
        let offset = u128::from(time_ns - self.start_ns) * self.buckets.len() as u128;
        // The result is less than the number of buckets, because the time is before the end.
        (offset / u128::from(self.end_ns - self.start_ns)) as usize
    }

    /// The first nanosecond of a bucket: the lowest time that [`position`](Self::position) puts there.
    fn bound(&self, position: usize) -> u64 {
        let span = u128::from(self.end_ns - self.start_ns);
        self.start_ns + (span * position as u128).div_ceil(self.buckets.len() as u128) as u64
    }

    fn widen(&mut self, position: usize, min: Levels, max: Levels, last: Levels, events: u64) {
        let (start_ns, end_ns) = (self.bound(position), self.bound(position + 1));
        let bucket = self.buckets[position].get_or_insert(Bucket { start_ns, end_ns, events: 0, min, max, last });
        bucket.min = lower(bucket.min, min);
        bucket.max = higher(bucket.max, max);
        bucket.last = last;
        bucket.events = bucket.events.saturating_add(events);
        self.reached = position;
    }
}

fn lower(a: Levels, b: Levels) -> Levels {
    each(a, b, u64::min)
}

fn higher(a: Levels, b: Levels) -> Levels {
    each(a, b, u64::max)
}

fn each(a: Levels, b: Levels, pick: fn(u64, u64) -> u64) -> Levels {
    Levels {
        allocated_bytes: pick(a.allocated_bytes, b.allocated_bytes),
        active_bytes: pick(a.active_bytes, b.active_bytes),
        reserved_bytes: pick(a.reserved_bytes, b.reserved_bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(bytes: u64) -> Levels {
        Levels { allocated_bytes: bytes, active_bytes: bytes, reserved_bytes: bytes }
    }

    fn shown(buckets: &[Bucket]) -> Vec<(u64, u64, u64)> {
        buckets.iter().map(|b| (b.min.allocated_bytes, b.max.allocated_bytes, b.last.allocated_bytes)).collect()
    }

    #[test]
    fn peaks_and_inherited_levels_survive() {
        let mut timeline = Timeline::new(100, 200, 4);
        timeline.push(50, level(5));
        for (time, bytes) in [(110, 7), (111, 900), (112, 6), (190, 1), (250, 77)] {
            timeline.push(time, level(bytes));
        }
        let buckets = timeline.finish();
        assert_eq!(shown(&buckets), [(5, 900, 6), (6, 6, 6), (6, 6, 6), (1, 6, 1)]);
        assert_eq!(buckets.iter().map(|b| b.events).sum::<u64>(), 4);
        assert!(buckets.windows(2).all(|pair| pair[0].end_ns == pair[1].start_ns));
        assert_eq!((buckets[0].start_ns, buckets[3].end_ns), (100, 200));
    }

    #[test]
    fn before_the_first_level_there_are_no_buckets() {
        let mut timeline = Timeline::new(0, 10, 5);
        assert!(timeline.clone().finish().is_empty());
        timeline.push(5, level(3));
        assert_eq!(timeline.finish().len(), 3);
    }

    #[test]
    fn time_that_runs_backwards_stays_where_it_is() {
        let mut timeline = Timeline::new(0, 10, 10);
        timeline.push(8, level(3));
        timeline.push(2, level(9));
        assert_eq!(shown(&timeline.finish()), [(3, 9, 9), (9, 9, 9)]);
    }

    #[test]
    fn a_rollup_widens_every_bucket_it_touches() {
        let mut timeline = Timeline::new(0, 100, 4);
        let mut rollup = Rollup { first_ns: 30, last_ns: 60, ..Rollup::default() };
        (rollup.start, rollup.end, rollup.min, rollup.max) = (level(10), level(20), level(2), level(50));
        timeline.push_rollup(&rollup);
        assert!(timeline.clone().finish().is_empty(), "a rollup of no events says nothing");
        rollup.counts[0] = 12;
        timeline.push_rollup(&rollup);
        let buckets = timeline.finish();
        assert_eq!(shown(&buckets), [(2, 50, 20), (2, 50, 20), (20, 20, 20)]);
        assert_eq!(buckets[0].events, 12);
    }

    #[test]
    fn odd_windows_are_put_right() {
        for (start, end, buckets) in [(5, 5, 3), (9, 2, 0), (u64::MAX, u64::MAX, 9), (0, u64::MAX, usize::MAX)] {
            let mut timeline = Timeline::new(start, end, buckets);
            for time in [0, start, end, u64::MAX] {
                timeline.push(time, level(1));
            }
            assert!(timeline.finish().len() <= BUCKETS_MAX);
        }
    }
}

//! A quantity over the boundaries of one kind, kept as the points at which it changed.
//!
//! Guarantees: memory is bounded. A series that changes all the time is thinned evenly over its whole history. Each
//! stretch keeps its lowest, highest and last point, so that level, deepest fall and slope stay accurate over a
//! million boundaries. The first two points always stay, because they show when growth began. A quantity that does not
//! change needs one point. Values are never interpolated.

use crate::growth::FIRST_LEVEL_FACTOR;

/// Maximum number of kept points.
pub const POINTS_MAX: usize = 192;
/// Number of first points that are never thinned: the initial value and its first change.
const FIRST: usize = 2;
/// Maximum number of points for a stretch of a thinned series.
const OF_STRETCH: usize = 3;
/// Number of latest changes of a thinned series that are kept unthinned as well.
const RECENT: usize = 64;

/// The memory of a site from one boundary on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Point {
    /// The place of the boundary: for steps and epochs its ordinal from 1, for windows the work done before it.
    pub at: u32,
    /// Epoch under way, or the epoch that ended.
    pub epoch: u32,
    /// Step that ended, or the last step.
    pub step: u64,
    /// Time of the boundary.
    pub time_ns: u64,
    /// Live blocks.
    pub blocks: u32,
    /// Whether the boundary is at the begin of its epoch.
    pub opens: bool,
    /// Live bytes.
    pub bytes: u64,
}

/// A quantity over boundaries; see the module's documentation.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Series {
    points: Vec<Point>,
    /// Number of points of each stretch after the first points, once the series is thinned. The last stretch is still
    /// open.
    stretches: Vec<u8>,
    /// Number of changes in a stretch; `of_stretch` is the number in the open one.
    stretch: u32,
    of_stretch: u32,
    /// Number of changes so far.
    changes: u32,
    /// The latest changes, once the series is thinned.
    recent: Vec<Point>,
}

impl Series {
    /// Adds the value of a boundary, if it differs from that of the previous boundary. `before` are the blocks and
    /// bytes known from before the first boundary of this kind, from which the value has grown.
    pub fn push(&mut self, point: Point, before: Option<(u32, u64)>) {
        if self.points.last().is_some_and(|last| (last.blocks, last.bytes) == (point.blocks, point.bytes)) {
            return;
        }
        if self.points.is_empty() {
            if point.bytes == 0 {
                return;
            }
            if let Some((blocks, bytes)) = before {
                self.points.push(Point { at: point.at.saturating_sub(1), blocks, bytes, ..point });
                return self.push(point, None);
            }
        }
        self.changes = self.changes.saturating_add(1);
        if self.stretches.is_empty() {
            self.points.push(point);
            if self.points.len() > POINTS_MAX {
                self.recent = self.points[self.points.len() - RECENT..].to_vec();
                self.stretches = vec![1; self.points.len() - FIRST];
                (self.stretch, self.of_stretch) = (1, 1);
                self.thin();
            }
            return;
        }
        if self.recent.len() >= RECENT {
            self.recent.remove(0);
        }
        self.recent.push(point);
        self.add(point);
    }

    /// Adds a change to the open stretch, or to a new one.
    fn add(&mut self, point: Point) {
        if self.of_stretch >= self.stretch {
            self.of_stretch = 0;
            self.stretches.push(0);
            if self.points.len() + OF_STRETCH > POINTS_MAX {
                self.stretches.pop();
                self.thin();
                return self.add(point);
            }
        }
        self.of_stretch += 1;
        if let Some(open) = self.stretches.last_mut() {
            let from = self.points.len() - usize::from(*open);
            self.points.push(point);
            let kept = outline(&self.points[from..]);
            *open = kept.len() as u8;
            self.points.truncate(from);
            self.points.extend(kept);
        }
    }

    /// Merges pairs of stretches until a third of the room is free.
    fn thin(&mut self) {
        while self.points.len() > POINTS_MAX * 2 / 3 {
            let mut from = FIRST;
            let (mut points, mut stretches) = (self.points[..FIRST].to_vec(), Vec::new());
            for pair in self.stretches.chunks(2) {
                let to = from + pair.iter().map(|&kept| usize::from(kept)).sum::<usize>();
                let kept = outline(&self.points[from..to]);
                stretches.push(kept.len() as u8);
                points.extend(kept);
                from = to;
            }
            // A last stretch without a partner stays open.
            if self.stretches.len().is_multiple_of(2) {
                self.of_stretch += self.stretch;
            }
            self.stretch = self.stretch.saturating_mul(2);
            (self.points, self.stretches) = (points, stretches);
        }
    }

    /// Whether its parts are consistent.
    pub(super) fn is_sound(&self) -> bool {
        let of_stretches = self.stretches.iter().map(|&kept| usize::from(kept)).sum::<usize>();
        let thinned = self.points.len() == of_stretches + FIRST && self.stretch > 0;
        self.points.len() <= POINTS_MAX + OF_STRETCH
            && self.recent.len() <= RECENT
            && (thinned || self.stretches.is_empty() && self.recent.is_empty())
    }

    /// Number of all kept points.
    #[must_use]
    pub fn kept(&self) -> usize {
        self.points.len() + self.recent.len()
    }

    /// Whether there may be further changes between its points.
    #[must_use]
    pub fn is_thinned(&self) -> bool {
        !self.stretches.is_empty()
    }

    /// The points, oldest first.
    #[must_use]
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// Bytes at a boundary; within a stretch, those of the last earlier point.
    #[must_use]
    pub fn bytes_at(&self, boundary: u32) -> u64 {
        let next = self.points.partition_point(|point| point.at <= boundary);
        next.checked_sub(1).map_or(0, |index| self.points[index].bytes)
    }

    /// The latest changes, unthinned.
    #[must_use]
    pub fn recent(&self) -> &[Point] {
        if self.stretches.is_empty() { &self.points } else { &self.recent }
    }

    /// Average number of changes per point.
    #[must_use]
    pub fn density(&self) -> f64 {
        (f64::from(self.changes) / self.points.len().max(1) as f64).max(1.0)
    }

    /// The last value.
    #[must_use]
    pub fn last(&self) -> Option<&Point> {
        self.points.last()
    }
}

/// The lowest, the highest and the last of some points, in their order and without repetitions.
fn outline(points: &[Point]) -> Vec<Point> {
    let size = |index: &usize| (points[*index].bytes, points[*index].blocks);
    let mut kept: Vec<usize> = [(0..points.len()).min_by_key(size), (0..points.len()).max_by_key(size)]
        .into_iter()
        .flatten()
        .chain(points.len().checked_sub(1))
        .collect();
    kept.sort_unstable();
    kept.dedup();
    kept.into_iter().map(|index| points[index]).collect()
}

/// The site's first level, if it is the first of these rises and far above all later ones. A line's first call also
/// makes memory that is made only once (a library's workspace, gradients).
pub(super) fn first_level(points: &[Point], times: &[u32]) -> Option<Point> {
    let [first, second, ..] = times[..] else { return None };
    let index = |at: u32| points.partition_point(|point| point.at < at);
    let held = |index: usize| index.checked_sub(1).and_then(|before| points.get(before)).map_or(0, |point| point.bytes);
    let rise = |index: usize| points.get(index).map_or(0, |point| point.bytes.saturating_sub(held(index)));
    let (first, second) = (index(first), index(second));
    let largest = (second..points.len()).map(rise).max().unwrap_or(0);
    let is_level = held(first) == 0 && rise(first) > largest.saturating_mul(FIRST_LEVEL_FACTOR);
    points.get(first).copied().filter(|_| is_level)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(changes: u32, bytes: impl Fn(u32) -> u64) -> Series {
        let mut series = Series::default();
        for at in 1..=changes {
            series.push(Point { at, bytes: bytes(at), blocks: 1, ..Point::default() }, None);
            assert!(series.points().len() <= POINTS_MAX);
        }
        series
    }

    #[test]
    fn what_does_not_change_costs_one_point() {
        assert_eq!(of(1_000, |_| 7).points().len(), 1);
    }

    #[test]
    fn a_million_rises_keep_their_beginning_their_end_and_their_course() {
        let series = of(1_000_000, |at| u64::from(at) * 512);
        let points = series.points();
        assert_eq!((points[0].at, points[1].at, series.last().map(|last| last.at)), (1, 2, Some(1_000_000)));
        assert!(points.len() >= POINTS_MAX / 4, "{}", points.len());
        assert!((1_000_000.0..1_100_000.0).contains(&(series.density() * points.len() as f64)));
        assert_eq!(
            series.recent().iter().map(|point| point.at).collect::<Vec<u32>>(),
            (999_937..=1_000_000).collect::<Vec<u32>>()
        );
        assert!(points.windows(2).all(|pair| pair[0].at < pair[1].at && pair[0].bytes < pair[1].bytes));
        let widest = points.windows(2).map(|pair| pair[1].at - pair[0].at).max();
        assert!(widest.is_some_and(|gap| gap <= 1_000_000 / 30), "{widest:?}");
    }

    #[test]
    fn the_deepest_fall_of_a_long_noisy_course_stays() {
        let series = of(100_000, |at| 1_000 + u64::from(at % 2) * 100 + if at == 40_000 { 5_000 } else { 0 });
        let (mut highest, mut fall) = (0, 0);
        for point in series.points() {
            highest = highest.max(point.bytes);
            fall = fall.max(highest - point.bytes);
        }
        assert_eq!(fall, 5_000);
    }
}

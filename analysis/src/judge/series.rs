//! A quantity over the boundaries of one kind, kept as the points at which it changed.
//!
//! Guarantees: bounded memory. A series that changes all the time is thinned evenly over the whole of its course: of each
//! stretch the lowest, the highest and the last point stay, so that its level, its deepest fall and its slope are true over a
//! million boundaries; its first two points stay as they are, because they tell when a growth began.
//! A quantity that does not change costs one point. Refuses to interpolate.

/// Points kept.
pub const POINTS_MAX: usize = 192;
/// The first points, which are never thinned: where it stood, and its first change.
const FIRST: usize = 2;
/// Points of which a thinning makes at most [`OF_STRETCH`].
const THINNED: usize = 6;
/// Points that stand for a stretch of a thinned series.
const OF_STRETCH: usize = 3;

/// What a site held from one boundary on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Point {
    /// Where the boundary lies among those of its kind: of steps and epochs its ordinal, from 1; of windows the work done.
    pub at: u32,
    /// Epoch under way or ended.
    pub epoch: u32,
    /// Step that ended or was the last one.
    pub step: u64,
    /// When it ended.
    pub time_ns: u64,
    /// Live blocks.
    pub blocks: u32,
    /// Live bytes.
    pub bytes: u64,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Series {
    points: Vec<Point>,
    /// Changes so far.
    changes: u32,
    /// Changes that a stretch of a thinned series takes; below 2 nothing was thinned yet.
    stretch: u32,
    /// Changes of the stretch under way.
    of_stretch: u32,
    /// Points at the end that stand for the stretch under way.
    open: usize,
}

impl Series {
    /// Adds what a boundary showed, if it is not what the boundary before it showed. `before` is what is known from before the
    /// first boundary of this kind, blocks and bytes: what came since has grown from there.
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
        self.points.push(point);
        if self.stretch < 2 {
            if self.points.len() > POINTS_MAX {
                self.thin();
            }
            return;
        }
        self.open += 1;
        if self.open > OF_STRETCH {
            let from = self.points.len() - self.open;
            let kept = outline(&self.points[from..]);
            self.points.truncate(from);
            self.open = kept.len();
            self.points.extend(kept);
        }
        self.of_stretch += 1;
        if self.of_stretch >= self.stretch {
            (self.of_stretch, self.open) = (0, 0);
            if self.points.len() + OF_STRETCH + 1 > POINTS_MAX {
                self.thin();
            }
        }
    }

    fn thin(&mut self) {
        let thinned: Vec<Point> = self.points[FIRST..].chunks(THINNED).flat_map(outline).collect();
        self.points.truncate(FIRST);
        self.points.extend(thinned);
        // What comes is kept as densely as what there is: so many changes to a stretch of so many points.
        let changes = u64::from(self.changes) * OF_STRETCH as u64 / self.points.len() as u64;
        self.stretch = u32::try_from(changes).unwrap_or(u32::MAX).max(2);
        (self.of_stretch, self.open) = (0, 0);
    }

    /// The points, oldest first.
    #[must_use]
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// The last value.
    #[must_use]
    pub fn last(&self) -> Option<&Point> {
        self.points.last()
    }
}

/// The lowest, the highest and the last of some points, in their order, each once.
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
        assert!(points.windows(2).all(|pair| pair[0].at < pair[1].at && pair[0].bytes < pair[1].bytes));
        let widest = points.windows(2).map(|pair| pair[1].at - pair[0].at).max();
        assert!(widest.is_some_and(|gap| gap < 1_000_000 / 16), "{widest:?}");
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

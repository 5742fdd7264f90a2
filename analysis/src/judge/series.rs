//! A quantity over the boundaries of one kind, kept as the points at which it changed.
//!
//! Guarantees: bounded memory (a series that changes all the time is thinned, its first and its last points stay);
//! a quantity that does not change costs one point. Refuses to interpolate.

/// Points kept; a series that is full loses every other point of its older half.
pub const POINTS_MAX: usize = 192;

/// What a site held from one boundary on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Point {
    /// Ordinal of the boundary among those of its kind, from 1.
    pub at: u32,
    /// Epoch under way or ended.
    pub epoch: u32,
    /// Live blocks.
    pub blocks: u32,
    /// Live bytes.
    pub bytes: u64,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Series {
    points: Vec<Point>,
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
                self.points.push(Point { at: point.at.saturating_sub(1), epoch: point.epoch, blocks, bytes });
                return self.push(point, None);
            }
        }
        if self.points.len() >= POINTS_MAX {
            self.thin();
        }
        self.points.push(point);
    }

    fn thin(&mut self) {
        let older = POINTS_MAX / 2;
        let mut index = 0;
        self.points.retain(|_| {
            index += 1;
            // The first stays: it is the level from which everything is measured.
            index == 1 || index > older || index % 2 == 0
        });
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_changes_are_kept_and_a_full_series_keeps_its_ends() {
        let mut series = Series::default();
        for at in 0..1_000 {
            series.push(Point { at, epoch: 0, blocks: 1, bytes: 7 }, None);
        }
        assert_eq!(series.points().len(), 1);
        for at in 1_000..3_000 {
            series.push(Point { at, epoch: 1, blocks: 1, bytes: u64::from(at) }, None);
        }
        assert!(series.points().len() <= POINTS_MAX);
        assert_eq!(series.points()[0].at, 0);
        assert_eq!(series.last().map(|point| point.at), Some(2_999));
        assert!(series.points().windows(2).all(|pair| pair[0].at < pair[1].at));
    }
}

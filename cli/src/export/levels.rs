//! The levels of one device over time, replayed from an export's parts, in bounded memory.
//!
//! Guarantees: every point is a level that the recording had at that time. Up to [`POINTS_MAX`] changes of a level, all
//! are kept. Of more changes, groups of the same number of changes keep their lowest and highest allocated level, their
//! highest reserved level and their last levels. So the peaks and the lowest level of the slice are always kept.

use memctl_analysis::{Birth, BlockMap};
use memctl_model::{AllocatorSettings, Event, Keyframe};

use super::window::Window;

/// The most points of a device: a trace of eight devices then has about 100 MB, which viewers still open.
pub const POINTS_MAX: usize = 250_000;

/// The levels after an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// The time of the event, ns since the Unix epoch.
    pub time_ns: u64,
    /// Bytes of the blocks that the program holds.
    pub allocated_bytes: u64,
    /// Bytes that the allocator got from the driver.
    pub reserved_bytes: u64,
}

/// See the module. Takes the events of one device in their order.
pub struct Levels {
    map: BlockMap,
    window: Window,
    /// When the state before the first event held.
    from_ns: u64,
    reduced: Reduced,
}

impl Levels {
    /// The levels of a device within a slice of time.
    #[must_use]
    pub fn new(settings: &AllocatorSettings, window: Window) -> Self {
        Self { map: BlockMap::new(settings), window, from_ns: 0, reduced: Reduced::new(POINTS_MAX) }
    }

    /// Takes the state before the next event.
    pub fn restore(&mut self, keyframe: &Keyframe) {
        self.map.restore(keyframe);
        self.from_ns = keyframe.time_ns;
    }

    /// Takes the next event; returns whether it lies in the slice.
    pub fn event(&mut self, event: &Event) -> bool {
        if event.time_ns > self.window.last_ns {
            return false;
        }
        if event.time_ns < self.window.first_ns {
            self.map.apply(event, Birth::default());
            return false;
        }
        if self.reduced.points.is_empty() {
            // The slice begins with the levels before its first event.
            let begin = self.from_ns.max(self.window.first_ns).min(event.time_ns);
            self.push(begin);
        }
        self.map.apply(event, Birth::default());
        self.push(event.time_ns);
        true
    }

    /// The points, in the order of events.
    #[must_use]
    pub fn finish(self) -> Vec<Point> {
        self.reduced.finish()
    }

    fn push(&mut self, time_ns: u64) {
        let levels = self.map.levels();
        let (allocated_bytes, reserved_bytes) = (levels.allocated_bytes, levels.reserved_bytes);
        self.reduced.push(Point { time_ns, allocated_bytes, reserved_bytes });
    }
}

/// Changes of levels, each with its number, reduced when they are too many.
struct Reduced {
    points: Vec<(u64, Point)>,
    changes: u64,
    /// Changes of a group: a power of two.
    group: u64,
    max: usize,
}

impl Reduced {
    fn new(max: usize) -> Self {
        Self { points: Vec::new(), changes: 0, group: 1, max }
    }

    fn push(&mut self, point: Point) {
        let same = |&(_, last): &(u64, Point)| {
            (last.allocated_bytes, last.reserved_bytes) == (point.allocated_bytes, point.reserved_bytes)
        };
        if self.points.last().is_some_and(same) {
            return;
        }
        self.points.push((self.changes, point));
        self.changes += 1;
        if self.points.len() >= 2 * self.max {
            self.reduce();
        }
    }

    fn finish(mut self) -> Vec<Point> {
        self.reduce();
        self.points.into_iter().map(|(_, point)| point).collect()
    }

    /// Enlarges the groups until the points are few enough.
    fn reduce(&mut self) {
        if self.group > 1 {
            self.select();
        }
        while self.points.len() > self.max {
            self.group *= 2;
            self.select();
        }
    }

    fn select(&mut self) {
        let group = self.group;
        let mut kept = Vec::with_capacity(self.points.len());
        for points in self.points.chunk_by(|a, b| a.0 / group == b.0 / group) {
            let most = |key: fn(&Point) -> u64| points.iter().max_by_key(|(_, point)| key(point)).map(|point| point.0);
            let least = points.iter().min_by_key(|(_, point)| point.allocated_bytes).map(|point| point.0);
            let last = points.last().map(|point| point.0);
            let chosen = [least, most(|point| point.allocated_bytes), most(|point| point.reserved_bytes), last];
            kept.extend(points.iter().filter(|(number, _)| chosen.contains(&Some(*number))));
        }
        self.points = kept;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(time_ns: u64, allocated_bytes: u64) -> Point {
        Point { time_ns, allocated_bytes, reserved_bytes: 7 * (time_ns / 100) }
    }

    fn reduced(max: usize, points: &[Point]) -> (u64, Vec<Point>) {
        let mut reduced = Reduced::new(max);
        points.iter().for_each(|&point| reduced.push(point));
        let finished = reduced.finish();
        (finished.len() as u64, finished)
    }

    #[test]
    fn every_change_is_kept_up_to_the_bound() {
        let points: Vec<Point> = (0..100).map(|at| point(at, at * 37 % 11)).collect();
        assert_eq!(reduced(100, &points).1, points);
        let flat: Vec<Point> = (0..50).map(|at| point(at, 5)).collect();
        assert_eq!(reduced(100, &flat).1, flat[..1]);
    }

    #[test]
    fn peaks_survive_at_their_times() {
        let mut points: Vec<Point> = (0..10_000).map(|at| point(at, 1000 + at * 7919 % 613)).collect();
        points[4321].allocated_bytes = 1_000_000;
        points[7654].allocated_bytes = 1;
        let (count, kept) = reduced(64, &points);
        assert!(count <= 64 && count > 16, "{count}");
        assert!(kept.contains(&points[4321]) && kept.contains(&points[7654]) && kept.contains(&points[9999]));
        assert!(kept.iter().all(|point| points.contains(point)), "a level that never was");
        assert!(kept.is_sorted_by_key(|point| point.time_ns));
    }
}

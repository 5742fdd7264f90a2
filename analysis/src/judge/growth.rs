//! Growth that never falls back, distinguished from memory that only looks like it.
//!
//! The *level* of a series at a boundary is the lowest value from there to now. It only rises, and each of its rises
//! is memory that was never freed. Fluctuation shows as a *drawdown*: the deepest fall below an earlier value. Growth
//! is counted in units of the drawdown, so noise of any size makes at most one rise.
//!
//! Laplace's trend test over the times of the rises distinguishes endless growth from a cache that fills. At a
//! constant rate, the mean time is in the middle of the observed time, with a variance of 1/(12 n). The rises of a
//! cache that fills at random come early. A second test weights each rise by its size. It is needed because growth
//! that is even in bytes need not rise evenly often: the allocator rounds large blocks to megabytes.

use super::history::Boundaries;
use super::series::Point;
use crate::statistics::{self, upper_median};

/// The scale of the boundaries of one kind.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// The place of the last boundary.
    pub now: u32,
    /// The place up to which the job warmed up: falls until then show nothing about later noise.
    pub warm: u32,
    /// The average distance of two boundaries.
    pub unit: f64,
}

impl Clock {
    /// The clock of these boundaries.
    pub fn of(boundaries: &Boundaries) -> Self {
        Self { now: boundaries.at, warm: boundaries.warm, unit: boundaries.unit() }
    }
}

/// The growth of a series.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Growth {
    /// Number of rises of the level that exceed the noise.
    pub rises: u32,
    /// The places of their boundaries, oldest first.
    pub times: Vec<u32>,
    /// The epoch of each rise. `epochs` are the same epochs, ascending and without repetitions.
    pub risen_in: Vec<u32>,
    pub epochs: Vec<u32>,
    /// Bytes (or blocks) that the level has gained since the growth began.
    pub gained: u64,
    /// The deepest fall of the values after warm-up.
    pub drawdown: u64,
    /// Laplace's statistic; below 0 the growth slows down.
    pub laplace: f64,
    /// The same statistic with each rise weighted by its size.
    pub laplace_by_size: f64,
    /// The time of each rise.
    pub risen_ns: Vec<u64>,
    /// The place at which the growth began and from which its rhythm is measured. `unit` is the average distance of
    /// two boundaries.
    pub begun: u32,
    pub unit: f64,
    /// The size of each rise.
    pub sizes: Vec<u64>,
    /// Whether it has paused for longer than its rhythm explains.
    pub stopped: bool,
    /// The usual distance of two rises, in places.
    pub apart: f64,
    /// Whether the distances are even: four in five differ by at most a quarter from the usual one.
    pub even: bool,
}

/// Growth of `value` over the points, as seen from now.
///
/// The first boundary of a series is its initial level and not growth.
#[must_use]
pub fn growth(points: &[Point], value: impl Fn(&Point) -> u64, clock: Clock) -> Growth {
    let values: Vec<u64> = points.iter().map(value).collect();
    let levels = levels(&values);
    let begun = levels.windows(2).position(|pair| pair[1] > pair[0]);
    let Some(begun) = begun else { return Growth::default() };
    let warm = points.partition_point(|point| point.at <= clock.warm);
    let drawdown = drawdown(&values[warm.min(begun)..]);
    let gained = levels[levels.len() - 1] - levels[begun];
    let mut found = Growth { gained, drawdown, ..Growth::default() };
    let mut counted = levels[begun];
    let mut sizes = Vec::new();
    for (index, &level) in levels.iter().enumerate().skip(begun + 1) {
        // A rise must exceed the noise by itself or together with the small rises before it.
        if level > counted && level - counted >= drawdown {
            sizes.push(level - counted);
            counted = level;
            found.times.push(points[index].at);
            found.risen_in.push(points[index].epoch);
            found.risen_ns.push(points[index].time_ns);
        }
    }
    found.rises = found.times.len() as u32;
    found.epochs = each_once(&found.risen_in);
    rhythm(&mut found, &sizes, points[begun].at, clock);
    found
}

/// The deepest fall of a series after warm-up.
#[must_use]
pub fn deepest_fall(points: &[Point], warm: u32, value: impl Fn(&Point) -> u64) -> u64 {
    let warm = points.partition_point(|point| point.at <= warm);
    drawdown(&points[warm..].iter().map(value).collect::<Vec<u64>>())
}

/// The lowest value from each point on.
fn levels(values: &[u64]) -> Vec<u64> {
    let mut levels = values.to_vec();
    for index in (1..levels.len()).rev() {
        levels[index - 1] = levels[index - 1].min(levels[index]);
    }
    levels
}

/// The deepest fall below an earlier value.
fn drawdown(values: &[u64]) -> u64 {
    let mut highest = 0;
    values.iter().fold(0, |deepest: u64, &value| {
        highest = highest.max(value);
        deepest.max(highest - value)
    })
}

/// A pause longer than this many usual pauses means that growth has stopped. With random (exponential) pauses, one in
/// 150 is as long.
const PAUSES: f64 = 5.0;

/// Maximum weight of a rise in usual rises: one large step must not determine the whole history.
const HEAVIEST: u64 = 4;

/// If a series falls by more than this share of its gain, it fluctuates more than it grows.
const FALLS: f64 = 0.08;

/// Up to this distance, a quarter of the distance is less than one or two boundaries.
const A_HANDFUL: f64 = 8.0;

/// Minimum number of distances that show whether they vary.
const DISTANCES_MIN: usize = 12;

/// Maximum share of the variance of random rises for rises at a rhythm.
const REGULAR: f64 = 0.25;

/// Equal parts of the time since the growth began, whose gains are compared.
const PARTS: usize = 8;

/// Minimum of Kendall's statistic of the parts' gains, in standard deviations: one in 700 series without a trend has it.
const TREND_MIN: f64 = 3.0;

/// Minimum ratio of the gain in the last quarter of the time to that in the first quarter, for growth that accelerates.
const FASTER_MIN: u64 = 2;

fn rhythm(growth: &mut Growth, sizes: &[u64], begun: u32, clock: Clock) {
    let Some(&last) = growth.times.last() else { return };
    let n = f64::from(growth.rises);
    (growth.begun, growth.unit, growth.sizes) = (begun, clock.unit, sizes.to_vec());
    (growth.laplace, growth.laplace_by_size) = growth.laplace_of(growth.times.len(), clock.now);
    (growth.apart, growth.even) = spacing(&growth.times);
    let usual = f64::from(last.saturating_sub(begun)).max(1.0) / n;
    growth.stopped = f64::from(clock.now.saturating_sub(last)) > PAUSES * usual.max(clock.unit);
}

impl Growth {
    /// Laplace's statistic of the first `rises` rises as it was at `now`: plain, and weighted by the size of the
    /// rises.
    #[must_use]
    pub fn laplace_of(&self, rises: usize, now: u32) -> (f64, f64) {
        let (times, sizes) = (&self.times[..rises.min(self.times.len())], &self.sizes[..rises.min(self.sizes.len())]);
        if times.is_empty() {
            return (0.0, 0.0);
        }
        let observed = f64::from(now.saturating_sub(self.begun)).max(1.0);
        let laplace = |weight: &dyn Fn(usize) -> f64| {
            let occurrences = times.iter().enumerate().map(|(index, &at)| statistics::Occurrence {
                at: f64::from(at.saturating_sub(self.begun)),
                weight: weight(index),
            });
            // Rises are seen at boundaries 1, 2, … of `observed`. The middle of their intervals is half a boundary
            // earlier.
            statistics::laplace(occurrences, statistics::Observed { from: self.unit / 2.0, length: observed })
        };
        let mut ordered = sizes.to_vec();
        ordered.sort_unstable();
        let most = upper_median(&ordered).copied().unwrap_or(1).max(1).saturating_mul(HEAVIEST);
        let by_size = laplace(&|index| sizes.get(index).map_or(1.0, |&size| size.clamp(1, most) as f64));
        (laplace(&|_| 1.0), by_size)
    }

    /// Scales the growth of a long history, in which a point stands for `density` changes.
    #[must_use]
    pub fn thinned(self, density: f64) -> Self {
        Self { rises: (f64::from(self.rises) * density) as u32, apart: self.apart / density, ..self }
    }

    /// Whether it falls by little compared with its rises. A fluctuating series may have been low when it was first
    /// seen.
    #[must_use]
    pub fn hardly_falls(&self) -> bool {
        let risen: u64 = self.sizes[..self.times.len().min(self.sizes.len())].iter().sum();
        self.drawdown as f64 <= FALLS * risen as f64
    }

    /// Whether the growth accelerates: of equal parts of the time, nearly each gained more than those before it.
    #[must_use]
    pub fn accelerates(&self) -> bool {
        let length = self.times.last().map_or(0, |&last| u64::from(last.saturating_sub(self.begun)));
        if self.times.len() < PARTS || length == 0 {
            return false;
        }
        // Growth per boundary of each part, scaled: parts may differ by a boundary.
        let boundaries = |part: u64| (part + 1) * length / PARTS as u64 - part * length / PARTS as u64;
        let mut gains = [0_u64; PARTS];
        for (&at, &size) in self.times.iter().zip(&self.sizes) {
            // A rise that is seen at a boundary came before it, so the last boundary of a part belongs to the part.
            let part = (u64::from(at.saturating_sub(self.begun)) * PARTS as u64).div_ceil(length).max(1) as usize - 1;
            let gain = &mut gains[part.min(PARTS - 1)];
            *gain = gain.saturating_add(size);
        }
        for (part, gain) in (0..).zip(&mut gains) {
            *gain = gain.saturating_mul(length) / boundaries(part).max(1);
        }
        let quarter = |parts: &[u64]| parts.iter().fold(0_u64, |sum, gain| sum.saturating_add(*gain));
        let (first, last) = (quarter(&gains[..PARTS / 4]), quarter(&gains[PARTS - PARTS / 4..]));
        last >= first.saturating_mul(FASTER_MIN) && statistics::kendall(&gains) >= TREND_MIN
    }

    /// The growth as it was when the rise with this number had just come.
    #[must_use]
    pub fn as_of(&self, rises: usize) -> Self {
        let times: Vec<u32> = self.times.iter().copied().take(rises).collect();
        let now = times.last().copied().unwrap_or(0);
        let (laplace, laplace_by_size) = self.laplace_of(rises, now);
        let (apart, even) = spacing(&times);
        // In a long history, a rise stands for several.
        let each = f64::from(self.rises) / self.times.len().max(1) as f64;
        let (rises, apart) = ((times.len() as f64 * each).round() as u32, apart / each.max(1.0));
        let risen_ns = self.risen_ns[..times.len().min(self.risen_ns.len())].to_vec();
        let epochs = each_once(&self.risen_in[..times.len().min(self.risen_in.len())]);
        Self { rises, times, risen_ns, epochs, laplace, laplace_by_size, apart, even, ..self.clone() }
    }
}

fn each_once(epochs: &[u32]) -> Vec<u32> {
    let mut once = epochs.to_vec();
    once.dedup();
    once
}

/// The median distance of rises, and whether most distances are near it.
fn spacing(times: &[u32]) -> (f64, bool) {
    let mut apart: Vec<f64> = times.windows(2).map(|pair| f64::from(pair[1].saturating_sub(pair[0]))).collect();
    apart.sort_by(f64::total_cmp);
    let Some(&usual) = upper_median(&apart) else { return (1.0, false) };
    let near = apart.iter().filter(|&&distance| (distance - usual).abs() <= usual / 4.0).count();
    (usual, near * 5 >= apart.len() * 4 || (usual < A_HANDFUL && hardly_varies(&apart)))
}

/// Whether distances, which are ascending, vary by far less than those of random rises. This test is needed for small
/// distances, of which a quarter is less than one boundary.
fn hardly_varies(apart: &[f64]) -> bool {
    let most = &apart[..apart.len() - apart.len() / 10];
    let count = most.len() as f64;
    let mean = most.iter().sum::<f64>() / count;
    let variance = most.iter().map(|distance| (distance - mean).powi(2)).sum::<f64>() / count;
    // For random rises with a chance of p at each boundary, the mean is 1/p and the variance (1 - p)/p².
    apart.len() >= DISTANCES_MIN && variance < REGULAR * mean * (mean - 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(values: &[u64]) -> Vec<Point> {
        let mut all: Vec<Point> = Vec::new();
        for (at, &bytes) in (0..).zip(values) {
            if all.last().is_none_or(|last| last.bytes != bytes) {
                all.push(Point { at, epoch: at / 10, blocks: 1, bytes, ..Point::default() });
            }
        }
        all
    }

    fn of(values: &[u64]) -> Growth {
        growth(&points(values), |point| point.bytes, Clock { now: values.len() as u32 - 1, warm: 3, unit: 1.0 })
    }

    #[test]
    fn a_leak_rises_at_every_boundary_and_neither_slows_nor_stops() {
        let found = of(&(0..40).map(|step| 100 + step * 7).collect::<Vec<u64>>());
        assert_eq!((found.rises, found.gained, found.drawdown), (39, 39 * 7, 0));
        assert!(found.laplace.abs() < 0.1 && !found.stopped, "{found:?}");
        assert_eq!(found.epochs, [0, 1, 2, 3]);
    }

    #[test]
    fn noise_makes_no_rises_however_long_it_lasts() {
        // A multiplicative generator: the values only have to look random.
        let mut state = 12_345_u64;
        let noise: Vec<u64> = (0..500)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                1_000 + (state >> 54)
            })
            .collect();
        assert!(of(&noise).rises <= 1, "{:?}", of(&noise));
    }

    #[test]
    fn a_leak_under_an_alternating_buffer_is_seen_in_units_of_the_alternation() {
        let found = of(&(0..40).map(|step| 100 + step * 5 + (step % 2) * 8).collect::<Vec<u64>>());
        assert!((15..40).contains(&found.rises), "{found:?}");
        assert_eq!(of(&[5, 5, 5, 5]).rises, 0);
        assert_eq!(of(&[5, 9, 5, 9, 5]).rises, 0);
    }

    #[test]
    fn what_fluctuates_as_much_as_it_grows_is_told_from_what_grows() {
        assert!(of(&(0..40).map(|step| 100 + step * 7).collect::<Vec<u64>>()).hardly_falls());
        let open = of(&(0..60).map(|step| 100 + step * 2 + (step % 9) * 5).collect::<Vec<u64>>());
        assert!(open.rises >= 2 && !open.hardly_falls(), "{open:?}");
    }

    #[test]
    fn only_growth_whose_rises_become_larger_or_closer_accelerates() {
        let squares: Vec<u64> = (0..20_u64).map(|step| 100 + step * step).collect();
        assert!(of(&squares).accelerates());
        assert!(of(&squares[..10]).accelerates());
        assert!(!of(&squares[..6]).accelerates(), "too few rises");
        for steps in [9, 11, 12, 15, 40] {
            let even: Vec<u64> = (0..steps).map(|step| 100 + step * 7).collect();
            assert!(!of(&even).accelerates(), "{steps} equal rises");
        }
        let late: Vec<u64> = (0..60).map(|step| if step < 40 { step / 8 } else { 5 + step - 40 }).collect();
        assert!(!of(&late).accelerates(), "a second leak that began late is no acceleration");
    }

    #[test]
    fn what_falls_back_has_not_grown() {
        let sawtooth: Vec<u64> = (0..60).map(|step| 100 + (step % 10) * 50).collect();
        assert!(of(&sawtooth).rises <= 1, "the last tooth is no higher than the noise of all");
        let fills: Vec<u64> = (0..60).map(|step: u64| step.min(12) * 4).collect();
        assert!(of(&fills).stopped);
        let slows: Vec<u64> =
            (0..60).map(|step: u64| (1_000.0 * (1.0 - (-(step as f64) / 12.0).exp())) as u64 / 50).collect();
        assert!(of(&slows).laplace < -2.0, "{:?}", of(&slows));
    }
}

//! Manual methods: reading `memory_allocated()` at each epoch's end, or at intervals, for each rank.
//!
//! [`Slope`]: the one-sided Mann-Kendall test at 5 %, and a Theil-Sen slope above zero. [`Strict`]: each of the last
//! five epochs ended above the previous one. Neither names a line.

use memctl_model::SiteTable;

use super::{Detector, Looks, RunFacts, Verdict};

/// Significance of the trend test.
const ALPHA: f64 = 0.05;
/// The least number of points with which the trend can be significant: 1/4! < 5 %.
const POINTS_MIN: usize = 4;
/// Points that have to rise strictly.
const STRICT_POINTS: usize = 5;

/// See the module.
#[derive(Default)]
pub struct Slope(Vec<RankSeries>);

/// See the module.
#[derive(Default)]
pub struct Strict(Vec<RankSeries>);

/// The values of a rank that were read.
#[derive(Clone, Default)]
struct RankSeries {
    looks: Looks,
    points: Vec<u64>,
}

impl RankSeries {
    fn of(given: &RunFacts<'_>) -> Vec<Self> {
        vec![Self { looks: Looks::new(given), points: Vec::new() }; given.stacks.len()]
    }
}

fn take(series: &mut [RankSeries], rank: usize, table: &SiteTable) {
    if series[rank].looks.at(table) {
        series[rank].points.push(table.counters.allocated_bytes);
    }
}

fn verdicts(series: &[RankSeries], test: fn(&[u64]) -> bool) -> Vec<Verdict> {
    let ranks: Vec<u32> = (0..).zip(series).filter(|(_, seen)| test(&seen.points)).map(|(rank, _)| rank).collect();
    if ranks.is_empty() { Vec::new() } else { vec![Verdict::alarm(ranks, Vec::new())] }
}

impl Detector for Slope {
    fn name(&self) -> &'static str {
        "slope of memory_allocated, Mann-Kendall"
    }

    fn names_sites(&self) -> bool {
        false
    }

    fn begin(&mut self, given: &RunFacts<'_>) {
        self.0 = RankSeries::of(given);
    }

    fn table(&mut self, rank: usize, table: &SiteTable) {
        take(&mut self.0, rank, table);
    }

    fn verdicts(&mut self) -> Vec<Verdict> {
        verdicts(&self.0, |points| {
            points.len() >= POINTS_MIN && rising_probability(points) < ALPHA && slope(points) > 0.0
        })
    }
}

impl Detector for Strict {
    fn name(&self) -> &'static str {
        "strict growth over five epochs"
    }

    fn names_sites(&self) -> bool {
        false
    }

    fn begin(&mut self, given: &RunFacts<'_>) {
        self.0 = RankSeries::of(given);
    }

    fn table(&mut self, rank: usize, table: &SiteTable) {
        take(&mut self.0, rank, table);
    }

    fn verdicts(&mut self) -> Vec<Verdict> {
        verdicts(&self.0, |points| {
            let last = &points[points.len().saturating_sub(STRICT_POINTS)..];
            last.len() == STRICT_POINTS && last.windows(2).all(|pair| pair[0] < pair[1])
        })
    }
}

/// Median of the slopes between all pairs.
fn slope(points: &[u64]) -> f64 {
    let mut slopes: Vec<f64> = (0..points.len())
        .flat_map(|j| (0..j).map(move |i| (i, j)))
        .map(|(i, j)| (points[j] as f64 - points[i] as f64) / (j - i) as f64)
        .collect();
    slopes.sort_unstable_by(f64::total_cmp);
    slopes.get(slopes.len() / 2).copied().unwrap_or(0.0)
}

/// The probability of at least this trend among points in random order: exact up to ten points without ties, normal
/// beyond that.
fn rising_probability(points: &[u64]) -> f64 {
    let n = points.len();
    let pairs = (0..n).flat_map(|j| (0..j).map(move |i| (i, j)));
    let score: i64 = pairs.map(|(i, j)| i64::from(points[j] > points[i]) - i64::from(points[j] < points[i])).sum();
    let mut sorted = points.to_vec();
    sorted.sort_unstable();
    let ties: Vec<f64> = sorted.chunk_by(|a, b| a == b).map(|tied| tied.len() as f64).collect();
    if n <= 10 && ties.len() == n {
        return exact(n, score);
    }
    let spread = |t: f64| t * (t - 1.0) * (2.0 * t + 5.0);
    let variance = (spread(n as f64) - ties.iter().map(|&t| spread(t)).sum::<f64>()) / 18.0;
    if variance <= 0.0 || score <= 0 {
        return 1.0;
    }
    normal_above((score - 1) as f64 / variance.sqrt())
}

/// The share of the permutations of `n` points with at least this score.
fn exact(n: usize, score: i64) -> f64 {
    // The number of permutations by inversions.
    let mut counts = vec![1.0_f64];
    for k in 2..=n {
        let mut next = vec![0.0; counts.len() + k - 1];
        for (inversions, &count) in counts.iter().enumerate() {
            (0..k).for_each(|more| next[inversions + more] += count);
        }
        counts = next;
    }
    let pairs = (n * (n - 1) / 2) as i64;
    let all: f64 = counts.iter().sum();
    let at_least = counts.iter().enumerate().filter(|&(inversions, _)| pairs - 2 * inversions as i64 >= score);
    at_least.map(|(_, count)| count).sum::<f64>() / all
}

/// Upper tail of the normal distribution, to about 1e-7 (Abramowitz and Stegun 26.2.17).
fn normal_above(z: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.231_641_9 * z.abs());
    let series = [0.319_381_530, -0.356_563_782, 1.781_477_937, -1.821_255_978, 1.330_274_429];
    let tail = series.iter().rev().fold(0.0, |sum, factor| (sum + factor) * t);
    let above = (-z * z / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt() * tail;
    if z >= 0.0 { above } else { 1.0 - above }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trend_test_has_its_known_values() {
        // Kendall's exact table: p(S >= 6 | n = 4) = 1/24, p(S >= 8 | n = 5) = 5/120, p(S >= 10 | n = 5) = 1/120.
        assert!((exact(4, 6) - 1.0 / 24.0).abs() < 1e-12);
        assert!((exact(5, 8) - 5.0 / 120.0).abs() < 1e-12);
        assert!((exact(5, 10) - 1.0 / 120.0).abs() < 1e-12);
        assert!((normal_above(1.959_964) - 0.025).abs() < 1e-6);
        assert!((normal_above(-1.0) - 0.841_344_7).abs() < 1e-6);
        assert!(rising_probability(&[1, 2, 3, 4]) < ALPHA);
        assert!(rising_probability(&[5; 30]) > 0.5);
        assert!(rising_probability(&[4, 3, 2, 1]) > 0.9);
        assert!((slope(&[0, 10, 20, 1000]) - 20.0).abs() < 330.0);
    }
}

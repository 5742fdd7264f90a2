//! A histogram that any thread can count into.
//!
//! Guarantees: counting never waits. A scrape may get a value in a bucket that the sum does not include yet.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A distribution of values.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Distribution {
    /// Upper bounds, ascending.
    pub bounds: &'static [f64],
    /// The number of values at or below each bound and above the previous one. The last entry counts the values above
    /// all bounds.
    pub counts: Vec<u64>,
    /// The sum of the values.
    pub sum: f64,
}

/// Bounds in seconds. They range from a single disk flush to a database with problems.
pub const BOUNDS: &[f64] = &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

/// A histogram of durations.
#[derive(Debug)]
pub struct Histogram {
    counts: Vec<AtomicU64>,
    sum_ns: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: (0..=BOUNDS.len()).map(|_| AtomicU64::new(0)).collect(), sum_ns: AtomicU64::new(0) }
    }
}

impl Histogram {
    /// Counts one duration.
    pub fn observe(&self, lasted: Duration) {
        let seconds = lasted.as_secs_f64();
        let at = BOUNDS.partition_point(|bound| *bound < seconds);
        // Relaxed: these are only statistics.
        self.counts[at].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(lasted.as_nanos() as u64, Ordering::Relaxed);
    }

    /// The current distribution.
    #[must_use]
    pub fn distribution(&self) -> Distribution {
        Distribution {
            bounds: BOUNDS,
            counts: self.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect(),
            sum: self.sum_ns.load(Ordering::Relaxed) as f64 / 1e9,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_at_a_bound_belongs_to_it() {
        let histogram = Histogram::default();
        for lasted in [Duration::ZERO, Duration::from_millis(1), Duration::from_micros(1_001), Duration::from_secs(31)]
        {
            histogram.observe(lasted);
        }
        let Distribution { counts, sum, .. } = histogram.distribution();
        assert_eq!((counts[0], counts[1], counts[BOUNDS.len()]), (2, 1, 1));
        assert!((sum - 31.002_001).abs() < 1e-9);
    }
}

//! Compares ranks: the usual value of a figure, and the ranks whose figure is an outlier.
//!
//! A figure is an outlier if it exceeds the ranks' median by more than 3.5 deviations. The deviation is the median
//! absolute deviation, scaled to a normal distribution's standard deviation. It has a minimum below which differences
//! do not matter: a share of the median, some bytes, and a share of the device. A rank below the median is no outlier,
//! because it does no harm. An outlier is only a measurement: ranks of different roles (pipeline stages) differ by
//! design, and findings decide whether the difference is a problem.

use memctl_model::{Finding, FindingKind};

use crate::statistics::{MAD_SCALE, median, median_absolute_deviation};

/// Minimum number of ranks: fewer have no majority to differ from.
const RANKS_MIN: usize = 3;
/// Maximum deviations above the median: the customary limit of the modified z-score (Iglewicz and Hoaglin).
const DEVIATIONS_MAX: f64 = 3.5;
/// One deviation is at least this share of the median: equal ranks differ by rounding.
const SHARE_MIN: f64 = 0.01;
/// One deviation is at least this many bytes: half a small segment of the allocator.
const BYTES_MIN: f64 = (1 << 20) as f64;
/// A level that is an outlier differs by at least this share of the device's memory.
const DEVICE_SHARE_MIN: f64 = 0.001;
/// One deviation of growth is at least this many bytes: less than for a level, because growth adds up.
const GROWTH_MIN: f64 = (1 << 16) as f64;

/// The kind of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// A level.
    Bytes,
    /// A rate.
    Growth,
}

/// The usual value of a figure among the ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The median absolute deviation.
    pub mad: f64,
    /// A value is an outlier if it is further above the median than this.
    pub limit: f64,
}

impl Spread {
    /// The spread of the ranks that have the figure; `None` if there are too few.
    #[must_use]
    pub fn of(values: &[f64], measure: Measure) -> Option<Self> {
        if values.len() < RANKS_MIN {
            return None;
        }
        let middle = median(values.to_vec())?;
        let mad = median_absolute_deviation(values, middle)?;
        let least = match measure {
            Measure::Bytes => BYTES_MIN,
            Measure::Growth => GROWTH_MIN,
        };
        let deviation = (mad * MAD_SCALE).max(middle.abs() * SHARE_MIN).max(least);
        Some(Self { median: middle, mad, limit: DEVIATIONS_MAX * deviation })
    }

    /// The spread of a level on devices of this size.
    #[must_use]
    pub fn on_device(self, total_bytes: u64) -> Self {
        Self { limit: self.limit.max(total_bytes as f64 * DEVICE_SHARE_MIN), ..self }
    }

    /// Whether a value is an outlier: further above the median than the spread of the others explains.
    #[must_use]
    pub fn is_odd(&self, value: f64) -> bool {
        value - self.median > self.limit
    }
}

/// Whether a finding distinguishes ranks: it is about one rank among others, or it names some of the ranks and not all.
#[must_use]
pub fn tells_ranks_apart(finding: &Finding, ranks: usize) -> bool {
    use FindingKind as Kind;
    match finding.kind {
        Kind::RankSkew | Kind::RankLost | Kind::ForeignProcess | Kind::WrongDevice => true,
        _ => !finding.ranks.is_empty() && !finding.all_ranks && finding.ranks.len() < ranks,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memctl_model::Severity;

    const MIB: f64 = (1 << 20) as f64;

    #[test]
    fn one_that_differs_stands_out_and_equal_ones_do_not() {
        let spread = Spread::of(&[92.0 * MIB, 80.0 * MIB, 80.0 * MIB, 80.0 * MIB], Measure::Bytes).unwrap();
        assert_eq!((spread.median, spread.mad), (80.0 * MIB, 0.0));
        assert!(spread.is_odd(92.0 * MIB) && !spread.is_odd(81.0 * MIB));
        assert!(!spread.is_odd(68.0 * MIB), "one that has less does no harm");
    }

    #[test]
    fn a_difference_that_the_device_does_not_notice_is_not_odd() {
        let spread = Spread::of(&[186.0 * MIB, 187.0 * MIB, 186.0 * MIB, 186.0 * MIB], Measure::Bytes).unwrap();
        assert!(!spread.is_odd(187.0 * MIB) && spread.is_odd(200.0 * MIB));
        let spread = spread.on_device(80 << 30);
        assert!(!spread.is_odd(200.0 * MIB) && spread.is_odd(300.0 * MIB));
    }

    #[test]
    fn two_ranks_have_no_majority() {
        assert_eq!(Spread::of(&[1.0, 1e12], Measure::Bytes), None);
    }

    #[test]
    fn growth_of_a_quarter_of_a_mebibyte_stands_out_against_none() {
        let spread = Spread::of(&[0.0, 0.0, 0.25 * MIB, 0.0], Measure::Growth).unwrap();
        assert!(spread.is_odd(0.25 * MIB) && !spread.is_odd(0.0));
    }

    #[test]
    fn a_leak_on_one_of_four_tells_ranks_apart_and_one_on_all_does_not() {
        let leak = Finding::new(FindingKind::Leak, Severity::Warning, 0.9, vec![2]);
        assert!(tells_ranks_apart(&leak, 4));
        assert!(!tells_ranks_apart(&leak, 1));
        let all = Finding { ranks: (0..4).collect(), all_ranks: true, ..leak.clone() };
        assert!(!tells_ranks_apart(&all, 4));
        let lost = Finding::new(FindingKind::RankLost, Severity::Critical, 1.0, vec![0]);
        assert!(tells_ranks_apart(&lost, 1));
    }
}

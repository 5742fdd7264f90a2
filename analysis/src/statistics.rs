//! The statistics that memctl uses, each defined once: medians, quantiles, deviations, slopes, intervals and two
//! trend tests.
//!
//! Guarantees: pure functions of their arguments, with results in the units of the arguments. The caller must remove
//! values that are not finite, unless a function documents that it does so. No function judges what a figure means.

use memctl_model::Rate;

/// Maximum number of points whose pairs a slope uses; 128 points have 8,128 pairs. Longer series are thinned evenly
/// and keep both ends.
pub const SLOPE_POINTS_MAX: usize = 128;
/// The normal distribution's quantile of a two-sided interval of 90 %.
const Z_90: f64 = 1.645;
/// The normal distribution's quantile of a two-sided interval of 95 %.
const Z_95: f64 = 1.959_963_985;
/// A median absolute deviation times this estimates a normal distribution's standard deviation: 1 / Φ⁻¹(3/4).
pub const MAD_SCALE: f64 = 1.4826;

/// The median. For an even number of values it is the mean of the two in the middle. `None` without values.
#[must_use]
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    median_of_sorted(&values)
}

fn median_of_sorted(sorted: &[f64]) -> Option<f64> {
    let upper = *upper_median(sorted)?;
    Some(sorted[(sorted.len() - 1) / 2].midpoint(upper))
}

/// The median of ascending values. For an even number of values it is the upper of the two in the middle, so the
/// result is always one of the values.
#[must_use]
pub fn upper_median<T>(sorted: &[T]) -> Option<&T> {
    sorted.get(sorted.len() / 2)
}

/// A median that is cautious about few values. For an even number of values it is the one of the two in the middle
/// that is nearer to 0, or 0 if their signs differ: one large change among few is not a rate. `None` without values.
#[must_use]
pub fn cautious_median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let upper = *upper_median(&values)?;
    let lower = values[(values.len() - 1) / 2];
    if lower.signum() != upper.signum() {
        return Some(0.0);
    }
    Some(if lower.abs() < upper.abs() { lower } else { upper })
}

/// The quantile by nearest rank: the smallest of ascending values that is at or above this share (0 to 1) of them.
/// `None` without values.
#[must_use]
pub fn quantile<T: Copy>(sorted: &[T], share: f64) -> Option<T> {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied()
}

/// The median of the distances from `middle`, in the unit of the values. Multiplied by [`MAD_SCALE`], it is a robust
/// standard deviation. `None` without values. Hampel, "The influence curve and its role in robust estimation", JASA 69
/// (1974).
#[must_use]
pub fn median_absolute_deviation(values: &[f64], middle: f64) -> Option<f64> {
    median(values.iter().map(|value| (value - middle).abs()).collect())
}

/// At most `most` values (at least 2). If there are more, they are thinned evenly and both ends are kept.
#[must_use]
pub fn thinned<T: Copy>(values: &[T], most: usize) -> Vec<T> {
    if values.len() <= most {
        return values.to_vec();
    }
    let last = values.len() - 1;
    (0..most).map(|index| values[index * last / (most - 1)]).collect()
}

/// The slope of `(x, y)` points, ascending in x, with its interval of 90 %, in units of y per unit of x. `None` if
/// there are fewer than two different x. Points that are not finite are ignored.
///
/// The value is the median change from point to point, because a one-time step does not affect it. If that median is 0
/// or outside the interval, most points do not change or hardly change. The value is then the median of the slopes of
/// all pairs.
///
/// Theil, "A rank-invariant method of linear and polynomial regression analysis" (1950); Sen, "Estimates of the
/// regression coefficient based on Kendall's tau", JASA 63 (1968). The interval is that of the order statistics of the
/// pairs' slopes, `z * sqrt(n (n-1) (2n+5) / 18)` places apart.
#[must_use]
pub fn slope(points: &[(f64, f64)]) -> Option<Rate> {
    let finite: Vec<(f64, f64)> = points.iter().copied().filter(|(x, y)| x.is_finite() && y.is_finite()).collect();
    let points = thinned(&finite, SLOPE_POINTS_MAX);
    let between = |a: &(f64, f64), b: &(f64, f64)| (b.0 > a.0).then(|| (b.1 - a.1) / (b.0 - a.0));
    let steps = points.windows(2).filter_map(|pair| between(&pair[0], &pair[1])).collect();
    let mut pairs: Vec<f64> = Vec::with_capacity(points.len() * points.len() / 2);
    for (index, first) in points.iter().enumerate() {
        pairs.extend(points[index + 1..].iter().filter_map(|second| between(first, second)));
    }
    pairs.sort_by(f64::total_cmp);
    let all = median_of_sorted(&pairs)?;
    let n = points.len() as f64;
    let distance = Z_90 * (n * (n - 1.0) * (2.0 * n + 5.0) / 18.0).sqrt();
    let place = |place: f64| (place.round().max(0.0) as usize).min(pairs.len() - 1);
    let low = pairs[place((pairs.len() as f64 - distance) / 2.0)];
    let high = pairs[place((pairs.len() as f64 + distance) / 2.0)];
    let usual = median(steps).filter(|&step| step != 0.0 && (low..=high).contains(&step));
    let value = usual.unwrap_or(all);
    Some(Rate { value, low: low.min(value), high: high.max(value) })
}

/// The interval of 95 % of the share `of / all`; 0 to 1 if `all` is 0. Wilson, "Probable inference, the law of
/// succession, and statistical inference", JASA 22 (1927).
#[must_use]
pub fn wilson_interval(of: u64, all: u64) -> (f64, f64) {
    if all == 0 {
        return (0.0, 1.0);
    }
    let (n, p) = (all as f64, of as f64 / all as f64);
    let centre = (p + Z_95 * Z_95 / (2.0 * n)) / (1.0 + Z_95 * Z_95 / n);
    let half = Z_95 / (1.0 + Z_95 * Z_95 / n) * (p * (1.0 - p) / n + Z_95 * Z_95 / (4.0 * n * n)).sqrt();
    ((centre - half).max(0.0), (centre + half).min(1.0))
}

/// One occurrence for the trend test [`laplace`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Occurrence {
    /// Its time, in any unit.
    pub at: f64,
    /// Its weight relative to the others, above 0.
    pub weight: f64,
}

/// The period in which occurrences were observed, in the unit of their times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Observed {
    /// Its begin.
    pub from: f64,
    /// Its length, above 0.
    pub length: f64,
}

/// Laplace's statistic of a trend. If occurrences come at a constant rate, it has a standard normal distribution. It
/// is below 0 if they become rarer, above 0 if they become more frequent, and 0 without occurrences. Weighted
/// occurrences carry as much information as `sum² / sum of squares` equal ones. Cox and Lewis, "The Statistical
/// Analysis of Series of Events" (1966), chapter 3.
#[must_use]
pub fn laplace(occurrences: impl IntoIterator<Item = Occurrence>, observed: Observed) -> f64 {
    let (mut sum, mut squares, mut moment) = (0.0, 0.0, 0.0);
    for Occurrence { at, weight } in occurrences {
        sum += weight;
        squares += weight * weight;
        moment += weight * at;
    }
    if sum == 0.0 {
        return 0.0;
    }
    ((moment / sum - observed.from) / observed.length - 0.5) * (12.0 * sum * sum / squares).sqrt()
}

/// Kendall's statistic of a trend (Mann 1945): pairs in which the later value is higher minus pairs in which it is lower, in
/// standard deviations of values without a trend. Equal values count as neither. 0 below two values.
#[must_use]
pub fn kendall<T: Ord>(values: &[T]) -> f64 {
    let n = values.len() as f64;
    let later = |at: usize| values[at + 1..].iter();
    let sum: i64 =
        values.iter().enumerate().map(|(at, value)| later(at).map(|after| after.cmp(value) as i64).sum::<i64>()).sum();
    let variance = n * (n - 1.0) * (2.0 * n + 5.0) / 18.0;
    if values.len() < 2 { 0.0 } else { sum as f64 / variance.sqrt() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn line(values: &[f64]) -> Vec<(f64, f64)> {
        (0..).map(f64::from).zip(values.iter().copied()).collect()
    }

    fn of(values: &[f64]) -> Rate {
        slope(&line(values)).unwrap()
    }

    #[test]
    fn medians_and_quantiles_have_their_known_values() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(Vec::new()), None);
        assert_eq!(upper_median(&[1, 2, 3, 4]), Some(&3));
        assert_eq!(upper_median::<u8>(&[]), None);
        assert_eq!(
            [vec![1.0, 9.0], vec![-9.0, -1.0], vec![-1.0, 1.0]].map(cautious_median),
            [1.0, -1.0, 0.0].map(Some)
        );
        assert_eq!([0.0, 0.5, 0.95, 1.0].map(|share| quantile(&[1, 3, 5], share)), [1, 3, 5, 5].map(Some));
        assert_eq!(quantile::<u8>(&[], 0.5), None);
        assert_eq!(median_absolute_deviation(&[1.0, 1.0, 2.0, 2.0, 4.0, 6.0, 9.0], 2.0), Some(1.0));
    }

    #[test]
    fn a_line_has_its_slope_and_a_narrow_interval() {
        assert_eq!(of(&[1.0, 4.0, 7.0, 10.0, 13.0]), Rate { value: 3.0, low: 3.0, high: 3.0 });
        let noisy = of(&[0.0, 3.2, 5.8, 9.1, 12.3, 14.7, 18.2]);
        assert!(noisy.low < 3.0 && 3.0 < noisy.high && noisy.high - noisy.low < 1.0, "{noisy:?}");
    }

    #[test]
    fn one_outlier_and_rare_rises_are_borne() {
        assert_eq!(of(&[0.0, 3.0, 900.0, 9.0, 12.0, 15.0]).value, 3.0);
        let rare = of(&[0.0, 0.0, 0.0, 9.0, 9.0, 9.0, 18.0, 18.0, 18.0, 27.0]);
        assert!((2.0..4.0).contains(&rare.value), "{rare:?}");
        // Between its rare rises the series hardly changes.
        let trembling: Vec<f64> = (0..100).map(|at| f64::from(at / 10 * 900 + at)).collect();
        assert!((80.0..100.0).contains(&of(&trembling).value), "{:?}", of(&trembling));
        assert_eq!(slope(&[(1.0, 5.0)]), None);
        assert_eq!(slope(&[(1.0, 5.0), (1.0, 6.0)]), None);
        assert_eq!(slope(&[(0.0, f64::NAN), (1.0, 1.0)]), None);
    }

    #[test]
    fn an_even_number_of_pairs_takes_the_middle_of_two() {
        // Slopes 0, 0, 0, 2, 1, 2/3: sorted 0 0 0 2/3 1 2, the middle two are 0 and 2/3.
        let slope = of(&[4.0, 4.0, 4.0, 6.0]).value;
        assert!((slope - 1.0 / 3.0).abs() < 1e-12, "{slope}");
    }

    #[test]
    fn long_series_are_thinned_without_losing_their_slope() {
        let long: Vec<f64> = (0..5_000).map(|epoch| f64::from(epoch * 7)).collect();
        assert_eq!(of(&long).value, 7.0);
        assert_eq!(thinned(&[1, 2, 3, 4, 5, 6, 7], 3), [1, 4, 7]);
    }

    #[test]
    fn intervals_have_their_known_values() {
        // Wilson, 95 %: 8 of 10 is 0.490 to 0.943; the upper end of 0 of 2,000 is 0.00192.
        let (low, high) = wilson_interval(8, 10);
        assert!((low - 0.4902).abs() < 1e-4 && (high - 0.9433).abs() < 1e-4, "{low} {high}");
        assert!((wilson_interval(0, 2_000).1 - 0.001_917).abs() < 1e-5);
        assert_eq!(wilson_interval(0, 0), (0.0, 1.0));
    }

    proptest! {
        #[test]
        fn medians_lie_in_the_middle(values in proptest::collection::vec(-1e6..1e6_f64, 1..60)) {
            let middle = median(values.clone()).unwrap();
            let half = values.len() / 2;
            prop_assert!(values.iter().filter(|&&value| value < middle).count() <= half);
            prop_assert!(values.iter().filter(|&&value| value > middle).count() <= half);
            prop_assert!(cautious_median(values.clone()).unwrap().abs() <= middle.abs() || values.len() % 2 == 0);
            let mut sorted = values;
            sorted.sort_by(f64::total_cmp);
            prop_assert!(*upper_median(&sorted).unwrap() >= middle);
            prop_assert_eq!(quantile(&sorted, 1.0), sorted.last().copied());
        }

        #[test]
        fn a_deviation_moves_with_the_unit_and_not_with_the_place(
            values in proptest::collection::vec(-1_000..1_000_i32, 1..40), by in -1_000..1_000_i32, times in 1..50_i32,
        ) {
            let deviation = |values: Vec<f64>| median_absolute_deviation(&values, median(values.clone()).unwrap());
            let plain = deviation(values.iter().map(|&value| f64::from(value)).collect()).unwrap();
            let moved = deviation(values.iter().map(|&value| f64::from(value * times + by)).collect()).unwrap();
            prop_assert!((moved - plain * f64::from(times)).abs() < 1e-6);
        }

        #[test]
        fn a_slope_moves_with_its_line(
            noise in proptest::collection::vec(-100..100_i32, 2..50), by in -1_000..1_000_i32,
        ) {
            let plain: Vec<f64> = noise.iter().map(|&y| f64::from(y)).collect();
            let moved = of(&plain.iter().map(|y| y + f64::from(by)).collect::<Vec<f64>>());
            prop_assert_eq!(moved, of(&plain));
            prop_assert!(moved.low <= moved.value && moved.value <= moved.high);
            let straight: Vec<f64> = (0..plain.len()).map(|at| at as f64 * f64::from(by)).collect();
            prop_assert_eq!(of(&straight).value, f64::from(by));
        }

        #[test]
        fn an_interval_of_a_share_holds_it_and_is_that_of_its_rest_mirrored(all in 1..10_000_u64, part in 0.0..=1.0_f64) {
            let of = (all as f64 * part) as u64;
            let (low, high) = wilson_interval(of, all);
            let share = of as f64 / all as f64;
            prop_assert!((0.0..=share + 1e-12).contains(&low) && (share - 1e-12..=1.0).contains(&high));
            let (rest_low, rest_high) = wilson_interval(all - of, all);
            prop_assert!((low - (1.0 - rest_high)).abs() < 1e-9 && (high - (1.0 - rest_low)).abs() < 1e-9);
        }

        #[test]
        fn a_trend_reversed_has_the_other_sign(at in proptest::collection::vec(0.0..=1.0_f64, 1..50), weight in 0.1..10.0_f64) {
            let observed = Observed { from: 0.0, length: 1.0 };
            let forward = laplace(at.iter().map(|&at| Occurrence { at, weight }), observed);
            let reversed = laplace(at.iter().map(|&at| Occurrence { at: 1.0 - at, weight: 1.0 }), observed);
            prop_assert!((forward + reversed).abs() < 1e-6, "{forward} {reversed}");
            prop_assert!(forward.abs() <= 0.5 * (12.0 * at.len() as f64).sqrt() + 1e-9);
        }
    }

    #[test]
    fn kendall_counts_pairs() {
        assert!((kendall(&[1, 2, 3, 4, 5, 6, 7, 8]) - 28.0 / (1176.0_f64 / 18.0).sqrt()).abs() < 1e-9);
        assert!((kendall(&[3, 1, 2]) + 1.0 / (66.0_f64 / 18.0).sqrt()).abs() < 1e-9);
        assert_eq!((kendall(&[5, 5, 5]), kendall(&[1])), (0.0, 0.0));
    }
}

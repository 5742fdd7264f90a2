//! A slope with its interval: Theil's median of pairwise slopes with Sen's interval.
//!
//! Source: P. K. Sen, "Estimates of the regression coefficient based on Kendall's tau", JASA 63 (1968). The interval is
//! taken from the order statistics of the pairwise slopes at a distance of C = z * sqrt(n(n-1)(2n+5)/18) pairs.

use memctl_model::Rate;

/// Points looked at; of longer series an even choice with both ends. 128 points have 8,128 pairs.
const POINTS_MAX: usize = 128;
/// Two-sided 90 %.
const Z: f64 = 1.645;

/// The slope of `(x, y)` points, ascending in x; `None` for fewer than two different x.
///
/// The value is the median change from point to point, because a one-time step leaves it alone; where that is not within
/// the interval (most points do not change, or by next to nothing), the median of all pairs answers.
#[must_use]
pub fn slope(points: &[(f64, f64)]) -> Option<Rate> {
    let points = thinned(points);
    let between = |a: &(f64, f64), b: &(f64, f64)| (b.0 > a.0).then(|| (b.1 - a.1) / (b.0 - a.0));
    let mut steps: Vec<f64> = points.windows(2).filter_map(|pair| between(&pair[0], &pair[1])).collect();
    let mut pairs: Vec<f64> = Vec::with_capacity(points.len() * points.len() / 2);
    for (index, first) in points.iter().enumerate() {
        pairs.extend(points[index + 1..].iter().filter_map(|second| between(first, second)));
    }
    if pairs.is_empty() {
        return None;
    }
    steps.sort_by(f64::total_cmp);
    pairs.sort_by(f64::total_cmp);
    let n = points.len() as f64;
    let distance = Z * (n * (n - 1.0) * (2.0 * n + 5.0) / 18.0).sqrt();
    let last = pairs.len() - 1;
    let place = |share: f64| (share.round().max(0.0) as usize).min(last);
    let low = pairs[place((pairs.len() as f64 - distance) / 2.0)];
    let high = pairs[place((pairs.len() as f64 + distance) / 2.0)];
    let step = Some(median(&steps)).filter(|&step| step != 0.0 && (low..=high).contains(&step));
    let value = step.unwrap_or_else(|| median(&pairs));
    Some(Rate { value, low: low.min(value), high: high.max(value) })
}

fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    if points.len() <= POINTS_MAX {
        return points.to_vec();
    }
    let last = points.len() - 1;
    (0..POINTS_MAX).map(|index| points[index * last / (POINTS_MAX - 1)]).collect()
}

/// The median of sorted values; 0 for none.
fn median(sorted: &[f64]) -> f64 {
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[f64]) -> Rate {
        let points: Vec<(f64, f64)> = (0..).map(f64::from).zip(values.iter().copied()).collect();
        slope(&points).unwrap()
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
        // Between rare rises it changes by next to nothing.
        let trembling: Vec<f64> = (0..100).map(|at| f64::from(at / 10 * 900 + at)).collect();
        assert!((80.0..100.0).contains(&of(&trembling).value), "{:?}", of(&trembling));
        assert_eq!(slope(&[(1.0, 5.0)]), None);
        assert_eq!(slope(&[(1.0, 5.0), (1.0, 6.0)]), None);
    }
}

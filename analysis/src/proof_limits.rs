//! Limits that prove a change: values that another job of the same kind must stay below, derived from this job.
//!
//! Guarantees: every limit applies to a figure at its peak or at epoch ends, never to what remains after teardown. No
//! limit is tighter than the differences between runs of the same kind.

/// Peaks of runs of the same kind differ by up to this share: shapes, timing, rounding.
const PEAK_VARIES: f64 = 0.05;
/// Share of the reserved memory that must be allocated at the peak. If less is allocated, much of the memory is
/// cached.
const USE_MIN: f64 = 0.75;
/// Share of a device that may be in use at the peak. Libraries and the next longer batch need the rest.
const DEVICE_SHARE_MAX: f64 = 0.9;
/// The lowest limit for `reserved/allocated`: rounding to segments alone takes some percent.
const RATIO_MIN: f64 = 1.1;
/// Allocated bytes may exceed those of the first epoch end by this share.
const TOLERANCE_SHARE: f64 = 0.01;
/// Allocated bytes may always differ by this much: one block that could not be split is not growth.
const TOLERANCE_BYTES_MIN: u64 = 1 << 20;
/// Maximum number of epochs that are examined for the first stable one. A job that takes longer is not stable.
const SETTLING_MAX: usize = 64;
/// Minimum number of epoch ends that are compared before a level is called stable.
pub const STABLE_ENDS_MIN: usize = 2;
/// Minimum number of epoch ends before a rate of growth is compared with a limit: two larger batches make two rises.
pub const GROWTH_ENDS_MIN: usize = 3;

/// Minimum number of epoch ends to distinguish a leak from a cache that is still filling.
pub const LEAK_ENDS_MIN: usize = 6;
/// Minimum number of steps to report memory kept at each step, if there are too few epoch ends.
pub const LEAK_STEPS_MIN: u64 = 30;
/// Maximum number of lines of a function that are aligned between two runs. The work grows with the product of both numbers.
pub const ALIGNED_LINES_MAX: usize = 1024;
/// Runs differ in length if the shorter one has less than this share of the steps of the longer one.
const SAME_LENGTH: f64 = 0.75;
/// Rates of one leak in runs of the same kind differ by up to this share.
const RATE_VARIES: f64 = 0.25;
/// The memory of one function in two runs differs by up to this share of the larger one.
const FUNCTION_VARIES: f64 = 0.25;
/// The smallest block of the allocator: a rate may always differ by one of them a step.
const BLOCK_BYTES_MIN: u64 = 512;

/// Whether these may be the memory of one function in two runs.
#[must_use]
pub fn is_about_equal(one: u64, other: u64) -> bool {
    one.abs_diff(other) as f64 <= FUNCTION_VARIES * one.max(other) as f64
}

/// The highest rate at which a known leak of `rate` bytes may grow in a later run. `spread` are the bytes by which the
/// rates of equal runs differed, and `steps` the steps in the rate's unit.
#[must_use]
pub fn rate_limit(rate: i64, spread: u64, steps: u64) -> i64 {
    let share = (rate.max(0) as f64 * RATE_VARIES) as u64;
    let more = share.saturating_add(spread).max(BLOCK_BYTES_MIN.saturating_mul(steps));
    rate.saturating_add(i64::try_from(more).unwrap_or(i64::MAX))
}

/// The highest peak that a run of the same kind may reach.
#[must_use]
pub fn peak_limit(peak_bytes: u64) -> u64 {
    (peak_bytes as f64 * (1.0 + PEAK_VARIES)) as u64
}

/// The highest reserved bytes that fit a device well.
#[must_use]
pub fn device_limit(total_bytes: u64) -> u64 {
    (total_bytes as f64 * DEVICE_SHARE_MAX) as u64
}

/// The limit for `reserved/allocated` at the peak after less memory is wasted. It allows half of the waste, because a
/// smaller improvement would not show against the noise of one run.
#[must_use]
pub fn ratio_limit(ratio: f64) -> f64 {
    (1.0 + (ratio - 1.0) / 2.0).max(RATIO_MIN)
}

/// How far allocated bytes may rise above those of the first epoch end and still count as stable.
#[must_use]
pub fn tolerance(first_bytes: u64) -> u64 {
    ((first_bytes as f64 * TOLERANCE_SHARE) as u64).max(TOLERANCE_BYTES_MIN)
}

/// Whether the peak of reserved memory is real demand. Otherwise much of it is cached.
#[must_use]
pub fn is_real_demand(peak_allocated_bytes: u64, peak_reserved_bytes: u64) -> bool {
    peak_allocated_bytes as f64 >= USE_MIN * peak_reserved_bytes as f64
}

/// The first epoch from whose end on the level stays within the tolerance. Epoch 0 is left out because it warms up.
/// The result suits `stable --after-epoch` for a job like this one. `ends` are epochs with their bytes, ascending.
#[must_use]
pub fn settled_after(ends: &[(u32, u64)]) -> Option<u32> {
    let last = ends.last()?.0;
    let candidates = ends.iter().map(|&(epoch, _)| epoch).filter(|epoch| (1..last).contains(epoch));
    candidates.take(SETTLING_MAX).find(|&epoch| is_stable_from(ends, epoch))
}

/// By how much the level at the last epoch end exceeds that after the first epoch, where it rises by more than it falls
/// in between; `None` where it does not, or where no epoch follows the first one.
#[must_use]
pub fn rise_after_first(levels: &[u64]) -> Option<u64> {
    let [_, warm @ ..] = levels else { return None };
    let (&first, &last) = (warm.first()?, warm.last()?);
    let mut highest = first;
    let mut deepest_fall = 0;
    for &level in warm {
        highest = highest.max(level);
        deepest_fall = deepest_fall.max(highest - level);
    }
    last.checked_sub(first).filter(|&by| by > deepest_fall)
}

/// Whether two runs differ in length by more than a quarter.
#[must_use]
pub fn differ_in_length(before: u64, after: u64) -> bool {
    (before.min(after) as f64) < SAME_LENGTH * before.max(after) as f64
}

/// Whether the level stays within the tolerance from the end of this epoch on.
#[must_use]
pub fn is_stable_from(ends: &[(u32, u64)], epoch: u32) -> bool {
    let counted: Vec<u64> = ends.iter().filter(|end| end.0 >= epoch).map(|end| end.1).collect();
    let (Some(&first), Some(&highest)) = (counted.first(), counted.iter().max()) else { return false };
    counted.len() >= STABLE_ENDS_MIN && highest - first <= tolerance(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn half_of_the_waste_has_to_go_and_rounding_may_stay() {
        assert!((ratio_limit(3.0) - 2.0).abs() < 1e-9);
        assert!((ratio_limit(1.0) - 1.1).abs() < 1e-9);
    }

    #[test]
    fn a_cache_that_fills_late_settles_late() {
        let ends: Vec<(u32, u64)> =
            [80, 80, 90, 100, 100, 100].iter().enumerate().map(|(at, mib)| (at as u32, mib * MIB)).collect();
        assert_eq!(settled_after(&ends), Some(3));
        assert_eq!(settled_after(&ends[..4]), None);
        assert_eq!(settled_after(&[]), None);
        assert!(is_stable_from(&ends, 3) && !is_stable_from(&ends, 5), "one end is compared with nothing");
    }

    #[test]
    fn levels_rise_after_the_first_epoch_or_vary() {
        assert_eq!(rise_after_first(&[10, 12, 14]), Some(2));
        assert_eq!(rise_after_first(&[10, 14, 13, 16]), Some(2));
        for flat in [&[10, 12, 12][..], &[10, 14, 11, 15], &[10, 14], &[]] {
            assert_eq!(rise_after_first(flat), None, "{flat:?}");
        }
    }

    #[test]
    fn a_rate_may_differ_by_a_share_by_what_repeats_showed_and_by_a_block_a_step() {
        assert_eq!(rate_limit(1000, 0, 1), 1512);
        assert_eq!(rate_limit(64 << 10, 0, 1), 80 << 10);
        assert_eq!(rate_limit(64 << 10, 1 << 10, 1), 81 << 10);
        assert_eq!(rate_limit(1000, 0, 10), 6120);
    }

    #[test]
    fn three_quarters_in_use_are_real_demand() {
        assert!(is_real_demand(75, 100) && !is_real_demand(74, 100));
    }
}

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
    fn three_quarters_in_use_are_real_demand() {
        assert!(is_real_demand(75, 100) && !is_real_demand(74, 100));
    }
}

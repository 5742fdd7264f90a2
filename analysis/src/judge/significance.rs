//! Whether growth is significant, judged by its consequence and not only by its rate.
//!
//! A few kilobytes per epoch are only a figure in a table. Guarantees: growth is significant if it is a share of the
//! job's need, or if it fills the device within the possible duration of a run.

use super::history::Per;
use super::watch::RankWatch;

/// Minimum share of the peak that significant growth has.
const PEAK_SHARE: f64 = 0.01;
/// Growth that fills the device within this many seconds is significant however small it is: trainings take weeks, and
/// servers run for months.
const HORIZON_SECONDS: f64 = 180.0 * 86_400.0;

/// The highest allocated bytes, as far as known.
pub(super) fn peak_bytes(watch: &RankWatch) -> u64 {
    let history = &watch.history;
    let levels = Per::ALL.into_iter().flat_map(|per| history.levels(per)).chain(history.last_level());
    levels.map(|level| level.peak_allocated_bytes.max(level.counters.allocated_bytes)).max().unwrap_or(0)
}

/// Whether this many bytes are a significant share of the job's need.
pub(super) fn is_share_of_peak(watch: &RankWatch, gained: u64) -> bool {
    gained > 0 && gained as f64 >= PEAK_SHARE * peak_bytes(watch) as f64
}

/// Whether growth by this many bytes in this many seconds is significant on this device.
pub(super) fn matters(watch: &RankWatch, gained: u64, seconds: f64) -> bool {
    if is_share_of_peak(watch, gained) {
        return true;
    }
    let Some(limit) = watch.limit_bytes() else { return false };
    let peak = peak_bytes(watch);
    let rate = gained as f64 / seconds.max(f64::MIN_POSITIVE);
    rate > 0.0 && limit.saturating_sub(peak) as f64 / rate <= HORIZON_SECONDS
}

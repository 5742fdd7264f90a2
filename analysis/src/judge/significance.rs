//! Whether growth matters: by what it leads to, and not by its rate alone.
//!
//! A few kilobytes an epoch are a figure in a table. Guarantees: growth matters where it is a share of what the job needs, or
//! where it fills the device within a time that a run may take.

use super::history::Per;
use super::watch::RankWatch;

/// Share of the highest level from which growth matters.
const PEAK_SHARE: f64 = 0.01;
/// Growth that fills the device within so many seconds matters however small it is: trainings take weeks, servers run for
/// months.
const HORIZON_SECONDS: f64 = 180.0 * 86_400.0;

/// The most that was allocated at a time, as far as it is known.
pub(super) fn peak_bytes(watch: &RankWatch) -> u64 {
    let history = &watch.history;
    let levels = Per::ALL.into_iter().flat_map(|per| history.levels(per)).chain(history.last_level());
    levels.map(|level| level.peak_allocated_bytes.max(level.counters.allocated_bytes)).max().unwrap_or(0)
}

/// Whether so many bytes are a share of what the job needs that matters.
pub(super) fn is_share_of_peak(watch: &RankWatch, gained: u64) -> bool {
    gained > 0 && gained as f64 >= PEAK_SHARE * peak_bytes(watch) as f64
}

/// Whether growth by so many bytes in so many seconds matters on this device.
pub(super) fn matters(watch: &RankWatch, gained: u64, seconds: f64) -> bool {
    if is_share_of_peak(watch, gained) {
        return true;
    }
    let Some(limit) = watch.limit_bytes() else { return false };
    let peak = peak_bytes(watch);
    let rate = gained as f64 / seconds.max(f64::MIN_POSITIVE);
    rate > 0.0 && limit.saturating_sub(peak) as f64 / rate <= HORIZON_SECONDS
}

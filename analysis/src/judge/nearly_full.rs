//! A device that is nearly full although nothing grows.
//!
//! Guarantees: the finding is based on peaks of the recent history, and only made if the device's size was measured. A
//! large cache of the allocator is not a problem: the allocator releases unused memory before a request fails.

use memctl_model::{Finding, Severity};

use super::history::{Level, Per};
use super::watch::RankWatch;
use super::words::{self, Near};

/// Minimum number of boundaries; with fewer a peak may be random.
const BOUNDARIES_MIN: u32 = 5;
/// Share of the device that is left: below the first value it is reported, below the second it is tight.
const LEFT: (f64, f64) = (0.05, 0.02);

/// Ranks that leave hardly any memory free, except those with a leak that already predicts when they will be full.
pub(super) fn findings(watches: &[&RankWatch], leaks: &[Finding]) -> Vec<Finding> {
    let tells = |leak: &Finding, watch: &RankWatch| {
        leak.severity > Severity::Info && leak.processes.contains(&watch.who().name())
    };
    let quiet = watches.iter().filter(|watch| !leaks.iter().any(|leak| tells(leak, watch)));
    let near = quiet.filter_map(|watch| near(watch));
    near.map(|near| words::near_oom(&near)).collect()
}

fn near(watch: &RankWatch) -> Option<Near> {
    let history = &watch.history;
    let total_bytes = watch.facts.device_total_bytes.filter(|&total| total > 0)?;
    let seen: u32 = Per::ALL.iter().fold(0, |sum, &per| sum.saturating_add(history.of(per).seen));
    let recent = recent(history.first.as_ref()?, history.last_level()?);
    let levels = Per::ALL.iter().flat_map(|&per| history.levels(per)).filter(|level| level.time_ns >= recent);
    let peak_bytes = levels.map(|level| level.peak_allocated_bytes.max(level.counters.allocated_bytes)).max()?;
    let outside_bytes = history.outside_bytes().unwrap_or(0);
    let left_bytes = total_bytes.saturating_sub(outside_bytes).saturating_sub(peak_bytes);
    let retries = history.retries();
    let share = left_bytes as f64 / total_bytes as f64;
    let tight = share < LEFT.1 || (retries > 0 && share < LEFT.0);
    let near = seen >= BOUNDARIES_MIN && share < LEFT.0;
    near.then_some(Near { who: watch.who(), left_bytes, peak_bytes, outside_bytes, total_bytes, retries, tight })
}

/// The begin of the recent half.
fn recent(first: &Level, last: &Level) -> u64 {
    first.time_ns.saturating_add(last.time_ns.saturating_sub(first.time_ns) / 2)
}

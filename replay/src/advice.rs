//! What a good engineer would try, what speaks against it, and which of it to take.
//!
//! Guarantees: a setting is recommended only where its replay holds less memory than the replay of the recorded setting, by a
//! share that is worth a change, without asking the driver much more often and without failing. Refuses to recommend what was
//! not replayed.

use crate::settings::{Conf, Version};
use crate::trial::Outcome;

/// Settings that are tried where nobody names one.
const TRIED: [&str; 12] = [
    "expandable_segments:True",
    "expandable_segments:True,roundup_power2_divisions:8",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:8",
    "roundup_power2_divisions:16",
    "max_split_size_mb:64",
    "max_split_size_mb:128",
    "max_split_size_mb:256",
    "max_split_size_mb:512",
    "garbage_collection_threshold:0.8",
    "max_split_size_mb:128,garbage_collection_threshold:0.8",
    "large_segment_size_mb:64",
];

/// A setting is worth its change from this share of the reserved memory on, in percent; a run differs by less from the next.
const WORTH_PERCENT: u64 = 2;
/// Calls of the driver wait for the device: this many times as many are too many.
const DRIVER_CALLS_FACTOR: u64 = 3;
/// Where there are next to none, a few more are none.
const DRIVER_CALLS_FEW: u64 = 100;

/// The settings that are tried, without those that this version would refuse.
#[must_use]
pub fn tried(version: Version) -> Vec<&'static str> {
    TRIED.into_iter().filter(|text| Conf::parse(text, version).is_ok()).collect()
}

/// What to know before a setting is used, whatever its replay says.
#[must_use]
pub fn cautions(conf: &Conf, baseline: &Outcome, outcome: &Outcome) -> Vec<String> {
    let mut cautions = Vec::new();
    if conf.expandable_segments {
        cautions.push(
            "expandable segments cannot be shared between processes with CUDA IPC by every version, nor registered as NCCL user \
             buffers or for RDMA by every transport"
                .to_owned(),
        );
    }
    if outcome.counts.peak_reserved_bytes > baseline.counts.peak_reserved_bytes {
        cautions.push("it holds more memory than the recorded setting".to_owned());
    }
    let (before, after) = (driver_calls(baseline), driver_calls(outcome));
    if after > before + DRIVER_CALLS_FEW {
        cautions
            .push(format!("the driver is called {after} times instead of {before}; each call may wait for the device"));
    }
    if outcome.counts.retries > baseline.counts.retries {
        cautions
            .push(format!("{} requests are served only after the whole cache was released", outcome.counts.retries));
    }
    if outcome.survived > 0 {
        cautions.push("what the job would have done after the request that failed is not known".to_owned());
    }
    cautions
}

/// The setting to take: its index among the trials and the bytes that it saves; `None` when none is worth it.
#[must_use]
pub fn recommended(baseline: &Outcome, trials: &[Outcome]) -> Option<(usize, u64)> {
    let held = baseline.counts.peak_reserved_bytes;
    let fails = baseline.out_of_memory.is_some();
    let candidates = trials.iter().enumerate().filter(|(_, trial)| {
        trial.out_of_memory.is_none()
            && driver_calls(trial) <= driver_calls(baseline) * DRIVER_CALLS_FACTOR + DRIVER_CALLS_FEW
            && trial.counts.retries <= baseline.counts.retries
    });
    // The first of equal ones: the list begins with what is least trouble.
    let (index, best) = candidates.min_by_key(|(_, trial)| trial.counts.peak_reserved_bytes)?;
    let saves = held.saturating_sub(best.counts.peak_reserved_bytes);
    (fails || saves.saturating_mul(100) >= held.saturating_mul(WORTH_PERCENT) && saves > 0).then_some((index, saves))
}

fn driver_calls(outcome: &Outcome) -> u64 {
    outcome.counts.device_allocs + outcome.counts.device_frees
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocator::Counts;

    fn outcome(peak_reserved_bytes: u64, device_allocs: u64) -> Outcome {
        let counts = Counts { peak_reserved_bytes, device_allocs, ..Counts::default() };
        Outcome { counts, out_of_memory: None, survived: 0 }
    }

    #[test]
    fn the_smallest_wins_where_it_is_worth_a_change() {
        let baseline = outcome(1000, 10);
        assert_eq!(recommended(&baseline, &[outcome(990, 10), outcome(985, 10)]), None);
        assert_eq!(recommended(&baseline, &[outcome(900, 10), outcome(800, 20), outcome(800, 10)]), Some((1, 200)));
        assert_eq!(recommended(&baseline, &[outcome(500, 1000)]), None, "too many calls of the driver");
        assert_eq!(recommended(&baseline, &[outcome(2000, 10)]), None);
        assert_eq!(recommended(&baseline, &[]), None);
    }

    #[test]
    fn old_versions_are_spared_what_they_refuse() {
        assert_eq!(tried(Version::of(2, 11)).len(), TRIED.len());
        assert!(!tried(Version::of(2, 8)).contains(&"large_segment_size_mb:64"));
    }
}

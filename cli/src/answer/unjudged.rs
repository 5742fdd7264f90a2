//! What could not be judged, and why: silence about a thing that nobody looked at must not read as health.

use super::finding::Finding;
use super::report::{Rank, Report};
use crate::render::text::plural;

/// Epoch ends that growth from epoch to epoch takes: of fewer rises than three nothing is said (two larger batches make
/// two).
pub const EPOCH_ENDS_MIN: usize = 3;
/// Epoch ends after which a tensor that is kept once an epoch is told from a cache that still fills.
const SLOW_LEAK_ENDS_MIN: usize = 6;

/// What was not judged, as phrases that stand behind "Not judged:".
#[must_use]
pub fn unjudged(report: &Report) -> Vec<String> {
    let ranks = &report.ranks;
    if ranks.is_empty() {
        return vec!["anything (nothing was recorded in this part of the job)".to_owned()];
    }
    let mut gaps = Vec::new();
    if let Some(missing) = report.job.world_size.map(|world| world.saturating_sub(report.job.ranks)).filter(|&n| n > 0)
    {
        gaps.push(format!("{} (not recorded)", plural(u64::from(missing), "rank")));
    }
    let ends = ranks.iter().map(|rank| rank.epoch_ends.len()).min().unwrap_or(0);
    if ends < EPOCH_ENDS_MIN {
        let there = if ends == 0 { "no epoch has ended".to_owned() } else { plural(ends as u64, "epoch end") };
        gaps.push(format!("growth from epoch to epoch ({there}; it takes {EPOCH_ENDS_MIN})"));
    } else if ends < SLOW_LEAK_ENDS_MIN && !report.findings.iter().any(Finding::hurts) {
        let there = plural(ends as u64, "epoch end");
        gaps.push(format!(
            "tensors kept once an epoch ({there}; a cache is told from them after {SLOW_LEAK_ENDS_MIN})"
        ));
    }
    if report.stacks == Some(false) {
        gaps.push("which line of code (no stacks were recorded)".to_owned());
    }
    let measured = |read: fn(&Rank) -> bool| ranks.iter().any(read);
    let device = measured(|rank| rank.device_used_bytes.is_some());
    let host = measured(|rank| rank.sample.as_ref().is_some_and(|sample| sample.host_rss_bytes.is_some()));
    match (device, host) {
        (true, true) => {}
        (false, false) => gaps.push("memory outside the allocator and host memory (not measured)".to_owned()),
        (false, true) => gaps.push("memory outside the allocator (not measured)".to_owned()),
        (true, false) => gaps.push("host memory (not measured)".to_owned()),
    }
    gaps
}

/// `4 ranks, 5 epochs, 40 steps`: what was looked at.
#[must_use]
pub fn looked_at(report: &Report) -> String {
    let most = |read: fn(&Rank) -> u64| report.ranks.iter().map(read).max().unwrap_or(0);
    format!(
        "{}, {}, {}",
        plural(report.ranks.len() as u64, "rank"),
        plural(most(|rank| rank.epoch_ends.len() as u64), "epoch end"),
        plural(most(|rank| rank.steps), "step"),
    )
}

//! Whether growth goes on: the part of it in the last third of the boundaries.

use super::candidate::Candidate;
use super::growth::Growth;
use super::history::Per;
use super::watch::RankWatch;

/// Minimum share of the growth in the last third of the boundaries. Even growth has a third there.
const LATE_MIN: f64 = 0.05;

/// Whether it has paused for longer than its rhythm explains, or the last third of the boundaries has next to none of
/// it.
pub(super) fn has_stopped(watch: &RankWatch, lead: &Candidate) -> bool {
    lead.growth.stopped || late_share(lead, watch) < LATE_MIN
}

/// The boundary before the last third.
pub(super) fn last_third(watch: &RankWatch, per: Per) -> u32 {
    let boundaries = watch.history.of(per);
    let first = boundaries.levels.first().map_or(0, |level| level.at.saturating_sub(1));
    first + (boundaries.at.saturating_sub(first)) / 3 * 2
}

/// The share of a candidate's growth in the last third of the boundaries.
fn late_share(lead: &Candidate, watch: &RankWatch) -> f64 {
    share_since(&lead.growth, last_third(watch, lead.per))
}

/// The share of a growth after a boundary.
fn share_since(growth: &Growth, from: u32) -> f64 {
    let sizes = growth.times.iter().zip(&growth.sizes);
    let sum = |late: bool| -> f64 {
        sizes.clone().filter(|(at, _)| !late || **at > from).map(|(_, &size)| size as f64).sum()
    };
    let all = sum(false);
    if all > 0.0 { sum(true) / all } else { 0.0 }
}

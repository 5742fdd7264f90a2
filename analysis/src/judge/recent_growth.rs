//! Whether growth goes on: the part of it in the last third of the boundaries.

use super::candidate::Candidate;
use super::growth::Growth;
use super::history::Per;
use super::watch::RankWatch;
use crate::growth::FIRST_LEVEL_FACTOR;

/// Minimum share of the growth in the last third of the boundaries. Even growth has a third there.
const LATE_MIN: f64 = 0.05;

/// Whether it has paused for longer than its rhythm explains, or the last third of the boundaries has next to none of
/// it.
pub(super) fn has_stopped(watch: &RankWatch, lead: &Candidate) -> bool {
    lead.growth.stopped || late_share(lead, watch) < LATE_MIN
}

/// The number of rises before growth stopped. Of growth that has next to none in the last third of the boundaries, the
/// rises there are left out.
pub(super) fn rises_before_stop(watch: &RankWatch, lead: &Candidate) -> usize {
    let times = &lead.growth.times;
    let early = times.partition_point(|&at| at <= last_third(watch, lead.per));
    if lead.growth.stopped || early == 0 { times.len() } else { early }
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

/// The share of a growth after a boundary. A first rise far beyond all others is memory that is made only once (a model,
/// a library's workspace) and not part of the growth.
fn share_since(growth: &Growth, from: u32) -> f64 {
    let largest = growth.sizes.iter().skip(1).max();
    let is_beyond = |first: &u64| largest.is_some_and(|largest| *first > largest.saturating_mul(FIRST_LEVEL_FACTOR));
    let made_once = usize::from(growth.sizes.first().is_some_and(is_beyond));
    let sizes = growth.times.iter().zip(&growth.sizes).skip(made_once);
    let sum = |late: bool| -> f64 {
        sizes.clone().filter(|(at, _)| !late || **at > from).map(|(_, &size)| size as f64).sum()
    };
    let all = sum(false);
    if all > 0.0 { sum(true) / all } else { 0.0 }
}

//! The pace of a leak by the clock, and the time when the device will be full.
//!
//! Guarantees: the pace is that of the recent history by the clock, including pauses, evaluations and checkpoints, and
//! has an interval. The remaining memory is derived from the recent needs of the run. These are the highest peak minus
//! the memory leaked by then, the use by other processes and outside the allocator, and the part of the segments that
//! the allocator could not use. There is no result if the device's size is not known or nothing grows.

use memctl_model::Rate;

use super::candidate::points;
use super::group::Group;
use super::history::{Level, Per};
use super::series::Point;
use super::watch::RankWatch;

/// The time when the device will be full.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct TimeToFull {
    /// Seconds from the last boundary on.
    pub seconds: Rate,
    /// The same in epochs, by the growth that the findings state per epoch; `None` without epochs.
    pub epochs: Option<f64>,
}

/// Minimum number of epoch ends since the growth began to compute the pace only from them. Each is at the same
/// position of its epoch.
const EPOCH_ENDS_MIN: usize = 4;
/// Minimum number of boundaries in the recent half to compute the pace only from this half.
const RECENT_MIN: usize = 8;

/// Live bytes of groups at the kept boundaries of a kind.
pub(super) fn summed<'a>(watch: &'a RankWatch, groups: &[&Group], per: Per) -> Vec<(&'a Level, u64)> {
    let at_boundary = |at: u32| {
        groups.iter().flat_map(|group| &group.members).fold(0, |sum: u64, member| {
            let site = &watch.sites[member.site];
            sum.saturating_add(bytes_at(points(watch, site, per), at, site.series(per).density() > 1.0))
        })
    };
    watch.history.levels(per).iter().map(|level| (level, at_boundary(level.at))).collect()
}

/// Bytes of a site at a boundary. If a point stands for several changes, the bytes between two points are interpolated
/// linearly.
fn bytes_at(points: &[Point], at: u32, thinned: bool) -> u64 {
    let known = points.partition_point(|point| point.at <= at);
    let Some(before) = known.checked_sub(1).and_then(|index| points.get(index)) else { return 0 };
    match points.get(known).filter(|_| thinned) {
        None => before.bytes,
        Some(after) => {
            let share = f64::from(at - before.at) / f64::from((after.at - before.at).max(1));
            (before.bytes as f64 + (after.bytes as f64 - before.bytes as f64) * share) as u64
        }
    }
}

/// Bytes per second of these groups together, by the clock, over the recent history.
pub(super) fn pace(watch: &RankWatch, groups: &[&Group]) -> Option<Rate> {
    let leads = || groups.iter().map(|group| group.lead());
    let begun = leads().filter_map(|lead| lead.since).map(|since| since.time_ns).min()?;
    let of = |per: Per| -> Vec<(u64, u64)> {
        let all: Vec<(u64, u64)> =
            summed(watch, groups, per).into_iter().map(|(level, bytes)| (level.time_ns, bytes)).collect();
        // The history starts with the boundary before the first rise.
        let from = all.partition_point(|&(time, _)| time < begun).saturating_sub(1);
        all[from..].to_vec()
    };
    let windows = leads().any(|lead| lead.per == Per::Window);
    let by_epoch = of(Per::Epoch);
    let history = match windows {
        true => of(Per::Window),
        false if by_epoch.len() > EPOCH_ENDS_MIN => by_epoch,
        false => Some(of(Per::Step)).filter(|steps| steps.len() > 1).unwrap_or(by_epoch),
    };
    let rises: u32 = leads().map(|lead| lead.growth.rises).max().unwrap_or(1);
    recent_rate(&history, rises)
}

/// Bytes per second of a history over its recent half. It is the median over several starting points, so that no
/// single start decides.
fn recent_rate(history: &[(u64, u64)], rises: u32) -> Option<Rate> {
    let (&(first, _), &(now, bytes)) = (history.first()?, history.last()?);
    let middle = first + now.saturating_sub(first) / 2;
    let half = history.partition_point(|&(time, _)| time < middle);
    let recent = if history.len() - half >= RECENT_MIN { &history[half..] } else { history };
    let (&(from, _), span) = (recent.first()?, now.saturating_sub(recent.first()?.0));
    let starts = recent.iter().filter(|&&(time, _)| time < now && time.saturating_sub(from) <= span / 2);
    let mut rates: Vec<f64> = starts
        .map(|&(time, then)| (bytes as f64 - then as f64) / (now.saturating_sub(time) as f64 / 1e9))
        .filter(|rate| rate.is_finite())
        .collect();
    rates.sort_by(f64::total_cmp);
    let place = |share: f64| rates.get(((rates.len() as f64 - 1.0) * share).round() as usize).copied();
    let value = place(0.5).filter(|&value| value > 0.0)?;
    // One rise more or less in the range is random.
    let chance = 1.0 / f64::from(rises.max(2));
    let (low, high) = (place(0.05)? * (1.0 - chance), place(0.95)? * (1.0 + chance));
    Some(Rate { value, low: low.clamp(0.0, value), high: high.max(value) })
}

/// The same rate per minute.
pub(super) fn a_minute(rate: Rate) -> Rate {
    Rate { value: rate.value * 60.0, low: rate.low * 60.0, high: rate.high * 60.0 }
}

/// The time when these groups together will have filled the device. `per_epoch` is their growth per epoch in bytes.
pub(super) fn of(watch: &RankWatch, groups: &[&Group], per_epoch: Option<f64>) -> Option<TimeToFull> {
    let rate = pace(watch, groups)?;
    let (most, least) = left_bytes(watch, groups)?;
    let left = f64::midpoint(most, least);
    let seconds = Rate {
        value: left / rate.value,
        low: least / rate.high,
        high: if rate.low > 0.0 { most / rate.low } else { f64::MAX },
    };
    let epochs = per_epoch.filter(|&rate| rate > 0.0).map(|rate| left / rate);
    Some(TimeToFull { seconds, epochs })
}

/// The memory that is left for these groups: at most, and at least. The lower value assumes that free parts of
/// segments in use cannot be used.
fn left_bytes(watch: &RankWatch, groups: &[&Group]) -> Option<(f64, f64)> {
    let history = &watch.history;
    let limit = watch.limit_bytes()?;
    let (mut needed, mut unusable, mut now) = (0, u64::MAX, 0);
    let last = history.last_level()?.time_ns;
    let first = history.first.map_or(last, |first| first.time_ns);
    let recent = first + last.saturating_sub(first) / 2;
    let mut latest = 0;
    for per in Per::ALL {
        for (level, leaked) in summed(watch, groups, per).into_iter().filter(|(level, _)| level.time_ns >= recent) {
            let peak = level.peak_allocated_bytes.max(level.counters.allocated_bytes);
            needed = needed.max(peak.saturating_sub(leaked));
            let free = level.peak_reserved_bytes.max(level.counters.reserved_bytes).saturating_sub(peak);
            unusable = unusable.min(free.min(level.counters.inactive_split_bytes));
            if level.time_ns >= latest {
                (latest, now) = (level.time_ns, now.max(leaked));
            }
        }
    }
    let most = limit.saturating_sub(needed).saturating_sub(now);
    let least = most.saturating_sub(if unusable == u64::MAX { 0 } else { unusable });
    Some((most as f64, least as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_count_and_a_beginning_at_a_chance_moment_does_not_decide() {
        // 10 steps of a second with 1 MiB each, then 30 seconds of evaluation, repeatedly.
        let mut history = Vec::new();
        let mut second = 0;
        for step in 0..200_u64 {
            second += if step % 10 == 0 { 31 } else { 1 };
            history.push((second * 1_000_000_000, step << 20));
        }
        let rate = recent_rate(&history, 200).unwrap();
        let truth = f64::from(10 << 20) / 40.0;
        assert!((0.85..1.18).contains(&(rate.value / truth)), "{}", rate.value / truth);
        assert!(rate.low <= truth && truth <= rate.high, "{rate:?}, {truth}");
        assert_eq!(recent_rate(&history[..1], 5), None);
        assert_eq!(recent_rate(&[(0, 5), (9, 5), (20, 5)], 5), None);
    }
}

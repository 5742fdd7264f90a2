//! Growth of all allocated memory of a device that no line explains.
//!
//! Guarantees: memory that comes and goes is not growth. A sum that has been flat for several times its longest pause
//! has stopped. The cause is not searched: only the place of most of the growth is named, if there is one.

use std::collections::HashMap;

use memctl_model::{FindingKind, Frame};

use super::course::{Course, Place, Stand, WINDOWS_OF_PEAK, Way, raises_peaks};
use super::held::given_back;
use super::history::{Level, Per};
use super::significance::is_share_of_peak;
use super::watch::{RankWatch, Site};

/// A sum was as high before if at most one part in this many of its gain was missing.
const AS_HIGH_SHARE: u64 = 8;
/// A level is flat if it changes by at most one part in this many of the sum's gain.
const LEVEL_SHARE: u64 = 20;
/// A sum that has been flat for this many times its longest pause has stopped.
const FLAT_FACTOR: u64 = 3;
/// The last third must have at least one part in this many of a place's growth. Even growth has half of it there.
const LATE_SHARE: u64 = 5;
/// From the middle third to the last sixth, the lowest level must rise by at least one part in this many of the sum's
/// gain. Even growth since the beginning has half of its gain there, and growth in the last third has more. Memory that
/// comes and goes has hardly any, also if it was low at the start, before its first requests.
const LOWS_SHARE: u64 = 4;
/// Minimum number of boundaries before the sum is judged.
const BOUNDARIES_MIN: usize = 12;

/// The course of the sum of all allocated memory, if it grows and no line explains it. To exclude memory that comes
/// and goes, the lowest level of the last sixth of the boundaries is compared with the lowest of the sixth before it.
pub(super) fn sum(watch: &RankWatch) -> Option<Course> {
    let per = judged_by(watch)?;
    let levels = watch.history.levels(per);
    let sixth = levels.len() / 6;
    let (early, late) = (levels.len() - 2 * sixth, levels.len() - sixth);
    let lowest = |levels: &[Level]| levels.iter().map(|level| level.lowest_allocated_bytes).min().unwrap_or(0);
    let risen = lowest(&levels[late..]).saturating_sub(lowest(&levels[early..early + sixth]));
    let (last, begun) = (levels.last()?, lowest_before(watch, per, late)?);
    let gained = allocated(last).saturating_sub(allocated(begun));
    let since = levels.partition_point(|level| level.time_ns < begun.time_ns);
    let stopped = stopped_at(&levels[since..], sixth / 2);
    let mut course = Course {
        who: watch.who(),
        stand: if stopped.is_some() { Stand::Stopped } else { Stand::Growing },
        way: Way::Sum,
        kind: FindingKind::Leak,
        gained,
        begun_ns: begun.time_ns,
        until_ns: stopped.unwrap_or(last).time_ns,
        given_back: given_back(watch, per, begun.at, watch.sites.iter().enumerate()),
        slows: false,
        until_step: stopped.filter(|_| per != Per::Window && watch.history.steps() > 0).map(|level| level.step),
        hardly_grows: false,
        site: most_of(watch, per, gained),
        place: Place::default(),
        stack: Vec::new(),
    };
    // A rate without a line may be a single small rise. So here only a share of the peak is significant.
    let risen_since_middle = lowest(&levels[late..]).saturating_sub(lowest(&levels[2 * sixth..4 * sixth]));
    let rises = stopped.is_some() || risen_since_middle >= gained / LOWS_SHARE;
    let goes_on = is_share_of_peak(watch, risen) && gained > 0 && rises;
    let rose_before = has_stood_as_high(levels, since, gained);
    let goes_on = goes_on && (stopped.is_some() || levels.len() - since >= rising_min(per, levels, rose_before));
    if course.given_back && have_held_as_much(watch, per, &levels[..=since]) {
        course.stand = Stand::Released;
    }
    let goes_on = goes_on && !falls_back(&levels[since..], gained);
    let goes_on = goes_on && (per != Per::Window || raises_peaks(watch, course.begun_ns, course.gained));
    goes_on.then_some(course)
}

/// The boundaries by which the sum is judged; `None` if there are too few.
fn judged_by(watch: &RankWatch) -> Option<Per> {
    [Per::Epoch, Per::Step, Per::Window].into_iter().find(|&per| {
        let speaks = per != Per::Window || watch.history.windows_speak();
        speaks && watch.history.levels(per).len() >= BOUNDARIES_MIN
    })
}

/// Whether the sum has risen significantly since a time.
pub(super) fn has_risen_since(watch: &RankWatch, since_ns: u64) -> bool {
    let Some(per) = judged_by(watch) else { return false };
    let levels = watch.history.levels(per);
    let levels = &levels[levels.partition_point(|level| level.time_ns < since_ns)..];
    let (Some(first), Some(last)) = (levels.first(), levels.last()) else { return false };
    is_share_of_peak(watch, allocated(last).saturating_sub(allocated(first)))
}

/// Minimum number of boundaries over which a sum must rise. With fewer windows, peaks cannot be compared. If the sum
/// was as high before and was given back (at the end of a request or of an epoch), it must rise over half of the known
/// boundaries. Such a sum was low shortly before the end of the job, wherever in its next rise the job ended.
fn rising_min(per: Per, levels: &[Level], rose_before: bool) -> usize {
    let windows = if per == Per::Window { 3 * WINDOWS_OF_PEAK } else { 0 };
    if rose_before { windows.max(levels.len() / 2) } else { windows }
}

/// Falls by at least one part in this many of the sum's gain count. A sum that goes up and down has several.
const FALL_SHARE: u64 = 3;
/// Minimum number of falls. One may be the end of a phase.
const FALLS_MIN: usize = 2;

/// Whether the sum goes up and down: it fell back several times by a large part of what it gained, and what the falls left
/// did not rise. (A cycle of references grows until the collector frees it.)
fn falls_back(levels: &[Level], gained: u64) -> bool {
    let part = gained / FALL_SHARE;
    let (mut feet, mut high, mut foot): (Vec<u64>, u64, Option<u64>) = (Vec::new(), 0, None);
    for low in levels.iter().map(|level| level.lowest_allocated_bytes) {
        match foot {
            Some(known) if low >= known.saturating_add(part) => {
                feet.push(known);
                (high, foot) = (low, None);
            }
            Some(known) => foot = Some(known.min(low)),
            None if low.saturating_add(part) <= high => foot = Some(low),
            None => high = high.max(low),
        }
    }
    feet.extend(foot);
    let (Some(first), Some(last)) = (feet.first(), feet.last()) else { return false };
    part > 0 && feet.len() >= FALLS_MIN && *last < first.saturating_add(part)
}

/// Whether a sum was nearly as high as now before it began to rise, and then fell.
fn has_stood_as_high(levels: &[Level], since: usize, gained: u64) -> bool {
    let as_high = levels[since].lowest_allocated_bytes.saturating_add(gained - gained / AS_HIGH_SHARE);
    levels[..since].iter().any(|level| level.lowest_allocated_bytes >= as_high)
}

/// Whether the sites that grew since the last of these levels had held nearly as much at the highest of them.
fn have_held_as_much(watch: &RankWatch, per: Per, levels: &[Level]) -> bool {
    let highest = levels.iter().max_by_key(|level| allocated(level));
    let (Some(highest), Some(begun)) = (highest, levels.last()) else { return false };
    let (mut gained, mut held) = (0_u64, 0_u64);
    for site in &watch.sites {
        let series = site.series(per);
        let (then, now) = (series.bytes_at(begun.at), series.points().last().map_or(0, |point| point.bytes));
        let grown = now.saturating_sub(then);
        gained = gained.saturating_add(grown);
        held = held.saturating_add(grown.min(series.bytes_at(highest.at).saturating_sub(then)));
    }
    gained > 0 && held >= gained - gained / AS_HIGH_SHARE
}

/// The boundary at which levels stopped rising, if they have been flat since then. They must be flat for more than
/// `flat_min` boundaries, and for several times the longest pause between two rises: a sum that rises rarely is flat
/// for long as well.
fn stopped_at(levels: &[Level], flat_min: usize) -> Option<&Level> {
    // The memory that was not given back later.
    let mut floor: Vec<u64> = levels.iter().map(|level| level.lowest_allocated_bytes).collect();
    for index in (1..floor.len()).rev() {
        floor[index - 1] = floor[index - 1].min(floor[index]);
    }
    let (first, last) = (*floor.first()?, *floor.last()?);
    let step = last.saturating_sub(first) / LEVEL_SHARE;
    let reached = |part: u64| floor.partition_point(|held| *held < first.saturating_add(step.saturating_mul(part)));
    let risen: Vec<usize> = (1..LEVEL_SHARE).map(reached).collect();
    let (end, stop) = (levels.last()?, *risen.last()?);
    let times = std::iter::once(0).chain(risen).filter_map(|index| levels.get(index)).map(|level| level.time_ns);
    let times: Vec<u64> = times.collect();
    let longest = times.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).max()?;
    let flat_ns = end.time_ns.saturating_sub(levels.get(stop)?.time_ns);
    (step > 0 && levels.len() - stop > flat_min && flat_ns > longest.saturating_mul(FLAT_FACTOR)).then(|| &levels[stop])
}

fn allocated(level: &Level) -> u64 {
    level.counters.allocated_bytes
}

/// The boundary before `end` with the lowest sum, after the loading of weights. Of windows, the first sixth is left out:
/// workspaces and the first requests raise the level there once.
fn lowest_before(watch: &RankWatch, per: Per, end: usize) -> Option<&Level> {
    let boundaries = watch.history.of(per);
    let loaded = if per == Per::Window { watch.history.loaded(false) } else { boundaries.warm };
    let levels = &watch.history.levels(per)[..end];
    let first = if per == Per::Window { end / 5 } else { 0 };
    let warm = &levels[first.max(levels.partition_point(|level| level.at < loaded))..];
    warm.iter().min_by_key(|level| (allocated(level), std::cmp::Reverse(level.time_ns)))
}

/// The place of at least a third of the sum's growth. The lowest bytes of its function in the first, the second and
/// the last third are compared. Functions are used because lines of one function may replace each other's blocks: each
/// line comes and goes, but together they grow.
fn most_of(watch: &RankWatch, per: Per, gained: u64) -> Option<Frame> {
    let levels = watch.history.levels(per);
    let third = levels.len() / 3;
    let mut functions: HashMap<(&str, &str), Vec<&Site>> = HashMap::new();
    for site in &watch.sites {
        if let Some(frame) = &site.frame {
            functions.entry((&frame.function, &frame.file)).or_default().push(site);
        }
    }
    let lowest = |sites: &[&Site], levels: &[Level]| {
        let held = |level: &Level| {
            sites.iter().fold(0_u64, |sum, site| sum.saturating_add(site.series(per).bytes_at(level.at)))
        };
        levels.iter().map(held).min().unwrap_or(0)
    };
    // Memory that is made once at the beginning (a library's workspace) is not part of growth that goes on.
    let grown = |sites: &[&Site]| {
        let middle = lowest(sites, &levels[third..levels.len() - third]);
        let (first, last) = (lowest(sites, &levels[..third]), lowest(sites, &levels[levels.len() - third..]));
        let risen = last.saturating_sub(first);
        if last.saturating_sub(middle) >= risen / LATE_SHARE { risen } else { 0 }
    };
    let (most, sites) = functions.into_values().map(|sites| (grown(&sites), sites)).max_by_key(|(grown, _)| *grown)?;
    let last = levels.last()?.at;
    // Lines that replace each other's blocks may not have grown themselves. Then the one with most bytes is named.
    let line = sites.into_iter().max_by_key(|&site| (grown(&[site]), site.series(per).bytes_at(last)))?;
    line.frame.as_deref().filter(|_| most >= gained / 3).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn levels(mebibytes: &[u64]) -> Vec<Level> {
        let level = |&low: &u64| Level { lowest_allocated_bytes: low << 20, ..Level::default() };
        mebibytes.iter().map(level).collect()
    }

    #[test]
    fn a_sum_goes_up_and_down_if_its_feet_do_not_rise() {
        let falls = |levels_: &[u64], gained: u64| falls_back(&levels(levels_), gained << 20);
        assert!(falls(&[34, 59, 84, 59, 84, 98, 48, 73, 91], 57), "cycles that are freed from time to time");
        assert!(!falls(&[34, 40, 50, 60, 70, 80, 91], 57), "growth");
        assert!(!falls(&[34, 150, 160, 50, 60, 70, 91], 57), "one buffer was freed");
        assert!(!falls(&[34, 60, 40, 80, 58, 100, 80, 120, 100], 66), "what stays rises with each fall");
        assert!(!falls(&[], 57) && !falls(&[34, 59, 84, 59, 84, 48], 0));
    }
}

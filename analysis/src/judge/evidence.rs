//! The evidence with which growth is confirmed: nothing bounded explains it any more.
//!
//! | evidence | confirmed after |
//! |---|---|
//! | several blocks of a forward pass remain every time (caches do not keep those) | 4 rises, 3 if once per epoch, 8 over windows |
//! | rises in at least 5 epochs and in most of them that do not slow down | 6 rises, 5 at an even rhythm; 8 if a block is replaced by a larger one, but 6 if only once per epoch, and 14 if with the epoch's first steps |
//! | many rises within few epochs that do not slow down | 80 rises in 3 epochs, 4,000 in one |
//! | rare rises within an epoch: a cache filled once in dozens of steps holds only a handful of entries | 400 at one rise in 8 steps; fewer if they are rarer, down to 10 at an even distance and 14 at any |
//! | rises at an even distance, not with every step, through most of a recording whose steps were found | 10 |
//! | rises with most steps through most of a recording whose steps were found, at an even rhythm | 14 |
//! | rises over windows, in most of them | 25 within a minute or more; in a recording 12 that span a third of its work |
//! | rises in few windows that do not slow down at all, with hardly any falls | 8 within 80 seconds or more |
//! | the same, but they hardly slow down | 8 within 100 seconds or more |
//! | the device will be full within the time that was watched | 16 rises in 3 epochs, 40 in fewer, 8 over windows |
//!
//! Guarantees: only a group's lead is examined. Rises that become rarer and rarer are never called steady.

use memctl_model::FindingKind;

use super::candidate::{Candidate, Shape};
use super::growth::Growth;
use super::history::Per;
use super::watch::RankWatch;

/// Laplace's statistic below which a constant rate is unlikely (one in ten).
const SLOWS_BELOW: f64 = -1.3;
/// The same limit for blocks that are replaced by larger ones.
const RECORDS_BELOW: f64 = -0.7;
/// Random sizes rarely set this many records: of n sizes, about ln n are the largest so far.
const RECORDS_MAX: u32 = 20;
/// Laplace's statistic from which a few rises already show an even rhythm.
const EVEN_FROM: f64 = -0.5;
/// Laplace's statistic from which growth does not slow down at all.
pub(super) const NOT_SLOWER: f64 = 0.0;
/// A bounded buffer that takes something in every step hardly needs this many epochs to fill.
const EPOCHS_MIN: usize = 5;
/// Minimum number of epochs with several replacements each of a block.
const EPOCHS_REPLACED: u32 = 4;
/// More rises than buffers usually have entries, and the minimum epochs that they span. A buffer that is emptied every
/// second epoch spans fewer.
const RISES_LONG: (u32, usize) = (80, 3);
/// More rises within one epoch than any buffer has entries.
const RISES_ENDLESS: u32 = 4_000;
/// The same for rises that are at least [`DENSE_STEPS`] apart. The rarer the rises, the fewer are needed.
const RISES_SELDOM_FROM: f64 = 400.0;
/// A cache that takes something at least once in this many steps may hold [`RISES_ENDLESS`] entries.
const DENSE_STEPS: f64 = 8.0;
/// Rises that suffice however rare they are: at an even distance, and at any distance with a Laplace statistic of at
/// least [`NOT_SLOWER`], [`EVEN_FROM`] and [`HARDLY_SLOWER`].
const RISES_SELDOM: [f64; 4] = [10.0, 14.0, 20.0, 26.0];
/// Minimum rises at an even distance over the steps found in a recording, the share of it that they span, and their
/// distance.
const FOUND_EVENLY: (u32, f64, f64) = (10, 0.65, 2.0);
/// Minimum rises over the steps found in a recording, the share of these steps that rise, and the share of the
/// recording that they span.
const FOUND_MOSTLY: (u32, f64, f64) = (14, 0.5, 0.6);
/// If at least this share of the steps rises, it does not matter that a few of the later ones do not.
const FOUND_NEARLY_ALWAYS: f64 = 0.8;
/// Minimum rises over windows, and their minimum duration in seconds.
const WINDOWS_LIVE: (u32, f64) = (25, 60.0);
/// Minimum rises over windows of a recording, and the share of it that they span.
const WINDOWS_RECORDED: (u32, f64) = (12, 0.35);
/// Fewer rises than this confirmed nothing. `LOOKS_BACK` is the number of past moments that are examined.
const RISES_LEAST: usize = 5;
const LOOKS_BACK: usize = 24;
/// Rises that suffice if the device will be full within the time that was watched: in at least this many epochs, in
/// fewer, and over windows. A cache that fills a nearly full device looks the same. With 8 rises in all cases, one in
/// nine runs that came close to a full device raised a false alarm.
const SOON_RISES: (u32, usize, u32, u32) = (16, 3, 40, 8);
/// Minimum share of the windows that must rise to count as most of them.
const WINDOWS_MOST: f64 = 0.4;
/// Minimum rises in few windows, and their duration in seconds: if they do not slow down at all, and if they hardly
/// do.
const WINDOWS_SELDOM: (u32, f64, f64) = (8, 80.0, 100.0);
/// Laplace's statistic from which growth in most windows hardly slows down.
const MOSTLY_SLOWER: f64 = -1.0;
/// Laplace's statistic from which growth hardly slows down.
const HARDLY_SLOWER: f64 = -0.8;
/// Laplace's statistic of the whole growth below which it slows down, if the site grew while the job was being loaded.
const WHOLE_SLOWS_BELOW: f64 = -1.5;
/// Rises after loading from which the rises during loading count as well.
const RISES_BEHIND: u32 = 5;

/// Laplace's statistic of a candidate. Rises are weighted by size in two cases. The allocator rounds large blocks to
/// megabytes, so a large block that grows evenly rises less often and by more. Windows are short at first and longer
/// later, so longer windows contain more growth.
pub(super) fn laplace(lead: &Candidate) -> f64 {
    laplace_of(lead, &lead.growth)
}

fn laplace_of(lead: &Candidate, growth: &Growth) -> f64 {
    if lead.shape == Shape::Larger || lead.per == Per::Window { growth.laplace_by_size } else { growth.laplace }
}

/// Whether its rises do not become rarer and rarer.
pub(super) fn is_steady(lead: &Candidate) -> bool {
    laplace(lead) >= SLOWS_BELOW
}

/// Whether nothing bounded explains it, however near the end is.
///
/// Growth that nothing bounded explained at some time stays confirmed: a pause does not mean that it was repaired.
pub(super) fn is_confirmed(watch: &RankWatch, kind: FindingKind, lead: &Candidate) -> bool {
    let rises = lead.growth.rises;
    match kind {
        FindingKind::HiddenChain => return true,
        FindingKind::EvalGraph | FindingKind::GraphKept if lead.per == Per::Window => return rises >= 8,
        FindingKind::EvalGraph | FindingKind::GraphKept => {
            return rises >= if once_an_epoch(&lead.growth) { 3 } else { 4 };
        }
        _ => {}
    }
    let steady = |growth: &Growth| is_no_record(lead, growth);
    match lead.per {
        Per::Window => at_some_time(lead, |growth| steady(growth) && over_windows(watch, lead, growth)),
        Per::Step | Per::Epoch => {
            // Rises at a rhythm or in nearly every step are not records of random sizes.
            let now = is_steady(lead) && (evenly_over_steps_found(watch, lead) || mostly_over_steps_found(watch, lead));
            let was = |growth: &Growth| steady(growth) && (over_epochs(lead, growth) || within_an_epoch(lead, growth));
            now || at_some_time(lead, was)
        }
    }
}

/// Whether it is confirmed because the device will be full within the time that was watched; `soon` returns whether it
/// will be. Graphs are confirmed earlier by other rules.
pub(super) fn is_confirmed_near_the_end(kind: FindingKind, lead: &Candidate, soon: impl Fn() -> bool) -> bool {
    let is_graph = matches!(kind, FindingKind::HiddenChain | FindingKind::EvalGraph | FindingKind::GraphKept);
    !is_graph && is_no_record(lead, &lead.growth) && lead.growth.rises >= rises_near_the_end(lead) && soon()
}

/// Whether its rises do not become rarer and rarer. Records (the longest input so far) become rarer. So the limit is
/// stricter for a block that is replaced by a larger one, as long as records could explain the number of replacements.
fn is_no_record(lead: &Candidate, growth: &Growth) -> bool {
    let may_be_records = lead.shape == Shape::Larger && growth.rises < RECORDS_MAX;
    laplace_of(lead, growth) >= if may_be_records { RECORDS_BELOW } else { SLOWS_BELOW }
}

/// Rises that suffice if the device will be full within the time that was watched.
fn rises_near_the_end(lead: &Candidate) -> u32 {
    let (in_epochs, epochs, in_fewer, over_windows) = SOON_RISES;
    match lead.per {
        Per::Window => over_windows,
        Per::Step | Per::Epoch if lead.growth.epochs.len() >= epochs => in_epochs,
        Per::Step | Per::Epoch => in_fewer,
    }
}

/// Whether a condition is true for the growth now, or was true when one of its rises had just come.
fn at_some_time(lead: &Candidate, holds: impl Fn(&Growth) -> bool) -> bool {
    let rises = lead.growth.times.len();
    holds(&lead.growth)
        || (RISES_LEAST..=rises).step_by((rises / LOOKS_BACK).max(1)).any(|rises| holds(&lead.growth.as_of(rises)))
}

/// Whether it is confirmed only because few buffers are that long. It rises every few steps. It has done so for fewer
/// epochs and less often than growth that nothing bounded explains.
pub(super) fn may_be_long_buffer(lead: &Candidate) -> bool {
    let growth = &lead.growth;
    is_dense(lead) && growth.rises < RISES_ENDLESS && epochs_spanned(growth) < EPOCHS_MIN
}

/// Whether it rises every few steps.
pub(super) fn is_dense(lead: &Candidate) -> bool {
    lead.per == Per::Step && lead.growth.apart < DENSE_STEPS
}

/// Number of epochs from its first rise to its last.
fn epochs_spanned(growth: &Growth) -> usize {
    let (Some(first), Some(last)) = (growth.epochs.first(), growth.epochs.last()) else { return 0 };
    last.saturating_sub(*first) as usize + 1
}

/// Whether each rise was in a separate epoch.
fn once_an_epoch(growth: &Growth) -> bool {
    growth.epochs.len() == growth.times.len()
}

/// Whether it rose in so many epochs, or so often over a few, that nothing bounded explains it.
fn over_epochs(lead: &Candidate, growth: &Growth) -> bool {
    let spanned = epochs_spanned(growth);
    let most_epochs = spanned >= EPOCHS_MIN && growth.epochs.len() * 10 >= spanned * 6;
    // Cached masks and buffers are replaced by larger ones a few times, so such a block needs more rises.
    let enough = match lead.shape {
        // A block that is replaced repeatedly within the epochs is appended to, even if the allocator's rounding hides
        // most replacements.
        Shape::Larger if lead.replaced.epochs_often >= EPOCHS_REPLACED && growth.laplace >= EVEN_FROM => 5,
        // A curriculum with longer sequences every epoch makes everything larger once per epoch, as long as it lasts.
        Shape::Larger if once_an_epoch(growth) && lead.replaced.opening * 2 > lead.replaced.times => 14,
        Shape::Larger if once_an_epoch(growth) => 6,
        Shape::Larger => 8,
        Shape::More | Shape::Teeth if growth.laplace >= EVEN_FROM => 5,
        Shape::More | Shape::Teeth => 6,
    };
    let long = growth.rises >= RISES_LONG.0 && spanned >= RISES_LONG.1;
    long || (most_epochs && growth.rises >= enough)
}

/// Whether it rose so often within one epoch, considering the distance of its rises, that nothing bounded explains it.
fn within_an_epoch(lead: &Candidate, growth: &Growth) -> bool {
    if lead.per != Per::Step {
        return false;
    }
    if growth.apart < DENSE_STEPS {
        return growth.rises >= RISES_ENDLESS;
    }
    let apart = DENSE_STEPS / growth.apart;
    f64::from(growth.rises) >= (RISES_SELDOM_FROM * apart * apart).max(seldom(growth))
}

/// Rises that suffice however rare they are. Without an even distance, they must hardly slow down.
fn seldom(growth: &Growth) -> f64 {
    match growth.laplace {
        _ if growth.even => RISES_SELDOM[0],
        NOT_SLOWER.. => RISES_SELDOM[1],
        EVEN_FROM.. => RISES_SELDOM[2],
        HARDLY_SLOWER.. => RISES_SELDOM[3],
        _ => f64::INFINITY,
    }
}

/// Whether it grew at even intervals through most of a recording without epoch marks. A cache that is filled within an
/// epoch grows with every step or at random.
fn evenly_over_steps_found(watch: &RankWatch, lead: &Candidate) -> bool {
    let steps = watch.history.of(Per::Step);
    let (Some(first), Some(last)) = (lead.since, lead.growth.times.last()) else { return false };
    let share = f64::from(last.saturating_sub(first.at)) / f64::from(steps.at.max(1));
    let (rises, spanned, apart) = FOUND_EVENLY;
    let evenly = lead.growth.even && lead.growth.apart >= apart;
    lead.per == Per::Step && steps.found && evenly && lead.growth.rises >= rises && share >= spanned
}

/// Whether it grew with most steps through most of a recording without epoch marks. A recording is short and complete,
/// so a cache that still fills at its end must have been filling for most of it.
fn mostly_over_steps_found(watch: &RankWatch, lead: &Candidate) -> bool {
    let steps = watch.history.of(Per::Step);
    let (Some(first), Some(last)) = (lead.since, lead.growth.times.last()) else { return false };
    let spanned = f64::from(last.saturating_sub(first.at)).max(1.0);
    let (rises, most, share) = FOUND_MOSTLY;
    lead.per == Per::Step
        && steps.found
        && lead.growth.rises >= rises
        && f64::from(lead.growth.rises) >= most * spanned
        && spanned / f64::from(steps.at.max(1)) >= share
        && (laplace(lead) >= EVEN_FROM || f64::from(lead.growth.rises) >= FOUND_NEARLY_ALWAYS * spanned)
}

fn over_windows(watch: &RankWatch, lead: &Candidate, growth: &Growth) -> bool {
    let windows = watch.history.of(Per::Window);
    let Some(first) = lead.since else { return false };
    // A recording is short and complete, so the share of its work that the growth spans counts.
    let now_at = if windows.found { windows.at } else { growth.times.last().copied().unwrap_or(first.at) };
    let levels = windows.levels.all();
    let before = |at: u32| levels.partition_point(|level| level.at < at);
    let since = (before(now_at).saturating_sub(before(first.at)) + 1) as f64;
    // If there are many windows, only every second one is kept, so the number is scaled.
    let since = since * f64::from(windows.seen) / levels.len().max(1) as f64;
    let most = f64::from(growth.rises) >= WINDOWS_MOST * since;
    if windows.found {
        let all = windows.at.saturating_sub(watch.history.loaded(false));
        let share = f64::from(windows.at.saturating_sub(first.at)) / f64::from(all.max(1));
        return most && growth.rises >= WINDOWS_RECORDED.0 && share >= WINDOWS_RECORDED.1;
    }
    let Some(whole) = lead.whole.as_ref().map(|whole| whole.as_of(whole.times.partition_point(|&at| at <= now_at)))
    else {
        return over_live_windows(lead, growth, most);
    };
    // The first steep rise may have been during loading, and the rest then looks even. So the whole growth is examined
    // as well.
    laplace_of(lead, &whole) >= WHOLE_SLOWS_BELOW
        && (over_live_windows(lead, growth, most)
            || (growth.rises >= RISES_BEHIND
                && laplace_of(lead, growth) >= NOT_SLOWER
                && over_live_windows(lead, &whole, most)))
}

/// Whether it rose often enough and for long enough in a running process; `most` is whether it rose in most windows.
fn over_live_windows(lead: &Candidate, growth: &Growth, most: bool) -> bool {
    let (Some(first), Some(last)) = (growth.risen_ns.first(), growth.risen_ns.last()) else { return false };
    let (seconds, laplace) = (last.saturating_sub(*first) as f64 / 1e9, laplace_of(lead, growth));
    if !growth.hardly_falls() || laplace < SLOWS_BELOW {
        return false;
    }
    let (rises, not_slower, hardly_slower) = WINDOWS_SELDOM;
    (most && growth.rises >= WINDOWS_LIVE.0 && seconds >= WINDOWS_LIVE.1 && laplace >= MOSTLY_SLOWER)
        || (growth.rises >= rises
            && ((seconds >= not_slower && laplace >= NOT_SLOWER)
                || (seconds >= hardly_slower && laplace >= HARDLY_SLOWER)))
}

//! When growth is no longer explained by anything bounded.
//!
//! | evidence | confirmed after |
//! |---|---|
//! | several blocks of a forward pass remain every time (caches do not keep those) | 4 rises, 3 if once an epoch, 8 over windows |
//! | rises in at least 5 epochs, in most of them, and not slower and slower | 6 rises, 5 at an even rhythm; of a block that is replaced by a larger one 8; if only once an epoch 6, and 14 where it is with the epoch's first steps |
//! | rises and rises within few epochs, not slower and slower | 80 rises in 3 epochs, 4,000 in one |
//! | rises that come seldom within an epoch: what is filled once in dozens of steps holds a handful | 400 from one in 8 steps on, the fewer the seldomer, down to 10 at an even distance and 14 at any |
//! | rises at an even distance, not with every step, through most of a recording whose steps were found | 10 |
//! | rises with most steps through most of a recording whose steps were found, at an even rhythm | 14 |
//! | rises over windows, in most of them | 25 within a minute or more; of a recording 12 that span a third of its work |
//! | rises in few windows that do not slow down at all, of what hardly falls | 8 within 80 seconds or more |
//! | the same, hardly slowing down | 8 within 100 seconds or more |
//! | the device will be full within the time that was watched | 16 rises in 3 epochs, 40 in fewer, 8 over windows |
//!
//! Guarantees: looks at one group's lead alone. Refuses to call a thing steady whose rises come seldomer and seldomer.

use memctl_model::FindingKind;

use super::candidate::{Candidate, Shape};
use super::growth::Growth;
use super::history::Per;
use super::watch::RankWatch;

/// Laplace's statistic below which a constant rate is unlikely (one in ten).
const SLOWS_BELOW: f64 = -1.3;
/// Likewise for blocks that are replaced by larger ones.
const RECORDS_BELOW: f64 = -0.7;
/// Random sizes do not set this many records: of n sizes, about ln n are the largest so far.
const RECORDS_MAX: u32 = 20;
/// From here on a few rises already show an even rhythm.
const EVEN_FROM: f64 = -0.5;
/// From here on nothing slows down at all.
pub(super) const NOT_SLOWER: f64 = 0.0;
/// Epochs a bounded buffer that takes something every step hardly needs to fill.
const EPOCHS_MIN: usize = 5;
/// Epochs with several rises each of a block that is replaced.
const EPOCHS_REPLACED: u32 = 4;
/// Rises beyond what buffers usually hold, in at least so many epochs: what is emptied every second epoch is a buffer.
const RISES_LONG: (u32, usize) = (80, 3);
/// Rises beyond what anything bounded holds within one epoch.
const RISES_ENDLESS: u32 = 4_000;
/// Likewise of what comes no more often than [`DENSE_STEPS`]; the fewer the seldomer it comes.
const RISES_SELDOM_FROM: f64 = 400.0;
/// What takes something every so many steps or more often may hold that many things.
const DENSE_STEPS: f64 = 8.0;
/// Rises that suffice however seldom they come: at an even distance, and at any if they do not slow down at all, if they do
/// not even begin to, and if they hardly do.
const RISES_SELDOM: [f64; 4] = [10.0, 14.0, 20.0, 26.0];
/// Rises at an even distance over the steps found in a recording, the share of it that they span, and their distance at least.
const FOUND_EVENLY: (u32, f64, f64) = (10, 0.65, 2.0);
/// Rises over the steps found in a recording, the share of them that rise, and the share of the recording that they span.
const FOUND_MOSTLY: (u32, f64, f64) = (14, 0.5, 0.6);
/// Share of the steps that rise, from which it does not matter that a few of the later ones do not.
const FOUND_NEARLY_ALWAYS: f64 = 0.8;
/// Rises over windows, and the seconds that they take at least.
const WINDOWS_LIVE: (u32, f64) = (25, 60.0);
/// Rises over windows of a recording, and the share of it that they take at least.
const WINDOWS_RECORDED: (u32, f64) = (12, 0.35);
/// Rises before which nothing was confirmed, and how many moments of the past are looked at.
const RISES_LEAST: usize = 5;
const LOOKS_BACK: usize = 24;
/// Rises that suffice where the device will be full within the time that was watched: in so many epochs, in fewer, and over windows.
/// Close to a full device a cache fills it soon, too: with 8 rises wherever they lay, one run in nine that came close raised an alarm.
const SOON_RISES: (u32, usize, u32, u32) = (16, 3, 40, 8);
/// Share of the windows that rise, from which most do.
const WINDOWS_MOST: f64 = 0.4;
/// Rises in few windows, and the seconds that they take at least if they do not even begin to slow down, and if they hardly do.
const WINDOWS_SELDOM: (u32, f64, f64) = (8, 80.0, 100.0);
/// Down to here what rises in most windows hardly slows down.
const MOSTLY_SLOWER: f64 = -1.0;
/// Down to here it hardly slows down.
const HARDLY_SLOWER: f64 = -0.8;
/// Below it a site slows down that grew while the job was being loaded, however it has grown since.
const WHOLE_SLOWS_BELOW: f64 = -1.5;
/// Rises behind loading from which what came before counts as well.
const RISES_BEHIND: u32 = 5;

/// Laplace's statistic of a candidate. The allocator rounds what is large to megabytes, so that a large block that grows
/// evenly rises seldomer, and by more; and windows are short at first and longer later, so that each holds as much as it is long.
pub(super) fn laplace(lead: &Candidate) -> f64 {
    laplace_of(lead, &lead.growth)
}

fn laplace_of(lead: &Candidate, growth: &Growth) -> f64 {
    if lead.shape == Shape::Larger || lead.per == Per::Window { growth.laplace_by_size } else { growth.laplace }
}

/// Whether it does not come slower and slower.
pub(super) fn is_steady(lead: &Candidate) -> bool {
    laplace(lead) >= SLOWS_BELOW
}

/// Whether nothing bounded explains it, however near the end is.
///
/// What was explained by nothing bounded once is explained by nothing bounded later, either: a lull is no repair.
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
            // What comes at a rhythm, or nearly always, is no record.
            let now = is_steady(lead) && (evenly_over_steps_found(watch, lead) || mostly_over_steps_found(watch, lead));
            let was = |growth: &Growth| steady(growth) && (over_epochs(lead, growth) || within_an_epoch(lead, growth));
            now || at_some_time(lead, was)
        }
    }
}

/// Whether it is confirmed because the device will be full within the time that was watched, which `soon` says. Graphs are confirmed
/// sooner than that.
pub(super) fn is_confirmed_near_the_end(kind: FindingKind, lead: &Candidate, soon: impl Fn() -> bool) -> bool {
    let is_graph = matches!(kind, FindingKind::HiddenChain | FindingKind::EvalGraph | FindingKind::GraphKept);
    !is_graph && is_no_record(lead, &lead.growth) && lead.growth.rises >= rises_near_the_end(lead) && soon()
}

/// Whether it does not come slower and slower. Records (the longest so far) come seldom and seldomer: of what is replaced by something
/// larger more is asked, as long as records could explain how often it was.
fn is_no_record(lead: &Candidate, growth: &Growth) -> bool {
    let may_be_records = lead.shape == Shape::Larger && growth.rises < RECORDS_MAX;
    laplace_of(lead, growth) >= if may_be_records { RECORDS_BELOW } else { SLOWS_BELOW }
}

/// Rises that suffice where the device will be full within the time that was watched.
fn rises_near_the_end(lead: &Candidate) -> u32 {
    let (in_epochs, epochs, in_fewer, over_windows) = SOON_RISES;
    match lead.per {
        Per::Window => over_windows,
        Per::Step | Per::Epoch if lead.growth.epochs.len() >= epochs => in_epochs,
        Per::Step | Per::Epoch => in_fewer,
    }
}

/// Whether something held of the growth, as it stands or as it stood when one of its rises had just come.
fn at_some_time(lead: &Candidate, holds: impl Fn(&Growth) -> bool) -> bool {
    let rises = lead.growth.times.len();
    holds(&lead.growth)
        || (RISES_LEAST..=rises).step_by((rises / LOOKS_BACK).max(1)).any(|rises| holds(&lead.growth.as_of(rises)))
}

/// Whether it is confirmed only because few buffers are so long: it comes with every few steps, and has done so for fewer epochs and
/// less often than what nothing bounded explains at all.
pub(super) fn may_be_long_buffer(lead: &Candidate) -> bool {
    let growth = &lead.growth;
    is_dense(lead) && growth.rises < RISES_ENDLESS && epochs_spanned(growth) < EPOCHS_MIN
}

/// Whether it comes with every few steps.
pub(super) fn is_dense(lead: &Candidate) -> bool {
    lead.per == Per::Step && lead.growth.apart < DENSE_STEPS
}

/// Epochs from its first rise to its last.
fn epochs_spanned(growth: &Growth) -> usize {
    let (Some(first), Some(last)) = (growth.epochs.first(), growth.epochs.last()) else { return 0 };
    last.saturating_sub(*first) as usize + 1
}

/// Whether each rise was in an epoch of its own.
fn once_an_epoch(growth: &Growth) -> bool {
    growth.epochs.len() == growth.times.len()
}

/// Whether it rose over so many epochs, or so often over a few, that nothing bounded explains it.
fn over_epochs(lead: &Candidate, growth: &Growth) -> bool {
    let spanned = epochs_spanned(growth);
    let most_epochs = spanned >= EPOCHS_MIN && growth.epochs.len() * 10 >= spanned * 6;
    // A block that is replaced by a larger one is what every cached mask and buffer does a few times.
    let enough = match lead.shape {
        // What is replaced again and again within the epochs is appended to, even if the allocator's rounding hides most of it.
        Shape::Larger if lead.replaced.epochs_often >= EPOCHS_REPLACED && growth.laplace >= EVEN_FROM => 5,
        // A longer sequence every epoch makes everything larger once an epoch, for as long as the curriculum lasts.
        Shape::Larger if once_an_epoch(growth) && lead.replaced.opening * 2 > lead.replaced.times => 14,
        Shape::Larger if once_an_epoch(growth) => 6,
        Shape::Larger => 8,
        Shape::More | Shape::Teeth if growth.laplace >= EVEN_FROM => 5,
        Shape::More | Shape::Teeth => 6,
    };
    let long = growth.rises >= RISES_LONG.0 && spanned >= RISES_LONG.1;
    long || (most_epochs && growth.rises >= enough)
}

/// Whether it rose so often within one epoch, for how far apart its rises lie, that nothing bounded explains it.
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

/// Rises that suffice however seldom they come. What comes at no rhythm must hardly slow down.
fn seldom(growth: &Growth) -> f64 {
    match growth.laplace {
        _ if growth.even => RISES_SELDOM[0],
        NOT_SLOWER.. => RISES_SELDOM[1],
        EVEN_FROM.. => RISES_SELDOM[2],
        HARDLY_SLOWER.. => RISES_SELDOM[3],
        _ => f64::INFINITY,
    }
}

/// Whether it grew at even intervals from begin to end of a recording without epoch marks: a cache that is filled
/// within an epoch grows with every step, or at random.
fn evenly_over_steps_found(watch: &RankWatch, lead: &Candidate) -> bool {
    let steps = watch.history.of(Per::Step);
    let (Some(first), Some(last)) = (lead.since, lead.growth.times.last()) else { return false };
    let share = f64::from(last.saturating_sub(first.at)) / f64::from(steps.at.max(1));
    let (rises, spanned, apart) = FOUND_EVENLY;
    let evenly = lead.growth.even && lead.growth.apart >= apart;
    lead.per == Per::Step && steps.found && evenly && lead.growth.rises >= rises && share >= spanned
}

/// Whether it grew with most steps through most of a recording without epoch marks. A recording is short and complete:
/// a cache still filling at its end was filling for most of it.
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
    // A recording is short, and whole: what counts is how much of its work the growth spans.
    let now_at = if windows.found { windows.at } else { growth.times.last().copied().unwrap_or(first.at) };
    let levels = windows.levels.all();
    let before = |at: u32| levels.partition_point(|level| level.at < at);
    let since = (before(now_at).saturating_sub(before(first.at)) + 1) as f64;
    // Of many windows every other one is kept.
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
    // Its first steep rise may lie where the job was being loaded: what is left of it looks even.
    laplace_of(lead, &whole) >= WHOLE_SLOWS_BELOW
        && (over_live_windows(lead, growth, most)
            || (growth.rises >= RISES_BEHIND
                && laplace_of(lead, growth) >= NOT_SLOWER
                && over_live_windows(lead, &whole, most)))
}

/// Whether it rose so often and for so long in a process that runs; `most` says whether it did in most windows.
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

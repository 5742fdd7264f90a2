//! When growth is no longer explained by anything bounded.
//!
//! | evidence | confirmed after |
//! |---|---|
//! | several blocks of a forward pass remain every time (nobody caches those) | 4 rises, 3 if once an epoch, 8 over windows |
//! | rises in at least 5 epochs, in most of them, and not slower and slower | 6 rises, 5 at an even rhythm; of a block that is replaced by a larger one 8, 14 if only once an epoch |
//! | rises and rises within few epochs, not slower and slower | 80 rises in 3 epochs, 400 in one |
//! | rises that come seldom within an epoch: what is filled once in dozens of steps holds a handful | the fewer the seldomer, down to 10 at an even distance and 20 at any |
//! | rises over windows, in most of them | 30 within 75 seconds or more; of a recording 16 that span two fifths of it |
//! | rises in few windows | 10 at an even distance or 20 at any, within 2 minutes or more |
//! | the device will be full within the time that was watched | 8 rises |
//!
//! Guarantees: looks at one group's lead alone. Refuses to call a thing steady whose rises come seldomer and seldomer.

use memctl_model::FindingKind;

use super::candidate::{Candidate, Shape};
use super::course::Per;
use super::watch::RankWatch;

/// Laplace's statistic below which a constant rate is unlikely (one in ten).
const SLOWS_BELOW: f64 = -1.3;
/// Likewise for blocks that are replaced by larger ones.
const RECORDS_BELOW: f64 = -0.7;
/// From here on a few rises already show an even rhythm.
const EVEN_FROM: f64 = -0.5;
/// Epochs a bounded buffer that takes something every step hardly needs to fill.
const EPOCHS_MIN: usize = 5;
/// Epochs with several rises each of a block that is replaced.
const EPOCHS_REPLACED: u32 = 4;
/// Rises beyond what buffers usually hold, in at least so many epochs: what is emptied every second epoch is a buffer.
const RISES_LONG: (u32, usize) = (80, 3);
/// Rises beyond what anything bounded holds within one epoch.
const RISES_ENDLESS: f64 = 400.0;
/// What takes something every so many steps or more often may hold that many things.
const DENSE_STEPS: f64 = 8.0;
/// Rises that suffice however seldom they come: at an even distance, and at any.
const RISES_SELDOM: (f64, f64) = (10.0, 20.0);
/// Rises over windows, and the seconds that they take at least.
const WINDOWS_LIVE: (u32, f64) = (30, 75.0);
/// Rises over windows of a recording, and the share of it that they take at least.
const WINDOWS_RECORDED: (u32, f64) = (16, 0.4);
/// Share of the windows that rise, from which most do.
const WINDOWS_MOST: f64 = 0.5;
/// Seconds over which rises in few windows have to come.
const WINDOWS_SELDOM_SECONDS: f64 = 120.0;

/// Laplace's statistic of a candidate. The allocator rounds what is large to megabytes, so that a large block that grows
/// evenly rises seldomer, and by more.
pub(super) fn laplace(lead: &Candidate) -> f64 {
    if lead.shape == Shape::Larger { lead.growth.laplace_by_size } else { lead.growth.laplace }
}

/// Whether it does not come slower and slower.
pub(super) fn is_steady(lead: &Candidate) -> bool {
    laplace(lead) >= SLOWS_BELOW
}

/// Whether nothing bounded explains it; `soon` says whether the device will be full within the time that was watched.
pub(super) fn is_confirmed(watch: &RankWatch, kind: FindingKind, lead: &Candidate, soon: impl Fn() -> bool) -> bool {
    let rises = lead.growth.rises;
    match kind {
        FindingKind::HiddenChain => true,
        FindingKind::EvalGraph | FindingKind::GraphKept if lead.per == Per::Window => rises >= 8,
        FindingKind::EvalGraph | FindingKind::GraphKept => rises >= if once_an_epoch(lead) { 3 } else { 4 },
        _ => {
            // Records (the longest so far) come seldom and seldomer: of what is replaced by something larger more is asked.
            let steady = laplace(lead) >= if lead.shape == Shape::Larger { RECORDS_BELOW } else { SLOWS_BELOW };
            let persists = || match lead.per {
                Per::Window => over_windows(watch, lead),
                Per::Step | Per::Epoch => over_epochs(lead) || within_an_epoch(lead),
            };
            steady && (persists() || (rises >= 8 && soon()))
        }
    }
}

/// Whether each rise was in an epoch of its own.
fn once_an_epoch(lead: &Candidate) -> bool {
    lead.growth.epochs.len() == lead.growth.rises as usize
}

/// Whether it rose over so many epochs, or so often over a few, that nothing bounded explains it.
fn over_epochs(lead: &Candidate) -> bool {
    let growth = &lead.growth;
    let (Some(first), Some(last)) = (growth.epochs.first(), growth.epochs.last()) else { return false };
    let spanned = last.saturating_sub(*first) as usize + 1;
    let most_epochs = spanned >= EPOCHS_MIN && growth.epochs.len() * 10 >= spanned * 6;
    // A block that is replaced by a larger one is what every cached mask and buffer does a few times.
    let enough = match lead.shape {
        // What is replaced again and again within the epochs is appended to, even if the allocator's rounding hides most of it.
        Shape::Larger if lead.replaced.1 >= EPOCHS_REPLACED && growth.laplace >= EVEN_FROM => 5,
        // A longer sequence every epoch makes everything larger once an epoch, for as long as the curriculum lasts.
        Shape::Larger if once_an_epoch(lead) => 14,
        Shape::Larger => 8,
        Shape::More | Shape::Teeth if growth.laplace >= EVEN_FROM => 5,
        Shape::More | Shape::Teeth => 6,
    };
    let long = growth.rises >= RISES_LONG.0 && spanned >= RISES_LONG.1;
    long || (most_epochs && growth.rises >= enough)
}

/// Whether it rose so often within one epoch, for how far apart its rises lie, that nothing bounded explains it.
fn within_an_epoch(lead: &Candidate) -> bool {
    if lead.per != Per::Step {
        return false;
    }
    let least = if lead.growth.even { RISES_SELDOM.0 } else { RISES_SELDOM.1 };
    let apart = DENSE_STEPS / lead.growth.apart.max(DENSE_STEPS);
    f64::from(lead.growth.rises) >= (RISES_ENDLESS * apart * apart).max(least)
}

fn over_windows(watch: &RankWatch, lead: &Candidate) -> bool {
    let (windows, growth) = (watch.course.of(Per::Window), &lead.growth);
    let (Some(first), Some(last)) = (lead.since, watch.course.last_level()) else { return false };
    let seconds = last.time_ns.saturating_sub(first.time_ns) as f64 / 1e9;
    let before = windows.levels.all().partition_point(|level| level.at < first.at);
    let kept = windows.levels.all().len();
    let since = (kept - before).max(1) as f64 * f64::from(windows.seen) / kept.max(1) as f64;
    let most = f64::from(growth.rises) >= WINDOWS_MOST * since;
    if windows.found {
        let share = seconds / watch.course.seconds().max(f64::MIN_POSITIVE);
        return most && growth.rises >= WINDOWS_RECORDED.0 && share >= WINDOWS_RECORDED.1;
    }
    let seldom = if growth.even { RISES_SELDOM.0 } else { RISES_SELDOM.1 };
    (most && growth.rises >= WINDOWS_LIVE.0 && seconds >= WINDOWS_LIVE.1)
        || (f64::from(growth.rises) >= seldom && seconds >= WINDOWS_SELDOM_SECONDS)
}

//! From growing sites of one rank to verdicts: is it a leak, of what kind, and how sure.
//!
//! What may grow without harm is a cache that fills. Until it is full a cache that takes one entry a step is the same as a
//! leak, in every event; so growth is first *suspected*, and *confirmed* when a bounded thing no longer explains it:
//!
//! | evidence | confirmed after |
//! |---|---|
//! | several blocks of a forward pass remain every time (nobody caches those) | 4 rises, 3 if once an epoch |
//! | rises in at least 5 epochs, in most of them, and not slower and slower | 6 rises, 5 at an even rhythm; of a block that is replaced by a larger one 8, 14 if once an epoch |
//! | rises and rises within few epochs, not slower and slower | 80 rises in 3 epochs, 400 in one |
//! | the device will be full within the time that was watched | 8 rises |
//!
//! What has paused for longer than its rhythm explains is no leak (any more), and what grows because the work grows
//! (larger inputs: the peaks rise with it) is none either. `bench` measures how often these rules are wrong.

use memctl_model::{FindingKind, Phase, Rate};

use super::candidate::{Per, Shape, candidate};
use super::group::{Group, groups};
use super::slope::slope;
use super::watch::RankWatch;

/// How sure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Sureness {
    Suspected,
    Confirmed,
}

/// One leak on one rank.
#[derive(Clone, Debug)]
pub(super) struct Verdict {
    pub rank: u32,
    pub kind: FindingKind,
    pub sureness: Sureness,
    pub group: Group,
    pub shape: Shape,
    pub phase: Option<Phase>,
    pub rises: u32,
    pub slows: bool,
    pub first_epoch: Option<u32>,
    pub first_step: Option<u64>,
    pub first_ns: Option<u64>,
    pub per_epoch: Option<Rate>,
    pub per_step: Option<Rate>,
    pub live_bytes: u64,
    pub live_blocks: u64,
    pub series: Vec<u64>,
    pub epochs_to_oom: Option<f64>,
    pub seconds_to_oom: Option<f64>,
}

/// Rises after which growth is worth a word.
const SUSPECTED_RISES: u32 = 5;
/// Laplace's statistic below which a constant rate is unlikely (one in ten).
const SLOWS_BELOW: f64 = -1.3;
/// Likewise for blocks that are replaced by larger ones.
const RECORDS_BELOW: f64 = -0.7;
/// From here on a few rises already show an even rhythm.
const EVEN_FROM: f64 = -0.5;
/// Below this it is a cache that fills at random, or warm-up, and nothing is said (one in a thousand).
const FILLS_BELOW: f64 = -3.1;
/// Epochs a bounded buffer that takes something every step hardly needs to fill.
const EPOCHS_MIN: usize = 5;
/// Rises beyond what buffers usually hold, in at least so many epochs: what is emptied every second epoch is a buffer.
const RISES_LONG: (u32, usize) = (80, 3);
/// Rises beyond what anything bounded holds within one epoch.
const RISES_ENDLESS: u32 = 400;
/// Peaks that rise by more than this share of a site's own rise, each as a ratio, tell of larger inputs.
const WORK_GROWS: f64 = 0.25;

/// All leaks of a rank, confirmed and suspected.
pub(super) fn verdicts(watch: &RankWatch) -> Vec<Verdict> {
    let candidates = (0..watch.sites.len()).filter_map(|index| candidate(watch, index)).collect();
    let mut found: Vec<Verdict> =
        groups(watch, candidates).into_iter().filter_map(|group| verdict(watch, group)).collect();
    found.sort_by_key(|verdict| std::cmp::Reverse((verdict.sureness, verdict.live_bytes)));
    found
}

fn verdict(watch: &RankWatch, group: Group) -> Option<Verdict> {
    let lead = group.lead();
    let (shape, rises) = (lead.shape, lead.growth.rises);
    // The allocator rounds what is large to megabytes, so that a large block that grows evenly rises seldomer, and by more.
    let laplace = if shape == Shape::Larger { lead.growth.laplace_by_size } else { lead.growth.laplace };
    let slows = laplace < SLOWS_BELOW;
    if lead.growth.stopped || laplace < FILLS_BELOW || grows_with_the_work(watch, &group) {
        return None;
    }
    let phase = group.phase();
    let kind = match (group.graph, shape, phase) {
        (true, Shape::Teeth, _) => FindingKind::HiddenChain,
        // What is filled and emptied every epoch is a buffer, unless it is a graph.
        (false, Shape::Teeth, _) => return None,
        (true, _, Some(Phase::Eval)) => FindingKind::EvalGraph,
        (true, ..) => FindingKind::GraphKept,
        (false, ..) => FindingKind::Leak,
    };
    // Records (the longest so far) come seldom and seldomer: of what is replaced by something larger more is asked.
    let steady = laplace >= if shape == Shape::Larger { RECORDS_BELOW } else { SLOWS_BELOW };
    let mut verdict = measured(watch, group, kind);
    let soon = verdict.seconds_to_oom.zip(watched_seconds(watch)).is_some_and(|(left, watched)| left < watched);
    let sure = match kind {
        FindingKind::HiddenChain => true,
        FindingKind::EvalGraph | FindingKind::GraphKept => rises >= if once_an_epoch(&verdict) { 3 } else { 4 },
        _ => steady && (persists(&verdict) || (soon && rises >= 8)),
    };
    if !sure && rises < SUSPECTED_RISES {
        return None;
    }
    (verdict.rises, verdict.slows) = (rises, slows);
    verdict.sureness = if sure { Sureness::Confirmed } else { Sureness::Suspected };
    Some(verdict)
}

/// Whether it rose so long that nothing bounded explains it.
fn persists(verdict: &Verdict) -> bool {
    let growth = &verdict.group.lead().growth;
    let (Some(first), Some(last)) = (growth.epochs.first(), growth.epochs.last()) else { return false };
    let spanned = (last - first) as usize + 1;
    let most_epochs = spanned >= EPOCHS_MIN && growth.epochs.len() * 10 >= spanned * 6;
    // A block that is replaced by a larger one is what every cached mask and buffer does a few times.
    let enough = match verdict.shape {
        // A longer sequence every epoch makes everything larger once an epoch, for as long as the curriculum lasts.
        Shape::Larger if once_an_epoch(verdict) => 14,
        Shape::Larger => 8,
        Shape::More | Shape::Teeth if growth.laplace >= EVEN_FROM => 5,
        Shape::More | Shape::Teeth => 6,
    };
    let long = growth.rises >= RISES_LONG.0 && spanned >= RISES_LONG.1;
    growth.rises >= RISES_ENDLESS || long || (most_epochs && growth.rises >= enough)
}

/// Whether each rise was in an epoch of its own.
fn once_an_epoch(verdict: &Verdict) -> bool {
    let growth = &verdict.group.lead().growth;
    growth.epochs.len() == growth.rises as usize
}

/// Whether a site's blocks became larger because everything did: the peaks rose by far more.
fn grows_with_the_work(watch: &RankWatch, group: &Group) -> bool {
    if group.lead().shape != Shape::Larger {
        return false;
    }
    let peaks: Vec<u64> = watch.course.step_marks.iter().map(|level| level.peak_allocated_bytes).collect();
    let ends = (peaks.len() / 16).max(1);
    let highest = |peaks: &[u64]| peaks.iter().copied().max().unwrap_or(0);
    let (Some(early), Some(late)) = (peaks.get(..ends), peaks.get(peaks.len().saturating_sub(ends)..)) else {
        return false;
    };
    let (live, gained) = (group.live_bytes() as f64, group.bytes_gained() as f64);
    let site = live / (live - gained).max(1.0) - 1.0;
    let work = highest(late) as f64 / highest(early).max(1) as f64 - 1.0;
    work > WORK_GROWS * site
}

fn watched_seconds(watch: &RankWatch) -> Option<f64> {
    let (first, last) = (watch.course.first?, watch.course.last_level()?);
    Some(last.time_ns.checked_sub(first.time_ns)? as f64 / 1e9)
}

/// The figures of a group: slopes, course, when it began, how long it lasts.
fn measured(watch: &RankWatch, group: Group, kind: FindingKind) -> Verdict {
    let course = &watch.course;
    let lead = group.lead();
    let first = lead.since.and_then(|at| match lead.per {
        Per::Step => course.step_level(at),
        Per::Epoch => course.epoch_level(at),
    });
    let by_epoch = summed(watch, &group, Per::Epoch);
    let by_step = summed(watch, &group, Per::Step);
    // From where the growth began: before that there is nothing to measure.
    let since = |points: &[(f64, u64)], per: Per| -> Vec<(f64, f64)> {
        let begun =
            lead.growth.times.first().filter(|_| lead.per == per).map_or(0.0, |&at| f64::from(at.saturating_sub(1)));
        points.iter().filter(|(at, _)| *at >= begun).map(|&(at, bytes)| (at, bytes as f64)).collect()
    };
    let teeth = lead.shape == Shape::Teeth;
    let per_epoch = if teeth { None } else { slope(&since(&by_epoch, Per::Epoch)).filter(|rate| rate.value > 0.0) };
    let per_step = slope(&since(&by_step, Per::Step)).filter(|rate| rate.value > 0.0);
    let headroom = course.headroom_bytes(watch.facts.device_total_bytes).map(|bytes| bytes as f64);
    let epochs_to_oom = headroom.zip(per_epoch).map(|(left, rate)| left / rate.value);
    let seconds_to_oom = match (headroom.zip(per_step), course.step_ns()) {
        // A chain starts over with each epoch: how far it gets is a question of the epoch's length.
        _ if teeth => None,
        (Some((left, rate)), Some(ns)) if per_epoch.is_none() => Some(left / rate.value * ns / 1e9),
        _ => epochs_to_oom.zip(course.epoch_ns()).map(|(epochs, ns)| epochs * ns / 1e9),
    };
    let series = if by_epoch.len() >= 2 && !teeth { &by_epoch } else { &by_step };
    Verdict {
        rank: watch.facts.rank,
        kind,
        sureness: Sureness::Suspected,
        shape: lead.shape,
        phase: group.phase(),
        rises: lead.growth.rises,
        slows: false,
        first_epoch: first.map(|level| level.epoch),
        first_step: first.map(|level| level.step),
        first_ns: first.map(|level| level.time_ns),
        per_epoch,
        per_step,
        live_bytes: group.live_bytes(),
        live_blocks: group.live_blocks(),
        series: series.iter().map(|&(_, bytes)| bytes).collect(),
        epochs_to_oom,
        seconds_to_oom,
        group,
    }
}

/// Live bytes of a group at every boundary of a kind that is still known.
fn summed(watch: &RankWatch, group: &Group, per: Per) -> Vec<(f64, u64)> {
    let levels = match per {
        Per::Step => &watch.course.step_marks,
        Per::Epoch => &watch.course.epochs,
    };
    let at_boundary = |at: u32| {
        group.members.iter().fold(0, |sum: u64, member| {
            let site = &watch.sites[member.site];
            let points = if per == Per::Step { site.steps.points() } else { site.epochs.points() };
            let known = points.partition_point(|point| point.at <= at);
            sum.saturating_add(known.checked_sub(1).map_or(0, |index| points[index].bytes))
        })
    };
    levels.iter().map(|level| (f64::from(level.at), at_boundary(level.at))).collect()
}

//! Leaks from growing sites of one rank: whether a group is a leak, of which kind, and with which confidence.
//!
//! A cache that fills may grow without harm. Until it is full, a cache that takes one entry per step looks the same as
//! a leak in every event. So growth is first *suspected*, which raises no alert. It is *confirmed* when nothing
//! bounded explains it any more; `evidence` has the table. Growth that has paused for longer than its rhythm explains
//! is not a leak, or no longer one. Growth caused by more work is not a leak either: with larger inputs the peaks rise
//! as well. `bench` measures how often these rules are wrong.

use memctl_model::{FindingKind, Foresight, Frame, Pattern, Phase, Rate};

use super::Activity;
use super::candidate::{Candidate, Shape, candidates};
use super::evidence::{is_confirmed, is_confirmed_near_the_end, is_steady};
use super::foresight::foresight;
use super::group::{Group, groups};
use super::held::given_back;
use super::history::{Level, Per};
use super::pattern::{Hooks, pattern};
use super::recent_growth::has_stopped;
use super::series::Point;
use super::significance::matters;
use super::subjects::Subject;
use super::time_to_full::{self, TimeToFull};
use super::watch::{Holds, RankWatch, SITES_MAX};
use crate::statistics::slope;

/// How certain a leak is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Sureness {
    Suspected,
    Confirmed,
}

/// One leak on one rank.
#[derive(Clone, Debug)]
pub(super) struct Leak {
    pub who: Subject,
    pub kind: FindingKind,
    pub pattern: Pattern,
    pub sureness: Sureness,
    pub foresight: Foresight,
    pub group: Group,
    pub shape: Shape,
    pub per: Per,
    pub phase: Option<Phase>,
    /// Whether only counters show it.
    pub counters: bool,
    /// Whether it has no line because its site is beyond those that are counted separately.
    pub is_beyond: bool,
    pub rises: u32,
    pub slows: bool,
    pub first: Option<Point>,
    pub hooks: Option<Hooks>,
    pub per_epoch: Option<Rate>,
    pub per_step: Option<Rate>,
    pub per_minute: Option<Rate>,
    pub live_bytes: u64,
    pub live_blocks: u64,
    pub beside_bytes: u64,
    /// Whether the end of the recording shows that its memory was given back after the last boundary.
    pub given_back: bool,
    /// Whether its growth is significant.
    pub matters: bool,
    pub series: Vec<u64>,
    /// When the device will be full. All confirmed leaks of a rank have the same outlook, because they fill the device
    /// together.
    pub outlook: Option<TimeToFull>,
}

/// Minimum rises of reported growth that is not confirmed and supports no forecast.
const SUSPECTED_RISES: u32 = 5;
/// Laplace's statistic below which growth is a cache that fills at random or warm-up, and is not reported (one in a
/// thousand).
const FILLS_BELOW: f64 = -3.1;
/// The same statistic below which growth may be that of a cache (one in fifty).
const MAY_FILL_BELOW: f64 = -2.0;
/// If the peaks' relative rise exceeds this share of the site's relative rise, inputs have become larger.
const WORK_GROWS: f64 = 0.25;
/// If the peaks rose by more than this many times the bytes of a block that became larger, the block is an input of the work. A
/// tensor that is extended needs its old and its new bytes at once, which is twice.
const WORK_BYTES_FACTOR: u64 = 4;
/// The most by which the shares of two rises may differ at a quarter of a run for them to be in step. The peak of neighbouring
/// steps is up to a sixteenth of the run later.
const IN_STEP: f64 = 0.1;

/// Number of epochs with rises after which kept memory must be older than the last epoch.
const REBORN_EPOCHS: usize = 4;
/// Minimum share of the gain that must be older. If memory is kept evenly over four epochs, it is three quarters.
const KEPT_MIN: f64 = 0.1;

/// All leaks of a rank, confirmed and suspected.
pub(super) fn of_rank(watch: &RankWatch, activity: Activity) -> Vec<Leak> {
    let (pools, live): (Vec<Candidate>, Vec<Candidate>) =
        candidates(watch).into_iter().partition(|candidate| watch.sites[candidate.site].holds == Holds::Pools);
    let all = groups(watch, live).into_iter().chain(groups(watch, pools));
    let mut found: Vec<Leak> = all.filter_map(|group| of_group(watch, group)).collect();
    // Blocks of a captured graph are in its pool; both are one problem to repair.
    let of_pools = |leak: &Leak| leak.kind == FindingKind::PrivatePools;
    let pools: Vec<Frame> =
        found.iter().filter(|leak| of_pools(leak)).filter_map(|leak| leak.group.site.clone()).collect();
    let captured = |leak: &Leak| leak.group.site.as_ref().is_some_and(|site| pools.contains(site));
    found.retain(|leak| of_pools(leak) || !captured(leak));
    let confirmed: Vec<&Leak> =
        found.iter().filter(|leak| leak.sureness == Sureness::Confirmed && leak.shape != Shape::Teeth).collect();
    let per_epoch: Option<f64> = confirmed.iter().map(|leak| leak.per_epoch.map(|rate| rate.value)).sum();
    let groups: Vec<&Group> = confirmed.iter().map(|leak| &leak.group).collect();
    let together = if groups.is_empty() || activity == Activity::Ended {
        None
    } else {
        time_to_full::of(watch, &groups, per_epoch)
    };
    for leak in &mut found {
        // A suspected leak may be a cache and never fill the device. How far a chain of graphs grows depends on the
        // length of an epoch.
        let counts = leak.sureness == Sureness::Confirmed && leak.shape != Shape::Teeth;
        leak.outlook = together.filter(|_| counts);
    }
    found.sort_by_key(|leak| std::cmp::Reverse((leak.sureness, leak.live_bytes)));
    found
}

fn of_group(watch: &RankWatch, group: Group) -> Option<Leak> {
    let lead = group.lead();
    // Memory that is filled and emptied every epoch is a buffer, unless it is a graph.
    let comes_and_goes = lead.shape == Shape::Teeth;
    if comes_and_goes && !group.graph || !comes_and_goes && has_stopped(watch, lead) {
        return None;
    }
    if rises_seldom(lead) || grows_with_the_work(watch, &group) || is_reborn(watch, &group) {
        return None;
    }
    let kind = kind_of(watch, &group);
    let soon = || {
        time_to_full::of(watch, &[&group], None).is_some_and(|outlook| outlook.seconds.value < watch.history.seconds())
    };
    let confirmed = is_confirmed(watch, kind, lead);
    let sure = confirmed || is_confirmed_near_the_end(kind, lead, soon);
    // For a replaced block, each replacement counts as a rise, whether it exceeds the noise or not.
    let times = if lead.shape == Shape::Larger { lead.replaced.times } else { 0 }.max(lead.growth.rises);
    let foresight = foresight(kind, &group, confirmed);
    if !sure && times < SUSPECTED_RISES && foresight == Foresight::Nothing {
        return None;
    }
    let mut leak = measured(watch, group, kind);
    leak.foresight = foresight;
    leak.rises = times;
    leak.sureness = if sure { Sureness::Confirmed } else { Sureness::Suspected };
    Some(leak)
}

/// Whether rises become so much rarer that the growth is a cache that fills, or warm-up.
fn rises_seldom(lead: &Candidate) -> bool {
    super::evidence::laplace(lead) < FILLS_BELOW
}

/// Whether growth slows down so much that it is a cache that fills, by its rises that become rarer or smaller.
pub(super) fn slows_down(lead: &Candidate) -> bool {
    rises_seldom(lead) || lead.growth.laplace_by_size < FILLS_BELOW
}

/// Whether growth slows down enough that it may be a cache that fills, if a dict holds it.
pub(super) fn may_slow_down(lead: &Candidate) -> bool {
    slows_down(lead) || lead.growth.laplace_by_size < MAY_FILL_BELOW
}

/// The kind of a group, if it is a leak.
pub(super) fn kind_of(watch: &RankWatch, group: &Group) -> FindingKind {
    let lead = group.lead();
    match (group.graph, lead.shape, group.phase()) {
        _ if watch.sites[lead.site].holds == Holds::Pools => FindingKind::PrivatePools,
        (true, Shape::Teeth, _) => FindingKind::HiddenChain,
        (true, _, Some(Phase::Eval)) => FindingKind::EvalGraph,
        (true, ..) => FindingKind::GraphKept,
        (false, ..) => FindingKind::Leak,
    }
}

/// The kind in a finding. In a service without training, blocks of many layers may be the graph of an evaluation or a
/// cache of keys and values. It is unknown which of them they are.
pub(super) fn reported_kind(kind: FindingKind, per: Per) -> FindingKind {
    if kind == FindingKind::EvalGraph && per == Per::Window { FindingKind::Leak } else { kind }
}

/// Whether a site's blocks became larger because all work did: the peaks rose by far more.
pub(super) fn grows_with_the_work(watch: &RankWatch, group: &Group) -> bool {
    if group.lead().shape != Shape::Larger {
        return false;
    }
    // The peak of a window is random; the peak of a step is its work.
    let peaks: Vec<u64> = watch.history.levels(Per::Step).iter().map(|level| level.peak_allocated_bytes).collect();
    let ends = (peaks.len() / 16).max(1);
    let highest = |peaks: &[u64]| peaks.iter().copied().max().unwrap_or(0);
    let (Some(early), Some(late)) = (peaks.get(..ends), peaks.get(peaks.len().saturating_sub(ends)..)) else {
        return false;
    };
    // The site's first bytes are its base, because with its first block a line also makes memory that is made only
    // once.
    let held = time_to_full::summed(watch, &[group], Per::Step);
    let (Some(&(_, first)), Some(&(_, last))) = (held.iter().find(|(_, bytes)| *bytes > 0), held.last()) else {
        return false;
    };
    let site = last as f64 / first as f64 - 1.0;
    let work = highest(late) as f64 / highest(early).max(1) as f64 - 1.0;
    work > WORK_GROWS * site || is_input(&held, (first, last), &peaks)
}

/// Whether peaks rose by many times the bytes of a block and in step with them: beside weights that do not grow, the relative
/// rise of the peaks is small. `held` are the block's bytes at the steps of `peaks`.
fn is_input(held: &[(&Level, u64)], (first, last): (u64, u64), peaks: &[u64]) -> bool {
    let begun = held.iter().position(|(_, bytes)| *bytes > 0).unwrap_or(0);
    let few = (peaks.len() / 16).max(1);
    let around =
        |at: usize| peaks[at.saturating_sub(few)..(at + few).min(peaks.len())].iter().copied().max().unwrap_or(0);
    let (early, late) = (around(begun), around(peaks.len()));
    let (block, work) = (last.saturating_sub(first), late.saturating_sub(early));
    if block == 0 || work <= block.saturating_mul(WORK_BYTES_FACTOR) {
        return false;
    }
    let share = |now: u64, then: u64, all: u64| now.saturating_sub(then) as f64 / all as f64;
    (1..4).all(|quarter| {
        let at = begun + (held.len() - begun) * quarter / 4;
        let of_block = held.get(at).map_or(1.0, |(_, bytes)| share(*bytes, first, block));
        (of_block - share(around(at), early, work)).abs() <= IN_STEP
    })
}

/// Whether all of a site's blocks are made again in every epoch, each time more of them. The work then grows, and
/// nothing is kept: layers are unfrozen one by one, or an optimizer is made for more parameters.
pub(super) fn is_reborn(watch: &RankWatch, group: &Group) -> bool {
    let lead = group.lead();
    let live = matches!(watch.sites[lead.site].holds, Holds::Blocks);
    let (epochs, sites) = (lead.growth.epochs.len(), || group.members.iter().map(|member| member.site));
    let (gained, older) = sites().fold((0_u64, 0_u64), |sum, site| {
        let (gained, older) = watch.gained_after_first_epoch(site);
        (sum.0.saturating_add(gained), sum.1.saturating_add(older))
    });
    let few_are_older = epochs >= REBORN_EPOCHS && (older as f64) < KEPT_MIN * gained as f64;
    // Memory that grew in two epochs and was kept has blocks of the earlier epoch.
    let none_is_older = epochs >= 2 && sites().all(|site| watch.older_bytes(site) == 0);
    live && lead.shape == Shape::More && (few_are_older || none_is_older)
}

/// Computes the figures of a group: slopes, history, and begin.
fn measured(watch: &RankWatch, group: Group, kind: FindingKind) -> Leak {
    let lead = group.lead();
    let of = |per: Per| time_to_full::summed(watch, &[&group], per);
    let (by_epoch, by_step) = (of(Per::Epoch), of(Per::Step));
    // Slopes are measured from the boundary before the growth began.
    let begun_ns = lead.since.map_or(0, |since| since.time_ns);
    let since = |points: &[(&Level, u64)]| -> Option<Rate> {
        let from = points.partition_point(|(level, _)| level.time_ns < begun_ns).saturating_sub(1);
        let since: Vec<(f64, f64)> =
            points[from..].iter().map(|(level, bytes)| (f64::from(level.at), *bytes as f64)).collect();
        slope(&since).filter(|rate| rate.value > 0.0)
    };
    let teeth = lead.shape == Shape::Teeth;
    let series = match lead.per {
        _ if by_epoch.len() >= 2 && !teeth => &by_epoch,
        Per::Window => &of(Per::Window),
        Per::Step | Per::Epoch => &by_step,
    };
    let (pattern, hooks) = pattern(watch, kind, &group);
    let begun = lead.first_level.or(lead.since).map_or(0, |since| since.at.saturating_sub(1));
    let sites = group.members.iter().map(|member| (member.site, &watch.sites[member.site]));
    let given_back = given_back(watch, lead.per, begun, sites);
    Leak {
        who: watch.who(),
        kind,
        pattern,
        sureness: Sureness::Suspected,
        foresight: Foresight::Nothing,
        shape: lead.shape,
        per: lead.per,
        phase: group.phase(),
        counters: watch.sites[lead.site].holds == Holds::Counter,
        is_beyond: watch.has_stacks() && watch.sites.len() >= SITES_MAX,
        rises: lead.growth.rises,
        slows: !is_steady(lead),
        first: lead.since,
        hooks,
        per_epoch: since(&by_epoch).filter(|_| !teeth),
        per_step: since(&by_step),
        per_minute: time_to_full::pace(watch, &[&group]).filter(|_| !teeth).map(time_to_full::a_minute),
        live_bytes: group.live_bytes(),
        live_blocks: group.live_blocks(),
        beside_bytes: group.members.iter().fold(0, |sum, member| sum.saturating_add(member.beside_bytes)),
        given_back,
        matters: matters(watch, group.bytes_gained(), seconds_of(watch, lead)),
        series: series.iter().map(|&(_, bytes)| bytes).collect(),
        outlook: None,
        group,
    }
}

/// Seconds since a candidate's growth began.
fn seconds_of(watch: &RankWatch, lead: &Candidate) -> f64 {
    let last_ns = watch.history.last_level().map_or(0, |level| level.time_ns);
    lead.since.map_or(0.0, |since| last_ns.saturating_sub(since.time_ns) as f64 / 1e9)
}

/// The most certain of several leaks; it represents all of them.
pub(super) fn surest(leaks: &[Leak]) -> &Leak {
    let order = |leak: &&Leak| (leak.sureness, leak.live_bytes);
    // A finding has at least one leak.
    leaks.iter().max_by_key(order).unwrap_or(&leaks[0])
}

pub(super) fn any_confirmed(leaks: &[Leak]) -> bool {
    leaks.iter().any(|leak| leak.sureness == Sureness::Confirmed)
}

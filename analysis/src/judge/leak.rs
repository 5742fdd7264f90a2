//! From growing sites of one rank to leaks: whether it is a leak, of what kind, and how sure.
//!
//! A cache that fills may grow without harm. Until it is full, a cache that takes one entry a step looks the same as a
//! leak in every event; so growth is first *suspected* (which raises no alert), and *confirmed* when a bounded thing no
//! longer explains it: `evidence` has the table. Growth that has paused for longer than its rhythm explains is no leak
//! (any more), nor is growth caused by more work (larger inputs: the peaks rise with it). `bench` measures how often
//! these rules are wrong.

use memctl_model::{FindingKind, Foresight, Frame, Pattern, Phase, Rate};

use super::Activity;
use super::candidate::{Candidate, Shape, candidates};
use super::evidence::{is_confirmed, is_confirmed_near_the_end, is_steady};
use super::foresight::foresight;
use super::group::{Group, groups};
use super::held::given_back;
use super::history::Per;
use super::pattern::{Hooks, pattern};
use super::recent_growth::has_stopped;
use super::series::Point;
use super::significance::matters;
use super::subjects::Subject;
use super::time_to_full::{self, TimeToFull};
use super::watch::{Holds, RankWatch, SITES_MAX};
use crate::statistics::slope;

/// How sure.
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
    /// Whether it has no line because it lies beyond the places that are counted separately.
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
    /// Whether the end of the recording shows that it was given back after its last boundary.
    pub given_back: bool,
    /// Whether its growth leads to anything.
    pub matters: bool,
    pub series: Vec<u64>,
    /// When the device is full; of confirmed leaks the same for all of a rank, because they fill it together.
    pub outlook: Option<TimeToFull>,
}

/// Rises after which growth is worth a word, where it does not vouch for anything before.
const SUSPECTED_RISES: u32 = 5;
/// Below this it is a cache that fills at random, or warm-up, and nothing is said (one in a thousand).
const FILLS_BELOW: f64 = -3.1;
/// Peaks that rise by more than this share of a site's own rise, each as a ratio, indicate larger inputs.
const WORK_GROWS: f64 = 0.25;

/// Epochs with rises from which what is kept is older than the last one.
const REBORN_EPOCHS: usize = 4;
/// Share of what was gained that has to be older: of what is kept evenly over four epochs it is three quarters.
const KEPT_MIN: f64 = 0.1;

/// All leaks of a rank, confirmed and suspected.
pub(super) fn of_rank(watch: &RankWatch, activity: Activity) -> Vec<Leak> {
    let (pools, live): (Vec<Candidate>, Vec<Candidate>) =
        candidates(watch).into_iter().partition(|candidate| watch.sites[candidate.site].holds == Holds::Pools);
    let all = groups(watch, live).into_iter().chain(groups(watch, pools));
    let mut found: Vec<Leak> = all.filter_map(|group| of_group(watch, group)).collect();
    // Blocks of a captured graph lie in its pool: that is one thing to repair.
    let of_pools = |leak: &Leak| leak.kind == FindingKind::PrivatePools;
    let pools: Vec<Frame> =
        found.iter().filter(|leak| of_pools(leak)).filter_map(|leak| leak.group.site.clone()).collect();
    let captured = |leak: &Leak| leak.group.site.as_ref().is_some_and(|site| pools.contains(site));
    found.retain(|leak| of_pools(leak) || !captured(leak));
    let confirmed: Vec<&Group> = found
        .iter()
        .filter(|leak| leak.sureness == Sureness::Confirmed && leak.shape != Shape::Teeth)
        .map(|leak| &leak.group)
        .collect();
    let together =
        if confirmed.is_empty() || activity == Activity::Ended { None } else { time_to_full::of(watch, &confirmed) };
    for leak in &mut found {
        // What may still turn out to be a cache fills nothing, and how far a chain gets is a question of the epoch's length.
        let counts = leak.sureness == Sureness::Confirmed && leak.shape != Shape::Teeth;
        leak.outlook = together.filter(|_| counts);
    }
    found.sort_by_key(|leak| std::cmp::Reverse((leak.sureness, leak.live_bytes)));
    found
}

fn of_group(watch: &RankWatch, group: Group) -> Option<Leak> {
    let lead = group.lead();
    // What is filled and emptied every epoch is a buffer, unless it is a graph.
    let comes_and_goes = lead.shape == Shape::Teeth;
    if comes_and_goes && !group.graph || !comes_and_goes && has_stopped(watch, lead) {
        return None;
    }
    if super::evidence::laplace(lead) < FILLS_BELOW || grows_with_the_work(watch, &group) || is_reborn(watch, &group) {
        return None;
    }
    let kind = kind_of(watch, &group);
    let soon =
        || time_to_full::of(watch, &[&group]).is_some_and(|outlook| outlook.seconds.value < watch.history.seconds());
    let confirmed = is_confirmed(watch, kind, lead);
    let sure = confirmed || is_confirmed_near_the_end(kind, lead, soon);
    // Of a block that is replaced each replacement is one, whether it stood out of the noise or not.
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

/// What a group is called, should it be a leak.
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

/// What a finding calls it. Of a service, which nothing trains, blocks of many layers may be the graph of an evaluation or a
/// cache of keys and values: which of them is not known.
pub(super) fn reported_kind(kind: FindingKind, per: Per) -> FindingKind {
    if kind == FindingKind::EvalGraph && per == Per::Window { FindingKind::Leak } else { kind }
}

/// Whether a site's blocks became larger because everything did: the peaks rose by far more.
pub(super) fn grows_with_the_work(watch: &RankWatch, group: &Group) -> bool {
    if group.lead().shape != Shape::Larger {
        return false;
    }
    // What a window needs at its highest is chance; what a step needs is its work.
    let peaks: Vec<u64> = watch.history.levels(Per::Step).iter().map(|level| level.peak_allocated_bytes).collect();
    let ends = (peaks.len() / 16).max(1);
    let highest = |peaks: &[u64]| peaks.iter().copied().max().unwrap_or(0);
    let (Some(early), Some(late)) = (peaks.get(..ends), peaks.get(peaks.len().saturating_sub(ends)..)) else {
        return false;
    };
    // What lived there at first is its base: with its first block a line also makes what is made once.
    let held = time_to_full::summed(watch, &[group], Per::Step);
    let (Some(&(_, first)), Some(&(_, last))) = (held.iter().find(|(_, bytes)| *bytes > 0), held.last()) else {
        return false;
    };
    let site = last as f64 / first as f64 - 1.0;
    let work = highest(late) as f64 / highest(early).max(1) as f64 - 1.0;
    work > WORK_GROWS * site
}

/// Whether all of a site's blocks are made again with every epoch, more of them each time: that is work that grows (layers that
/// are unfrozen one by one, an optimizer made for more parameters), and nothing is kept.
pub(super) fn is_reborn(watch: &RankWatch, group: &Group) -> bool {
    let lead = group.lead();
    let live = matches!(watch.sites[lead.site].holds, Holds::Blocks);
    let (epochs, sites) = (lead.growth.epochs.len(), || group.members.iter().map(|member| member.site));
    let (gained, older) = sites().fold((0_u64, 0_u64), |sum, site| {
        let (gained, older) = watch.gained_after_first_epoch(site);
        (sum.0.saturating_add(gained), sum.1.saturating_add(older))
    });
    let few_are_older = epochs >= REBORN_EPOCHS && (older as f64) < KEPT_MIN * gained as f64;
    // What grew in two epochs and was kept has blocks of the earlier one.
    let none_is_older = epochs >= 2 && sites().all(|site| watch.older_bytes(site) == 0);
    live && lead.shape == Shape::More && (few_are_older || none_is_older)
}

/// The figures of a group: slopes, history, when it began.
fn measured(watch: &RankWatch, group: Group, kind: FindingKind) -> Leak {
    let lead = group.lead();
    let of = |per: Per| -> Vec<(u32, u64)> {
        time_to_full::summed(watch, &[&group], per).into_iter().map(|(level, bytes)| (level.at, bytes)).collect()
    };
    let (by_epoch, by_step) = (of(Per::Epoch), of(Per::Step));
    // From where the growth began: before that there is nothing to measure.
    let since = |points: &[(u32, u64)], per: Per| -> Option<Rate> {
        let begun = lead.growth.times.first().filter(|_| lead.per == per).map_or(0, |&at| at.saturating_sub(1));
        let since = points.iter().filter(|(at, _)| *at >= begun);
        let since: Vec<(f64, f64)> = since.map(|&(at, bytes)| (f64::from(at), bytes as f64)).collect();
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
        per_epoch: since(&by_epoch, Per::Epoch).filter(|_| !teeth),
        per_step: since(&by_step, Per::Step),
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

/// The surest of several leaks stands for them.
pub(super) fn surest(leaks: &[Leak]) -> &Leak {
    let order = |leak: &&Leak| (leak.sureness, leak.live_bytes);
    // A finding is made of at least one leak.
    leaks.iter().max_by_key(order).unwrap_or(&leaks[0])
}

pub(super) fn any_confirmed(leaks: &[Leak]) -> bool {
    leaks.iter().any(|leak| leak.sureness == Sureness::Confirmed)
}

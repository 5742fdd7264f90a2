//! What the live memory of one device did: which growth goes on, which has stopped, what comes and goes.
//!
//! A course is a measurement. Guarantees: bytes are those of site tables, exact at boundaries; growth goes on only where the
//! last third of what was seen brought some that matters. Does not say why: findings and holders do.

use memctl_model::{FindingKind, Frame};

use super::candidate::{Candidate, Shape, candidates};
use super::group::{Group, groups};
use super::growth::{Clock, growth};
use super::history::{Level, Per};
use super::late::{LATE_MIN, has_stopped, share_since};
use super::leak;
use super::matter::matters;
use super::series::Point;
use super::watch::{Holds, RankWatch, Site};
use super::who::Who;

/// How a course stands at the end of what was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stand {
    /// It goes on.
    Growing,
    /// It has stopped.
    Stopped,
    /// It comes and goes.
    Released,
}

/// How memory grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// More and more blocks stay.
    Kept,
    /// A block is replaced by a larger one, again and again.
    Replaced,
    /// Each step works on more.
    WithWork,
    /// The sum grew, and no line explains it.
    Sum,
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Course {
    pub who: Who,
    pub stand: Stand,
    pub way: Way,
    /// What the leak judge would call it.
    pub kind: FindingKind,
    /// Bytes gained; of what is released the height of its last rise.
    pub gained: u64,
    /// The boundary before the first rise, and the last rise or, where it goes on, the last boundary.
    pub begun_ns: u64,
    pub until_ns: u64,
    /// The step of the last rise, where steps are counted.
    pub until_step: Option<u64>,
    /// Whether some of it was given back on the way.
    pub falls: bool,
    pub site: Option<Frame>,
}

impl Course {
    /// Seconds that it took.
    pub fn seconds(&self) -> f64 {
        self.until_ns.saturating_sub(self.begun_ns) as f64 / 1e9
    }
}

/// Windows of which the highest peak counts.
const WINDOWS_OF_PEAK: usize = 4;
/// Windows from which a level that only swings has fallen again.
const WINDOWS_FEW: usize = 120;
/// Share of the growth by which peaks have to rise from its first third to its last: of even growth they rise by two thirds.
const PEAKS_MIN: f64 = 0.3;
/// Rises of the sum before it counts without a line.
const SUM_RISES: u32 = 3;

/// The courses of a device that matter, in no order.
pub(super) fn courses(watch: &RankWatch) -> Vec<Course> {
    let (pools, live): (Vec<Candidate>, Vec<Candidate>) =
        candidates(watch).into_iter().partition(|candidate| watch.sites[candidate.site].holds == Holds::Pools);
    let all = groups(watch, live).into_iter().chain(groups(watch, pools));
    let mut found: Vec<Course> = all.filter_map(|group| course(watch, &group)).collect();
    if !found.iter().any(|course| course.stand == Stand::Growing) {
        found.extend(sum(watch));
    }
    found
}

fn course(watch: &RankWatch, group: &Group) -> Option<Course> {
    let lead = group.lead();
    let kind = leak::kind_of(watch, group);
    let way = match lead.shape {
        _ if leak::grows_with_the_work(watch, group) || leak::is_reborn(watch, group) => Way::WithWork,
        Shape::Larger => Way::Replaced,
        Shape::More | Shape::Teeth => Way::Kept,
    };
    let released = lead.shape == Shape::Teeth;
    let gained = group.bytes_gained();
    let mut course = Course {
        who: watch.who(),
        stand: if released { Stand::Released } else { Stand::Growing },
        way,
        kind,
        gained,
        begun_ns: begun_ns(watch, lead),
        until_ns: watch.history.last_level().map_or(0, |level| level.time_ns),
        until_step: None,
        falls: lead.growth.drawdown > 0,
        site: group.site.clone(),
    };
    if !released && has_stopped(watch, lead) {
        course.stand = Stand::Stopped;
        course.until_ns = lead.growth.risen_ns.last().copied().unwrap_or(course.until_ns);
        course.until_step = last_step(watch, lead);
    }
    // What requests hold at the moment when a window ends rises and falls with the phase of both.
    let stays = lead.per != Per::Window || released || raises_peaks(watch, course.begun_ns, gained);
    (stays && matters(watch, course.gained, course.seconds())).then_some(course)
}

/// Whether the peaks of few windows rose with what is said to stay, as they do if it does. Of each few windows, which hold a
/// whole request, the highest peak counts; of the last third of these the lowest, against the lowest of the first.
fn raises_peaks(watch: &RankWatch, begun_ns: u64, gained: u64) -> bool {
    let levels = watch.history.levels(Per::Window);
    let levels = &levels[levels.partition_point(|level| level.time_ns < begun_ns)..];
    let peaks: Vec<u64> = levels
        .chunks_exact(WINDOWS_OF_PEAK)
        .filter_map(|few| few.iter().map(|level| level.peak_allocated_bytes).max())
        .collect();
    let third = peaks.len() / 3;
    if third == 0 || levels.len() > WINDOWS_FEW {
        return true;
    }
    let lowest = |peaks: &[u64]| peaks.iter().copied().min().unwrap_or(0);
    let risen = lowest(&peaks[peaks.len() - third..]).saturating_sub(lowest(&peaks[..third]));
    risen as f64 >= PEAKS_MIN * gained as f64
}

/// When it began: the boundary before its first rise.
fn begun_ns(watch: &RankWatch, lead: &Candidate) -> u64 {
    let since = lead.since.map(|since| since.at).unwrap_or(0);
    let levels = watch.history.levels(lead.per);
    let before = levels.partition_point(|level| level.at < since).checked_sub(1).and_then(|index| levels.get(index));
    let first = watch.history.first.as_ref();
    before.or(first).map_or(0, |level| level.time_ns)
}

/// The step of the last rise.
fn last_step(watch: &RankWatch, lead: &Candidate) -> Option<u64> {
    let last = *lead.growth.times.last()?;
    let levels = watch.history.levels(lead.per);
    let level = levels.get(levels.partition_point(|level| level.at < last))?;
    (lead.per != Per::Window && watch.history.steps() > 0).then_some(level.step)
}

/// Growth of all that is allocated, where no line explains it: a fact all the same.
fn sum(watch: &RankWatch) -> Option<Course> {
    let per = Per::ALL.into_iter().max_by_key(|&per| {
        let enough = per != Per::Window || watch.history.windows_speak();
        (enough && watch.history.of(per).seen >= BOUNDARIES_MIN, per == Per::Epoch, watch.history.of(per).seen)
    })?;
    let boundaries = watch.history.of(per);
    if boundaries.seen < BOUNDARIES_MIN || (per == Per::Window && !watch.history.windows_speak()) {
        return None;
    }
    let loaded = if per == Per::Window { watch.history.loaded(false) } else { boundaries.warm };
    let levels: Vec<&Level> = boundaries.levels.all().iter().filter(|level| level.at >= loaded).collect();
    let points: Vec<Point> = levels
        .iter()
        .map(|level| Point {
            at: level.at,
            epoch: level.epoch,
            step: level.step,
            time_ns: level.time_ns,
            blocks: 1,
            opens: false,
            bytes: level.counters.allocated_bytes,
        })
        .collect();
    let growth = growth(&points, |point| point.bytes, Clock::of(boundaries));
    let (first, last) = (levels.first()?, levels.last()?);
    let late = share_since(&growth, first.at + last.at.saturating_sub(first.at) / 3 * 2);
    let course = Course {
        who: watch.who(),
        stand: Stand::Growing,
        way: Way::Sum,
        kind: FindingKind::Leak,
        gained: growth.gained,
        begun_ns: points.iter().rfind(|point| point.at <= growth.begun).map_or(first.time_ns, |point| point.time_ns),
        until_ns: last.time_ns,
        until_step: None,
        falls: growth.drawdown > 0,
        site: most_of(watch, per, growth.gained),
    };
    let goes_on = growth.rises >= SUM_RISES && !growth.stopped && late >= LATE_MIN;
    let goes_on = goes_on && (per != Per::Window || raises_peaks(watch, course.begun_ns, course.gained));
    let goes_on = goes_on && matters(watch, course.gained, course.seconds());
    goes_on.then_some(course)
}

/// The site that half of the sum's growth or more was allocated at: how low it stood in the first third, and in the last.
fn most_of(watch: &RankWatch, per: Per, gained: u64) -> Option<Frame> {
    let boundaries = watch.history.of(per);
    let first = boundaries.levels.first().map_or(0, |level| level.at);
    let third = boundaries.at.saturating_sub(first) / 3;
    let lowest = |points: &[Point], from: u32, to: u32| {
        // What it held when the stretch began counts, too.
        let begun = points.partition_point(|point| point.at <= from).saturating_sub(1);
        points[begun..].iter().take_while(|point| point.at <= to).map(|point| point.bytes).min().unwrap_or(0)
    };
    let grown = |site: &Site| {
        let points = site.series(per).points();
        let late = lowest(points, boundaries.at.saturating_sub(third), boundaries.at);
        late.saturating_sub(lowest(points, first, first.saturating_add(third)))
    };
    let sites = watch.sites.iter().filter_map(|site| Some((grown(site), site.frame.as_deref()?)));
    let (most, frame) = sites.max_by_key(|(grown, _)| *grown)?;
    (most >= gained / 3).then(|| frame.clone())
}

/// Boundaries below which nothing is said of the sum.
const BOUNDARIES_MIN: u32 = 12;

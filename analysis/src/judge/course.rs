//! The courses of a device's live memory: which growth goes on, which has stopped, and which memory comes and goes.
//!
//! A course is a measurement. Guarantees: bytes are those of site tables, exact at boundaries. Growth goes on only if
//! the last third of the boundaries brought a significant part of it. The reason is not determined here: findings and
//! holders do that.

use memctl_model::{FindingKind, Frame, StackId};

use super::candidate::{Candidate, Shape, candidates};
use super::frames::is_hook;
use super::group::{Group, groups, same_function};
use super::held::{given_back, held};
use super::history::{Level, Per};
use super::leak;
use super::recent_growth::{has_stopped, last_third, rises_before_stop};
use super::series::{Point, Series};
use super::significance::{is_share_of_peak, matters};
use super::subjects::Subject;
use super::watch::{Holds, RankWatch, Site};

/// The state of a course at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stand {
    /// The growth goes on.
    Growing,
    /// The growth has stopped.
    Stopped,
    /// The memory comes and goes.
    Released,
}

/// How memory grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// More and more blocks stay.
    Kept,
    /// A block is repeatedly replaced by a larger one.
    Replaced,
    /// Each step works on more data.
    WithWork,
    /// No block stays for long, and each epoch allocates more of them.
    MadeAgain {
        /// Whether torch.nn calls the place as a hook of a module.
        by_hook: bool,
    },
    /// The sum has grown, and no line explains it.
    Sum,
}

/// The course of one place's memory; see the module's documentation.
#[derive(Clone, Debug)]
pub(super) struct Course {
    pub who: Subject,
    pub stand: Stand,
    pub way: Way,
    /// The kind of finding that it would be as a leak.
    pub kind: FindingKind,
    /// Bytes gained; for released memory, the height of its last rise.
    pub gained: u64,
    /// The boundary before the first rise. `until_ns` is the last rise or, if the growth goes on, the last boundary.
    pub begun_ns: u64,
    pub until_ns: u64,
    /// Whether the end of the recording shows that the memory was freed after the last boundary.
    pub given_back: bool,
    /// Whether it grows more and more slowly, as a cache that fills does.
    pub slows: bool,
    /// The step of the last rise, if steps are counted.
    pub until_step: Option<u64>,
    /// Whether a little was added after that.
    pub hardly_grows: bool,
    pub site: Option<Frame>,
    /// All lines that belong to the site.
    pub place: Place,
    /// A stack that contains the site, innermost frame first.
    pub stack: Vec<Frame>,
}

/// The place of a group's allocations: a line, or a function whose lines grow together.
#[derive(Clone, Debug, Default)]
pub(super) struct Place {
    frame: Option<Frame>,
    /// The lines that bring most of the growth, if there are several.
    pub lines: Vec<u32>,
    is_function: bool,
}

impl Place {
    fn of(watch: &RankWatch, group: &Group) -> Self {
        let Some(frame) = group.site.clone() else { return Self::default() };
        let function = Self { frame: Some(frame.clone()), lines: group.lines.clone(), is_function: true };
        let lines = |member: &Candidate| -> Vec<u32> {
            let frames = watch.frames_of(member.stack).filter(|frame| function.is_at(frame));
            frames.map(|frame| frame.line).collect()
        };
        let is_function = group.members.iter().flat_map(lines).any(|line| line != frame.line);
        Self { is_function, ..function }
    }

    fn is_at(&self, other: &Frame) -> bool {
        self.frame
            .as_ref()
            .is_some_and(|frame| same_function(frame, other) && (self.is_function || frame.line == other.line))
    }

    /// Whether a candidate's memory is allocated there. Without a place, all memory is.
    fn has(&self, watch: &RankWatch, member: &Candidate) -> bool {
        let mut stacks = std::iter::once(member.stack).chain(member.stacks.iter().copied());
        self.frame.is_none() || stacks.any(|stack| self.is_on(watch.frames_of(stack).map(|frame| &**frame)))
    }

    /// Whether a stack contains this place.
    pub fn is_on<'f>(&self, mut frames: impl Iterator<Item = &'f Frame>) -> bool {
        frames.any(|frame| self.is_at(frame))
    }
}

impl Course {
    /// Duration in seconds.
    pub fn seconds(&self) -> f64 {
        self.until_ns.saturating_sub(self.begun_ns) as f64 / 1e9
    }
}

/// Number of windows of which the highest peak counts.
pub(super) const WINDOWS_OF_PEAK: usize = 4;
/// With more windows than this, a level that only swings has fallen again.
const WINDOWS_FEW: usize = 120;
/// Minimum share of the growth by which peaks must rise from its first third to its last. If growth is even, they rise
/// by two thirds.
const PEAKS_MIN: f64 = 0.3;

/// The significant courses of a device's places, in no order.
pub(super) fn of_places(watch: &RankWatch) -> Vec<Course> {
    let (pools, live): (Vec<Candidate>, Vec<Candidate>) =
        candidates(watch).into_iter().partition(|candidate| watch.sites[candidate.site].holds == Holds::Pools);
    let all = groups(watch, live).into_iter().chain(groups(watch, pools));
    let all = all.flat_map(|group| {
        let elsewhere = elsewhere(watch, &group);
        std::iter::once(group).chain(elsewhere)
    });
    all.filter_map(|group| course(watch, &group)).collect()
}

/// Members of a group whose memory is not allocated at its place, grouped by function. Nodes of a graph, for example,
/// have no frame of the user's code.
fn elsewhere(watch: &RankWatch, group: &Group) -> Vec<Group> {
    let place = Place::of(watch, group);
    let mut found: Vec<Group> = Vec::new();
    for member in group.members.iter().filter(|member| !place.has(watch, member)) {
        let Some(frame) = watch.sites[member.site].frame.as_deref() else { continue };
        let same = |other: &&mut Group| other.site.as_ref().is_some_and(|site| same_function(site, frame));
        match found.iter_mut().find(same) {
            Some(other) => other.members.push(member.clone()),
            None => {
                let stack = watch.frames_of(member.stack).map(|frame| (**frame).clone()).collect();
                found.push(Group {
                    members: vec![member.clone()],
                    site: Some(frame.clone()),
                    lines: Vec::new(),
                    stack,
                    graph: false,
                });
            }
        }
    }
    found
}

fn course(watch: &RankWatch, group: &Group) -> Option<Course> {
    let lead = group.lead();
    let kind = leak::reported_kind(leak::kind_of(watch, group), lead.per);
    let way = match lead.shape {
        _ if leak::grows_with_the_work(watch, group) => Way::WithWork,
        _ if leak::is_reborn(watch, group) => {
            Way::MadeAgain { by_hook: group.site.as_ref().is_some_and(|site| is_hook(&group.stack, site)) }
        }
        Shape::Larger => Way::Replaced,
        Shape::More | Shape::Teeth => Way::Kept,
    };
    let released = lead.shape == Shape::Teeth;
    let (begin, place) = (begin(watch, lead), Place::of(watch, group));
    let last_ns = |per: Per| watch.history.levels(per).last().map_or(0, |level| level.time_ns);
    // Epoch ends show what an evaluation leaves behind; no boundary shows a teardown.
    let ends = Per::ALL.into_iter().filter(|&per| last_ns(per) >= last_ns(lead.per));
    let ends: Vec<Per> = ends.collect();
    let since = |at: u32| ends.iter().map(|&per| (grown(watch, (group, &place), at, per), last_ns(per))).max();
    let (gained, until_ns) = since(begin.at)
        .filter(|(gained, _)| *gained > 0 && !released)
        .unwrap_or_else(|| (group.bytes_gained(), last_ns(lead.per)));
    // A small part of a large growth may still be much of the job's need.
    let late_bytes = || since(last_third(watch, lead.per)).map_or(0, |(late, _)| late);
    let stands_still = lead.growth.stopped || has_stopped(watch, lead) && !is_share_of_peak(watch, late_bytes());
    let mut course = Course {
        who: watch.who(),
        stand: if released { Stand::Released } else { Stand::Growing },
        way,
        kind,
        gained,
        begun_ns: begin.time_ns,
        until_ns,
        given_back: given_back(watch, lead.per, begin.at, growing(watch, (group, &place), begin.at)),
        slows: leak::slows_down(lead),
        until_step: None,
        hardly_grows: false,
        site: group.site.clone(),
        place,
        stack: group.stack.clone(),
    };
    if !released && stands_still {
        course.stand = Stand::Stopped;
        let rises = rises_before_stop(watch, lead);
        course.until_ns = lead.growth.risen_ns.get(rises.wrapping_sub(1)).copied().unwrap_or(course.until_ns);
        course.until_step = step_of(watch, lead, rises);
        course.hardly_grows = rises < lead.growth.times.len();
    }
    // The memory of requests under way at the end of a window rises and falls with the window's position in the
    // requests.
    let stays = lead.per != Per::Window || released || raises_peaks(watch, course.begun_ns, gained);
    // The data of each step follows its inputs and not the clock.
    let counts = match way {
        Way::WithWork | Way::MadeAgain { .. } => is_share_of_peak(watch, course.gained),
        _ => matters(watch, course.gained, course.seconds()),
    };
    (stays && counts).then_some(course)
}

/// Growth in bytes of a group's place from the begin of the growth to the last boundary of a kind. It includes all
/// members and every other site that is reached through the place. The gain that findings count is lower: it excludes
/// fluctuation and the level at which a site was first seen.
fn grown(watch: &RankWatch, (group, place): (&Group, &Place), begun_at: u32, per: Per) -> u64 {
    let began = (group.lead().per, begun_at);
    let (before, now) = growing(watch, (group, place), begun_at).fold((0_u64, 0_u64), |(before, now), (_, site)| {
        let (then, last) = held(site, began, per);
        (before.saturating_add(then), now.saturating_add(last))
    });
    now.saturating_sub(before)
}

/// Number of rises after which all memory that is made only once has been made.
const RISES_OF_MAKING: usize = 3;

/// The boundary by which all memory that is made only once has been made: a few rises after the begin, and within the
/// first quarter.
fn made_by(lead: &Candidate, begun_at: u32) -> u32 {
    let times = &lead.growth.times;
    let quarter = begun_at + times.last().map_or(0, |last| last.saturating_sub(begun_at) / 4);
    times.get(RISES_OF_MAKING - 1).map_or(quarter, |&third| third.min(quarter))
}

/// The sites of a group's place that have grown since then, with their indexes.
fn growing<'w>(
    watch: &'w RankWatch,
    (group, place): (&'w Group, &'w Place),
    begun_at: u32,
) -> impl Iterator<Item = (usize, &'w Site)> {
    let lead = group.lead();
    let holds = watch.sites[lead.site].holds;
    let is_through = move |site: &Site| {
        let stacks: Vec<StackId> = site.stacks.iter().map(|(stack, _)| *stack).collect();
        watch.grown(&stacks).iter().any(|&stack| place.is_on(watch.frames_of(stack).map(|frame| &**frame)))
    };
    let is_reached = move |index: usize, site: &Site| {
        let is_member = |member: &Candidate| member.site == index && place.has(watch, member);
        group.members.iter().any(is_member) || (site.holds == holds && is_through(site))
    };
    let of_place = watch.sites.iter().enumerate().filter(move |(index, site)| is_reached(*index, site));
    let early = made_by(lead, begun_at);
    of_place.filter(move |(index, site)| {
        let is_member = group.members.iter().any(|member| member.site == *index);
        is_member || !has_settled(site.series(lead.per), early)
    })
}

/// Whether a site already held its present bytes early in the growth. Memory that is made once in the first step (a
/// library's workspace, gradients, an optimizer's state) is reached through the same line and is not part of the
/// growth.
fn has_settled(series: &Series, early: u32) -> bool {
    series.points().last().is_some_and(|last| series.bytes_at(early) >= last.bytes)
}

/// Whether the peaks of the windows rose together with the memory that seems to stay, as they must if it does. Each
/// group of a few windows, which contains a whole request, counts with its highest peak. The lowest such peak of the
/// last third is compared with the lowest of the first third. If there are many windows, the test is not needed.
pub(super) fn raises_peaks(watch: &RankWatch, begun_ns: u64, gained: u64) -> bool {
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

/// The boundary at which growth begins.
#[derive(Clone, Copy, Default)]
struct Begin {
    at: u32,
    time_ns: u64,
}

/// The boundary before the first rise. In a thinned history it is the last earlier boundary at which the place's bytes
/// are known.
fn begin(watch: &RankWatch, lead: &Candidate) -> Begin {
    let since = lead.first_level.or(lead.since);
    let at = since.map_or(0, |since| since.at);
    let series = watch.sites[lead.site].series(lead.per);
    let is_before = |point: &&Point| point.at < at && since.is_some_and(|since| point.bytes < since.bytes);
    if let Some(point) = series.points().iter().rfind(is_before).filter(|_| series.is_thinned()) {
        return Begin { at: point.at, time_ns: point.time_ns };
    }
    let levels = watch.history.levels(lead.per);
    let before = levels.partition_point(|level| level.at < at).checked_sub(1).map(|index| levels[index]);
    // The first boundary of all may be of another kind, whose `at` is not comparable.
    let first = || watch.history.first.map(|first| Level { at: 0, ..first });
    before.or_else(first).map_or_else(Begin::default, |level| Begin { at: level.at, time_ns: level.time_ns })
}

/// The step of the last of these rises.
fn step_of(watch: &RankWatch, lead: &Candidate, rises: usize) -> Option<u64> {
    let last = *lead.growth.times[..rises.min(lead.growth.times.len())].last()?;
    let levels = watch.history.levels(lead.per);
    let level = levels.get(levels.partition_point(|level| level.at < last))?;
    (lead.per != Per::Window && watch.history.steps() > 0).then_some(level.step)
}

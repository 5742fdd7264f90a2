//! The inputs of a verdict: the courses of a job's devices, its findings, and what was not judged.

use memctl_model::{Finding, Judged, MemoryKind, NotJudged, Verdict, VerdictKind};

use super::Activity;
use super::course::{Course, Stand, of_places};
use super::history::{Level, Per};
use super::significance::peak_bytes;
use super::subjects::{self, Subject};
use super::sum::{has_risen_since, sum};
use super::watch::RankWatch;

/// The courses of the live memory of a job's devices: measurements without any conclusion.
#[derive(Clone, Debug, Default)]
pub struct Courses {
    /// The devices.
    pub(super) devices: Vec<Room>,
    /// Their significant courses, in no order.
    pub(super) courses: Vec<Course>,
}

/// The use of a device's memory.
#[derive(Clone, Debug)]
pub(super) struct Room {
    pub who: Subject,
    pub peak_bytes: u64,
    pub limit_bytes: Option<u64>,
    /// The program's own limit, if it is what decides.
    pub own_limit_bytes: Option<u64>,
    /// The least and the most of its live memory at the boundaries of the last third, if it was not flat.
    pub swing_bytes: Option<(u64, u64)>,
    /// The difference of the two, if it was flat.
    pub flat_within_bytes: u64,
    /// Whether it only rose in that time.
    pub rose: bool,
    /// The peaks of its steps, if they rose in the last third.
    pub peaks: Option<RisenPeaks>,
}

/// The peaks of steps that rose over the last third of what was seen.
#[derive(Clone, Copy, Debug)]
pub(super) struct RisenPeaks {
    /// The highest of its first third.
    pub early_bytes: u64,
    /// The lowest of its last third.
    pub late_bytes: u64,
    /// The lowest of its first third.
    pub lowest_bytes: u64,
    /// The highest of its last third.
    pub highest_bytes: u64,
    /// Whether they rose in both halves, and not once.
    pub goes_on: bool,
}

impl Courses {
    /// The courses of these devices.
    #[must_use]
    pub fn of(watches: &[&RankWatch]) -> Self {
        let room = |watch: &&RankWatch| {
            let range = range_bytes(watch);
            let is_flat =
                |&(lowest, highest): &(u64, u64)| (highest - lowest) as f64 <= FLAT_SHARE * peak_bytes(watch) as f64;
            let swing_bytes = range.filter(|range| !is_flat(range));
            Room {
                who: watch.who(),
                peak_bytes: peak_bytes(watch),
                limit_bytes: watch.limit_bytes(),
                own_limit_bytes: watch.facts.own_limit_bytes.filter(|own| watch.limit_bytes() == Some(*own)),
                swing_bytes,
                flat_within_bytes: range.filter(is_flat).map_or(0, |(lowest, highest)| highest - lowest),
                rose: swing_bytes.is_some_and(|swing| only_rose(last_third(watch), swing)),
                peaks: risen_peaks(watch),
            }
        };
        let courses = watches.iter().flat_map(|watch| courses(watch)).collect();
        Self { devices: watches.iter().map(room).collect(), courses }
    }

    /// The devices.
    pub(super) fn subjects(&self) -> Vec<&Subject> {
        self.devices.iter().map(|room| &room.who).collect()
    }
}

/// The significant courses of a device, in no order.
fn courses(watch: &RankWatch) -> Vec<Course> {
    let mut found = of_places(watch);
    if !found.iter().any(|course| course.stand == Stand::Growing) {
        // The course of a stopped place is more informative than that of a stopped sum, and it explains a sum that has
        // not risen since.
        let stopped_ns =
            found.iter().filter(|course| course.stand == Stand::Stopped).map(|course| course.until_ns).max();
        let says_more = |sum: &Course| {
            stopped_ns.is_none_or(|since_ns| sum.stand == Stand::Growing && has_risen_since(watch, since_ns))
        };
        found.extend(sum(watch).filter(says_more));
    }
    found
}

/// Live memory is flat if its swing is at most this share of the peak.
const FLAT_SHARE: f64 = 0.05;

/// Memory only rises if it falls by less than this share of its swing.
const FALL_SHARE: f64 = 0.25;

/// The levels of the last third of the boundaries, of the most informative kind.
fn last_third(watch: &RankWatch) -> &[Level] {
    let kinds = [Per::Step, Per::Epoch, Per::Window].into_iter();
    let levels = kinds.map(|per| watch.history.levels(per)).find(|levels| levels.len() > 2).unwrap_or_default();
    &levels[levels.len() - levels.len().div_ceil(3)..]
}

/// Whether levels never fell by a significant share of their swing.
fn only_rose(levels: &[Level], (lowest, highest): (u64, u64)) -> bool {
    let (mut top, mut fall) = (0, 0);
    for level in levels {
        fall = fall.max(level.highest_allocated_bytes.max(top).saturating_sub(level.lowest_allocated_bytes));
        top = top.max(level.highest_allocated_bytes);
    }
    (fall as f64) < FALL_SHARE * (highest - lowest) as f64
}

/// Minimum number of steps in the last third from which a rise of peaks is no chance. Of 30 peaks that vary at random, the last
/// ten are all higher than the first ten in fewer than one of 10^7 runs.
const PEAKS_MIN: usize = 30;

/// The peaks of the last third of steps, if its last third is above its first third by more than what counts as flat. The peak
/// of a step is its work; the peak of a window depends on chance.
fn risen_peaks(watch: &RankWatch) -> Option<RisenPeaks> {
    let levels = watch.history.levels(Per::Step);
    let last = &levels[levels.len() - levels.len().div_ceil(3)..];
    if last.len() < PEAKS_MIN {
        return None;
    }
    let peaks: Vec<u64> = last.iter().map(|level| level.peak_allocated_bytes).collect();
    let third = peaks.len() / 3;
    let (early, middle, late) = (&peaks[..third], &peaks[third..peaks.len() - third], &peaks[peaks.len() - third..]);
    let least = |peaks: &[u64]| peaks.iter().copied().min().unwrap_or(0);
    let most = |peaks: &[u64]| peaks.iter().copied().max().unwrap_or(0);
    let (early_bytes, late_bytes) = (most(early), least(late));
    let matters = late_bytes.saturating_sub(early_bytes) as f64 > FLAT_SHARE * peak_bytes(watch) as f64;
    let goes_on = least(middle) > early_bytes && late_bytes > most(middle);
    matters.then_some(RisenPeaks {
        early_bytes,
        late_bytes,
        lowest_bytes: least(early),
        highest_bytes: most(late),
        goes_on,
    })
}

/// The least and the most of its live memory at the boundaries of the last third.
fn range_bytes(watch: &RankWatch) -> Option<(u64, u64)> {
    let last = last_third(watch);
    let lowest = last.iter().map(|level| level.lowest_allocated_bytes).min()?;
    let highest = last.iter().map(|level| level.highest_allocated_bytes).max()?;
    Some((lowest, highest))
}

/// The inputs of a verdict.
#[derive(Clone, Copy, Debug)]
pub struct VerdictInputs<'a> {
    /// The courses of the devices' memory.
    pub courses: &'a Courses,
    /// All findings, the worst first, including holders.
    pub findings: &'a [Finding],
    /// What was judged.
    pub judged: &'a Judged,
    /// What was not judged; decisive gaps first.
    pub not_judged: &'a [NotJudged],
    /// Whether the job goes on.
    pub activity: Activity,
    /// Whether one of its requests or processes failed.
    pub failed: bool,
    /// Whether running processes may be searched for the holders of memory.
    pub holders_allowed: bool,
}

/// A course with related ones: the devices that show the same, and other courses of its device in the same state.
pub(super) struct CourseContext<'a> {
    pub course: &'a Course,
    /// The devices on which the same place is in the same state.
    pub on: Vec<&'a Subject>,
    /// Other courses of the same device in the same state.
    pub others: Vec<&'a Course>,
}

impl<'a> CourseContext<'a> {
    pub fn new(courses: &'a [Course], course: &'a Course) -> Self {
        let alike = || courses.iter().filter(|other| other.stand == course.stand);
        let on = alike().filter(|other| other.site == course.site).map(|other| &other.who).collect();
        // A course that is reached through the same place is part of this one, and this one is part of a course that
        // contains its place.
        let is_within =
            |other: &&Course| course.place.is_on(other.stack.iter()) || other.place.is_on(course.stack.iter());
        let of_device = alike().filter(|other| other.who == course.who && other.site != course.site);
        let others = of_device.filter(|other| !is_within(other)).collect();
        Self { course, on, others }
    }

    pub fn measured(&self, kind: VerdictKind) -> Verdict {
        Verdict {
            memory: Some(MemoryKind::Device),
            grown_bytes: Some(self.course.gained),
            seconds: Some(self.course.seconds()),
            site: self.course.site.clone(),
            ranks: subjects::ranks(self.on.iter().copied()),
            processes: subjects::processes(self.on.iter().copied()),
            ..Verdict::new(kind, "")
        }
    }
}

//! What a verdict is made of: the courses of a job's devices, its findings, and what was not judged.

use memctl_model::{Finding, Judged, MemoryKind, NotJudged, Verdict, VerdictKind};

use super::Activity;
use super::course::{Course, Stand, of_places};
use super::history::{Level, Per};
use super::significance::peak_bytes;
use super::subjects::{self, Subject};
use super::sum::sum;
use super::watch::RankWatch;

/// What the live memory of a job's devices did: what is measured, before anything is concluded.
#[derive(Clone, Debug, Default)]
pub struct Courses {
    /// The devices.
    pub(super) devices: Vec<Room>,
    /// Their courses that matter, in no order.
    pub(super) courses: Vec<Course>,
}

/// How much of a device is used.
#[derive(Clone, Debug)]
pub(super) struct Room {
    pub who: Subject,
    pub peak_bytes: u64,
    pub limit_bytes: Option<u64>,
    /// The least and the most of its live memory at the boundaries of the last third, where it was not flat.
    pub swing_bytes: Option<(u64, u64)>,
    /// Whether it only rose then.
    pub rose: bool,
    /// A step's highest level early and late in the last third, if it rose all the time.
    pub risen_peaks: Option<(u64, u64)>,
}

impl Courses {
    /// Of these devices.
    #[must_use]
    pub fn of(watches: &[&RankWatch]) -> Self {
        let room = |watch: &&RankWatch| {
            let swing_bytes = swing_bytes(watch);
            Room {
                who: watch.who(),
                peak_bytes: peak_bytes(watch),
                limit_bytes: watch.limit_bytes(),
                swing_bytes,
                rose: swing_bytes.is_some_and(|swing| only_rose(last_third(watch), swing)),
                risen_peaks: risen_peaks(watch),
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

/// The courses of a device that matter, in no order.
fn courses(watch: &RankWatch) -> Vec<Course> {
    let mut found = of_places(watch);
    if !found.iter().any(|course| course.stand == Stand::Growing) {
        // (A sum that has stopped says less than a line that has.)
        let has_stopped = found.iter().any(|course| course.stand == Stand::Stopped);
        found.extend(sum(watch).filter(|sum| sum.stand == Stand::Growing || !has_stopped));
    }
    found
}

/// Share of the peak within which live memory is flat.
const FLAT_SHARE: f64 = 0.05;

/// Memory that falls by less than this share of what it swings only rises.
const FALL_SHARE: f64 = 0.25;

/// The levels of the last third of the boundaries that say most.
fn last_third(watch: &RankWatch) -> &[Level] {
    let kinds = [Per::Step, Per::Epoch, Per::Window].into_iter();
    let levels = kinds.map(|per| watch.history.levels(per)).find(|levels| levels.len() > 2).unwrap_or_default();
    &levels[levels.len() - levels.len().div_ceil(3)..]
}

/// Whether levels never fell by a share of their swing that matters.
fn only_rose(levels: &[Level], (lowest, highest): (u64, u64)) -> bool {
    let (mut top, mut fall) = (0, 0);
    for level in levels {
        fall = fall.max(level.highest_allocated_bytes.max(top).saturating_sub(level.lowest_allocated_bytes));
        top = top.max(level.highest_allocated_bytes);
    }
    (fall as f64) < FALL_SHARE * (highest - lowest) as f64
}

/// Steps of the last third from which a rise of peaks is no chance: of 30 that vary at random, the last ten are all higher than
/// the first ten in fewer than one of 10^7 runs.
const PEAKS_MIN: usize = 30;

/// The highest of a step's peaks in the first third of the last third of steps, and the lowest in its last third, if that is
/// higher by more than what is flat. What a step needs at its highest is its work; of a window it is chance.
fn risen_peaks(watch: &RankWatch) -> Option<(u64, u64)> {
    let levels = watch.history.levels(Per::Step);
    let last = &levels[levels.len() - levels.len().div_ceil(3)..];
    if last.len() < PEAKS_MIN {
        return None;
    }
    let peaks = |levels: &[Level]| -> Vec<u64> { levels.iter().map(|level| level.peak_allocated_bytes).collect() };
    let third = last.len() / 3;
    let early = peaks(&last[..third]).into_iter().max()?;
    let late = peaks(&last[last.len() - third..]).into_iter().min()?;
    (late.saturating_sub(early) as f64 > FLAT_SHARE * peak_bytes(watch) as f64).then_some((early, late))
}

fn swing_bytes(watch: &RankWatch) -> Option<(u64, u64)> {
    let last = last_third(watch);
    let lowest = last.iter().map(|level| level.lowest_allocated_bytes).min()?;
    let highest = last.iter().map(|level| level.highest_allocated_bytes).max()?;
    ((highest - lowest) as f64 > FLAT_SHARE * peak_bytes(watch) as f64).then_some((lowest, highest))
}

/// What a verdict is made of.
#[derive(Clone, Copy, Debug)]
pub struct VerdictInputs<'a> {
    /// What the devices' memory did.
    pub courses: &'a Courses,
    /// All findings, the worst first, with what holders said.
    pub findings: &'a [Finding],
    /// What was looked at.
    pub judged: &'a Judged,
    /// What was not, the gaps that decide first.
    pub not_judged: &'a [NotJudged],
    /// Whether the job goes on.
    pub activity: Activity,
    /// Whether a request or a process of it failed.
    pub failed: bool,
}

/// A course with what belongs to it: who shows the same, and what else of its device stands alike.
pub(super) struct Shown<'a> {
    pub course: &'a Course,
    /// The devices on which the same place stands alike.
    pub on: Vec<&'a Subject>,
    /// Other courses of the same device that stand alike.
    pub others: Vec<&'a Course>,
}

impl<'a> Shown<'a> {
    pub fn new(courses: &'a [Course], course: &'a Course) -> Self {
        let alike = || courses.iter().filter(|other| other.stand == course.stand);
        let on = alike().filter(|other| other.site == course.site).map(|other| &other.who).collect();
        // What is reached through the same line counts there, and what counts all that is reached through it counts this.
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

//! Leak detectors behind one trait, so that all have the same input and answer the same queries.
//!
//! Guarantees: a detector receives what a daemon receives (stacks, then site tables in order, all ranks in step) and
//! returns its verdicts after every table. It never sees what was added. Scalene's rule also receives the samples of
//! the stream that it needs.

mod chromium;
mod judge;
mod process;
mod scalene;

use memctl_model::{Boundary, FindingKind, Foresight, Frame, Pattern, SiteTable};

use super::replay::Settled;

/// Notifications by the kind of their finding, in the order of [`FindingKind::ALL`].
pub type Notified = [u32; FindingKind::ALL.len()];

/// The certainty of a detector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Worth a look.
    Suspected,
    /// Needs attention.
    Alarm,
}

/// One leak that a detector reports.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// Ranks concerned.
    pub ranks: Vec<u32>,
    /// Lines to blame, the likeliest first; empty for detectors that work on whole processes.
    pub sites: Vec<Frame>,
    /// How sure it is.
    pub level: Level,
    /// The kind of the leak, if the detector names kinds.
    pub kind: Option<FindingKind>,
    /// The pattern of the code, if the detector names patterns.
    pub pattern: Option<Pattern>,
    /// Its estimate of the seconds until the device is full.
    pub seconds_to_oom: Option<f64>,
    /// How strong its evidence for a replay's forecast is.
    pub foresight: Foresight,
}

impl Verdict {
    /// An alarm of a detector that knows no kinds.
    #[must_use]
    pub const fn alarm(ranks: Vec<u32>, sites: Vec<Frame>) -> Self {
        Self {
            ranks,
            sites,
            level: Level::Alarm,
            kind: None,
            pattern: None,
            seconds_to_oom: None,
            foresight: Foresight::Nothing,
        }
    }
}

/// The data that is known when a run begins.
pub struct RunFacts<'a> {
    /// Stacks of each rank by id − 1, innermost frame first.
    pub stacks: &'a [Vec<&'a [Frame]>],
    /// All bytes of each rank's device.
    pub device_total_bytes: &'a [u64],
    /// The number of boundaries in the run.
    pub rounds: usize,
    /// Whether some of them are epoch ends.
    pub epochs: bool,
}

/// Selects the tables for process-level detectors: epoch ends, or twenty per run if there are none.
#[derive(Clone, Copy, Debug, Default)]
struct Looks {
    /// Whether epochs end.
    epochs: bool,
    every: usize,
    seen: usize,
}

impl Looks {
    const LOOKS: usize = 20;

    fn new(given: &RunFacts<'_>) -> Self {
        Self { epochs: given.epochs, every: (given.rounds / Self::LOOKS).max(1), seen: 0 }
    }

    /// Whether the detector uses this table.
    fn at(&mut self, table: &SiteTable) -> bool {
        self.seen += 1;
        if self.epochs { table.boundary == Boundary::EpochEnd } else { self.seen.is_multiple_of(self.every) }
    }
}

/// See the module.
pub trait Detector {
    /// Its name in tables.
    fn name(&self) -> &'static str;
    /// Whether it names lines.
    fn names_sites(&self) -> bool;
    /// Begins a run.
    fn begin(&mut self, given: &RunFacts<'_>);
    /// Receives the table of a rank's boundary.
    fn table(&mut self, rank: usize, table: &SiteTable);
    /// Receives a sample of a rank that was settled before its next table.
    fn settled(&mut self, _rank: usize, _sample: &Settled) {}
    /// The current verdicts, the gravest first.
    fn verdicts(&mut self) -> Vec<Verdict>;
    /// The job's verdict with its sentence at the end of a run; only memctl has one.
    fn sentence(&mut self) -> Option<memctl_model::Verdict> {
        None
    }
    /// Applies the rules for notifications to the latest verdicts, at this time; `ended` is true at the last call.
    fn apply_rules(&mut self, _time_ns: u64, _ended: bool) {}
    /// The notifications so far, by kind.
    fn notifications(&mut self) -> Notified {
        Notified::default()
    }
}

/// All detectors: memctl's first, then the rivals.
#[must_use]
pub fn all() -> Vec<Box<dyn Detector>> {
    vec![
        Box::<judge::Judge>::default(),
        Box::<process::Slope>::default(),
        Box::<process::Strict>::default(),
        Box::<scalene::Scalene>::default(),
        Box::<chromium::Chromium>::default(),
    ]
}

/// The line to which a line profiler assigns a stack: the innermost frame of the user's own code, else the innermost
/// frame.
fn line(stack: &[Frame]) -> Option<&Frame> {
    stack.iter().find(|frame| frame.is_user_code()).or_else(|| stack.first())
}

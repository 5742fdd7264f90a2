//! Detectors of leaks behind one trait, so that all of them see the same and are asked the same.
//!
//! Guarantees: a detector is told what a daemon is told (stacks, then site tables in order, all ranks in step) and is asked
//! for its verdicts after every table; none is told anything of what was added. Scalene's rule needs samples of the stream
//! besides, and gets them.

mod chromium;
mod judge;
mod process;
mod scalene;

use memctl_model::{Frame, SiteTable};

use super::replay::Settled;

/// How sure a detector is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Worth a look.
    Suspected,
    /// Somebody should be told.
    Alarm,
}

/// One leak that a detector sees.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// Ranks concerned.
    pub ranks: Vec<u32>,
    /// Lines to blame, the likeliest first; none from detectors that look at whole processes.
    pub sites: Vec<Frame>,
    /// How sure it is.
    pub level: Level,
}

/// What is known when a run begins.
pub struct Given<'a> {
    /// Stacks of each rank by id − 1, innermost frame first.
    pub stacks: &'a [Vec<&'a [Frame]>],
    /// All bytes of each device.
    pub device_total_bytes: u64,
}

/// See the module.
pub trait Detector {
    /// Its name in tables.
    fn name(&self) -> &'static str;
    /// Whether it names lines.
    fn names_sites(&self) -> bool;
    /// A run begins.
    fn begin(&mut self, given: &Given<'_>);
    /// A boundary of a rank.
    fn table(&mut self, rank: usize, table: &SiteTable);
    /// A sample of a rank that was settled before its next table.
    fn settled(&mut self, _rank: usize, _sample: &Settled) {}
    /// The verdicts as of now, the gravest first.
    fn verdicts(&mut self) -> Vec<Verdict>;
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

/// The line of a stack as a profiler by lines sees it: the innermost of the user's own, else the innermost.
fn line(stack: &[Frame]) -> Option<&Frame> {
    stack.iter().find(|frame| frame.is_user_code()).or_else(|| stack.first())
}

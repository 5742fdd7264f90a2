//! Judges what the boundaries of all ranks show: leaks, ranks that differ, and memory outside the allocator.
//!
//! Guarantees: pure functions. The same tables in the same order give the same result, for a live job and for a
//! recording. Memory is bounded for each rank. Every sentence is based on figures in the finding's evidence. Without
//! stacks or marks, a finding contains less and states this.
//!
//! - [`watch`]: the stored state of a rank (`series`, `history`); [`stacks`]: the stacks of its process; `growth`: how
//!   a quantity grows.
//! - [`subjects`]: names a process and its device; `wrong_device`: which rank a device belongs to.
//! - `candidate` → `group` → `leak`: from sites of one rank to its leaks; `foresight`: which forecasts they support;
//!   `ranks`: findings over all ranks; `levels`: growth outside live tensors; `words`: the sentences.

mod candidate;
mod chained;
mod course;
mod evidence;
mod foreseen;
mod foresight;
mod frames;
mod group;
mod growth;
mod held;
mod history;
mod holder_advice;
mod holder_bound;
mod judged;
mod leak;
mod levels;
mod marks;
mod nearly_full;
mod optimizers;
mod outside;
mod pattern;
mod process_list;
mod ranks;
mod recent_growth;
mod second_holders;
mod series;
mod significance;
pub mod stacks;
mod sum;
mod teeth;
mod time_to_full;
mod verdict;
mod verdict_inputs;

pub mod subjects;
pub mod watch;
mod words;
mod wrong_device;

pub use foreseen::{ForecastRequest, Foreseen, foreseen};
pub use holder_bound::decide;
pub use judged::GROWTH;
pub use series::POINTS_MAX;
pub use stacks::Stacks;
pub use verdict::is_explained;
pub use verdict::verdict;
pub use verdict_inputs::{Courses, VerdictInputs};
pub use watch::{RankFacts, RankWatch, SITES_MAX};

use memctl_model::{Finding, FindingKind, Judged, NotJudged};

/// Whether a job goes on. A job that has ended has no time to out of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// It runs.
    Running,
    /// It has ended, or is a recording.
    Ended,
}

/// Maximum number of findings of a job.
const FINDINGS_MAX: usize = 128;

/// The findings over all watched ranks: the worst 128, the worst first.
#[must_use]
pub fn findings(watches: &[&RankWatch], activity: Activity) -> Vec<Finding> {
    let mut found = ranks::leaks(watches, activity);
    let skew = ranks::skew(watches, &found);
    found.extend(skew);
    let near = nearly_full::findings(watches, &found);
    found.extend(near);
    let wrong = wrong_device::findings(watches);
    let mut levels = levels::findings(watches, &wrong, outside::grown(watches));
    levels.iter_mut().for_each(|level| words::name_device_leak(level, &found));
    found.extend(levels);
    found.extend(wrong.into_iter().map(|wrong| wrong.finding));
    sort(&mut found);
    // A page with a thousand findings helps no more than one with a hundred.
    found.truncate(FINDINGS_MAX);
    found
}

/// The kinds that were judged over these devices, and those that could not be. A module that judges a single kind lists its own
/// boundaries.
#[must_use]
pub fn judged(watches: &[&RankWatch]) -> (Judged, Vec<NotJudged>) {
    let (mut judged, gaps) = judged::growth_and_levels(watches);
    judged.kinds.extend([ranks::judged(watches), wrong_device::judged(watches)].into_iter().flatten());
    judged.kinds.sort_by_key(|judged| FindingKind::ALL.iter().position(|kind| *kind == judged.kind));
    (judged, gaps)
}

/// Sorts the worst first; among equally severe ones the most certain, then the largest.
pub fn sort(findings: &mut [Finding]) {
    findings.sort_by(|a, b| {
        let size = |finding: &Finding| finding.live_bytes.unwrap_or(0);
        b.severity
            .cmp(&a.severity)
            .then(b.confidence.total_cmp(&a.confidence))
            .then(size(b).cmp(&size(a)))
            .then(a.title.cmp(&b.title))
    });
}

//! Judging: what the boundaries of all ranks show about leaks, ranks that differ, and memory outside the allocator.
//!
//! Guarantees: pure (the same tables in the same order give the same result, for a live job and for a recording);
//! memory is bounded for each rank; every sentence rests on figures in the finding's evidence.
//! Refuses to guess: without stacks or marks a finding contains less, and says so.
//!
//! - [`watch`]: what is remembered of a rank (`series`, `history`), [`stacks`]: of its process; `growth` and `slope`:
//!   how a quantity grows.
//! - [`subjects`]: names a process and its device; `wrong_device`: which rank a device belongs to.
//! - `candidate` → `group` → `leak`: from sites of one rank to its leaks; `foresight`: how much they support a
//!   forecast; `ranks`: over all ranks; `levels`: growth outside live tensors; `words`: the sentences.

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
mod pattern;
mod ranks;
mod recent_growth;
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

pub use foreseen::{Asked, Foreseen, foreseen};
pub use holder_bound::decide;
pub use judged::GROWTH;
pub use series::POINTS_MAX;
pub use stacks::Stacks;
pub use verdict::verdict;
pub use verdict_inputs::{Courses, VerdictInputs};
pub use watch::{RankFacts, RankWatch, SITES_MAX};

use memctl_model::{Finding, FindingKind, Judged, NotJudged};

/// Whether a job goes on: one that has ended has no horizon, for nothing of it will fill a device any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// It runs.
    Running,
    /// It has ended, or is a recording.
    Ended,
}

/// Findings of a job.
const FINDINGS_MAX: usize = 128;

/// What is wrong, over all ranks that are watched: the worst 128, the worst first.
#[must_use]
pub fn findings(watches: &[&RankWatch], activity: Activity) -> Vec<Finding> {
    let mut found = ranks::leaks(watches, activity);
    let skew = ranks::skew(watches, &found);
    found.extend(skew);
    let near = nearly_full::findings(watches, &found);
    found.extend(near);
    let wrong = wrong_device::findings(watches);
    found.extend(levels::findings(watches, &wrong));
    found.extend(wrong.into_iter().map(|wrong| wrong.finding));
    sort(&mut found);
    // A page of a thousand findings helps as little as one of a hundred.
    found.truncate(FINDINGS_MAX);
    found
}

/// What was looked at over these devices, and what could not be judged. A module that judges one kind says itself where it
/// looked.
#[must_use]
pub fn judged(watches: &[&RankWatch]) -> (Judged, Vec<NotJudged>) {
    let (mut judged, gaps) = judged::growth_and_levels(watches);
    judged.kinds.extend([ranks::judged(watches), wrong_device::judged(watches)].into_iter().flatten());
    judged.kinds.sort_by_key(|judged| FindingKind::ALL.iter().position(|kind| *kind == judged.kind));
    (judged, gaps)
}

/// The worst first; among equals the surest, then the largest.
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

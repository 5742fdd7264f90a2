//! Lists what was analysed and what was not, so that missing findings about unanalysed data are not taken for a
//! healthy job.
//!
//! A kind that is on neither list needed no analysis. Either it compares ranks and there is only one, or it is about a
//! death, which is always reported. Only [`NotJudged::decides`] determines what a gap means for an answer.

use crate::finding::FindingKind;
use crate::site::Boundary;

/// The data and kinds that were analysed.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Judged {
    /// Processes with analysed data.
    pub processes: u32,
    /// Ranks with analysed data, ascending.
    pub ranks: Vec<u32>,
    /// Number of epoch ends of the device that has most of them.
    pub epoch_ends: u64,
    /// Number of steps of the device that has most of them.
    pub steps: u64,
    /// Number of windows that the agent made itself, of the device that has most of them.
    pub windows: u64,
    /// Kinds that were analysed, in the order of [`FindingKind::ALL`].
    pub kinds: Vec<JudgedKind>,
}

/// A kind of finding that was analysed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JudgedKind {
    /// The kind.
    pub kind: FindingKind,
    /// The boundaries that were analysed; empty for a kind that needs none.
    pub boundaries: Vec<Boundary>,
}

/// How much of a kind was not analysed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Gap {
    /// A part: some ranks, the line of the code, or behaviour that shows once per epoch.
    Part,
    /// All of it.
    Whole,
}

impl Gap {
    /// The name in JSON and on the wire; never changes.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Part => "part",
            Self::Whole => "whole",
        }
    }

    /// The gap with this name; an unknown name of a newer version counts as the worst.
    #[must_use]
    pub fn of_name(name: &str) -> Self {
        if name == Self::Part.name() { Self::Part } else { Self::Whole }
    }
}

/// An analysis that was not possible, the reason, and the one remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotJudged {
    /// The kind of finding that could not be found.
    pub kind: FindingKind,
    /// How much of it was not analysed.
    pub gap: Gap,
    /// A phrase to follow "inconclusive: ", without a full stop: `needs 30 steps or 3 epoch ends, found 1 epoch end`.
    pub reason: String,
    /// The remedy.
    pub remedy: Remedy,
}

/// The one remedy for a gap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Nothing helps.
    None,
    /// The job must run for longer.
    Longer,
    /// The job must run for more epochs.
    MoreEpochs,
    /// The job's steps must be marked.
    MarkSteps,
    /// The job has ended: another run must run for longer.
    RunLonger,
    /// The job has ended: another run must run for more epochs.
    RunMoreEpochs,
    /// The job failed before enough was seen; the failure with this name must be repaired.
    Repair(String),
    /// A sentence, without a full stop, from the code that found the gap.
    Words(String),
}

impl Remedy {
    /// A sentence, without a full stop; `None` if there is no remedy.
    #[must_use]
    pub fn sentence(&self) -> Option<String> {
        let fixed = match self {
            Self::None => return None,
            Self::Repair(failure) => {
                return Some(format!("the run failed ({failure}) before enough was seen: repair that first"));
            }
            Self::Words(words) => words,
            Self::Longer => "let it run longer",
            Self::MoreEpochs => "let it run for more epochs",
            Self::MarkSteps => {
                "mark each step: `with memctl_agent.step(number):`, or record a snapshot with global_record_annotations=True"
            }
            Self::RunLonger => "run it again, for longer",
            Self::RunMoreEpochs => "run it again, for more epochs",
        };
        Some(fixed.to_owned())
    }
}

impl From<&str> for Remedy {
    fn from(words: &str) -> Self {
        if words.is_empty() { Self::None } else { Self::Words(words.to_owned()) }
    }
}

impl NotJudged {
    /// Whether the absence of findings means nothing because of this gap: live tensors may grow undetected, or whole
    /// ranks were not recorded. Such a gap is reported first. With it, `--fail-on` and `assert no-leak` end with exit
    /// code 1.
    #[must_use]
    pub fn decides(&self) -> bool {
        self.gap == Gap::Whole && (self.kind.is_leak() || self.kind == FindingKind::RankLost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_that_could_not_be_judged_decides_and_an_unmeasured_host_does_not() {
        let gap = |kind, gap| NotJudged { kind, gap, reason: String::new(), remedy: Remedy::None };
        assert!(gap(FindingKind::Leak, Gap::Whole).decides());
        assert!(!gap(FindingKind::Leak, Gap::Part).decides());
        assert!(gap(FindingKind::RankLost, Gap::Whole).decides(), "ranks that were not recorded");
        assert!(!gap(FindingKind::HostGrowth, Gap::Whole).decides());
    }

    #[test]
    fn names_are_read_back() {
        assert!([Gap::Part, Gap::Whole].into_iter().all(|gap| Gap::of_name(gap.name()) == gap));
        assert_eq!(Gap::of_name("of a newer version"), Gap::Whole);
    }
}

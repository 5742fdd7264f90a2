//! What was judged and what was not: silence about a thing that nobody looked at must not read as health.
//!
//! A kind that is on neither list needs no looking: it is about several ranks and there is one, or about a death, which is
//! told whenever there is one. Refuses to decide what a gap means for an answer but in one place: [`NotJudged::decides`].

use crate::finding::FindingKind;
use crate::site::Boundary;

/// What was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Judged {
    /// Processes of which something was looked at.
    pub processes: u32,
    /// Ranks of which something was looked at, ascending.
    pub ranks: Vec<u32>,
    /// Epoch ends of the device that has most.
    pub epoch_ends: u64,
    /// Steps of the device that has most.
    pub steps: u64,
    /// Windows that the agent cut by itself, of the device that has most.
    pub windows: u64,
    /// Kinds that were judged, in the order of [`FindingKind::ALL`].
    pub kinds: Vec<JudgedKind>,
}

/// A kind of finding that was judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JudgedKind {
    /// The kind.
    pub kind: FindingKind,
    /// The boundaries it was judged over; empty for a kind that needs none.
    pub boundaries: Vec<Boundary>,
}

/// How much of a kind was not judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Gap {
    /// A part: some ranks, the line, what happens once an epoch.
    Part,
    /// Nothing of it was judged.
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

    /// The gap of a name; a name of a newer version is taken for the worst.
    #[must_use]
    pub fn of_name(name: &str) -> Self {
        if name == Self::Part.name() { Self::Part } else { Self::Whole }
    }
}

/// What could not be judged, why, and the one thing to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotJudged {
    /// What could have been found.
    pub kind: FindingKind,
    /// How much of it was not judged.
    pub gap: Gap,
    /// A phrase that stands behind "inconclusive: ", without a full stop: `needs 3 epoch ends, found 1`.
    pub reason: String,
    /// A sentence, without a full stop: `call memctl_agent.step() at the end of each step`; empty where nothing helps.
    pub remedy: String,
}

impl NotJudged {
    /// Whether no finding means nothing because of it: live tensors may grow and nobody could tell, or whole ranks were
    /// not recorded. Such a gap is said first, and ends `--fail-on` and `assert no-leak` with exit code 1.
    #[must_use]
    pub fn decides(&self) -> bool {
        self.gap == Gap::Whole && (self.kind.is_leak() || self.kind == FindingKind::RankLost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_that_nobody_could_judge_decides_and_an_unmeasured_host_does_not() {
        let gap = |kind, gap| NotJudged { kind, gap, reason: String::new(), remedy: String::new() };
        assert!(gap(FindingKind::Leak, Gap::Whole).decides());
        assert!(!gap(FindingKind::Leak, Gap::Part).decides());
        assert!(gap(FindingKind::RankLost, Gap::Whole).decides(), "ranks that nobody recorded");
        assert!(!gap(FindingKind::HostGrowth, Gap::Whole).decides());
    }

    #[test]
    fn names_are_read_back() {
        assert!([Gap::Part, Gap::Whole].into_iter().all(|gap| Gap::of_name(gap.name()) == gap));
        assert_eq!(Gap::of_name("of a newer version"), Gap::Whole);
    }
}

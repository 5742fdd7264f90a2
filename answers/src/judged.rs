//! What was analysed and what was not, as in every response with findings.
//!
//! Guarantees: a response that does not say what was analysed counts as not analysed. Decides nothing: each gap states
//! whether the absence of findings then means nothing.

use std::borrow::Cow;

use memctl_model::{FindingKind, Gap};
use memctl_proto::v1;
use serde::{Deserialize, Serialize};

use super::finding::Finding;
use crate::format::text::{count, plural};

/// What an answer's findings, or their absence, rest on.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Scope {
    /// What was looked at.
    pub judged: Judged,
    /// What was not, the gaps that decide first.
    pub not_judged: Vec<NotJudged>,
}

/// What was looked at.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Judged {
    /// Processes.
    pub processes: u32,
    /// Ranks, ascending.
    pub ranks: Vec<u32>,
    /// Epoch ends of the device that has most.
    pub epoch_ends: u64,
    /// Steps of the device that has most.
    pub steps: u64,
    /// Windows of the device that has most.
    pub windows: u64,
    /// By kind of finding.
    pub kinds: Vec<JudgedKind>,
}

/// A kind of finding that was judged.
#[derive(Clone, Debug, Serialize)]
pub struct JudgedKind {
    /// Its name.
    pub kind: String,
    /// The boundaries it was judged over: `step`, `epoch`, `window`; empty for a kind that needs none.
    pub boundaries: Vec<&'static str>,
}

/// What could not be judged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotJudged {
    /// What could have been found.
    pub kind: String,
    /// Why not.
    pub reason: String,
    /// The one thing to do about it; null where nothing helps.
    pub remedy: Option<String>,
    /// `part` or `whole`.
    pub gap: Cow<'static, str>,
    /// Whether no finding means nothing because of it.
    pub decides: bool,
}

impl NotJudged {
    /// The kind, when this memctl knows it.
    #[must_use]
    pub fn known_kind(&self) -> Option<FindingKind> {
        FindingKind::of_name(&self.kind)
    }

    /// Whether nothing of its kind was judged.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.gap == Gap::Whole.name()
    }

    /// What was not analysed, in words: `leaks`; for a part, the part's name.
    #[must_use]
    pub fn subject(&self) -> String {
        self.known_kind().map_or_else(|| self.kind.replace('_', " "), |kind| kind.subject().to_owned())
    }
}

impl Scope {
    /// From the wire.
    #[must_use]
    pub fn new(judged: Option<v1::Judged>, not_judged: Vec<v1::NotJudged>) -> Self {
        let not_judged = not_judged.into_iter().map(NotJudged::from).collect();
        match judged {
            Some(judged) => Self { judged: judged.into(), not_judged },
            None if not_judged.is_empty() => Self { judged: Judged::default(), not_judged: vec![NotJudged::unsaid()] },
            None => Self { judged: Judged::default(), not_judged },
        }
    }

    /// Why no finding means nothing; `None` where it means something.
    #[must_use]
    pub fn inconclusive(&self) -> Option<&NotJudged> {
        self.not_judged.iter().find(|not| not.decides)
    }

    /// The same where findings were made: one that hurts is an answer, one that is good to know is none.
    #[must_use]
    pub fn undecided(&self, findings: &[Finding]) -> Option<&NotJudged> {
        self.inconclusive().filter(|_| !findings.iter().any(Finding::hurts))
    }

    /// Why no finding of these kinds means nothing.
    #[must_use]
    pub fn inconclusive_about(&self, kinds: &[FindingKind]) -> Option<&NotJudged> {
        let about = |not: &&NotJudged| not.is_whole() && not.known_kind().is_some_and(|kind| kinds.contains(&kind));
        self.not_judged.iter().find(about)
    }

    /// Whether a kind was judged.
    #[must_use]
    pub fn has_judged(&self, kind: FindingKind) -> bool {
        self.judged.kinds.iter().any(|judged| judged.kind == kind.name())
    }
}

impl NotJudged {
    /// Of a daemon that does not say what it judged.
    fn unsaid() -> Self {
        Self {
            kind: FindingKind::Leak.name().to_owned(),
            reason: "the daemon does not report what it judged".to_owned(),
            remedy: Some("upgrade the daemon to the version of this memctl".to_owned()),
            gap: Gap::Whole.name().into(),
            decides: true,
        }
    }
}

impl From<v1::Judged> for Judged {
    fn from(wire: v1::Judged) -> Self {
        let v1::Judged { processes, ranks, epoch_ends, steps, windows, kinds } = wire;
        Self { processes, ranks, epoch_ends, steps, windows, kinds: kinds.into_iter().map(JudgedKind::from).collect() }
    }
}

impl From<v1::JudgedKind> for JudgedKind {
    fn from(wire: v1::JudgedKind) -> Self {
        let boundaries = wire.boundaries().filter_map(boundary).collect();
        let v1::JudgedKind { kind, boundaries: _ } = wire;
        Self { kind, boundaries }
    }
}

/// The name of a kind of boundary.
#[must_use]
pub fn boundary(wire: v1::Boundary) -> Option<&'static str> {
    use memctl_model::Boundary;
    Some(match wire {
        v1::Boundary::StepEnd => Boundary::StepEnd.name(),
        v1::Boundary::EpochEnd => Boundary::EpochEnd.name(),
        v1::Boundary::WindowEnd => Boundary::WindowEnd.name(),
        v1::Boundary::End => Boundary::End.name(),
        v1::Boundary::Unspecified => return None,
    })
}

impl From<v1::NotJudged> for NotJudged {
    fn from(wire: v1::NotJudged) -> Self {
        let v1::NotJudged { kind, gap, reason, remedy, decides } = wire;
        let gap = Gap::of_name(&gap).name().into();
        Self { kind, reason, remedy: (!remedy.is_empty()).then_some(remedy), gap, decides }
    }
}

/// `4 ranks, 5 epoch ends, 40 steps`: what was looked at.
#[must_use]
pub fn looked_at(judged: &Judged) -> String {
    let mut parts = vec![
        plural(judged.ranks.len() as u64, "rank"),
        plural(judged.epoch_ends, "epoch end"),
        plural(judged.steps, "step"),
    ];
    if u64::from(judged.processes) > judged.ranks.len() as u64 {
        // More than one rank at least.
        parts.insert(0, format!("{} processes", count(u64::from(judged.processes))));
    }
    if judged.windows > 0 {
        parts.push(plural(judged.windows, "window"));
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_that_does_not_say_what_it_judged_has_judged_nothing() {
        let scope = Scope::new(None, Vec::new());
        assert!(scope.inconclusive().is_some_and(|not| not.reason.contains("does not report")));
        assert!(Scope::new(Some(v1::Judged::default()), Vec::new()).inconclusive().is_none());
    }

    #[test]
    fn a_kind_of_a_newer_daemon_is_shown_as_it_is() {
        let wire = v1::NotJudged { kind: "odd_thing".into(), gap: "new".into(), decides: true, ..Default::default() };
        let not = NotJudged::from(wire);
        assert_eq!((not.subject().as_str(), &*not.gap, not.remedy.as_deref()), ("odd thing", "whole", None));
    }
}

//! What was analysed and what was not, as in every response with findings.
//!
//! Guarantees: a response that does not state what was analysed counts as not analysed. Decides nothing: each gap
//! states whether the absence of findings then means nothing.

use std::borrow::Cow;

use memctl_model::{self as model, FindingKind, Gap};
use serde::{Deserialize, Serialize};

use super::finding::Finding;
use crate::format::text::{count, plural};

/// The basis of an answer's findings, or of their absence.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Scope {
    /// What was looked at.
    pub judged: Judged,
    /// What was not, the gaps that decide first.
    pub not_judged: Vec<NotJudged>,
}

/// What was analysed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
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
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct JudgedKind {
    /// Its name.
    pub kind: String,
    /// The boundaries it was judged over: `step`, `epoch`, `window`; empty for a kind that needs none.
    pub boundaries: Vec<Cow<'static, str>>,
}

/// What could not be judged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct NotJudged {
    /// What could have been found.
    pub kind: String,
    /// Why not.
    pub reason: String,
    /// The one thing to do about it; null where nothing helps.
    pub remedy: Option<String>,
    /// `part` or `whole`.
    #[cfg_attr(test, ts(as = "crate::typescript::ByName<Gap>"))]
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
    /// Converts the scope of an analysis.
    #[must_use]
    pub fn new(judged: &model::Judged, not_judged: &[model::NotJudged]) -> Self {
        Self { judged: judged.into(), not_judged: not_judged.iter().map(NotJudged::from).collect() }
    }

    /// The gap because of which the absence of findings means nothing; `None` if there is none.
    #[must_use]
    pub fn inconclusive(&self) -> Option<&NotJudged> {
        self.not_judged.iter().find(|not| not.decides)
    }

    /// The same for given findings: a finding of severity warning or worse counts as a result, one for information only
    /// does not.
    #[must_use]
    pub fn undecided(&self, findings: &[Finding]) -> Option<&NotJudged> {
        self.inconclusive().filter(|_| !findings.iter().any(Finding::is_warning_or_worse))
    }

    /// The gap because of which the absence of findings of these kinds means nothing.
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

impl From<&model::Judged> for Judged {
    fn from(judged: &model::Judged) -> Self {
        let model::Judged { processes, ranks, epoch_ends, steps, windows, kinds } = judged;
        let kind = |model::JudgedKind { kind, boundaries }: &model::JudgedKind| JudgedKind {
            kind: kind.name().to_owned(),
            boundaries: boundaries.iter().map(|boundary| boundary.name().into()).collect(),
        };
        Self {
            processes: *processes,
            ranks: ranks.clone(),
            epoch_ends: *epoch_ends,
            steps: *steps,
            windows: *windows,
            kinds: kinds.iter().map(kind).collect(),
        }
    }
}

impl From<&model::NotJudged> for NotJudged {
    fn from(not: &model::NotJudged) -> Self {
        let model::NotJudged { kind, gap, reason, remedy } = not;
        Self {
            kind: kind.name().to_owned(),
            reason: reason.clone(),
            remedy: remedy.sentence(),
            gap: gap.name().into(),
            decides: not.decides(),
        }
    }
}

/// `4 ranks, 5 epoch ends, 40 steps`: what was analysed.
#[must_use]
pub fn looked_at(judged: &Judged) -> String {
    let mut parts = vec![
        plural(judged.ranks.len() as u64, "rank"),
        plural(judged.epoch_ends, "epoch end"),
        plural(judged.steps, "step"),
    ];
    if u64::from(judged.processes) > judged.ranks.len() as u64 {
        // Shown only if there are more processes than ranks.
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
    fn a_kind_of_a_newer_daemon_is_shown_as_it_is() {
        let json = r#"{ "kind": "odd_thing", "reason": "", "remedy": null, "gap": "whole", "decides": true }"#;
        let not: NotJudged = serde_json::from_str(json).unwrap();
        assert_eq!((not.subject().as_str(), not.is_whole(), not.remedy.as_deref()), ("odd thing", true, None));
    }
}

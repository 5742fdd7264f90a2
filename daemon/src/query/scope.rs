//! The coverage of responses that are based only on events: `frag`, `oom` and `ledger`.
//!
//! Guarantees: each kind of finding that such a response is about is listed as judged or, with the reason, as not
//! judged.

use std::collections::BTreeSet;

use memctl_analysis::coverage::{self, Recorded};
use memctl_answers::judged;
use memctl_model::{FindingKind, Gap, Judged, JudgedKind, NotJudged, Remedy};

use crate::job_data::job::FoundJob;
use crate::store::SessionRow;

/// What was judged, and what was not.
pub(super) struct Scope {
    judged: Judged,
    not_judged: Vec<NotJudged>,
}

impl Scope {
    /// The coverage of a response about these kinds. `whole`: the request is about every rank.
    pub fn new(found: &FoundJob, kinds: &[FindingKind], whole: bool) -> Self {
        let recorded: Vec<Recorded> = found.sessions.iter().map(|session| recorded(found, session)).collect();
        let mut not_judged = coverage::not_judged(&recorded, found.job.world_size, whole);
        not_judged.retain(|not| kinds.contains(&not.kind) || not.kind == FindingKind::RankLost);
        let is_whole = |kind: FindingKind| not_judged.iter().any(|not| not.kind == kind && not.gap == Gap::Whole);
        let judged = kinds.iter().filter(|kind| !is_whole(**kind));
        let judged = judged.map(|&kind| JudgedKind { kind, boundaries: Vec::new() }).collect();
        let with_events = recorded.iter().filter(|process| process.events > process.events_expired);
        let ranks: BTreeSet<u32> = with_events.clone().map(|process| process.rank).collect();
        let most = |read: fn(&crate::store::DeviceRow) -> u64| found.devices.iter().map(read).max().unwrap_or(0);
        let judged = Judged {
            processes: with_events.count() as u32,
            ranks: ranks.into_iter().collect(),
            epoch_ends: most(|device| device.epochs),
            steps: most(|device| device.steps),
            windows: 0,
            kinds: judged,
        };
        Self { judged, not_judged }
    }

    /// Adds a gap to each of these kinds.
    pub fn gap(&mut self, kinds: &[FindingKind], gap: Gap, reason: &str, remedy: impl Into<Remedy>) {
        let remedy = remedy.into();
        for &kind in kinds {
            let known = self.not_judged.iter().any(|not| not.kind == kind && not.gap >= gap);
            if !known {
                self.not_judged.push(NotJudged { kind, gap, reason: reason.to_owned(), remedy: remedy.clone() });
            }
            if gap == Gap::Whole {
                self.judged.kinds.retain(|judged| judged.kind != kind);
            }
        }
    }

    /// Adapts the remedies of the gaps to a job that has ended, in which waiting does not help.
    pub fn ended(&mut self, found: &FoundJob) {
        coverage::of_ended(&mut self.not_judged, found.failures());
    }

    /// The coverage's part of the response.
    pub fn into_answer(self) -> judged::Scope {
        judged::Scope::new(&self.judged, &self.not_judged)
    }
}

fn recorded(found: &FoundJob, session: &SessionRow) -> Recorded {
    let known = found.devices.iter().any(|device| device.session == session.key && device.is_known());
    Recorded {
        rank: session.info.rank,
        events: session.events,
        events_expired: session.expired_events,
        is_known: known,
    }
}

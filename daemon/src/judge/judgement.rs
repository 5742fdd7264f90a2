//! What judging a job came to: findings, what they rest on, what was not judged, where its boundaries come from.
//!
//! Guarantees: what the store holds and what the watches could use are both asked, so that neither a rank without a watch
//! nor a watch without boundaries reads as health.

use std::collections::BTreeMap;

use memctl_analysis::coverage::{self, Recorded};
use memctl_analysis::judge;
use memctl_model::{Boundary, Counters, Finding, FindingKind, Gap, Judged, JudgedKind, NotJudged, SiteTable};
use memctl_proto::v1;

use super::watching::JobWatch;
use crate::query::Found;
use crate::store::{SessionKey, SessionRow};

/// See the module.
pub(crate) struct Judgement {
    /// What is wrong, the worst first.
    pub findings: Vec<Finding>,
    /// What was looked at.
    pub judged: Judged,
    /// What was not, the gaps that decide first.
    pub not_judged: Vec<NotJudged>,
    /// Where epochs and steps come from.
    pub boundaries: v1::Boundaries,
    /// The last boundary of each device at which work went on: not the end of what is stored.
    pub levels: BTreeMap<(SessionKey, u8), Levels>,
}

impl Judgement {
    /// What was found, with what it rests on.
    pub fn new(findings: Vec<Finding>, watch: &JobWatch, asked: &Found, whole: bool) -> Self {
        let (judged, not_judged) = judged(asked, watch, whole);
        let (boundaries, levels) = watch.boundaries(&asked.sessions);
        Self { findings, judged, not_judged, boundaries, levels }
    }

    /// Judging failed: what it would have found is not known.
    pub fn failed(fault: Finding) -> Self {
        let not = NotJudged {
            kind: FindingKind::Leak,
            gap: Gap::Whole,
            reason: "judging this job failed".to_owned(),
            remedy: fault.advice.trim_end_matches('.').to_owned(),
        };
        Self {
            findings: vec![fault],
            judged: Judged::default(),
            not_judged: vec![not],
            boundaries: v1::Boundaries::default(),
            levels: BTreeMap::new(),
        }
    }
}

/// How a device stood at a boundary.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Levels {
    pub boundary: Boundary,
    pub counters: Counters,
}

/// How many boundaries of each kind a session has shown, and where they come from.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    epochs: Origin,
    steps: Origin,
    windows: u64,
    pub levels: BTreeMap<u8, Levels>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Origin {
    given: bool,
    found: bool,
}

impl Origin {
    fn see(&mut self, found: bool) {
        *if found { &mut self.found } else { &mut self.given } = true;
    }

    /// Given marks win: they are never mixed with what was found.
    fn name(self) -> &'static str {
        match (self.given, self.found) {
            (true, _) => "given",
            (false, true) => "found",
            (false, false) => "none",
        }
    }

    fn join(&mut self, other: Self) {
        self.given |= other.given;
        self.found |= other.found;
    }
}

impl Seen {
    pub fn see(&mut self, table: &SiteTable) {
        match table.boundary {
            Boundary::EpochEnd => self.epochs.see(table.found),
            Boundary::StepEnd => self.steps.see(table.found),
            Boundary::WindowEnd => self.windows += 1,
            // What lives at the end of what is stored is what teardown has left.
            Boundary::End => return,
        }
        self.levels.insert(table.device.0, Levels { boundary: table.boundary, counters: table.counters });
    }
}

/// Where the boundaries of these sessions come from.
pub(super) fn boundaries<'a>(sessions: impl Iterator<Item = (&'a SessionRow, &'a Seen)>) -> v1::Boundaries {
    let (mut epochs, mut steps, mut windows, mut found_by) = (Origin::default(), Origin::default(), 0, None);
    for (session, seen) in sessions {
        epochs.join(seen.epochs);
        steps.join(seen.steps);
        windows = windows.max(seen.windows / seen.levels.len().max(1) as u64);
        found_by = found_by.or_else(|| session.info.found_by.clone());
    }
    let any_found = [epochs, steps].iter().any(|origin| origin.name() == "found");
    v1::Boundaries {
        epochs: epochs.name().to_owned(),
        steps: steps.name().to_owned(),
        windows,
        found_by: found_by.filter(|_| any_found),
    }
}

/// What was looked at of the sessions asked for, and what not. `whole`: the question is about every rank.
fn judged(asked: &Found, watch: &JobWatch, whole: bool) -> (Judged, Vec<NotJudged>) {
    let counts =
        |key: SessionKey, device: u8| asked.devices.iter().any(|row| row.session == key && row.info.index.0 == device);
    let recorded = recorded(asked, watch);
    let beyond = coverage::not_judged(&recorded, asked.job.world_size, whole);
    if coverage::is_nothing(&recorded) {
        return (Judged::default(), beyond);
    }
    let watches = watch.watches(counts);
    let (mut judged, mut gaps) = judge::judged(&watches);
    for kind in coverage::BY_EVENTS {
        let blind = beyond.iter().any(|not| not.kind == kind && not.gap == Gap::Whole);
        if !blind && !judged.kinds.iter().any(|known| known.kind == kind) {
            judged.kinds.push(JudgedKind { kind, boundaries: Vec::new() });
        }
    }
    judged.kinds.sort_by_key(|known| known.kind);
    for gap in beyond {
        if !gaps.iter().any(|known| known.kind == gap.kind && known.gap >= gap.gap) {
            gaps.push(gap);
        }
    }
    // Stable: among equals the order in which they were thought of.
    gaps.sort_by_key(|gap| (!gap.decides(), std::cmp::Reverse(gap.gap)));
    (judged, gaps)
}

fn recorded(asked: &Found, watch: &JobWatch) -> Vec<Recorded> {
    let of = |session: &SessionRow| Recorded {
        rank: session.info.rank,
        events: session.events,
        events_expired: session.expired_events,
        is_known: watch.is_known(session.key),
    };
    asked.sessions.iter().map(of).collect()
}

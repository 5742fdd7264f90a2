//! What judging a job came to: findings, what they rest on, what was not judged, where its boundaries come from.
//!
//! Guarantees: what the store holds and what the watches could use are both asked, so that neither a rank without a watch
//! nor a watch without boundaries reads as health.

use std::collections::BTreeMap;

use memctl_analysis::coverage::{self, Recorded};
use memctl_analysis::judge::{self, Activity, Courses, Grounds};
use memctl_model::{Finding, FindingKind, Gap, Judged, JudgedKind, NotJudged, Verdict};
use memctl_proto::v1;

use super::counts_of;
use super::shown::Levels;
use super::watching::JobWatch;
use crate::read::Found;
use crate::store::{SessionKey, SessionRow};

/// See the module.
pub(crate) struct Judgement {
    /// What is wrong, the worst first.
    pub findings: Vec<Finding>,
    /// What was looked at.
    pub judged: Judged,
    /// What was not, the gaps that decide first.
    pub not_judged: Vec<NotJudged>,
    /// What the devices' live memory did.
    pub courses: Courses,
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
        let courses = Courses::of(&watch.watches(counts_of(asked)));
        Self { findings, judged, not_judged, courses, boundaries, levels }
    }

    /// What the job's memory did, once all findings are there.
    pub fn verdict(&self, activity: Activity, failed: bool) -> Verdict {
        judge::verdict(&Grounds {
            courses: &self.courses,
            findings: &self.findings,
            judged: &self.judged,
            not_judged: &self.not_judged,
            activity,
            failed,
        })
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
            courses: Courses::default(),
            boundaries: v1::Boundaries::default(),
            levels: BTreeMap::new(),
        }
    }
}

/// What was looked at of the sessions asked for, and what not. `whole`: the question is about every rank.
fn judged(asked: &Found, watch: &JobWatch, whole: bool) -> (Judged, Vec<NotJudged>) {
    let recorded = recorded(asked, watch);
    let beyond = coverage::not_judged(&recorded, asked.job.world_size, whole);
    if coverage::is_nothing(&recorded) {
        return (Judged::default(), beyond);
    }
    let watches = watch.watches(counts_of(asked));
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

//! The result of judging a job: findings, their basis, what was not judged, and where its boundaries come from.
//!
//! Guarantees: coverage is derived both from the stored data and from what the watches could use. So neither a rank
//! without a watch nor a watch without boundaries looks healthy.

use std::collections::BTreeMap;

use memctl_analysis::coverage::{self, Recorded};
use memctl_analysis::judge::{self, Activity, Courses, VerdictInputs};
use memctl_answers::report::Boundaries;
use memctl_model::{Finding, FindingKind, Gap, Judged, JudgedKind, NotJudged, Severity, Verdict};

use super::counts_of;
use super::job_watch::JobWatch;
use super::session_boundaries::Levels;
use crate::job_data::FoundJob;
use crate::store::{SessionKey, SessionRow};

/// The result; see the module.
pub(crate) struct Judgement {
    /// The findings, the most severe first.
    pub findings: Vec<Finding>,
    /// What was judged.
    pub judged: Judged,
    /// What was not judged; gaps that affect the verdict come first.
    pub not_judged: Vec<NotJudged>,
    /// How the devices' live memory developed.
    pub courses: Courses,
    /// Where epochs and steps come from.
    pub boundaries: Boundaries,
    /// The levels of each device at its last boundary during work, not at the end of the recording.
    pub levels: BTreeMap<(SessionKey, u8), Levels>,
    /// Whether running processes may be searched for holders.
    pub holders_allowed: bool,
}

impl Judgement {
    /// The findings with their basis.
    pub fn new(findings: Vec<Finding>, watch: &JobWatch, asked: &FoundJob, whole: bool) -> Self {
        let (judged, mut not_judged) = judged(asked, watch, whole);
        only_other_leaks(&mut not_judged, &findings);
        let (boundaries, levels) = watch.boundaries(&asked.sessions);
        let courses = Courses::of(&watch.watches(counts_of(asked)));
        Self { findings, judged, not_judged, courses, boundaries, levels, holders_allowed: true }
    }

    /// The job's verdict; all findings must have been added.
    pub fn verdict(&self, activity: Activity, failed: bool) -> Verdict {
        judge::verdict(&VerdictInputs {
            courses: &self.courses,
            findings: &self.findings,
            judged: &self.judged,
            not_judged: &self.not_judged,
            activity,
            failed,
            holders_allowed: self.holders_allowed,
        })
    }

    /// The kinds of findings whose absence proves nothing, because there is not enough data to judge them.
    pub fn kinds_not_judged(&self) -> Vec<FindingKind> {
        let whole = self.not_judged.iter().filter(|not| not.gap == Gap::Whole);
        let mut kinds: Vec<FindingKind> = whole.map(|not| not.kind).collect();
        // A gap in the analysis of growth is listed once, as a gap of leaks. Forecasts depend on the growth.
        if kinds.contains(&FindingKind::Leak) {
            kinds.extend(judge::GROWTH.into_iter().chain([FindingKind::NearOom]));
        }
        kinds.sort_unstable();
        kinds.dedup();
        kinds
    }

    /// The result when judging failed; the findings are unknown.
    pub fn failed(fault: Finding) -> Self {
        let not = NotJudged {
            kind: FindingKind::Leak,
            gap: Gap::Whole,
            reason: "judging this job failed".to_owned(),
            remedy: fault.advice.trim_end_matches('.').into(),
        };
        Self {
            findings: vec![fault],
            judged: Judged::default(),
            not_judged: vec![not],
            courses: Courses::default(),
            boundaries: Boundaries::default(),
            levels: BTreeMap::new(),
            holders_allowed: true,
        }
    }
}

/// If a leak was found, what could not be judged is whether there are others. (An object that holds each block shows a
/// leak before there are enough steps to judge growth.)
fn only_other_leaks(not_judged: &mut [NotJudged], findings: &[Finding]) {
    let has_leak = findings.iter().any(|finding| finding.kind.is_leak() && finding.severity >= Severity::Warning);
    let leaks = not_judged.iter_mut().filter(|not| has_leak && not.kind == FindingKind::Leak && not.gap == Gap::Whole);
    for not in leaks {
        (not.gap, not.reason) = (Gap::Part, format!("other leaks: {}", not.reason));
    }
}

/// What was judged of these sessions, and what was not. `whole`: the query is about every rank.
fn judged(asked: &FoundJob, watch: &JobWatch, whole: bool) -> (Judged, Vec<NotJudged>) {
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
    // The sort is stable, so equal gaps keep their order.
    gaps.sort_by_key(|gap| (!gap.decides(), std::cmp::Reverse(gap.gap)));
    (judged, gaps)
}

fn recorded(asked: &FoundJob, watch: &JobWatch) -> Vec<Recorded> {
    let of = |session: &SessionRow| Recorded {
        rank: session.info.rank,
        events: session.events,
        events_expired: session.expired_events,
        is_known: watch.is_known(session.key),
    };
    asked.sessions.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_with_a_leak_does_not_say_that_leaks_were_not_judged() {
        let reason = "needs 30 steps or 3 epoch ends, found 12 steps";
        let blind = NotJudged {
            kind: FindingKind::Leak,
            gap: Gap::Whole,
            reason: reason.to_owned(),
            remedy: memctl_model::Remedy::Longer,
        };
        let gaps = |severity| {
            let mut gaps = [blind.clone()];
            only_other_leaks(&mut gaps, &[Finding::new(FindingKind::Leak, severity, 0.9, vec![0])]);
            gaps
        };
        let [other] = gaps(Severity::Warning);
        assert_eq!((other.gap, other.decides()), (Gap::Part, false));
        assert_eq!(other.reason, format!("other leaks: {reason}"));
        assert!(gaps(Severity::Info)[0].decides(), "a suspicion leaves it open");
    }
}

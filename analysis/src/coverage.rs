//! The gaps in the record of a job, regardless of the verdict on the rest: processes that were never recorded, events
//! that expired, or no data at all.
//!
//! Guarantees: for a job without any data, every kind of finding is listed as not judged. The content of a gap is
//! never guessed.

use std::collections::BTreeSet;

use memctl_model::{FindingKind, Gap, NotJudged, Remedy};

use crate::deaths::CauseOfDeath;

/// The data that is stored of one process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Recorded {
    /// Its rank.
    pub rank: u32,
    /// Allocator events that were stored.
    pub events: u64,
    /// Number of these events that retention has deleted.
    pub events_expired: u64,
    /// Whether a table or a sample shows the memory of the process.
    pub is_known: bool,
}

/// The remedy for a job without epochs.
pub const MARK_EPOCHS: &str = "mark each epoch: `with memctl_agent.epoch(number):`";

/// Adapts the remedies of gaps to a job that has ended: a remedy that needs waiting becomes one that needs another
/// run. `failures` are the recorded failures of its processes. If one has a cause of its own, the remedy is to repair
/// the first such cause, because another run would fail as well.
pub fn of_ended<'f>(gaps: &mut [NotJudged], failures: impl IntoIterator<Item = &'f str>) {
    let own = |cause: &CauseOfDeath| !cause.is_consequence() && !cause.is_request();
    let failed = failures.into_iter().map(|failure| CauseOfDeath::of(Some(failure))).find(own);
    let failed = failed.map(|cause| Remedy::Repair(cause.key()));
    for gap in gaps {
        let again = match gap.remedy {
            Remedy::Longer => Remedy::RunLonger,
            Remedy::MoreEpochs => Remedy::RunMoreEpochs,
            Remedy::MarkSteps => Remedy::MarkSteps,
            _ => continue,
        };
        gap.remedy = failed.clone().unwrap_or(again);
    }
}

/// Whether nothing is known about these processes' memory.
#[must_use]
pub fn is_nothing(processes: &[Recorded]) -> bool {
    !processes.iter().any(|process| process.is_known || process.events > 0)
}

/// Kinds of findings that need single events.
pub const BY_EVENTS: [FindingKind; 3] = [FindingKind::Fragmentation, FindingKind::Churn, FindingKind::Oom];

/// Everything that could not be judged. `world` is the number of ranks that the job should have; `whole` is whether
/// the query covers all of them.
#[must_use]
pub fn not_judged(processes: &[Recorded], world: Option<u32>, whole: bool) -> Vec<NotJudged> {
    if is_nothing(processes) {
        return nothing(processes.is_empty());
    }
    let mut gaps = Vec::new();
    if let Some(world) = world.filter(|_| whole) {
        gaps.extend(missing_ranks(processes, world));
    }
    let events: u64 = processes.iter().fold(0, |sum, process| sum.saturating_add(process.events));
    let expired: u64 = processes.iter().fold(0, |sum, process| sum.saturating_add(process.events_expired));
    let by_events = |gap: Gap, reason: &str, remedy: &str| {
        BY_EVENTS.map(|kind| NotJudged { kind, gap, reason: reason.to_owned(), remedy: remedy.into() })
    };
    if events == 0 {
        gaps.extend(by_events(
            Gap::Whole,
            "only counters were recorded, no allocator events",
            "record with PyTorch's own allocator (backend:native) and memctl's hook; `memctl doctor` says whether the hook works",
        ));
    } else if expired >= events {
        gaps.extend(by_events(
            Gap::Whole,
            "all events were removed by retention",
            "keep more with --retain-bytes and --retain-age",
        ));
    } else if expired > 0 {
        gaps.extend(by_events(
            Gap::Part,
            "older events were removed by retention",
            "keep more with --retain-bytes and --retain-age",
        ));
    }
    gaps
}

/// Lists every kind of finding as not judged, because nothing is known of the job.
fn nothing(never_began: bool) -> Vec<NotJudged> {
    let reason = if never_began { "nothing was recorded" } else { "nothing of its memory was recorded" };
    let remedy = "start the job with `memctl run -- CMD`; if that records nothing, see `memctl doctor`";
    let kinds = FindingKind::ALL.into_iter().filter(|kind| *kind != FindingKind::Unjudged);
    kinds.map(|kind| NotJudged { kind, gap: Gap::Whole, reason: reason.to_owned(), remedy: remedy.into() }).collect()
}

/// The gap about processes that sent nothing for a while to a daemon that has just started.
#[must_use]
pub fn awaited(seconds: u64) -> NotJudged {
    let reason = "the daemon has just started, and processes that sent nothing may still reach it".to_owned();
    let remedy = format!("ask again when the daemon has run for {seconds} s");
    NotJudged { kind: FindingKind::RankLost, gap: Gap::Whole, reason, remedy: Remedy::Words(remedy) }
}

fn missing_ranks(processes: &[Recorded], world: u32) -> Option<NotJudged> {
    let there: BTreeSet<u32> = processes.iter().map(|process| process.rank).collect();
    let missing = u64::from(world).saturating_sub(there.len() as u64);
    let reason = match missing {
        0 => return None,
        1 => format!("1 of {world} ranks was not recorded"),
        more => format!("{more} of {world} ranks were not recorded"),
    };
    let remedy = "record every rank: start the job with `memctl run` on each host, or import every rank's snapshot";
    Some(NotJudged { kind: FindingKind::RankLost, gap: Gap::Whole, reason, remedy: remedy.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(rank: u32, events: u64, events_expired: u64) -> Recorded {
        Recorded { rank, events, events_expired, is_known: true }
    }

    fn whole(gaps: &[NotJudged]) -> Vec<FindingKind> {
        gaps.iter().filter(|not| not.gap == Gap::Whole).map(|not| not.kind).collect()
    }

    #[test]
    fn of_nothing_nothing_is_judged() {
        let gaps = not_judged(&[], None, true);
        assert_eq!(gaps.len(), FindingKind::ALL.len() - 1);
        assert!(gaps.iter().all(|not| not.gap == Gap::Whole && not.remedy != Remedy::None));
        assert!(gaps.iter().any(NotJudged::decides));
        let silent = not_judged(&[Recorded { rank: 0, ..Recorded::default() }], None, true);
        assert!(silent.iter().any(NotJudged::decides), "a process without data");
    }

    fn remedies_of_ended(failures: &[&str]) -> Vec<String> {
        let remedies = [Remedy::Longer, Remedy::MoreEpochs, Remedy::MarkSteps, "measure it".into(), Remedy::None];
        let gap =
            |remedy| NotJudged { kind: FindingKind::Leak, gap: Gap::Whole, reason: "needs more".to_owned(), remedy };
        let mut gaps = remedies.map(gap);
        of_ended(&mut gaps, failures.iter().copied());
        gaps.into_iter().filter_map(|gap| gap.remedy.sentence()).collect()
    }

    #[test]
    fn a_job_that_has_ended_is_not_told_to_run_longer() {
        let mark = Remedy::MarkSteps.sentence().unwrap();
        let expected = ["run it again, for longer", "run it again, for more epochs", mark.as_str(), "measure it"];
        assert_eq!(remedies_of_ended(&[]), expected);
        assert_eq!(remedies_of_ended(&["KeyboardInterrupt", "killed by signal 15"]), expected, "a person ended it");
    }

    #[test]
    fn a_job_that_failed_is_repaired_first() {
        let repair = "the run failed (ValueError) before enough was seen: repair that first";
        let remedies = remedies_of_ended(&["killed by signal 15", "ValueError: shapes"]);
        assert_eq!(remedies, [repair, repair, repair, "measure it"]);
        assert!(remedies_of_ended(&["killed by signal 9"])[0].contains("(SIGKILL)"));
    }

    #[test]
    fn ranks_that_were_not_recorded_decide() {
        let gaps = not_judged(&[recorded(0, 9, 0), recorded(2, 9, 0)], Some(4), true);
        assert_eq!(gaps.len(), 1, "{gaps:?}");
        assert!(gaps[0].reason == "2 of 4 ranks were not recorded" && gaps[0].decides());
        assert!(not_judged(&[recorded(0, 9, 0)], Some(4), false).is_empty(), "a question about one rank");
        assert!(not_judged(&[recorded(0, 9, 0)], Some(1), true).is_empty());
    }

    #[test]
    fn without_events_what_only_events_show_is_not_judged() {
        assert_eq!(whole(&not_judged(&[recorded(0, 0, 0)], None, true)), BY_EVENTS);
        assert_eq!(whole(&not_judged(&[recorded(0, 9, 9)], None, true)), BY_EVENTS);
        let some = not_judged(&[recorded(0, 9, 4)], None, true);
        assert!(whole(&some).is_empty() && some.len() == BY_EVENTS.len());
    }
}

//! What the record of a job does not contain, regardless of the verdict on the rest: processes that were never
//! recorded, events that expired, nothing at all.
//!
//! Guarantees: a job without any data lists every kind of finding as not judged. Refuses to guess what the missing part
//! would have shown.

use std::collections::BTreeSet;

use memctl_model::{FindingKind, Gap, NotJudged};

/// What is stored of one process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Recorded {
    /// Its rank.
    pub rank: u32,
    /// Allocator events that were stored.
    pub events: u64,
    /// Of these gone by retention.
    pub events_expired: u64,
    /// Whether anything shows its memory: a table, a sample.
    pub is_known: bool,
}

/// What a job lacks that goes on: steps, epochs, windows.
pub const WAIT: &str = "let it run longer";
/// The same of one that lacks epochs alone.
pub const WAIT_EPOCHS: &str = "let it run for more epochs";
/// What gives a job epochs.
pub const MARK_EPOCHS: &str = "mark each epoch: `with memctl_agent.epoch(number):`";

/// Of a job that has ended: what waiting would remedy takes another run.
pub fn of_ended(gaps: &mut [NotJudged]) {
    for gap in gaps {
        match gap.remedy.as_str() {
            WAIT => gap.remedy = "run it again, for longer".to_owned(),
            WAIT_EPOCHS => gap.remedy = "run it again, for more epochs".to_owned(),
            _ => {}
        }
    }
}

/// Whether nothing at all is known of these processes' memory.
#[must_use]
pub fn is_nothing(processes: &[Recorded]) -> bool {
    !processes.iter().any(|process| process.is_known || process.events > 0)
}

/// Kinds that only single events show.
pub const BY_EVENTS: [FindingKind; 3] = [FindingKind::Fragmentation, FindingKind::Churn, FindingKind::Oom];

/// What cannot have been judged. `world` is the number of ranks that the job should have; `whole` whether the question was
/// about all of them.
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
        BY_EVENTS.map(|kind| NotJudged { kind, gap, reason: reason.to_owned(), remedy: remedy.to_owned() })
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

/// Nothing is known of the job, so nothing was judged.
fn nothing(never_began: bool) -> Vec<NotJudged> {
    let reason = if never_began { "nothing was recorded" } else { "nothing of its memory was recorded" };
    let remedy = "start the job with `memctl run -- CMD`; if that records nothing, see `memctl doctor`";
    let kinds = FindingKind::ALL.into_iter().filter(|kind| *kind != FindingKind::Unjudged);
    kinds
        .map(|kind| NotJudged { kind, gap: Gap::Whole, reason: reason.to_owned(), remedy: remedy.to_owned() })
        .collect()
}

fn missing_ranks(processes: &[Recorded], world: u32) -> Option<NotJudged> {
    let there: BTreeSet<u32> = processes.iter().map(|process| process.rank).collect();
    let missing = u64::from(world).saturating_sub(there.len() as u64);
    let reason = match missing {
        0 => return None,
        1 => format!("1 of {world} ranks was not recorded"),
        more => format!("{more} of {world} ranks were not recorded"),
    };
    let remedy =
        "record every rank: start the job with `memctl run` on each host, or import every rank's snapshot".to_owned();
    Some(NotJudged { kind: FindingKind::RankLost, gap: Gap::Whole, reason, remedy })
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
        assert!(gaps.iter().all(|not| not.gap == Gap::Whole && !not.remedy.is_empty()));
        assert!(gaps.iter().any(NotJudged::decides));
        let silent = not_judged(&[Recorded { rank: 0, ..Recorded::default() }], None, true);
        assert!(silent.iter().any(NotJudged::decides), "a process without data");
    }

    #[test]
    fn a_job_that_has_ended_is_not_told_to_run_longer() {
        let gap = |remedy: &str| NotJudged {
            kind: FindingKind::Leak,
            gap: Gap::Whole,
            reason: "needs more".to_owned(),
            remedy: remedy.to_owned(),
        };
        let mut gaps = [gap(WAIT), gap(WAIT_EPOCHS), gap("measure it")];
        of_ended(&mut gaps);
        let remedies = gaps.map(|gap| gap.remedy);
        assert_eq!(remedies, ["run it again, for longer", "run it again, for more epochs", "measure it"]);
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

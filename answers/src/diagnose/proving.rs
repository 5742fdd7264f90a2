//! The last question: how to prove that a change worked, or that a good job stays so.
//!
//! Guarantees: a condition is proposed only if this job's own data can decide it; for a job without findings, only
//! conditions that it fulfils itself. Does not use figures that teardown left behind: peaks are compared.

use memctl_analysis::proof_limits;
use memctl_model::JobState;

use super::remedy::{Proof, Remedy};
use super::{Question, Usage};
use crate::Job;
use crate::assert::{Outcome, Terms, Verdicts, settled_after};
use crate::conditions::Condition;
use crate::finding::Finding;
use crate::naming::command;
use crate::report::Report;
use crate::verdict::Verdict;

const TITLE: &str = "How to prove it?";

/// See the module.
pub(super) fn proof(
    report: &Report,
    main: Option<&Finding>,
    remedy: &Remedy,
    usage: Option<&Usage>,
    flags: &str,
) -> Question {
    if report.ranks.is_empty() {
        return Question::new(TITLE, vec!["There is nothing to prove.".to_owned()]);
    }
    // A container with a bound that has room needs no change.
    let fills = report.verdict.as_ref().is_some_and(Verdict::fits);
    if (main.is_none() || fills) && !report.failed() {
        return keep(report, usage, flags);
    }
    let fixed = named_after(&report.job, "-fixed");
    let conditions = match remedy.proof {
        Proof::NoLeak => decidable(report, &["no-leak", "stable"], settling(report)),
        Proof::NoChain => decidable(report, &["no-leak"], None),
        Proof::Stable => decidable(report, &["stable"], settling(report)),
        Proof::LessFragmented => less_fragmented(report, usage),
        Proof::PeakFits => fits(report, usage),
        Proof::NoFindings | Proof::Ranks => None,
    };
    let check = match (conditions, remedy.proof) {
        (Some(conditions), _) => command("assert", &fixed, &conditions, flags),
        (None, Proof::Ranks) => command("ranks", &fixed, "", flags),
        (None, _) => command("query", &fixed, "--fail-on warning", flags),
    };
    let run = command("run", &fixed, "", flags);
    Question { commands: vec![format!("{run} -- ..."), check], ..Question::new(TITLE, judgeable(report)) }
}

/// Advice to follow first if the run after the change could not be analysed either.
fn judgeable(report: &Report) -> Vec<String> {
    let Some(not) = report.scope.inconclusive() else { return Vec::new() };
    let remedy = not.remedy.as_deref().map_or(String::new(), |remedy| format!(": {remedy}"));
    vec![format!("The next run must be recorded so that it can be judged{remedy}.")]
}

/// A job without findings: the conditions that a similar run has to fulfil, as this one does.
fn keep(report: &Report, usage: Option<&Usage>, flags: &str) -> Question {
    if !judgeable(report).is_empty() {
        // This run cannot prove anything any more.
        let again = named_after(&report.job, "-again");
        let commands =
            vec![format!("{} -- ...", command("run", &again, "", flags)), command("assert", &again, "no-leak", flags)];
        return Question { commands, ..Question::new(TITLE, judgeable(report)) };
    }
    if report.verdict.as_ref().is_some_and(|verdict| verdict.is_open() || verdict.is_leak()) {
        return stopped(report, flags);
    }
    let peak = usage.and_then(|usage| usage.peak_allocated_bytes).filter(|&bytes| bytes > 0);
    let peak = peak.map(|bytes| format!("peak<={}", in_mib(proof_limits::peak_limit(bytes))));
    let wanted = [Some("no-leak".to_owned()), Some("stable".to_owned()), peak].into_iter().flatten();
    let after = settled_after(report);
    let holds = |condition: &String| verdict(report, condition, after, OpenGrowth::Counts) == Some(Outcome::Holds);
    let conditions: Vec<String> = wanted.filter(holds).collect();
    if conditions.is_empty() {
        return Question::new(TITLE, vec!["This run sets no condition that the next one could be held to.".to_owned()]);
    }
    let conditions = typed(&conditions, after);
    let texts = vec!["To keep it that way, run this in CI after a run of the same kind:".to_owned()];
    // By its name a job means its newest run, and not this one.
    let later = named_after(&report.job, "");
    Question { commands: vec![command("assert", &later, &conditions, flags)], ..Question::new(TITLE, texts) }
}

/// A job that grows without a finding: the conditions that show whether a change stopped the growth.
fn stopped(report: &Report, flags: &str) -> Question {
    let fixed = named_after(&report.job, "-fixed");
    let conditions = decidable(report, &["no-leak", "stable"], settling(report));
    let check = match conditions {
        Some(conditions) => command("assert", &fixed, &conditions, flags),
        None => command("query", &fixed, "--fail-on growing", flags),
    };
    let texts = vec!["If this memory is not meant to stay, record a run with the change and check it:".to_owned()];
    let run = command("run", &fixed, "", flags);
    Question { commands: vec![format!("{run} -- ..."), check], ..Question::new(TITLE, texts) }
}

/// The epoch for `stable --after-epoch`: the second one, if enough epochs for a leak follow it.
fn settling(report: &Report) -> Option<u32> {
    let ends = report.ranks.iter().map(|rank| rank.epoch_ends.len()).min().unwrap_or(0);
    (ends > proof_limits::LEAK_ENDS_MIN).then_some(1)
}

/// The conditions that this job's data can decide. A condition that fails now shows what has to be fixed.
fn decidable(report: &Report, conditions: &[&str], after: Option<u32>) -> Option<String> {
    let can_tell = |condition: &&&str| {
        verdict(report, condition, after, OpenGrowth::Accepted).is_some_and(|verdict| verdict != Outcome::Inconclusive)
    };
    let decided: Vec<String> = conditions.iter().filter(can_tell).map(|condition| (*condition).to_owned()).collect();
    (!decided.is_empty())
        .then(|| typed(&decided, after.filter(|_| decided.iter().any(|condition| condition == "stable"))))
}

fn less_fragmented(report: &Report, usage: Option<&Usage>) -> Option<String> {
    let usage = usage?;
    let allocated = usage.peak_allocated_bytes.filter(|&bytes| bytes > 0)?;
    let ratio = proof_limits::ratio_limit(usage.peak_reserved_bytes? as f64 / allocated as f64);
    decidable(report, &[&format!("reserved/allocated<{ratio:.2}")], None)
}

fn fits(report: &Report, usage: Option<&Usage>) -> Option<String> {
    // After a failed request, a run without one is the proof: the change may leave the cache as large as the device.
    let has_failed = verdict(report, "no-oom", None, OpenGrowth::Accepted) == Some(Outcome::DoesNotHold);
    let of_device = usage.and_then(|usage| usage.device_total_bytes).filter(|_| !has_failed);
    let peak = of_device.map(|total| format!("peak_reserved<={}", in_mib(proof_limits::device_limit(total))));
    let exceeded = peak.filter(|peak| verdict(report, peak, None, OpenGrowth::Accepted) == Some(Outcome::DoesNotHold));
    // Growth with an open cause would leave `no-leak` undecided after the change, too.
    let is_decided = verdict(report, "no-leak", None, OpenGrowth::Counts) != Some(Outcome::Inconclusive);
    let leak = is_decided.then_some("no-leak");
    let conditions: Vec<&str> = ["no-oom"].into_iter().chain(leak).chain(exceeded.as_deref()).collect();
    decidable(report, &conditions, None)
}

/// Whether growth with an open cause leaves `no-leak` undecided, as in the printed command, or is accepted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OpenGrowth {
    Counts,
    Accepted,
}

/// The outcome of a condition on this job, even if it still runs or ended badly.
fn verdict(report: &Report, condition: &str, after: Option<u32>, open: OpenGrowth) -> Option<Outcome> {
    let condition: Condition = condition.parse().ok()?;
    // The figures of a job that ended badly count as well; growth that could not be analysed stays undecided.
    let mut report = report.clone();
    report.job.state = JobState::Finished;
    report.completeness.exact = true;
    report.job.world_size = None;
    let allow_suspected = open == OpenGrowth::Accepted;
    let terms = Terms { after_epoch: after, allow_suspected, ..Terms::default() };
    let verdicts = Verdicts::new(report, &[condition], &terms, None);
    verdicts.conditions.first().map(|checked| checked.verdict)
}

/// The conditions, quoted for a shell.
fn typed(conditions: &[String], after: Option<u32>) -> String {
    let quoted = |condition: &String| match condition.contains('<') {
        true => format!("'{condition}'"),
        false => condition.clone(),
    };
    let mut line = conditions.iter().map(quoted).collect::<Vec<_>>().join(" ");
    if let Some(epoch) = after {
        line.push_str(&format!(" --after-epoch {epoch}"));
    }
    line
}

/// Whole mebibytes, rounded up, in the notation of conditions.
fn in_mib(bytes: u64) -> String {
    format!("{}MiB", bytes.div_ceil(1 << 20))
}

/// The job's name with a suffix such as `-fixed`, cut to the length limit of names.
fn named_after(job: &Job, suffix: &str) -> Job {
    let mut id = job.name.clone();
    let mut most = memctl_model::limits::LABEL_BYTES_MAX.saturating_sub(suffix.len()).min(id.len());
    while !id.is_char_boundary(most) {
        most -= 1;
    }
    id.truncate(most);
    Job { id: format!("{id}{suffix}"), ..job.clone() }
}

#[cfg(test)]
mod tests {
    use memctl_model::JobState;

    use super::*;
    use crate::Completeness;
    use crate::report::Rank;

    #[test]
    fn a_job_that_grows_for_an_open_cause_is_no_example_to_hold_others_to() {
        let report = |kind: &str, cause: Option<&str>| Report {
            job: Job { name: "gpt2".into(), state: JobState::Finished, ..Job::default() },
            completeness: Completeness { exact: true, ..Completeness::default() },
            ranks: vec![Rank::default()],
            verdict: Some(Verdict { kind: kind.into(), cause: cause.map(str::to_owned), ..Verdict::default() }),
            ..Report::default()
        };
        let kept = |kind, cause| keep(&report(kind, cause), None, "");
        let open = kept("growing", Some("open"));
        assert!(open.answer[0].starts_with("If this memory is not meant to stay"), "{:?}", open.answer);
        assert!(open.commands[0].contains("--job gpt2-fixed"), "{:?}", open.commands);
        let steady = kept("steady", None);
        assert!(steady.answer[0].starts_with("To keep it that way"), "{:?}", steady.answer);
    }
}

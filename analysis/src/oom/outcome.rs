//! Failures on a device that a leak filled: the failed request is the leak's outcome and is reported in the leak's own
//! finding.
//!
//! Guarantees: there is one finding per cause; wasted memory is a figure in it. A leak is blamed only if the request
//! would have been served without it, by the arithmetic of that request, and if the leak is not tiny beside the other
//! live memory. A leak is not blamed for memory of other ranks, of other processes, or in holes between other blocks.

use std::fmt::Write as _;

use memctl_model::{Finding, FindingKind, Frame, Severity};

use super::demand::Since;
use super::finding::{evidence, explanation};
use super::{OomCause, Report};
use crate::deaths::AfterOom;
use crate::fragmentation::RankFragmentation;
use crate::fragmentation::judge::FragmentationCause as Idle;
use crate::wording::{bytes, moment, ranks, requested_in};

/// A leak with less than this share of the memory in use did not fill the device.
const SHARE_MIN: f64 = 0.05;
/// A suspected leak with at least this share of the memory in use counts as a leak when the device is full.
const SUSPECTED_SHARE_MIN: f64 = 0.25;

/// The leak that caused a failed request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaked {
    /// Bytes that had leaked.
    pub bytes: u64,
    /// The kind of the finding that reports it.
    pub kind: FindingKind,
    /// Its place.
    pub site: Option<Frame>,
    /// A text that distinguishes it from other findings without a place.
    pub subject: String,
}

impl Leaked {
    fn of(finding: &Finding) -> Self {
        let Finding { kind, site, subject, .. } = finding;
        Self { bytes: held(finding), kind: *kind, site: site.clone(), subject: subject.clone() }
    }

    fn is(&self, finding: &Finding) -> bool {
        (self.kind, &self.site, &self.subject) == (finding.kind, &finding.site, &finding.subject)
    }
}

/// The leaked bytes of a finding. Other live memory at the same place does not count.
fn held(finding: &Finding) -> u64 {
    finding.live_bytes.unwrap_or(0)
}

/// Whether a finding reports a failed request or a death by out of memory.
#[must_use]
pub fn tells(finding: &Finding) -> bool {
    finding.kind == FindingKind::Oom || finding.filled_device
}

/// Finds the leak that caused each failed request; `findings` are those about the same job.
pub fn blame(reports: &mut [Report], findings: &[Finding]) {
    // What was caught is no outcome: the leak goes on.
    for report in reports.iter_mut().filter(|report| !report.facts.went_on) {
        let rank = report.facts.rank;
        let used = report.facts.at_request.active_bytes.max(1) as f64;
        let own = findings.iter().filter(|finding| finding.kind.fills() && finding.ranks.contains(&rank));
        let grave = own.filter(|finding| {
            let share = held(finding) as f64 / used;
            let is_doubtful = finding.severity == Severity::Info && !has_accumulated(report, finding.site.as_ref());
            share >= if is_doubtful { SUSPECTED_SHARE_MIN } else { SHARE_MIN }
        });
        let leaks: Vec<&Finding> = grave.collect();
        let all = leaks.iter().fold(0_u64, |sum, leak| sum.saturating_add(held(leak)));
        let Some(most) = leaks.into_iter().max_by_key(|leak| held(leak)) else { continue };
        let leaked = Leaked { bytes: all, ..Leaked::of(most) };
        if is_outcome(report, &leaked) {
            report.cause = OomCause::Leak;
            report.leaked = Some(leaked);
        }
    }
}

/// Minimum share of the memory that accumulated over the last steps, for the line that a leak's finding names. The leak
/// and the accumulated memory are then one.
const SAME_SHARE_MIN: f64 = 0.2;

/// Whether a leak is at least half of the memory that accumulated from step to step, or is more than what came in this
/// phase.
fn is_accumulated(report: &Report, leaked: &Leaked) -> bool {
    let Some(accumulated) = &report.facts.demand.accumulated else { return true };
    let bytes = match accumulated.since {
        Since::Steps(_) => accumulated.beyond_bytes / 2,
        Since::StepEnd(_) | Since::Evaluation => accumulated.beyond_bytes,
    };
    leaked.bytes >= bytes || has_accumulated(report, leaked.site.as_ref())
}

/// Whether a leak at this line is the memory that accumulated from step to step. The finding names only one of the lines
/// that allocated it, and full memory confirms a suspicion.
fn has_accumulated(report: &Report, site: Option<&Frame>) -> bool {
    let accumulated = report.facts.demand.accumulated.as_ref();
    let of_steps = accumulated.filter(|accumulated| matches!(accumulated.since, Since::Steps(_)));
    of_steps.is_some_and(|accumulated| {
        let own = accumulated.lines.iter().filter(|line| line.site.is_some() && line.site.as_ref() == site);
        let bytes = own.fold(0_u64, |sum, line| sum.saturating_add(line.bytes));
        bytes as f64 >= SAME_SHARE_MIN * accumulated.bytes.max(1) as f64
    })
}

/// Whether the request would have been served without the leak, and no larger cause prevented it.
fn is_outcome(report: &Report, leaked: &Leaked) -> bool {
    let alone = report.room_bytes.saturating_add(leaked.bytes) >= report.segment_bytes;
    let with_the_rest = report.missing_bytes > 0 && leaked.bytes >= report.missing_bytes;
    let facts = &report.facts;
    let larger = match report.cause {
        // If the leak's blocks lie beside the holes, the holes are the leak's own.
        OomCause::Fragmentation => {
            let beside = facts.stranding_blocks.first().and_then(|holder| holder.stack.site());
            let own = leaked.site.is_some() && beside == leaked.site.as_ref();
            !own && report.stranded_bytes > leaked.bytes
        }
        OomCause::Neighbour => facts.others_bytes.unwrap_or(0) > leaked.bytes,
        OomCause::OutsideAllocator => report.outside_bytes.unwrap_or(0) > leaked.bytes,
        OomCause::Accumulation => !is_accumulated(report, leaked),
        OomCause::Capacity | OomCause::Leak => false,
    };
    (alone || with_the_rest) && !larger
}

/// Reports each failed request that a leak caused in the leak's finding. Findings that the same cause explains are
/// removed: predictions that came true, and idle memory between leaked blocks.
pub fn tell(findings: &mut Vec<Finding>, reports: &[Report], known: usize) {
    for finding in findings.iter_mut() {
        let of: Vec<&Report> =
            reports.iter().filter(|report| report.leaked.as_ref().is_some_and(|leaked| leaked.is(finding))).collect();
        if let Some(&first) = of.iter().min_by_key(|report| (report.facts.time_ns, report.facts.rank)) {
            let mut numbers: Vec<u32> = of.iter().map(|report| report.facts.rank).collect();
            numbers.sort_unstable();
            numbers.dedup();
            ended(finding, first, &numbers, known);
        }
    }
    // One failure gives one warning: the finding about fragmentation describes the same cause.
    let is_of_packing =
        |rank: &u32| reports.iter().any(|report| report.facts.rank == *rank && report.cause == OomCause::Fragmentation);
    for finding in findings.iter_mut().filter(|finding| finding.kind == FindingKind::Fragmentation) {
        if !finding.ranks.is_empty() && finding.ranks.iter().all(is_of_packing) {
            finding.severity = Severity::Info;
        }
    }
    findings.retain(|finding| {
        let failed = |rank: &u32| reports.iter().any(|report| report.facts.rank == *rank);
        let leaked = |rank: &u32| reports.iter().any(|report| report.facts.rank == *rank && report.leaked.is_some());
        match finding.kind {
            FindingKind::NearOom => !finding.ranks.iter().all(failed),
            // Reserved memory grew because the live memory in it grew.
            FindingKind::FragmentationGrowth => !finding.ranks.iter().all(leaked),
            _ => true,
        }
    });
}

fn ended(finding: &mut Finding, first: &Report, numbers: &[u32], known: usize) {
    let facts = &first.facts;
    let place = requested_in(&facts.stack);
    finding.severity = Severity::Critical;
    finding.confidence = finding.confidence.max(0.95);
    (finding.time_to_oom_seconds, finding.epochs_to_oom) = (None, None);
    // The predicted failure has happened, and the leak is no longer only suspected.
    (finding.horizon, finding.is_suspected, finding.filled_device) = (None, false, true);
    // Writing to a `String` cannot fail.
    let _ = write!(
        finding.title,
        "; {} ran out of memory{}, when {} were requested in {place}",
        ranks(numbers, known),
        moment(facts.epoch, facts.step),
        bytes(facts.rounded_bytes),
    );
    if !finding.explanation.is_empty() {
        finding.explanation.push(' ');
    }
    finding.explanation.push_str(&explanation(first));
    let leaked = first.leaked.as_ref().map_or(0, |leaked| leaked.bytes);
    let _ = write!(
        finding.explanation,
        " Without the {} that had leaked, the request would have been served; {} were free beside live blocks.",
        bytes(leaked),
        bytes(first.stranded_bytes),
    );
    let details = evidence(first).into_iter().filter(|(name, _)| name != "cause");
    finding.evidence.extend(details.map(|(name, value)| (format!("oom_{name}"), value)));
}

/// Adds the consequences to the finding that reports a rank's out of memory.
pub fn add_consequences(findings: &mut [Finding], after: &[AfterOom]) {
    for AfterOom { rank, sentence } in after {
        let reporting = findings.iter_mut().find(|finding| tells(finding) && finding.ranks.contains(rank));
        if let Some(finding) = reporting {
            finding.explanation.push(' ');
            finding.explanation.push_str(sentence);
        }
    }
}

/// Removes the severity of fragmentation on ranks that a leak filled: free memory beside leaked blocks is a part of
/// the leak.
pub fn excuse(fragmentation: &mut [RankFragmentation], reports: &[Report], findings: &[Finding]) {
    for rank in fragmentation {
        let outcome = reports.iter().any(|report| report.facts.rank == rank.rank && report.leaked.is_some());
        let beside = rank.holders.first().and_then(|holder| holder.stack.site());
        let leak_beside = beside.is_some()
            && rank.cause.is_some_and(|(cause, _)| cause == Idle::LongLivedBlocks)
            && findings.iter().any(|finding| {
                finding.kind.fills()
                    && finding.severity >= Severity::Warning
                    && finding.ranks.contains(&rank.rank)
                    && finding.site.as_ref() == beside
            });
        let failed = rank.severity == Some(Severity::Critical);
        if leak_beside || (outcome && (failed || rank.cause.is_some_and(|(cause, _)| cause == Idle::LongLivedBlocks))) {
            rank.severity = None;
        }
    }
}

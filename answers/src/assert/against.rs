//! `--against JOB`: the job must not be worse than another job, by peaks and by findings.

use memctl_analysis::proof_limits;
use memctl_model::finding::Growth;
use memctl_model::{FindingKind, HumanBytes};

use super::{ALLOCATED, Checked, Outcome, RESERVED, Terms, concerning, not_judged, peak, verdict};
use crate::conditions::Limit;
use crate::finding::Finding;
use crate::judged::NotJudged;
use crate::report::{Rank, Report};

/// A figure of a rank.
type Read = fn(&Rank) -> Option<u64>;

/// Checks the conditions that follow from another job.
pub(super) fn checks(report: &Report, other: &Report, terms: &Terms) -> Vec<Checked> {
    let name = &other.job.id;
    let peaks: [(&str, Read, _); 2] = [
        ("peak", |rank| rank.peak_allocated_bytes, ALLOCATED),
        ("peak_reserved", |rank| rank.peak_reserved_bytes, RESERVED),
    ];
    let mut checks: Vec<Checked> = peaks
        .into_iter()
        .map(|(figure, read, within)| {
            let condition = format!("{figure} against {name}");
            let highest = other.ranks.iter().filter_map(read).max().filter(|&bytes| bytes > 0);
            let Some(theirs) = highest else {
                let because = format!("no peak was recorded of {name}");
                return Checked { condition, ..verdict(Outcome::Inconclusive, because) };
            };
            let limit = Limit { most: proof_limits::peak_limit(theirs), inclusive: true };
            let mut checked = Checked { condition, ..peak(report, limit, terms, read, within) };
            checked.because = format!("{}; {name} has {}", checked.because, HumanBytes::of(theirs));
            checked
        })
        .collect();
    checks.push(Checked { condition: format!("findings against {name}"), ..findings(report, other, terms) });
    checks
}

/// Whether the job has a finding that the other job does not have.
fn findings(report: &Report, other: &Report, terms: &Terms) -> Checked {
    // Ids differ between jobs, so findings are compared by kind and place.
    let place = |finding: &Finding| {
        let site = finding.site.as_ref().map(|site| (site.frame.function.clone(), site.frame.file.clone()));
        (finding.kind.clone(), site, finding.subject.clone())
    };
    let known: Vec<_> = other.findings.iter().map(place).collect();
    let new = concerning(report, terms, |_| true).into_iter().filter(|finding| finding.hurts());
    let new: Vec<&Finding> = new.filter(|finding| !known.contains(&place(finding))).collect();
    match new.first() {
        Some(worst) => {
            let findings = new.iter().map(|finding| finding.id.clone()).collect();
            Checked { findings, ..verdict(Outcome::DoesNotHold, format!("new: {}", worst.title)) }
        }
        None => not_judged(report, terms)
            .or_else(|| less_judged(report, other, terms))
            .unwrap_or_else(|| verdict(Outcome::Holds, format!("no finding that it does not have{}", beside(report)))),
    }
}

/// Kinds that were analysed in the other job and not in this one. The absence of such findings in this job means
/// nothing.
fn less_judged(report: &Report, other: &Report, terms: &Terms) -> Option<Checked> {
    let only_there = |not: &&NotJudged| {
        let is_judged_there = |kind| other.scope.has_judged(kind) && !is_slow(kind);
        not.is_whole() && not.known_kind().is_some_and(is_judged_there) && !terms.allow_incomplete
    };
    let not = report.scope.not_judged.iter().find(only_there)?;
    Some(verdict(Outcome::Inconclusive, not_judged_words(not)))
}

/// Whether a kind is about growth beside live tensors. Such growth is visible only over many measurements or epochs,
/// and a few seconds decide whether a short run has them. So these kinds are named but decide nothing.
fn is_slow(kind: FindingKind) -> bool {
    kind.growth() == Some(Growth::Beside)
}

/// ` (host memory not judged: needs 6 measurements, found 5)`.
fn beside(report: &Report) -> String {
    let is_of_it = |not: &&NotJudged| not.is_whole() && not.known_kind().is_some_and(is_slow);
    let said: Vec<String> = report.scope.not_judged.iter().filter(is_of_it).map(not_judged_words).collect();
    if said.is_empty() { String::new() } else { format!(" ({})", said.join("; ")) }
}

fn not_judged_words(not: &NotJudged) -> String {
    format!("{} not judged: {}", not.subject(), not.reason)
}

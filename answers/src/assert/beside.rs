//! Growth beside live tensors, for which short runs have too few measurements.

use memctl_model::FindingKind;
use memctl_model::finding::Growth;

use crate::judged::NotJudged;
use crate::report::Report;

/// Whether a kind is about growth beside live tensors. Such growth is visible only over many measurements or epochs,
/// and a few seconds decide whether a short run has them. So these kinds are named but decide nothing.
pub(super) fn is_slow(kind: FindingKind) -> bool {
    kind.growth() == Some(Growth::Beside)
}

/// ` (host memory not judged: needs 6 measurements, found 5)`.
pub(super) fn beside_tensors(report: &Report) -> String {
    let is_of_it = |not: &&NotJudged| not.is_whole() && not.known_kind().is_some_and(is_slow);
    let said: Vec<String> = report.scope.not_judged.iter().filter(is_of_it).map(not_judged_words).collect();
    if said.is_empty() { String::new() } else { format!(" ({})", said.join("; ")) }
}

/// What was not judged, and why.
pub(super) fn not_judged_words(not: &NotJudged) -> String {
    format!("{} not judged: {}", not.subject(), not.reason)
}

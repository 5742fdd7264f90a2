//! Answers `diagnose`: a job's report, with the live memory of the rank that it is about, as a note.

use memctl_answers::advice::{Advice, is_called_for};
use memctl_answers::advising::Subject;
use memctl_answers::diagnose::{Diagnosis, rank_of};
use memctl_answers::dossier::same_job;
use memctl_answers::report::{Rank, Report};
use memctl_model::FindingKind;
use memctl_proto::v1;
use memctl_proto::v1::ledger_request::Moment;

use super::sources::Sources;
use super::{advice, fragmentation, ledger, report, sites};
use crate::job_data::error::ReadError;

/// Answers a request for a diagnosis.
pub(super) async fn diagnosis(from: &Sources, request: v1::DiagnosisRequest) -> Result<Diagnosis, ReadError> {
    let v1::DiagnosisRequest { selection, replay, flags } = request;
    let Sources { store, streams, judge, .. } = from;
    let report = v1::ReportRequest { selection: selection.clone() };
    let report = report::report(store, streams, judge, report).await?;
    let Some(rank) = rank_of(&report) else { return Ok(Diagnosis::new(report, None, None, None, &flags)) };
    // Only one rank is shown, because several nearly equal tables do not help.
    let one = same_job(selection.unwrap_or_default(), &report, rank);
    let replay = match replay && is_called_for(&report) {
        true => Some(advised(from, &report, rank, (&one, &flags)).await),
        false => None,
    };
    let of = || Some(one.clone());
    let sites = sites::sites(&**store, streams, v1::SitesRequest { selection: of(), moment: None }).await?;
    // If the events of the peak are no longer stored, the note has no peak.
    let peak = v1::LedgerRequest { selection: of(), moment: Some(Moment::Peak(true)), blocks: false };
    let peak = ledger::ledger(&**store, streams, peak.into()).await.ok();
    Ok(Diagnosis::new(report, Some(&sites), peak.as_ref(), replay, &flags))
}

/// The effect of other allocator settings on the rank that the note is about.
async fn advised(from: &Sources, report: &Report, rank: &Rank, (one, flags): (&v1::Selection, &str)) -> Advice {
    let is_failed = report.findings.iter().any(|finding| finding.known_kind() == Some(FindingKind::Oom));
    let (mut failed, mut fragmented) = (None, None);
    if is_failed {
        failed = advice::failure(from, one, rank.rank, &rank.process).await;
    } else {
        let Sources { store, streams, judge, .. } = from;
        let answer = fragmentation::fragmentation(store, streams, judge, one).await.ok();
        let mut ranks = answer.into_iter().flat_map(|answer| answer.ranks);
        fragmented = ranks.find(|found| found.rank == rank.rank && found.process == rank.process);
    }
    let subject = Subject::of_rank(rank, failed.as_ref(), fragmented.as_ref());
    from.advice((one, flags), subject).await
}

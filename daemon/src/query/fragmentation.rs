//! Answers `frag`: how each rank's free memory is divided, which blocks pin it, whether a request would fail, and the
//! driver calls.

use std::sync::Arc;

use memctl_analysis::churn::{self, RankChurn};
use memctl_analysis::fragmentation::judge::Holder;
use memctl_analysis::fragmentation::{FreeList, Picture, RankFragmentation};
use memctl_answers::finding::{Finding, Site};
use memctl_answers::frag::{self, Churn, Fragmentation, Rank, Share};
use memctl_answers::{SCHEMA, finite};
use memctl_model::{FindingKind, Gap, Remedy, SegmentKind};
use memctl_proto::v1;

use super::answer;
use super::answer::frames;
use super::scope::Scope;
use crate::job_data::error::ReadError;
use crate::job_data::job::{find, with_all_processes};
use crate::judge::Judge;
use crate::store::Store;
use crate::streams::Streams;

/// Answers a fragmentation request.
pub(super) async fn fragmentation(
    store: &Arc<dyn Store>,
    streams: &Streams,
    judge: &Judge,
    selection: &v1::Selection,
) -> Result<Fragmentation, ReadError> {
    let found = Arc::new(find(&**store, selection).await?);
    let (explained, findings) =
        judge.explained(&found, &with_all_processes(&**store, &found, selection).await?).await?;
    let reports = explained.fragmentation.iter().zip(&explained.churn).zip(&explained.analysed);
    let ranks = reports.map(|((report, churn), &session)| {
        let process = found.process(session).name.clone();
        Rank { process, ..answer(report, churn) }
    });
    let about = |kind| matches!(kind, FindingKind::Fragmentation | FindingKind::Churn);
    let findings = findings.iter().filter(|finding| about(finding.kind));
    let kinds = [FindingKind::Fragmentation, FindingKind::Churn];
    let mut scope = Scope::new(&found, &kinds, selection.ranks.is_empty() && selection.processes.is_empty());
    if explained.fragmentation.is_empty() {
        let remedy = "record more steps, or keep more events (--retain-bytes, --retain-age)";
        let expired = found.sessions.iter().any(|session| session.expired_events > 0);
        let reason = match expired {
            true => "retention removed events that replaying the others needs",
            false => "no complete step is stored",
        };
        scope.gap(&kinds, Gap::Whole, reason, remedy);
    } else {
        if explained.left_out > 0 {
            scope.gap(&kinds, Gap::Part, "ranks that stand out less were not judged", "select them with --rank");
        }
        if let Some(steps) = churn::too_few(&explained.churn) {
            let reason = format!("needs {} steps in steady state, found {steps}", churn::STEPS_MIN);
            scope.gap(&[FindingKind::Churn], Gap::Whole, &reason, Remedy::Longer);
        }
    }
    if !found.goes_on(streams) {
        scope.ended(&found);
    }
    Ok(Fragmentation {
        schema: SCHEMA,
        job: answer::found_job(&found, streams),
        completeness: found.completeness(streams, &**store).into(),
        ranks: ranks.collect(),
        findings: findings.map(|finding| Finding::new(finding, &found.job.name)).collect(),
        ranks_left_out: explained.left_out,
        scope: scope.into_answer(),
        ..Fragmentation::default()
    })
}

fn answer(report: &RankFragmentation, churn: &RankChurn) -> Rank {
    let Picture {
        reserved_bytes,
        active_bytes,
        allocated_bytes,
        requested_bytes,
        empty_bytes,
        stranded_bytes,
        holes,
        largest_hole_bytes,
        largest_free_bytes,
        segments,
        partly_used_segments,
        ..
    } = report.picture;
    Rank {
        rank: report.rank,
        process: String::new(),
        device: u32::from(report.device),
        epoch: report.epoch,
        step: report.step,
        reserved_bytes,
        active_bytes,
        allocated_bytes,
        requested_bytes,
        empty_segment_bytes: empty_bytes,
        stranded_bytes,
        holes,
        largest_hole_bytes,
        largest_free_bytes,
        segments,
        partly_used_segments,
        typical_step_bytes: report.typical_bytes,
        highest_step_bytes: report.typical_bytes.map(|_| report.highest_bytes),
        steps: report.steps,
        unused_bytes: report.unused_bytes,
        varying_share: report.varying_share.and_then(finite),
        largest_request_bytes: report.largest_request.map(|request| request.rounded_bytes),
        largest_usable_bytes: report.largest_usable_bytes,
        room_bytes: report.room_bytes,
        would_fit: report.would_fit,
        cause: report.cause.map(|(cause, _)| cause.name().to_owned()),
        idle_bytes: report.cause.map(|(_, bytes)| bytes),
        severity: report.severity.map(|severity| severity.name().into()),
        expandable_segments: report.expandable,
        unusable_free: shares(report.picture.unusable_free_curve()),
        free_lists: report.picture.lists.iter().map(list).collect(),
        held_by: report.holders.iter().map(holder).collect(),
        churn: Some(churn_answer(churn)),
    }
}

fn shares(curve: Vec<(u64, f64)>) -> Vec<Share> {
    let share =
        |(request_bytes, share)| Share { request_bytes, unusable: finite(share).unwrap_or(1.0).clamp(0.0, 1.0) };
    curve.into_iter().map(share).collect()
}

fn list(list: &FreeList) -> frag::FreeList {
    let &FreeList { stream, pool, kind, reserved_bytes, segments, blocks, ref space } = list;
    frag::FreeList {
        stream,
        pool: format!("{}:{}", pool.first, pool.second),
        kind: if kind == SegmentKind::Small { "small" } else { "large" }.into(),
        reserved_bytes,
        segments,
        free_blocks: blocks,
        free_bytes: space.free_bytes(),
        largest_free_bytes: space.largest_free_bytes(),
        unusable_free: shares(space.unusable_free_curve()),
    }
}

/// A group of blocks that strand memory, for a response.
pub(super) fn holder(holder: &Holder) -> frag::Holder {
    let Holder { pin, stack } = holder;
    frag::Holder {
        site: Site::new(None, frames(stack)),
        live_blocks: pin.blocks,
        live_bytes: pin.live_bytes,
        segments: pin.segments,
        stranded_bytes: pin.stranded_bytes,
        birth_epoch: pin.birth_epoch,
        birth_step: pin.birth_step,
        birth_phase: pin.birth_phase.map(|phase| phase.name().to_owned()),
    }
}

fn churn_answer(churn: &RankChurn) -> Churn {
    let RankChurn { steps, steps_taking, steps_returning, calls, again_bytes, allocations_per_step, retries, .. } =
        churn.clone();
    Churn {
        steps,
        steps_taking,
        steps_returning,
        takes: calls.takes,
        taken_bytes: calls.taken_bytes,
        returns: calls.returns,
        returned_bytes: calls.returned_bytes,
        taken_again_bytes: again_bytes,
        allocations_per_step: finite(allocations_per_step),
        alloc_retries: retries,
    }
}

//! `oom`: the failed requests, each with the arithmetic that explains it.

use std::sync::Arc;

use memctl_analysis::classes::Shares;
use memctl_analysis::oom;
use memctl_model::FindingKind;
use memctl_proto::convert::finding::to_wire;
use memctl_proto::v1;

use super::answer;
use super::answer::frame;
use super::fragmentation::holder;
use super::scope::Scope;
use crate::job_data::error::ReadError;
use crate::job_data::job::{everybody, find};
use crate::judge::Judge;
use crate::store::Store;
use crate::streams::Streams;

/// Answers an out-of-memory request.
pub(super) async fn oom(
    store: &Arc<dyn Store>,
    streams: &Streams,
    judge: &Judge,
    request: v1::OomRequest,
) -> Result<v1::Oom, ReadError> {
    let selection = request.selection.unwrap_or_default();
    let found = Arc::new(find(&**store, &selection).await?);
    let (explained, findings) = judge.explained(&found, &everybody(&**store, &found, &selection).await?).await?;
    let findings = findings.iter().filter(|finding| oom::outcome::tells(finding));
    let (judged, not_judged) =
        Scope::new(&found, &[FindingKind::Oom], selection.ranks.is_empty() && selection.processes.is_empty())
            .into_wire();
    Ok(v1::Oom {
        job: Some(answer::found_job(&found, streams)),
        completeness: Some(answer::completeness(found.completeness(streams))),
        reports: explained
            .ooms
            .iter()
            .zip(&explained.failed)
            .map(|(report, &session)| {
                let process = found.process(session).name.clone();
                v1::OomReport { process, ..answer(report) }
            })
            .collect(),
        findings: findings.map(|finding| to_wire(finding, &found.job.name)).collect(),
        failed: found.devices.iter().fold(0, |sum, device| device.ooms.saturating_add(sum)),
        judged,
        not_judged,
    })
}

fn answer(report: &oom::Report) -> v1::OomReport {
    let facts = &report.facts;
    v1::OomReport {
        rank: facts.rank,
        device: u32::from(facts.device),
        time_ns: facts.time_ns,
        epoch: facts.epoch,
        step: facts.step,
        cause: report.cause.name().to_owned(),
        asked_bytes: facts.asked_bytes,
        stack: facts.stack.frames.iter().map(frame).collect(),
        reserved_bytes: facts.found.reserved_bytes,
        active_bytes: facts.found.active_bytes,
        allocated_bytes: facts.found.allocated_bytes,
        free_bytes: report.free_bytes,
        largest_usable_bytes: report.largest_usable_bytes,
        holes: facts.found.holes,
        flushed_bytes: report.flushed_bytes,
        stranded_bytes: report.stranded_bytes,
        missing_bytes: report.missing_bytes,
        device_free_bytes: facts.device_free_bytes,
        device_total_bytes: facts.device_total_bytes,
        limit_at_least_bytes: report.limit_bytes.map(|(least, _)| least),
        limit_below_bytes: report.limit_bytes.map(|(_, below)| below),
        others_bytes: facts.others_bytes,
        outside_bytes: report.outside_bytes,
        expandable_would_serve: report.expandable_would_serve,
        classes: classes(&facts.classes),
        sites: facts.sites.iter().map(site).collect(),
        holders: facts.holders.iter().map(holder).collect(),
        peers: facts.peers.iter().map(peer).collect(),
        exact: facts.exact,
        process: String::new(),
    }
}

/// Bytes by class, largest first.
pub(super) fn classes(shares: &Shares) -> Vec<v1::ClassBytes> {
    shares.ranked().into_iter().map(|(class, bytes)| v1::ClassBytes { class: class.name().to_owned(), bytes }).collect()
}

fn site(site: &oom::SiteUse) -> v1::OomSite {
    let oom::SiteUse { stack, bytes, blocks, before_bytes } = site;
    v1::OomSite {
        stack: stack.frames.iter().map(frame).collect(),
        bytes: *bytes,
        blocks: *blocks,
        before_bytes: *before_bytes,
    }
}

fn peer(peer: &oom::Peer) -> v1::OomPeer {
    let &oom::Peer { rank, ref process, reserved_bytes, peak_allocated_bytes, device_free_bytes } = peer;
    v1::OomPeer { rank, reserved_bytes, peak_allocated_bytes, device_free_bytes, process: process.clone() }
}

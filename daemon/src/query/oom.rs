//! Answers `oom`: the failed requests, each with the arithmetic that explains it.

use std::sync::Arc;

use memctl_analysis::classes::Shares;
use memctl_analysis::oom;
use memctl_answers::SCHEMA;
use memctl_answers::finding::{Finding, Site};
use memctl_answers::format::time::Time;
use memctl_answers::oom::{Class, Failed, Live, Oom, Peer};
use memctl_model::FindingKind;
use memctl_proto::v1;

use super::answer;
use super::answer::frames;
use super::fragmentation::holder;
use super::scope::Scope;
use crate::job_data::error::ReadError;
use crate::job_data::job::{find, with_all_processes};
use crate::judge::Judge;
use crate::store::Store;
use crate::streams::Streams;

/// Answers an out-of-memory request.
pub(super) async fn oom(
    store: &Arc<dyn Store>,
    streams: &Streams,
    judge: &Judge,
    selection: &v1::Selection,
) -> Result<Oom, ReadError> {
    let found = Arc::new(find(&**store, selection).await?);
    let (explained, findings) =
        judge.explained(&found, &with_all_processes(&**store, &found, selection).await?).await?;
    let findings = findings.iter().filter(|finding| oom::outcome::tells(finding));
    let scope = Scope::new(&found, &[FindingKind::Oom], selection.ranks.is_empty() && selection.processes.is_empty());
    let failures = explained.ooms.iter().zip(&explained.failed).map(|(report, &session)| {
        let process = found.process(session).name.clone();
        Failed { process, ..answer(report) }
    });
    Ok(Oom {
        schema: SCHEMA,
        job: answer::found_job(&found, streams),
        completeness: found.completeness(streams, &**store).into(),
        failed: found.devices.iter().fold(0, |sum, device| device.ooms.saturating_add(sum)),
        failures: failures.collect(),
        findings: findings.map(|finding| Finding::new(finding, &found.job.name)).collect(),
        scope: scope.into_answer(),
        ..Oom::default()
    })
}

fn answer(report: &oom::Report) -> Failed {
    let facts = &report.facts;
    Failed {
        rank: facts.rank,
        process: String::new(),
        device: u32::from(facts.device),
        at: Time(facts.time_ns),
        epoch: facts.epoch,
        step: facts.step,
        cause: report.cause.name().to_owned(),
        site: Site::new(None, frames(&facts.stack)),
        asked_bytes: facts.rounded_bytes,
        reserved_bytes: facts.at_request.reserved_bytes,
        active_bytes: facts.at_request.active_bytes,
        allocated_bytes: facts.at_request.allocated_bytes,
        free_in_cache_bytes: report.free_bytes,
        largest_usable_bytes: report.largest_usable_bytes,
        holes: facts.at_request.holes,
        flushed_bytes: report.flushed_bytes,
        stranded_bytes: report.stranded_bytes,
        missing_bytes: report.missing_bytes,
        device_free_bytes: facts.device_free_bytes,
        device_total_bytes: facts.device_total_bytes,
        limit_at_least_bytes: report.limit_bytes.map(|(least, _)| least),
        limit_below_bytes: report.limit_bytes.map(|(_, below)| below),
        others_bytes: facts.others_bytes,
        outside_bytes: report.outside_bytes,
        expandable_segments_would_serve: report.expandable_would_serve,
        classes: classes(&facts.classes),
        sites: facts.sites.iter().map(site).collect(),
        held_by: facts.stranding_blocks.iter().map(holder).collect(),
        peers: facts.peers.iter().map(peer).collect(),
        exact: facts.exact,
    }
}

/// Bytes by class, largest first.
fn classes(shares: &Shares) -> Vec<Class> {
    let class = |(class, live_bytes): (memctl_analysis::classes::Class, u64)| Class {
        class: class.name().to_owned(),
        live_bytes,
    };
    shares.ranked().into_iter().map(class).collect()
}

fn site(site: &oom::SiteUse) -> Live {
    let oom::SiteUse { stack, bytes, blocks, before_bytes } = site;
    let site = Site::new(None, frames(stack));
    Live { site, live_bytes: *bytes, live_blocks: *blocks, before_bytes: *before_bytes }
}

fn peer(peer: &oom::Peer) -> Peer {
    let &oom::Peer { rank, ref process, reserved_bytes, peak_allocated_bytes, device_free_bytes } = peer;
    Peer { rank, process: process.clone(), reserved_bytes, peak_allocated_bytes, device_free_bytes }
}
